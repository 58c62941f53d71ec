"""The run manager: who may run, who owns what, and what becomes of a run whose owner is gone.

An instance claims queued runs while slots are free, takes over running ones whose owner's lock is free, hears of
cancels through the log, and holds every run that it owns in one task group.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Protocol

import anyio
import anyio.abc
import anyio.to_thread

from ava_audit.errors import AuditError, SchemaNewer, StoreUnavailable
from ava_audit.events import CancelledBy, CancelRequested, Who
from ava_audit.locks import Instances
from ava_audit.rows import QUEUED, RUNNING, RunRow
from ava_audit.store import Store
from ava_server.claims import Artifact, NotClaimed, Slots, cancel, claim, end_unanswered
from ava_server.history import History
from ava_server.ids import AGENT
from ava_server.loop import AgentRun
from ava_server.prepared import Prepared
from ava_server.result import Ended

log = logging.getLogger("ava.manager")

LOOK_EVERY_S = 1.0
"""How often owners' locks are tried and queued runs looked at without news."""
TAKEOVER_WITHIN_US = 30 * 60 * 1_000_000
"""A server takes over by itself what was interrupted within the last 30 minutes; older runs wait to be resumed."""
SETTLE_S = 0.05
"""Commits come in bursts; they are looked at together. What this process does itself pokes the manager at once."""
GRACE_S = 1.0
"""The instance that approved a run has this long to claim it before others do."""
TRY_AGAIN_S = (1.0, 60.0)
"""How long a run that cannot be run here waits before it is looked at again: the first time, and at most."""
ON_REQUEST = "cancelled on request"
FAULTS = 2
"""A run that was dropped so often by a fault of ours is not taken up again by this process."""
CANCEL_ANSWER_S = 4.0
"""A cancel that the owner has not answered within this is carried out by the one who asked."""


class CannotHonour(Exception):
    """Raised when this instance cannot run a run as it was approved; says what it waits for."""


class Outfitter(Protocol):
    """What gives a run everything that it works with, and takes it away again."""

    async def honour(self, run: RunRow) -> None:
        """Look whether a run can be run here as it was approved; opens nothing.

        Raises:
            CannotHonour: It cannot; says what it waits for.
        """
        ...

    async def prepare(self, run: RunRow, history: History) -> Prepared:
        """Make everything that a claimed run works with.

        Raises:
            CannotHonour: It cannot be run here, after all.
        """
        ...

    def artifacts(self, run_id: str) -> list[Artifact]:
        """Return the files that a run has handed over. Blocking."""
        ...

    def tidy(self, run_id: str) -> None:
        """Remove what was only an ended run's own. Blocking."""
        ...


