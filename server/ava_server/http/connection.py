"""One connection to the HTTP server, and how many there may be: who says nothing makes room for who comes."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from ava_server.http.limits import CONNECTION

HEADERS_WITHIN_S = 10.0
"""How long a client may take to send a request's headers."""
CONNECTIONS = 2_000
AT_ONCE = 100
"""How many are taken in one go: while they come, as many that have been ended are open still."""
_FILES_FOR_OTHERS = 512 + 3 * AT_ONCE
"""Open files that are left for the log, tools, models and commands, and for those."""


class Line:
    """All connections: how many there are, and on which nothing is being answered, the longest silent first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self._unknown: dict[Connection, None] = {}
        self._known: dict[Connection, None] = {}

    def idle(self, one: Connection) -> None:
        """Note that nothing is being answered on it, from now on."""
        self.busy(one)
        (self._known if one.known else self._unknown)[one] = None

    def busy(self, one: Connection) -> None:
        """Note that it may not be ended now."""
        self._unknown.pop(one, None)
        self._known.pop(one, None)

    def make_room(self) -> Connection | None:
        """Return which one has to go; None is none of those that are there."""
        for among in (self._unknown, self._known):
            if among:
                return next(iter(among))
        return None


class Connection(H11Protocol):
    """A connection that is broken off when a request's headers do not come in time; uvicorn would wait for ever.

    When there are too many, one goes on which nothing is being answered: one that has shown no token before one that
    has, and of those the one that has said nothing for longest. So nobody needs an address to be told apart from
    others: behind a proxy all have the same.
    """

    def __init__(
        self, line: Line, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._patience: asyncio.TimerHandle | None = None
        self._line = line
        self._gone = False
        self._idle = self.conn.our_state
        self.known = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request, where there is room or can be made."""
        super().connection_made(transport)
        self._wait()
        self._line.open += 1
        if self._line.open > self._line.most:
            (self._line.make_room() or self).abort()
        if not self._gone:
            self._line.idle(self)

    def data_received(self, data: bytes) -> None:
        """Take data; while no request is being answered it is headers, and they have to come to an end."""
        self._line.busy(self)
        super().data_received(data)
        if self.cycle_over:
            self._wait()
            self._settle()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Count as one on which nothing is being answered."""
        super().on_response_complete()
        if self.cycle_over:
            self._settle()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; where a request is being answered, or was, break off: it can have no two answers."""
        if not self.cycle_over or self.conn.our_state is not self._idle:
            self.abort()
        else:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        self._leave()
        super().connection_lost(exc)

    @property
    def cycle_over(self) -> bool:
        """Whether no request is being answered."""
        cycle = cast("Any", self.cycle)  # None before the first request
        return cycle is None or cycle.response_complete

    def let_in(self) -> None:
        """Note that a token that counts has come over it."""
        self.known = True

    def abort(self) -> None:
        """Break it off."""
        self._leave()
        self.transport.abort()

    def _settle(self) -> None:
        if not self._gone:
            self._line.idle(self)

    def _leave(self) -> None:
        """Count no more: whoever comes next has the room."""
        self._line.busy(self)
        if not self._gone:
            self._gone = True
            self._line.open -= 1

    def _wait(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(HEADERS_WITHIN_S, self.abort)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def most_connections() -> int:
    """Return how many connections there may be at once: as many as files can be open here, and some left over."""
    if sys.platform == "win32":
        return CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + _FILES_FOR_OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, soft - _FILES_FOR_OTHERS)
    return max(room, 32)
