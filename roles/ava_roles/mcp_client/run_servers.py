"""The MCP servers of one run: listed for its proposal, started with it, called by its tools, ended with it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
from pydantic import ConfigDict

from ava_roles.errors import ToolFailed
from ava_roles.mcp_client.connection import LaunchContext, McpConnection, connect, describe_failure
from ava_roles.mcp_client.server_tools import OfferedTool, ServerEntry
from ava_roles.tool import ToolArgs, ToolContext, ToolOutput, ToolSpec

START_S = 20.0
"""The longest from a server's start until its tools are known, in a run and while a proposal waits for them."""
MAX_STARTS = 3
"""How often a server that keeps ending is started in one run."""
CLOSE_S = 1.0
"""How long a server may take to close its session before it is cancelled."""
CANCEL_S = 3.0
CACHE_S = 300.0
FAULT_CACHE_S = 15.0

log = logging.getLogger("ava.foreign")


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
        """Return the listings of servers, by name; all are asked side by side, each for at most `START_S`."""
        listings: dict[str, ToolListing] = {}

        async def list_one(entry: ServerEntry) -> None:
            listings[entry.name] = await self._listing(entry)

        async with anyio.create_task_group() as tasks:
            for entry in entries:
                tasks.start_soon(list_one, entry)
        return listings

    def forget(self) -> None:
        self._cache.clear()

    async def _listing(self, entry: ServerEntry) -> ToolListing:
        async with self._locks.setdefault(entry.digest, anyio.Lock()):
            until, listing = self._cache.get(entry.digest, (0.0, ToolListing()))
            if time.monotonic() < until:
                return listing
            listing = await list_tools(entry, await self._launch(entry))
            cache_s = FAULT_CACHE_S if listing.fault else CACHE_S
            self._cache[entry.digest] = (time.monotonic() + cache_s, listing)
            return listing


async def list_tools(entry: ServerEntry, launch: LaunchContext) -> ToolListing:
    try:
        with anyio.move_on_after(START_S):
            async with connect(entry, launch) as connection:
                return ToolListing(await connection.tools())
    except Exception as error:  # whatever a server does, the proposal continues without it
        why = describe_failure(error)
        log.info("the MCP server %s %s (%s)", entry.name, why, type(error).__name__)
        return ToolListing(fault=why)
    return ToolListing(fault=f"did not answer within {START_S:g} s")


@dataclass
class _StartedServer:
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ready: anyio.Event = field(default_factory=anyio.Event)
    leave: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)
    connection: McpConnection | None = None
    offers: Mapping[str, OfferedTool] = field(default_factory=dict[str, OfferedTool])
    fault: str = ""

    @property
    def is_alive(self) -> bool:
        return self.connection is not None and not self.connection.state.ended and not self.connection.state.fault


