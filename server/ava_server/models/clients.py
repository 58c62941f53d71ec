"""HTTP clients for model calls: few calls to a client, because a pool's work grows with what is in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    import ssl

    import httpx2

CALLS_PER_CLIENT = 32
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
        self._shards: list[_Shard] = []
        self._tls: ssl.SSLContext | None = None

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """Lend a client for one call: the first that has room, so that connections are used again."""
        if self._tls is None:
            # Reading the certificates takes tens of milliseconds, once.
            tls = await anyio.to_thread.run_sync(_tls_context)
            self._tls = self._tls or tls
        shard = next((shard for shard in self._shards if shard.busy < self._most), None)
        if shard is None:
            shard = _Shard(_new_client(self._tls, self._most))
            self._shards.append(shard)
        shard.busy += 1
        try:
            yield shard.client
        finally:
            shard.busy -= 1

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
        shards, self._shards = self._shards, []
        with anyio.move_on_after(CLOSE_S, shield=True):
            for shard in shards:
                await shard.client.aclose()


@dataclass
class _Shard:
    """A client, and how many calls are in it."""

    client: httpx2.AsyncClient
    busy: int = 0


def _tls_context() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


def _new_client(tls: ssl.SSLContext, connections: int) -> httpx2.AsyncClient:
    import httpx2

    # Deadlines are the adapter's: a read timeout would never end a stream that drips.
    return httpx2.AsyncClient(
        verify=tls,
        trust_env=True,
        follow_redirects=False,
        timeout=None,
        limits=httpx2.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEP_ALIVE_S
        ),
    )
