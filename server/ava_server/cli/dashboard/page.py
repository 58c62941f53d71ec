"""The whole screen in lines, and what of it stands in a terminal that is smaller: the most important first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.text import Text

from ava_audit.units import format_ts, format_usd
from ava_server.cli.dashboard.bars import bar
from ava_server.cli.dashboard.health import WORST_FIRST, Health
from ava_server.cli.dashboard.overview import ORDER, Budget, Overview
from ava_server.cli.dashboard.run_lines import SHORT_STATES, RunLines
from ava_server.cli.dashboard.words import both_ends, fitted, foreign, joined
from ava_server.cli.terminal import wrapped

if TYPE_CHECKING:
    from ava_server.cli.dashboard.overview import Shown
    from ava_server.cli.doctor.finding import State

NOBODY = "No subagents: none waits, runs, or ended within the last hour."
ENDED = "Ended within the last hour:"
TODAY = "Today (UTC):"
HEALTH = "Health (ava doctor tells more):"
KEYS = "q ends"
BAR, NAMES = 24, 12
HEALTH_MARGIN = 23
BAD = ("fault", "warning")
MOST_TROUBLE = 3
"""So many lines tell of what is wrong, at most."""
SOME_ENDINGS = 3
"""So many endings are worth more than details of what goes on."""
_STYLES = {"fault": "bold red", "warning": "yellow", "note": "", "ok": "green"}


@dataclass(frozen=True)
class Page:
    """What is to be shown, and how wide.

    Attributes:
        root: The data root.
        overview: What was found.
        health: How everything is.
        width: Columns.
        at_us: Now.
        trouble: Why what was found is not what is there now.
        everybody: The runs of all users.
    """

    root: str
    overview: Overview
    health: tuple[Health, ...]
    width: int
    at_us: int
    trouble: str = ""
    everybody: bool = False

    def whole(self) -> list[Text]:
        """Return everything, for a screen that scrolls."""
        body = self._body(_Density(), len(self._ended))
        return [joined(f"Data root: {self.root}"), *(fitted(line, self.width) for line in self._trouble() + body)]

    def within(self, height: int) -> list[Text]:
        """Return the screen at a height: less of each run where there is little room, then fewer of them."""
        head = [self._first(), self._counts(), *self._trouble()]
        room = max(height - len(head) - 1, 1)
        body, hidden = self._fit(room)
        lines = (head + body)[: max(height - 1, 1)]
        lines += [Text()] * (height - 1 - len(lines))
        foot = both_ends(Text(_hidden_words(hidden)), KEYS, self.width)
        return [fitted(line, self.width) for line in [*lines, foot]][:height]

    # -- what fits ----------------------------------------------------------------------------------------------------

    def _fit(self, room: int) -> tuple[list[Text], dict[str, int]]:
        ended = len(self._ended)
        for density in DENSITIES:
            least = ended if density.all_endings else min(ended, density.endings)
            free = room - len(self._body(density, 0)) - self._around_endings(density, least)
            if free >= least:
                shown = min(ended, free)
                return self._body(density, shown), self._hidden(len(self._going_on), shown)
        density = DENSITIES[-1]
        below = self._today(density) + self._health(density)
        free = max(room - len(below), (room + 1) // 2)
        lines: list[Text] = []
        count = 0
        for run in self._going_on:
            if len(lines) >= free:
                break
            count += 1
            lines += self._lines.short(run)[: free - len(lines)]
        return lines + below, self._hidden(count, 0)

    def _hidden(self, runs: int, endings: int) -> dict[str, int]:
        """Return how many runs of each state are not shown."""
        counts = dict(self.overview.counts)
        for shown in self._going_on[:runs]:
            counts[shown.answer.state] = counts.get(shown.answer.state, 0) - 1
        counts["ended"] = counts.get("ended", 0) - endings
        return {state: count for state, count in counts.items() if count > 0}

    def _around_endings(self, density: _Density, endings: int) -> int:
        return (1 + density.gaps * bool(self._going_on)) if endings else 0

    # -- its parts ----------------------------------------------------------------------------------------------------

    @property
    def _going_on(self) -> list[Shown]:
        return [shown for shown in self.overview.runs if not shown.run.ended]

    @property
    def _ended(self) -> list[Shown]:
        return [shown for shown in self.overview.runs if shown.run.ended]

    @property
    def _lines(self) -> RunLines:
        return RunLines(self.width, self.at_us, self.overview.runs, owners=self.everybody)

    def _body(self, density: _Density, endings: int) -> list[Text]:
        going_on, ended, lines = self._going_on, self._ended[:endings], self._lines
        say = lines.full if density.runs else lines.short
        between = [Text()] if density.spaced else []
        parts = [[line for shown in going_on for line in between + say(shown)][len(between) :]]
        if ended:
            say = lines.full if density.runs and density.endings_in_full else lines.ending
            parts.append([joined((ENDED, "bold")), *(line for shown in ended for line in say(shown))])
        if not self.overview.runs and not self.trouble:
            parts.append([Text(NOBODY)])
        parts += [self._today(density), self._health(density)]
        between = [Text()] if density.gaps else []
        first, *others = [part for part in parts if part]
        return first + [line for part in others for line in between + part]

    def _first(self) -> Text:
        """Return the line that names the data root; of a long one the end tells most."""
        words = f"Data root: {foreign(self.root)}"
        if len(words) > self.width:
            words = "Data root: …" + words[len(words) - self.width + len("Data root: …") :]
        return joined((words, "bold"))

    def _counts(self) -> Text:
        counts = self.overview.counts
        words = [
            f"{counts[state]} {SHORT_STATES.get(state, state)}" for state in (*ORDER, "ended") if counts.get(state)
        ]
        line = " · ".join(words) or "nothing goes on"
        return both_ends(Text(line), format_ts(self.at_us)[11:], self.width)

    def _trouble(self) -> list[Text]:
        if not self.trouble:
            return []
        lines = wrapped(foreign(f"! {self.trouble}"), self.width).split("\n")
        return [joined((line, "bold red")) for line in lines[:MOST_TROUBLE]]

    def _today(self, density: _Density) -> list[Text]:
        budgets = self.overview.budgets
        if density.gaps:
            return [joined((TODAY, "bold")), *(self._budget(budget, "  ") for budget in budgets)]
        return [self._budget(budget, "Today: ") for budget in budgets]

    def _budget(self, budget: Budget, before: str) -> Text:
        held = f", {format_usd(budget.held)} held" if budget.held else ""
        over = "; nothing more is spent today" if budget.spent + budget.held >= budget.cap else ""
        words = f" {format_usd(budget.spent)} of {format_usd(budget.cap)} spent{held}{over}"
        whose = fitted(joined(budget.whose), NAMES)
        whose.pad_right(NAMES - whose.cell_len + 1)
        return Text.assemble(before, whose, bar(budget.spent, budget.cap, self._bar, budget.held), words)

    @property
    def _bar(self) -> int:
        return max(8, min(self.width - 64, 2 * BAR) if self.width > 96 else BAR * self.width // 120)

    def _health(self, density: _Density) -> list[Text]:
        bad_first = sorted(self.health, key=lambda one: WORST_FIRST.index(one.state) if one.state in BAD else len(BAD))
        if density.health:
            return [joined((HEALTH, "bold")), *(line for one in self.health for line in _health_lines(one, self.width))]
        state: State = bad_first[0].state if bad_first[0].state in BAD else "ok"
        words = "".join(f" · {one.short}" for one in bad_first if one.short)
        return [joined(("Health: ", "bold"), (state, _STYLES[state]), words)]


@dataclass(frozen=True)
class _Density:
    """How much is said.

    Attributes:
        runs: All of each run, not a line or two.
        health: A line for each thing, not one for all.
        gaps: Headings and empty lines.
        spaced: An empty line between runs too.
        endings_in_full: All of each ended run.
        all_endings: Only where every ended run fits.
        endings: Only where so many of them fit.
    """

    runs: bool = True
    health: bool = True
    gaps: bool = True
    spaced: bool = False
    endings_in_full: bool = True
    all_endings: bool = True
    endings: int = 0


_BRIEF = _Density(endings_in_full=False)
DENSITIES = (
    replace(_BRIEF, spaced=True),
    _BRIEF,
    replace(_BRIEF, all_endings=False, endings=SOME_ENDINGS),
    replace(_BRIEF, all_endings=False, endings=SOME_ENDINGS, health=False),
    replace(_BRIEF, all_endings=False, endings=SOME_ENDINGS, runs=False),
    replace(_BRIEF, all_endings=False, endings=1, runs=False, health=False),
    replace(_BRIEF, all_endings=False, endings=1, runs=False, health=False, gaps=False),
    replace(_BRIEF, all_endings=False, runs=False, health=False, gaps=False),
)
"""From what is said where there is room, to what is said where there is little."""


def _health_lines(one: Health, width: int) -> list[Text]:
    text = wrapped(foreign(one.text), max(width - HEALTH_MARGIN, 20)).split("\n")
    first = joined("  ", (f"{one.state:<8}", _STYLES[one.state]), f"{one.name:<12} {text[0]}")
    return [first, *(joined(" " * HEALTH_MARGIN + line.strip()) for line in text[1:])]


def _hidden_words(hidden: dict[str, int]) -> str:
    """Return how many runs there was no room for."""
    if not hidden:
        return ""
    what = ", ".join(
        f"{hidden[state]} {SHORT_STATES.get(state, state)}" for state in (*ORDER, "ended") if state in hidden
    )
    return f"… and {sum(hidden.values())} more: {what} (ava status --once has all)"
