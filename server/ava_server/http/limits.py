"""The requests that are being answered: how much each may take, how many a user may have, and when they have to leave.

A token is looked at again with every piece that is sent, and every second where nothing is: what was revoked or has
expired hears nothing more.
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


_NONE_GIVEN = "Give the token that `ava token create` has shown, in the header `Authorization: Bearer TOKEN`."
_UNKNOWN = (
    "This token is not known here: it is misspelt, was revoked, or has expired. Whoever runs the server makes another"
    " one with `ava token create`."
)


def unauthorized(*, known: bool, given: bool = True) -> Response:
    """Return the answer to a request without a token that counts.

    Args:
        known: Something was given, so that the challenge says that it is none.
        given: It looked like a token.
    """
    sentence = _UNKNOWN if given else _NONE_GIVEN
    error = f', error="invalid_token", error_description="{sentence}"' if known else ""
    return says(401, sentence, {"WWW-Authenticate": f'Bearer realm="ava"{error}'}, error="invalid_token")


def forbidden(token: Token, wanted: str) -> Response:
    """Return the answer to a token that may not do this: what it takes."""
    sentence = (
        f"This takes a token of the scope {wanted}, and this one has {', '.join(token.scopes)}. Whoever runs the server"
        f" makes another one: ava token create NAME --user {token.user} --scope {wanted.split()[0]}"
    )
    challenge = (
        f'Bearer realm="ava", error="insufficient_scope", scope="{wanted.split()[0]}", error_description="{sentence}"'
    )
    return says(403, sentence, {"WWW-Authenticate": challenge}, error="insufficient_scope")


def too_many(sentence: str, again_s: int) -> Response:
    """Return the answer to a user who has as much as one may have."""
    return says(429, sentence, {"Retry-After": str(again_s)}, error="too many")


def says(status: int, sentence: str, headers: dict[str, str] | None = None, *, error: str = "refused") -> Response:
    """Return an answer that is one sentence."""
    body = json.dumps({"error": error, "error_description": sentence})
    return Response(
        body, status, headers={"Cache-Control": "no-store", **(headers or {})}, media_type="application/json"
    )


log = logging.getLogger("ava.http")
BODY_WITHIN_S = 30.0
"""How long a client may take to send a request's body."""
SEND_WITHIN_S = 60.0
"""How long it may leave a piece of an answer unread."""
LOOK_EVERY_S = 1.0
"""How often the tokens of requests are looked at that are sent nothing."""
CALLS_OF_USER, STREAMS_OF_USER = 100, 200
"""How many calls of one user may be in hand, and how many streams open: a twentieth and a tenth of all connections."""
CONNECTION = "ava.connection"
"""Under this name a request's state has its connection."""
_LISTEN = "subscriptions/listen"


class ConnectionInfo(Protocol):
    """What a request knows of its connection."""

    def let_in(self) -> None:
        """Note that a token that counts has come over it."""
        ...

    def abort(self) -> None:
        """Break it off."""
        ...


@dataclass(eq=False)
class RequestLimits:
    """The requests that are being answered: calls in hand, which may finish, and streams, which only listen."""

    ending: bool = False
    _open: set[RequestInProgress] = field(default_factory=set["RequestInProgress"])
    _of_user: Counter[tuple[str, bool]] = field(default_factory=Counter[tuple[str, bool]])
    _less: anyio.Event = field(default_factory=anyio.Event)

    def too_many(self, user: str, *, listens: bool) -> str | None:
        """Return why a user may have no other request now, or None."""
        most = STREAMS_OF_USER if listens else CALLS_OF_USER
        if self._of_user[user, listens] < most:
            return None
        what = "streams are open" if listens else "requests are being answered"
        return f"{most} {what} for {user} already, and that is what one user may have: try again when one is over."

    def take(self, request: RequestInProgress) -> None:
        """Note a request."""
        self._open.add(request)
        self._of_user[request.key] += 1

    def give_back(self, request: RequestInProgress) -> None:
        """Note that it is over."""
        self._open.discard(request)
        self._of_user[request.key] -= 1
        if not self._of_user[request.key]:
            del self._of_user[request.key]
        self._less.set()
        self._less = anyio.Event()

    async def told(self) -> None:
        """Wait until the streams are over that were told that they end."""
        while any(request.is_told for request in self._open):
            await self._less.wait()

    def end_listening(self) -> None:
        """Send those away that only listen: they would stay for ever."""
        self.ending = True
        for request in list(self._open):
            if request.listens:
                request.end()

    async def empty(self) -> None:
        """Wait until no call is in hand any more."""
        while any(not request.listens for request in self._open):
            await self._less.wait()

    async def look(self, more: Callable[[], Awaitable[None]]) -> None:
        """Send those away whose token does not count any more, until cancelled.

        Args:
            more: What else is looked at as often.
        """
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            for request in list(self._open):
                request.look()
            await more()


