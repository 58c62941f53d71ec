"""The door of the HTTP server: who is let in, how much and how slowly they may send, and when they have to leave.

Everything that a request says of itself is checked before anything acts on it: the name that it calls us by, the page
that it comes from, its token. No token is in any line that is written.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from ava_server.app import OF_REQUEST
from ava_server.errors import ConfigError
from ava_server.tokens import Token, Tokens

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ava_server.http_settings import Reach

log = logging.getLogger("ava.http")
access = logging.getLogger("ava.access")
HEADER_BYTES = 32 * 1024
BODY_WITHIN_S = 30.0
"""How long a client may take to send a request's body."""
SEND_WITHIN_S = 60.0
"""How long it may leave a piece of an answer unread."""
HEALTH = "/healthz"
ABORT = "ava.abort"
"""Under this name a request's state has what breaks its connection off."""
_LISTEN = "subscriptions/listen"
_NONE_GIVEN = "Give the token that `ava token create` has shown, in the header `Authorization: Bearer TOKEN`."
_UNKNOWN = (
    "This token is not known here: it is misspelt, was revoked, or has expired. Whoever runs the server makes another"
    " one with `ava token create`."
)


@dataclass
class Hands:
    """The requests that are being answered: those in hand, which may finish, and those that only listen."""

    calls: int = 0
    ending: bool = False
    listening: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])
    _empty: anyio.Event = field(default_factory=anyio.Event)

    def end_listening(self) -> None:
        """Send those away that only listen: they would stay for ever."""
        self.ending = True
        for scope in self.listening:
            scope.cancel()
        if self.calls == 0:
            self._empty.set()

    def take(self) -> None:
        """Note a call."""
        self.calls += 1

    def give_back(self) -> None:
        """Note that it is over."""
        self.calls -= 1
        if self.ending and self.calls == 0:
            self._empty.set()

    async def empty(self) -> None:
        """Wait until no call is in hand any more; only once the end has begun."""
        await self._empty.wait()


