"""Network backends for the HTTP client, which close cancelled connections; one connects to public addresses only.

httpcore2 closes a connection when its TLS handshake fails, but not when the handshake is cancelled: the other side
would wait until the garbage collector runs. Import this module late: the HTTP client takes long to import.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any, cast

import anyio
import anyio.to_thread
import httpcore2
import httpx2

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.net.addresses import is_public

_CLOSE_S = 1.0


class _ClosingStream(httpcore2.AsyncNetworkStream):
    """A stream that is closed when its TLS handshake fails or is cancelled."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await self._inner.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


_ADDRESSES_TRIED = 4


class NetworkBackend(httpcore2.AsyncNetworkBackend):
    """Connects to any address.

    Args:
        inner: Makes the connections; tests put their own server behind it.
    """

    def __init__(self, inner: httpcore2.AsyncNetworkBackend | None = None) -> None:
        self._inner = inner or cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return what to connect to for a host, best first: here, its name."""
        return [host]

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to a host, at the first of its addresses that answers."""
        error: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in (await self.addresses(host, port))[:_ADDRESSES_TRIED]:
            try:
                stream = await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
                return _ClosingStream(stream)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as failed:
                error = failed
        raise error

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await anyio.sleep(seconds)


class PooledTransport(httpx2.AsyncHTTPTransport):
    """The HTTP client's transport, over a network backend of Ava's.

    Raises:
        TypeError: This version of the client keeps its pool elsewhere, so that it cannot be replaced: fails closed.
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
            network_backend=backend or NetworkBackend(),
        )


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
        """Return the addresses of a host.

        Raises:
            OSError: There are none, or too many lookups are hanging.
        """
        return await anyio.to_thread.run_sync(self._look_up, host, port, abandon_on_cancel=True, limiter=self._limiter)

    def _look_up(self, host: str, port: int) -> list[str]:
        with self._lock:
            if self._under_way >= self._limit:
                raise OSError("too many name lookups are hanging; the resolver of this machine does not answer")
            self._under_way += 1
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        finally:
            with self._lock:
                self._under_way -= 1
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class PublicNetworkBackend(NetworkBackend):
    """Connects to public addresses only.

    Args:
        resolver: Looks names up.
        inner: Connects to a checked address; tests put their own server behind it.
    """

    def __init__(self, resolver: Resolver, inner: httpcore2.AsyncNetworkBackend | None = None) -> None:
        super().__init__(inner)
        self._resolver = resolver

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Refuse: no URL leads to a local socket."""
        raise AccessRefused("local sockets are not open to subagents; only public sites can be fetched")

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host.

        Raises:
            AccessRefused: One of them is not public.
            ToolFailed: The name has no address.
        """
        reason = ""
        try:
            addresses = [str(ip_address(host))]
        except ValueError:
            try:
                addresses = list(dict.fromkeys(await self._resolver(host, port)))
            except (OSError, UnicodeError) as error:
                addresses, reason = [], f" ({error})"
        if not addresses:
            raise ToolFailed(f"no address was found for {host}{reason}; check the spelling of the name")
        # One bad address refuses the name: otherwise its owner could choose which of them we get.
        if not all(map(is_public, addresses)):
            raise AccessRefused(f"{host} leads to an address that is not public; only public sites can be fetched")
        return addresses