class RunMcpServers:
    """The servers of one run; `approved`: their tools as approved; `on_change` is called if one offers others."""

    def __init__(
        self,
        servers: Mapping[str, ServerEntry] | None = None,
        approved: Mapping[str, Sequence[OfferedTool]] | None = None,
        launch: LaunchContext | None = None,
        *,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._servers = servers or {}
        self._approved = approved or {}
        self._launch = launch
        self._on_change = on_change
        self._tasks: anyio.abc.TaskGroup | None = None
        self._running: dict[str, _StartedServer] = {}
        self._starts: dict[str, int] = {}
        self._locks = {name: anyio.Lock() for name in self._servers}
        self._ended = False

    def __bool__(self) -> bool:
        return bool(self._servers)

    async def start(self, tasks: anyio.abc.TaskGroup) -> str | None:
        """Start all servers side by side until the run ends; return why it cannot work as it was approved, or None."""
        self._tasks = tasks
        faults: dict[str, str] = {}

        async def start_one(name: str) -> None:
            started = await self._ensure_started(name)
            if started.fault:
                faults[name] = f'the MCP server "{name}" {started.fault}'
                return
            for tool in self._approved.get(name, ()):
                change = _describe_change(tool, started.offers)
                if change is not None:
                    faults[name] = change
                    return

        async with anyio.create_task_group() as starting:
            for name in self._servers:
                starting.start_soon(start_one, name)
        if not faults:
            return None
        if self._on_change is not None:
            self._on_change()
        return faults[min(faults)]

    async def call(self, server: str, tool: OfferedTool, args: Mapping[str, Any]) -> ToolOutput:
        """Call a tool; an ended server is started again. Raises ToolFailed: it failed; says how, in Ava's own words."""
        started = await self._ensure_started(server)
        connection = started.connection
        if connection is None:
            raise ToolFailed(f"{_named(server)} {started.fault or 'is not there'}.")
        change = _describe_change(tool, started.offers)
        if change is not None:
            raise ToolFailed(f"Not called: {change}.")
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        try:
            return await connection.call(tool.tool, args)
        except MCPError as error:
            if started.is_alive and error.code != CONNECTION_CLOSED:
                return ToolOutput(f"The MCP server refused it: {error.message}", success=False)
            failed: Exception = error
        except ToolFailed as error:
            raise ToolFailed(f"{_named(server)} {error}.") from error
        except Exception as error:
            failed = error
        connection.state.ended = True  # the next call starts it again
        why = describe_failure(failed, connection.state)
        text = f"{_named(server)} {why}. What it did with this call is not known."
        raise ToolFailed(text, unknown=True) from failed

    async def end(self) -> None:
        self._ended = True
        running = list(self._running.values())
        self._running.clear()
        for server in running:
            server.leave.set()
        with anyio.CancelScope(shield=True):
            for timeout_s in (CLOSE_S, CANCEL_S):
                with anyio.move_on_after(timeout_s):
                    for server in running:
                        await server.done.wait()
                for server in running:
                    server.scope.cancel()

    async def _ensure_started(self, name: str) -> _StartedServer:
        """Return a running server; start it if it does not run.

        After `MAX_STARTS` starts it returns a server with a `fault`. Raises ToolFailed if the run has ended.
        """
        async with self._locks[name]:
            started = self._running.get(name)
            if started is not None and started.is_alive:
                return started
            if self._ended or self._tasks is None:
                raise ToolFailed(f"{_named(name)} is ended with its run.")
            if self._starts.get(name, 0) >= MAX_STARTS:
                why = f"has ended {MAX_STARTS} times"
                if started is not None and started.fault:
                    why = started.fault
                return _StartedServer(fault=f"{why}, and is not started again")
            if started is not None:
                started.leave.set()
                started.scope.cancel()
            self._starts[name] = self._starts.get(name, 0) + 1
            started = self._running[name] = _StartedServer()
            self._tasks.start_soon(self._run, self._servers[name], started)
            await started.ready.wait()
            return started

    async def _run(self, entry: ServerEntry, started: _StartedServer) -> None:
        assert self._launch is not None
        started.scope.deadline = anyio.current_time() + START_S
        try:
            with started.scope:
                async with connect(entry, self._launch) as connection:
                    offers = await connection.tools()
                    started.offers = {tool.name: tool for tool in offers}
                    started.scope.deadline = math.inf
                    started.connection = connection
                    started.ready.set()
                    await started.leave.wait()
                    started.connection = None
        except Exception as error:  # whatever the server does, the run continues
            started.fault = describe_failure(error, started.connection.state if started.connection else None)
        finally:
            if not started.fault and not started.ready.is_set():
                started.fault = f"did not answer within {START_S:g} s"
            started.connection = None
            started.ready.set()
            started.done.set()


def _named(server: str) -> str:
    return f'The MCP server "{server}"'


def _describe_change(approved: OfferedTool, offers: Mapping[str, OfferedTool]) -> str | None:
    """Return how a tool differs from the one that was approved; None if it does not."""
    now = offers.get(approved.name)
    if now is None:
        return f"its MCP server does not offer {approved.name} any more"
    if not now.accepts_like(approved):
        return f"its MCP server has changed {approved.name} since it was approved"
    return None


TIMEOUT_S = 60.0


class McpToolArgs(ToolArgs):
    """Arguments of a foreign tool: its server checks them."""

    model_config = ConfigDict(extra="allow", frozen=True)


class McpTool:
    """One tool of an MCP server, as it was approved.

    It is never read-only: the server's own annotation does not make a call safe to repeat after a crash. `network`:
    what is passed to it can leave this machine. `program`: the server is a program that is started here.
    """

    def __init__(
        self, server: str, offered: OfferedTool, servers: RunMcpServers, *, network: bool, program: bool
    ) -> None:
        self._server = server
        self._offered = offered
        self._servers = servers
        self.spec = ToolSpec(
            name=offered.name,
            description=offered.description,
            args=McpToolArgs,
            read_only=False,
            timeout_s=TIMEOUT_S,
            network=network,
            writes=offered.changes,
            destroys=offered.destroys,
            idempotent=offered.idempotent,
            program=program,
            foreign=offered.parameters,
        )

    def activity(self, args: Any) -> str:
        """The arguments can be anything, so none are shown."""
        tool = self.spec.name.removeprefix(f"mcp__{self._server}__")
        return f'Calling the tool "{tool}" of the MCP server "{self._server}"'

    async def __call__(self, args: Any, at: ToolContext) -> ToolOutput:
        assert isinstance(args, McpToolArgs)
        return await self._servers.call(self._server, self._offered, args.model_extra or {})
