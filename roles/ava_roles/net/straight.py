"""Connections that leave nothing half open: who gives up a TLS handshake closes its connection, at once.

httpcore2 closes it when a handshake fails, and forgets it when one is cancelled: the other side would wait until the
garbage is collected. Imported when a client is first made, because the HTTP client is heavy.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, cast

import anyio
import httpcore2
import httpx2

_CLOSE_S = 1.0


class Closing(httpcore2.AsyncNetworkStream):
    """A stream that is closed when its handshake does not come to an end."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read."""
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write."""
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close."""
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Return the stream inside a TLS connection."""
        try:
            return await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await self._inner.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        """Tell something about the connection."""
        return self._inner.get_extra_info(info)


class _Backend(httpcore2.AsyncNetworkBackend):
    """The network, with such streams."""

    def __init__(self) -> None:
        self._inner = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect."""
        return Closing(await self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await anyio.sleep(seconds)


class PooledTransport(httpx2.AsyncHTTPTransport):
    """The HTTP client's transport over a network backend of ours.

    Raises:
        TypeError: The client was changed so that its pool is not where we would replace it: fails closed.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        backend: httpcore2.AsyncNetworkBackend | None = None,
        *,
        connections: int = 1,
        keep_alive_s: float = 0.0,
    ) -> None:
        super().__init__(verify=context, trust_env=False)
        if type(self._pool) is not httpcore2.AsyncConnectionPool:
            raise TypeError("this version of httpx2 keeps its pool elsewhere; the guard cannot be put in place")
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            http1=True,
            http2=False,
            max_connections=connections,
            max_keepalive_connections=connections if keep_alive_s else 0,
            keepalive_expiry=keep_alive_s,
            retries=0,
            network_backend=backend or _Backend(),
        )
