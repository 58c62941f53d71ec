"""Looks names of hosts up. It loads no HTTP library: a fetcher is made for runs that may fetch nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.to_thread

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Takes a host name and a port; returns the addresses to try, best first. Raises OSError if there are none."""


class SystemResolver:
    """Looks names up with the operating system.

    `getaddrinfo` cannot be interrupted: an abandoned lookup keeps its thread until the system answers. So lookups have
    a limiter of their own, and beyond a number of hanging lookups new ones are refused.
    """

    def __init__(self, threads: int = 8) -> None:
        self._limit = threads * 2
        self._limiter = anyio.CapacityLimiter(threads)
        self._lock = threading.Lock()
        self._under_way = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host. Raises OSError if there are none, or too many lookups are hanging."""
        return await anyio.to_thread.run_sync(self._look_up, host, port, abandon_on_cancel=True, limiter=self._limiter)

    def _look_up(self, host: str, port: int) -> list[str]:
        with self._lock:
            if self._under_way >= self._limit:
                raise OSError("too many name lookups are hanging; the resolver of this machine does not answer")
            self._under_way += 1
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        finally:
            with self._lock:
                self._under_way -= 1
        return list(dict.fromkeys(str(address[0]) for *_, address in entries))
