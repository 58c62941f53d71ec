"""The door of the HTTP server: who is let in, how much and how slowly they may send, and when they have to leave.

Everything that a request says of itself is checked before anything acts on it: the name that it calls us by, the page
that it comes from, its token. No token is in any line that is written.
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
credentials = logging.getLogger("ava.access")
HEADER_BYTES = 32 * 1024
HEALTH = "/healthz"
_AGAIN_S = 5


class Authentication:
    """Lets requests in.

    Args:
        app: What answers those that are let in.
        reach: How the server may be reached.
        tokens: The tokens as they are.
        hands: The requests in hand.
        ready: Says why the server cannot do its work now, or None.
    """

    def __init__(
        self, app: ASGIApp, reach: Reach, tokens: Tokens, hands: RequestLimits, ready: Callable[[], str | None]
    ) -> None:
        self._app = AuthContextMiddleware(app)
        self._reach = reach
        self._tokens = tokens
        self._hands = hands
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = RequestInProgress(scope, receive, send, self._hands)
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
            # So the SDK binds its sessions and what clients keep of questions to this very token.
            known = AccessToken(token="", client_id=token.id, scopes=list(token.scopes), subject=token.user)
            scope["user"] = AuthenticatedUser(known)
            if (line := line_of(scope)) is not None:
                line.let_in()
            if (sentence := self._hands.too_many(token.user, listens=request.listens)) is not None:
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
        """Refuse a request that calls another server, or comes from a page of another one."""
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            return says(431, f"The headers are longer than {HEADER_BYTES:,} bytes.", {"Connection": "close"})
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy may have taken the one, and we the other: what follows would be another one's request.
            return says(400, "A request has Content-Length or Transfer-Encoding, not both.", {"Connection": "close"})
        hosts = headers.getlist("host")
        proxied = self._reach.trusts(_peer(scope))
        if proxied and (forwarded := _last(headers, "x-forwarded-host")) is not None:
            hosts = [forwarded]
        if len(hosts) != 1 or not self._reach.allows_host(hosts[0]):
            return says(
                421, "This server is not known by that name (Host header); whoever runs it can name it: --public-url."
            )
        if any(not self._reach.allows_origin(origin) for origin in headers.getlist("origin")):
            return says(403, "Pages of that origin may not ask this server (Origin header).")
        secure = self._reach.public_url is not None and self._reach.public_url.startswith("https://")
        if proxied and secure and (_last(headers, "x-forwarded-proto") or "").lower() == "http":
            return says(403, "Use https: over http everybody on the way reads the token.")
        return None

    def _let_in(self, headers: Headers) -> tuple[Token | None, Response | None]:
        """Return the token of a request, or what refuses it."""
        given = headers.getlist("authorization")
        kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if kind.lower() != "bearer" or not text.strip():
            return None, unauthorized(known=bool(given), given=False)
        try:
            token = self._tokens.find(text.strip())
        except ConfigError as error:
            log.error("nobody is let in: %s", error)
            return None, says(503, "The tokens cannot be read; `ava token list` tells a person on the server why.")
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
        credentials.info("%s %d %d ms %s", shown, status, took_ms, who)


def _peer(scope: Scope) -> str:
    client: Any = scope.get("client")
    return str(client[0]) if client else ""


def _last(headers: Headers, name: str) -> str | None:
    """Return what the nearest proxy has said: what others said before it stands first."""
    values = ",".join(headers.getlist(name)).split(",")
    return values[-1].strip() or None
