"""How runs end, and go on, other than by their own loop: cancelled, unanswered, overdue, resumed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError
from ava_audit.events import CancelledBy, Channel, Who
from ava_audit.rows import QUEUED, RunRow
from ava_audit.store.locks import Instances
from ava_audit.store.store import Command, Store
from ava_server.approval.proposals import SpawnLimits, texts_of
from ava_server.budget.run_config import config_of
from ava_server.runs.changes import LATE, KeptChanges
from ava_server.runs.lifecycle import Artifact, NotResumed, cancel, end_overdue, end_unanswered, resume
from ava_server.runs.loop import ON_REQUEST
from ava_server.runs.result import RunResult

log = logging.getLogger("ava.endings")

CANCEL_ANSWER_S = 4.0
"""A cancel that the owner has not answered within this is carried out by the one who asked."""
ANSWER_S, LEAST_S = 4.7, 0.1
"""When a cancel has to be through, whatever else there is to do: it is answered within 5 s."""
KEEP_S = 8.0
"""How long it is waited for that the changes of a run are on their branch, where nobody waits for an answer."""


class RunCleanup(Protocol):
    """What an ending needs of what gives runs what they work with. All of it blocks."""

    def artifacts(self, run_id: str) -> list[Artifact]:
        """Return the files that a run has handed over."""
        ...

    def left(self, run: RunRow, task: str) -> KeptChanges | None:
        """Bring onto its branch what a run that nobody works on has changed; None for one that changes no files."""
        ...

    def tidy(self, run: RunRow) -> None:
        """Remove what was only an ended run's own."""
        ...


class RunEndings:
    """Ends runs that do not end by themselves.

    Args:
        store: The log.
        instances: The live processes on the data root.
        instance: This process.
        outfitter: What is asked for what a run has handed over and changed, and to remove what was only its own.
    """

    def __init__(self, store: Store, instances: Instances, instance: str, context_factory: RunCleanup) -> None:
        self._store = store
        self._instances = instances
        self._instance = instance
        self._outfitter = context_factory

    def gone(self, rows: Sequence[RunRow]) -> frozenset[str]:
        """Return the owners of these runs that do not live any more: their locks are free. Blocking."""
        names = {row.instance for row in rows if row.instance} - {self._instance}
        return frozenset(name for name in names if not self._instances.alive(name))

    async def cancel(self, run_id: str, who: Who, reason: str | None, by: CancelledBy) -> RunRow | None:
        """Cancel a run and return it as it ended, within 5 s; None when there is none of this user."""
        until = anyio.current_time() + ANSWER_S
        files, kept = await self._left_by_paused(run_id, until)
        found = await self._store.do(cancel(run_id, who, reason, by, files, kept))
        if found.run is None:
            return None
        if found.begun:
            await self._tidy(found.run, until)
        if found.pending:
            if not await anyio.to_thread.run_sync(self.gone, [found.run]):  # else nobody is there to answer
                with anyio.move_on_after(CANCEL_ANSWER_S):
                    await self.ended(run_id)
            await self.end(run_id, RunResult("cancelled", ON_REQUEST, reason=reason), until=until)
        return await self._store.read(lambda view: view.run(run_id))

    async def _left_by_paused(self, run_id: str, until: float) -> tuple[Sequence[Artifact], KeptChanges | None]:
        run = await self._store.read(lambda view: view.run(run_id))
        if run is None or run.state != QUEUED or run.generation == 0:
            return (), None
        return await self._left(run, until)

    async def _left(self, run: RunRow, until: float) -> tuple[Sequence[Artifact], KeptChanges | None]:
        """Return what a run has handed over, and what became of its changes: on their branch, if there is the time."""
        files = await anyio.to_thread.run_sync(self._outfitter.artifacts, run.id)
        if config_of(run.config).coding is None:
            return files, None
        texts = await self._store.read(lambda view: texts_of(view, run))
        task = texts.task if texts is not None else ""
        with anyio.move_on_after(max(until - anyio.current_time(), LEAST_S)):
            kept = await anyio.to_thread.run_sync(self._outfitter.left, run, task, abandon_on_cancel=True)
            return files, kept
        return files, KeptChanges(fault=LATE)

    async def _tidy(self, run: RunRow, until: float) -> None:
        with anyio.move_on_after(max(until - anyio.current_time(), LEAST_S)):
            await anyio.to_thread.run_sync(self._outfitter.tidy, run, abandon_on_cancel=True)

    async def end(self, run_id: str, ended: RunResult, *, only_own: bool = False, until: float | None = None) -> bool:
        """End a run in its owner's place, whatever that is doing; False when it has ended, or is not ours to end.

        Args:
            run_id: The run.
            ended: How it ends.
            only_own: Only if it is this instance's, or nobody's yet.
            until: When somebody has to be answered, on the clock of the event loop.
        """
        until = anyio.current_time() + KEEP_S if until is None else until
        run = await self._store.read(lambda view: view.run(run_id))
        if run is None or run.ended:
            return False
        files, kept = await self._left(run, until)
        command = partial(end_unanswered, run_id, self._instance, ended, files, kept=kept, only_own=only_own)
        done = await self._read_or_not(run_id, command)
        if done and not only_own:
            await self._tidy(run, until)
        return done

    async def end_overdue(self, run_id: str, gone: frozenset[str]) -> bool:
        """End a run that has no owner and whose time is over."""
        until = anyio.current_time() + KEEP_S
        run = await self._store.read(lambda view: view.run(run_id))
        if run is None or run.ended:
            return False
        files, kept = await self._left(run, until)
        done = await self._read_or_not(run_id, partial(end_overdue, run_id, gone, files, kept=kept))
        if done:
            await self._tidy(run, until)
        return done

    async def _read_or_not(self, run_id: str, command: Callable[..., Command[bool]]) -> bool:
        """End a run with what its log has of a result; without, where not even its log can be read."""
        try:
            return await self._store.do(command())
        except AuditError:
            raise
        except Exception:
            log.exception("%s cannot be read back", run_id)
            return await self._store.do(command(unread=True))

    async def resume(
        self,
        run_id: str,
        who: Who,
        channel: Channel,
        limits: SpawnLimits,
        *,
        line: str | None = None,
        force: bool = False,
    ) -> RunRow | NotResumed:
        """Have an interrupted run go on; see `unowned.resume`."""
        run = await self._store.read(lambda view: view.run(run_id))
        gone = await anyio.to_thread.run_sync(self.gone, [run] if run is not None else [])
        return await self._store.do(resume(run_id, who, channel, gone, limits, line=line, force=force))

    async def ended(self, run_id: str) -> RunRow:
        """Wait until a run has ended, in any process."""
        while True:
            seen = self._store.head
            run = await self._store.read(lambda view: view.run(run_id))
            assert run is not None
            if run.ended:
                return run
            await self._store.wait_for_entry_after(seen)
