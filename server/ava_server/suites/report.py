"""A round of a suite as text and as a page: its figures, its cases, and why tries did not pass.

The page is one HTML file without a script or a request, with cost against quality as a picture (SVG). Every text of a
model, a case or a person is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from ava_audit.units import counted, format_usd
from ava_roles.wrap import clean
from ava_server.cli.terminal import aligned, cut, one_line
from ava_server.core.errors import BadInput
from ava_server.suites.round_results import (
    ColumnScore,
    Comparison,
    Proportion,
    Ratio,
    SuiteResult,
    TryVerdict,
    known_tries,
)

WHY_CHARS = 160
MOST_FAILURES = 20
"""Failed tries that the text explains; JSON and page have all."""

DASH = "–"


def share_text(share: Proportion) -> str:
    """Return a share with its interval: `75 % (41–93)`."""
    if not share.of:
        return "unknown"
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f}{DASH}{100 * share.high:.0f})"


def money_text(ratio: Ratio) -> str:
    return _ratio_text(ratio, lambda micros: format_usd(round(micros)))


def _ratio_text(ratio: Ratio, show: Callable[[float], str]) -> str:
    if ratio.value is None:
        return "nothing solved"
    low, high = DASH, "?"
    if ratio.low is not None:
        low = show(ratio.low)
    if ratio.high is not None:
        high = show(ratio.high)
    return f"{show(ratio.value)} ({low}{DASH}{high})"


def mark_of(verdicts: Sequence[TryVerdict]) -> str:
    """Return how the tries of one case went: `yes`, `no`, `2/3`, and `?` for each without a verdict."""
    known = [verdict.passed for verdict in verdicts if verdict.passed is not None]
    unknown = "?" if len(known) < len(verdicts) else ""
    if not known:
        return unknown
    if len(verdicts) == 1:
        return "yes" if known[0] else "no"
    return f"{sum(known)}/{len(known)}{unknown}"


def figures(column: ColumnScore, tries: int) -> list[tuple[str, str]]:
    """Return the figures of a column with their names; those of all columns have the same names."""
    pairs = [("pass@1", share_text(column.pass_1))]
    if tries > 1:
        pairs.append((f"pass^{tries}", share_text(column.pass_all)))
    pairs.append(("cost per solved", money_text(column.cost_per_solved)))
    pairs.append(("seconds per solved", _ratio_text(column.seconds_per_solved, lambda seconds: f"{seconds:.1f} s")))
    pairs.append(("spent", format_usd(column.cost_micros)))
    tries_text = f"{column.tries}"
    if column.without:
        tries_text += f" and {column.without} without verdict"
    pairs.append(("tries", tries_text))
    return pairs


def comparison_lines(comparison: Comparison) -> list[str]:
    lines = [
        f"{comparison.second} against {comparison.first}, in {counted(comparison.cases, 'case')}: better in"
        f" {len(comparison.better)}, worse in {len(comparison.worse)} (sign test: p = {comparison.p_value:.2f}); cost"
        f" per solved try: {money_text(comparison.after)}, against {money_text(comparison.before)}."
    ]
    for word, cases in (("better", comparison.better), ("worse", comparison.worse)):
        for case, (before, after) in cases.items():
            lines.append(f"  {word}: {one_line(case)}, {100 * before:.0f} % to {100 * after:.0f} %")
    lines += comparison.notes
    return lines


def table(result: SuiteResult) -> list[str]:
    cases = list(dict.fromkeys(verdict.case for verdict in result.verdicts))
    title = f"{result.suite}, round {result.round}: {counted(len(cases), 'case')}"
    if result.tries > 1:
        title += f", {result.tries} tries each"
    lines = [f"{title}. {format_usd(result.cost_micros)} spent.", ""]
    lines += aligned(_figure_rows(result))
    lines += ["In brackets: the interval that holds the value in 95 of 100 cases (docs/evals.md).", ""]
    lines += aligned(_case_rows(result, cases))
    failed = [verdict for verdict in result.verdicts if verdict.passed is False]
    if failed:
        lines += ["", "Not passed:", *_failure_lines(failed)]
    for comparison in result.comparisons:
        lines += ["", *comparison_lines(comparison)]
    if result.notes:
        lines += ["", *map(one_line, result.notes)]
    return lines


def _figure_rows(result: SuiteResult) -> list[tuple[str, ...]]:
    """Return a row for the names of the columns, and one for each figure."""
    rows: list[tuple[str, ...]] = [("", *(column.name for column in result.columns))]
    columns = [figures(column, result.tries) for column in result.columns]
    for row in zip(*columns, strict=True):
        name = row[0][0]
        rows.append((name, *(value for _name, value in row)))
    return rows


def _case_rows(result: SuiteResult, cases: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row for the names of the columns, and one for each case."""
    names = [column.name for column in result.columns]
    rows: list[tuple[str, ...]] = [("case", *names)]
    for case in cases:
        marks = [mark_of(verdicts_of(result, case, name)) for name in names]
        rows.append((one_line(case), *marks))
    return rows


