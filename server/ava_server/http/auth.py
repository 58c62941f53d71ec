"""Authentication of HTTP requests: host name, origin and bearer token are checked before anything else happens.

No token is ever written to a log line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from ava_server.config.tokens import Token, Tokens
from ava_server.core.errors import ConfigError
from ava_server.http.limits import RequestInProgress, RequestLimits, line_of, says, too_many, unauthorized
from ava_server.mcp_server.app import OF_REQUEST

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ava_server.http.settings import Reach

log = logging.getLogger("ava.http")
access_log = logging.getLogger("ava.access")
HEADER_BYTES = 32 * 1024
HEALTH = "/healthz"
_AGAIN_S = 5


class Authentication:
    """ASGI middleware that lets authenticated requests through.

    Args:
        app: Answers authenticated requests.
        reach: How the server may be reached.
        tokens: The tokens that exist now.
        limits: The requests in progress.
        ready: Returns why the server is not ready, or None.
    """

    def __init__(
        self, app: ASGIApp, reach: Reach, tokens: Tokens, limits: RequestLimits, ready: Callable[[], str | None]
    ) -> None:
        self._app = AuthContextMiddleware(app)
        self._reach = reach
        self._tokens = tokens
        self._limits = limits
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        request = RequestInProgress(scope, receive, send, self._limits)
        began = time.monotonic()
        token: Token | None = None
        try:
            headers = Headers(scope=scope)
            refusal = self._refused_by_name(scope, headers)
            if scope["path"] == HEALTH:
                refusal = self._health(scope)
            elif refusal is None:
                token, refusal = self._let_in(headers)
            if refusal is not None or token is None:
                assert refusal is not None
                await refusal(scope, request.receive, request.send)
                return
            scope[OF_REQUEST] = token
            # Binds the SDK's sessions, and the request state that clients keep, to this token.
            known = AccessToken(token="", client_id=token.id, scopes=list(token.scopes), subject=token.user)
            scope["user"] = AuthenticatedUser(known)
            if (line := line_of(scope)) is not None:
                line.let_in()
            if (sentence := self._limits.too_many(token.user, listens=request.listens)) is not None:
                await too_many(sentence, _AGAIN_S)(scope, request.receive, request.send)
                return
            shown = token
            await request.answered(self._app, token, lambda: self._tokens.holds(shown))
        except TimeoutError:
            request.abort()
        finally:
            if self._reach.access_log:
                self._note(scope, request.status, began, token)

    def _refused_by_name(self, scope: Scope, headers: Headers) -> Response | None:
        """Return a refusal for a wrong Host, a foreign Origin, or headers that could be smuggled; else None."""
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            return says(431, f"The headers are longer than {HEADER_BYTES:,} bytes.", {"Connection": "close"})
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy may have used one and we the other: the rest would be taken for another request (smuggling).
            return says(400, "Send Content-Length or Transfer-Encoding, not both.", {"Connection": "close"})
        hosts = headers.getlist("host")
        proxied = self._reach.trusts(_peer(scope))
        if proxied and (forwarded := _last(headers, "x-forwarded-host")) is not None:
            hosts = [forwarded]
        if len(hosts) != 1 or not self._reach.allows_host(hosts[0]):
            return says(
                421, "Unknown host name (Host header). The person who runs the server can set it with --public-url."
            )
        if any(not self._reach.allows_origin(origin) for origin in headers.getlist("origin")):
            return says(403, "Requests from pages of that origin are not allowed (Origin header).")
        secure = self._reach.public_url is not None and self._reach.public_url.startswith("https://")
        if proxied and secure and (_last(headers, "x-forwarded-proto") or "").lower() == "http":
            return says(403, "Use https: over http the token can be read on the way.")
        return None

    def _let_in(self, headers: Headers) -> tuple[Token | None, Response | None]:
        """Return the request's token, or the refusal."""
        given = headers.getlist("authorization")
        kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if kind.lower() != "bearer" or not text.strip():
            return None, unauthorized(known=bool(given), given=False)
        try:
            token = self._tokens.find(text.strip())
        except ConfigError as error:
            log.error("no request can be authenticated: %s", error)
            return None, says(503, "The tokens cannot be read. `ava token list` on the server says why.")
        return (token, None) if token is not None else (None, unauthorized(known=True))

    def _health(self, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"Allow": "GET, HEAD"})
        why = self._ready()
        body = {"status": "ok"} if why is None else {"status": "not ready", "why": why}
        return JSONResponse(body, status_code=200 if why is None else 503, headers={"Cache-Control": "no-store"})

    def _note(self, scope: Scope, status: int, began: float, token: Token | None) -> None:
        headers = Headers(scope=scope)
        client = _peer(scope)
        if self._reach.trusts(client):
            client = _last(headers, "x-forwarded-for") or client
        who = f"{token.user} {token.name}" if token is not None else "-"
        took_ms = round((time.monotonic() - began) * 1000)
        shown = ascii(f"{client[:64]} {scope['method'][:16]} {scope['path'][:80]}")[1:-1]
        access_log.info("%s %d %d ms %s", shown, status, took_ms, who)


def _peer(scope: Scope) -> str:
    client: Any = scope.get("client")
    return str(client[0]) if client else ""


def _last(headers: Headers, name: str) -> str | None:
    """Return the value that the nearest proxy added, which is the last one."""
    values = ",".join(headers.getlist(name)).split(",")
    return values[-1].strip() or None
