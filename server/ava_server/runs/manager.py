"""The run manager: who may run, who owns what, and what becomes of a run whose owner is gone.

An instance claims queued runs while slots are free, takes over running ones whose owner's lock is free, hears of
cancels through the log, and holds every run that it owns in one task group.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import anyio.abc
import anyio.to_thread

from ava_audit.errors import AuditError, SchemaNewer, StoreUnavailable
from ava_audit.events import CancelledBy, Who
from ava_audit.rows import QUEUED, RUNNING, GroupRow, RunRow
from ava_audit.store.locks import Instances
from ava_audit.store.store import Store
from ava_audit.view import View
from ava_server.budget.user_limits import Slots
from ava_server.core.ids import AGENT
from ava_server.runs.context import RunContext
from ava_server.runs.endings import RunCleanup, RunEndings
from ava_server.runs.history import History
from ava_server.runs.lifecycle import (
    NotClaimed,
    blocked_note,
    claim,
    group_time,
    left_to_be_resumed,
    overdue,
    pause_words,
    paused,
)
from ava_server.runs.log import cancel_reason
from ava_server.runs.loop import AgentRun
from ava_server.runs.result import RunResult
from ava_server.telemetry import spans

log = logging.getLogger("ava.manager")

LOOK_EVERY_S = 1.0
"""How often owners' locks are tried and queued runs looked at without news."""
NEWS = ("SpawnDecided", "CancelRequested", "RunClaimed", "RunPaused", "RunResumed", "RunEnded")
"""The entries that give a manager something to do."""
SETTLE_S = 0.05
"""Commits come in bursts; they are looked at together. What this process does itself pokes the manager at once."""
GRACE_S = 1.0
"""The instance that approved a run has this long to claim it before others do."""
TRY_AGAIN_S = (1.0, 60.0)
"""How long a run that cannot be run here waits before it is looked at again: the first time, and at most."""
CLOSE_S = 3.0
"""How long removing what was a run's own is waited for; a copy of a workspace has many files."""
FAULT = "a fault of Ava itself, written to the server's standard error"
FAULTS = 2
"""A run that was dropped so often by a fault of ours is not taken up again by this process."""


class ConfigNotSupported(Exception):
    """Raised when this instance cannot run a run as it was approved; says what it waits for."""


class RunContextFactory(RunCleanup, Protocol):
    """What gives a run everything that it works with, and takes it away again."""

    async def honour(self, run: RunRow) -> None:
        """Look whether a run can be run here as it was approved; opens nothing.

        Raises:
            CannotHonour: It cannot; says what it waits for.
        """
        ...

    async def prepare(self, run: RunRow, history: History) -> RunContext:
        """Make everything that a claimed run works with.

        Raises:
            CannotHonour: It cannot be run here, after all.
        """
        ...


