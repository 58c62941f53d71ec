"""Activities: what runs are doing now, passed from the process that drives them to those that show it.

It is not in the log, so it costs no commit. `ActivityBoard` shows what this process's runs do, and `ActivityWatch`
notices what all runs do. Together they take about half a second, whichever database the log has.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import anyio
import anyio.to_thread

from ava_audit.store.backend import SHOWN_S, Activities, Instances, Membership

log = logging.getLogger("ava.activities")

SHOW_EVERY_S = 0.25
"""A change is shown immediately; the next one only after at least this long."""
AGAIN_S = SHOWN_S / 3
"""How often an unchanged activity is shown again."""
LOOK_EVERY_S, NOTHING_EVERY_S = 0.2, 0.6
"""How often activities are read, and how often while no run shows one."""


class ActivityBoard:
    """Shows other processes what the runs of this one are doing."""

    def __init__(self, membership: Membership, doing: Callable[[], Mapping[str, str]]) -> None:
        self._membership = membership
        self._doing = doing
        self._changed = anyio.Event()

    def change(self) -> None:
        self._changed.set()

    async def keep(self) -> None:
        """Show it, until cancelled; while this process has no runs, do nothing."""
        shown: Mapping[str, str] = {}
        while True:
            with anyio.move_on_after(AGAIN_S if shown else math.inf):
                await self._changed.wait()
            self._changed, shown = anyio.Event(), self._doing()
            try:
                await anyio.to_thread.run_sync(self._membership.show, shown)
            except RuntimeError as error:  # no more threads can be started
                log.debug("what runs are doing is not shown: %s", error)
            await anyio.sleep(SHOW_EVERY_S)


class ActivityWatch:
    """Notices changed activities in all processes; reads them only while somebody waits for a change."""

    def __init__(self, instances: Instances) -> None:
        self.now: Activities = {}
        self._instances = instances
        self._waits: dict[anyio.CancelScope, Callable[[], bool]] = {}
        self._somebody = anyio.Event()

    def changed_since(self, known: Activities) -> set[str]:
        """Return the runs whose activity differs from `known`."""
        return {run_id for (_owner, run_id), _text in known.items() ^ self.now.items()}

    @contextmanager
    def change_ends(
        self, scope: anyio.CancelScope, known: Activities, concerns: Callable[[str], bool]
    ) -> Generator[None]:
        """End a wait, by cancelling `scope`, when the activity of one of its runs differs from `known`."""
        self._waits[scope] = lambda: any(map(concerns, self.changed_since(known)))
        self._somebody.set()
        try:
            yield
        finally:
            del self._waits[scope]

    async def follow(self) -> None:
        while True:
            if not self._waits:
                self._somebody = anyio.Event()
                await self._somebody.wait()
            try:
                self.now = await anyio.to_thread.run_sync(self._instances.activities)
            except RuntimeError as error:  # no more threads can be started
                log.debug("what runs are doing was not looked at: %s", error)
            for scope, is_over in list(self._waits.items()):
                if is_over():
                    scope.cancel()
            await anyio.sleep(LOOK_EVERY_S if self.now else NOTHING_EVERY_S)
