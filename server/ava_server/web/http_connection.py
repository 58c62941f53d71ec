"""A connection of an HTTP server: how long it may take over headers, and how many there may be.

httptools parses HTTP where it is installed (extra `team`), else h11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    _Protocol = H11Protocol
else:
    _Protocol = asyncio.Protocol

CONNECTION = "ava.connection"
"""Key of the connection in a request's state."""
HEADERS_WITHIN_S = 10.0
"""Seconds a client may take to send a request's headers."""
UNPARSED_BYTES = 16 * 1024
"""What may come without completing headers, a piece of a body or a request, unless a server sets it."""
HEADERS = 256
"""Headers of one request."""


class LimitedConnection(_Protocol):
    """A connection with a deadline for request headers, for which uvicorn would wait for ever.

    When there are too many, a new one is closed: no token was seen on it yet. A reverse proxy does better: it knows the
    addresses of clients, and opens a connection here only for a whole request.
    """

    def __init__(self, most: int, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._most = most
        self._header_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the header deadline, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self.abort()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Between requests, data is headers, which have a deadline."""
        super().data_received(data)
        if self.cycle_over:
            self._wait()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Give the rest of a request that was refused early as much time as headers."""
        super().on_response_complete()
        if self.in_request:
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP; during or after a request drop the connection, for it cannot get two answers."""
        if not self.cycle_over or self.in_request:
            self.abort()
        else:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def in_request(self) -> bool:
        """Whether the headers of a request have come, and not yet all of its body."""
        raise NotImplementedError

    @property
    def cycle_over(self) -> bool:
        cycle = cast("Any", self.cycle)  # None before the first request
        return cycle is None or cycle.response_complete

    @property
    def keeps_up(self) -> bool:
        """Whether its client reads what it gets, so that sending does not wait."""
        return not self.flow.write_paused

    def abort(self) -> None:
        self.transport.abort()

    def take_body(self) -> bytes | None:
        """Return what nobody has read of a request that has come whole; None if it has not, or has been read.

        uvicorn forgets it once the client has gone.
        """
        cycle = cast("Any", self.cycle)
        if cycle is None or cycle.more_body or not cycle.body:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    async def send_whole(self, send: Callable[[Any], Awaitable[None]], start: Any, body: Any) -> None:
        """Send the head of an answer and its body in one piece, to a client that keeps up: each write wakes it."""
        cycle = cast("Any", self.cycle)
        cycle.transport = held = _HeldTransport(self.transport)
        try:
            await send(start)
            await send(body)
        finally:
            cycle.transport = self.transport
            if held.pieces:  # else the client has gone
                self.transport.write(b"".join(held.pieces))
            if held.closed:
                self.transport.close()

    def _wait(self) -> None:
        if self._header_deadline is None:
            self._header_deadline = self.loop.call_later(HEADERS_WITHIN_S, self.abort)

    def _stop_waiting(self) -> None:
        if self._header_deadline is not None:
            self._header_deadline.cancel()
            self._header_deadline = None


def server_config(app: Any, most: int, **more: Any) -> Config:
    """Return settings of uvicorn that only parses HTTP, of at most so many connections."""
    return Config(
        app, loop="none", http=cast("Any", partial(Connection, most)), ws="none", lifespan="off", log_config=None,
        access_log=False, proxy_headers=False, server_header=False, timeout_graceful_shutdown=1, **more,
    )  # fmt: skip


class _HeldTransport:
    def __init__(self, transport: asyncio.Transport) -> None:
        self.pieces: list[bytes] = []
        self.write = self.pieces.append
        self.closed = False
        self.is_closing = transport.is_closing

    def close(self) -> None:
        self.closed = True


class H11Connection(LimitedConnection, H11Protocol):
    """One that h11 parses."""

    def __init__(self, most: int, **given: Any) -> None:
        super().__init__(most, **given)
        self._idle = self.conn.our_state

    @property
    def in_request(self) -> bool:
        return self.conn.our_state is not self._idle


try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError:
    Connection: type[LimitedConnection] = H11Connection
else:

    class HttpToolsConnection(LimitedConnection, HttpToolsProtocol):  # type: ignore[misc]  # what both have, is alike
        """One that httptools parses, in C: several times as fast.

        httptools itself keeps any number of bytes of an unfinished header, takes trailers for headers, and requests
        that others read differently. It reads on behind a request in progress, whose client can then leave unnoticed:
        here, the connection ends after that one's answer, and the client sends the others again. It loses the body of a
        request that asks for another protocol: h11 takes over there.
        """

        def __init__(self, most: int, **given: Any) -> None:
            super().__init__(most, **given)
            self._most_unparsed = self.config.h11_max_incomplete_event_size or UNPARSED_BYTES
            self._unparsed = b""
            self._has_headers = self._body_missing = self._is_whole = False
            self._upgrade = self._pipelined = False

        @property
        def in_request(self) -> bool:
            return self._body_missing

        def data_received(self, data: bytes) -> None:
            """Refuse what has no end."""
            self._unparsed += data
            if not self._pipelined:
                super().data_received(data)
            if self._upgrade:
                self._stop_waiting()
            elif len(self._unparsed) > self._most_unparsed and not self.transport.is_closing():
                super().send_400_response("Too long.")

        def send_400_response(self, msg: str) -> None:
            """Answer malformed HTTP, or have h11 read what asks for another protocol."""
            if self._pipelined:
                return
            if not self._upgrade:
                super().send_400_response(msg)
                return
            self.connections.discard(self)
            given: dict[str, Any] = {"config": self.config, "server_state": self.server_state, "_loop": self.loop}
            other = H11Connection(self._most, app_state=self.app_state, **given)
            other.connection_made(self.transport)
            self.transport.set_protocol(other)
            other.data_received(self._unparsed.lstrip(b"\r\n"))

        def on_message_begin(self) -> None:
            """Raises ValueError if the request before is not answered."""
            if not self.cycle_over:
                self._pipelined, self.cycle.keep_alive = True, False
                raise ValueError("pipelined")
            super().on_message_begin()
            self._has_headers = False
            self._is_whole = bool(self._unparsed)  # not where the request before has ended in the same piece

        def on_header(self, name: bytes, value: bytes) -> None:
            """Raises ValueError if there are too many."""
            if self._has_headers:
                return  # a trailer, which no proxy has checked
            if len(self.headers) >= HEADERS:
                raise ValueError("too many headers")
            super().on_header(name, value.strip(b" \t"))

        def on_headers_complete(self) -> None:
            """Raises ValueError: not everybody would understand the same by the request."""
            parser: Any = self.parser  # None after the connection
            version = parser.get_http_version()
            hosts = sum(name == b"host" for name, _value in self.headers)
            codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
            is_plain_path = self.url.startswith(b"/") and b"#" not in self.url
            names_one_host = (version, hosts) in (("1.1", 1), ("1.0", 1), ("1.0", 0))
            has_clear_length = not codings or (codings == [b"chunked"] and version != "1.0")
            if not (is_plain_path and names_one_host and has_clear_length):
                raise ValueError("ambiguous")
            if parser.should_upgrade():
                self._upgrade = self._is_whole
                raise ValueError("upgrade")
            super().on_headers_complete()
            self._has_headers = self._body_missing = True
            self._unparsed = b""

        def on_body(self, body: bytes) -> None:
            self._unparsed = b""
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._unparsed = b""
            self._body_missing = False
            super().on_message_complete()

    Connection = HttpToolsConnection