class Manager:
    """Owns the runs of this process.

    Args:
        store: The log.
        instances: The live processes on the data root.
        instance: This process's id among them.
        serves: Tells which runs are this process's to look after.
        slots: How many may run.
        outfitter: Gives runs what they work with.
        hire: Sees to it that a worker is there, which runs them in place of this process; None where they run here.
        grace_s: How long another process has to claim what it approved.

    Attributes:
        waiting_for: What runs that this instance cannot take wait for, by run.
        endings: Ends runs that do not end by themselves.
        idle_since: Since when (anyio's clock) nothing here has run or waited for its turn; None while something does.
        out_of_reach: Why the log could not be used when it was last looked for work, or None.
    """

    def __init__(
        self,
        store: Store,
        instances: Instances,
        instance: str,
        serves: Callable[[RunRow], bool],
        slots: Slots,
        context_factory: RunContextFactory,
        *,
        hire: Callable[[], Awaitable[None]] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.instance = instance
        self.waiting_for: dict[str, str] = {}
        self.endings = RunEndings(store, instances, instance, context_factory)
        self.idle_since: float | None = None
        self.out_of_reach: str | None = None
        self._store = store
        self._serves = serves
        self._slots = slots
        self._outfitter = context_factory
        self._hire = hire
        self._grace_s = grace_s
        self._owned: dict[str, AgentRun | None] = {}
        self._sessions: set[str] = set()
        self._adopted: set[str] = set()
        self._first_seen: dict[str, float] = {}
        self._faults: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._wait_s: dict[str, float] = {}
        self._asked: dict[str, str | None] = {}
        self._full: set[str] = set()
        self._poked = anyio.Event()
        self._outdated = False

    def adopt_session(self, session_id: str) -> None:
        """Note a session of this process: its runs are claimed at once, others' after a grace."""
        self._sessions.add(session_id)

    def forget_session(self, session_id: str) -> None:
        """Let go of a session that nobody remembers any more: its runs are claimed as others' are."""
        self._sessions.discard(session_id)

    def adopt_run(self, run_id: str) -> None:
        """Note a run that was resumed here: it is claimed at once."""
        self._adopted.add(run_id)

    def poke(self) -> None:
        """Look for work now."""
        self._poked.set()

    def activity(self, run_id: str) -> str | None:
        """Return what an owned run is doing this second, or None."""
        run = self._owned.get(run_id)
        return run.activity if run is not None else None

    async def run(self) -> None:
        """Look after runs until cancelled; every run is a task of this call.

        It ends by itself when a newer program has migrated the log, once the last run here has stopped: from then on
        this process owns nothing, and the newer one may take its runs over.
        """
        async with anyio.create_task_group() as tasks:
            while self._owned or not self._outdated:
                poked = self._poked = anyio.Event()
                seen = self._store.head
                try:
                    if not self._outdated:
                        await self._look(tasks)
                    self.out_of_reach = None
                except SchemaNewer as error:
                    self._leave(error)
                    continue
                except AuditError as error:  # the log is out of reach: looked at again, and nothing is claimed
                    self.out_of_reach = str(error)
                    log.warning("looking for runs: %s", error)
                with anyio.move_on_after(LOOK_EVERY_S):
                    await self._news(seen, poked)

    def _leave(self, newer: SchemaNewer) -> None:
        if not self._outdated:
            self._outdated = True
            log.error("the runs of this server are left to the newer program: %s", newer)

    async def _news(self, seen: int, poked: anyio.Event) -> None:
        async def on_commit(seen: int) -> None:
            while True:
                head = await self._store.newer_than(seen)
                await anyio.sleep(SETTLE_S)
                try:
                    newest = await self._store.read(lambda view: view.newest(NEWS))
                except AuditError:  # the look that follows says so
                    newest = head
                if newest > seen:
                    waiting.cancel_scope.cancel()
                    return
                seen = head

        async def on_poke() -> None:
            await poked.wait()
            waiting.cancel_scope.cancel()

        async with anyio.create_task_group() as waiting:
            waiting.start_soon(on_commit, seen)
            waiting.start_soon(on_poke)

    # -- looking ------------------------------------------------------------------------------------------------------

    async def _look(self, tasks: anyio.abc.TaskGroup) -> None:
        rows, groups = await self._store.read(_unended)
        self._forget_all_but(rows)
        for row in rows:
            await self._look_after(row)
        others = [row for row in rows if row.id not in self._owned and self._serves(row)]
        gone = await anyio.to_thread.run_sync(self.endings.gone, rows) if others else frozenset[str]()
        free: list[RunRow] = []
        for row in others:
            # What this process has let go of has no owner either, though it lives.
            left = gone | {self.instance} if row.instance == self.instance else gone
            if overdue(row, groups.get(row.group_id or ""), left, _now_us()) is not None:
                await self._end_overdue(row, left)
            elif self._mine_now(row, gone):
                free.append(row)
        running = [row for row in rows if row.state == RUNNING and row.instance not in gone]
        await self._fill(free, running, gone, tasks)
        due = any(paused(row, _now_us()) or row.id in self._full for row in others)
        if self._owned or due:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = anyio.current_time()

    async def _end_overdue(self, row: RunRow, gone: frozenset[str]) -> None:
        """End a run whose time is over; one of which nothing can be read waits for a program that can."""
        if anyio.current_time() < self._not_before.get(row.id, 0.0):
            return
        try:
            await self.endings.end_overdue(row.id, gone)
        except AuditError:
            raise
        except Exception:
            log.exception("%s cannot be ended", row.id)
            self._waits(row.id, FAULT)
            self._look_later(row.id)

    async def _look_after(self, row: RunRow) -> None:
        """See to it that a run of ours hears of its cancel, and ends when it does not end by itself."""
        owned = self._owned.get(row.id)
        if owned is None:
            return
        if row.cancel_seq is not None:
            owned.cancel(await self._store.read(lambda view: cancel_reason(view, row.id)))
        if row.state == RUNNING and row.instance == self.instance and (ended := owned.stuck()) is not None:
            log.error("%s does not stop; it is ended in its place (%s)", row.id, ended.status)
            await self.endings.end(row.id, ended, only_own=True)

    async def _fill(
        self, free: list[RunRow], running: list[RunRow], gone: frozenset[str], tasks: anyio.abc.TaskGroup
    ) -> None:
        """Take runs while there is room: always one of the user who has the fewest running, the oldest first."""
        count = Counter(row.user_id for row in running)
        in_line: dict[str, deque[RunRow]] = {}
        for row in sorted(free, key=lambda row: (row.queued_us or 0, row.id)):
            in_line.setdefault(row.user_id, deque()).append(row)
        self._full.clear()
        while in_line:
            user = min(in_line, key=lambda user: (count[user], in_line[user][0].queued_us or 0))
            row = in_line[user].popleft()
            if not in_line[user]:
                del in_line[user]
            if anyio.current_time() < self._not_before.get(row.id, 0.0):
                continue
            counted = row.state == RUNNING and row.instance not in gone  # dropped by a fault of ours: it has its slot
            if not counted and (full := self._slots.full(count, user)):
                self._full.add(row.id)
                self._waits(row.id, full)
            elif await self._try(row, gone, tasks) and not counted:
                count[user] += 1

    async def _try(self, row: RunRow, gone: frozenset[str], tasks: anyio.abc.TaskGroup) -> bool:
        """Take a run, or have a worker take it; whatever goes wrong with one run takes no other with it."""
        try:
            await self._outfitter.honour(row)
            if self._hire is not None:
                await self._hire()
                return False
            return await self._take(row, gone, tasks)
        except AuditError:
            raise
        except (ConfigNotSupported, OSError) as error:  # it may pass: looked at again, less and less often
            self._waits(row.id, str(error))
            self._look_later(row.id)
        except Exception:
            log.exception("%s cannot be taken", row.id)
            self._waits(row.id, FAULT)
            self._look_later(row.id)
            await self._fault(row.id)
        return False

    def _look_later(self, run_id: str) -> None:
        wait_s = self._wait_s[run_id] = min(2 * self._wait_s.get(run_id, TRY_AGAIN_S[0] / 2), TRY_AGAIN_S[1])
        self._not_before[run_id] = anyio.current_time() + wait_s

    def _waits(self, run_id: str, why: str) -> None:
        """Note what a run waits for, for whoever asks about it, in any process."""
        if self.waiting_for.get(run_id) != why:
            self.waiting_for[run_id] = why
            self._store.set_live(run_id, blocked_note(why))

    async def _fault(self, run_id: str) -> None:
        """Count a fault of ours; a run that met too many is ended in our own words: it hangs nowhere."""
        self._faults[run_id] = self._faults.get(run_id, 0) + 1
        if self._faults[run_id] < FAULTS:
            return
        why = "it was dropped twice by a fault, written to the server's standard error"
        ended = RunResult(
            "error", "a fault of Ava itself", error_kind="internal", error_message=why, what_to_do="Report it."
        )
        try:
            await self.endings.end(run_id, ended, only_own=True)
        except AuditError:
            raise
        except Exception:  # not even what was approved can be read: it is left to a program that can
            log.exception("%s cannot be ended", run_id)

    def _forget_all_but(self, rows: list[RunRow]) -> None:
        """Let go of what was noted of runs that have ended."""
        ids = {row.id for row in rows}
        for noted in (self.waiting_for, self._first_seen, self._faults, self._not_before, self._wait_s, self._asked):
            for run_id in [run_id for run_id in noted if run_id not in ids]:
                del noted[run_id]
        self._adopted &= ids

    def _mine_now(self, row: RunRow, gone: frozenset[str]) -> bool:
        now_us = _now_us()
        if row.state == RUNNING:
            if row.instance == self.instance:  # dropped by a fault of ours, or by a log that could not take its end
                return True
            return row.instance in gone and not left_to_be_resumed(row, now_us)
        if paused(row, now_us):
            self._waits(row.id, pause_words(row))
            return False
        if row.session_id in self._sessions or row.id in self._adopted:
            return True
        first = self._first_seen.setdefault(row.id, anyio.current_time())
        return anyio.current_time() - first >= self._grace_s

    # -- owning -------------------------------------------------------------------------------------------------------

    async def _take(self, row: RunRow, gone: frozenset[str], tasks: anyio.abc.TaskGroup) -> bool:
        """Claim a run that this instance can honour, and start it; False when another one has it.

        Raises:
            CannotHonour: It cannot.
        """
        who = Who(row.session_id, AGENT, row.user_id)
        got = await self._store.do(claim(row.id, self.instance, who, gone, self._slots))
        if isinstance(got, NotClaimed):
            self._waits(row.id, got.why)
            return False
        self.waiting_for.pop(row.id, None)
        self._store.set_live(row.id, "Starting")  # in place of what it waited for
        run = await self._store.read(lambda view: view.run(row.id))
        claimed = (RUNNING, self.instance, got.generation + 1)
        if run is None or (run.state, run.instance, run.generation) != claimed:  # taken from us meanwhile: not ours
            return False
        history = History(run.id)
        history.add_all(await self._store.read(lambda view: view.entries(row.id)))
        prepared = await self._outfitter.prepare(run, history)
        agent = Who(run.session_id, run.id, run.user_id, parent_agent_id=AGENT)
        owned = AgentRun(self._store, run, agent, history, prepared, tasks)
        self._owned[run.id] = owned
        tasks.start_soon(self._drive, owned, run, prepared)
        return True

    async def _drive(self, owned: AgentRun, run: RunRow, prepared: RunContext) -> None:
        try:
            if run.id in self._asked:  # asked for while the log could not take it
                owned.cancel(self._asked[run.id])
            elif run.cancel_seq is not None:
                owned.cancel(await self._store.read(lambda view: cancel_reason(view, run.id)))
            with spans.invoke_agent(run):
                await owned.drive(await self._group_time(run))
        except StoreUnavailable as error:  # the log cannot take it: the run stays, for the next look or another owner
            log.error("%s: %s", run.id, error)
        except SchemaNewer as error:
            self._leave(error)
        except Exception:
            log.exception("%s was dropped", run.id)
            with contextlib.suppress(AuditError):  # looked at again, and counted again
                await self._fault(run.id)
        finally:
            del self._owned[run.id]
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
                try:
                    await anyio.to_thread.run_sync(prepared.close, owned.done, abandon_on_cancel=True)
                except OSError as error:
                    log.warning("%s left something behind: %s", run.id, error)
            self.poke()

    async def _group_time(self, run: RunRow) -> float | None:
        """Return the seconds that a group's clock leaves, None without one."""
        group_id = run.group_id
        if group_id is None:
            return None
        return group_time(await self._store.read(lambda view: view.group(group_id)), _now_us())

    async def cancel(self, run_id: str, who: Who, reason: str | None, by: CancelledBy = "model") -> RunRow | None:
        """Cancel a run and return it as it ended, within 5 s; None when there is none of this user."""
        owned = self._owned.get(run_id)
        if owned is not None and owned.user == who.user_id:  # act in memory first, its record follows
            self._asked[run_id] = reason
            owned.cancel(reason)
        return await self.endings.cancel(run_id, who, reason, by)

    async def ended(self, run_id: str) -> RunRow:
        """Wait until a run has ended, in any process."""
        return await self.endings.ended(run_id)


def _unended(view: View) -> tuple[list[RunRow], dict[str, GroupRow]]:
    rows = view.runs(states=(QUEUED, RUNNING), limit=-1)
    groups = {row.group_id: view.group(row.group_id) for row in rows if row.group_id is not None}
    return rows, {group_id: group for group_id, group in groups.items() if group is not None}


def _now_us() -> int:
    return time.time_ns() // 1000


def any_alive(instances: Instances | None) -> bool:
    """Tell whether any process looks after runs on this data root; without one, none does."""
    return instances is not None and any(instances.alive(path.stem) for path in instances.folder.glob("*.lock"))
