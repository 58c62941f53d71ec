"""Delivery by the log itself: each commit that may give a worker something to do is a message to all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio

from ava_audit.errors import AuditError
from ava_audit.store.store import Store
from ava_server.delivery import Body, EngineState

NEWS = (
    "SpawnDecided", "StepRunQueued", "CancelRequested", "RunClaimed", "RunPaused", "Asked", "Answered", "RunResumed",
    "RunEnded",
)  # fmt: skip
"""The types of entries that may give a process something to do."""
SETTLE = (4, 0.25)
"""After a look at news or runs passes so many times what it took, up to so many seconds: a commit is looked
at once and those that follow it together, and looking takes about a fifth of a processor."""


def settle_s(began: float) -> float:
    """Return how long nothing is looked at after a look that began at a time of anyio's clock."""
    times, longest_s = SETTLE
    return min(times * (anyio.current_time() - began), longest_s)


class LogDelivery:
    """Wakes each process at the commits of the log; `deliver` and `cancel` do nothing, as every process sees these."""

    name = "none"
    carries = False

    def __init__(self, store: Store) -> None:
        self._store = store

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        yield

    async def deliver(self, run_id: str, queue: str, attempt: str) -> bool:
        """Do nothing: the entry that queued the run has told everybody."""
        return False

    async def cancel(self, run_id: str) -> None:
        """Do nothing: the entry that asks for the run's end has told everybody."""

    async def work(self, _name: str, _queues: Sequence[str], _slots: int, body: Body) -> None:
        """Wake the body at news; it finds by itself which runs are free."""
        seen, settled_s = self._store.head, float("-inf")
        while True:
            await self._store.wait_for_entry_after(seen)
            await anyio.sleep_until(max(settled_s, body.settled_s))
            head, began = self._store.head, anyio.current_time()
            try:
                news = await self._store.any_after(seen, NEWS)
            except AuditError:  # the next look reports it
                news = True
            settled_s = anyio.current_time() + settle_s(began)
            if news:
                body.wake()
            seen = head

    async def state(self) -> EngineState:
        return EngineState()
