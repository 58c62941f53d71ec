"""The dashboard of `ava status` as lines of rich text: a row for each run, and the selected run in a pane below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rich.text import Text

from ava_audit.rows import EXPIRED, WAITING
from ava_audit.units import format_ts, format_usd, now_us
from ava_server.approval.summary import quoted
from ava_server.cli.status_page import (
    ENDED,
    GAP,
    NO_RUNS,
    Page,
    both_ends,
    can_write,
    clock,
    fitted,
    fitting,
    folded,
    joined,
    plain,
    remarks,
    state_cell,
    state_style,
    terms,
)
from ava_server.cli.terminal import cut, wrapped_lines
from ava_server.core.ids import label, state_words
from ava_server.render.run_view import RunView
from ava_server.service.records import ORDER

if TYPE_CHECKING:
    from ava_server.render.entries import Step

KEYS = (
    "↑↓ select · Enter open · a approve · r reject · c cancel · s send · / filter · l log · ? help · q quit",
    "a approve  r reject  c cancel  s send  / filter  l log  ? help  q quit",
    "a r c s act  / filter  l log  ? help  q quit",
    "? help  q quit",
    "q quit",
)
"""What the keys do, for narrower and narrower screens."""
BRIEF_FOOT, LEAST_PANE = 14, 5
"""Lines of a terminal from which today's spending and the health are shown, in brief; and of the smallest pane."""
QUESTION_CHARS, SUMMARY_CHARS, TASK_LINES, MESSAGE_LINES, STATE_CHARS, WIDE = 200, 1_000, 2, 6, 13, 79
"""Characters of a question and a summary, lines of a task and a sentence; columns of a state below `WIDE`."""


@dataclass(frozen=True)
class ListRow:
    """A line of the list; `run_id` is None for a heading."""

    run_id: str | None
    line: Text


@dataclass(frozen=True)
class Live:
    """The parts of the screen from top to bottom; the list may be longer than the room between the others."""

    head: list[Text]
    rows: list[ListRow]
    foot: list[Text]


