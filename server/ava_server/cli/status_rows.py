"""Runs as rows of a table, for any width: state, id, task, role, cost and time beside their caps, and when.

A narrow terminal has fewer columns: the bars go first, then the roles, the times and the caps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from ava_audit.rows import EXPIRED, WAITING
from ava_audit.units import format_duration, format_usd, minutes
from ava_server.cli.status_lines import bar, clock, joined, plain, remarks, state_cell, state_style
from ava_server.cli.terminal import cells, cut

if TYPE_CHECKING:
    from ava_server.render.run_view import Cap, RunView

MOST_ROLE = 24
"""Columns of a role with its plan and its user, at most."""
LEAST_NAME = 12
"""Columns of a run's name that are always shown; a longer one may take a third of the task's columns."""


@dataclass(frozen=True)
class Layout:
    """Which columns there are.

    Attributes:
        gap: Columns between two of them.
        bar: Columns of each bar; 0 for none.
        role: The role has one.
        time: The time has one, with its limit or alone.
        cap: The cost stands beside its cap.
        least_task: Columns that the tasks must have left in this layout.
    """

    gap: int
    bar: int
    role: bool
    time: Literal["of limit", "alone", "none"]
    cap: bool
    least_task: int


LAYOUTS = (
    Layout(gap=2, bar=10, role=True, time="of limit", cap=True, least_task=50),
    Layout(gap=2, bar=6, role=True, time="of limit", cap=True, least_task=40),
    Layout(gap=2, bar=0, role=True, time="of limit", cap=True, least_task=36),
    Layout(gap=2, bar=0, role=False, time="of limit", cap=True, least_task=24),
    Layout(gap=1, bar=0, role=False, time="alone", cap=True, least_task=20),
    Layout(gap=1, bar=0, role=False, time="none", cap=True, least_task=16),
    Layout(gap=1, bar=0, role=False, time="none", cap=False, least_task=0),
)
"""The layouts, the widest first. The last one fits every terminal."""


@dataclass(frozen=True)
class Column:
    """One column: its name, the cell of each run, and how wide it is."""

    name: str
    cell: Callable[[RunView], Text]
    width: int
    align: Literal["left", "right"] = "left"


class RunRows:
    """The rows of some runs; a column is as wide as the longest of its cells."""

    def __init__(self, runs: Sequence[RunView], width: int, *, everybody: bool) -> None:
        """With `everybody`, each row names its user. `width`: columns of the terminal."""
        self._runs = runs
        self._everybody = everybody
        for layout in LAYOUTS:
            before = [self._column("", _state), self._column("", _id)]
            after = self._columns_after_task(layout)
            others = [*before, *after]
            room = width - sum(column.width for column in others) - layout.gap * len(others)
            if room >= layout.least_task:
                break
        self._gap = " " * layout.gap
        self._task_width = max(room, 1)
        self._columns = [*before, Column("task", self._task, self._task_width), *after]

    def head(self) -> Text:
        """Return the names of the columns."""
        line = self._line([Text(column.name) for column in self._columns])
        line.stylize("dim")
        return line

    def row(self, run: RunView) -> Text:
        """Return the line of a run; behind its task stands what it does, or why it ended otherwise than by success."""
        return self._line([column.cell(run) for column in self._columns])

    def _line(self, texts: Sequence[Text]) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        for number, (column, text) in enumerate(zip(self._columns, texts, strict=True)):
            cell = text.copy()
            cell.truncate(column.width, overflow="ellipsis")
            if column.align == "right":
                cell.pad_left(column.width - cell.cell_len)
            else:
                cell.pad_right(column.width - cell.cell_len)
            line.append(self._gap if number else "").append_text(cell)
        line.rstrip()
        return line

    def _column(
        self, name: str, cell: Callable[[RunView], Text], *, most: int = 1_000, align: Literal["left", "right"] = "left"
    ) -> Column:
        width = max(cells(name), *(cell(run).cell_len for run in self._runs))
        return Column(name, cell, min(width, most), align)

    def _columns_after_task(self, layout: Layout) -> list[Column]:
        columns: list[Column] = []
        if layout.role:
            columns.append(self._column("role", self._role, most=MOST_ROLE))
        if layout.bar:
            columns.append(Column("", lambda run: _bar(_cost_cap(run), layout.bar), layout.bar))
        cost = _cost_of_cap if layout.cap else _cost
        columns.append(self._column("cost", cost, align="right"))
        if layout.bar:
            columns.append(Column("", lambda run: _bar(_time_cap(run), layout.bar), layout.bar))
        if layout.time != "none":
            time = _time_of_limit if layout.time == "of limit" else _time
            columns.append(self._column("time", time, align="right"))
            columns.append(self._column("when", _when, align="right"))
        return columns

    def _role(self, run: RunView) -> Text:
        plan = f" in {run.row.plan_id}" if run.row.plan_id else ""
        user = f" of {run.row.user_id}" if self._everybody else ""
        return joined(f"{run.row.role}{user}{plan}")

    def _task(self, run: RunView) -> Text:
        """Return the task, and dimmed behind it what else there is to say; neither may push out the other."""
        name = f"{cut(run.row.name, max(self._task_width // 3, LEAST_NAME))}: " if run.row.name else ""
        task = joined(f"{name}{run.task}")
        remark = plain(_remark(run))
        if not remark:
            return task
        more = joined((f" · {remark}", "dim"))
        task.truncate(max(self._task_width - more.cell_len, self._task_width // 2), overflow="ellipsis")
        return task.append_text(more)


def _remark(run: RunView) -> str:
    """Return what a run does, how far a plan is, or why it ended otherwise than by success; or nothing."""
    return remarks(run) if run.row.ended else run.progress


def _state(run: RunView) -> Text:
    return joined((state_cell(run.state), state_style(run)))


def _id(run: RunView) -> Text:
    return joined((run.row.id, "bold"))


def _cost_cap(run: RunView) -> Cap | None:
    return run.caps[-1] if run.caps and not run.free else None


def _time_cap(run: RunView) -> Cap | None:
    return run.caps[0] if run.caps else None


def _bar(cap: Cap | None, width: int) -> Text:
    if cap is None or cap.most <= 0:
        return Text()
    return bar(cap.used, cap.most, width, cap.held)


def _cost(run: RunView) -> Text:
    return Text(run.spent)


def _cost_of_cap(run: RunView) -> Text:
    """Return the cost beside its cap: `$0.04 of $0.60`, or `max $0.60` of a proposal."""
    cap = _cost_cap(run)
    if cap is None:
        return Text(run.spent)
    most = format_usd(int(cap.most), exact=True)
    return Text(f"max {most}" if _is_proposal(run) else f"{run.spent} of {most}")


def _time(run: RunView) -> Text:
    """Return the time that a run has taken; of a proposal, the most that it may take."""
    limit = _time_cap(run)
    if limit is not None and _is_proposal(run):
        return Text(f"max {minutes(limit.most)}")
    return Text(format_duration(round(run.elapsed_s)))


def _time_of_limit(run: RunView) -> Text:
    """Return the time beside its limit: `45 s of 10 min`."""
    limit = _time_cap(run)
    if limit is None or _is_proposal(run):
        return _time(run)
    return Text(f"{_time(run)} of {minutes(limit.most)}")


def _when(run: RunView) -> Text:
    return Text(clock(run.row.ended_us if run.row.ended else run.row.created_us))


def _is_proposal(run: RunView) -> bool:
    return run.state in (WAITING, EXPIRED)
