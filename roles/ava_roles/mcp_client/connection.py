"""Connections to MCP servers, over the pipes of a confined program or HTTP. The caller sets a deadline for each wait.

Nothing that comes is trusted, so errors that reach a model or a person are in Ava's own words. A little garbage on
stdout is ignored. A line or an answer that is too long, or a flood of unrequested messages, ends the connection, and
`ConnectionState` says why.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

import anyio

from ava_roles.errors import ToolFailed
from ava_roles.mcp_client.server_tools import AVA_NAMES, OfferedTool, ServerEntry, offered_tools
from ava_roles.sandbox.path_access import remove_tree
from ava_roles.sandbox.sandbox import Bind, Command, Pipes, Sandbox, Unavailable, child_environment
from ava_roles.sandbox.toolchains import HostFolders, find_installation, overlap
from ava_roles.tool import ToolOutput

if TYPE_CHECKING:
    from ssl import SSLContext

    from httpx2 import AsyncClient
    from mcp.client.session import ClientSession
    from mcp.shared.message import SessionMessage


MAX_BYTES = 4_000_000
"""Of one line, or one HTTP answer."""
MAX_STREAM_BYTES = 16_000_000
"""Of one HTTP answer that is a stream of events."""
MAX_UNREQUESTED = 5_000
"""Lines between two answers, garbage and notifications alike."""
CONNECT_S = 10.0
MAX_LIFE_S = 24 * 3600.0
"""Longer than any run: a server ends with its run."""
MAX_CHARS = 1_000_000
"""Of one result; the model is shown much less at once, and can read on."""
MAX_BLOCKS = 500
PROBE_S = 4.0
"""How long to wait for the newer handshake; an older server may not answer it at all."""
MAX_PAGES = 20
MAX_TOOLS = 500
IS_AVA = "is Ava itself, and a subagent starts no subagents"

log = logging.getLogger("ava.foreign")


@dataclass
class ConnectionState:
    """Whether a connection has `ended`, messages since the last answer, and the `fault` for which Ava ended it."""

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
    """Pass on answers to Ava's requests alone; a server's are refused, except `ping`, and notifications dropped.

    Of an error the code is passed on and the text is not: the SDK would record it in a span.
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
                        if isinstance(message, JSONRPCError):
                            message.error.message = ""
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
    buffer = bytearray()
    searched = 0  # bytes of the buffer that have no line end
    while True:
        try:
            buffer += await pipes.stdout.receive(65_536)
        except anyio.EndOfStream:
            return
        end = buffer.find(b"\n", searched)
        while end >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            if line.strip():
                yield line
            end = buffer.find(b"\n")
        searched = len(buffer)
        if searched > MAX_BYTES:
            state.fault = f"wrote a line of more than {MAX_BYTES:,} bytes, and was ended"
            return


def _message(line: bytes) -> SessionMessage | None:
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError):
        return None


def http_client(headers: Mapping[str, str], state: ConnectionState, tls: SSLContext) -> AsyncClient:
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
        verify=tls,
        timeout=httpx2.Timeout(CONNECT_S, read=None),  # each call limits the time of its answer
        follow_redirects=False,
        event_hooks={"response": [bound]},
    )


def _files_among(args: tuple[str, ...]) -> Iterator[Path]:
    for arg in args:
        path = Path(arg)
        try:
            if path.is_absolute() and stat.S_ISREG(path.stat().st_mode):
                yield path
        except (OSError, ValueError):
            continue


def render_result(content: Sequence[Any], structured: Any, *, failed: bool) -> ToolOutput:
    parts: list[str] = []
    length = 0
    for number, block in enumerate(content):
        if number == MAX_BLOCKS or length > MAX_CHARS:
            parts.append(f"[{len(content) - number} more parts are left out]")
            break
        parts.append(_render_block(block))
        length += len(parts[-1])
    if structured is not None and not _contains_json(parts, structured):
        parts.append(json.dumps(structured, ensure_ascii=False, default=str))
    text = "\n\n".join(part for part in parts if part)
    if len(text) > MAX_CHARS:
        text = f"{text[:MAX_CHARS]}\n[{len(text) - MAX_CHARS:,} more characters are left out]"
    return ToolOutput(text or "(the answer is empty)", success=not failed)