class Manager:
    """Owns the runs of this process.

    Attributes:
        instance: This process's id on the data root.
        waiting_for: What runs that this instance cannot honour wait for, by run.
    """

    def __init__(
        self, store: Store, instances: Instances, instance: str, user: str, slots: Slots, outfitter: Outfitter
    ) -> None:
        self.instance = instance
        self.waiting_for: dict[str, str] = {}
        self._store = store
        self._instances = instances
        self._user = user
        self._slots = slots
        self._outfitter = outfitter
        self._owned: dict[str, AgentRun | None] = {}
        self._sessions: set[str] = set()
        self._first_seen: dict[str, float] = {}
        self._faults: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._wait_s: dict[str, float] = {}
        self._asked: dict[str, str | None] = {}
        self._poked = anyio.Event()
        self._outdated = False

    def adopt_session(self, session_id: str) -> None:
        """Note a session of this process: its runs are claimed at once, others' after a grace."""
        self._sessions.add(session_id)

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
                except SchemaNewer as error:
                    self._leave(error)
                    continue
                except AuditError as error:  # the log is out of reach: looked at again, and nothing is claimed
                    log.warning("looking for runs: %s", error)
                with anyio.move_on_after(LOOK_EVERY_S):
                    await self._news(seen, poked)

    def _leave(self, newer: SchemaNewer) -> None:
        if not self._outdated:
            self._outdated = True
            log.error("the runs of this server are left to the newer program: %s", newer)

    async def _news(self, seen: int, poked: anyio.Event) -> None:
        async def on_commit() -> None:
            await self._store.newer_than(seen)
            await anyio.sleep(SETTLE_S)
            waiting.cancel_scope.cancel()

        async def on_poke() -> None:
            await poked.wait()
            waiting.cancel_scope.cancel()

        async with anyio.create_task_group() as waiting:
            waiting.start_soon(on_commit)
            waiting.start_soon(on_poke)

    async def _look(self, tasks: anyio.abc.TaskGroup) -> None:
        rows = await self._store.read(lambda view: view.runs(states=(QUEUED, RUNNING)))
        self._forget_all_but(rows)
        for row in rows:
            owned = self._owned.get(row.id)
            if owned is not None and row.cancel_seq is not None:
                owned.cancel(await self._cancel_reason(row.id))
        free = [row for row in rows if row.id not in self._owned and row.user_id == self._user]
        if not free:
            return
        gone = await anyio.to_thread.run_sync(self._gone, rows)
        running = [row for row in rows if row.state == RUNNING and row.instance not in gone]
        per_user = {row.user_id: sum(other.user_id == row.user_id for other in running) for row in rows}
        for row in sorted(free, key=lambda row: (per_user[row.user_id], row.queued_us or 0)):
            if self._mine_now(row, gone):
                await self._try(row, gone, running, tasks)

    async def _try(self, row: RunRow, gone: frozenset[str], running: list[RunRow], tasks: anyio.abc.TaskGroup) -> None:
        """Take a run if there is room for it; whatever goes wrong with one run takes no other with it."""
        if anyio.current_time() < self._not_before.get(row.id, 0.0):
            return
        others = [other for other in running if other.id != row.id]
        if full := self._slots.full(others, row.user_id):
            self.waiting_for[row.id] = full
            return
        try:
            await self._take(row, gone, tasks)
            running.append(row)
        except AuditError:
            raise
        except (CannotHonour, OSError) as error:  # it may pass: looked at again, less and less often
            self.waiting_for[row.id] = str(error)
            wait_s = self._wait_s[row.id] = min(2 * self._wait_s.get(row.id, TRY_AGAIN_S[0] / 2), TRY_AGAIN_S[1])
            self._not_before[row.id] = anyio.current_time() + wait_s
        except Exception:
            log.exception("%s cannot be taken", row.id)
            self.waiting_for[row.id] = "a fault of Ava itself, written to the server's standard error"
            await self._fault(row.id)

    async def _cancel_reason(self, run_id: str) -> str | None:
        entry = await self._store.read(lambda view: view.last_entry(run_id, "CancelRequested"))
        return entry.fact.reason if entry is not None and isinstance(entry.fact, CancelRequested) else None

    async def _fault(self, run_id: str) -> None:
        """Count a fault of ours; a run that met too many is ended in our own words: it hangs nowhere."""
        self._faults[run_id] = self._faults.get(run_id, 0) + 1
        if self._faults[run_id] < FAULTS:
            return
        why = "it was dropped twice by a fault, written to the server's standard error"
        ended = Ended(
            "error", "a fault of Ava itself", error_kind="internal", error_message=why, what_to_do="Report it."
        )
        await self._end_unanswered(run_id, ended, only_own=True)

    async def _end_unanswered(
        self, run_id: str, ended: Ended, files: Sequence[Artifact] = (), *, only_own: bool = False
    ) -> bool:
        """End a run in its owner's place; False when it has ended, or is not ours to end."""
        try:
            return await self._store.do(end_unanswered(run_id, self.instance, ended, files, only_own=only_own))
        except AuditError:
            raise
        except Exception:  # not even its log can be read: its ending says so without it
            log.exception("%s cannot be read back", run_id)
            command = end_unanswered(run_id, self.instance, ended, files, only_own=only_own, unread=True)
            return await self._store.do(command)

    def _forget_all_but(self, rows: list[RunRow]) -> None:
        """Let go of what was noted of runs that have ended."""
        ids = {row.id for row in rows}
        for noted in (self.waiting_for, self._first_seen, self._faults, self._not_before, self._wait_s, self._asked):
            for run_id in [run_id for run_id in noted if run_id not in ids]:
                del noted[run_id]

    def _gone(self, rows: list[RunRow]) -> frozenset[str]:
        names = {row.instance for row in rows if row.state == RUNNING and row.instance} - {self.instance}
        return frozenset(name for name in names if not self._instances.alive(name))

    def _mine_now(self, row: RunRow, gone: frozenset[str]) -> bool:
        if row.state == RUNNING:
            if row.instance == self.instance:  # dropped by a fault of ours, or by a log that could not take its end
                return True
            recent = (row.last_us or 0) > _now_us() - TAKEOVER_WITHIN_US
            return row.instance in gone and recent
        if row.session_id in self._sessions:
            return True
        first = self._first_seen.setdefault(row.id, anyio.current_time())
        return anyio.current_time() - first >= GRACE_S

    async def _take(self, row: RunRow, gone: frozenset[str], tasks: anyio.abc.TaskGroup) -> None:
        """Claim a run that this instance can honour, and start it.

        Raises:
            CannotHonour: It cannot.
        """
        await self._outfitter.honour(row)
        who = Who(row.session_id, AGENT, row.user_id)
        got = await self._store.do(claim(row.id, self.instance, who, gone, self._slots))
        if isinstance(got, NotClaimed):
            self.waiting_for[row.id] = got.why
            return
        self.waiting_for.pop(row.id, None)
        run = await self._store.read(lambda view: view.run(row.id))
        assert run is not None
        history = History(run.id)
        history.add_all(await self._store.read(lambda view: view.entries(row.id)))
        prepared = await self._outfitter.prepare(run, history)
        agent = Who(run.session_id, run.id, run.user_id, parent_agent_id=AGENT)
        owned = AgentRun(self._store, run, agent, history, prepared)
        self._owned[run.id] = owned
        tasks.start_soon(self._drive, owned, run, prepared)

    async def _drive(self, owned: AgentRun, run: RunRow, prepared: Prepared) -> None:
        try:
            if run.id in self._asked:  # asked for while the log could not take it
                owned.cancel(self._asked[run.id])
            elif run.cancel_seq is not None:
                owned.cancel(await self._cancel_reason(run.id))
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
            try:
                prepared.close(owned.done)
            except OSError as error:
                log.warning("%s left something behind: %s", run.id, error)
            self.poke()

    async def _group_time(self, run: RunRow) -> float | None:
        """Return the seconds that a group's clock leaves, None without one."""
        group_id = run.group_id
        if group_id is None:
            return None
        group = await self._store.read(lambda view: view.group(group_id))
        if group is None or group.timeout_s is None or group.started_us is None:
            return None
        gone_s = max(0.0, (_now_us() - group.started_us) / 1e6)  # a clock that was set back gives no time
        return max(0.0, group.timeout_s - gone_s)

    async def cancel(self, run_id: str, who: Who, reason: str | None, by: CancelledBy = "model") -> RunRow | None:
        """Cancel a run and return it as it ended, within 5 s; None when there is none of this user."""
        owned = self._owned.get(run_id)
        if owned is not None and owned.user == who.user_id:  # act in memory first, its record follows
            self._asked[run_id] = reason
            owned.cancel(reason)
        found = await self._store.do(cancel(run_id, who, reason, by))
        if found.run is None:
            return None
        if found.pending:
            with anyio.move_on_after(CANCEL_ANSWER_S):
                await self.ended(run_id)
            ended = Ended("cancelled", ON_REQUEST, reason=reason)
            files = await anyio.to_thread.run_sync(self._outfitter.artifacts, run_id)
            if await self._end_unanswered(run_id, ended, files):
                await anyio.to_thread.run_sync(self._outfitter.tidy, run_id)
        return await self._store.read(lambda view: view.run(run_id))

    async def ended(self, run_id: str) -> RunRow:
        """Wait until a run has ended, in any process."""
        while True:
            seen = self._store.head
            run = await self._store.read(lambda view: view.run(run_id))
            assert run is not None
            if run.ended:
                return run
            await self._store.newer_than(seen)


def _now_us() -> int:
    return time.time_ns() // 1000
