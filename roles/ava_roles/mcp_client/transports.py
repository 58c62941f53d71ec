"""The two ways to a foreign server, both bounded: lines over the pipes of a confined program, and HTTP.

What comes is another program's: garbage on stdout is passed over while there is little of it, a line or an answer that
is too long, and a flood of what nobody asked for, end the connection, and `Watch` says why.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from mcp.shared.message import SessionMessage

    from ava_roles.sandbox.sandbox import Pipes

MOST_BYTES = 4_000_000
"""Of one line or one HTTP answer."""
MOST_STREAM_BYTES = 16_000_000
"""Of one HTTP answer that is a stream of events."""
MOST_UNASKED = 5_000
"""Lines between two answers, garbage and notifications alike."""
CONNECT_S = 10.0


@dataclass
class ConnectionState:
    """What goes on over one connection.

    Attributes:
        fault: Why it was ended by us, in our own words; empty while it was not.
        ended: The server has ended it, or has ended itself.
    """

    fault: str = ""
    ended: bool = False
    unasked: int = 0

    def counts(self, answer: bool) -> bool:
        """Count a message; False when there were too many that nobody asked for."""
        self.unasked = 0 if answer else self.unasked + 1
        if self.unasked > MOST_UNASKED:
            self.fault = f"wrote more than {MOST_UNASKED:,} lines that nobody asked for, and was ended"
        return not self.fault


@asynccontextmanager
async def open_pipe_streams(pipes: Pipes, watch: ConnectionState) -> AsyncGenerator[Any]:
    """Speak with a program over its stdin and stdout; yields the two streams that the SDK's session takes."""
    from mcp.shared.message import SessionMessage

    inward, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outward = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with inward:
            try:
                async for line in _lines(pipes, watch):
                    message = _message(line)
                    if message is not None:
                        await inward.send(message)
                    elif not watch.counts(answer=False):
                        return
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                pass  # the session is gone, or the program
            finally:
                watch.ended = True

    async def write() -> None:
        async with outward:
            try:
                async for message in outward:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await pipes.stdin.send(f"{text}\n".encode("utf-8", "backslashreplace"))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                watch.ended = True
                await inward.aclose()

    async with anyio.create_task_group() as tasks, received, sent:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield received, sent
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def drop_requests(streams: Any, watch: ConnectionState) -> AsyncGenerator[Any]:
    """Let through what answers our own requests, and nothing else: whatever a server asks of us is refused.

    What a server merely tells (its log, its progress) is dropped: nobody reads it, and it may be a flood.
    """
    from mcp.shared.message import SessionMessage
    from mcp_types import METHOD_NOT_FOUND, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse

    received, sent = streams
    inward, answers = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def sift() -> None:
        async with inward:
            try:
                async for each in received:
                    message = getattr(each, "message", None)
                    if isinstance(message, JSONRPCResponse | JSONRPCError):
                        watch.counts(answer=True)
                        await inward.send(each)
                        continue
                    if not watch.counts(answer=False):
                        return
                    if isinstance(message, JSONRPCRequest):
                        own: Any = JSONRPCResponse(jsonrpc="2.0", id=message.id, result={})
                        if message.method != "ping":
                            why = ErrorData(code=METHOD_NOT_FOUND, message=f"{message.method[:100]}: not offered here")
                            own = JSONRPCError(jsonrpc="2.0", id=message.id, error=why)
                        await sent.send(SessionMessage(own))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # the session is gone, or the server

    async with anyio.create_task_group() as tasks, answers:
        tasks.start_soon(sift)
        try:
            yield answers, sent
        finally:
            tasks.cancel_scope.cancel()


async def _lines(pipes: Pipes, watch: ConnectionState) -> AsyncIterator[bytes]:
    """Yield what a program writes, line by line, until it ends or one of them is too long."""
    kept = bytearray()
    looked = 0
    while True:
        try:
            kept += await pipes.stdout.receive(65_536)
        except anyio.EndOfStream:
            return
        while (end := kept.find(b"\n", looked)) >= 0:
            line = bytes(kept[:end])
            del kept[: end + 1]
            looked = 0
            if line.strip():
                yield line
        looked = len(kept)
        if looked > MOST_BYTES:
            watch.fault = f"wrote a line of more than {MOST_BYTES:,} bytes, and was ended"
            return


def _message(line: bytes) -> SessionMessage | None:
    """Return what a line says; None for garbage, such as a program's own log."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError):
        return None


def http_client(headers: Mapping[str, str], watch: ConnectionState) -> AsyncClient:
    """Return a client for one server: its headers on every request, no redirect, no cookie, and bounded answers."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
            self._inner = inner
            self._left = most
            self._most = most

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._inner:
                self._left -= len(chunk)
                if self._left < 0:
                    watch.fault = f"answered with more than {self._most:,} bytes, and was cut off"
                    raise httpx2.ReadError(watch.fault)
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    async def bound(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            watch.fault = "answers compressed, which it was not asked for"
            raise httpx2.ReadError(watch.fault)
        events = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Bounded(response.stream, MOST_STREAM_BYTES if events else MOST_BYTES)

    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **headers},
        timeout=httpx2.Timeout(CONNECT_S, read=None),  # how long an answer may take, each call says itself
        follow_redirects=False,
        event_hooks={"response": [bound]},
    )
