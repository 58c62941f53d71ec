"""What the report of a suite says: costs of tries with a verdict, and a page that shows hostile texts as text."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from support.approval.past_runs import config

from ava_audit.rows import RunRow
from ava_audit.units import US_PER_S
from ava_server.evals.case import Case
from ava_server.suites.cells import Cell, Round
from ava_server.suites.report import page
from ava_server.suites.round_results import (
    ColumnScore,
    Proportion,
    Ratio,
    Score,
    SuiteResult,
    TryVerdict,
    result_of,
)


def test_costs_are_of_tries_with_a_verdict_and_compared_in_the_cases_that_both_columns_have() -> None:
    def run(cost: int) -> RunRow:
        return RunRow(
            "S-1", "P-1", None, "ben", "sess-1", "researcher", None, None, "a:b", config().model_dump_json(), None,
            "success", "done", None, 0, active_us=cost * US_PER_S, cost_micros=cost,
        )  # fmt: skip

    def result(*tries: tuple[str, str, int, Sequence[int], bool | None]) -> SuiteResult:
        cells = [
            Cell(
                Case.model_construct(id=case, folder=Path(), task="t", checks=()),
                column,
                number,
                {},
                f"{case} {column} {number}",
                1.0,
            )
            for case, column, number, _costs, _passed in tries
        ]
        runs = {cell.id: [run(cost) for cost in costs] for cell, (*_, costs, _passed) in zip(cells, tries, strict=True)}
        scores = {
            cell.id: Score(passed, "") for cell, (*_, passed) in zip(cells, tries, strict=True) if passed is not None
        }
        return result_of("suite", "", Round(1, runs), cells, scores)

    found = result(
        ("cheap", "a", 1, [100], True), ("dear", "a", 1, [900], True),
        ("cheap", "b", 1, [7, 100], True), ("dear", "b", 1, [80], None), ("dear", "b", 2, [], None),
    )  # fmt: skip
    whole, cut = found.columns
    (compared,) = found.comparisons
    assert (whole.cost_per_solved.value, cut.cost_per_solved.value, cut.seconds_per_solved.value) == (500, 100, 100)
    assert (whole.cost_micros, cut.cost_micros, found.cost_micros) == (1_000, 187, 1_187), "what was spent is all of it"
    assert compared.cases == 1 and compared.before == compared.after == Ratio(100, 100, 100)
    assert "a $0.0005, 100 %; b $0.0001, 100 %" in page(found)
    more = result(
        *(("cheap", "a", number, [100], True) for number in (1, 2, 3)), ("dear", "a", 1, [900], True),
        ("cheap", "b", 1, [100], True), *(("dear", "b", number, [900], True) for number in (1, 2, 3)),
    )  # fmt: skip
    (compared,) = more.comparisons
    assert compared.before == compared.after and compared.before.value == 500, "another number of tries changes nothing"


# -- the page ---------------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _value in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\"'\x1b[31m"


def test_the_page_shows_hostile_texts_as_text_and_loads_nothing() -> None:
    share, ratio = Proportion(0.5, 0.1, 0.9, 2), Ratio(200.0, 100.0, None)
    verdicts = tuple(
        TryVerdict(case=HOSTILE, column=HOSTILE, number=number, run="S-1", ending="success", passed=passed, why=HOSTILE,
                cost_micros=100, seconds=1.5)
        for number, passed in ((1, True), (2, False))
    )  # fmt: skip
    column = ColumnScore(
        name=HOSTILE, tries=2, without=0, solved=1, pass_1=share, pass_all=share, cost_micros=200,
        cost_per_solved=ratio, seconds_per_solved=ratio, price=("free",),
    )  # fmt: skip
    shown = page(SuiteResult(
        suite=HOSTILE, about=HOSTILE, round=1, tries=2, cost_micros=200, columns=(column,), verdicts=verdicts,
        notes=(HOSTILE,),
    ))  # fmt: skip
    found = Tags()
    found.feed(shown)
    assert found.tags.isdisjoint({"script", "img", "link", "iframe", "a", "object"}), found.tags
    assert found.attributes.isdisjoint({"href", "src", "onerror", "onload"}), found.attributes
    assert "\x1b" not in shown and "<script>alert(1)</script>" in found.text
    assert "default-src 'none'" in shown and "http" not in shown.replace("http-equiv", "")
    assert found.text.count("$0.0002") >= 2 and "1/2" in found.text
