"""HTTP proxies: their addresses, how messages name them without their passwords, and a transport through them."""

from __future__ import annotations

import ssl
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import anyio
import httpx2

from ava_roles.placeholders import PLACEHOLDER

PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
"""The environment variables that name proxies; they count in lower case too."""
_EXAMPLE = "an address such as http://proxy.example:3128, or http://user:password@proxy.example:3128"


def proxy_url(text: str) -> str:
    """Check the address of an HTTP proxy and return it unchanged.

    Raises:
        ValueError: It is not one. The text says what is allowed and repeats nothing of the address.
    """
    parts = _parts(text)
    if PLACEHOLDER.search(text):
        raise ValueError(f"{_EXAMPLE}; a stored secret cannot be put into it")
    if parts is not None and parts.scheme.startswith("socks"):
        raise ValueError(f"{_EXAMPLE}; SOCKS is not spoken here")
    if parts is None or parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(_EXAMPLE)
    return text


def proxy_place(text: str) -> str:
    """Return a proxy's host and port, for messages; empty if it names no host."""
    parts = _parts(text if "://" in text else f"http://{text}")
    if parts is None:
        return ""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"


def proxy_password(text: str) -> str:
    """Return the password in a proxy's address, decoded; empty if there is none."""
    try:
        return unquote(urlsplit(text if "://" in text else f"http://{text}").password or "")
    except ValueError:
        return ""


def _parts(text: str) -> SplitResult | None:
    """Split an address; None if it names no host or an impossible port."""
    if not text.isprintable() or " " in text or "\\" in text:
        return None
    try:
        parts = urlsplit(text)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


VIA = "ava_proxy"
"""The response extension that names the proxy through which the response came."""
_CLOSE_S = 1.0
_TEMPORARY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_LOGIN = HTTPStatus.PROXY_AUTHENTICATION_REQUIRED


class ProxyRefused(httpx2.ProxyError):
    """The proxy refuses permanently: it cannot be used, requires a login, or forbids the host."""


class UnusableProxy(httpx2.AsyncBaseTransport):
    """Refuses every request: the transport for a proxy that cannot be used."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Refuse.

        Raises:
            ProxyRefused: Always.
        """
        raise ProxyRefused(self._why)


class ProxiedTransport(httpx2.AsyncHTTPTransport):
    """Sends through an HTTP proxy: https by CONNECT with the host's name, http in absolute form.

    An error before the request itself could be sent is a `ProxyError` that names the proxy by host and port. The
    connect timeout covers the connection to the proxy, its answer to CONNECT, and the handshake with the host.

    It has one connection, so it sends one request at a time.

    Args:
        proxy: The proxy's address, with user and password if it requires them.
        context: The TLS context for the hosts behind it, and for the proxy itself if its address begins with https.
        keep_alive_s: Seconds for which an idle connection is kept.
    """

    def __init__(self, proxy: str, context: ssl.SSLContext, keep_alive_s: float = 0.0) -> None:
        given = httpx2.Proxy(proxy, ssl_context=context if proxy.lower().startswith("https:") else None)
        one = httpx2.Limits(
            max_connections=1, max_keepalive_connections=1 if keep_alive_s else 0, keepalive_expiry=keep_alive_s
        )
        super().__init__(verify=context, trust_env=False, limits=one, proxy=given)
        self._place = proxy_place(proxy)
        self._logs_in = given.auth is not None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return the response of the host behind the proxy.

        Raises:
            ProxyRefused: The proxy requires another login, or forbids the host.
            httpx2.ProxyError: The proxy let nothing through this time; the request was not sent.
            httpx2.ConnectError: The host's certificate is not trusted; the request was not sent.
        """
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        progress = _Progress(request.url.scheme == "https", limits.get("connect"))
        request.extensions = {**request.extensions, "trace": progress.trace}
        try:
            with progress.scope:
                response = await super().handle_async_request(request)
                response.extensions = {**response.extensions, VIA: self._place}
                return await self._check_login(response)
        except httpx2.ProxyError as error:
            raise self._refused(int(str(error)[:3])) if str(error)[:3].isdigit() else error from None
        except httpx2.TransportError as error:
            if not progress.opening or "certificate verify failed" in str(error):
                raise
            raise httpx2.ProxyError(f"the proxy {self._place} {progress.describe_failure(error)}") from None
        finally:
            if progress.opening:
                await self._close_connections()
        raise httpx2.ProxyError(f"the proxy {self._place} did not let us through within {progress.seconds:g} s")

    async def _check_login(self, response: httpx2.Response) -> httpx2.Response:
        """Return a response, unless it asks for a proxy's login: then it is from the proxy itself."""
        if response.status_code != _LOGIN:
            return response
        await response.aclose()
        raise self._refused(_LOGIN)

    def _refused(self, code: int) -> httpx2.ProxyError:
        """Return the error for a status of the proxy. Its own text is not repeated: it may quote the request."""
        if code == _LOGIN:
            wants = "refused the user and the password" if self._logs_in else "asks for a user and a password"
            return ProxyRefused(f"the proxy {self._place} {wants} (HTTP {code})")
        phrase = f" {HTTPStatus(code).phrase}" if code in set(HTTPStatus) else ""
        kind = ProxyRefused if 400 <= code < 500 and code not in _TEMPORARY else httpx2.ProxyError
        return kind(f"the proxy {self._place} did not let us through (HTTP {code}{phrase})")

    async def _close_connections(self) -> None:
        """Close half-open connections: the pool would keep one whose handshake was cancelled."""
        with anyio.move_on_after(_CLOSE_S, shield=True):
            for connection in self._pool.connections:
                await connection.aclose()


class _Progress:
    """The progress of a request, from the client's trace events.

    Attributes:
        opening: A connection is being made; nothing of the request has been sent.
        seconds: The time limit for that.
        scope: Is cancelled at the time limit.
    """

    def __init__(self, tunnel: bool, seconds: float | None) -> None:
        self._opened = "proxy.start_tls.complete" if tunnel else "http11.send_request_headers.started"
        self._reached = self._asked = False
        self.opening = False
        self.seconds = seconds
        self.scope = anyio.CancelScope()

    async def trace(self, event: str, _info: Any) -> None:
        """Note a trace event."""
        if event == "connection.connect_tcp.started":
            self.opening = True
            if self.seconds is not None:
                self.scope.deadline = anyio.current_time() + self.seconds
        elif event == "connection.connect_tcp.complete":
            self._reached = True
        elif event == "proxy.start_tls.started":
            self._asked = True
        if event == self._opened:
            self.opening = False
            self.scope.deadline = float("inf")

    def describe_failure(self, error: Exception) -> str:
        """Say at which step a connection failed."""
        why = str(error) or type(error).__name__
        if not self._reached:
            return f"cannot be reached ({why})"
        if not self._asked:
            return f"hung up before it let us through ({why})"
        return f"let us through, and no safe connection was made behind it ({why})"
