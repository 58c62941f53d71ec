"""One connection to a foreign server: greeted, looked at, asked. All waits have deadlines, set by who holds it."""

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
from ava_roles.mcp_client.entry import OWN_NAMES, ServerEntry
from ava_roles.mcp_client.tools import OfferedTool, offered_tools
from ava_roles.mcp_client.transports import ConnectionState, drop_requests, http_client, open_pipe_streams
from ava_roles.sandbox.programs import child_environment
from ava_roles.sandbox.removal import remove_tree
from ava_roles.sandbox.sandbox import Bind, Command, Sandbox, Unavailable
from ava_roles.sandbox.toolchains import find_installation, overlap
from ava_roles.tool import ToolOutput

if TYPE_CHECKING:
    from mcp.client.session import ClientSession


LIFE_S = 24 * 3600.0
"""No run lasts as long: a server's end is the run's end."""


def build_command(
    entry: ServerEntry,
    env: Mapping[str, str],
    run_id: str,
    folder: Path,
    *,
    read_only: tuple[Path, ...],
    closed: tuple[Path, ...],
) -> Command:
    """Return how a stdio server is started. Blocking.

    It sees the system's programs, its own program with the installation that this belongs to, files that its arguments
    name, `sandbox.read_only`, and its `read_write` folders; its home is a folder of its own, which goes with it.

    Args:
        entry: What is configured.
        env: Its environment, secrets put in.
        run_id: The mark in its environment.
        folder: Its home, empty.
        read_only: Further folders that confined programs may read.
        closed: Folders of which it sees nothing but its home.

    Raises:
        ToolFailed: Its program, or a folder, is not there.
    """
    assert entry.command is not None
    path = env.get("PATH") or os.environ.get("PATH") or os.defpath
    program = shutil.which(entry.command, path=path)
    if program is None:
        raise ToolFailed("cannot be started: its program is not found (give its whole path as command)")
    missing = [each for each in entry.read_write if not each.is_dir()]
    if missing:
        raise ToolFailed(f"cannot be started: its folder {missing[0]} is not there")
    if kept := [each for each in entry.read_write if any(overlap(each.resolve(), one.resolve()) for one in closed)]:
        raise ToolFailed(f"cannot be started: its folder {kept[0]} is, contains or lies in Ava's own folder")
    needed = find_installation(
        Path(program).absolute(), _named(entry.args), read_only=read_only, home=Path.home(), closed=closed
    )
    seen = [Bind(source, PurePosixPath(name)) for name, source in needed.shown.items()]
    seen += [Bind(each, PurePosixPath(each), writable=True) for each in (*entry.read_write, folder)]
    given = {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), **env}
    return Command(
        argv=(program, *entry.args),
        folder=PurePosixPath(folder),
        binds=tuple(seen),
        environment=child_environment(run_id, given),
        timeout_s=LIFE_S,
        network=entry.network,
        stdin=True,
    )


