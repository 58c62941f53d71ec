"""How runs end, and go on, other than by their own loop: cancelled, unanswered, overdue, resumed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError
from ava_audit.events import CancelledBy, Channel, Who
from ava_audit.locks import Instances
from ava_audit.rows import QUEUED, RunRow
from ava_audit.store import Command, Store
from ava_server.loop import ON_REQUEST
from ava_server.proposing import SpawnLimits
from ava_server.result import Ended
from ava_server.unowned import Artifact, NotResumed, cancel, end_overdue, end_unanswered, resume

log = logging.getLogger("ava.endings")

CANCEL_ANSWER_S = 4.0
"""A cancel that the owner has not answered within this is carried out by the one who asked."""


class Endings:
    """Ends runs that do not end by themselves.

    Args:
        store: The log.
        instances: The live processes on the data root.
        instance: This process.
        artifacts: Returns the files that a run has handed over. Blocking.
        tidy: Removes what was only an ended run's own. Blocking.
    """

    def __init__(
        self,
        store: Store,
        instances: Instances,
        instance: str,
        artifacts: Callable[[str], Sequence[Artifact]],
        tidy: Callable[[str], None],
    ) -> None:
        self._store = store
        self._instances = instances
        self._instance = instance
        self._artifacts = artifacts
        self._tidy = tidy

    def gone(self, rows: Sequence[RunRow]) -> frozenset[str]:
        """Return the owners of these runs that do not live any more: their locks are free. Blocking."""
        names = {row.instance for row in rows if row.instance} - {self._instance}
        return frozenset(name for name in names if not self._instances.alive(name))

    async def cancel(self, run_id: str, who: Who, reason: str | None, by: CancelledBy) -> RunRow | None:
        """Cancel a run and return it as it ended, within 5 s; None when there is none of this user."""
        files = await self._files_of_paused(run_id)
        found = await self._store.do(cancel(run_id, who, reason, by, files))
        if found.run is None:
            return None
        if found.begun:
            await anyio.to_thread.run_sync(self._tidy, run_id)
        if found.pending:
            if not await anyio.to_thread.run_sync(self.gone, [found.run]):  # else nobody is there to answer
                with anyio.move_on_after(CANCEL_ANSWER_S):
                    await self.ended(run_id)
            await self.end(run_id, Ended("cancelled", ON_REQUEST, reason=reason))
        return await self._store.read(lambda view: view.run(run_id))

    async def _files_of_paused(self, run_id: str) -> Sequence[Artifact]:
        run = await self._store.read(lambda view: view.run(run_id))
        if run is None or run.state != QUEUED or run.generation == 0:
            return ()
        return await anyio.to_thread.run_sync(self._artifacts, run_id)

    async def end(self, run_id: str, ended: Ended, *, only_own: bool = False) -> bool:
        """End a run in its owner's place, whatever that is doing; False when it has ended, or is not ours to end."""
        files = await anyio.to_thread.run_sync(self._artifacts, run_id)
        command = partial(end_unanswered, run_id, self._instance, ended, files, only_own=only_own)
        done = await self._read_or_not(run_id, command)
        if done and not only_own:
            await anyio.to_thread.run_sync(self._tidy, run_id)
        return done

    async def end_overdue(self, run_id: str, gone: frozenset[str]) -> bool:
        """End a run that has no owner and whose time is over."""
        files = await anyio.to_thread.run_sync(self._artifacts, run_id)
        done = await self._read_or_not(run_id, partial(end_overdue, run_id, gone, files))
        if done:
            await anyio.to_thread.run_sync(self._tidy, run_id)
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
            await self._store.newer_than(seen)
