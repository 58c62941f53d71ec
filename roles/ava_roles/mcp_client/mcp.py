"""A tool of another MCP server, as a run has it: the definition that was approved, and the run's own connection."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from ava_roles.mcp_client.running import RunServers
from ava_roles.mcp_client.tools import Offered
from ava_roles.tools.base import Place, ToolArgs, ToolOutput, ToolSpec

TIMEOUT_S = 60.0


class ForeignArgs(ToolArgs):
    """Arguments of a foreign tool: its server checks them."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ForeignTool:
    """One tool of one server.

    It is never read-only by our own declaration: a foreign hint makes no call repeatable after a crash.

    Args:
        server: The server's name.
        offered: The tool as it was approved.
        servers: The servers of the run.
        network: What is handed to it can leave this machine.
        program: The server is a program that is started here.
    """

    def __init__(self, server: str, offered: Offered, servers: RunServers, *, network: bool, program: bool) -> None:
        self._server = server
        self._offered = offered
        self._servers = servers
        self.spec = ToolSpec(
            name=offered.name,
            description=offered.description,
            args=ForeignArgs,
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

    async def __call__(self, args: Any, at: Place) -> ToolOutput:
        """Call it.

        Raises:
            ToolFailed: Its server cannot do it.
        """
        assert isinstance(args, ForeignArgs)
        return await self._servers.call(self._server, self._offered, args.model_extra or {})
