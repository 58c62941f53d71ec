"""HTTP clients for model calls: one call to a client, because a pool's work grows with what is in it."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

import anyio
import anyio.to_thread
import httpx2
from httpx2._utils import get_environment_proxies  # pyright: ignore[reportPrivateUsage]

from ava_roles.net.proxies import ProxiedTransport, UnusableProxy, proxy_place, proxy_url


def environment_ways(context: ssl.SSLContext, keep_alive_s: float) -> dict[str, httpx2.AsyncBaseTransport | None]:
    """Return the transports by the pattern of URLs that take them; None goes straight.

    Which URL takes which way (NO_PROXY with its networks and wildcards, on other systems the system's own settings) is
    the HTTP client's to know. The transports are ours: they bound the way through, and name the proxy in errors.
    """
    return {
        pattern: None if proxy is None else _way(pattern.removesuffix("://"), proxy, context, keep_alive_s)
        for pattern, proxy in get_environment_proxies().items()
    }


def _way(kind: str, proxy: str, context: ssl.SSLContext, keep_alive_s: float) -> httpx2.AsyncBaseTransport:
    try:
        return ProxiedTransport(proxy_url(proxy), context, keep_alive_s)
    except (ValueError, httpx2.InvalidURL):
        name = next((name for name in (f"{kind}_proxy", f"{kind.upper()}_PROXY") if os.environ.get(name)), "the system")
        what = "a SOCKS proxy" if proxy.lower().startswith("socks") else "what is no address of a proxy"
        place = f" ({proxy_place(proxy)})" if proxy_place(proxy) else ""
        return UnusableProxy(f"{name} names {what}{place}, and only HTTP proxies can be used")


CALLS_PER_CLIENT = 1
"""A client takes 3 KiB and 0.06 ms; looking over 32 connections at each call took half of a turn's time."""
KEEP_ALIVE_S = 30.0
"""Longer than most tool calls take, so that a run's next turn finds its connection open."""

CLOSE_S = 2.0
"""Closing says good-bye to servers; the app's end does not wait for one that does not listen."""


class ClientPool:
    """Hands out clients and closes them with the app.

    Clients honour HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE, follow no redirect and repeat nothing.
    """

    def __init__(self, calls_per_client: int = CALLS_PER_CLIENT) -> None:
        """Start without a client; the first call makes one."""
        self._most = calls_per_client
        self._shards: dict[int, _Shard] = {}
        self._free: list[_Shard] = []  # those with room, the one that was used last at the end
        self._tls: ssl.SSLContext | None = None

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """Lend a client for one call: the one that was used last, so that connections are used again."""
        if self._tls is None:
            # Reading the certificates takes tens of milliseconds, once.
            tls = await anyio.to_thread.run_sync(_tls_context)
            self._tls = self._tls or tls
        await self._let_go()
        if not self._free:
            shard = _Shard(_new_client(self._tls, self._most))
            self._shards[id(shard)] = shard
            self._free.append(shard)
        shard = self._free[-1]
        shard.busy += 1
        if shard.busy == self._most:
            self._free.pop()
        try:
            yield shard.client
        finally:
            if shard.busy == self._most:
                self._free.append(shard)
            shard.busy -= 1
            shard.used_s = anyio.current_time()

    async def _let_go(self) -> None:
        """Close a client that nobody has used for so long that its connections are stale; one at a time is enough."""
        if len(self._free) < 2 or self._free[0].busy or self._free[0].used_s > anyio.current_time() - KEEP_ALIVE_S:
            return
        stale = self._free.pop(0)
        self._shards.pop(id(stale), None)
        with anyio.move_on_after(CLOSE_S, shield=True):
            await stale.client.aclose()

    @property
    def size(self) -> int:
        """How many clients there are."""
        return len(self._shards)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every client and its connections."""
        shards, self._shards, self._free = self._shards, {}, []
        with anyio.move_on_after(CLOSE_S, shield=True):
            for shard in shards.values():
                await shard.client.aclose()


@dataclass
class _Shard:
    """A client, how many calls are in it, and when the last one ended, on the event loop's clock."""

    client: httpx2.AsyncClient
    busy: int = 0
    used_s: float = 0.0


def _tls_context() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


def _new_client(tls: ssl.SSLContext, connections: int) -> httpx2.AsyncClient:
    import httpx2

    from ava_roles.net.connection import PooledTransport

    pass

    # Deadlines are the adapter's: a read timeout would never end a stream that drips.
    return httpx2.AsyncClient(
        transport=PooledTransport(tls, connections=connections, keep_alive_s=KEEP_ALIVE_S),
        trust_env=False,
        mounts=environment_ways(tls, KEEP_ALIVE_S),
        follow_redirects=False,
        timeout=None,
    )
