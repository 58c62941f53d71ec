"""Bars of days: as high as their figures, and every day on the axis."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_audit.units import DAY_US, day_of
from ava_server.web.charts import HEIGHT, Series, draw


def days(count: int) -> list[str]:
    return [day_of((20_450 + number) * DAY_US) for number in range(count)]


def words(figure: float) -> str:
    return f"{figure:g}"


FIGURES = st.lists(st.integers(0, 10**9), min_size=3, max_size=3)


@given(first=FIGURES, second=FIGURES)
def test_bars_stand_on_one_another_as_high_as_their_figures(first: Sequence[int], second: Sequence[int]) -> None:
    chart = draw(days(3), [Series("a", "part0", first), Series("b", "part1", second)], words)
    if not any([*first, *second]):
        assert chart is None
        return
    assert chart is not None
    top = float(chart.marks[0])
    for place, column in enumerate(chart.columns):
        heights = [bar.height for bar in column.bars]
        assert sum(heights) == pytest.approx(HEIGHT * (first[place] + second[place]) / top, abs=0.05)
        assert all(bar.y >= -0.01 for bar in column.bars), "none is higher than the picture"
        below = HEIGHT
        for bar in column.bars:
            below -= bar.height
            assert bar.y == pytest.approx(below, abs=0.02)


@pytest.mark.parametrize("count", [7, 30, 31])
def test_every_day_of_a_month_has_its_label(count: int) -> None:
    chart = draw(days(count), [Series("a", "part0", [1] * count)], words)
    assert chart is not None and all(column.label for column in chart.columns)
    assert [column.label for column in chart.columns][3:6] == ["31", "Jan 1", "2"]


def test_a_long_time_has_a_label_for_each_week() -> None:
    chart = draw(days(90), [Series("a", "part0", [1] * 90)], words)
    assert chart is not None and len([column for column in chart.columns if column.label]) == 13


def test_the_words_of_a_bar_have_the_sum_and_its_parts() -> None:
    chart = draw(days(2), [Series("a", "part0", [1, 0]), Series("b", "part1", [2, 0])], words)
    assert chart is not None
    assert [column.words for column in chart.columns] == ["2025-12-28: 3 (a 1, b 2)", "2025-12-29: nothing"]
