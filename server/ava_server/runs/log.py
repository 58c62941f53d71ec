"""A run's own writing: everything that its owner appends goes through here, under its claim, and into its history."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import anyio

from ava_audit.entries import Entry
from ava_audit.errors import OutcomeUnknown, StoreUnavailable
from ava_audit.events import (
    CancelRequested,
    CostReserved,
    Event,
    Fact,
    Fence,
    RunEnded,
    SubagentComplete,
    ToolResult,
    Who,
)
from ava_audit.rows import RunRow
from ava_audit.sanitize import sanitize_json
from ava_audit.store.store import Command, Outcome, Query, Store, T
from ava_audit.view import View
from ava_server.core.ids import AGENT
from ava_server.models.clients import ClientPool
from ava_server.models.factory import model_of
from ava_server.runs.history import UNWRITTEN, History, Recipe
from ava_server.runs.result import RunResult

log = logging.getLogger("ava.run")
RESULT_BYTES = 1_800_000
HOLD_S = (0.2, 5.0)
"""Seconds between two tries while the log is out of reach: the first wait, and the longest."""


class RunLog:
    """The log as the owner of one run uses it.

    Attributes:
        run: The run as it was at the last commit.
        history: What the entries so far make.
        fence: The claim under which everything is written.
        who: The run, as the log names it.
        on_hold: Told when the log is out of reach.
    """

    def __init__(self, store: Store, run: RunRow, who: Who, history: History) -> None:
        self.run = run
        self.history = history
        self.fence = Fence(run.id, run.generation)
        self.who = who
        self.on_hold: Callable[[str], None] = log.warning
        self._store = store
        self._unwritten: Event | None = None

    def event(self, fact: Fact, *, duration_ms: int | None = None, model: str | None = None) -> Event:
        """Return a fact as an event of this run, under its claim."""
        return Event(who=self.who, fact=fact, fence=self.fence, duration_ms=duration_ms, model=model)

    async def record(self, *facts: Fact, duration_ms: int | None = None) -> None:
        """Append facts.

        Raises:
            StaleOwner: The run has another owner by now, or has ended.
        """
        await self.append([self.event(fact, duration_ms=duration_ms) for fact in facts])

    async def append(self, events: Sequence[Event]) -> None:
        """Commit events, then fold them; the answer carries the state of the run.

        Raises:
            StaleOwner: The run has another owner by now, or has ended.
        """

        def folded(answer: tuple[int, RunRow | None]) -> None:
            first, run = answer
            self.run = run or self.run
            for number, event in enumerate(events):
                self.history.add(first + number, event.fact, event.usage)

        await self.do(_append(tuple(events), self.run.id), folded)

    def keep(self, result: ToolResult, duration_ms: int) -> None:
        """Fold a result now, and write it with whatever is written next: a commit less in every turn.

        Only for the last result of an answer, and of a tool that only reads: until it is written a crash loses it, and
        the next owner calls the tool again.
        """
        assert self._unwritten is None, "a turn has one last result"
        self._unwritten = self.event(result, duration_ms=duration_ms)
        self.history.add(UNWRITTEN, result)

    async def write_kept(self) -> None:
        """Write the result that was kept, if there is one.

        Raises:
            StaleOwner: The run has another owner by now, or has ended.
        """
        if self._unwritten is not None:
            await self.append([])

    async def do(self, command: Command[T], then: Callable[[T], None] | None = None) -> T:
        """Run a command, and `then` with its value before anybody can cancel: log and history never differ.

        Raises:
            StaleOwner: The run has another owner by now, or has ended.
        """
        kept = self._unwritten
        if kept is None:
            return await self._hold(lambda: self._store.do(command), then)

        def written(answer: tuple[int, T]) -> None:
            self._unwritten = None
            self.history.place(answer[0], kept.fact)
            if then is not None:
                then(answer[1])

        return (await self._hold(lambda: self._store.do(_after(kept, command)), written))[1]

    async def read(self, query: Query[T]) -> T:
        """Run a query."""
        return await self._hold(lambda: self._store.read(query), None)

    def say(self, sentence: str) -> None:
        """Show what is being done this second; nobody waits for it."""
        self._store.set_live(self.run.id, sentence)

    async def _hold(self, ask: Callable[[], Awaitable[T]], then: Callable[[T], None] | None) -> T:
        """Ask the store; while it is out of reach the run holds still, until its time ends or it is cancelled."""
        wait_s, longest_s = HOLD_S
        while True:
            try:
                # Shielded: a command that was sent is waited for (5 s at most, then it is given up for good).
                with anyio.CancelScope(shield=True):
                    value = await ask()
                    if then is not None:
                        then(value)
                    return value
            except OutcomeUnknown:  # sent again it could be written twice: the next claim reads what the log has
                raise
            except StoreUnavailable as error:
                self.on_hold(f"On hold: {error}")
                log.warning("%s holds still: %s", self.run.id, error)
                await anyio.sleep(wait_s)
                wait_s = min(wait_s * 2, longest_s)


def ending_events(
    run: RunRow, result: dict[str, Any], ended: RunResult, who: Who, fence: Fence | None, active_us: int
) -> tuple[Event, Event]:
    """Return the two entries of an ending: its words, which can be erased, and what a reducer needs, which stays.

    A result that is larger than an entry may be loses the ends of its longest texts, and says so.
    """
    result, cut = sanitize_json(result, RESULT_BYTES)
    if cut:
        result["untrusted_result"]["caveats"].append(f"Cut to what the log can hold: {', '.join(cut)[:300]}")
    complete = SubagentComplete(
        status=ended.status,
        summary=str(result["untrusted_result"]["summary"]),
        tokens=run.tokens,
        cost_cents=run.cost_micros / 10_000,
        duration=round(active_us / 1e6, 1),
        subagent_id=run.id,
        result=result,
    )
    done = RunEnded(
        status=ended.status, stop_reason=ended.stop_reason, error_kind=ended.error_kind, active_us=active_us
    )
    ava = Who(who.session_id, AGENT, who.user_id)
    return (
        Event(ava, complete, run_id=run.id, fence=fence, model=run.model),
        Event(who, done, run_id=run.id, fence=fence),
    )


def cancel_reason(view: View, run_id: str) -> str | None:
    """Return what was given as the reason of a run's cancel."""
    entry = view.last_entry(run_id, "CancelRequested")
    return entry.fact.reason if entry is not None and isinstance(entry.fact, CancelRequested) else None


