"""The turns of a run, from its entries: what each cost, how long its model and its tools took, and what failed in it.

It reads, and imports nothing that writes or runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ava_audit import events
from ava_audit.entries import Entry
from ava_roles.wrap import clean
from ava_server.render.entry_lines import arguments_text, compact, entry_words, is_trouble

Part = Literal["model", "tools", "waiting"]
PARTS: tuple[Part, ...] = ("model", "tools", "waiting")
TOOL_CHARS = 40


@dataclass(frozen=True)
class Span:
    """What a run did from one moment to another, in microseconds UTC."""

    part: Part
    begin_us: int
    end_us: int


@dataclass
class TurnCall:
    """A tool call of a turn; `failed` once its result says so."""

    words: str
    failed: bool = False


@dataclass
class Turn:
    """A model call, and what was done with its answer.

    Attributes:
        cost_micros: What its calls cost, those of its retries too.
        calls: Its tool calls, in order.
        spans: When the model, the tools, and what the run waited for took time.
    """

    number: int
    cost_micros: int = 0
    calls: list[TurnCall] = field(default_factory=list[TurnCall])
    spans: list[Span] = field(default_factory=list[Span])

    def took_us(self, part: Part) -> int:
        return took_us(self.spans, part)


def took_us(spans: Iterable[Span], part: Part) -> int:
    """Return how long a part took: what overlaps counts once, and the wait for a person or for money is no work."""
    spans = list(spans)
    waiting = [span for span in spans if span.part == "waiting"]
    if part == "waiting":
        return _covered_us(waiting)
    own = [span for span in spans if span.part == part]
    return _covered_us([*own, *waiting]) - _covered_us(waiting)


def _covered_us(spans: Iterable[Span]) -> int:
    covered = 0
    reached: int | None = None
    for span in sorted(spans, key=lambda one: one.begin_us):
        begin = span.begin_us if reached is None else max(span.begin_us, reached)
        covered += max(span.end_us - begin, 0)
        reached = max(begin, span.end_us)
    return covered


def turns_of(entries: Iterable[Entry]) -> list[Turn]:
    """Return the turns of a run, in order. What was erased is left out, and so is what others did with its result."""
    fold = _TurnFold()
    for entry in entries:
        if entry.fact is not None:
            fold.add(entry, entry.fact)
    return fold.turns


class _TurnFold:
    """Folds the entries of a run into its turns."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._reserved: dict[tuple[int, int], tuple[int, bool]] = {}
        self._called: dict[str, tuple[int, TurnCall]] = {}
        self._waits_since: int | None = None

    def add(self, entry: Entry, fact: events.Fact) -> None:
        match fact:
            case events.CostReserved():
                self._end_wait(entry)
                self._reserved[fact.turn, fact.attempt] = entry.ts_us, fact.tool_call is not None
                if fact.tool_call is None:
                    self._turn(fact.turn)
            case events.CostUpdate():
                self._settle(entry, fact)
            case events.ToolCall() if fact.call_id is not None and self.turns:
                words = f"{compact(fact.tool, TOOL_CHARS)} {arguments_text(fact.args)}".strip()
                self._begin_call(entry, fact.call_id, words)
            case events.ToolResult() if self.turns and entry.generation is not None:
                self._end_call(entry, fact)
            case events.Asked() | events.RunPaused():
                self._begin_wait(entry)
            case events.MoneyAwaited(over=False):
                self._begin_wait(entry)
            case (
                events.MoneyAwaited()
                | events.Answered()
                | events.RunClaimed()
                | events.RunResumed()
                | events.RunEnded()
            ):
                self._end_wait(entry)
            case _:
                pass

    def _turn(self, number: int) -> Turn:
        found = next((turn for turn in reversed(self.turns) if turn.number == number), None)
        if found is None:
            found = Turn(number)
            self.turns.append(found)
        return found

    def _last(self) -> Turn:
        return self.turns[-1] if self.turns else self._turn(1)

    def _settle(self, entry: Entry, fact: events.CostUpdate) -> None:
        reserved_us, for_tool = self._reserved.get((fact.turn, fact.attempt), (entry.ts_us, False))
        turn = self._last() if for_tool else self._turn(fact.turn)
        turn.cost_micros += entry.added_micros
        if not for_tool:
            turn.spans.append(Span("model", reserved_us, entry.ts_us))

    def _begin_call(self, entry: Entry, call_id: str, words: str) -> None:
        call = TurnCall(clean(words)[0])
        self._last().calls.append(call)
        self._called[call_id] = entry.ts_us, call

    def _end_call(self, entry: Entry, fact: events.ToolResult) -> None:
        known = self._called.pop(fact.call_id, None) if fact.call_id is not None else None
        if known is None:  # it was answered without being made: a refused one, or the result that was handed over
            failed = not fact.success
            self._last().calls.append(TurnCall(clean(compact(fact.tool, TOOL_CHARS))[0], failed))
            return
        began_us, call = known
        call.failed = not fact.success
        self._last().spans.append(Span("tools", began_us, entry.ts_us))

    def _begin_wait(self, entry: Entry) -> None:
        if self._waits_since is None:
            self._waits_since = entry.ts_us

    def _end_wait(self, entry: Entry) -> None:
        if self._waits_since is not None and self.turns:
            self._last().spans.append(Span("waiting", self._waits_since, entry.ts_us))
        self._waits_since = None


def waterfall(spans: Sequence[Span], begin_us: int, end_us: int, width: int) -> list[Part | None]:
    """Return what fills each of `width` cells of the time from begin to end; None is nothing.

    Each span has a cell at least. Where several share one, it has the longest.
    """
    cells: list[Part | None] = [None] * width
    whole_us = max(end_us - begin_us, 1)
    for span in sorted(spans, key=lambda one: one.end_us - one.begin_us):
        first = (span.begin_us - begin_us) * width // whole_us
        last = -(-(span.end_us - begin_us) * width // whole_us)
        first = min(max(first, 0), width - 1)
        for cell in range(first, min(max(last, first + 1), width)):
            cells[cell] = span.part
    return cells


# -- what went wrong ---------------------------------------------------------------------------------------------------

_VARIES = re.compile(r"\b[SPG]-[0-9a-f]{6,8}\b|\d+(?:st|nd|rd|th)?")
"""What differs in repeats of one error: ids and numbers."""


@dataclass(frozen=True)
class Trouble:
    """What went wrong in a run, once or several times: the words and the time of the first."""

    at_us: int
    words: str
    times: int


def trouble_key(entry: Entry) -> str:
    """Return what is the same in repeats of one error: everything but its ids and numbers."""
    return alike_words(entry_words(entry))


def alike_words(text: str) -> str:
    """Return a text without what differs in repeats of one error: two errors are the same if this is."""
    return _VARIES.sub("#", text)


def troubles_of(entries: Iterable[Entry]) -> list[Trouble]:
    """Return what went wrong, in the order in which each came first; a question to a person is not wrong."""
    first: dict[str, Entry] = {}
    times: dict[str, int] = {}
    for entry in entries:
        if is_trouble(entry) and not isinstance(entry.fact, events.Asked):
            key = trouble_key(entry)
            first.setdefault(key, entry)
            times[key] = times.get(key, 0) + 1
    return [Trouble(entry.ts_us, entry_words(entry), times[key]) for key, entry in first.items()]
