"""The tools of MCP servers that a role gets, and what is approved of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ava_roles.mcp_client.run_servers import McpTool, RunMcpServers, ToolListing
from ava_roles.mcp_client.server_tools import OfferedTool, ServerEntry, covers, is_wildcard, server_of
from ava_roles.role import Role
from ava_roles.tool import Tool
from ava_server.core.errors import Refused, ToolMissing
from ava_server.core.names import named_role
from ava_server.run_config.parts import ForeignDefinition, ForeignUse

MOST_TOOLS = 64
"""Most MCP tools of one run."""
MOST_CHARS = 60_000
"""Most characters of their definitions, which are in every request."""


def resolve_mcp_scope(
    role: Role, servers: Mapping[str, ServerEntry], listings: Mapping[str, ToolListing]
) -> tuple[McpScope, tuple[str, ...]]:
    """Return the MCP tools that a role gets, and the MCP tools that it needs, as its `needs` names them.

    A tool that is not annotated as read-only has to be named in full; a pattern does not bring it.
    """
    if all(server_of(pattern) is None for pattern in role.tools):
        return McpScope(role), ()
    granted: dict[str, OfferedTool] = {}
    absent: dict[str, str] = {}
    unreachable: set[str] = set()
    names: list[str] = []
    size = 0
    for pattern in role.tools:
        server = server_of(pattern)
        if server is None:  # a tool of Ava's own
            names.append(pattern)
            continue
        listing = listings.get(server)
        if server not in servers or listing is None or listing.fault:
            unreachable.add(server)
        offered, why_absent = _find_tools(pattern, role, servers.get(server), listing)
        for tool in offered:
            size += len(tool.description) + len(json.dumps(tool.parameters))
            has_room = len(granted) < MOST_TOOLS and size <= MOST_CHARS
            if tool.name not in granted and not has_room:
                why_absent = f"a run has at most {MOST_TOOLS} foreign tools, of {MOST_CHARS:,} characters; name fewer"
                break
            granted[tool.name] = tool
            names.append(tool.name)
        if why_absent:
            absent[pattern] = why_absent
            names.append(pattern)
    own_needs: list[str] = []
    foreign_needs: list[str] = []
    for need in role.needs:
        if server_of(need) is None:
            own_needs.append(need)
        else:
            foreign_needs.append(need)
    expanded_role = role.model_copy(update={"tools": tuple(dict.fromkeys(names)), "needs": tuple(own_needs)})
    return McpScope(expanded_role, granted, absent, servers, frozenset(unreachable)), tuple(foreign_needs)


@dataclass(frozen=True)
class McpScope:
    """The MCP tools that a role gets.

    Attributes:
        role: The role, with each pattern replaced by the names of its tools.
        granted: The tools that it gets, by their full name.
        absent: Why a pattern or a name brings no tools, or only some of them.
        servers: The configured servers, by name.
        unreachable: The servers of which no tool can be used now.
    """

    role: Role
    granted: Mapping[str, OfferedTool] = field(default_factory=dict[str, OfferedTool])
    absent: Mapping[str, str] = field(default_factory=dict[str, str])
    servers: Mapping[str, ServerEntry] = field(default_factory=dict[str, ServerEntry])
    unreachable: frozenset[str] = frozenset()

    def tools(self) -> Mapping[str, Tool]:
        """Return the granted tools for their descriptions. They have no connection, so they cannot be called."""
        no_servers = RunMcpServers()
        tools: dict[str, Tool] = {}
        for name, offered in self.granted.items():
            entry = self.servers[server_of(name) or ""]
            tools[name] = McpTool(
                entry.name, offered, no_servers, network=entry.reaches_out, program=entry.command is not None
            )
        return tools

    def expand(self, words: Sequence[str]) -> list[str]:
        """Return these names, with each pattern replaced by the names that it matches."""
        names: list[str] = []
        for word in words:
            names += self._matching(word)
        return list(dict.fromkeys(names))

    def _matching(self, word: str) -> list[str]:
        """Return the tools that a pattern brings; if it brings none, the absent names that overlap with it."""
        if server_of(word) is None:
            return [word]
        granted = [name for name, tool in self.granted.items() if covers(word, name, tool.tool)]
        if granted:
            return granted
        absent: list[str] = []
        for name in self.absent:
            if name == word or covers(name, word, "") or covers(word, name, ""):
                absent.append(name)
        return absent or [word]

    def check_servers(self, wanted: Sequence[str]) -> None:
        """Raise ToolMissing if some of the wanted tools are MCP tools, and all their servers are unreachable."""
        foreign = [name for name in wanted if server_of(name) is not None]
        if not foreign:
            return
        if any(server_of(name) not in self.unreachable for name in foreign):
            return
        why = "; ".join(dict.fromkeys(self.absent[name] for name in foreign))
        raise ToolMissing(
            f"{named_role(self.role.name)} works with MCP servers, and none of them can be used now:"
            f" {why}. Try again in half a minute, since a server may be slow the first time; `ava doctor` shows each",
            foreign[0],
        )

    def check_need(self, need: str, tools: Sequence[str]) -> None:
        """Check that one of a run's tools is the needed MCP tool.

        Raises ToolMissing if its server does not offer it, Refused if the call excluded it.
        """
        for name, tool in self.granted.items():
            if name in tools and covers(need, name, tool.tool):
                return
        why = self.absent.get(need)
        if why is None:
            raise excluded(self.role, need)
        raise ToolMissing(
            f"{named_role(self.role.name)} needs {need}, and {why}; see `ava doctor`, or use another role", need
        )

    def uses(self, tools: Sequence[str]) -> dict[str, ForeignUse]:
        """Return, by server, what a person approves: its address or program, its rights, and its tools' definitions."""
        uses: dict[str, ForeignUse] = {}
        for name, tool in self.granted.items():
            if name not in tools:
                continue
            entry = self.servers[server_of(name) or ""]
            if entry.name not in uses:
                uses[entry.name] = ForeignUse(
                    digest=entry.digest,
                    where=entry.where,
                    network=entry.network,
                    remote=entry.url is not None,
                    read_write=tuple(map(str, entry.read_write)),
                )
            uses[entry.name].tools[name] = ForeignDefinition(
                tool=tool.tool,
                description=tool.description,
                parameters=dict(tool.parameters),
                changes=tool.changes,
                destroys=tool.destroys,
                idempotent=tool.idempotent,
            )
        return uses

    def notes(self, tools: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"{name} is not there: {why}" for name, why in self.absent.items() if name in tools)


