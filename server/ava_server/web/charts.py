"""Stacked bars of days or months as the page draws them: places and sizes for SVG, and the words beside them.

The server draws them, so a page needs no script for them, and they stand above a table with the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

HEIGHT = 100.0
WIDE, BESIDE = 0.8, 0.1
"""How wide a bar is, and the space on each side of it, of a period's width 1."""
EACH_DAY = 31
"""Up to so many days each has its label; of more, every seventh."""
MINOR = 5
"""On a narrow screen only every so many labels are shown."""
_STEPS = (1, 2, 4, 6, 8, 10)
"""Round numbers below ten whose halves are round too, for the line in the middle."""


@dataclass(frozen=True)
class Series:
    """Figures of one kind, one for each period; `kind` is the CSS class of its colour."""

    name: str
    kind: str
    values: Sequence[float]


@dataclass(frozen=True)
class Bar:
    """A part of a column: its colour, its upper edge and its height, of `HEIGHT`."""

    kind: str
    y: float
    height: float


@dataclass(frozen=True)
class ChartColumn:
    """The bars of a period, from below, with the words for them, and the label on the axis; empty for none.

    `minor`: it has no label where there is little room.
    """

    words: str
    label: str
    minor: bool
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Chart:
    """Bars of periods; `marks` are the words on the axis of figures, from the top."""

    series: Sequence[Series]
    columns: Sequence[ChartColumn]
    marks: tuple[str, str, str]


def draw(periods: Sequence[str], series: Sequence[Series], words: Callable[[float], str]) -> Chart | None:
    """Return the bars of periods (`2026-01-31` or `2026-01`), None where every figure is 0."""
    sums = [sum(one.values[place] for one in series) for place in range(len(periods))]
    top = _round_up(max(sums, default=0))
    if not top:
        return None
    labels_each = len(periods) <= EACH_DAY
    columns: list[ChartColumn] = []
    for place, period in enumerate(periods):
        from_end = len(periods) - 1 - place
        label = ""
        if labels_each or from_end % 7 == 0:
            label = _label(period, month=place == 0 or not labels_each)
        columns.append(
            ChartColumn(
                words=_column_words(period, place, series, words),
                label=label,
                minor=len(periods) > 12 and from_end % MINOR != 0,
                bars=_bars(place, series, top),
            )
        )
    return Chart(series, columns, (words(top), words(top / 2), "0"))


def _bars(place: int, series: Sequence[Series], top: float) -> tuple[Bar, ...]:
    bars: list[Bar] = []
    below = 0.0
    for one in series:
        height = HEIGHT * one.values[place] / top
        below += height
        if height:
            bars.append(Bar(one.kind, round(HEIGHT - below, 2), round(height, 2)))
    return tuple(bars)


def _column_words(period: str, place: int, series: Sequence[Series], words: Callable[[float], str]) -> str:
    parts = [f"{one.name} {words(one.values[place])}" for one in series if one.values[place]]
    if not parts:
        return f"{period}: nothing"
    if len(parts) == 1:
        return f"{period}: {parts[0]}"
    return f"{period}: {words(sum(one.values[place] for one in series))} ({', '.join(parts)})"


def _label(period: str, *, month: bool) -> str:
    """Return a day with its month where one begins, or with `month`: `31`, `Feb 1`; a month as `2026-02`."""
    if len(period) == len("2026-01"):
        return period
    day = date.fromisoformat(period)
    has_room = day.day < 28  # the month's name would stand beside the first of the next one
    if day.day == 1 or (month and has_room):
        return f"{day:%b} {day.day}"
    return str(day.day)


def _round_up(value: float) -> float:
    """Return a round number at least as large, whose half is round too: 1, 2, 4, 6 or 8 times a power of ten."""
    if value <= 0:
        return 0.0
    unit = 1.0
    while unit * 10 <= value:
        unit *= 10
    while unit > value:
        unit /= 10
    return next(unit * step for step in _STEPS if unit * step >= value)
