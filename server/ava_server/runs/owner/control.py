"""Cancels, ends and resumes runs in their owner's place: the commands of `lifecycle`, and the waiting around them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from ava_audit.errors import AuditError
from ava_audit.events import CancelledBy, Channel, Who
from ava_audit.rows import QUEUED, RUNNING, RunRow
from ava_audit.store.backend import Instances
from ava_audit.store.store import Store
from ava_audit.units import US_PER_S, now_us
from ava_audit.view import Command
from ava_server.approval.proposals import SpawnLimits, brief_of
from ava_server.run_config.config import config_of
from ava_server.runs.record.changes import LATE, KeptChanges
from ava_server.runs.record.claims import NotResumed, interrupt_runs, resume, settle
from ava_server.runs.record.endings import ON_REQUEST, RunFiles, cancel, end_for_owner, end_overdue
from ava_server.runs.record.result import RunResult

if TYPE_CHECKING:
    from ava_server.runs.turn.setup import RunSetup

log = logging.getLogger("ava.control")
T = TypeVar("T")

OWNER_S = 4.0
"""Seconds that a run's owner has to carry out a cancel; then the instance that was asked does it."""
ANSWER_S, LEAST_S = 4.7, 0.1
"""Seconds within which a cancel is through: it has to be answered within 5 s."""
BEGIN_S = 1.0
"""Seconds that a thread has at least to begin its work, however late it is; the work then continues by itself."""
GONE_EVERY_S = 0.5
"""Seconds between two looks at which owners are gone, for runs that wait for what others hold."""
KEEP_S = 8.0
"""Seconds that saving a run's changes on their branch may take where nobody waits for an answer."""


class RunControl:
    """Ends and resumes runs, whichever process owns them."""

    def __init__(
        self,
        store: Store,
        instances: Instances,
        instance: str,
        setup: RunSetup,
        on_cancel: Callable[[str], None] | None = None,
    ) -> None:
        """`on_cancel` is called with each run whose owner has to look for a cancel: news of the log may be late."""
        self._store = store
        self._instances = instances
        self._instance = instance
        self._setup = setup
        self._on_cancel = on_cancel

    def gone(self, rows: Sequence[RunRow]) -> frozenset[str]:
        """Return those owners of these runs that are no longer alive: their locks are free. Blocking."""
        return frozenset(name for name in self._owners(rows) if not self._instances.alive(name))

    def lasts_s(self, rows: Sequence[RunRow], gone: frozenset[str]) -> list[float]:
        """Return in how many seconds each living owner of these runs is dead if it renews nothing."""
        return [self._instances.lasts_s(name) for name in self._owners(rows) - gone]

    def seen_us(self, run: RunRow | None) -> int | None:
        """Return when another owner of a run was last seen at work; None where that is not known. Blocking."""
        if run is None or run.instance in (None, "", self._instance):
            return None
        return self._instances.seen_us(str(run.instance))

    def _owners(self, rows: Sequence[RunRow]) -> set[str]:
        return {row.instance for row in rows if row.instance} - {self._instance}

    async def cancel(
        self, run_id: str, who: Who, reason: str | None, by: CancelledBy, *, anyones: bool = False
    ) -> RunRow | None:
        """Cancel a run and return it as it ended, within 5 s; None where the user has none of this id."""
        until = anyio.current_time() + ANSWER_S
        run = await self._store.look(lambda view: view.run(run_id))
        paused = run is not None and run.state == QUEUED and run.generation > 0
        files = await self._files(run, until) if run is not None and paused else RunFiles()
        outcome = await self._store.do(cancel(run_id, who, reason, by, files, anyones=anyones))
        if outcome.run is None:
            return None
        if outcome.begun:
            await self._remove_folders(outcome.run, until)
        if outcome.pending:
            if self._on_cancel is not None:
                self._on_cancel(run_id)
            if not await anyio.to_thread.run_sync(self.gone, [outcome.run]):  # else there is no owner to answer
                with anyio.move_on_after(OWNER_S):
                    await self.ended(run_id)
            ended = RunResult("cancelled", ON_REQUEST, reason=reason)
            await self.end(run_id, ended, "cancel unanswered", until=until)
        return await self._store.look(lambda view: view.run(run_id))

    async def _files(self, run: RunRow, until: float) -> RunFiles:
        """Return what a run has handed over and changed; its changes are committed if that is done in time."""
        artifacts = await anyio.to_thread.run_sync(self._setup.folders.artifacts, run.id)
        hide = self._setup.hide
        if config_of(run.config).coding is None:
            return RunFiles(artifacts, hide=hide)
        brief = await self._store.read(lambda view: brief_of(view, run))
        task = brief.task if brief is not None else ""
        try:
            return RunFiles(artifacts, await _begin(until, self._setup.worktrees.keep_changes, run, task), hide)
        except TimeoutError:
            return RunFiles(artifacts, KeptChanges(fault=LATE), hide)

    async def _remove_folders(self, run: RunRow, until: float) -> None:
        with suppress(TimeoutError):
            await _begin(until, self._setup.folders.remove, run)

    async def end(
        self,
        run_id: str,
        ended: RunResult,
        cause: Literal["cancel unanswered", "give up"] = "cancel unanswered",
        *,
        until: float | None = None,
    ) -> bool:
        """End a run in its owner's place; False where it has ended, or the table of transitions does not allow it.

        `cause`: why this instance may. It gives up only runs that are its own, or nobody's. `until`: when somebody has
        to be answered, on the clock of the event loop.
        """
        command = partial(end_for_owner, run_id, self._instance, ended, cause)
        return await self._end(run_id, command, until, remove=cause != "give up")  # its loop may still use them

    async def end_overdue(self, run_id: str, gone: frozenset[str]) -> bool:
        """End a run that nobody owns and whose time is over; False where that is not so."""
        return await self._end(run_id, partial(end_overdue, run_id, gone))

    async def _end(
        self, run_id: str, command: Callable[..., Command[bool]], until: float | None = None, *, remove: bool = True
    ) -> bool:
        until = anyio.current_time() + KEEP_S if until is None else until
        run = await self._store.look(lambda view: view.run(run_id))
        if run is None or run.ended:
            return False
        seen_us = await anyio.to_thread.run_sync(self.seen_us, run)
        command = partial(command, await self._files(run, until), seen_us=seen_us)
        try:
            done = await self._store.do(command())
        except AuditError:
            raise
        except Exception:  # an entry cannot be read: the run ends without what its log has of a result
            log.exception("%s cannot be read back", run_id)
            done = await self._store.do(command(skip_log=True))
        if done and remove:
            await self._remove_folders(run, until)
        return done

    async def resume(
        self,
        run_id: str,
        who: Who,
        channel: Channel,
        limits: SpawnLimits,
        *,
        line: str | None = None,
        force: bool = False,
        anyones: bool = False,
    ) -> RunRow | NotResumed:
        """Resume an interrupted or held run; see `claims.resume`."""
        run = await self._store.look(lambda view: view.run(run_id))
        owned = [run] if run is not None else []
        plan_id: str | None = None
        if run is not None:
            plan_id = run.id if run.is_plan else run.plan_id
        if plan_id is not None:  # the runs that a plan has begun continue with it
            owned += await self._store.look(lambda view: view.plan_runs(plan_id))
        gone = await anyio.to_thread.run_sync(self.gone, owned)
        if plan_id is not None:
            await self.interrupt_runs(plan_id, owned, gone)
        seen_us = await anyio.to_thread.run_sync(self.seen_us, run)
        command = resume(run_id, who, channel, gone, limits, line=line, force=force, anyones=anyones, seen_us=seen_us)
        return await self._store.do(command)

    async def interrupt_runs(self, plan_id: str, rows: Sequence[RunRow], gone: frozenset[str]) -> bool:
        """Record which runs of a plan only a person resumes; see `claims.interrupt_runs`. `rows`: those to look at."""

        def seen() -> dict[str, int]:
            found: dict[str, int] = {}
            for name in self._owners(rows):
                at_us = self._instances.seen_us(name)
                if at_us is not None:
                    found[name] = at_us
            return found

        seen_us = await anyio.to_thread.run_sync(seen)
        return await self._store.do(interrupt_runs(plan_id, gone, seen_us))

    async def ended(self, run_id: str) -> RunRow:
        while True:
            seen = self._store.head
            run = await self._store.look(lambda view: view.run(run_id))
            assert run is not None
            if run.ended:
                return run
            await self._store.wait_for_entry_after(seen)


