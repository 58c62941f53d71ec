"""A round of a suite as text and as a page: its figures, its cases, and why tries did not pass.

The page is one HTML file without a script or a request, with cost against quality as a picture (SVG). Every text of a
model, a case or a person is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from ava_audit.units import format_usd
from ava_roles.wrap import clean
from ava_server.cli.terminal import aligned, counted, cut, one_line
from ava_server.core.errors import BadInput
from ava_server.suites.results import ColumnScore, Comparison, Proportion, Ratio, SuiteResult, TryVerdict, known_tries

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


def _ratio_text(ratio: Ratio, shown: Callable[[float], str]) -> str:
    if ratio.value is None:
        return "nothing solved"
    low = DASH if ratio.low is None else shown(ratio.low)
    high = "?" if ratio.high is None else shown(ratio.high)
    return f"{shown(ratio.value)} ({low}{DASH}{high})"


def mark_of(verdicts: Sequence[TryVerdict]) -> str:
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


def _failure_lines(failed: Sequence[TryVerdict]) -> list[str]:
    lines: list[str] = []
    for one in failed[:MOST_FAILURES]:
        where = ", ".join(filter(None, (one.case, one.column, one.run)))
        lines.append(f"  {where}: {cut(one_line(one.why), WHY_CHARS)}")
    if len(failed) > MOST_FAILURES:
        lines.append(f"  and {len(failed) - MOST_FAILURES} more; --json has all")
    return lines


def tried(result: SuiteResult, case: str, column: str) -> list[TryVerdict]:
    return [one for one in result.verdicts if (one.case, one.column) == (case, column)]


# -- the page ----------------------------------------------------------------------------------------------------------

_COLOURS = ("#0b6e99", "#c2571a", "#3a7d34", "#8a3d9c", "#9c6b00", "#b0304f", "#4a5a6a", "#00796b")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 520, 320, 52, 32, 30, 48
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
    """Write the page of a round. Blocking. Raises BadInput: the file cannot be written."""
    try:
        path.write_text(page(result), "utf-8")
    except OSError as error:
        raise BadInput(f"--html: {path} cannot be written: {error.strerror}") from error


def page(result: SuiteResult) -> str:
    title = _text(f"{result.suite}, round {result.round}")
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
            f"<p>{_text(result.about)}</p>" if result.about else "",
            f"<p>{_text(format_usd(result.cost_micros))} spent. Intervals are of 95 %.</p>",
            *_picture(result),
            *_figures(result),
            *_cases(result),
            *(f"<p>{'<br>'.join(map(_text, comparison_lines(one)))}</p>" for one in result.comparisons),
            *(f"<p>{_text(note)}</p>" for note in result.notes),
            *_failures(result),
            "</body>\n</html>\n",
        )
    )


def _text(text: str) -> str:
    return escape(clean(text)[0])


def _picture(result: SuiteResult) -> Iterator[str]:
    """Yield cost per try against the share of solved tries, with its interval."""
    known = [(number, column, _per_try(result, column)) for number, column in enumerate(result.columns) if column.tries]
    if not known:
        return
    most = max(cost for _number, _column, cost in known)
    label = "Cost per try against solved tries: " + "; ".join(
        f"{column.name} {format_usd(round(cost))}, {100 * column.pass_1.value:.0f} %" for _n, column, cost in known
    )
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="{_text(label)}">'
    yield '<g font-size="12" fill="currentColor" stroke="none">'
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share)
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#8a94a0" stroke-opacity=".4"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>'
    yield f'<text x="{_LEFT}" y="{_TOP - 14}">solved tries</text>'
    for part in (0.0, 0.5, 1.0) if most else (0.0,):
        x, y = _x(part), _HEIGHT - _BOTTOM + 18
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{_text(format_usd(round(part * most)))}</text>'
    yield f'<text x="{_x(0.5):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">cost per try</text></g>'
    for number, column, cost in known:
        x, colour, quality = _x(cost / (most or 1.0)), _COLOURS[number % len(_COLOURS)], column.pass_1
        yield f'<g stroke="{colour}" fill="{colour}"><path d="M{x:.1f} {_y(quality.low):.1f}V{_y(quality.high):.1f}"/>'
        yield f'<circle cx="{x:.1f}" cy="{_y(quality.value):.1f}" r="5"/>'
        side, anchor = (-10, "end") if x > _WIDTH * 0.6 else (10, "start")
        place = f'x="{x + side:.1f}" y="{_y(quality.value) - 8:.1f}" text-anchor="{anchor}"'
        yield f'<text {place} font-size="13" stroke="none">{_text(column.name)}</text></g>'
    yield "</svg>"


def _per_try(result: SuiteResult, column: ColumnScore) -> float:
    known = known_tries(result.verdicts, column.name).values()
    return sum(one.cost_micros for tried in known for one in tried) / column.tries


def _x(part: float) -> float:
    return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _figures(result: SuiteResult) -> Iterator[str]:
    yield f'<div class="wide"><table>\n<caption>Figures</caption>\n<tr><th></th>{_heads(result)}</tr>'
    for group in zip(*(figures(column, result.tries) for column in result.columns), strict=True):
        values = "".join(f"<td>{_text(value)}</td>" for _name, value in group)
        yield f'<tr><th scope="row">{_text(group[0][0])}</th>{values}</tr>'
    yield "</table></div>"


def _cases(result: SuiteResult) -> Iterator[str]:
    yield f'<div class="wide"><table>\n<caption>Cases</caption>\n<tr><th>case</th>{_heads(result)}</tr>'
    for case in dict.fromkeys(one.case for one in result.verdicts):
        cells: list[str] = []
        for column in result.columns:
            found = tried(result, case, column.name)
            known = {one.passed for one in found}
            kind = "yes" if known == {True} else "no" if known == {False} else ""
            cost = format_usd(sum(one.cost_micros for one in found))
            cells.append(f'<td class="{kind}">{_text(mark_of(found))}, {_text(cost)}</td>')
        yield f'<tr><th scope="row">{_text(case)}</th>{"".join(cells)}</tr>'
    yield "</table></div>"


def _heads(result: SuiteResult) -> str:
    return "".join(f'<th scope="col">{_text(column.name)}</th>' for column in result.columns)


def _failures(result: SuiteResult) -> Iterator[str]:
    failed = [one for one in result.verdicts if one.passed is not True]
    if failed:
        yield '<div class="wide"><table>\n<caption>Not passed</caption>'
        yield "<tr><th>case</th><th>column</th><th>run</th><th>ending</th><th>why</th></tr>"
        for one in failed:
            row = (one.case, one.column, one.run or "", one.ending, one.why)
            yield f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>"
        yield "</table></div>"
