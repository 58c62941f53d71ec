"""Who may send requests, and how many: tokens, size, time, and requests in progress of each user.

A request's token is checked again with every piece that is sent, and every second otherwise: a revoked or expired
token gets nothing more.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.lowlevel
import anyio.to_thread
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ava_audit.errors import AuditError
from ava_server.config.tokens import Token, TokenFile
from ava_server.core.awake_clock import AwakeClock
from ava_server.core.errors import AvaError, BadInput, ConfigError, Refused
from ava_server.mcp_server.app import CARRIED_OUT, CARRY_OUT_S, OF_REQUEST
from ava_server.web.http_connection import CONNECTION
from ava_server.web.site import VISITOR, Visitor

if TYPE_CHECKING:
    from pydantic import ValidationError
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ava_server.http.http_settings import Reach
    from ava_server.web.asgi import Pages


_NONE_GIVEN = "No token given. Send the one that `ava token create` showed in the header `Authorization: Bearer TOKEN`."
_UNKNOWN = (
    "Unknown token: it is misspelt, revoked or expired. The person who runs the server can create another one with"
    " `ava token create`."
)


def unauthorized(*, has_header: bool, has_token: bool = True) -> Response:
    """Return the 401 for a request without a valid token.

    `has_header`: it had an Authorization header, so the challenge has the error. `has_token`: that was a bearer token.
    """
    sentence = _UNKNOWN if has_token else _NONE_GIVEN
    challenge = 'Bearer realm="ava"'
    if has_header:
        challenge += f', error="invalid_token", error_description="{sentence}"'
    return error_response(401, sentence, {"WWW-Authenticate": challenge}, error="invalid_token")


def forbidden(token: Token, token_scope: str) -> Response:
    first_scope, *_ = token_scope.split()
    sentence = (
        f"The token lacks the scope {token_scope} (it has {', '.join(token.scopes)}). The person who runs the server"
        f" can create one that has it: ava token create NAME --user {token.user} --scope {first_scope}"
    )
    challenge = f'Bearer realm="ava", error="insufficient_scope", scope="{first_scope}", error_description="{sentence}"'
    return error_response(403, sentence, {"WWW-Authenticate": challenge}, error="insufficient_scope")


def too_many(sentence: str, again_s: int) -> Response:
    """Return the 429 for a user at a limit; `again_s` is the Retry-After in seconds."""
    return error_response(429, sentence, {"Retry-After": str(again_s)}, error="too many")


def error_response(
    status: int, sentence: str, headers: dict[str, str] | None = None, *, error: str = "refused"
) -> Response:
    body = json.dumps({"error": error, "error_description": sentence})
    common = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(body, status, headers={**common, **(headers or {})}, media_type="application/json")


def refusal(error: AvaError | AuditError) -> Response:
    """Return the answer for an error: 400 for what cannot be meant, 409 for what may not be done, else 503."""
    if isinstance(error, BadInput):
        return error_response(400, str(error))
    if isinstance(error, Refused):
        return error_response(409, str(error))
    return error_response(503, str(error))


async def respond(
    scope: Scope,
    receive: Receive,
    send: Send,
    token_scope: str,
    answer: Callable[[Token, Request], Awaitable[Response]],
) -> None:
    """Answer a request whose token has a scope; an error of Ava becomes a refusal."""
    token: Token = scope[OF_REQUEST]
    try:
        if token_scope in token.scopes:
            response = await answer(token, Request(scope, receive))
        else:
            response = forbidden(token, token_scope)
    except (AvaError, AuditError) as error:
        response = refusal(error)
    await response(scope, receive, send)


def json_response(body: Any, status: int = 200) -> Response:
    """Return JSON that no cache may keep."""
    return JSONResponse(body, status, headers={"Cache-Control": "no-store"})


def invalid_body(wrong: ValidationError, advice: str) -> BadInput:
    first = wrong.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the body"
    return BadInput(f"{where}: {first['msg']}; {advice}")


log = logging.getLogger("ava.http")
BODY_WITHIN_S = 30.0
"""Seconds a client may take to send a request's body."""
SKIP_BYTES = 64 * 1024
"""How much of an unread body is read before an answer."""
SKIP_WITHIN_S = 1.0
"""Seconds for which an unread body is read before an answer."""
SEND_WITHIN_S = 60.0
"""Seconds a client may leave a piece of an answer unread."""
LOOK_EVERY_S = 1.0
"""Seconds between token checks of requests to which nothing is sent."""
CALLS_OF_USER = 100
"""Calls in progress per user: a twentieth of all connections."""
STREAMS_OF_USER = 200
"""Open streams per user: a tenth of all connections."""
_LISTEN = "subscriptions/listen"


