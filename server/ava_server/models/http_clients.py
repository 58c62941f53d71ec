"""HTTP clients for model calls: one call per client, because a pool's work grows with its connections.

The HTTP library is imported when the first client is made: a run of the offline reader needs none.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import anyio
import anyio.to_thread

from ava_roles.net.addresses import proxy_place, proxy_url

if TYPE_CHECKING:
    import httpx2

KEEP_ALIVE_S = 30.0
"""Longer than most tool calls take, so that a run's next turn finds its connection open."""
CLOSE_S = 2.0
"""Closing notifies servers; the app's end does not wait for one that does not answer."""
THIS_MACHINE = ("all://localhost", "all://127.0.0.0/8", "all://[::1]")
"""URL patterns of the HTTP client."""


@dataclass(slots=True)
class LentClient:
    """A client for one call at a time."""

    http: httpx2.AsyncClient
    used_s: float = 0.0


class ClientPool:
    """Lends clients and closes them with the app.

    A client makes one call at a time: it takes 3 KiB and 0.06 ms, and searching 32 connections at each call took half
    of a turn's time. Clients honour HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE, follow no redirect and repeat nothing.
    """

    def __init__(self) -> None:
        self._clients: dict[int, LentClient] = {}
        self._free: list[LentClient] = []  # the last used at the end

    def load(self) -> None:
        """Make what the first call needs. Blocks: reading the certificates takes tens of milliseconds."""
        if not self._clients:
            self._free.append(self._add())

    def _add(self) -> LentClient:
        import httpx2

        from ava_roles.net.transports import KeptTransport, tls_context

        tls = tls_context()
        # Deadlines belong to the caller: a read timeout would never end a stream that drips.
        http = httpx2.AsyncClient(
            transport=KeptTransport(tls, KEEP_ALIVE_S),
            trust_env=False,
            mounts=_proxy_transports(tls),
            follow_redirects=False,
            timeout=None,
        )
        client = LentClient(http)
        self._clients[id(client)] = client
        return client

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[httpx2.AsyncClient]:
        lent = await self.lend()
        try:
            yield lent.http
        finally:
            self.take_back(lent)

    async def lend(self) -> LentClient:
        """Lend a client until `take_back`: the one used last, so that connections are reused."""
        if not self._clients:
            await anyio.to_thread.run_sync(self.load)
        await self._close_stale()
        return self._free.pop() if self._free else self._add()

    def take_back(self, lent: LentClient) -> None:
        self._free.append(lent)
        lent.used_s = anyio.current_time()

    async def _close_stale(self) -> None:
        """Close a client whose connection is stale because nobody used it; one at a time is enough."""
        if len(self._free) < 2 or self._free[0].used_s > anyio.current_time() - KEEP_ALIVE_S:
            return
        stale = self._free.pop(0)
        self._clients.pop(id(stale), None)
        with anyio.move_on_after(CLOSE_S, shield=True):
            await stale.http.aclose()

    @property
    def size(self) -> int:
        return len(self._clients)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        clients, self._clients, self._free = self._clients, {}, []
        with anyio.move_on_after(CLOSE_S, shield=True):
            for each in clients.values():
                await each.http.aclose()


def _proxy_transports(tls: ssl.SSLContext) -> dict[str, httpx2.AsyncBaseTransport | None]:
    """Return the transports by URL pattern; None connects directly.

    The HTTP client decides what goes through a proxy (NO_PROXY, the system's settings). The transports are ours: they
    limit the time to connect, and name the proxy in errors. A model on this machine is never called through a proxy,
    which would look for it on its own machine.
    """
    from httpx2._utils import get_environment_proxies  # pyright: ignore[reportPrivateUsage]

    transports = {
        pattern: None if proxy is None else _proxy_transport(pattern.removesuffix("://"), proxy, tls)
        for pattern, proxy in get_environment_proxies().items()
    }
    return transports | dict.fromkeys(THIS_MACHINE)


def _proxy_transport(scheme: str, proxy: str, tls: ssl.SSLContext) -> httpx2.AsyncBaseTransport:
    import httpx2

    from ava_roles.net.transports import ProxiedTransport, UnusableProxy

    names = (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")
    variable = next((name for name in names if os.environ.get(name)), "")
    try:
        return ProxiedTransport(proxy_url(proxy), tls, KEEP_ALIVE_S, variable)
    except (ValueError, httpx2.InvalidURL):
        name = variable or "the system"
        what = "a SOCKS proxy" if proxy.lower().startswith("socks") else "an invalid proxy address"
        place = f" ({proxy_place(proxy)})" if proxy_place(proxy) else ""
        return UnusableProxy(f"{name} names {what}{place}, and only HTTP proxies can be used", variable)