@dataclass(frozen=True)
class LivePage(Page):
    """The dashboard. `words` filter the list; `said`: see `StatusApp`."""

    selected: str | None = None
    words: str = ""
    said: tuple[str, bool] = ("", False)

    @cached_property
    def listed(self) -> list[RunView]:
        """The runs that the filter leaves, in the order of the list."""
        wanted = self.words.casefold().split()
        return [run for run in self.now.runs if all(word in _searched(run) for word in wanted)]

    @property
    def about(self) -> str:
        """What the selected run proposes or has found, once that was read."""
        read = self.now.selected
        return read.about if read is not None and read.run_id == self.selected else ""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The selected run's last actions, once they were read."""
        read = self.now.selected
        return read.steps if read is not None and read.run_id == self.selected else ()

    def live(self, height: int) -> Live:
        head = [*self.root_lines(), self._counts(), *self.trouble_lines()]
        rows = [ListRow(row.run_id, fitted(row.line, self.width)) for row in self._rows()]
        keys = [*self._said(), Text(fitting(KEYS, self.width), style="dim")]
        run = next((run for run in self.listed if run.row.id == self.selected), None)
        least = height // 3 if run is not None and height // 3 >= LEAST_PANE else 0
        foot = [Text(), *self.today_lines(), Text(), *self.health_lines()]
        if len(head) + min(len(rows), height // 4) + least + len(foot) + len(keys) > height:
            foot = [*self.today_lines(brief=True), *self.health_lines(brief=True)] if height >= BRIEF_FOOT else []
        # What the list leaves empty, the pane uses.
        left = height - len(head) - len(rows) - len(foot) - len(keys)
        pane = self._pane(run, max(least, left)) if run is not None and least else []
        cut_to_width = [[fitted(line, self.width) for line in part] for part in (head, [*pane, *foot, *keys])]
        return Live(cut_to_width[0], rows, cut_to_width[1])

    # -- head and foot ------------------------------------------------------------------------------------------------

    def _counts(self) -> Text:
        counts = self.now.counts
        words = [f"{counts[state]} {state_words(state)}" for state in (*ORDER, "ended") if counts.get(state)]
        unlisted = sum(counts.values()) - len(self.now.runs)
        words += [f"{unlisted} not listed: ava status --once"] if unlisted > 0 else []
        if self.words:
            words = [f"filter {plain(self.words)!r}: {len(self.listed)} of {len(self.now.runs)}", *words]
        return both_ends(Text(" · ".join(words) or "nothing is going on"), format_ts(now_us())[11:], self.width)

    def _said(self) -> Iterator[Text]:
        words, failed = self.said
        yield from folded(plain(words), self.width, "bold red" if failed else "bold")

    # -- the list -----------------------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[ListRow]:
        runs = self.listed
        if not runs and not self.trouble:
            yield ListRow(None, Text("No run matches the filter; Esc removes it." if self.words else NO_RUNS))
        for number, run in enumerate(runs):
            if run.row.ended and (number == 0 or not runs[number - 1].row.ended):
                yield ListRow(None, joined((ENDED, "bold")))
            yield ListRow(run.row.id, self._row(run))
        yield from (ListRow(None, line) for line in self.others_lines())

    @cached_property
    def _widths(self) -> tuple[int, int]:
        states = max(len(state_cell(run.state)) for run in self.listed)
        most = states if self.width >= WIDE else STATE_CHARS
        return min(states, most), max(len(self._figures(run)) for run in self.listed)

    def _row(self, run: RunView) -> Text:
        """The task gets the width that the rest leaves."""
        row, here = run.row, run.row.id == self.selected
        state = cut(state_cell(run.state), self._widths[0]).ljust(self._widths[0])
        owner = f" of {row.user_id}" if self.everybody else ""
        line = joined(
            ("> " if here else "  ", "bold"),
            (f"{row.id}  ", "bold"),
            (f"{state}  ", state_style(run)),
            f"{row.name or row.role}{owner} · {run.task}",
        )
        line = both_ends(line, self._figures(run).rjust(self._widths[1]), self.width)
        if here:
            line.stylize("reverse")
        return line

    def _figures(self, run: RunView) -> str:
        """Return what a run has cost or may cost, and where there is room, its time."""
        row = run.row
        if run.state in (WAITING, EXPIRED) and run.caps:
            return "free" if run.free else f"max {format_usd(int(run.caps[-1].most), exact=True)}"
        if row.started_us is None:
            queued = run.wait is not None and run.wait.position is not None
            return clock(row.ended_us) if row.ended else f"number {run.wait.position}" if queued and run.wait else ""
        time_s = round(run.caps[0].used if run.caps else row.active_us / 1e6)
        when = clock(row.ended_us) if row.ended else f"{time_s} s" if time_s < 600 else f"{time_s // 60} min"
        return f"{when} {run.spent:>7}" if self.width >= WIDE else run.spent

    # -- the selected run ---------------------------------------------------------------------------------------------

    def _pane(self, run: RunView, most: int) -> list[Text]:
        """Return the selected run in exactly so many lines, so that the list does not move with the selection."""
        lines = [self._title(run), *self._about(run)][: most - min(len(self.steps), 1)]
        lines += [self.step_line(step) for step in self.steps[len(lines) - most :]]
        return lines + [Text()] * (most - len(lines))

    def _title(self, run: RunView) -> Text:
        dash = "─" if can_write("─") else "-"
        plan = f", in {run.row.plan_id}" if run.row.plan_id else ""
        ended = f", ended {clock(run.row.ended_us)}" if run.row.ended_us is not None else ""
        words = f"{label(run.row)}: {state_words(run.state)}{plan}, asked {clock(run.row.created_us)}{ended}"
        line = joined((f"{dash}{dash} ", "dim"), (f"{words} ", "bold"))
        return line.append(dash * max(self.width - line.cell_len, 0), "dim")

    def _about(self, run: RunView) -> Iterator[Text]:
        if run.state in (WAITING, EXPIRED):
            keys = "; press a or r to decide" if self.can_decide(run) else ""
            yield from self._indented(f"{run.row.pending_id}, {terms(run)}{keys}", 2)
            for line in (self.about or run.task).split("\n"):
                yield from self._indented(line, MESSAGE_LINES)
            return
        yield from self._indented(run.task, TASK_LINES)
        if run.activity:
            yield joined(f"  {run.activity}")
        words = remarks(run)
        if run.question is not None and run.question.text:
            words = f"It asks: {quoted(run.question.text, QUESTION_CHARS)}; s answers it"
        yield from self._indented(words, TASK_LINES)
        if run.row.started_us is not None:
            yield from self.bars(run.caps)
        if run.row.ended and self.about:
            yield from self._indented(f"Its summary: {quoted(self.about, SUMMARY_CHARS)}", MESSAGE_LINES)

    def _indented(self, text: str, most: int) -> Iterator[Text]:
        if text:
            lines = wrapped_lines(plain(text), self.width - GAP)
            if len(lines) > most:
                lines = [*lines[: most - 1], " ".join(line.strip() for line in lines[most - 1 :])]
            yield from (joined(" " * GAP + line.strip()) for line in lines)

    def step_line(self, step: Step) -> Text:
        return joined(("  " + step.text, "red" if step.failed else "" if step.outcome else "bold"))


def _searched(run: RunView) -> str:
    """Return the text that a filter is looked for in."""
    row = run.row
    parts = (row.id, row.pending_id, row.plan_id, row.name, row.role, row.user_id, row.model, run.state)
    text = " ".join((*(part or "" for part in parts), state_words(run.state), run.task, run.activity))
    return text.casefold()
