"""Addresses of proxies: which can be used, and how they are named without the password that may stand in them."""

from __future__ import annotations

import ssl
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import anyio
import httpx2

from ava_roles.placeholders import PLACEHOLDER

PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
"""What names proxies in an environment; the names in small letters do too."""
_EXAMPLE = "an address such as http://proxy.example:3128, or http://user:password@proxy.example:3128"


def proxy_url(text: str) -> str:
    """Return the address of an HTTP proxy as it was given.

    Raises:
        ValueError: It is none; the text says what is allowed, and shows nothing of what was given.
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
    """Return a proxy as messages name it: host and port alone; empty where it names no host."""
    parts = _parts(text if "://" in text else f"http://{text}")
    if parts is None:
        return ""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"


def proxy_password(text: str) -> str:
    """Return the password in a proxy's address, as it is; empty where there is none."""
    try:
        return unquote(urlsplit(text if "://" in text else f"http://{text}").password or "")
    except ValueError:
        return ""


def _parts(text: str) -> SplitResult | None:
    """Return an address taken apart, None where it names no host or an impossible port."""
    if not text.isprintable() or " " in text or "\\" in text:
        return None
    try:
        parts = urlsplit(text)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


VIA = "ava_proxy"
"""The extension of a response that names the proxy through which it came."""
_CLOSE_S = 1.0
_LATER = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_LOGIN = HTTPStatus.PROXY_AUTHENTICATION_REQUIRED


class ProxyRefused(httpx2.ProxyError):
    """The proxy will not do it, however often it is asked: it cannot be used, wants a login, or forbids the host."""


class UnusableProxy(httpx2.AsyncBaseTransport):
    """Stands where a proxy is named that cannot be used: only requests that would take this way fail."""

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

    An error before the request itself could be sent is a `ProxyError` that names the proxy by host and port. The time
    for connecting covers all of that: the proxy, its answer to CONNECT, and the handshake with the host behind it.

    One request at a time: it has one connection.

    Args:
        proxy: The proxy's address, with user and password if it wants them.
        context: The TLS context for the hosts behind it, and for itself where its address begins with https.
        keep_alive_s: Seconds for which a connection is kept for the next request.
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
        """Send it, and return what came from the host behind the proxy.

        Raises:
            ProxyRefused: The proxy wants another login, or forbids the host.
            httpx2.ProxyError: No way through it was found, for now; nothing was sent.
            httpx2.ConnectError: The host behind it has no certificate that is trusted; nothing was sent.
        """
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        way = _Way(request.url.scheme == "https", limits.get("connect"))
        request.extensions = {**request.extensions, "trace": way.trace}
        try:
            with way.scope:
                response = await super().handle_async_request(request)
                response.extensions = {**response.extensions, VIA: self._place}
                return await self._let_through(response)
        except httpx2.ProxyError as error:
            raise self._refused(int(str(error)[:3])) if str(error)[:3].isdigit() else error from None
        except httpx2.TransportError as error:
            if not way.opening or "certificate verify failed" in str(error):
                raise
            raise httpx2.ProxyError(f"the proxy {self._place} {way.broke_off(error)}") from None
        finally:
            if way.opening:
                await self._let_go()
        raise httpx2.ProxyError(f"the proxy {self._place} did not let us through within {way.seconds:g} s")

    async def _let_through(self, response: httpx2.Response) -> httpx2.Response:
        """Return a response, unless it is the proxy's own: no host behind it asks for a proxy's login."""
        if response.status_code != _LOGIN:
            return response
        await response.aclose()
        raise self._refused(_LOGIN)

    def _refused(self, code: int) -> httpx2.ProxyError:
        """Return what a status of the proxy means. Its own words are not repeated: they may hold what was sent."""
        if code == _LOGIN:
            wants = "refused the user and the password" if self._logs_in else "asks for a user and a password"
            return ProxyRefused(f"the proxy {self._place} {wants} (HTTP {code})")
        phrase = f" {HTTPStatus(code).phrase}" if code in set(HTTPStatus) else ""
        kind = ProxyRefused if 400 <= code < 500 and code not in _LATER else httpx2.ProxyError
        return kind(f"the proxy {self._place} did not let us through (HTTP {code}{phrase})")

    async def _let_go(self) -> None:
        """Close what is half open: who cancels a handshake behind a proxy has the pool keep its connection for good."""
        with anyio.move_on_after(_CLOSE_S, shield=True):
            for connection in self._pool.connections:
                await connection.aclose()


class _Way:
    """How far a request has come, from what the network layer tells.

    Attributes:
        opening: A connection is being made, and nothing of the request was sent.
        seconds: What that may take.
        scope: Cancelled when it takes longer.
    """

    def __init__(self, tunnel: bool, seconds: float | None) -> None:
        self._opened = "proxy.start_tls.complete" if tunnel else "http11.send_request_headers.started"
        self._reached = self._asked = False
        self.opening = False
        self.seconds = seconds
        self.scope = anyio.CancelScope()

    async def trace(self, event: str, _info: Any) -> None:
        """Take notice of a step."""
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

    def broke_off(self, error: Exception) -> str:
        """Say where the way ended."""
        why = str(error) or type(error).__name__
        if not self._reached:
            return f"cannot be reached ({why})"
        if not self._asked:
            return f"hung up before it let us through ({why})"
        return f"let us through, and no safe connection was made behind it ({why})"
