"""Politeness: one request at a time per host, with a pause between them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

_KEPT = 256


class _Queue:
    """The requests to one host: who is at it, and when the next may start."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.users = 0
        self.free_at = float("-inf")


class Turns:
    """Hands out turns at hosts.

    Args:
        pause_s: Seconds between the end of one request to a host and the start of the next.
        clock: Monotonic seconds.
        sleep: Waits for so many seconds.
    """

    def __init__(self, pause_s: float, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._pause_s = pause_s
        self._clock = clock
        self._sleep = sleep
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def at(self, host: str, *, pause: bool = True) -> AsyncGenerator[None]:
        """Hold the turn at a host; without `pause` it starts as soon as nobody else is at it."""
        queue = self._queues.setdefault(host, _Queue())
        queue.users += 1
        try:
            async with queue.lock:
                if pause and (wait := queue.free_at - self._clock()) > 0:
                    await self._sleep(wait)
                try:
                    yield
                finally:
                    queue.free_at = self._clock() + self._pause_s
        finally:
            queue.users -= 1
            self._forget()

    def _forget(self) -> None:
        """Drop hosts that nobody waits for, so that a long-lived server does not collect them."""
        if len(self._queues) > _KEPT:
            now = self._clock()
            for host in [host for host, queue in self._queues.items() if not queue.users and queue.free_at <= now]:
                del self._queues[host]
