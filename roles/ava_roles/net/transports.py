"""Transports for the HTTP client, which close cancelled connections: to public addresses only, and through proxies.

httpcore2 closes a connection when its TLS handshake fails, but not when the handshake is cancelled: the other side
would wait until the garbage collector runs. Import this module late: the HTTP client takes long to import.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, cast

import anyio
import anyio.abc
import httpcore2
import httpx2

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.net.addresses import is_public, proxy_place
from ava_roles.net.resolver import Resolver

_CLOSE_S = 1.0


def tls_context() -> ssl.SSLContext:
    """Return what checks servers' certificates. Blocking: to read all authorities takes tens of milliseconds, once."""
    return authorities(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def authorities(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    # as these variables of this process say
    return httpx2.create_ssl_context()


class _ClosingStream(httpcore2.AsyncNetworkStream):
    """A stream that is closed when its TLS handshake fails or is cancelled.

    The head of a request waits for its body or for the first read: one packet instead of two.
    """

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner
        self._bytes: anyio.abc.ByteReceiveStream | None = getattr(inner, "_stream", None)
        self._head = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._head:
            with suppress(httpcore2.WriteError):  # as the client does: the server may have answered already
                await self.write(b"", timeout)
        if timeout is not None or self._bytes is None:
            return await self._inner.read(max_bytes, timeout)
        try:  # without a deadline: no cancel scope and no table of errors, 2.6 KiB of each run that waits for its model
            return await self._bytes.receive(max_bytes)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise httpcore2.ReadError(error) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        head, self._head = self._head, b""
        if not head and buffer.endswith(b"\r\n\r\n"):
            self._head = buffer
        else:
            await self._inner.write(head + buffer if head else buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return _ClosingStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))
        except BaseException:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await self._inner.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


_ADDRESSES_TRIED = 4


class NetworkBackend(httpcore2.AsyncNetworkBackend):
    """Connects to any address, through `inner`; tests put their own server behind it."""

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
        error: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in (await self.addresses(host, port))[:_ADDRESSES_TRIED]:
            try:
                stream = await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
                return _ClosingStream(stream)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as failed:
                error = failed
        raise error

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class PooledTransport(httpx2.AsyncHTTPTransport):
    """The HTTP client's transport, over Ava's network backend. Raises TypeError if this httpx2 has another pool."""

    def __init__(self, context: ssl.SSLContext, backend: httpcore2.AsyncNetworkBackend) -> None:
        super().__init__(verify=context, trust_env=False)
        if type(self._pool) is not httpcore2.AsyncConnectionPool:
            raise TypeError("this version of httpx2 keeps its pool elsewhere; the guard cannot be put in place")
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            http1=True,
            http2=False,
            max_connections=1,
            max_keepalive_connections=0,
            retries=0,
            network_backend=backend,
        )


class _KeptConnection(httpcore2.AsyncConnectionPool):
    """A pool for one request at a time: it has one connection, and searches no list of them."""

    def __init__(self, context: ssl.SSLContext, keep_alive_s: float) -> None:
        super().__init__(ssl_context=context, keepalive_expiry=keep_alive_s, network_backend=NetworkBackend())
        self._connection: httpcore2.AsyncConnectionInterface | None = None

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        if request.url.scheme not in (b"http", b"https"):
            raise httpcore2.UnsupportedProtocol(f"no protocol for {request.url.scheme!r}")
        origin = request.url.origin
        connection = self._connection
        if connection is None or not _can_be_used(connection, origin):
            await self.aclose()
            self._connection = connection = self.create_connection(origin)
        return await connection.handle_async_request(request)

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await connection.aclose()


def _can_be_used(connection: httpcore2.AsyncConnectionInterface, origin: httpcore2.Origin) -> bool:
    return connection.can_handle_request(origin) and connection.is_available() and not connection.has_expired()


class KeptTransport(PooledTransport):
    """The transport of a client that makes one request at a time, and keeps its connection for the next one."""

    def __init__(self, context: ssl.SSLContext, keep_alive_s: float) -> None:
        super().__init__(context, NetworkBackend())
        self._pool = _KeptConnection(context, keep_alive_s)


class PublicNetworkBackend(NetworkBackend):
    """Connects to public addresses only: `inner` gets checked ones. Tests put their own server behind it."""

    def __init__(self, resolver: Resolver, inner: httpcore2.AsyncNetworkBackend | None = None) -> None:
        super().__init__(inner)
        self._resolver = resolver

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise AccessRefused("local sockets are not open to subagents; only public sites can be fetched")

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return a host's addresses. Raises AccessRefused: one of them is not public; ToolFailed: the name has none."""
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


VIA = "ava_proxy"
"""The response extension that names the proxy through which the response came."""
_TEMPORARY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_LOGIN = HTTPStatus.PROXY_AUTHENTICATION_REQUIRED