class RequestInProgress:
    """One request with its deadlines: what it still may send, and how long its answer may stay unread."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, hands: RequestLimits) -> None:
        self.status = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._hands = hands
        self._until = anyio.current_time() + BODY_WITHIN_S
        self._whole = self._too_slow = self._ended = self._turned_out = False
        method = Headers(scope=scope).get("mcp-method", "")
        self.is_told = scope["method"] == "POST" and method == _LISTEN
        self.listens = scope["method"] == "GET" or self.is_told
        self._counts: Callable[[], bool] = lambda: True
        self._user = ""
        self._answering = anyio.CancelScope()
        self._waiting: anyio.CancelScope | None = None

    @property
    def key(self) -> tuple[str, bool]:
        """What it is counted under."""
        return self._user, self.listens

    async def answered(self, app: ASGIApp, token: Token, counts: Callable[[], bool]) -> None:
        """Have it answered; whatever comes of it, its answer is brought to an end.

        Args:
            app: What answers it.
            token: Its token.
            counts: Tells whether the token still counts.
        """
        self._user, self._counts = token.user, counts
        self._hands.take(self)
        try:
            with self._answering:
                await app(self._scope, self.receive, self.send)
        finally:
            self._hands.give_back(self)
        if self._turned_out and not self.status:
            await unauthorized(known=True)(self._scope, self._receive, self._hand_on)
        elif self._too_slow and not self.status:
            late = says(408, f"The request did not come within {BODY_WITHIN_S:.0f} s.", {"Connection": "close"})
            await late(self._scope, self._receive, self._hand_on)
        elif self.status and not self._ended:  # a stream that was told to end
            await self._hand_on({"type": "http.response.body", "body": b"", "more_body": False})

    def look(self) -> None:
        """Turn it out where its token does not count any more."""
        if not self._turned_out and not self._counts():
            self._turned_out = True
            self._answering.cancel()

    def end(self) -> None:
        """Have its client count as gone."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def receive(self) -> Message:
        """Return the next piece of the request; a client that is too slow, or has to leave, counts as gone."""
        if self._whole:
            return await self._gone()
        self._too_slow = True
        with anyio.move_on_at(self._until):
            message = await self._receive()
            self._too_slow = False
            if message["type"] != "http.disconnect":
                self._whole = not message.get("more_body", False)
                return message
        # It is too slow, or went in the middle of its request: nothing is made of half of one.
        self._whole = True
        self._answering.cancel()
        await anyio.lowlevel.checkpoint_if_cancelled()
        return {"type": "http.disconnect"}

    async def _gone(self) -> Message:
        """Wait until the client has gone."""
        if not self.listens:
            return await self._receive()
        if self._hands.ending:
            return {"type": "http.disconnect"}
        with anyio.CancelScope() as self._waiting:
            return await self._receive()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a piece of the answer, where the token still counts.

        Raises:
            TimeoutError: Nobody reads it.
        """
        self.look()
        if self._turned_out:
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
        """Break the connection off: what was written for it is not waited for."""
        if (line := line_of(self._scope)) is not None:
            line.abort()


def line_of(scope: Scope) -> ConnectionInfo | None:
    """Return the connection that a request came over."""
    found: Any = scope.get("state", {}).get(CONNECTION)
    line: ConnectionInfo | None = found
    return line