class Guard:
    """Lets requests in.

    Args:
        app: What answers those that are let in.
        reach: How the server may be reached.
        tokens: The tokens as they are.
        hands: The requests in hand.
        ready: Says why the server cannot do its work now, or None.
    """

    def __init__(
        self, app: ASGIApp, reach: Reach, tokens: Tokens, hands: Hands, ready: Callable[[], str | None]
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
        request = _Request(scope, receive, send, self._hands)
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
            await request.answered(self._app)
        except TimeoutError:
            request.abort()
        finally:
            if self._reach.access_log:
                self._note(scope, request.status, began, token)

    def _refused_by_name(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse a request that calls another server, or comes from a page of another one."""
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            return _says(431, f"The headers are longer than {HEADER_BYTES:,} bytes.", {"Connection": "close"})
        hosts = headers.getlist("host")
        proxied = self._reach.trusts(_peer(scope))
        if proxied and (forwarded := _last(headers, "x-forwarded-host")) is not None:
            hosts = [forwarded]
        if len(hosts) != 1 or not self._reach.allows_host(hosts[0]):
            return _says(
                421, "This server is not known by that name (Host header); whoever runs it can name it: --public-url."
            )
        if any(not self._reach.allows_origin(origin) for origin in headers.getlist("origin")):
            return _says(403, "Pages of that origin may not ask this server (Origin header).")
        secure = self._reach.public_url is not None and self._reach.public_url.startswith("https://")
        if proxied and secure and _last(headers, "x-forwarded-proto") == "http":
            return _says(403, "Use https: over http everybody on the way reads the token.")
        return None

    def _let_in(self, headers: Headers) -> tuple[Token | None, Response | None]:
        """Return the token of a request, or what refuses it."""
        given = headers.getlist("authorization")
        kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if kind.lower() != "bearer" or not text.strip():
            return None, _unauthorized(_NONE_GIVEN, known=bool(given))
        try:
            token = self._tokens.find(text.strip())
        except ConfigError as error:
            log.error("nobody is let in: %s", error)
            return None, _says(503, "The tokens cannot be read; `ava token list` tells a person on the server why.")
        return (token, None) if token is not None else (None, _unauthorized(_UNKNOWN, known=True))

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
        access.info("%s %d %d ms %s", shown, status, took_ms, who)


class _Request:
    """One request with its deadlines: what it still may send, and how long its answer may stay unread."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, hands: Hands) -> None:
        self.status = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._hands = hands
        self._until = anyio.current_time() + BODY_WITHIN_S
        self._whole = self._too_slow = self._ended = False
        method = Headers(scope=scope).get("mcp-method", "")
        self._listens = scope["method"] == "GET" or method == _LISTEN

    async def answered(self, app: ASGIApp) -> None:
        """Have it answered; whatever comes of it, its answer is brought to an end."""
        if not self._listens:
            self._hands.take()
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            if not self._too_slow:
                raise
        finally:
            if not self._listens:
                self._hands.give_back()
        if self._too_slow and not self.status:
            late = _says(408, f"The request did not come within {BODY_WITHIN_S:.0f} s.", {"Connection": "close"})
            self._too_slow = False
            await late(self._scope, self._receive, self.send)
        elif self.status and not self._ended:  # a stream that was told to end
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive(self) -> Message:
        """Return the next piece of the request; a client that is too slow, or has to leave, counts as gone."""
        if self._whole:
            return await self._gone()
        with anyio.move_on_at(self._until):
            message = await self._receive()
            self._whole = message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message
        self._too_slow = self._whole = True
        return {"type": "http.disconnect"}

    async def _gone(self) -> Message:
        """Wait until the client has gone."""
        if not self._listens:
            return await self._receive()
        if self._hands.ending:
            return {"type": "http.disconnect"}
        with anyio.CancelScope() as waiting:
            self._hands.listening.add(waiting)
            try:
                return await self._receive()
            finally:
                self._hands.listening.discard(waiting)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a piece of the answer.

        Raises:
            TimeoutError: Nobody reads it.
        """
        if self._too_slow:  # it is told why in our words
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            if self._ended:
                return
            self._ended = not message.get("more_body", False)
        with anyio.fail_after(SEND_WITHIN_S):
            await self._send(message)

    def abort(self) -> None:
        """Break the connection off: what was written for it is not waited for."""
        abort: Callable[[], None] | None = self._scope.get("state", {}).get(ABORT)
        if abort is not None:
            abort()


def _peer(scope: Scope) -> str:
    client: Any = scope.get("client")
    return str(client[0]) if client else ""


def _last(headers: Headers, name: str) -> str | None:
    """Return what the nearest proxy has said: what others said before it stands first."""
    values = ",".join(headers.getlist(name)).split(",")
    return values[-1].strip() or None


def _unauthorized(sentence: str, *, known: bool) -> Response:
    error = f', error="invalid_token", error_description="{sentence}"' if known else ""
    return _says(401, sentence, {"WWW-Authenticate": f'Bearer realm="ava"{error}'}, error="invalid_token")


def forbidden(token: Token, wanted: str) -> Response:
    """Return the answer to a token that may not do this: what it takes."""
    sentence = (
        f"This takes a token of the scope {wanted}, and this one has {', '.join(token.scopes)}. Whoever runs the server"
        f" makes another one: ava token create NAME --user {token.user} --scope {wanted.split()[0]}"
    )
    challenge = (
        f'Bearer realm="ava", error="insufficient_scope", scope="{wanted.split()[0]}", error_description="{sentence}"'
    )
    return _says(403, sentence, {"WWW-Authenticate": challenge}, error="insufficient_scope")


def _says(status: int, sentence: str, headers: dict[str, str] | None = None, *, error: str = "refused") -> Response:
    body = json.dumps({"error": error, "error_description": sentence})
    return Response(
        body, status, headers={"Cache-Control": "no-store", **(headers or {})}, media_type="application/json"
    )
