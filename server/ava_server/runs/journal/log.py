"""The log as a run's owner uses it: appends under the claim, and folds what was written into the history."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import anyio

from ava_audit.errors import AuditError, LogForked, OutcomeUnknown, StaleOwner, StoreUnavailable
from ava_audit.events import CostUpdate, Event, Fact, Fence, RunStarted, Settlement, ToolResult, Who
from ava_audit.rows import RUNNING, RunRow
from ava_audit.store.store import Store
from ava_audit.store.writer import content_within
from ava_audit.units import steady_s
from ava_audit.view import Command, Outcome, Query, T, View
from ava_server.budget.caps import (
    HeldCall,
    Purpose,
    book_overrun,
    settle_unknown,
    settlement_event,
    settlement_now,
    within_reservation,
)
from ava_server.core.errors import ModelError
from ava_server.models.base import Completion
from ava_server.models.prices import Price
from ava_server.runs.record.history import UNWRITTEN, History

log = logging.getLogger("ava.run")
HOLD_S = (0.2, 5.0)
"""Seconds between two attempts while the log is out of reach: the first wait, and the longest."""
CHECK_S = 0.1
"""A check of the owner that took longer is repeated, because the process may have been stopped meanwhile."""


class RunLog:
    """The log as the owner of one run uses it.

    Attributes:
        on_hold: Called with a sentence when the log is out of reach.
    """

    def __init__(self, store: Store, run: RunRow, who: Who, history: History) -> None:
        self.run = run
        self.history = history
        self.fence = Fence(run.id, run.generation)
        self.who = who
        self.on_hold: Callable[[str], None] = log.warning
        self._store = store
        self._unwritten: Event | None = None
        self._unsettled: list[Event] = []  # settlements that are not written yet
        self._cut_off: list[Sequence[Event]] = []  # appends with a settlement, given up while the log was out of reach

    def event(self, fact: Fact, *, duration_ms: int | None = None, model: str | None = None) -> Event:
        return Event(who=self.who, fact=fact, fence=self.fence, duration_ms=duration_ms, model=model)

    async def record(self, *facts: Fact, duration_ms: int | None = None) -> None:
        """Append facts. Raises StaleOwner if the run has another owner by now, or has ended."""
        await self.append([self.event(fact, duration_ms=duration_ms) for fact in facts])

    async def append(self, events: Sequence[Event]) -> None:
        """Commit events, then fold them into the history and update `run`. Raises StaleOwner, as `record` does.

        If a cancellation ends the wait for a log that is out of reach, an answer with its settlement is kept, for
        `write_cut_off`: it is paid for.
        """
        try:
            await self.append_for(lambda _run: events)
        except anyio.get_cancelled_exc_class():
            if any(event in self._unsettled for event in events):
                self._cut_off.append(events)
            raise

    async def write_cut_off(self) -> None:
        """Commit what `append` has kept. Raises StaleOwner, as `record` does."""
        while self._cut_off:
            await self.append(self._cut_off.pop(0))

    async def append_for(self, events: Callable[[RunRow | None], Sequence[Event]]) -> None:
        """Commit the events that follow from the run's row at that moment, as `append` does.

        A settlement of a call that was booked as unknown meanwhile takes the place of that.
        """

        def folded(appended: _Appended) -> None:
            self.run = appended.run or self.run
            if self._unsettled:
                self._unsettled = [event for event in self._unsettled if event not in appended.made]
            for number, event in enumerate(appended.written):
                self.history.add(appended.first_seq + number, event.fact, event.usage)

        try:
            await self.do(_append(events, self.run.id), folded)
        except StaleOwner:
            await self._book_overruns()
            raise

    async def _book_overruns(self) -> None:
        """Book what calls cost above what another process has booked for them as unknown: it has the run now."""
        unsettled, self._unsettled = self._unsettled, []
        self._cut_off.clear()
        for event in unsettled:
            try:
                await self._hold(partial(self._store.do, book_overrun(self.run.id, event), self.run.id), None)
            except (AuditError, anyio.get_cancelled_exc_class()) as error:
                log.warning("%s: what its last call cost is not booked: %s", self.run.id, error)
                if not isinstance(error, AuditError):
                    raise

    async def settle_lost(self, only: tuple[int, int] | None = None) -> None:
        """Settle as unknown calls that nothing is known of: their process ended, or an internal error came between.

        What is known, and was cut off, is written first. `only` is the turn and attempt of one of the calls.
        """
        await self.write_cut_off()
        settle = partial(settle_unknown, who=self.who, fence=self.fence, purpose=self.history.purpose, only=only)
        await self.append_for(lambda run: () if run is None else settle(run))

    def settlement(
        self, held: HeldCall, settlement: Settlement, took_ms: int, reported: Completion | ModelError | None,
        model: str, price: Price, purpose: Purpose | None, account: str = "",
    ) -> Event:  # fmt: skip
        """Return the event that settles a call, by what the provider `reported` with its answer or its error.

        What an error says that the call used is believed where it lies within the reservation. `account` is the mark of
        the account that was billed.
        """
        named: Mapping[str, str] = {}
        if reported is not None:
            named = reported.named
        if isinstance(reported, ModelError) and within_reservation(
            price, held, reported.usage, reported.cost_micros, named
        ):
            settlement = "billed"
        event = settlement_event(
            self.fence, self.run.id, self.who, model, price, held, settlement, duration_ms=took_ms, purpose=purpose,
            usage=reported.usage if reported is not None else None,
            reported_micros=reported.cost_micros if reported is not None else None,
            more=reported.more if isinstance(reported, Completion) else None,
            named=named, account=account,
            request_id=reported.request_id if reported is not None else None,
        )  # fmt: skip
        self._unsettled.append(event)
        return event

    def keep(self, fact: RunStarted | ToolResult, duration_ms: int | None = None) -> None:
        """Fold a fact now, and write it with whatever is written next, which saves a commit in every turn.

        Only for what the next owner does again if a crash comes before it is written: the start of a run that has done
        nothing yet, and the last result of an answer, of a tool that only reads.

        Raises:
            EntryTooLarge: It could never be written, and neither could anything after it.
        """
        assert self._unwritten is None, "a turn has one last result"
        kept = self.event(fact, duration_ms=duration_ms)
        content_within(kept)
        self._unwritten = kept
        self.history.add(UNWRITTEN, fact)

    async def write_kept(self) -> None:
        """Write the kept fact, if there is one. Raises StaleOwner if the run has another owner by now, or has ended."""
        if self._unwritten is not None:
            await self.append([])

    async def do(self, command: Command[T], then: Callable[[T], None] | None = None) -> T:
        """Run a command and call `then` with its value, without a cancellation between: log and history never differ.

        Raises StaleOwner, as `record` does.
        """
        kept = self._unwritten
        if kept is None:
            return await self._hold(lambda: self._store.do(command, self.run.id), then)

        def written(answer: tuple[int, T]) -> None:
            self._unwritten = None
            if isinstance(kept.fact, ToolResult):
                self.history.set_seq(answer[0], kept.fact)
            if then is not None:
                then(answer[1])

        return (await self._hold(lambda: self._store.do(_after(kept, command), self.run.id), written))[1]

    @property
    def head(self) -> int:
        """The newest `seq` that this process knows."""
        return self._store.head

    async def wait_for(self, types: Sequence[str], after: int, within_s: float) -> None:
        """Wait for an entry after `after` of one of these types, for at most `within_s` seconds."""
        with anyio.move_on_after(within_s):
            while True:
                await self._store.wait_for_entry_after(after)
                head = self._store.head
                if await self._hold(partial(self._store.any_after, after, types), None):
                    return
                after = head

    async def read(self, query: Query[T]) -> T:
        return await self._hold(lambda: self._store.look(query), None)

    async def check_owner(self) -> None:
        """Check that this claim owns the run at this moment, before something is paid for.

        A reservation says so only for the moment of its commit. If the process was stopped after it, another one may
        own the run by now, and have the answer already.

        Raises:
            StoreUnavailable: The log is out of reach.
        """
        fence, allowed_s = self.fence, CHECK_S

        def owns(view: View) -> bool:
            sql = "SELECT 1 FROM runs WHERE id = ? AND generation = ? AND state = ?"
            return any(True for _row in view.select(sql, *fence, RUNNING))

        while True:
            began = steady_s()
            if not await self._store.look(owns):
                raise StaleOwner.of(*fence)
            if steady_s() - began <= allowed_s:
                return
            allowed_s *= 2  # a log far away is always slow

    async def _hold(self, ask: Callable[[], Awaitable[T]], then: Callable[[T], None] | None) -> T:
        """Use the store; while it is out of reach the run waits, until its time is over or it is cancelled.

        Raises LogForked: what the run has paid for meanwhile is written down outside of the log.
        """
        wait_s, longest_s = HOLD_S
        while True:
            try:
                # Shielded: a command that was sent is awaited (5 s at most; after that it is never written).
                with anyio.CancelScope(shield=True):
                    value = await ask()
                    if then is not None:
                        then(value)
                    return value
            except OutcomeUnknown:  # another attempt could write it twice; the next claim reads what the log has
                raise
            except LogForked:  # no attempt can succeed: another process has the run, and knows nothing of these calls
                with anyio.CancelScope(shield=True):
                    unsettled, self._unsettled = self._unsettled, []
                    await self._store.note_unlogged(unsettled)
                raise
            except StoreUnavailable as error:
                self.on_hold(f"On hold: {error}")
                log.warning("%s is on hold: %s", self.run.id, error)
                await anyio.sleep(wait_s)
                wait_s = min(wait_s * 2, longest_s)


def _after(event: Event, command: Command[T]) -> Command[tuple[int, T]]:
    """Return a command that writes an event and then does what another one does; its value is both results.

    The event changes nothing that a command reads of a run: it is its start, or a result of one of its tools.
    """

    def both(view: View, now_us: int) -> Outcome[tuple[int, T]]:
        outcome = command(view.after(1), now_us)
        return Outcome((view.head() + 1, outcome.value), (event, *outcome.events))

    return both


@dataclass(frozen=True)
class _Appended:
    """What an append has written: from which `seq` on, for a run that was `run` before, and of what was `made`."""

    first_seq: int
    run: RunRow | None
    made: Sequence[Event]
    written: Sequence[Event]


def _append(make: Callable[[RunRow | None], Sequence[Event]], run_id: str) -> Command[_Appended]:
    """Return a command that appends what `make` builds, each settlement as it is to be written at that moment."""

    # A function, not a method: it keeps no reference to the `RunLog`, so another process could carry it out.
    def command(view: View, _now_us: int) -> Outcome[_Appended]:
        run = view.run(run_id)
        made = tuple(make(run))
        written: list[Event] = []
        for event in made:
            if not isinstance(event.fact, CostUpdate):
                written.append(event)
                continue
            settlement = settlement_now(view, run, event)
            if settlement is not None:
                written.append(settlement)
        return Outcome(_Appended(view.head() + 1, run, made, written), tuple(written))

    return command


def ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
