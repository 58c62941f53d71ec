"""The stdio transport: it ends with stdin, SIGTERM or SIGINT, each within 5 s and with everything recorded.

A host may ask to cancel or message a subagent and close its end at once. Such a call is carried out first, even while
the server is still starting, for at most 10 s more.

The SDK's own `run()` ends at SIGTERM without cleaning up, hangs at SIGINT on the thread that reads stdin, and does not
answer a line that is not JSON-RPC. Here the event loop reads and writes where the system allows it, signals end the one
task that serves, and an unreadable line gets the answer that JSON-RPC prescribes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import IO, TYPE_CHECKING, Any, cast

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from ava_server.core.shutdown import Shutdown, ignore_signals, log_to_stderr
from ava_server.core.threads import read_apart
from ava_server.mcp_server.app import CARRIED_OUT, CARRY_OUT_S
from ava_server.mcp_server.first_answer import BYTE_ORDER_MARK, EARLY
from ava_server.mcp_server.server import build_server

if TYPE_CHECKING:
    from ava_server.config.settings import Settings

LINE_BYTES = 16 * 1024 * 1024
"""A longer message than any host sends is refused; it is never held as a whole."""
LAST_WORDS_S = 1.0
"""Seconds for the last answers to reach a host that has closed stdin and may no longer read."""
_EDGE = 300
_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{1,200}")\s*'
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID)
_ID_LAST = re.compile(_ID + rb"\}\s*\Z")

Write = Callable[[bytes], Awaitable[None]]
"""Writes one message to the host, whole."""


class TooLong:
    """A message longer than `LINE_BYTES`: its id, where its beginning or end has it."""

    def __init__(self, head: bytes, tail: bytes) -> None:
        match = _ID_FIRST.match(head) or _ID_LAST.search(tail)
        self.id: str | int | None = json.loads(match[1]) if match else None


class LastCalls:
    """The calls that have been read and not answered yet, of those that are carried out although the host has gone."""

    def __init__(self) -> None:
        self._open: set[str | int] = set()
        self._none = anyio.Event()
        self._none.set()

    def take(self, message: types.JSONRPCMessage) -> None:
        """Note a message of the host's, before the server gets it."""
        if isinstance(message, types.JSONRPCRequest):
            params = message.params or {}
            if message.method == "tools/call" and params.get("name") in CARRIED_OUT:
                if not self._open:
                    self._none = anyio.Event()
                self._open.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            params = message.params or {}
            self._end(params.get("requestId"))  # nothing answers it any more

    def answer(self, message: types.JSONRPCMessage) -> None:
        """Note a message of the server's."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._end(message.id)

    @property
    def are_over(self) -> bool:
        return not self._open

    async def wait(self) -> None:
        """Wait until all are answered, or their time is over."""
        with anyio.move_on_after(CARRY_OUT_S):
            await self._none.wait()

    def _end(self, request_id: Any) -> None:
        if isinstance(request_id, str | int):
            self._open.discard(request_id)
        if not self._open:
            self._none.set()


class _Ending(Shutdown):
    """The end of the server, which lets the last calls be carried out first, whichever way the host leaves."""

    def __init__(self, calls: LastCalls) -> None:
        super().__init__()
        self._calls = calls

    async def leave(self, code: int) -> None:
        self.begin(code, after_s=0.0 if self._calls.are_over else CARRY_OUT_S)
        await self._calls.wait()


def serve(load: Callable[[], Settings]) -> int:
    """Serve one host over stdin and stdout until it goes away; returns the exit code."""
    log_to_stderr("ava: %(message)s")
    return anyio.run(_serve, load)


async def _serve(load: Callable[[], Settings]) -> int:
    server = build_server(load)
    calls = LastCalls()
    ending = _Ending(calls)
    async with anyio.create_task_group() as tasks:
        await tasks.start(ending.watch)
        with ending.serving:
            already_read, answered = EARLY.take()
            lines, write = await _open_wire(already_read)
            incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception]()
            answers, outgoing = anyio.create_memory_object_stream[SessionMessage]()
            async with anyio.create_task_group() as writing:
                writing.start_soon(_write, outgoing, write, answered, calls)
                async with anyio.create_task_group() as reading:
                    reading.start_soon(_read, lines, incoming, answers.clone(), ending, calls)
                    await server.run(cast("Any", read), cast("Any", answers), server.create_initialization_options())
                    reading.cancel_scope.cancel()
                writing.cancel_scope.deadline = anyio.current_time() + LAST_WORDS_S
        ending.begin(0)
        tasks.cancel_scope.cancel()
    ignore_signals()
    return ending.code or 0


# -- messages ---------------------------------------------------------------------------------------------------------


async def _read(
    lines: AsyncIterator[bytes | TooLong],
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    answers: MemoryObjectSendStream[SessionMessage],
    ending: Shutdown,
    calls: LastCalls,
) -> None:
    async with incoming, answers:
        try:
            async for line in lines:
                if isinstance(line, bytes):
                    line = line.removeprefix(BYTE_ORDER_MARK)
                    if not line.strip():
                        continue
                message = _message(line)
                if isinstance(message, types.JSONRPCError):
                    await answers.send(SessionMessage(message))
                else:
                    calls.take(message)
                    await incoming.send(SessionMessage(message))
        except (ConnectionError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the host, or the server, has gone meanwhile
        await ending.leave(0)


def _message(line: bytes | TooLong) -> Any:
    if isinstance(line, TooLong):
        return _refusal(types.INVALID_REQUEST, f"the message is longer than {LINE_BYTES:,} bytes; send less", line.id)
    try:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    try:
        value = json.loads(line.decode())  # more lenient: the id of a request with, say, half a surrogate
    except (ValueError, RecursionError):
        return _refusal(types.PARSE_ERROR, "the line is not JSON in UTF-8", None)
    request_id: Any = cast("dict[str, Any]", value).get("id") if isinstance(value, dict) else None
    if not isinstance(request_id, str | int) or isinstance(request_id, bool):
        request_id = None
    return _refusal(types.INVALID_REQUEST, "the line is not a JSON-RPC 2.0 message", request_id)


def _refusal(code: int, why: str, request_id: str | int | None) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=types.ErrorData(code=code, message=why))


async def _write(
    outgoing: MemoryObjectReceiveStream[SessionMessage], write: Write, answered: str | int | None, calls: LastCalls
) -> None:
    """Write the server's messages until the last one, or until the host has gone.

    `answered`: the request whose answer was written before the server was loaded; the server's own is dropped.
    """
    gone = False
    async with outgoing:
        async for item in outgoing:
            message = item.message
            calls.answer(message)
            if answered is not None and _answers(message, answered):
                answered = None
                continue
            text = message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                if not gone:
                    await write(text.encode() + b"\n")
            except OSError:  # nobody reads any more; the end of stdin is what ends the server
                gone = True


def _answers(message: types.JSONRPCMessage, request_id: str | int) -> bool:
    return isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id == request_id


# -- the wire ---------------------------------------------------------------------------------------------------------


async def _open_wire(already_read: bytes) -> tuple[AsyncIterator[bytes | TooLong], Write]:
    """Reserve stdin, of which the beginning was read, and stdout; others read nothing there, and print to stderr."""
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return await _lines_of(source, already_read), await _writer_to(sink)


async def _lines_of(source: IO[bytes], already_read: bytes) -> AsyncIterator[bytes | TooLong]:
    """Return the lines of stdin, read by the event loop where the system allows it, else by a thread."""
    if _can_be_awaited(source):
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_BYTES, loop=loop)
        reader.feed_data(already_read)  # only what is a pipe, and comes here, is read before
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), source)
        return _streamed(reader)
    return _threaded(os.fdopen(os.dup(source.fileno()), "rb"))


def _can_be_awaited(file: IO[bytes]) -> bool:
    """Pipes, sockets and terminals can; /dev/null cannot."""
    mode = os.fstat(file.fileno()).st_mode
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty())


async def _streamed(reader: asyncio.StreamReader) -> AsyncIterator[bytes | TooLong]:
    while True:
        try:
            yield await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            if end.partial:
                yield end.partial
            return
        except asyncio.LimitOverrunError as long:
            yield await _skip(reader, long.consumed)


async def _skip(reader: asyncio.StreamReader, consumed: int) -> TooLong:
    head = tail = b""
    while True:
        piece = await reader.readexactly(consumed)
        head = head or piece[:_EDGE]
        tail = (tail + piece)[-_EDGE:]
        try:
            piece = await reader.readuntil(b"\n")
            return TooLong(head, (tail + piece)[-_EDGE:])
        except asyncio.IncompleteReadError as end:
            return TooLong(head, (tail + end.partial)[-_EDGE:])
        except asyncio.LimitOverrunError as long:
            consumed = long.consumed


async def _threaded(source: IO[bytes]) -> AsyncIterator[bytes | TooLong]:
    def piece() -> bytes:
        try:
            return source.readline(LINE_BYTES)
        except OSError:  # the host has gone
            return b""

    while line := await read_apart(piece):
        if len(line) < LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        head = line[:_EDGE]
        tail = line[-_EDGE:]
        while line and not line.endswith(b"\n"):  # only its edges are kept
            line = await read_apart(piece)
            tail = (tail + line)[-_EDGE:]
        yield TooLong(head, tail)


async def _writer_to(sink: IO[bytes]) -> Write:
    """Return what writes to stdout; with the event loop, a host that does not read blocks nothing."""
    if _can_be_awaited(sink):
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop)
        pipe, _protocol = await loop.connect_write_pipe(lambda: protocol, sink)
        pipe.set_write_buffer_limits(0)  # `drain` then means written
        stream = asyncio.StreamWriter(pipe, protocol, None, loop)

        async def write_now(data: bytes) -> None:
            stream.write(data)
            await stream.drain()

        return write_now

    def write_all(data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[sink.write(left) :]

    async def write_in_thread(data: bytes) -> None:
        await anyio.to_thread.run_sync(write_all, data, abandon_on_cancel=True)

    return write_in_thread
