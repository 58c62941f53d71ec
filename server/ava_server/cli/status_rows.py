"""Runs as rows of a table, for any width: state, id, task, role, cost and time beside their caps, and when.

`ava status --once` and the dashboard have the same rows. A narrow terminal has fewer columns: the bars go first, then
the roles, the times, and the words of the states. The cost and its cap always stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from ava_audit.rows import EXPIRED, WAITING
from ava_audit.units import format_duration, format_usd, minutes
from ava_server.cli.status_lines import bar, clock, fitted, joined, plain, remarks, state_cell, state_sign, state_style
from ava_server.cli.terminal import cells, cut

if TYPE_CHECKING:
    from ava_server.render.run_view import Cap, RunView

MOST_ROLE = 24
"""Columns of a role with its plan and its user, at most."""
LEAST_NAME = 12
"""Columns of a run's name that are always shown; a longer one may take a third of the task's columns."""
TIME_COLUMNS, OF_LIMIT_COLUMNS = 8, 14
"""Columns of a time, alone and with its limit, at least: the rows keep their places as seconds get a digit more."""
ACTIVITY_COLUMNS = 40
"""Columns of the tasks from which on they have beside them what the runs do now."""

Align = Literal["left", "right"]


@dataclass(frozen=True)
class Layout:
    """Which columns there are beside id, task and cost.

    Attributes:
        gap: Columns between two of them.
        bar: Columns of each bar; 0 for none.
        role: The role has one.
        time: The time has one, with its limit and beside when that was, or alone.
        state: The state is its sign and its words, or the sign alone.
        least_task: Columns that the tasks must have left in this layout.
    """

    gap: int
    bar: int
    role: bool
    time: Literal["of limit", "alone", "none"]
    state: Literal["words", "sign"]
    least_task: int


LAYOUTS = (
    Layout(gap=2, bar=10, role=True, time="of limit", state="words", least_task=50),
    Layout(gap=2, bar=6, role=True, time="of limit", state="words", least_task=40),
    Layout(gap=2, bar=0, role=True, time="of limit", state="words", least_task=36),
    Layout(gap=2, bar=0, role=False, time="of limit", state="words", least_task=32),
    Layout(gap=1, bar=0, role=False, time="alone", state="words", least_task=20),
    Layout(gap=1, bar=0, role=False, time="none", state="words", least_task=16),
    Layout(gap=1, bar=0, role=False, time="none", state="sign", least_task=0),
)
"""The layouts, the widest first. The last one fits every terminal."""


@dataclass(frozen=True)
class StatusColumn:
    """One column: its name, the cell of each run, and how wide it is."""

    name: str
    cell: Callable[[RunView], Text]
    width: int
    align: Align = "left"


class RunRows:
    """The rows of some runs; a column is as wide as the longest of its cells."""

    def __init__(self, runs: Sequence[RunView], width: int, *, everybody: bool) -> None:
        """With `everybody`, each row names its user. `width`: columns of the terminal."""
        self._runs = runs
        self._everybody = everybody
        self._measured: dict[Callable[[RunView], str], int] = {}
        layout = self._widest_layout(width)
        before = self._columns_before_task(layout)
        after = self._columns_after_task(layout)
        self._gap = " " * layout.gap
        self._task_width = max(self._room_for_task(layout, width), 1)
        self._columns = [*before, StatusColumn("task", self._task, self._task_width), *after]

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
            cell = fitted(text, column.width)
            if column.align == "right":
                cell.pad_left(column.width - cell.cell_len)
            else:
                cell.pad_right(column.width - cell.cell_len)
            line.append(self._gap if number else "").append_text(cell)
        line.rstrip()
        return line

    def _column(
        self,
        name: str,
        words: Callable[[RunView], str],
        style: Callable[[RunView], str] = lambda _run: "",
        *,
        least: int = 0,
        most: int = 1_000,
        align: Align = "left",
    ) -> StatusColumn:
        """Return a column of words, which is measured once for all layouts."""
        if words not in self._measured:
            self._measured[words] = max([0, *(cells(plain(words(run))) for run in self._runs)])
        width = max(cells(name), least, self._measured[words])
        return StatusColumn(name, lambda run: joined((words(run), style(run))), min(width, most), align)

    def _widest_layout(self, width: int) -> Layout:
        """Return the first layout that leaves enough room for tasks; the narrowest if none does."""
        for layout in LAYOUTS:
            if self._room_for_task(layout, width) >= layout.least_task:
                return layout
        return LAYOUTS[-1]

    def _room_for_task(self, layout: Layout, width: int) -> int:
        others = [*self._columns_before_task(layout), *self._columns_after_task(layout)]
        return width - sum(column.width for column in others) - layout.gap * len(others)

    def _columns_before_task(self, layout: Layout) -> list[StatusColumn]:
        if layout.state == "sign":
            state = self._column("", _state_sign, state_style)
        else:
            state = self._column("state", _state, state_style)
        return [state, self._column("run", _id, lambda _run: "bold")]

    def _columns_after_task(self, layout: Layout) -> list[StatusColumn]:
        columns: list[StatusColumn] = []
        if layout.role:
            columns.append(self._column("role", self._role, most=MOST_ROLE))
        if layout.bar:
            columns.append(StatusColumn("", lambda run: _bar(_cost_cap(run), layout.bar), layout.bar))
        columns.append(self._column("cost", _cost_of_cap, align="right"))
        if layout.bar:
            columns.append(StatusColumn("", lambda run: _bar(_time_cap(run), layout.bar), layout.bar))
        if layout.time == "alone":
            columns.append(self._column("time", _time, least=TIME_COLUMNS, align="right"))
        elif layout.time == "of limit":
            columns.append(self._column("time", _time_of_limit, least=OF_LIMIT_COLUMNS, align="right"))
            columns.append(self._column("when", _when, align="right"))
        return columns

    def _role(self, run: RunView) -> str:
        plan = f" in {run.row.plan_id}" if run.row.plan_id else ""
        user = f" of {run.row.user_id}" if self._everybody else ""
        return f"{run.row.role}{user}{plan}"

    def _task(self, run: RunView) -> Text:
        """Return the task, and dimmed behind it what else there is to say; neither may push out the other."""
        name = f"{cut(run.row.name, max(self._task_width // 3, LEAST_NAME))}: " if run.row.name else ""
        task = joined(f"{name}{run.task}")
        remark = plain(self._remark(run))
        if not remark:
            return task
        more = joined((f" · {remark}", "dim"))
        room = max(self._task_width - more.cell_len, self._task_width // 2)
        return fitted(task, room).append_text(more)

    def _remark(self, run: RunView) -> str:
        """Return how far a plan is, what a run does, or why it ended otherwise than by success; or nothing."""
        if run.row.ended:
            return remarks(run)
        if run.plan is None and self._task_width < ACTIVITY_COLUMNS:
            return ""
        return run.progress


def _state(run: RunView) -> str:
    return state_cell(run.state)


def _state_sign(run: RunView) -> str:
    return state_sign(run.state)


def _id(run: RunView) -> str:
    return run.row.id


def _cost_cap(run: RunView) -> Cap | None:
    return run.caps[-1] if run.caps and not run.free else None


def _time_cap(run: RunView) -> Cap | None:
    return run.caps[0] if run.caps else None


def _bar(cap: Cap | None, width: int) -> Text:
    if cap is None or cap.most <= 0:
        return Text()
    return bar(cap.used, cap.most, width, cap.held)


def _cost_of_cap(run: RunView) -> str:
    """Return the cost beside its cap: `$0.04 of $0.60`, or `max $0.60` of what has not begun."""
    cap = _cost_cap(run)
    if cap is None:
        return run.spent
    most = format_usd(int(cap.most), exact=True)
    return f"max {most}" if _is_to_begin(run) else f"{run.spent} of {most}"


def _time(run: RunView) -> str:
    """Return the time that a run has taken; of a queued one its place, of a proposal nothing."""
    if not _is_to_begin(run):
        return format_duration(round(run.elapsed_s))
    if run.wait is not None and run.wait.position is not None:
        return f"number {run.wait.position}"
    return ""


def _time_of_limit(run: RunView) -> str:
    """Return the time beside its limit: `45 s of 10 min`, or `max 10 min` of a proposal."""
    limit = _time_cap(run)
    if limit is None:
        return _time(run)
    if _is_proposal(run):
        return f"max {minutes(limit.most)}"
    return _time(run) if _is_to_begin(run) else f"{_time(run)} of {minutes(limit.most)}"


def _when(run: RunView) -> str:
    return clock(run.row.ended_us if run.row.ended else run.row.created_us)


def _is_proposal(run: RunView) -> bool:
    return run.state in (WAITING, EXPIRED)


def _is_to_begin(run: RunView) -> bool:
    return _is_proposal(run) or (run.row.started_us is None and not run.row.ended)
