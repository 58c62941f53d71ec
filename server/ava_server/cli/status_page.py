"""What `ava status` shows as lines of rich text, for any width; without colours they say the same.

What others wrote reaches a line only through `joined`, which removes what could steer a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from ava_audit.rows import EXPIRED, WAITING
from ava_audit.units import format_usd
from ava_roles.wrap import add_bars
from ava_server.cli.status_lines import GAP, bar, clock, fitted, folded, joined, plain, remarks
from ava_server.cli.status_rows import RunRows
from ava_server.cli.terminal import cut_front, wrapped_lines
from ava_server.service.checks import WORST_FIRST, CheckFinding, State
from ava_server.service.current import Budget, others_words

if TYPE_CHECKING:
    from ava_server.render.run_view import RunView
    from ava_server.service.run_records import CurrentViews

NO_RUNS = "No subagents: none waits, runs, or ended within the last hour."
ENDED = "Ended within the last hour:"
LEAST_BAR = 10
"""Columns of the narrowest bar: a narrower one could not show a tenth of a cap."""
WHOSE_CHARS, MOST_TROUBLE = 12, 3
NARROW = 50
"""Below so many columns, a budget is two figures."""
_BAD: tuple[State, ...] = ("fault", "warning")
_HEALTH = {"fault": "bold red", "warning": "yellow", "note": "", "ok": "green"}
_STATE_INDENT, _TITLE = 10, 12
_IN_FULL = ("delivery", "workers")
"""What is told in full also where it works: it has figures that nothing else shows."""
_NAMED = ("log", "upkeep")
"""What is named, because its word or two do not tell what they are about."""


@dataclass(frozen=True)
class ListRow:
    """A line of the list of runs; `run` is None for a heading."""

    run: RunView | None
    line: Text


@dataclass(frozen=True)
class Page:
    """What is to be shown, and how wide.

    Attributes:
        root: The data root; empty where the screen does not name it.
        now: What goes on.
        health: The findings.
        width: Columns.
        trouble: Why what was found is out of date.
        everybody: The runs of all users.
        command: How commands begin: `ava`, or with the URL of another server.
    """

    root: str
    now: CurrentViews
    health: tuple[CheckFinding, ...]
    width: int
    trouble: str = ""
    everybody: bool = False
    command: str = "ava"

    def whole(self) -> list[Text]:
        head = [joined(f"Data root: {self.root}")] if self.root else []
        lines = [*self.trouble_lines(), *self._body()]
        return head + [line if line.overflow == "ignore" else fitted(line, self.width) for line in lines]

    # -- parts --------------------------------------------------------------------------------------------------------

    def root_lines(self) -> list[Text]:
        """Show the end of a long path: it tells most."""
        if not self.root:
            return []
        title = "Data root: "
        root = cut_front(plain(self.root), max(self.width - len(title), 1))
        return [joined((f"{title}{root}", "bold"))]

    def trouble_lines(self) -> list[Text]:
        return list(folded(plain(f"! {self.trouble}") if self.trouble else "", self.width, "bold red"))[:MOST_TROUBLE]

    def _body(self) -> list[Text]:
        lines: list[Text] = []
        for part in (list(self.today_lines()), self._runs(), list(self.health_lines())):
            if part:
                lines += [Text(), *part]
        return lines[1:]

    def _runs(self) -> list[Text]:
        if not self.now.runs:
            return [] if self.trouble else [Text(NO_RUNS), *self.others_lines()]
        table = RunRows(self.now.runs, self.width, everybody=self.everybody)
        lines = [table.head()]
        for row in rows_of(self.now.runs, table):
            lines.append(row.line)
            if row.run is not None and not row.run.row.ended:
                lines += self._below(row.run)
        return [*lines, *self.others_lines()]

    def others_lines(self) -> list[Text]:
        words = others_words(self.now.others)
        return [joined((f"{words} `{self.command} status --all` shows them.", "dim"))] if words else []

    def today_lines(self, *, short: bool = False) -> Iterator[Text]:
        if not short:
            yield joined(("Today (UTC):", "bold"))
        for budget in self.now.budgets:
            yield Text.assemble("Today: " if short else "  ", self._budget(budget))

    def _budget(self, budget: Budget) -> Text:
        if self.width < NARROW:
            return joined(f"{budget.whose} {format_usd(budget.spent)} of {format_usd(budget.cap)}")
        figures = {one.whose: _spent(one) for one in self.now.budgets}
        width = min(self.width // 5, self.width - len("Today: ") - WHOSE_CHARS - 2 - max(map(len, figures.values())))
        whose = fitted(joined(budget.whose), WHOSE_CHARS)
        whose.pad_right(WHOSE_CHARS - whose.cell_len)
        line = Text.assemble(whose, " ")
        if width >= LEAST_BAR:
            line.append_text(bar(budget.spent, budget.cap, width, budget.held)).append(" ")
        return line.append(figures[budget.whose])

    def health_lines(self, *, short: bool = False) -> Iterator[Text]:
        """A short line has the worst state and a word on each."""
        if short:
            by_state = sorted(self.health, key=lambda one: WORST_FIRST.index(one.state) if one.state in _BAD else 9)
            state: State = "ok"
            if by_state and by_state[0].state in _BAD:
                state = by_state[0].state
            words = "".join(f" · {_works(finding)}" for finding in by_state if finding.short)
            yield joined(("Health: ", "bold"), (state, _HEALTH[state]), words)
            return
        yield joined(("Health (ava doctor tells more):", "bold"))
        works: list[str] = []
        titles = max((len(finding.title) for finding in self.health if _stands_alone(finding)), default=0)
        titles = max(titles, _TITLE)
        indent = _STATE_INDENT + titles + 1
        for finding in sorted(self.health, key=lambda one: WORST_FIRST.index(one.state)):
            if not _stands_alone(finding):
                works.append(_works(finding))
                continue
            text, *more = wrapped_lines(plain(finding.text), max(self.width - indent, 20))
            yield joined("  ", (f"{finding.state:<8}", _HEALTH[finding.state]), f"{finding.title:<{titles}} {text}")
            for line in more:
                yield joined(" " * indent + line.strip())
        state_cell = f"{'ok':<8}"
        for line in wrapped_lines(" · ".join(works), max(self.width - _STATE_INDENT, 20)):
            if line:
                yield joined("  ", (state_cell, _HEALTH["ok"]), line.strip())
            state_cell = " " * 8

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _below(self, run: RunView) -> Iterator[Text]:
        """Yield what a person can do about a run, and what it waits for."""
        if run.state in (WAITING, EXPIRED):
            yield from self._proposal(run)
            return
        if run.asks:
            yield joined("  It asks:")
            asked = folded(add_bars(run.asks), self.width - GAP)
            yield from (Text("  ").append_text(line) for line in asked)
        words = remarks(run)
        for line in wrapped_lines(plain(words), self.width - GAP) if words else ():
            yield joined("  " + line)

    def _proposal(self, run: RunView) -> Iterator[Text]:
        when = f"expired {clock(run.expires_us)}" if run.state == EXPIRED else f"expires {clock(run.expires_us)}"
        if not self.can_decide(run):
            yield joined(f"  {run.row.pending_id}, {when}")
            return
        choices = [f"{self.command} {decide} {run.row.pending_id}" for decide in ("approve", "reject")]
        if self.command == "ava":
            choices = [f"{choices[0]}, or {choices[1]}; {when}"]
        for line in choices:
            yield Text(f"  {line}", overflow="ignore")  # cut, it could not be pasted

    def can_decide(self, run: RunView) -> bool:
        return run.state != EXPIRED and not self.everybody


def rows_of(runs: Sequence[RunView], table: RunRows) -> Iterator[ListRow]:
    """Yield a row for each run, and a heading above those that have ended; they come last."""
    any_ended = False
    for run in runs:
        if run.row.ended and not any_ended:
            any_ended = True
            yield ListRow(None, joined((ENDED, "bold")))
        yield ListRow(run, table.row(run))


def _stands_alone(one: CheckFinding) -> bool:
    """Tell whether a finding has a line of its own."""
    return one.state != "ok" or one.name in _IN_FULL


def _works(one: CheckFinding) -> str:
    """Return in a few words how something is."""
    if not one.short or one.name in _NAMED:
        return f"{one.title} {one.short}".strip()
    return one.short


def _spent(budget: Budget) -> str:
    reserved = f", {format_usd(budget.held)} reserved" if budget.held else ""
    over = "; nothing more is spent today" if budget.spent >= budget.cap else ""
    return f"{format_usd(budget.spent)} of {format_usd(budget.cap)} spent{reserved}{over}"
