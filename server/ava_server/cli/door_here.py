"""Deciding at the data root of this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread

from ava_server.approval.proposals import Pending, all_pending, pending
from ava_server.cli.terminal import tell
from ava_server.cli.unseen import give_pin
from ava_server.core.errors import AvaError, Refused

if TYPE_CHECKING:
    from ava_audit.view import View
    from ava_server.service.access import Session
    from ava_server.service.responses import ConfirmAnswer
    from ava_server.service.runtime import Runtime

STARTS_WITHIN_S = 3.0
"""How long it is watched whether what was approved begins."""


class Here:
    """The data root of this machine, with a session at its terminal."""

    def __init__(self, runtime: Runtime, own: Session) -> None:
        self._house = runtime
        self._own = own

    async def waiting(self, ids: list[str]) -> list[Pending]:
        """Return the proposals that are meant, or all of this user that wait, the oldest first.

        Raises:
            BadInput: There is none of an id.
            Refused: One does not wait any more.
        """
        from ava_server.cli.reading import find_runs

        now_us = time.time_ns() // 1000
        found = await find_runs(self._house.store, ids) if ids else []

        def query(view: View) -> list[Pending]:
            if not ids:
                return all_pending(view, self._own.user, now_us)
            waiting: list[Pending] = []
            for run in found:
                if run.user_id != self._own.user:
                    raise Refused(f"{run.pending_id} is {run.user_id}'s proposal; only that user decides about it.")
                one = pending(view, run)
                if isinstance(one, str):
                    raise Refused(one)
                if one.expires_us <= now_us:
                    raise Refused(f"{run.pending_id} has expired; have it proposed anew.")
                waiting.append(one)
            return waiting

        return await self._house.store.read(query)

    async def can_be_approved(self) -> None:
        """Look whether anything can be approved now.

        Raises:
            Refused: It takes a PIN, and there is none, or it is locked.
        """
        from ava_server.config.pin import PinFile

        if await self._house.policy() == "human":
            await anyio.to_thread.run_sync(PinFile(self._house.settings.paths.approval_file).ready)

    async def decide(self, waiting: Sequence[Pending], decision: str, **more: Any) -> ConfirmAnswer:
        """Decide, with the PIN where it takes one.

        Raises:
            AvaError: It cannot be decided; says why.
        """
        from ava_server.cli.at_desk import silent
        from ava_server.config.pin import PinFile
        from ava_server.service.service import Service

        if decision == "approve" and await self._house.policy() == "human":
            try:
                await give_pin(PinFile(self._house.settings.paths.approval_file), self._own)
            except AvaError as error:
                raise Refused(f"{error} Nothing was started, and it still waits.") from error
        given = {"pending_ids": [one.pending_id for one in waiting], "decision": decision, **more}
        answer = await Service(self._house, self._own).call("confirm_spawn", given, silent, raises=True)
        return cast("ConfirmAnswer", answer)

    async def begun(self, waiting: Sequence[Pending]) -> str:
        """Return whether it begins: watched for a moment."""
        from ava_audit.rows import QUEUED

        await self._have_worker()
        ids = [one.subagent_id for one in waiting]
        with anyio.move_on_after(STARTS_WITHIN_S):
            while True:
                seen = self._house.store.head
                rows = await self._house.store.read(lambda view: [view.run(run_id) for run_id in ids])
                if all(row is not None and row.state != QUEUED for row in rows):
                    return f"{'It has' if len(rows) == 1 else 'They have'} begun; `ava status` shows how it goes."
                await self._house.store.wait_for_entry_after(seen)
        return (
            "It starts as soon as a server of this data root is there and has room: a host with Ava in it, or"
            " `ava worker`."
        )

    async def _have_worker(self) -> None:
        """Start the worker that is to do it, where a worker does: no host may be there."""
        from ava_server.runs.manager import ConfigNotSupported
        from ava_server.runs.worker_process import WorkerProcesses

        if not self._house.settings.background:
            return
        try:
            await WorkerProcesses(self._house.settings.paths)()
        except (ConfigNotSupported, OSError) as error:
            tell(f"No worker could be started: {error}")
