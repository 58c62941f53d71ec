"""Runs that somebody at a terminal waits for: what they do, and what Ctrl-C shall mean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from ava_server.cli.app import INTERRUPTED
from ava_server.cli.service_client import ignore_progress
from ava_server.cli.terminal import ask, interrupts, someone_there, tell
from ava_server.cli.watching import Watching

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service


class Attending:
    """Shows what runs are doing until all have ended; Ctrl-C asks what shall become of them."""

    def __init__(self, runtime: Runtime, service: Service, run_ids: Sequence[str]) -> None:
        from ava_server.budget.user_limits import Slots

        self._desk = service
        self._run_ids = run_ids
        self._house = runtime
        limits = runtime.settings.limits
        slots = Slots(limits.running_per_user, limits.running)
        self._watching = Watching(runtime.store, runtime.instances, slots, run_ids, runtime.manager)
        self._asking: anyio.CancelScope | None = None
        self._left: int | None = None

    async def until_it_ends(self) -> int | None:
        """Return None when all have ended, and an exit code when something was left running."""
        with interrupts() as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._on_signals, signals, tasks)
                await self._watching.until_over(lambda: self._asking is not None)
                tasks.cancel_scope.cancel()
        self._watching.progress.end()
        if self._asking is not None and self._left is None:
            tell()  # the question stands on the line
        return self._left

    async def _on_signals(self, signals: AsyncIterator[int], tasks: anyio.abc.TaskGroup) -> None:
        async for _number in signals:
            if self._asking is not None or not someone_there():
                tasks.start_soon(self._cancel, tasks)  # nobody can be asked, or is asked already
                if self._asking is not None:
                    self._asking.cancel()
                continue
            tasks.start_soon(self._ask, tasks)
            self._asking = anyio.CancelScope()

    async def _ask(self, tasks: anyio.abc.TaskGroup) -> None:
        assert self._asking is not None
        self._watching.progress.end()
        with self._asking:
            rows = await self._going_on()
            ours = not rows or any(row.instance == self._house.manager.instance for row in rows)
            if len(self._run_ids) == 1:
                tell(f"{self._run_ids[0]} goes on meanwhile. Cancel it (what it has is kept), or leave it?")
                where = "it is interrupted until an Ava server of this user takes it up" if ours else "it goes on"
            else:
                which = f"{len(rows)} of {len(self._run_ids)} subagents go on meanwhile"
                tell(f"{which}. Cancel them (what they have is kept), or leave them?")
                where = "they are interrupted until an Ava server of this user takes them up" if ours else "they go on"
            tell(f"Left, {where}. Ctrl-C again cancels.")
            while (answer := await ask("[c]ancel or [l]eave:")) not in ("c", "cancel", "l", "leave", ""):
                tell("c or l.")
            if answer in ("c", "cancel"):
                await self._cancel(tasks)
            else:
                what = "what became of it" if len(self._run_ids) == 1 else "what became of each"
                tell(f"Left. {' and '.join(f'`ava show {run_id}`' for run_id in self._run_ids)} tells {what}.")
                self._left = INTERRUPTED
                tasks.cancel_scope.cancel()
        self._asking = None

    async def _going_on(self) -> list[RunRow]:
        rows = await self._house.store.read(lambda view: [view.run(run_id) for run_id in self._run_ids])
        return [row for row in rows if row is not None and not row.ended]

    async def _cancel(self, tasks: anyio.abc.TaskGroup) -> None:
        tell("Cancelling.")
        failed: list[str] = []
        async with anyio.create_task_group() as cancelling:
            for run_id in self._run_ids:
                cancelling.start_soon(self._cancel_one, run_id, failed)
        if failed:  # they were stopped all the same, and their record follows when the log can take it
            tell("\n".join(failed))
            self._left = INTERRUPTED
            tasks.cancel_scope.cancel()

    async def _cancel_one(self, run_id: str, failed: list[str]) -> None:
        from ava_server.service.responses import FAILED

        given = {"subagent_id": run_id, "reason": "cancelled at the terminal"}
        answer = await self._desk.call("cancel_subagent", given, ignore_progress)
        if answer.status == FAILED:
            failed.append(f"The end of {run_id} is not on the record: {answer.message}")