def _after(event: Event, command: Command[T]) -> Command[tuple[int, T]]:
    """Return a command that does what another one does after an event, with that event's `seq` and the other's value.

    The event changes nothing that a command reads of a run: it is a result of one of its tools.
    """

    def both(view: View, now_us: int) -> Outcome[tuple[int, T]]:
        outcome = command(view.after(1), now_us)
        return Outcome((view.head() + 1, outcome.value), (event, *outcome.events))

    return both


def _append(events: tuple[Event, ...], run_id: str) -> Command[tuple[int, RunRow | None]]:
    def command(view: View, _now_us: int) -> Outcome[tuple[int, RunRow | None]]:
        return Outcome((view.head() + 1, view.run(run_id)), events)

    return command


def rebuilt(entries: Iterable[Entry], run_id: str, turn: int, attempt: int) -> bytes | None:
    """Return the request of one attempt, byte for byte, from nothing but a run's entries.

    None when it was never reserved. The model is made again from the parameters in the log; it is not asked.
    """
    history = History(run_id)
    for entry in entries:
        fact = entry.fact
        if isinstance(fact, CostReserved) and (fact.turn, fact.attempt) == (turn, attempt):
            assert history.prefix is not None, "a run starts with its prefix"
            model = model_of(history.prefix.model, history.prefix.parameters, None, ClientPool())
            return model.encode(
                history.request(Recipe(fact.upto_seq, fact.elide, fact.notice), fact.max_output, fact.thinking)
            )
        if fact is not None:
            history.add(entry.seq, fact, entry.usage, fenced=entry.generation is not None)
    return None
