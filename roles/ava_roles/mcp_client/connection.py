"""Connections to MCP servers. The caller sets a deadline for each wait.

Errors that reach a model or a person are in Ava's own words: what a server says about itself is not trusted.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

import anyio

from ava_roles.errors import ToolFailed
from ava_roles.mcp_client.tools import AVA_NAMES, OfferedTool, ServerEntry, offered_tools
from ava_roles.mcp_client.transports import ConnectionState, drop_requests, http_client, open_pipe_streams
from ava_roles.sandbox.path_access import remove_tree
from ava_roles.sandbox.sandbox import Bind, Command, Sandbox, Unavailable, child_environment
from ava_roles.sandbox.toolchains import HostFolders, find_installation, overlap
from ava_roles.tool import ToolOutput

if TYPE_CHECKING:
    from mcp.client.session import ClientSession


MAX_LIFE_S = 24 * 3600.0
"""Longer than any run: a server ends with its run."""


def _files_among(args: tuple[str, ...]) -> Iterator[Path]:
    for arg in args:
        path = Path(arg)
        try:
            if path.is_absolute() and stat.S_ISREG(path.stat().st_mode):
                yield path
        except (OSError, ValueError):
            continue


MAX_CHARS = 1_000_000
"""Of one result; the model is shown much less at once, and can read on."""
MAX_BLOCKS = 500


def render_result(content: Sequence[Any], structured: Any, *, failed: bool) -> ToolOutput:
    """Return a result for the model."""
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
    if kind in ("image", "audio"):
        return f"[{'an image' if kind == 'image' else 'a sound'} ({block.mime_type}) is left out]"
    if kind == "resource_link":
        return f"[a link: {block.uri} {block.name}]"
    if kind == "resource":
        inner = block.resource
        text = getattr(inner, "text", None)
        if text is None:
            return f"[{inner.uri}, {inner.mime_type or 'no text'}, is left out]"
        return f"[{inner.uri}]\n{text}"
    return "[a part of an unknown kind is left out]"


log = logging.getLogger("ava.foreign")

PROBE_S = 4.0
"""How long to wait for the newer handshake; an older server may not answer it at all."""
MAX_PAGES, MAX_TOOLS = 20, 500
IS_AVA = "is Ava itself, and a subagent starts no subagents"

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
            if any(overlap(each.resolve(), one.resolve()) for one in self.host.closed):
                raise ToolFailed(f"cannot be started: its folder {each} is, contains or lies in Ava's own folder")
        needed = find_installation(Path(program).absolute(), _files_among(entry.args), self.host)
        seen = [Bind(source, PurePosixPath(name)) for name, source in needed.shown.items()]
        seen += [Bind(each, PurePosixPath(each), writable=True) for each in (*entry.read_write, folder)]
        given = {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), **env}
        return Command(
            argv=(program, *entry.args),
            folder=PurePosixPath(folder),
            binds=tuple(seen),
            environment=child_environment(self.run_id, given),
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
        """Return the tools that it offers. Raises ToolFailed: it is Ava itself."""
        from mcp_types import PaginatedRequestParams

        listed: list[Any] = []
        cursor: str | None = None
        for _page in range(MAX_PAGES):
            page = await self._session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
            listed += page.tools
            cursor = page.next_cursor
            if cursor is None or len(listed) > MAX_TOOLS:
                break
        if {"spawn_subagent", "confirm_spawn"} <= {tool.name for tool in listed}:
            raise ToolFailed(IS_AVA)
        return offered_tools(self._entry.name, listed[:MAX_TOOLS])

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
    """Start or reach a server, and hold the connection; leaving ends the server and removes its home.

    Errors come from the SDK's task groups; `describe_failure` explains them.
    """
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

        headers = await anyio.to_thread.run_sync(launch.fill, entry.headers, entry.url)
        async with (
            http_client(headers, state) as client,
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
                if errors := pipes.errors().strip():
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
        within = cast("tuple[BaseException, ...]", error.exceptions)  # pyright: ignore[reportUnknownMemberType]
        error = next((each for each in within if isinstance(each, ToolFailed)), within[0])
    return error


LIST_S = 10.0
"""The longest from a server's start until its tools are known, while a proposal waits for them."""
CACHE_S, FAULT_CACHE_S = 300.0, 15.0


@dataclass(frozen=True)
class ToolListing:
    """The tools of one server, or a fault: why it cannot be used, in Ava's own words, to follow its name."""

    tools: tuple[OfferedTool, ...] = ()
    fault: str = ""


class ToolDiscovery:
    """Lists the tools of servers, and caches each listing for a while; a server is never asked twice at a time."""

    def __init__(self, launch: Callable[[ServerEntry], Awaitable[LaunchContext]]) -> None:
        self._launch = launch
        self._cache: dict[str, tuple[float, ToolListing]] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def offers(self, entries: Iterable[ServerEntry]) -> Mapping[str, ToolListing]:
        """Return the listings of servers, by name; all are asked side by side, each for at most 10 s."""
        found: dict[str, ToolListing] = {}

        async def one(entry: ServerEntry) -> None:
            found[entry.name] = await self._one(entry)

        async with anyio.create_task_group() as tasks:
            for entry in entries:
                tasks.start_soon(one, entry)
        return found

    def forget(self) -> None:
        """Clear the cache."""
        self._cache.clear()

    async def _one(self, entry: ServerEntry) -> ToolListing:
        async with self._locks.setdefault(entry.digest, anyio.Lock()):
            until, listing = self._cache.get(entry.digest, (0.0, ToolListing()))
            if time.monotonic() < until:
                return listing
            listing = await list_tools(entry, await self._launch(entry))
            kept_s = FAULT_CACHE_S if listing.fault else CACHE_S
            self._cache[entry.digest] = (time.monotonic() + kept_s, listing)
            return listing


async def list_tools(entry: ServerEntry, launch: LaunchContext) -> ToolListing:
    """Start or reach a server for a moment, and return the tools that it offers."""
    try:
        with anyio.move_on_after(LIST_S):
            async with connect(entry, launch) as connection:
                return ToolListing(await connection.tools())
    except Exception as error:  # whatever a server does, the proposal continues without it
        why = describe_failure(error)
        log.info("the MCP server %s %s (%s)", entry.name, why, type(error).__name__)
        return ToolListing(fault=why)
    return ToolListing(fault=f"did not answer within {LIST_S:g} s")
