"""The screen of `ava report`: tables no wider than the terminal, with a bar at each sum; plain where it is piped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ava_audit.units import DAY_US, day_of, format_usd
from ava_roles.wrap import clean
from ava_server.cli.report_sums import TOP, Report, Sum
from ava_server.cli.terminal import cells, columns, cut, say, write

if TYPE_CHECKING:
    from rich.console import RenderableType

NAME = 30
"""No name takes more columns in 80, so that figures and bars have the rest."""
BAR = 48
MANY_DAYS = 62
"""Above so many, the screen has months; JSON always has days."""
_FOLD = 4
"""So many days without anything are one line."""


@dataclass(frozen=True)
class Row:
    """A line of a table: its name, its figures, and how long its bar is, of `Row.most`."""

    name: str
    figures: tuple[str, ...]
    bar: int = 0


def screen(report: Report) -> None:
    """Write a report to stdout."""
    say("\n".join(_head(report)))
    if not report.total.calls and not report.total.ended:
        say("\nNothing was spent, and nothing ended.")
        return
    days, what = _days(report)
    table(f"By {what} (UTC)", ("cost", "calls", "ended", "failed"), days)
    for by, sums in report.by.items():
        if by == "ending":
            table("By ending", ("cost", "share", "runs"), [_ending_row(one, report.total) for one in sums])
        else:
            head = ("cost", "share", "ended", "failed")
            table(f"By {by}", head, [_row(one, report.total) for one in sums])
    say("\n".join(_failed(report)))


def _head(report: Report) -> list[str]:
    total = report.total
    days = report.last - report.first + 1
    span = f"{day_of(report.first * DAY_US)} to {day_of(report.last * DAY_US)} ({days} days, UTC)"
    whose = f"of {report.user}" if report.user is not None else "of all users"
    if days == 1:
        span = f"{day_of(report.last * DAY_US)} (one day, UTC)"
    lines = [f"{span}, {whose}"]
    calls = "1 call of a model" if total.calls == 1 else f"{total.calls:,} calls of models"
    runs = "1 run" if len(total.spenders) == 1 else f"{len(total.spenders):,} runs"
    ended = f"{total.ended:,} ended, {total.failed:,} of them failed"
    lines.append(f"Spent {_usd(total.cost)} in {calls} by {runs}; {ended}.")
    parts: list[str] = []
    if total.retries:
        parts.append(f"asking again (retries) {_usd(total.retries)}")
    if total.plan:
        parts.append(f"planning {_usd(total.plan)}")
    if total.uncosted:
        parts.append(f"booked at the worst case, because nobody said what it cost, {_usd(total.uncosted)}")
    if parts:
        lines.append(f"Of it: {'; '.join(parts)}.")
    if total.overruns:
        count = "1 call" if total.overruns == 1 else f"{total.overruns:,} calls"
        lines.append(f"Overrun: {count} went beyond what was reserved, by {_usd(total.over)} in all.")
    return lines


def _days(report: Report) -> tuple[list[Row], str]:
    """Return a line for each day, or month where there are many; days without anything in a row are one line."""
    if len(report.days) > MANY_DAYS:
        return _folded(_months(report.days)), "month"
    return _folded(report.days), "day"


def _months(days: Sequence[Sum]) -> list[Sum]:
    months: dict[str, Sum] = {}
    for day in days:
        month = months.setdefault(day.name[:7], Sum(day.name[:7]))
        month.cost += day.cost
        month.calls += day.calls
        month.ended += day.ended
        month.failed += day.failed
    return list(months.values())


def _folded(days: Sequence[Sum]) -> list[Row]:
    rows: list[Row] = []
    empty: list[Sum] = []

    def close() -> None:
        if len(empty) >= _FOLD:
            rows.append(Row(f"{empty[0].name} to {empty[-1].name}", ("-", "-", "-", "-")))
        else:
            rows.extend(Row(day.name, ("-", "-", "-", "-")) for day in empty)
        empty.clear()

    for day in days:
        if not day.calls and not day.ended:
            empty.append(day)
            continue
        close()
        rows.append(Row(day.name, (_usd(day.cost), f"{day.calls:,}", f"{day.ended:,}", _or_dash(day.failed)), day.cost))
    close()
    return rows


def _row(one: Sum, total: Sum) -> Row:
    return Row(
        one.name, (_usd(one.cost), _share(one.cost, total.cost), f"{one.ended:,}", _or_dash(one.failed)), one.cost
    )


def _ending_row(one: Sum, total: Sum) -> Row:
    return Row(one.name, (_usd(one.cost), _share(one.cost, total.cost), f"{one.runs:,}"), one.cost)


def _or_dash(count: int) -> str:
    return f"{count:,}" if count else "-"


def _usd(micros: int) -> str:
    return format_usd(micros)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _failed(report: Report) -> list[str]:
    if not report.reasons:
        lines = ["", "Nothing failed."]
    else:
        lines = ["", f"What failed: {report.total.failed:,} of {report.total.ended:,} runs that ended"]
    for reason in report.reasons[:TOP]:
        run = reason.newest
        lines.append(f"  {reason.runs:,} x {reason.ending}: {_one_line(reason.reason) or 'no reason is known'}")
        latest = "" if reason.runs == 1 else "the latest: "
        lines.append(f"      {latest}{_one_line(run.role)}, {day_of(run.ended_us or 0)}: ava show {run.id}")
    if len(report.reasons) > TOP:
        lines.append(f"  and {len(report.reasons) - TOP} more reasons; --json has all")
    if report.errors:
        lines += ["", "Errors on the way, by kind:"]
    for error in report.errors[:TOP]:
        kind = _one_line(error.kind) if error.kind is not None else "(erased)"
        lines.append(f"  {error.entries:,} x {kind}: ava logs {error.last_run} --type error")
    return lines


def _one_line(text: str) -> str:
    return " ".join(clean(text)[0].split())


# -- tables -----------------------------------------------------------------------------------------------------------


def table(title: str, head: Sequence[str], rows: Sequence[Row]) -> None:
    """Write a table to stdout: with bars on a terminal, in plain columns elsewhere."""
    terminal = sys.stdout.isatty()
    width = columns(sys.stdout) if terminal else 80
    names = [cut(_one_line(row.name), width - 50 if terminal else 200) for row in rows]
    first = max(map(cells, (title, *names)))
    sizes = [max(len(head[i]), *(len(row.figures[i]) for row in rows)) for i in range(len(head))] if rows else []
    lines = [
        _line(title, first, head, sizes),
        *(_line(name, first, row.figures, sizes) for name, row in zip(names, rows, strict=True)),
    ]
    left = width - max(map(cells, lines)) - 3
    most = max((row.bar for row in rows), default=0)
    say()
    if not terminal or most <= 0 or left < 6:
        write("\n".join(line.rstrip() for line in lines))
        return
    _with_bars(lines, [row.bar for row in rows], most, min(left, BAR))


def _line(name: str, first: int, figures: Sequence[str], sizes: Sequence[int]) -> str:
    right = "".join(f"  {figure:>{size}}" for figure, size in zip(figures, sizes, strict=True))
    return f"{name}{' ' * (first - cells(name))}{right}"


def _with_bars(lines: Sequence[str], bars: Sequence[int], most: int, width: int) -> None:
    """Write lines, the first of which is the head, with a bar behind each of the others."""
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, width=columns(sys.stdout), highlight=False, markup=False, emoji=False)
    blocks = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, width=width)
    grid.add_row(Text(lines[0], style="bold"), "")
    for line, bar in zip(lines[1:], bars, strict=True):
        drawn: RenderableType = "#" * round(width * bar / most)
        if blocks:
            drawn = Bar(most, 0, bar, width=width, color="cyan") if bar else ""
        grid.add_row(Text(line), drawn)
    console.print(grid)