def _failure_lines(failed: Sequence[TryVerdict]) -> list[str]:
    lines: list[str] = []
    for verdict in failed[:MOST_FAILURES]:
        place = ", ".join(filter(None, (verdict.case, verdict.column, verdict.run)))
        lines.append(f"  {place}: {cut(one_line(verdict.why), WHY_CHARS)}")
    if len(failed) > MOST_FAILURES:
        lines.append(f"  and {len(failed) - MOST_FAILURES} more; --json has all")
    return lines


def verdicts_of(result: SuiteResult, case: str, column: str) -> list[TryVerdict]:
    return [verdict for verdict in result.verdicts if verdict.case == case and verdict.column == column]


# -- the page ----------------------------------------------------------------------------------------------------------

_COLOURS = ("#0b6e99", "#c2571a", "#3a7d34", "#8a3d9c", "#9c6b00", "#b0304f", "#4a5a6a", "#00796b")
# The picture and its margins, in pixels.
_WIDTH = 520
_HEIGHT = 320
_LEFT = 52
_RIGHT = 32
_TOP = 30
_BOTTOM = 48
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430;
  background: #fff }
table { border-collapse: collapse; margin: 1rem 0 } caption { text-align: left; font-weight: 600 }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #d5dae0; text-align: left; vertical-align: top }
.no { background: #fbe9e4 } .yes { background: #e7f3e6 } svg { max-width: 100%; height: auto }
.wide { overflow-x: auto }
@media (prefers-color-scheme: dark) { body { color: #e4e8ee; background: #161b22 } th, td { border-color: #38414d }
  .no { background: #4a2620 } .yes { background: #1f3d24 } }
"""


def write_page(path: Path, result: SuiteResult) -> None:
    """Write the page of a round. Blocking. Raises BadInput if the file cannot be written."""
    try:
        path.write_text(page(result), "utf-8")
    except OSError as error:
        raise BadInput(f"--html: {path} cannot be written: {error.strerror}") from error


def page(result: SuiteResult) -> str:
    title = _text(f"{result.suite}, round {result.round}")
    about = ""
    if result.about:
        about = f"<p>{_text(result.about)}</p>"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
        about,
        f"<p>{_text(format_usd(result.cost_micros))} spent. Intervals are of 95 %.</p>",
    ]
    parts += _picture(result)
    parts += _figures(result)
    parts += _cases(result)
    for comparison in result.comparisons:
        lines = map(_text, comparison_lines(comparison))
        parts.append(f"<p>{'<br>'.join(lines)}</p>")
    parts += [f"<p>{_text(note)}</p>" for note in result.notes]
    parts += _failures(result)
    parts.append("</body>\n</html>\n")
    return "\n".join(parts)


def _text(text: str) -> str:
    return escape(clean(text)[0])


def _picture(result: SuiteResult) -> Iterator[str]:
    """Yield cost per try against the share of solved tries, with its interval."""
    known: list[tuple[str, ColumnScore, float]] = []
    points: list[str] = []
    for number, column in enumerate(result.columns):
        if column.tries:
            cost = _per_try(result, column)
            known.append((_COLOURS[number % len(_COLOURS)], column, cost))
            points.append(f"{column.name} {format_usd(round(cost))}, {100 * column.pass_1.value:.0f} %")
    if not known:
        return
    most = max(cost for _colour, _column, cost in known)
    label = _text(f"Cost per try against solved tries: {'; '.join(points)}")
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="{label}">'
    yield '<g font-size="12" fill="currentColor" stroke="none">'
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share)
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#8a94a0" stroke-opacity=".4"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>'
    yield f'<text x="{_LEFT}" y="{_TOP - 14}">solved tries</text>'
    marks = (0.0, 0.5, 1.0) if most else (0.0,)
    for mark in marks:
        x, y = _x(mark), _HEIGHT - _BOTTOM + 18
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{_text(format_usd(round(mark * most)))}</text>'
    yield f'<text x="{_x(0.5):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">cost per try</text></g>'
    for colour, column, cost in known:
        yield from _point(column, _x(cost / (most or 1.0)), colour)
    yield "</svg>"


def _point(column: ColumnScore, x: float, colour: str) -> Iterator[str]:
    """Yield a column's point with its interval and its name."""
    quality = column.pass_1
    yield f'<g stroke="{colour}" fill="{colour}"><path d="M{x:.1f} {_y(quality.low):.1f}V{_y(quality.high):.1f}"/>'
    yield f'<circle cx="{x:.1f}" cy="{_y(quality.value):.1f}" r="5"/>'
    name_x, anchor = x + 10, "start"
    if x > _WIDTH * 0.6:
        name_x, anchor = x - 10, "end"
    place = f'x="{name_x:.1f}" y="{_y(quality.value) - 8:.1f}" text-anchor="{anchor}"'
    yield f'<text {place} font-size="13" stroke="none">{_text(column.name)}</text></g>'


def _per_try(result: SuiteResult, column: ColumnScore) -> float:
    cost_micros = 0
    for verdicts in known_tries(result.verdicts, column.name).values():
        cost_micros += sum(verdict.cost_micros for verdict in verdicts)
    return cost_micros / column.tries


def _x(part: float) -> float:
    return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _figures(result: SuiteResult) -> Iterator[str]:
    yield f'<div class="wide"><table>\n<caption>Figures</caption>\n<tr><th></th>{_heads(result)}</tr>'
    for name, *values in _figure_rows(result)[1:]:
        cells = "".join(f"<td>{_text(value)}</td>" for value in values)
        yield f'<tr><th scope="row">{_text(name)}</th>{cells}</tr>'
    yield "</table></div>"


def _cases(result: SuiteResult) -> Iterator[str]:
    yield f'<div class="wide"><table>\n<caption>Cases</caption>\n<tr><th>case</th>{_heads(result)}</tr>'
    for case in dict.fromkeys(verdict.case for verdict in result.verdicts):
        cells: list[str] = []
        for column in result.columns:
            verdicts = verdicts_of(result, case, column.name)
            outcomes = {verdict.passed for verdict in verdicts}
            kind = ""
            if outcomes == {True}:
                kind = "yes"
            elif outcomes == {False}:
                kind = "no"
            cost = format_usd(sum(verdict.cost_micros for verdict in verdicts))
            cells.append(f'<td class="{kind}">{_text(mark_of(verdicts))}, {_text(cost)}</td>')
        yield f'<tr><th scope="row">{_text(case)}</th>{"".join(cells)}</tr>'
    yield "</table></div>"


def _heads(result: SuiteResult) -> str:
    return "".join(f'<th scope="col">{_text(column.name)}</th>' for column in result.columns)


def _failures(result: SuiteResult) -> Iterator[str]:
    failed = [verdict for verdict in result.verdicts if verdict.passed is not True]
    if not failed:
        return
    yield '<div class="wide"><table>\n<caption>Not passed</caption>'
    yield "<tr><th>case</th><th>column</th><th>run</th><th>ending</th><th>why</th></tr>"
    for verdict in failed:
        row = (verdict.case, verdict.column, verdict.run or "", verdict.ending, verdict.why)
        cells = "".join(f"<td>{_text(value)}</td>" for value in row)
        yield f"<tr>{cells}</tr>"
    yield "</table></div>"