class ConnectionInfo(Protocol):
    """A connection, as far as a request needs it."""

    def abort(self) -> None: ...

    def take_body(self) -> bytes | None:
        """Return the unread body of a request that has arrived completely; None if it has not, or was read."""
        ...

    @property
    def keeps_up(self) -> bool:
        """Whether its client reads what it gets, so that sending does not wait."""
        ...

    async def send_whole(self, send: Send, start: Message, body: Message) -> None:
        """Send the head of an answer and its body in one piece, to a client that keeps up."""
        ...


@dataclass(eq=False)
class RequestLimits:
    """Requests in progress: calls, which may finish at shutdown, and streams, which only listen."""

    ending: bool = False
    _clock: AwakeClock = field(default_factory=AwakeClock)
    _last_s: float = 0.0
    _open: set[RequestInProgress] = field(default_factory=set["RequestInProgress"])
    _of_user: Counter[tuple[str, bool]] = field(default_factory=Counter[tuple[str, bool]])
    _less: anyio.Event = field(default_factory=anyio.Event)

    def too_many(self, user: str, *, listens: bool) -> str | None:
        most = STREAMS_OF_USER if listens else CALLS_OF_USER
        if self._of_user[user, listens] < most:
            return None
        what = "streams are open" if listens else "requests are being answered"
        whose = user or "visitors without a session"
        return f"{most} {what} for {whose}, which is the limit. Try again when one has ended."

    def idle_s(self) -> float:
        """Return for how many seconds nothing was asked; to be called every second."""
        now_s = self._clock.now_s()
        if self._open:
            return 0.0
        return now_s - self._last_s

    def take(self, request: RequestInProgress) -> None:
        self._open.add(request)
        self._of_user[request.key] += 1

    def give_back(self, request: RequestInProgress) -> None:
        self._open.discard(request)
        self._last_s = self._clock.now_s()
        self._of_user[request.key] -= 1
        if not self._of_user[request.key]:
            del self._of_user[request.key]
        self._less.set()
        self._less = anyio.Event()

    async def streams_ended(self) -> None:
        while any(request.is_told for request in self._open):
            await self._less.wait()

    def end_listening(self) -> None:
        """End the streams, which do not end by themselves."""
        self.ending = True
        for request in list(self._open):
            if request.listens:
                request.end()

    async def empty(self) -> None:
        while any(not request.listens for request in self._open):
            await self._less.wait()

    async def watch_tokens(self, more: Callable[[], Awaitable[None]]) -> None:
        """Every second, end requests whose token is no longer valid, and call `more`. Runs until cancelled."""
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            for request in list(self._open):
                request.check_token()
            await more()


