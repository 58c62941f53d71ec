"""One connection to the HTTP server, and how many there may be: who says nothing makes room for who comes."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from ava_server.http_hands import CONNECTION

HEADERS_WITHIN_S = 10.0
"""How long a client may take to send a request's headers."""
CONNECTIONS = 2_000
ROOM = 200
"""So many more may come in the moment that it takes to end as many."""
_FILES_FOR_OTHERS = 512
"""Open files that are left for the log, tools, models and commands."""


class Connection(H11Protocol):
    """A connection that is broken off when a request's headers do not come in time; uvicorn would wait for ever.

    When there are too many, one goes on which nothing is being answered: one that has shown no token before one that
    has, and of those the one that has said nothing for longest. So nobody needs an address to be told apart from
    others: behind a proxy all have the same.
    """

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._patience: asyncio.TimerHandle | None = None
        self._idle = self.conn.our_state
        self.known = False
        self.heard_at = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > cast("int", self.config.limit_concurrency) - ROOM:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take data; while no request is being answered it is headers, and they have to come to an end."""
        self.heard_at = time.monotonic()
        super().data_received(data)
        if self.cycle_over:
            self._wait()
        else:
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; where a request is being answered, or was, break off: it can have no two answers."""
        if not self.cycle_over or self.conn.our_state is not self._idle:
            self.abort()
        else:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
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
        self.transport.abort()

    def _make_room(self) -> None:
        others = cast("set[Connection]", self.connections)
        idle = [one for one in others if one is not self and one.cycle_over and not one.transport.is_closing()]
        if idle:
            min(idle, key=lambda one: (one.known, one.heard_at)).abort()

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
    wanted = CONNECTIONS + ROOM + _FILES_FOR_OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, soft - ROOM - _FILES_FOR_OTHERS)
    return max(room, 32)
