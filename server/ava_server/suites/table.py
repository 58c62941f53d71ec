"""A round of a suite as text: its figures, its cases, and why tries did not pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ava_audit.units import format_usd
from ava_server.cli.terminal import aligned, counted, cut, one_line
from ava_server.suites.results import ColumnScore, Comparison, SuiteResult, Verdict
from ava_server.suites.statistics import Ratio, Share

WHY_CHARS = 160
MOST_FAILURES = 20
"""Failed tries that the text explains; JSON and page have all."""

DASH = "–"


def share_text(share: Share) -> str:
    """Return a share with its interval: `75 % (41–93)`."""
    if not share.of:
        return "unknown"
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f}{DASH}{100 * share.high:.0f})"


def money_text(ratio: Ratio) -> str:
    return _ratio_text(ratio, lambda micros: format_usd(round(micros)))


def _ratio_text(ratio: Ratio, shown: Callable[[float], str]) -> str:
    if ratio.value is None:
        return "nothing solved"
    low = DASH if ratio.low is None else shown(ratio.low)
    high = "?" if ratio.high is None else shown(ratio.high)
    return f"{shown(ratio.value)} ({low}{DASH}{high})"


def mark_of(verdicts: Sequence[Verdict]) -> str:
    """Return how the tries of one case went: `yes`, `no`, `2/3`, and `?` for each without a verdict."""
    known = [one.passed for one in verdicts if one.passed is not None]
    unknown = "?" if len(known) < len(verdicts) else ""
    if not known:
        return unknown
    if len(verdicts) == 1:
        return "yes" if known[0] else "no"
    return f"{sum(known)}/{len(known)}{unknown}"


def figures(column: ColumnScore, tries: int) -> list[tuple[str, str]]:
    every = [(f"pass^{tries}", share_text(column.pass_all))] if tries > 1 else []
    return [
        ("pass@1", share_text(column.pass_1)),
        *every,
        ("cost per solved", money_text(column.cost_per_solved)),
        ("seconds per solved", _ratio_text(column.seconds_per_solved, lambda seconds: f"{seconds:.1f} s")),
        ("spent", f"{format_usd(column.cost_micros)}"),
        ("tries", f"{column.tries}" + (f" and {column.without} without verdict" if column.without else "")),
    ]


def comparison_lines(found: Comparison) -> list[str]:
    head = (
        f"{found.second} against {found.first}, in {counted(found.cases, 'case')}: better in {len(found.better)}, worse"
        f" in {len(found.worse)} (sign test: p = {found.p_value:.2f}); cost per solved try:"
        f" {money_text(found.after)}, against {money_text(found.before)}."
    )
    changed = [("better", found.better), ("worse", found.worse)]
    lines = [
        f"  {word}: {one_line(case)}, {100 * before:.0f} % to {100 * after:.0f} %"
        for word, cases in changed
        for case, (before, after) in cases.items()
    ]
    return [head, *lines, *found.notes]


def table(result: SuiteResult) -> list[str]:
    names = [column.name for column in result.columns]
    cases = list(dict.fromkeys(one.case for one in result.verdicts))
    tries = "" if result.tries == 1 else f", {result.tries} tries each"
    lines = [
        f"{result.suite}, round {result.round}: {counted(len(cases), 'case')}{tries}."
        f" {format_usd(result.cost_micros)} spent.",
        "",
    ]
    rows = [figures(column, result.tries) for column in result.columns]
    lines += aligned(
        [("", *names), *((group[0][0], *(value for _name, value in group)) for group in zip(*rows, strict=True))]
    )
    lines += ["In brackets: the interval that holds the value in 95 of 100 cases (docs/evals.md).", ""]
    marks = ((case, *(mark_of(tried(result, case, name)) for name in names)) for case in cases)
    lines += aligned([("case", *names), *((one_line(case), *found) for case, *found in marks)])
    if failed := [one for one in result.verdicts if one.passed is False]:
        lines += ["", "Not passed:", *_failure_lines(failed)]
    for pair in result.comparisons:
        lines += ["", *comparison_lines(pair)]
    return [*lines, *(["", *map(one_line, result.notes)] if result.notes else [])]


def _failure_lines(failed: Sequence[Verdict]) -> list[str]:
    lines: list[str] = []
    for one in failed[:MOST_FAILURES]:
        where = ", ".join(filter(None, (one.case, one.column, one.run)))
        lines.append(f"  {where}: {cut(one_line(one.why), WHY_CHARS)}")
    if len(failed) > MOST_FAILURES:
        lines.append(f"  and {len(failed) - MOST_FAILURES} more; --json has all")
    return lines


def tried(result: SuiteResult, case: str, column: str) -> list[Verdict]:
    return [one for one in result.verdicts if (one.case, one.column) == (case, column)]