def _contains_json(parts: Sequence[str], structured: Any) -> bool:
    """Tell whether a text repeats the structured content, as the protocol asks for older clients."""
    for part in parts:
        if part.lstrip()[:1] in ("{", "["):
            try:
                if json.loads(part) == structured:
                    return True
            except (ValueError, RecursionError):
                continue
    return False


def _render_block(block: Any) -> str:
    kind = getattr(block, "type", "")
    if kind == "text":
        return str(block.text)
    if kind == "image":
        return f"[an image ({block.mime_type}) is left out]"
    if kind == "audio":
        return f"[a sound ({block.mime_type}) is left out]"
    if kind == "resource_link":
        return f"[a link: {block.uri} {block.name}]"
    if kind == "resource":
        inner = block.resource
        text = getattr(inner, "text", None)
        if text is None:
            return f"[{inner.uri}, {inner.mime_type or 'no text'}, is left out]"
        return f"[{inner.uri}]\n{text}"
    return "[a part of an unknown kind is left out]"


Fill = Callable[[Mapping[str, str], str | None], Mapping[str, str]]
"""Replaces placeholders in values by secrets; the URL is where the values are sent (None: to a program)."""


@dataclass(frozen=True)
class LaunchContext:
    """What a server is started with, besides its own entry; the run's id marks its environment.

    `sandbox` confines a stdio server. Of the closed folders of `host`, it sees only its home, a temporary folder that
    `folder` makes. `fill` inserts the values of secrets. Both block.
    """

    run_id: str
    sandbox: Sandbox | Unavailable
    host: HostFolders
    folder: Callable[[str], Path]
    fill: Fill

    def command(self, entry: ServerEntry, env: Mapping[str, str], folder: Path) -> Command:
        """Return the command that starts a stdio server. Blocking.

        The server sees the system's programs, its own program with the installation around it, the files that its
        arguments name, `sandbox.read_only`, and its `read_write` folders. Its home is a temporary folder. Raises
        ToolFailed: its program, or one of its folders, is missing.
        """
        assert entry.command is not None
        path = env.get("PATH") or os.environ.get("PATH") or os.defpath
        program = shutil.which(entry.command, path=path)
        if program is None:
            raise ToolFailed("cannot be started: its program is not found (give the full path as command)")
        for each in entry.read_write:
            if not each.is_dir():
                raise ToolFailed(f"cannot be started: its folder {each} does not exist")
            if any(overlap(each.resolve(), closed.resolve()) for closed in self.host.closed):
                raise ToolFailed(f"cannot be started: its folder {each} is, contains or lies in Ava's own folder")
        installation = find_installation(Path(program).absolute(), _files_among(entry.args), self.host)
        binds = [Bind(source, PurePosixPath(name)) for name, source in installation.shown.items()]
        binds += [Bind(each, PurePosixPath(each), writable=True) for each in (*entry.read_write, folder)]
        variables = {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), **env}
        return Command(
            argv=(program, *entry.args),
            folder=PurePosixPath(folder),
            binds=tuple(binds),
            environment=child_environment(self.run_id, variables),
            timeout_s=MAX_LIFE_S,
            network=entry.network,
            stdin=True,
        )


class McpConnection:
    """A server that has answered the handshake."""

    def __init__(self, entry: ServerEntry, session: ClientSession, state: ConnectionState) -> None:
        self.state = state
        self._entry = entry
        self._session = session

    async def tools(self) -> tuple[OfferedTool, ...]:
        """Return the tools that it offers. Raises ToolFailed if it is Ava itself."""
        from mcp_types import PaginatedRequestParams

        tools: list[Any] = []
        cursor: str | None = None
        for _page in range(MAX_PAGES):
            page = await self._session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None or len(tools) > MAX_TOOLS:
                break
        if {"spawn_subagent", "confirm_spawn"} <= {tool.name for tool in tools}:
            raise ToolFailed(IS_AVA)
        return offered_tools(self._entry.name, tools[:MAX_TOOLS])

    async def call(self, tool: str, args: Mapping[str, Any]) -> ToolOutput:
        """Call a tool; a cancellation is sent on. Raises ToolFailed: the server wanted input by a person or model."""
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, InputRequiredResult
        from pydantic import TypeAdapter

        # Not the session's own `call_tool`: it applies the server's output schema, with its patterns, in this process.
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(args)))
        answers: TypeAdapter[Any] = TypeAdapter(CallToolResult | InputRequiredResult)
        answer = await self._session.send_request(request, answers)
        if not isinstance(answer, CallToolResult):
            raise ToolFailed("asked for input from a person or a model, and none is given here")
        return render_result(answer.content, answer.structured_content, failed=bool(answer.is_error))