def excluded(role: Role, need: str) -> Refused:
    who = named_role(role.name)
    return Refused(f"{who} needs {need}, which the call excludes; keep it in tools and out of blocked_tools")


def _find_tools(
    word: str, role: Role, entry: ServerEntry | None, listing: ToolListing | None
) -> tuple[list[OfferedTool], str]:
    """Return the tools that a role's pattern or name brings, or why it brings none."""
    server = server_of(word)
    if entry is None or listing is None:
        return [], f'no MCP server "{server}" is configured here ([mcp_servers.{server}] in config.toml)'
    if listing.fault:
        return [], f'the MCP server "{server}" {listing.fault}'

    matching: list[OfferedTool] = []
    for tool in listing.tools:
        is_denied = any(covers(pattern, tool.name, tool.tool) for pattern in role.denied)
        if covers(word, tool.name, tool.tool) and not is_denied:
            matching.append(tool)
    if is_wildcard(word):
        read_only = [tool for tool in matching if not tool.fault and not tool.changes]
        if read_only:
            return read_only, ""
        return [], (
            f'no such tool of the MCP server "{server}" says that it only reads;'
            " a role has to name a tool that can change things in full"
        )
    if not matching:
        return [], f'the MCP server "{server}" has no such tool'
    if matching[0].fault:
        return [], matching[0].fault
    return matching[:1], ""
