"""The foreign servers of one run: started with it, asked by its calls, gone with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
from pydantic import ConfigDict

from ava_roles.errors import ToolFailed
from ava_roles.mcp_client.connection import LaunchContext, McpConnection, connect, describe_failure
from ava_roles.mcp_client.entry import ServerEntry
from ava_roles.mcp_client.tools import OfferedTool
from ava_roles.tool import ToolArgs, ToolContext, ToolOutput, ToolSpec

START_S = 20.0
"""How long a server may take from its start until its tools are known."""
STARTS = 3
"""How often a server that ends by itself is started in one run."""
FAREWELL_S = 1.0
"""How long a server may take over the end of its session, before it is ended."""
END_S = 3.0


@dataclass
class _Held:
    """One start of one server."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ready: anyio.Event = field(default_factory=anyio.Event)
    leave: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)
    link: McpConnection | None = None
    offers: Mapping[str, OfferedTool] = field(default_factory=dict[str, OfferedTool])
    fault: str = ""

    @property
    def lives(self) -> bool:
        return self.link is not None and not self.link.watch.ended and not self.link.watch.fault


class RunMcpServers:
    """The servers of one run.

    Args:
        servers: Those that it uses, by name, as they are configured here.
        approved: The tools that it has of each, as they were approved.
        means: What they are started with.
        changed: Told that a server is not as it was known.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerEntry] | None = None,
        approved: Mapping[str, Sequence[OfferedTool]] | None = None,
        means: LaunchContext | None = None,
        *,
        changed: Callable[[], None] | None = None,
    ) -> None:
        self._servers = servers or {}
        self._approved = approved or {}
        self._means = means
        self._told = changed
        self._tasks: anyio.abc.TaskGroup | None = None
        self._held: dict[str, _Held] = {}
        self._starts: dict[str, int] = {}
        self._locks = {name: anyio.Lock() for name in self._servers}
        self._over = False

    def __bool__(self) -> bool:
        """Whether the run uses any."""
        return bool(self._servers)

    async def start(self, tasks: anyio.abc.TaskGroup) -> str | None:
        """Start all of them side by side, and look whether their tools are those that were approved.

        Args:
            tasks: Where they are kept; each of them is a task there until the run ends.

        Returns:
            Why the run cannot work as it was approved, in words of ours; None when it can.
        """
        self._tasks = tasks
        faults: dict[str, str] = {}

        async def one(name: str) -> None:
            held = await self._lively(name)
            if held.fault:
                faults[name] = f"the MCP server {name} {held.fault}"
                return
            for tool in self._approved.get(name, ()):
                if (fault := _changed(tool, held.offers)) is not None:
                    faults[name] = fault
                    return

        async with anyio.create_task_group() as starting:
            for name in self._servers:
                starting.start_soon(one, name)
        if faults and self._told is not None:
            self._told()
        return next((faults[name] for name in sorted(faults)), None)

    async def call(self, server: str, tool: OfferedTool, args: Mapping[str, Any]) -> ToolOutput:
        """Call a tool, of a server that is started again where it has ended by itself.

        Raises:
            ToolFailed: The server cannot do it: what happened, in words of ours.
        """
        held = await self._lively(server)
        link = held.link
        if link is None:
            raise ToolFailed(f"The MCP server {server} {held.fault or 'is not there'}.")
        if (fault := _changed(tool, held.offers)) is not None:
            raise ToolFailed(f"Not called: {fault}.")
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        try:
            return await link.call(tool.tool, args)
        except MCPError as error:
            if held.lives and error.code != CONNECTION_CLOSED:
                return ToolOutput(f"The MCP server refused it: {error.message}", success=False)
            failed: Exception = error
        except ToolFailed as error:
            raise ToolFailed(f"The MCP server {server} {error}.") from error
        except Exception as error:
            failed = error
        link.watch.ended = True  # the next call starts it again
        why = describe_failure(failed, link.watch)
        raise ToolFailed(f"The MCP server {server} {why}. What it did with this call is not known.") from failed

    async def end(self) -> None:
        """End all of them; nothing of them is left then."""
        self._over = True
        held = list(self._held.values())
        self._held.clear()
        for each in held:
            each.leave.set()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(FAREWELL_S):
                for each in held:
                    await each.done.wait()
            for each in held:
                each.scope.cancel()
            with anyio.move_on_after(END_S):
                for each in held:
                    await each.done.wait()

    async def _lively(self, name: str) -> _Held:
        """Return a server that has been started; again where it ended, a few times."""
        async with self._locks[name]:
            held = self._held.get(name)
            if held is not None and held.lives:
                return held
            if self._over or self._tasks is None:
                raise ToolFailed(f"The MCP server {name} is ended with its run.")
            if self._starts.get(name, 0) >= STARTS:
                why = held.fault if held is not None and held.fault else f"has ended {STARTS} times"
                return _Held(fault=f"{why}, and is not started again")
            if held is not None:
                held.leave.set()
                held.scope.cancel()
            self._starts[name] = self._starts.get(name, 0) + 1
            held = self._held[name] = _Held()
            self._tasks.start_soon(self._hold, self._servers[name], held)
            await held.ready.wait()
            return held

    async def _hold(self, entry: ServerEntry, held: _Held) -> None:
        """Keep one server until the run ends, or it ends itself."""
        assert self._means is not None
        held.scope.deadline = anyio.current_time() + START_S
        try:
            with held.scope:
                async with connect(entry, self._means) as link:
                    offers = await link.tools()
                    held.offers = {tool.name: tool for tool in offers}
                    held.scope.deadline = math.inf
                    held.link = link
                    held.ready.set()
                    await held.leave.wait()
                    held.link = None
        except Exception as error:  # whatever a foreign program does is no fault of the run's
            held.fault = describe_failure(error, held.link.watch if held.link else None)
        finally:
            if not held.fault and not held.ready.is_set():
                held.fault = f"did not answer within {START_S:g} s"
            held.link = None
            held.ready.set()
            held.done.set()


def _changed(approved: OfferedTool, offers: Mapping[str, OfferedTool]) -> str | None:
    """Return why a tool is not the one that was approved, or None."""
    now = offers.get(approved.name)
    if now is None:
        return f"{approved.name} is not among the tools of its MCP server any more"
    if not now.accepts_like(approved):
        return f"{approved.name} is another tool now than the one that was approved: its MCP server has changed it"
    return None


TIMEOUT_S = 60.0


class McpToolArgs(ToolArgs):
    """Arguments of a foreign tool: its server checks them."""

    model_config = ConfigDict(extra="allow", frozen=True)


class McpTool:
    """One tool of one server.

    It is never read-only by our own declaration: a foreign hint makes no call repeatable after a crash.

    Args:
        server: The server's name.
        offered: The tool as it was approved.
        servers: The servers of the run.
        network: What is handed to it can leave this machine.
        program: The server is a program that is started here.
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
            program=program,
            foreign=offered.parameters,
        )

    def activity(self, args: Any) -> str:
        """Return what is shown while it runs; its arguments are not ours to make a sentence of."""
        return f"Asking {self._server}: {self.spec.name.removeprefix(f'mcp__{self._server}__')}"

    async def __call__(self, args: Any, at: ToolContext) -> ToolOutput:
        """Call it.

        Raises:
            ToolFailed: Its server cannot do it.
        """
        assert isinstance(args, McpToolArgs)
        return await self._servers.call(self._server, self._offered, args.model_extra or {})