@asynccontextmanager
async def connect(entry: ServerEntry, launch: LaunchContext) -> AsyncGenerator[McpConnection]:
    """Start or reach a server until the context ends. Its errors are for `describe_failure`."""
    from mcp.client.session import ClientSession
    from mcp_types import Implementation

    if entry.is_ava:
        raise ToolFailed(IS_AVA)
    state = ConnectionState()
    for name in ("client", "mcp.client"):  # the SDK's loggers, which record what a server sent
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        async with _streams(entry, launch, state) as streams, drop_requests(streams, state) as (received, sent):
            session = ClientSession(received, sent, client_info=Implementation(name="ava-subagent", version="1"))
            async with session:
                await _handshake(session)
                info = session.server_info
                if info is not None and info.name.strip().casefold() in AVA_NAMES:
                    raise ToolFailed(IS_AVA)
                yield McpConnection(entry, session, state)
    except Exception as error:
        if state.fault:
            raise ToolFailed(state.fault) from error
        raise


@asynccontextmanager
async def _streams(entry: ServerEntry, launch: LaunchContext, state: ConnectionState) -> AsyncGenerator[Any]:
    if entry.url is not None:
        from mcp.client.streamable_http import streamable_http_client

        from ava_roles.net.transports import tls_context

        headers = await anyio.to_thread.run_sync(launch.fill, entry.headers, entry.url)
        async with (
            http_client(headers, state, await anyio.to_thread.run_sync(tls_context)) as client,
            streamable_http_client(entry.url, http_client=client) as streams,
        ):
            yield streams
        return
    if isinstance(launch.sandbox, Unavailable):
        why = f"{launch.sandbox.why}; {launch.sandbox.what_to_do}"
        raise ToolFailed(f"cannot be started, because nothing can confine it here: {why}")
    env = await anyio.to_thread.run_sync(launch.fill, entry.env, None)
    folder = await anyio.to_thread.run_sync(launch.folder, entry.name)
    try:
        command = await anyio.to_thread.run_sync(launch.command, entry, env, folder)
        async with launch.sandbox.start(command) as pipes, open_pipe_streams(pipes, state) as streams:
            try:
                yield streams
            finally:
                errors = pipes.errors().strip()
                if errors:
                    log.debug("%s on stderr: %r", entry.name, errors[-500:])
    finally:
        with anyio.CancelScope(shield=True), suppress(OSError):  # it is removed with the run
            await anyio.to_thread.run_sync(remove_tree, folder)


async def _handshake(session: ClientSession) -> None:
    """Agree on a protocol version: the stateless one if the server knows it, otherwise the older handshake."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import UNSUPPORTED_PROTOCOL_VERSION

    with anyio.move_on_after(PROBE_S):
        try:
            await session.discover()
            return
        except (MCPError, ValueError, RuntimeError):  # an older server fails in many ways
            pass
    try:
        await session.initialize()
    except MCPError as error:
        if error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await session.discover()  # it was slow to start, and has answered the first attempt meanwhile


def describe_failure(error: BaseException, state: ConnectionState | None = None) -> str:
    """Return what went wrong with a server, in Ava's own words: nothing that the server said is repeated."""
    if state is not None and state.fault:
        return state.fault
    error = _unwrap(error)
    if isinstance(error, ToolFailed):
        return str(error)
    from httpx2 import HTTPError
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED

    if isinstance(error, MCPError):
        if error.code == CONNECTION_CLOSED:
            return "ended before it answered"
        return f"answered with an error (code {error.code})"
    if isinstance(error, HTTPError | OSError):
        return f"cannot be reached ({type(error).__name__})"
    if isinstance(error, anyio.BrokenResourceError | anyio.ClosedResourceError | anyio.EndOfStream):
        return "ended before it answered"
    return f"violates the MCP protocol ({type(error).__name__})"


def _unwrap(error: BaseException) -> BaseException:
    """Return the cause inside a task group's error: a ToolFailed, if there is one."""
    while isinstance(error, BaseExceptionGroup):
        inner = cast("tuple[BaseException, ...]", error.exceptions)  # pyright: ignore[reportUnknownMemberType]
        error = next((each for each in inner if isinstance(each, ToolFailed)), inner[0])
    return error
