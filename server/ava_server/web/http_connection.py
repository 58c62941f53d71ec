"""A connection of an HTTP server: how long it may take over headers, and how many there may be."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTION = "ava.connection"
"""Key of the connection in a request's state."""
HEADERS_WITHIN_S = 10.0
"""Seconds a client may take to send a request's headers."""


class Connection(H11Protocol):
    """A connection with a deadline for request headers, for which uvicorn would wait for ever.

    When there are too many, a new one is closed: no token was seen on it yet. A reverse proxy does better: it knows the
    addresses of clients, and opens a connection here only for a whole request.
    """

    def __init__(self, most: int, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._most = most
        self._header_deadline: asyncio.TimerHandle | None = None
        self._idle = self.conn.our_state

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the header deadline, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self.abort()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Take data; between requests it is headers, which have a deadline."""
        super().data_received(data)
        if self.cycle_over:
            self._wait()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Give the rest of a request that was refused early as much time as headers."""
        super().on_response_complete()
        if self.conn.our_state is not self._idle:
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP; during or after a request drop the connection, for it cannot get two answers."""
        if not self.cycle_over or self.conn.our_state is not self._idle:
            self.abort()
        else:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadline."""
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def cycle_over(self) -> bool:
        """Whether the connection is between requests."""
        cycle = cast("Any", self.cycle)  # None before the first request
        return cycle is None or cycle.response_complete

    @property
    def keeps_up(self) -> bool:
        """Whether its client reads what it gets, so that sending does not wait."""
        return not self.flow.write_paused

    def abort(self) -> None:
        """Drop it."""
        self.transport.abort()

    def _wait(self) -> None:
        if self._header_deadline is None:
            self._header_deadline = self.loop.call_later(HEADERS_WITHIN_S, self.abort)

    def _stop_waiting(self) -> None:
        if self._header_deadline is not None:
            self._header_deadline.cancel()
            self._header_deadline = None