class ProxyRefused(httpx2.ProxyError):
    """The proxy refuses permanently: it cannot be used, requires a login, or forbids the host.

    `variable`: the environment variable that names the proxy; empty if another setting does.
    """

    def __init__(self, why: str, variable: str = "") -> None:
        super().__init__(why)
        self.variable = variable


class UnusableProxy(httpx2.AsyncBaseTransport):
    """Refuses every request: the transport for a proxy that cannot be used."""

    def __init__(self, why: str, variable: str = "") -> None:
        self._why = why
        self._variable = variable

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        raise ProxyRefused(self._why, self._variable)


class ProxiedTransport(httpx2.AsyncHTTPTransport):
    """Sends through an HTTP proxy: https by CONNECT with the host's name, http in absolute form.

    An error before the request itself could be sent is a `ProxyError` that names the proxy by host and port. The
    connect timeout covers the connection to the proxy, its answer to CONNECT, and the handshake with the host.

    It has one connection, so it sends one request at a time; it keeps it for `keep_alive_s` while it is idle. The
    proxy's address has user and password if it requires them. The TLS context is for the hosts behind the proxy, and
    for the proxy itself if its address begins with https. `variable`: the environment variable that names it, for
    errors.
    """

    def __init__(self, proxy: str, context: ssl.SSLContext, keep_alive_s: float = 0.0, variable: str = "") -> None:
        uses_tls = proxy.lower().startswith("https:")
        http_proxy = httpx2.Proxy(proxy, ssl_context=context if uses_tls else None)
        limits = httpx2.Limits(
            max_connections=1, max_keepalive_connections=1 if keep_alive_s else 0, keepalive_expiry=keep_alive_s
        )
        super().__init__(verify=context, trust_env=False, limits=limits, proxy=http_proxy)
        self._place = proxy_place(proxy)
        self._variable = variable
        self._logs_in = http_proxy.auth is not None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return the response of the host behind the proxy.

        Raises ProxyRefused: the proxy requires another login, or forbids the host; httpx2.ProxyError: it let nothing
        through this time; httpx2.ConnectError: the host's certificate is not trusted. After the last two, the request
        was not sent.
        """
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        progress = _Progress(request.url.scheme == "https", limits.get("connect"))
        request.extensions = {**request.extensions, "trace": progress.trace}
        try:
            with progress.scope:
                response = await super().handle_async_request(request)
                response.extensions = {**response.extensions, VIA: self._place}
                if response.status_code == _LOGIN:  # it is from the proxy itself
                    await response.aclose()
                    raise self._refused(_LOGIN)
                return response
        except httpx2.ProxyError as error:
            status = str(error)[:3]
            if status.isdigit():
                raise self._refused(int(status)) from None
            raise error from None
        except httpx2.TransportError as error:
            if not progress.opening or "certificate verify failed" in str(error):
                raise
            raise httpx2.ProxyError(f"the proxy {self._place} {progress.describe_failure(error)}") from None
        finally:
            if progress.opening:
                # The pool would keep one whose handshake was cancelled.
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    for connection in self._pool.connections:
                        await connection.aclose()
        raise httpx2.ProxyError(f"the proxy {self._place} did not let us through within {progress.seconds:g} s")

    def _refused(self, code: int) -> httpx2.ProxyError:
        """Return the error for a status of the proxy. Its own text is not repeated: it may quote the request."""
        if code == _LOGIN:
            answer = "asks for a user and a password"
            if self._logs_in:
                answer = "refused the user and the password"
            return ProxyRefused(f"the proxy {self._place} {answer} (HTTP {code})", self._variable)
        status = f"HTTP {code}"
        if code in set(HTTPStatus):
            status += f" {HTTPStatus(code).phrase}"
        why = f"the proxy {self._place} did not let us through ({status})"
        if 400 <= code < 500 and code not in _TEMPORARY:
            return ProxyRefused(why, self._variable)
        return httpx2.ProxyError(why)


class _Progress:
    """A request's progress by the client's trace events; after `seconds` of `opening` a connection, ends `scope`."""

    def __init__(self, tunnel: bool, seconds: float | None) -> None:
        self._opened = "proxy.start_tls.complete" if tunnel else "http11.send_request_headers.started"
        self._reached = self._is_requested = False
        self.opening = False
        self.seconds = seconds
        self.scope = anyio.CancelScope()

    async def trace(self, event: str, _info: Any) -> None:
        if event == "connection.connect_tcp.started":
            self.opening = True
            if self.seconds is not None:
                self.scope.deadline = anyio.current_time() + self.seconds
        elif event == "connection.connect_tcp.complete":
            self._reached = True
        elif event == "proxy.start_tls.started":
            self._is_requested = True
        if event == self._opened:
            self.opening = False
            self.scope.deadline = float("inf")

    def describe_failure(self, error: Exception) -> str:
        why = str(error) or type(error).__name__
        if not self._reached:
            return f"cannot be reached ({why})"
        if not self._is_requested:
            return f"hung up before it let us through ({why})"
        return f"let us through, and no safe connection was made behind it ({why})"
