"""Watching runs from a terminal until they have ended: what they do, in a line, and what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from ava_audit.errors import StoreUnavailable
from ava_server.cli.terminal import Progress, cells

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.store.locks import Instances
    from ava_audit.store.store import Store
    from ava_audit.view import View
    from ava_server.budget.user_limits import Slots
    from ava_server.runs.manager import Manager

LOOK_EVERY_S = 0.2
"""How often the progress line is made anew."""
EXPIRED = "expired"
ONE_LINE = 110
"""Columns from which on a run's whole line has room; below, its figures stand in one of their own."""
NAME_CHARS = 16
"""Characters of a name in a list of several."""


@dataclass(frozen=True)
class Seen:
    """A run at this moment: its line, whether there is nothing more to wait for, and what it does at what time."""

    run: RunRow
    line: str
    over: bool
    does: str = ""
    at_us: int = 0


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
                    self._show(seen, going_on)
            await anyio.sleep(LOOK_EVERY_S)

    def _show(self, seen: list[Seen], going_on: list[Seen]) -> None:
        from ava_server.core.ids import label
        from ava_server.service.status import figures

        hold = self._manager.out_of_reach if self._manager is not None else None
        if hold:
            self.progress.wait_for(f"{going_on[0].line.partition(': ')[0]}: waiting for the log: {hold}")
            return
        width = self.progress.width
        if len(seen) > 1:
            self.progress.show(*lines_of(seen))
        elif width is not None and width < ONE_LINE:
            (one,) = seen
            self.progress.show(f"{label(one.run)}: {one.does}", f"  {figures(one.run, one.at_us)}")
        else:
            self.progress.show(seen[0].line)

    def _seen(self, view: View, run_id: str) -> Seen:
        from ava_server.runs.manager import any_alive, waits_for
        from ava_server.service.status import activity_of, clock_us, run_answer, status_line

        run = view.run(run_id)
        assert run is not None
        alive, now_us = self._instances.alive, time.time_ns() // 1000
        if run.ended:
            return Seen(run, status_line(run, run.state, now_us), over=True, does=run.state, at_us=now_us)
        answer = run_answer(view, run, alive, now_us, result=False)
        state = answer.state
        own = self._manager.activity(run.id) if self._manager is not None else None
        waits = self._manager.waiting_for.get(run.id) if self._manager is not None and state != "running" else None
        waits = waits or waits_for(view, run, answer, alive, self._slots, lambda: any_alive(self._instances), now_us)
        what = f"{state.replace('_', ' ')}: {waits}" if waits else own or activity_of(view, run) or state
        at_us = clock_us(run, state, now_us)
        return Seen(run, status_line(run, what, at_us), over=state == EXPIRED, does=what, at_us=at_us)


def lines_of(seen: Sequence[Seen]) -> list[str]:
    """Return all together in a line, and each in one; what it does stands last, where a narrow terminal cuts it."""
    from ava_audit.units import format_usd
    from ava_server.budget.run_config import config_of
    from ava_server.service.status import elapsed_s

    over = sum(one.over for one in seen)
    spent = sum(one.run.cost_micros for one in seen)
    rows: list[tuple[str, str, str]] = []
    for one in seen:
        config = config_of(one.run.config)
        cost = f"{format_usd(one.run.cost_micros)} of {format_usd(config.max_cost_micros, exact=True)}"
        rows.append(
            (
                (one.run.name or one.run.role)[:NAME_CHARS],
                f"{elapsed_s(one.run, one.at_us):.0f} s, turn {one.run.turns} of {config.max_iterations}",
                "free" if config.price.get("free") else cost,
            )
        )
    wide = [max(cells(row[place]) for row in rows) for place in range(3)]
    return [
        f"{len(seen)} subagents, {over} ended, {format_usd(spent)} spent:",
        *(
            "  ".join(
                [
                    one.run.id,
                    *(f"{part}{' ' * (most - cells(part))}" for part, most in zip(row, wide, strict=True)),
                    one.does,
                ]
            )
            for one, row in zip(seen, rows, strict=True)
        ),
    ]
