"""Limits on requests in progress: size, time, number per user, and tokens that are revoked meanwhile.

A request's token is checked again with every piece that is sent, and every second otherwise: a revoked or expired
token gets nothing more.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.lowlevel
from starlette.datastructures import Headers
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ava_server.config.tokens import Token


_NONE_GIVEN = "No token given. Send the one that `ava token create` showed in the header `Authorization: Bearer TOKEN`."
_UNKNOWN = (
    "Unknown token: it is misspelt, revoked or expired. The person who runs the server can create another one with"
    " `ava token create`."
)


def unauthorized(*, known: bool, given: bool = True) -> Response:
    """Return the 401 for a request without a valid token.

    Args:
        known: An Authorization header was sent, so the challenge says `invalid_token`.
        given: It held a bearer token.
    """
    sentence = _UNKNOWN if given else _NONE_GIVEN
    error = f', error="invalid_token", error_description="{sentence}"' if known else ""
    return says(401, sentence, {"WWW-Authenticate": f'Bearer realm="ava"{error}'}, error="invalid_token")


def forbidden(token: Token, wanted: str) -> Response:
    """Return the 403 for a token that lacks a scope."""
    sentence = (
        f"The token lacks the scope {wanted} (it has {', '.join(token.scopes)}). The person who runs the server can"
        f" create one that has it: ava token create NAME --user {token.user} --scope {wanted.split()[0]}"
    )
    challenge = (
        f'Bearer realm="ava", error="insufficient_scope", scope="{wanted.split()[0]}", error_description="{sentence}"'
    )
    return says(403, sentence, {"WWW-Authenticate": challenge}, error="insufficient_scope")


def too_many(sentence: str, again_s: int) -> Response:
    """Return the 429 for a user at a limit; `again_s` is the Retry-After in seconds."""
    return says(429, sentence, {"Retry-After": str(again_s)}, error="too many")


def says(status: int, sentence: str, headers: dict[str, str] | None = None, *, error: str = "refused") -> Response:
    """Return a JSON answer that holds one sentence."""
    body = json.dumps({"error": error, "error_description": sentence})
    return Response(
        body, status, headers={"Cache-Control": "no-store", **(headers or {})}, media_type="application/json"
    )


log = logging.getLogger("ava.http")
BODY_WITHIN_S = 30.0
"""Seconds a client may take to send a request's body."""
SEND_WITHIN_S = 60.0
"""Seconds a client may leave a piece of an answer unread."""
LOOK_EVERY_S = 1.0
"""Seconds between token checks of requests to which nothing is sent."""
CALLS_OF_USER, STREAMS_OF_USER = 100, 200
"""Calls in progress and open streams per user: a twentieth and a tenth of all connections."""
CONNECTION = "ava.connection"
"""Key of the connection in a request's state."""
_LISTEN = "subscriptions/listen"


class ConnectionInfo(Protocol):
    """A connection, as far as a request needs it."""

    def let_in(self) -> None:
        """Note that a valid token arrived on it."""
        ...

    def abort(self) -> None:
        """Drop it."""
        ...


