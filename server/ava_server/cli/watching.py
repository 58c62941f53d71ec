"""Watching runs from a terminal until they have ended: what they do, in a line, and what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from ava_audit.errors import StoreUnavailable
from ava_server.cli.terminal import Progress

if TYPE_CHECKING:
    from ava_audit.locks import Instances
    from ava_audit.rows import RunRow
    from ava_audit.store import Store
    from ava_audit.view import View
    from ava_server.claims import Slots
    from ava_server.manager import Manager

LOOK_EVERY_S = 0.2
"""How often the progress line is made anew."""
EXPIRED = "expired"


@dataclass(frozen=True)
class Seen:
    """A run at this moment: its line, and whether there is nothing more to wait for."""

    run: RunRow
    line: str
    over: bool


class Watching:
    """Tells what runs do.

    Args:
        store: The log.
        instances: The live processes.
        slots: How many runs may be running.
        run_ids: The runs.
        manager: This process's own, where it has one: it knows more than the log.
    """

    def __init__(
        self, store: Store, instances: Instances, slots: Slots, run_ids: Sequence[str], manager: Manager | None = None
    ) -> None:
        self.progress = Progress()
        self._store = store
        self._instances = instances
        self._slots = slots
        self._run_ids = run_ids
        self._manager = manager

    async def look(self) -> list[Seen]:
        """Return the runs as they are.

        Raises:
            StoreUnavailable: The log cannot be read.
        """
        return await self._store.read(lambda view: [self._seen(view, run_id) for run_id in self._run_ids])

    async def until_over(self, quiet: Callable[[], bool] = lambda: False) -> list[Seen]:
        """Show what they do until all of them are over, and return them as they ended.

        A log that cannot be read is waited for, and that is what is shown then.

        Args:
            quiet: Tells whether a question stands on the line.
        """
        while True:
            try:
                seen = await self.look()
            except StoreUnavailable as error:
                if not quiet():
                    self.progress.wait_for(f"Waiting for the log: {error}")
            else:
                going_on = [one for one in seen if not one.over]
                if not going_on:
                    self.progress.end()
                    return seen
                if not quiet():
                    self._show(going_on, len(seen))
            await anyio.sleep(LOOK_EVERY_S)

    def _show(self, going_on: list[Seen], count: int) -> None:
        hold = self._manager.out_of_reach if self._manager is not None else None
        if hold:
            self.progress.wait_for(f"{going_on[0].line.partition(': ')[0]}: waiting for the log: {hold}")
            return
        others = f"{count - len(going_on)} of {count} have ended. " if count > 1 else ""
        self.progress.show(others + going_on[0].line)

    def _seen(self, view: View, run_id: str) -> Seen:
        from ava_server.status import activity_of, clock_us, run_answer, status_line
        from ava_server.waits import any_alive, waits_for

        run = view.run(run_id)
        assert run is not None
        alive, now_us = self._instances.alive, time.time_ns() // 1000
        if run.ended:
            return Seen(run, status_line(run, run.state, now_us), over=True)
        answer = run_answer(view, run, alive, now_us, result=False)
        state = answer.state
        own = self._manager.activity(run.id) if self._manager is not None else None
        waits = self._manager.waiting_for.get(run.id) if self._manager is not None and state != "running" else None
        waits = waits or waits_for(view, run, answer, alive, self._slots, lambda: any_alive(self._instances), now_us)
        what = f"{state.replace('_', ' ')}: {waits}" if waits else own or activity_of(view, run) or state
        return Seen(run, status_line(run, what, clock_us(run, state, now_us)), over=state == EXPIRED)
