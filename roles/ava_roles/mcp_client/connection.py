"""One connection to a foreign server: greeted, looked at, asked. All waits have deadlines, set by who holds it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from ava_roles.errors import ToolFailed
from ava_roles.mcp_client.entry import OWN_NAMES, ServerEntry
from ava_roles.mcp_client.program import command_of
from ava_roles.mcp_client.results import output_of
from ava_roles.mcp_client.tools import Offered, offers_of
from ava_roles.mcp_client.wire import Watch, http_client, only_answers, over_pipes
from ava_roles.sandbox.removal import remove_tree
from ava_roles.sandbox.sandbox import Command, Sandbox, Unavailable
from ava_roles.tools.base import ToolOutput

if TYPE_CHECKING:
    from mcp.client.session import ClientSession

log = logging.getLogger("ava.foreign")

PROBE_S = 4.0
"""How long the newer greeting is waited for; an older server may not answer it at all."""
MOST_PAGES, MOST_TOOLS = 20, 500
OURS = "is Ava itself, and a subagent starts no subagents"

Fill = Callable[[Mapping[str, str], str | None], Mapping[str, str]]
"""Puts secrets in the place of placeholders: of values, and the URL that they are sent to (None: a program)."""


@dataclass(frozen=True)
class Means:
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
        return command_of(entry, env, self.run_id, folder, read_only=self.read_only, closed=self.closed)


class Link:
    """A greeted server."""

    def __init__(self, entry: ServerEntry, session: ClientSession, watch: Watch) -> None:
        self.watch = watch
        self._entry = entry
        self._session = session

    async def tools(self) -> tuple[Offered, ...]:
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
        return offers_of(self._entry.name, listed[:MOST_TOOLS])

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
        return output_of(answer.content, answer.structured_content, failed=bool(answer.is_error))


@asynccontextmanager
async def connected(entry: ServerEntry, means: Means) -> AsyncGenerator[Link]:
    """Start or reach a server, and greet it; leaving it leaves nothing of it.

    Errors come as the SDK's task groups have them; `why_not` puts all of them into words of ours.
    """
    from mcp.client.session import ClientSession
    from mcp_types import Implementation

    if entry.is_ours:
        raise ToolFailed(OURS)
    watch = Watch()
    for chatty in ("client", "mcp.client"):  # the SDK's, which write down what a server sent
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    try:
        async with _streams(entry, means, watch) as streams, only_answers(streams, watch) as (received, sent):
            session = ClientSession(received, sent, client_info=Implementation(name="ava-subagent", version="1"))
            async with session:
                await _greet(session)
                info = session.server_info
                if info is not None and info.name.strip().casefold() in OWN_NAMES:
                    raise ToolFailed(OURS)
                yield Link(entry, session, watch)
    except Exception as error:
        if watch.fault:
            raise ToolFailed(watch.fault) from error
        raise


@asynccontextmanager
async def _streams(entry: ServerEntry, means: Means, watch: Watch) -> AsyncGenerator[Any]:
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
        async with means.sandbox.start(command) as pipes, over_pipes(pipes, watch) as streams:
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


def why_not(error: BaseException, watch: Watch | None = None) -> str:
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