class RequestInProgress:
    """One request with its deadlines for sending its body and for reading the answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: RequestLimits) -> None:
        self.status = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limits = limits
        self._until = anyio.current_time() + BODY_WITHIN_S
        self._whole = self._reading = self._too_slow = self._ended = self._rejected = self._settled = False
        self._start: Message | None = None
        headers = Headers(scope=scope)
        method = headers.get("mcp-method", "")
        self._outlives = method == "tools/call" and headers.get("mcp-name") in CARRIED_OUT  # of the stateless era
        self.is_told = scope["method"] == "POST" and method == _LISTEN
        self.listens = scope["method"] == "GET" or self.is_told
        self._counts: Callable[[], bool] = lambda: True
        self._user = ""
        self._line = connection_of(scope)
        self._answering = anyio.CancelScope()
        self._waiting: anyio.CancelScope | None = None

    @property
    def key(self) -> tuple[str, bool]:
        return self._user, self.listens

    async def answered(self, app: ASGIApp, user: str, counts: Callable[[], bool]) -> None:
        """Answer it completely, even if the app fails, for a `user` (empty: not signed in) who still `counts`."""
        self._user, self._counts = user, counts
        self._limits.take(self)
        try:
            with self._answering:
                await app(self._scope, self.receive, self.send)
        finally:
            self._limits.give_back(self)
        if self.status:
            if not self._ended:  # a stream that was told to end
                await self._hand_on({"type": "http.response.body", "body": b"", "more_body": False})
        elif self._rejected:
            await unauthorized(has_header=True)(self._scope, self._receive, self._hand_on)
        elif self._too_slow:
            late = error_response(
                408, f"The request body did not arrive within {BODY_WITHIN_S:.0f} s.", {"Connection": "close"}
            )
            await late(self._scope, self._receive, self._hand_on)

    def check_token(self) -> None:
        """End it if its token is no longer valid, unless a whole answer is on its way."""
        if not self._rejected and not self._settled and not self._counts():
            self._rejected = True
            self._answering.cancel()

    def end(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def receive(self) -> Message:
        """Return the next piece of the request, or a disconnect when the client is too slow or must leave."""
        if self._whole:
            return await self._gone()
        self._too_slow = self._reading = True
        with anyio.move_on_at(self._until):
            message = await self._receive()
            self._too_slow = self._reading = False
            if message["type"] == "http.disconnect" and self._line is not None:
                body = self._line.take_body()
                if body:
                    message = {"type": "http.request", "body": body}  # the client sent all of it before it left
            if message["type"] != "http.disconnect":
                self._whole = not message.get("more_body", False)
                return message
        # The client is too slow or disconnected in the middle: half a request is not handled.
        self._whole = True
        self._answering.cancel()
        await anyio.lowlevel.checkpoint_if_cancelled()
        return {"type": "http.disconnect"}

    async def _gone(self) -> Message:
        if not self.listens:
            message = await self._receive()
            if self._outlives:
                await anyio.sleep(CARRY_OUT_S)  # the answer, which nobody reads, mostly ends this
            return message
        if self._limits.ending:
            return {"type": "http.disconnect"}
        with anyio.CancelScope() as self._waiting:
            return await self._receive()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a piece of the answer, if the token is still valid. Raises TimeoutError if the client does not read.

        The headers of a whole answer wait for its body: both are sent, or neither, and the client gets a 401.
        """
        if message["type"] == "http.response.start" and "content-length" in Headers(raw=message["headers"]):
            self._start = message
            return
        self.check_token()
        if self._rejected:
            await anyio.lowlevel.checkpoint_if_cancelled()
            return
        start, self._start = self._start, None
        if start is not None:
            self._settled = True
        await self._hand_on(message, start)

    async def _hand_on(self, message: Message, start: Message | None = None) -> None:
        """Send a piece of the answer; before the first piece of its body, its `start`, if that has waited."""
        head = start or message
        if head["type"] == "http.response.start":
            if not self._whole and not self._reading:
                await self._skip_rest()
            self.status = head["status"]
        if message["type"] == "http.response.body":
            if self._ended:
                return
            self._ended = not message.get("more_body", False)
        if self._line is not None and self._line.keeps_up:
            if start is not None:
                await self._line.send_whole(self._send, start, message)
            else:
                await self._send(message)
            return
        with anyio.fail_after(SEND_WITHIN_S):
            if start is not None:
                await self._send(start)
            await self._send(message)

    async def _skip_rest(self) -> None:
        """Read a small body to its end: proxies may lose an earlier answer; not where the client asks (`Expect`)."""
        if "expect" in Headers(scope=self._scope):
            return
        size = 0
        with anyio.move_on_after(SKIP_WITHIN_S):
            while not self._whole and size < SKIP_BYTES:
                message = await self._receive()
                size += len(message.get("body", b""))
                self._whole = not message.get("more_body", False)

    def abort(self) -> None:
        """Drop the connection without waiting for what was written to it."""
        if self._line is not None:
            self._line.abort()


