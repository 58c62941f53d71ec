"""The two transports to an MCP server, both bounded: lines over the pipes of a confined program, and HTTP.

Nothing that comes is trusted. A little garbage on stdout is ignored. A line or an answer that is too long, or a flood
of unrequested messages, ends the connection, and `ConnectionState` says why.
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

MAX_BYTES = 4_000_000
"""Of one line, or one HTTP answer."""
MAX_STREAM_BYTES = 16_000_000
"""Of one HTTP answer that is a stream of events."""
MAX_UNREQUESTED = 5_000
"""Lines between two answers, garbage and notifications alike."""
CONNECT_S = 10.0


@dataclass
class ConnectionState:
    """The state of one connection: `ended`, if the server has closed it or has ended; messages since the last answer.

    `fault`: why Ava ended it, in Ava's own words; empty if Ava did not.
    """

    fault: str = ""
    ended: bool = False
    unrequested: int = 0

    def count(self, *, answer: bool) -> bool:
        """Count a message; return False after too many that were not requested."""
        self.unrequested = 0 if answer else self.unrequested + 1
        if self.unrequested > MAX_UNREQUESTED:
            self.fault = f"wrote more than {MAX_UNREQUESTED:,} lines that were not requested, and was ended"
        return not self.fault


@asynccontextmanager
async def open_pipe_streams(pipes: Pipes, state: ConnectionState) -> AsyncGenerator[Any]:
    """Connect to a program over its stdin and stdout; yield the two streams that the SDK's session takes."""
    from mcp.shared.message import SessionMessage

    inward, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outward = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with inward:
            try:
                async for line in _lines(pipes, state):
                    message = _message(line)
                    if message is not None:
                        await inward.send(message)
                    elif not state.count(answer=False):
                        return
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                pass  # the session is gone, or the program
            finally:
                state.ended = True

    async def write() -> None:
        async with outward:
            try:
                async for message in outward:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await pipes.stdin.send(f"{text}\n".encode("utf-8", "backslashreplace"))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                state.ended = True
                await inward.aclose()

    async with anyio.create_task_group() as tasks, received, sent:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield received, sent
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def drop_requests(streams: Any, state: ConnectionState) -> AsyncGenerator[Any]:
    """Pass on answers to Ava's own requests, and nothing else: a server's requests are refused, except `ping`.

    Notifications (log messages, progress) are dropped: nothing reads them, and there may be a flood.
    """
    from mcp.shared.message import SessionMessage
    from mcp_types import METHOD_NOT_FOUND, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse

    received, sent = streams
    inward, answers = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def filter_messages() -> None:
        async with inward:
            try:
                async for each in received:
                    message = getattr(each, "message", None)
                    if isinstance(message, JSONRPCResponse | JSONRPCError):
                        state.count(answer=True)
                        await inward.send(each)
                        continue
                    if not state.count(answer=False):
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
        tasks.start_soon(filter_messages)
        try:
            yield answers, sent
        finally:
            tasks.cancel_scope.cancel()


async def _lines(pipes: Pipes, state: ConnectionState) -> AsyncIterator[bytes]:
    """Yield what a program writes, line by line, until it ends or writes a line that is too long."""
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
        if looked > MAX_BYTES:
            state.fault = f"wrote a line of more than {MAX_BYTES:,} bytes, and was ended"
            return


def _message(line: bytes) -> SessionMessage | None:
    """Return the message in a line; None for garbage, such as a program's own log."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError):
        return None


def http_client(headers: Mapping[str, str], state: ConnectionState) -> AsyncClient:
    """Return a client for one server: its headers on every request, no redirects, no cookies, bounded answers."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, inner: httpx2.AsyncByteStream, limit: int) -> None:
            self._inner, self._left, self._limit = inner, limit, limit

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._inner:
                self._left -= len(chunk)
                if self._left < 0:
                    state.fault = f"answered with more than {self._limit:,} bytes, and was cut off"
                    raise httpx2.ReadError(state.fault)
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    async def bound(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            state.fault = "answered in compressed form, which was not requested"
            raise httpx2.ReadError(state.fault)
        events = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Bounded(response.stream, MAX_STREAM_BYTES if events else MAX_BYTES)

    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **headers},
        timeout=httpx2.Timeout(CONNECT_S, read=None),  # each call limits the time of its answer
        follow_redirects=False,
        event_hooks={"response": [bound]},
    )
