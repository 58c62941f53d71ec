"""Other MCP servers: whether each starts, which tools it has, and what its program may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio

from ava_server.cli.doctor.check import Finding, Setup, log_path
from ava_server.config.secrets import read_secrets

if TYPE_CHECKING:
    from ava_roles.mcp_client.connection import ToolListing
    from ava_roles.mcp_client.entry import ServerEntry

MOST_NAMED = 20
"""Tools of one server that are told by name."""
_MEND = "Correct [mcp_servers.{name}] in config.toml, start its program by hand to see what it says, then look again."


def servers(setup: Setup) -> list[Finding]:
    """Start the programs of MCP servers for a moment, side by side and 10 s at most, and tell what they have."""
    return _found(setup, remote=False)


def remote_servers(setup: Setup) -> list[Finding]:
    """Ask the MCP servers that are reached by their address."""
    return _found(setup, remote=True)


def not_asked(setup: Setup) -> list[Finding]:
    """Name the MCP servers that are reached by their address, and that nobody has asked."""
    configured = setup.settings.mcp_servers if setup.settings is not None else {}
    names = [name for name, server in configured.items() if server.url is not None]
    return [Finding(f"MCP server {name}", "note", "not asked; see `ava doctor --online`") for name in names]


def _found(setup: Setup, *, remote: bool) -> list[Finding]:
    if setup.settings is None or not setup.settings.mcp_servers or setup.root is None or log_path(setup) is None:
        return []
    from ava_server.approval.scope import sandbox_here
    from ava_server.runs.mcp_servers import McpServers

    root, settings = setup.root, setup.settings
    foreign = McpServers(settings, lambda: read_secrets(root.secrets_file), lambda: sandbox_here(settings))
    names = [name for name, entry in foreign.entries.items() if (entry.url is not None) == remote]
    listings: Mapping[str, ToolListing] = anyio.run(foreign.look, names) if names else {}
    loose = settings.sandbox.mode == "none"
    return [_finding(foreign.entries[name], listings[name], _may(foreign.entries[name], loose)) for name in names]


def _finding(entry: ServerEntry, listing: ToolListing, may: str) -> Finding:
    name = f"MCP server {entry.name}"
    if listing.fault:
        return Finding(name, "fault", f"{entry.where}: it {listing.fault}; {may}", _MEND.format(name=entry.name))
    had = [tool for tool in listing.tools if not tool.fault]
    kinds = (
        ("say of themselves that they only read", [tool.name for tool in had if not tool.changes]),
        ("can change things, and are had by their exact name alone", [tool.name for tool in had if tool.changes]),
        *((f"never offered, because {tool.fault}", [tool.name]) for tool in listing.tools if tool.fault),
    )
    parts = [f"{what}: {_named(tools)}" for what, tools in kinds[: 2 + MOST_NAMED] if tools]
    return Finding(name, "ok", "; ".join([f"{entry.where}, {may}", *(parts or ["it has no tools"])]))


def _may(entry: ServerEntry, loose: bool) -> str:
    """Return what a server may do here; loose is what nothing confines."""
    if entry.url is not None:
        return "which runs elsewhere"
    if loose:
        return 'which nothing confines (sandbox.mode = "none")'
    network = "with this machine's network" if entry.network else "without a network"
    folders = (
        f"may write to {', '.join(map(str, entry.read_write))}" if entry.read_write else "sees none of your folders"
    )
    return f"{network}, {folders}"


def _named(tools: list[str]) -> str:
    more = f" and {len(tools) - MOST_NAMED} more" if len(tools) > MOST_NAMED else ""
    return ", ".join(tools[:MOST_NAMED]) + more
