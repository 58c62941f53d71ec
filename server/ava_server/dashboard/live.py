"""The dashboard of `ava status` as lines of rich text: a row for each run, and the selected run in a pane below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rich.text import Text

from ava_audit.rows import EXPIRED, WAITING
from ava_audit.units import format_ts, now_us
from ava_server.approval.plain_text import quoted
from ava_server.approval.reach import reach_words
from ava_server.cli.status_lines import (
    GAP,
    bar,
    both_ends,
    cap_text,
    cells_in_row,
    clock,
    fitted,
    fitting,
    folded,
    joined,
    plain,
    remarks,
    terms,
)
from ava_server.cli.status_page import LEAST_BAR, NO_RUNS, ListRow, Page, rows_of
from ava_server.cli.status_rows import RunRows
from ava_server.cli.terminal import can_write, cells, wrapped_lines
from ava_server.core.ids import label, state_words
from ava_server.render.run_view import Cap, RunView
from ava_server.run_config.config import config_of
from ava_server.service.run_records import ORDER

if TYPE_CHECKING:
    from ava_server.render.entry_lines import Step

KEYS = (
    "↑↓ select · Enter open · a approve · r reject · c cancel · s send · / filter · l log · ? help · q quit",
    "a approve  r reject  c cancel  s send  / filter  l log  ? help  q quit",
    "a r c s act  / filter  l log  ? help  q quit",
    "a r c s act  / filter  ? help  q quit",
    "? help  q quit",
    "q quit",
)
"""What the keys do, for narrower and narrower screens."""
BRIEF_FOOT, LEAST_PANE = 14, 5
"""Lines of a terminal from which today's spending and the health are shown, in brief; and of the smallest pane."""
QUESTION_CHARS, SUMMARY_CHARS, TASK_LINES, MESSAGE_LINES = 200, 1_000, 2, 6
"""Characters of a question and a summary, and lines of a task and a sentence."""
SUMMARY_LINES = 20
"""Lines of a summary, where the list leaves so much room."""
SELECTED, NOT_SELECTED = "> ", "  "
"""What stands before the row of the selected run, and before the others."""
FIGURE_COLUMNS = 13
"""Columns of a figure beside its bar, at least: figures of several runs stand below each other."""


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
        if self.listed and height >= BRIEF_FOOT:
            head.append(self._column_heads())
        rows = [ListRow(row.run, fitted(row.line, self.width)) for row in self._rows()]
        keys = [*self._said(), Text(fitting(KEYS, self.width), style="dim")]
        run = next((run for run in self.listed if run.row.id == self.selected), None)
        least = self._least_pane(run, height)
        foot = self._foot(height, height - len(head) - min(len(rows), height // 4) - least - len(keys))
        # What the list leaves empty, the pane uses.
        left = height - len(head) - len(rows) - len(foot) - len(keys)
        pane = self._pane(run, max(least, left)) if run is not None and least else []
        below = [*pane, *foot, *keys]
        return Live([fitted(line, self.width) for line in head], rows, [fitted(line, self.width) for line in below])

    def _least_pane(self, run: RunView | None, height: int) -> int:
        """Return the least lines of the pane; 0 where there is no run, or no room."""
        least = height // 3
        return least if run is not None and least >= LEAST_PANE else 0

    def _foot(self, height: int, room: int) -> list[Text]:
        """Return today's spending and the health: in full where that fits, else in brief, or nothing."""
        foot = [Text(), *self.today_lines(), Text(), *self.health_lines()]
        if len(foot) <= room:
            return foot
        if height < BRIEF_FOOT:
            return []
        return [*self.today_lines(short=True), *self.health_lines(short=True)]

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

    @cached_property
    def _table(self) -> RunRows:
        return RunRows(self.listed, self.width - len(SELECTED), everybody=self.everybody)

    def _column_heads(self) -> Text:
        return joined(NOT_SELECTED).append_text(self._table.head())

    def _rows(self) -> list[ListRow]:
        rows: list[ListRow] = []
        if not self.listed and not self.trouble:
            words = "No run matches the filter; Esc removes it." if self.words else NO_RUNS
            rows.append(ListRow(None, Text(words)))
        for row in rows_of(self.listed, self._table):
            line = row.line if row.run is None else self._marked(row.run, row.line)
            rows.append(ListRow(row.run, line))
        for line in self.others_lines():
            rows.append(ListRow(None, line))
        return rows

    def _marked(self, run: RunView, line: Text) -> Text:
        """Return the row of a run behind a mark, if it is the selected one in reverse."""
        if run.row.id != self.selected:
            return joined(NOT_SELECTED).append_text(line)
        marked = joined((SELECTED, "bold")).append_text(line)
        marked.pad_right(max(self.width - marked.cell_len, 0))
        marked.stylize("reverse")
        return marked

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

    def bars(self, caps: Sequence[Cap]) -> Iterator[Text]:
        """Yield the caps' figures, the cost first, with their bars: beside each other where there is room, else below.

        A bar that would be too narrow to tell a tenth is left out.
        """
        if not caps:
            return
        shown = [caps[-1], *caps[:-1]]
        figures = [cap_text(cap) for cap in shown]
        column = (self.width - GAP * len(shown)) // len(shown)
        if column < max(LEAST_BAR, *map(cells, figures)):
            for line in wrapped_lines(" · ".join(figures), max(self.width - GAP, 1)):
                yield joined(" " * GAP + line.strip())
            return
        longest = max(FIGURE_COLUMNS, *map(cells, figures))
        beside = column - longest > LEAST_BAR
        width = column - longest - 1 if beside else column
        bars = [bar(cap.used, cap.most, width, cap.held) if cap.most > 0 else Text() for cap in shown]
        if not beside:
            yield cells_in_row(map(Text, figures), column)
            yield cells_in_row(bars, column)
            return
        pairs = [Text.assemble(f"{figure:<{longest}} ", drawn) for figure, drawn in zip(figures, bars, strict=True)]
        yield cells_in_row(pairs, column)

    def _proposal_about(self, run: RunView) -> Iterator[Text]:
        """Yield price and reach, then the rest of the proposal."""
        keys = "; press a or r to decide" if self.can_decide(run) else ""
        yield from self._indented(f"{run.row.pending_id}, {terms(run)}{keys}", 2, "bold")
        reach = f"It {reach_words(config_of(run.row.config).reach)}" if run.caps else ""
        yield from self._indented(f"{reach}." if reach else "", MESSAGE_LINES, "bold")
        for line in (self.about or run.task).split("\n"):
            if line != f"{reach}.":
                yield from self._indented(line, MESSAGE_LINES)

    def _about(self, run: RunView) -> Iterator[Text]:
        """Yield what the run costs or may cost, then what it asks, and what it is about."""
        if run.state in (WAITING, EXPIRED):
            yield from self._proposal_about(run)
            return
        if run.row.started_us is not None:
            yield from self.bars(run.caps)
        words = remarks(run)
        if run.question is not None and run.question.text:
            words = f"It asks: {quoted(run.question.text, QUESTION_CHARS)}; s answers it"
        yield from self._indented(words, TASK_LINES)
        if run.activity:
            yield joined(f"  {run.activity}")
        yield from self._indented(run.task, TASK_LINES)
        if run.row.ended and self.about:
            yield from self._indented(f"Its summary: {quoted(self.about, SUMMARY_CHARS)}", SUMMARY_LINES)

    def _indented(self, text: str, most: int, style: str = "") -> Iterator[Text]:
        if text:
            lines = wrapped_lines(plain(text), self.width - GAP)
            if len(lines) > most:
                lines = [*lines[: most - 1], " ".join(line.strip() for line in lines[most - 1 :])]
            yield from (joined((" " * GAP + line.strip(), style)) for line in lines)

    def step_line(self, step: Step) -> Text:
        return joined(("  " + step.text, "red" if step.failed else "" if step.outcome else "bold"))


def _searched(run: RunView) -> str:
    """Return the text that a filter is looked for in."""
    row = run.row
    parts = (row.id, row.pending_id, row.plan_id, row.name, row.role, row.user_id, row.model, run.state)
    text = " ".join((*(part or "" for part in parts), state_words(run.state), run.task, run.activity))
    return text.casefold()