async def _begin(until: float, work: Callable[..., T], *args: object) -> T:
    """Begin work in a thread, and wait until a time of the event loop's clock; on TimeoutError the work continues."""
    with anyio.fail_after(max(until - anyio.current_time(), BEGIN_S)) as scope:

        def wait_until() -> None:
            scope.deadline = max(until, anyio.current_time() + LEAST_S)

        def begun() -> T:
            with suppress(RuntimeError):  # the event loop is closed: nobody waits
                anyio.from_thread.run_sync(wait_until)
            return work(*args)

        return await anyio.to_thread.run_sync(begun, abandon_on_cancel=True)


class GoneOwners:
    """The owners of running runs that have been gone for a lease, looked up at most every `GONE_EVERY_S`.

    Their runs hold no money any more: whoever waits for money asks here, and that settles what they held. Within the
    lease, a process that can continue such a run takes it over, and keeps what it holds.
    """

    def __init__(self, store: Store, control: RunControl, lease_s: float) -> None:
        self._store = store
        self._control = control
        self._lease_s = lease_s
        self._gone = frozenset[str]()
        self._looked_s = float("-inf")

    async def now(self) -> frozenset[str]:
        if anyio.current_time() - self._looked_s >= GONE_EVERY_S:
            self._looked_s = anyio.current_time()
            rows = await self._store.look(lambda view: view.runs(states=(RUNNING,), limit=-1))
            lost = await anyio.to_thread.run_sync(self._lost, rows)
            self._gone = frozenset(str(row.instance) for row in lost)
            for row in lost:
                if row.in_flight is not None or row.wrap_micros:
                    await self._settle(row)
        return self._gone

    def _lost(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """Return the runs whose owner is gone and was last seen at work more than a lease ago. Blocking."""
        gone = self._control.gone(rows)
        before_us = now_us() - round(self._lease_s * US_PER_S)
        lost: list[RunRow] = []
        for row in rows:
            if row.instance in gone and max(row.last_us or 0, self._control.seen_us(row) or 0) < before_us:
                lost.append(row)
        return lost

    async def _settle(self, run: RunRow) -> None:
        try:
            if await self._store.do(settle(run.id, self._gone)):
                log.warning("%s: its process is gone; what it held is returned to those who wait for it", run.id)
        except ValueError:  # a newer Ava wrote what was approved: that one settles it
            log.debug("%s cannot be settled by this version", run.id)