@dataclass(eq=False)
class RequestLimits:
    """Requests in progress: calls, which may finish at shutdown, and streams, which only listen."""

    ending: bool = False
    _open: set[RequestInProgress] = field(default_factory=set["RequestInProgress"])
    _of_user: Counter[tuple[str, bool]] = field(default_factory=Counter[tuple[str, bool]])
    _less: anyio.Event = field(default_factory=anyio.Event)

    def too_many(self, user: str, *, listens: bool) -> str | None:
        """Return why a user cannot start another request now, or None."""
        most = STREAMS_OF_USER if listens else CALLS_OF_USER
        if self._of_user[user, listens] < most:
            return None
        what = "streams are open" if listens else "requests are being answered"
        return f"{most} {what} for {user}, which is the limit. Try again when one has ended."

    def take(self, request: RequestInProgress) -> None:
        """Count a request that starts."""
        self._open.add(request)
        self._of_user[request.key] += 1

    def give_back(self, request: RequestInProgress) -> None:
        """Count a request that has ended."""
        self._open.discard(request)
        self._of_user[request.key] -= 1
        if not self._of_user[request.key]:
            del self._of_user[request.key]
        self._less.set()
        self._less = anyio.Event()

    async def streams_ended(self) -> None:
        """Wait until the streams that were told to end have ended."""
        while any(request.is_told for request in self._open):
            await self._less.wait()

    def end_listening(self) -> None:
        """End the streams: they would stay open for ever."""
        self.ending = True
        for request in list(self._open):
            if request.listens:
                request.end()

    async def empty(self) -> None:
        """Wait until no call is in progress."""
        while any(not request.listens for request in self._open):
            await self._less.wait()

    async def watch_tokens(self, more: Callable[[], Awaitable[None]]) -> None:
        """End requests whose token is no longer valid. Runs until cancelled.

        Args:
            more: Called just as often.
        """
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
        self._whole = self._too_slow = self._ended = self._rejected = False
        method = Headers(scope=scope).get("mcp-method", "")
        self.is_told = scope["method"] == "POST" and method == _LISTEN
        self.listens = scope["method"] == "GET" or self.is_told
        self._counts: Callable[[], bool] = lambda: True
        self._user = ""
        self._answering = anyio.CancelScope()
        self._waiting: anyio.CancelScope | None = None

    @property
    def key(self) -> tuple[str, bool]:
        """User and kind, by which it is counted."""
        return self._user, self.listens

    async def answered(self, app: ASGIApp, token: Token, counts: Callable[[], bool]) -> None:
        """Answer it with `app`, and complete the answer whatever happens.

        Args:
            app: The application that answers.
            token: The request's token.
            counts: Tells whether the token is still valid.
        """
        self._user, self._counts = token.user, counts
        self._limits.take(self)
        try:
            with self._answering:
                await app(self._scope, self.receive, self.send)
        finally:
            self._limits.give_back(self)
        if self._rejected and not self.status:
            await unauthorized(known=True)(self._scope, self._receive, self._hand_on)
        elif self._too_slow and not self.status:
            late = says(408, f"The request body did not arrive within {BODY_WITHIN_S:.0f} s.", {"Connection": "close"})
            await late(self._scope, self._receive, self._hand_on)
        elif self.status and not self._ended:  # a stream that was told to end
            await self._hand_on({"type": "http.response.body", "body": b"", "more_body": False})

    def check_token(self) -> None:
        """End it if its token is no longer valid."""
        if not self._rejected and not self._counts():
            self._rejected = True
            self._answering.cancel()

    def end(self) -> None:
        """Treat its client as disconnected."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def receive(self) -> Message:
        """Return the next piece of the request, or a disconnect when the client is too slow or must leave."""
        if self._whole:
            return await self._gone()
        self._too_slow = True
        with anyio.move_on_at(self._until):
            message = await self._receive()
            self._too_slow = False
            if message["type"] != "http.disconnect":
                self._whole = not message.get("more_body", False)
                return message
        # The client is too slow or disconnected in the middle: half a request is not handled.
        self._whole = True
        self._answering.cancel()
        await anyio.lowlevel.checkpoint_if_cancelled()
        return {"type": "http.disconnect"}

    async def _gone(self) -> Message:
        """Wait until the client disconnects."""
        if not self.listens:
            return await self._receive()
        if self._limits.ending:
            return {"type": "http.disconnect"}
        with anyio.CancelScope() as self._waiting:
            return await self._receive()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a piece of the answer, if the token is still valid.

        Raises:
            TimeoutError: The client does not read.
        """
        self.check_token()
        if self._rejected:
            await anyio.lowlevel.checkpoint_if_cancelled()
            return
        await self._hand_on(message)

    async def _hand_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            if self._ended:
                return
            self._ended = not message.get("more_body", False)
        with anyio.fail_after(SEND_WITHIN_S):
            await self._send(message)

    def abort(self) -> None:
        """Drop the connection without waiting for what was written to it."""
        if (line := line_of(self._scope)) is not None:
            line.abort()


def line_of(scope: Scope) -> ConnectionInfo | None:
    """Return the connection of a request."""
    found: Any = scope.get("state", {}).get(CONNECTION)
    line: ConnectionInfo | None = found
    return line