def _named(args: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files that arguments name by their whole path, such as the script of an interpreter."""
    for arg in args:
        path = Path(arg)
        try:
            if path.is_absolute() and stat.S_ISREG(path.stat().st_mode):
                yield path
        except (OSError, ValueError):
            continue


MOST_CHARS = 1_000_000
"""Of one result; the model is shown much less at once, and reads on where it wants to."""
MOST_BLOCKS = 500


def render_result(content: Sequence[Any], structured: Any, *, failed: bool) -> ToolOutput:
    """Return a result for the model.

    Args:
        content: The SDK's content blocks.
        structured: The structured content, any JSON; None where there is none.
        failed: The tool says that it failed.
    """
    parts: list[str] = []
    length = 0
    for number, block in enumerate(content):
        if number == MOST_BLOCKS or length > MOST_CHARS:
            parts.append(f"[{len(content) - number} more parts are left out]")
            break
        parts.append(_shown(block))
        length += len(parts[-1])
    if structured is not None and not _says_it(parts, structured):
        parts.append(json.dumps(structured, ensure_ascii=False, default=str))
    text = "\n\n".join(part for part in parts if part)
    if len(text) > MOST_CHARS:
        text = f"{text[:MOST_CHARS]}\n[{len(text) - MOST_CHARS:,} more characters are left out]"
    return ToolOutput(text or "(it answered nothing)", success=not failed)


def _says_it(parts: Sequence[str], structured: Any) -> bool:
    """Tell whether a text has the structured content already, as the protocol wants it for older clients."""
    for part in parts:
        if part.lstrip()[:1] in ("{", "["):
            try:
                if json.loads(part) == structured:
                    return True
            except (ValueError, RecursionError):
                continue
    return False


def _shown(block: Any) -> str:
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
    return "[a part of a kind that is not known here is left out]"


log = logging.getLogger("ava.foreign")

PROBE_S = 4.0
"""How long the newer greeting is waited for; an older server may not answer it at all."""
MOST_PAGES, MOST_TOOLS = 20, 500
OURS = "is Ava itself, and a subagent starts no subagents"

Fill = Callable[[Mapping[str, str], str | None], Mapping[str, str]]
"""Puts secrets in the place of placeholders: of values, and the URL that they are sent to (None: a program)."""


@dataclass(frozen=True)
class LaunchContext:
    """What a server is started with, beside its own entry.

    Attributes:
        run_id: Whose it is; the mark in its environment.
        sandbox: Confines a stdio server.
        read_only: Further folders that confined programs may read.
        closed: Folders that are shown in no case.
        folder: Makes the folder that is its home while it lives; blocking.
        fill: Puts the values of secrets in; blocking.
    """

    run_id: str
    sandbox: Sandbox | Unavailable
    read_only: tuple[Path, ...]
    closed: tuple[Path, ...]
    folder: Callable[[str], Path]
    fill: Fill

    def command(self, entry: ServerEntry, env: Mapping[str, str], folder: Path) -> Command:
        """Return how a stdio server is started. Blocking.

        Raises:
            ToolFailed: Its program, or a folder, is not there.
        """
        return build_command(entry, env, self.run_id, folder, read_only=self.read_only, closed=self.closed)


class McpConnection:
    """A greeted server."""

    def __init__(self, entry: ServerEntry, session: ClientSession, watch: ConnectionState) -> None:
        self.watch = watch
        self._entry = entry
        self._session = session

    async def tools(self) -> tuple[OfferedTool, ...]:
        """Return what it offers.

        Raises:
            ToolFailed: It is Ava.
        """
        from mcp_types import PaginatedRequestParams

        listed: list[Any] = []
        cursor: str | None = None
        for _page in range(MOST_PAGES):
            page = await self._session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
            listed += page.tools
            cursor = page.next_cursor
            if cursor is None or len(listed) > MOST_TOOLS:
                break
        if {"spawn_subagent", "confirm_spawn"} <= {tool.name for tool in listed}:
            raise ToolFailed(OURS)
        return offered_tools(self._entry.name, listed[:MOST_TOOLS])

    async def call(self, tool: str, args: Mapping[str, Any]) -> ToolOutput:
        """Call a tool; a cancellation is told to the server.

        Raises:
            ToolFailed: It asked for something that nobody here answers.
        """
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, InputRequiredResult
        from pydantic import TypeAdapter

        # Not the session's own `call_tool`: it runs the server's output schema, patterns and all, in this process.
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(args)))
        answers: TypeAdapter[Any] = TypeAdapter(CallToolResult | InputRequiredResult)
        answer = await self._session.send_request(request, answers)
        if not isinstance(answer, CallToolResult):
            raise ToolFailed("asked for a person's or a model's answer, and nobody here gives one")
        return render_result(answer.content, answer.structured_content, failed=bool(answer.is_error))


@asynccontextmanager
async def connect(entry: ServerEntry, means: LaunchContext) -> AsyncGenerator[McpConnection]:
    """Start or reach a server, and greet it; leaving it leaves nothing of it.

    Errors come as the SDK's task groups have them; `why_not` puts all of them into words of ours.
    """
    from mcp.client.session import ClientSession
    from mcp_types import Implementation

    if entry.is_ours:
        raise ToolFailed(OURS)
    watch = ConnectionState()
    for chatty in ("client", "mcp.client"):  # the SDK's, which write down what a server sent
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    try:
        async with _streams(entry, means, watch) as streams, drop_requests(streams, watch) as (received, sent):
            session = ClientSession(received, sent, client_info=Implementation(name="ava-subagent", version="1"))
            async with session:
                await _greet(session)
                info = session.server_info
                if info is not None and info.name.strip().casefold() in OWN_NAMES:
                    raise ToolFailed(OURS)
                yield McpConnection(entry, session, watch)
    except Exception as error:
        if watch.fault:
            raise ToolFailed(watch.fault) from error
        raise


@asynccontextmanager
async def _streams(entry: ServerEntry, means: LaunchContext, watch: ConnectionState) -> AsyncGenerator[Any]:
    if entry.url is not None:
        from mcp.client.streamable_http import streamable_http_client

        headers = await anyio.to_thread.run_sync(means.fill, entry.headers, entry.url)
        async with (
            http_client(headers, watch) as client,
            streamable_http_client(entry.url, http_client=client) as streams,
        ):
            yield streams
        return
    if isinstance(means.sandbox, Unavailable):
        why = f"{means.sandbox.why}; {means.sandbox.what_to_do}"
        raise ToolFailed(f"cannot be started, because nothing confines it here: {why}")
    env = await anyio.to_thread.run_sync(means.fill, entry.env, None)
    folder = await anyio.to_thread.run_sync(means.folder, entry.name)
    try:
        command = await anyio.to_thread.run_sync(means.command, entry, env, folder)
        async with means.sandbox.start(command) as pipes, open_pipe_streams(pipes, watch) as streams:
            try:
                yield streams
            finally:
                if errors := pipes.errors().strip():
                    log.debug("%s on stderr: %r", entry.name, errors[-500:])
    finally:
        with anyio.CancelScope(shield=True), suppress(OSError):  # it goes with the run
            await anyio.to_thread.run_sync(remove_tree, folder)


async def _greet(session: ClientSession) -> None:
    """Agree on a protocol: the stateless one where the server has it, else the handshake."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import UNSUPPORTED_PROTOCOL_VERSION

    with anyio.move_on_after(PROBE_S):
        try:
            await session.discover()
            return
        except (MCPError, ValueError, RuntimeError):  # an older one says so in many ways
            pass
    try:
        await session.initialize()
    except MCPError as error:
        if error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await session.discover()  # it was slow to start, and has answered the first greeting meanwhile


def describe_failure(error: BaseException, watch: ConnectionState | None = None) -> str:
    """Return what went wrong with a server, in words of ours: what it said itself is nobody's to read here."""
    if watch is not None and watch.fault:
        return watch.fault
    error = _first(error)
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
    return f"does not speak MCP as it should ({type(error).__name__})"


def _first(error: BaseException) -> BaseException:
    """Return what a task group's error is about: ours, where one of them is."""
    while isinstance(error, BaseExceptionGroup):
        within = cast("tuple[BaseException, ...]", error.exceptions)  # pyright: ignore[reportUnknownMemberType]
        error = next((each for each in within if isinstance(each, ToolFailed)), within[0])
    return error


LIST_S = 10.0
"""How long a server may take from its start until its tools are known, while somebody waits for a proposal."""
REMEMBERED_S, FAULT_REMEMBERED_S = 300.0, 15.0


@dataclass(frozen=True)
class ToolListing:
    """What one server offers, or why nothing.

    Attributes:
        tools: What it offers.
        fault: Why it cannot be used, in words of ours, to be read after its name; empty where it can.
    """

    tools: tuple[OfferedTool, ...] = ()
    fault: str = ""


class ToolDiscovery:
    """Asks servers what they offer, each configuration once for a while, and never twice at the same time.

    Args:
        means: Makes what a server is started with.
    """

    def __init__(self, means: Callable[[ServerEntry], Awaitable[LaunchContext]]) -> None:
        self._means = means
        self._seen: dict[str, tuple[float, ToolListing]] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def offers(self, entries: Iterable[ServerEntry]) -> Mapping[str, ToolListing]:
        """Return what servers offer, by name; all are asked side by side, each for 10 s at most."""
        found: dict[str, ToolListing] = {}

        async def one(entry: ServerEntry) -> None:
            found[entry.name] = await self._one(entry)

        async with anyio.create_task_group() as tasks:
            for entry in entries:
                tasks.start_soon(one, entry)
        return found

    def forget(self) -> None:
        """Ask again the next time."""
        self._seen.clear()

    async def _one(self, entry: ServerEntry) -> ToolListing:
        async with self._locks.setdefault(entry.digest, anyio.Lock()):
            until, listing = self._seen.get(entry.digest, (0.0, ToolListing()))
            if time.monotonic() < until:
                return listing
            listing = await list_tools(entry, await self._means(entry))
            kept_s = FAULT_REMEMBERED_S if listing.fault else REMEMBERED_S
            self._seen[entry.digest] = (time.monotonic() + kept_s, listing)
            return listing


async def list_tools(entry: ServerEntry, means: LaunchContext) -> ToolListing:
    """Start or reach a server for a moment, and return what it offers."""
    try:
        with anyio.move_on_after(LIST_S):
            async with connect(entry, means) as link:
                return ToolListing(await link.tools())
    except Exception as error:  # whatever a foreign program does is no fault of whoever asks
        why = describe_failure(error)
        log.info("the MCP server %s %s (%s)", entry.name, why, type(error).__name__)
        return ToolListing(fault=why)
    return ToolListing(fault=f"did not answer within {LIST_S:g} s")