def connection_of(scope: Scope) -> ConnectionInfo | None:
    connection: ConnectionInfo | None = scope.get("state", {}).get(CONNECTION)
    return connection


access_log = logging.getLogger("ava.access")
HEADER_BYTES = 32 * 1024
HEALTH = "/healthz"
"""Whether the server is ready for requests."""
LIVE = "/livez"
"""Whether the server lives."""
_AGAIN_S = 5


class Readiness(Protocol):
    """Says whether the server is ready."""

    def why_not_ready(self) -> str | None:
        """Return why load balancers should send requests elsewhere; None if they need not."""

    def why_not_serving(self) -> str | None:
        """Return why the server shows no pages; None when it does."""


class Authentication:
    """ASGI middleware that lets authenticated requests through to `app`.

    `readiness` says why the server is not ready. `pages` answers browsers, which have a session instead of a token.
    """

    def __init__(
        self,
        app: ASGIApp,
        reach: Reach,
        tokens: TokenFile,
        limits: RequestLimits,
        readiness: Readiness,
        pages: Pages | None,
    ) -> None:
        self._app = AuthContextMiddleware(app)
        self._reach = reach
        self._tokens = tokens
        self._limits = limits
        self._readiness = readiness
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = RequestInProgress(scope, receive, send, self._limits)
        began = time.monotonic()
        token: Token | None = None
        try:
            headers = Headers(scope=scope)
            refusal = self._header_refusal(scope, headers)
            if scope["path"] in (HEALTH, LIVE):
                refusal = self._health(scope)
            elif refusal is None and self._pages is not None and self._pages.takes(scope, headers):
                await self._show(self._pages, scope, request, headers)
                return
            elif refusal is None:
                token, refusal = await self._authenticate(headers)
            if refusal is not None or token is None:
                assert refusal is not None
                await refusal(scope, request.receive, request.send)
                return
            scope[OF_REQUEST] = token
            # Binds the SDK's sessions, and the request state that clients keep, to this token.
            known = AccessToken(token="", client_id=token.id, scopes=list(token.scopes), subject=token.user)
            scope["user"] = AuthenticatedUser(known)
            sentence = self._limits.too_many(token.user, listens=request.listens)
            if sentence is not None:
                await too_many(sentence, _AGAIN_S)(scope, request.receive, request.send)
                return
            own_token = token
            await request.answered(self._app, token.user, lambda: self._tokens.holds(own_token))
        except TimeoutError:
            request.abort()
        finally:
            if self._reach.access_log:
                self._note(scope, request.status, began, token)

    async def _show(self, pages: Pages, scope: Scope, request: RequestInProgress, headers: Headers) -> None:
        why = self._readiness.why_not_serving()
        if why is not None:
            await error_response(503, f"Not ready: {why}. Try again in a moment.")(scope, request.receive, request.send)
            return
        visitor: Visitor | None = None
        with contextlib.suppress(ConfigError):  # the sign-in page meets the same error, and reports it
            visitor = await pages.visitor(headers)
        scope[VISITOR] = visitor
        user = ""
        if visitor is not None:
            user = visitor.user
        sentence = self._limits.too_many(user, listens=request.listens)
        if sentence is not None:
            await too_many(sentence, _AGAIN_S)(scope, request.receive, request.send)
            return

        def counts() -> bool:
            signed_in: Visitor | None = scope[VISITOR]  # None after they have signed out
            return signed_in is None or pages.still_valid(signed_in)

        await request.answered(pages, user, counts)

    def _header_refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return a refusal for a wrong Host, a foreign Origin, or headers that could be smuggled; else None."""
        size = 0
        names: set[bytes] = set()
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            names.add(name)
        if size > HEADER_BYTES:
            return error_response(431, f"The headers are longer than {HEADER_BYTES:,} bytes.", {"Connection": "close"})
        if {b"transfer-encoding", b"content-length"} <= names:
            # If a proxy went by one header and this server by the other, the rest of the body would be read as another
            # request (smuggling).
            return error_response(400, "Send Content-Length or Transfer-Encoding, not both.", {"Connection": "close"})
        hosts = headers.getlist("host")
        from_proxy = self._reach.trusts(_peer(scope))
        if from_proxy:
            forwarded_host = _last(headers, "x-forwarded-host")
            if forwarded_host:
                hosts = [forwarded_host]
        if len(hosts) != 1 or not self._reach.allows_host(hosts[0]):
            return error_response(
                421, "Unknown host name (Host header). The person who runs the server can set it with --public-url."
            )
        for origin in headers.getlist("origin"):
            if not self._reach.allows_origin(origin, hosts[0]):
                return error_response(
                    403,
                    "Requests from pages of that origin are not allowed (Origin header): it must be this server's, and"
                    " the one in the Host header, which a proxy has to pass on.",
                )
        needs_https = from_proxy and self._reach.base_url.startswith("https://")
        if needs_https and _last(headers, "x-forwarded-proto").lower() == "http":
            return error_response(403, "Use https: over http the token can be read on the way.")
        return None

    async def _authenticate(self, headers: Headers) -> tuple[Token | None, Response | None]:
        """Return the token of a request, or else its refusal."""
        values = headers.getlist("authorization")
        text = ""
        if len(values) == 1:
            text = _bearer_token(values[0])
        if not text:
            return None, unauthorized(has_header=bool(values), has_token=False)
        try:
            token = self._tokens.known(text)
            if token is None and self._tokens.is_shared:  # another server may have made it in this second
                token = await anyio.to_thread.run_sync(self._tokens.find, text)
        except ConfigError as error:
            log.error("no request can be authenticated: %s", error)
            return None, error_response(503, "The tokens cannot be read. `ava token list` on the server says why.")
        if token is None:
            return None, unauthorized(has_header=True)
        return token, None

    def _health(self, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"Allow": "GET, HEAD"})
        why = None
        if scope["path"] == HEALTH:
            why = self._readiness.why_not_ready()
        if why is None:
            return json_response({"status": "ok"})
        return json_response({"status": "not ready", "why": why}, 503)

    def _note(self, scope: Scope, status: int, began: float, token: Token | None) -> None:
        headers = Headers(scope=scope)
        client = _peer(scope)
        if self._reach.trusts(client):
            client = _last(headers, "x-forwarded-for") or client
        who = "-"
        if token is not None:
            who = f"{token.user} {token.name}"
        took_ms = round((time.monotonic() - began) * 1000)
        request = ascii(f"{client[:64]} {scope['method'][:16]} {scope['path'][:80]}")[1:-1]
        access_log.info("%s %d %d ms %s", request, status, took_ms, who)


def _peer(scope: Scope) -> str:
    client: Any = scope.get("client")
    if not client:
        return ""
    return str(client[0])


def _last(headers: Headers, name: str) -> str:
    """Return the value that the nearest proxy added, which is the last one; empty without one."""
    values = ",".join(headers.getlist(name)).split(",")
    return values[-1].strip()


def _bearer_token(header: str) -> str:
    """Return the token of an Authorization header; empty if it has none."""
    kind, _, text = header.partition(" ")
    if kind.lower() != "bearer":
        return ""
    return text.strip()
