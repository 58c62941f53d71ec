"""Which tools of other MCP servers a run has: what its role names, of what the servers offer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ava_roles.mcp_client.discovery import Listing
from ava_roles.mcp_client.entry import ServerEntry
from ava_roles.mcp_client.mcp import ForeignTool
from ava_roles.mcp_client.names import covers, is_wildcard, server_of
from ava_roles.mcp_client.running import RunServers
from ava_roles.mcp_client.tools import Offered
from ava_roles.role import Role
from ava_roles.tools.base import Tool
from ava_server.approval.requests import SpawnArgs
from ava_server.approval.run_config import ForeignDefinition, ForeignUse
from ava_server.core.errors import Refused, ToolMissing

MOST_TOOLS = 64
MOST_CHARS = 60_000
"""Foreign tools of one run, and characters of their definitions: they stand in every request."""


@dataclass(frozen=True)
class ForeignScope:
    """The tools of other servers that a role comes to.

    Attributes:
        role: The role, each word for several tools replaced by their names.
        granted: Those tools, by full name.
        absent: Why a word of the role brings nothing.
        servers: The servers, as they are configured.
    """

    role: Role
    granted: Mapping[str, Offered] = field(default_factory=dict[str, Offered])
    absent: Mapping[str, str] = field(default_factory=dict[str, str])
    servers: Mapping[str, ServerEntry] = field(default_factory=dict[str, ServerEntry])

    def tools(self) -> Mapping[str, Tool]:
        """Return them as tools that can be looked at, and not be called."""
        nobody = RunServers()
        found: dict[str, Tool] = {}
        for name, offered in self.granted.items():
            entry = self.servers[server_of(name) or ""]
            found[name] = ForeignTool(
                entry.name, offered, nobody, network=entry.reaches_out, program=entry.command is not None
            )
        return found

    def narrowed(self, args: SpawnArgs) -> SpawnArgs:
        """Return a spawn whose `tools` and `blocked_tools` name each foreign tool by itself."""

        def each(words: Sequence[str] | None) -> list[str] | None:
            if words is None:
                return None
            return list(dict.fromkeys(name for word in words for name in self._meant(word)))

        return args.model_copy(update={"tools": each(args.tools), "blocked_tools": each(args.blocked_tools)})

    def _meant(self, word: str) -> list[str]:
        if server_of(word) is None:
            return [word]
        found = [name for name, tool in self.granted.items() if covers(word, name, tool.tool)]
        beyond = [name for name in self.absent if name == word or covers(name, word, "") or covers(word, name, "")]
        return found or beyond or [word]

    def check_need(self, need: str, tools: Sequence[str]) -> None:
        """Refuse a role that would go without a foreign tool that it needs.

        Raises:
            ToolMissing: It is not there; says why.
            Refused: The call itself took it away.
        """
        if any(name in tools and covers(need, name, tool.tool) for name, tool in self.granted.items()):
            return
        why = self.absent.get(need)
        if why is None:
            raise Refused(f"{self.role.name} needs {need}, which was taken away; leave it in tools")
        raise ToolMissing(f"{self.role.name} needs {need}, and {why}; see `ava doctor`, or use another role", need)

    def uses(self, tools: Sequence[str]) -> dict[str, ForeignUse]:
        """Return what is approved of each server: how it is reached, what it may, and the tools' definitions."""
        found: dict[str, ForeignUse] = {}
        for name, tool in self.granted.items():
            if name not in tools:
                continue
            entry = self.servers[server_of(name) or ""]
            use = found.setdefault(
                entry.name,
                ForeignUse(
                    digest=entry.digest,
                    where=entry.where,
                    network=entry.network,
                    remote=entry.url is not None,
                    read_write=tuple(map(str, entry.read_write)),
                ),
            )
            use.tools[name] = ForeignDefinition(
                tool=tool.tool, description=tool.description, parameters=dict(tool.parameters), changes=tool.changes
            )
        return found

    def notes(self, tools: Sequence[str]) -> tuple[str, ...]:
        """Return why tools that are wanted are not there, a sentence each."""
        return tuple(f"{name} is not there: {why}" for name, why in self.absent.items() if name in tools)


def foreign_scope(
    role: Role, servers: Mapping[str, ServerEntry], listings: Mapping[str, Listing]
) -> tuple[ForeignScope, tuple[str, ...]]:
    """Return what a role comes to, and what it needs of foreign tools.

    A tool that is not annotated as read-only is had only where the role names that very tool.
    """
    words = [name for name in role.tools if server_of(name) is not None]
    if not words:
        return ForeignScope(role), ()
    granted: dict[str, Offered] = {}
    absent: dict[str, str] = {}
    names: list[str] = []
    size = 0
    for word in role.tools:
        server = server_of(word)
        if server is None:
            names.append(word)
            continue
        found, why = _found(word, role, servers.get(server), listings.get(server))
        for tool in found:
            size += len(tool.description) + len(json.dumps(tool.parameters))
            if tool.name not in granted and (len(granted) == MOST_TOOLS or size > MOST_CHARS):
                why = f"a run has at most {MOST_TOOLS} foreign tools, of {MOST_CHARS:,} characters; name fewer"
                break
            granted[tool.name] = tool
            names.append(tool.name)
        if why:
            absent[word] = why
            names.append(word)
    own = replace(
        role,
        tools=tuple(dict.fromkeys(names)),
        needs=tuple(need for need in role.needs if server_of(need) is None),
    )
    return ForeignScope(own, granted, absent, servers), tuple(need for need in role.needs if server_of(need))


def _found(word: str, role: Role, entry: ServerEntry | None, listing: Listing | None) -> tuple[list[Offered], str]:
    """Return the tools that a role's word brings, or why it brings none."""
    server = server_of(word)
    if entry is None or listing is None:
        return [], f"no MCP server {server} is configured here ([mcp_servers.{server}] in config.toml)"
    if listing.fault:
        return [], f"the MCP server {server} {listing.fault}"
    meant = [tool for tool in listing.tools if covers(word, tool.name, tool.tool)]
    meant = [tool for tool in meant if not any(covers(denied, tool.name, tool.tool) for denied in role.denied)]
    if is_wildcard(word):
        found = [tool for tool in meant if not tool.fault and not tool.changes]
        return found, "" if found else (
            f"the MCP server {server} has no such tool that says of itself that it only reads;"
            " what can change things is had only where a role names that very tool"
        )
    if not meant:
        return [], f"the MCP server {server} has no such tool"
    return ([], meant[0].fault) if meant[0].fault else (meant[:1], "")
