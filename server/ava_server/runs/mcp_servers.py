"""The configured MCP servers of this process: what they offer, and what a run gets from them."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from ava_roles.errors import ToolFailed
from ava_roles.mcp_client.connection import LaunchContext, ToolDiscovery, ToolListing, list_tools
from ava_roles.mcp_client.entry import ServerEntry, server_of
from ava_roles.mcp_client.run_servers import McpTool, RunMcpServers
from ava_roles.placeholders import PLACEHOLDER, secret_names
from ava_roles.role import Role
from ava_roles.sandbox.removal import remove_tree
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.tool import Tool
from ava_server.approval.scope import no_sandbox
from ava_server.budget.run_config import ForeignUse, RunConfig
from ava_server.config.secrets import Secret

if TYPE_CHECKING:
    from ava_server.config.settings import Settings

FOLDERS = "mcp-"
"""Prefix of the folders, among the runs' scratch folders, of servers that are only asked for their tools."""
STALE_S = 120.0
"""Seconds after which such a folder was left behind by a process that was killed."""
DISCOVERY = "looking"
"""In place of a run's id where a server is only asked for its tools."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def configured_servers(settings: Settings) -> Mapping[str, ServerEntry]:
    """Return the configured servers by name."""
    return {
        name: ServerEntry(name, own.command, own.args, own.env, own.url, own.headers, own.network, own.read_write)
        for name, own in settings.mcp_servers.items()
    }


class McpServers:
    """The MCP servers that are configured here.

    Args:
        settings: What is configured.
        secrets: Reads the stored secrets; blocks.
        sandbox: Finds the sandbox for the programs of servers; blocks.

    Attributes:
        entries: The servers by name.
    """

    def __init__(
        self,
        settings: Settings,
        secrets: Callable[[], Mapping[str, Secret]],
        sandbox: Callable[[], Sandbox | Unavailable],
    ) -> None:
        self.entries = configured_servers(settings)
        self._settings = settings
        self._secrets = secrets
        self._sandbox = sandbox
        self._discovery = ToolDiscovery(self._discovery_context)

    async def listings(self, role: Role) -> Mapping[str, ToolListing]:
        """Return what the servers that a role names offer; those that are not known yet are asked, for 10 s at most."""
        names = dict.fromkeys(server for tool in role.tools if (server := server_of(tool)) is not None)
        return await self._discovery.offers(self.entries[name] for name in names if name in self.entries)

    def cannot(self, config: RunConfig) -> str | None:
        """Return why a run cannot have its approved servers here, or None; starts none."""
        for name, use in used_servers(config).items():
            entry = self.entries.get(name)
            if entry is None:
                return f"the MCP server {name} is not configured here"
            if entry.digest != use.digest:
                return f"the configuration of the MCP server {name} has changed since this was approved"
        return None

    def of_run(self, config: RunConfig, run_id: str, scratch: Path, sandbox: Sandbox | None) -> RunMcpServers:
        """Return the servers of a run, not started yet.

        Args:
            config: What was approved.
            run_id: The run.
            scratch: The run's folder.
            sandbox: Confines servers that are programs; None where there are none.
        """
        uses = used_servers(config)
        if not uses:
            return RunMcpServers()

        approved = {
            name: [tool.offered(full) for full, tool in use.tools.items() if full in config.tools]
            for name, use in uses.items()
        }
        context = self._launch_context(run_id, scratch, sandbox or no_sandbox())
        changed = self._discovery.forget  # the cached listing is out of date: the next proposal asks again
        return RunMcpServers({name: self.entries[name] for name in uses}, approved, context, on_change=changed)

    async def look(self, names: Iterable[str]) -> Mapping[str, ToolListing]:
        """Ask servers now, concurrently and each for 10 s at most, and return what they offer."""
        found: dict[str, ToolListing] = {}

        async def one(entry: ServerEntry) -> None:
            found[entry.name] = await list_tools(entry, await self._discovery_context(entry))

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, self.entries[name])
        return found

    def sweep(self) -> None:
        """Remove folders that killed processes have left behind. Blocks."""
        for left in self._settings.paths.scratch.glob(f"{FOLDERS}*"):
            with contextlib.suppress(OSError):  # another process is removing it
                if left.stat().st_mtime < time.time() - STALE_S:
                    remove_tree(left)

    async def _discovery_context(self, entry: ServerEntry) -> LaunchContext:
        wanted = self._sandbox if entry.command is not None else no_sandbox
        return self._launch_context(DISCOVERY, self._settings.paths.scratch, await anyio.to_thread.run_sync(wanted))

    def _launch_context(self, run_id: str, scratch: Path, sandbox: Sandbox | Unavailable) -> LaunchContext:
        def folder(name: str) -> Path:
            scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=f"{FOLDERS}{name}-", dir=scratch))

        def fill(values: Mapping[str, str], url: str | None) -> Mapping[str, str]:
            return fill_secrets(values, url, self._secrets)

        settings = self._settings
        return LaunchContext(run_id, sandbox, settings.sandbox.read_only, (settings.data_root,), folder, fill)


def used_servers(config: RunConfig) -> Mapping[str, ForeignUse]:
    """Return the servers of which a run has a tool."""
    return {name: use for name, use in config.foreign.items() if any(tool in config.tools for tool in use.tools)}


def foreign_tools(config: RunConfig, servers: RunMcpServers) -> Mapping[str, Tool]:
    """Return the tools of a run's MCP servers."""
    return {
        full: McpTool(name, tool.offered(full), servers, network=use.remote or use.network, program=not use.remote)
        for name, use in used_servers(config).items()
        for full, tool in use.tools.items()
        if full in config.tools
    }


def fill_secrets(
    values: Mapping[str, str], url: str | None, secrets: Callable[[], Mapping[str, Secret]]
) -> Mapping[str, str]:
    """Return an environment, or headers, with secrets in place of their placeholders. Blocks.

    `config.toml` allows their use. A secret is sent to an address only over https, and only where that is one of the
    secret's hosts, if it has any; or to this machine itself.

    Args:
        values: What is configured.
        url: The address; None for a program.
        secrets: Reads what is stored.

    Raises:
        ToolFailed: One of them cannot be used; the text says what to do and follows the server's name.
    """
    names = secret_names(list(values.values()))
    if not names:
        return values
    stored = secrets()
    for name in names:
        secret = stored.get(name)
        if secret is None:
            raise ToolFailed(f"cannot be used: the secret {name} is not stored here (`ava secret set {name}`)")
        if url is not None and (fault := _refuse_address(secret, url)):
            raise ToolFailed(f"cannot be used: {fault}")
    return {key: PLACEHOLDER.sub(lambda found: stored[found[1]].value, text) for key, text in values.items()}


def _refuse_address(secret: Secret, url: str) -> str | None:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if host in _LOOPBACK:
        return None
    if parts.scheme != "https":
        return f"the secret {secret.name} is sent over https alone"
    named = host if parts.port in (None, 443) else f"{host}:{parts.port}"
    if secret.hosts and named not in secret.hosts:
        return f"the secret {secret.name} is for {', '.join(secret.hosts)}, not for {named}"
    return None
