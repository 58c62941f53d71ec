"""The scope of a run's programs: commands and MCP servers, the sandbox that confines them, and where they work.

Users over HTTP work on another machine: folders, role files and programs here belong to the operator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ava_audit.rows import RunRow
from ava_roles import BUILT_IN_SOURCE
from ava_roles.catalog import Catalog
from ava_roles.errors import RolesError, WorkspaceRefused
from ava_roles.mcp_client.run_servers import McpTool, RunMcpServers, ToolListing
from ava_roles.mcp_client.tools import PREFIX, OfferedTool, ServerEntry, covers, is_wildcard, server_of
from ava_roles.project_files import READ_BY_AGENTS
from ava_roles.role import Role, parse_role
from ava_roles.sandbox.command_workspace import CopiedWorkspace
from ava_roles.sandbox.git import Accept, find_git_folders, git_program
from ava_roles.sandbox.path_access import remove_tree
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import STRENGTH, Sandbox, Unavailable
from ava_roles.sandbox.selection import find_sandbox
from ava_roles.sandbox.toolchains import HostFolders
from ava_roles.sandbox.workspace import Workspace, recheck_workspace, repository_of, resolve_workspace
from ava_roles.tool import Tool
from ava_server.budget.run_config import NO_COMMANDS, ForeignDefinition, ForeignUse, RunConfig
from ava_server.budget.user_limits import user_settings
from ava_server.config.role_folders import RolePlaces
from ava_server.config.settings import Settings
from ava_server.core.data_root import home_folder
from ava_server.core.errors import BadInput, Refused, ToolMissing
from ava_server.core.ids import IN_PROCESS

if TYPE_CHECKING:
    from ava_server.config.settings import Settings

_WORKBENCH = "bench-"
"""Prefix of the folder in which a run's commands work; the generation of its owner follows."""


def sandbox_here(settings: Settings) -> Sandbox | Unavailable:
    """Return the sandbox for commands and MCP servers here. The first call of a process may block for seconds."""
    return find_sandbox(settings.sandbox.mode, settings.paths.sandbox)


def runs_commands(names: Sequence[str], tools: Mapping[str, Tool]) -> bool:
    return any(name in tools and tools[name].spec.commands for name in names)


def usable_here(tools: Mapping[str, Tool], sandbox: Sandbox | Unavailable) -> dict[str, Tool]:
    """Return the tools that this machine can offer: commands with a sandbox, edits with one that confines, and git.

    A run's changes are executed when they are verified, and git keeps them; so edits need more than commands.
    """
    commands = not isinstance(sandbox, Unavailable)
    edits = not isinstance(sandbox, Unavailable) and sandbox.kind != "none" and git_program(None) is not None
    return {
        name: tool
        for name, tool in tools.items()
        if (commands or not tool.spec.commands) and (edits or not tool.spec.edits)
    }


def sandbox_for(
    wanted: bool, find: Callable[[], Sandbox | Unavailable], *, files_open: bool
) -> Sandbox | Unavailable | None:
    """Return the sandbox for a run's commands, or why it can have none; None for a run without commands.

    Without `files_open` the run may not read files, which it could with unconfined commands.
    """
    if not wanted:
        return None
    sandbox = find()
    if not isinstance(sandbox, Unavailable) and sandbox.kind == "none" and not files_open:
        return Unavailable(
            'nothing confines commands here (sandbox.mode = "none"), and this run may not read files',
            "name the folder in workspace",
        )
    return sandbox


def confinement_of(sandbox: Sandbox | Unavailable | None) -> str:
    """Return the sandbox of a run's programs as its configuration names it."""
    return NO_COMMANDS if sandbox is None or isinstance(sandbox, Unavailable) else sandbox.kind


def no_sandbox() -> Unavailable:
    return Unavailable("no sandbox was looked for here", "use a role that runs no commands")


def strength(kind: str) -> int:
    """Return how strongly a sandbox confines; an unknown kind, of a newer program, counts as the strongest."""
    return next((strength for known, strength in STRENGTH.items() if known == kind), len(STRENGTH))


def make_workbench(
    run: RunRow, config: RunConfig, files: Root | None, scratch: Path, sandbox: Sandbox, settings: Settings
) -> CopiedWorkspace:
    """Return the folder in which a claimed run's commands work; the first command creates it."""
    return CopiedWorkspace(
        mounts=sandbox.mounts,
        here=scratch / f"{_WORKBENCH}{run.generation}",
        files=files,
        run_id=run.id,
        host=HostFolders(home_folder(), settings.sandbox.read_only, (settings.data_root,)),
        carry=parse_role(config.role_text, config.role_source, config.role).carry,
        network=config.network,
        git_folder=config.git_folder,
        without=frozenset() if config.runner == IN_PROCESS or obeys_project(config) else READ_BY_AGENTS,
    )


def obeys_project(config: RunConfig) -> bool:
    """Tell whether files of the folder that a run works in may say how: those of what it reviews may not."""
    role = parse_role(config.role_text, config.role_source, config.role)
    return role.project_instructions is True and config.asked.get("project_instructions") is not False


def git_folder_rule(
    roots: Sequence[Path] | None, *, data_root: Path, home: Path, allow: Sequence[Path], owner: bool
) -> Accept:
    """Return the rule for git folders outside of a checkout: that for workspaces, `recheck_workspace`.

    With `owner`, it is the user to whom the data root belongs. Others learn nothing of what exists here.
    """

    def accept(folder: Path) -> None:
        try:
            recheck_workspace(folder, roots=roots, data_root=data_root, home=home, allow=allow)
        except WorkspaceRefused:
            if owner:
                raise
            raise WorkspaceRefused("it lies outside of this user's folders") from None

    return accept


def git_folder_of(workspace: Path, home: Path, accept: Accept) -> str:
    """Return the git folder of a workspace's checkout, where it lies outside of that; else empty. Blocks.

    Raises:
        NoGitFolder: Git would follow something elsewhere, or that folder is refused.
        OSError: It cannot be read.
    """
    repository = repository_of(workspace, home)
    return find_git_folders(repository, accept).outside if repository is not None else ""


def remove_workbenches(scratch: Path, up_to: int | None = None) -> None:
    """Remove the command folders of a run's owners `up_to` a generation: they were killed or have lost it. Blocks."""
    for bench in scratch.glob(f"{_WORKBENCH}*"):
        generation = bench.name.removeprefix(_WORKBENCH)
        if up_to is None or (generation.isdecimal() and int(generation) <= up_to):
            with suppress(OSError):  # its commands are still being ended; the folder is removed with the run
                remove_tree(bench)


MOST_TOOLS = 64
MOST_CHARS = 60_000
"""Most MCP tools of one run, and characters of their definitions: every request has them."""


def excluded(role: Role, need: str) -> Refused:
    return Refused(f"{role.name} needs {need}, which the call excludes; keep it in tools and out of blocked_tools")


@dataclass(frozen=True)
class McpScope:
    """The MCP tools that a role gets.

    Attributes:
        role: The role, with each pattern replaced by the names of its tools.
        absent: By pattern or name, why it brings no tools.
        unreachable: The servers of which nothing can be used now.
    """

    role: Role
    granted: Mapping[str, OfferedTool] = field(default_factory=dict[str, OfferedTool])
    absent: Mapping[str, str] = field(default_factory=dict[str, str])
    servers: Mapping[str, ServerEntry] = field(default_factory=dict[str, ServerEntry])
    unreachable: frozenset[str] = frozenset()

    def tools(self) -> Mapping[str, Tool]:
        """Return the granted tools, to be described and not called."""
        no_servers = RunMcpServers()
        found: dict[str, Tool] = {}
        for name, offered in self.granted.items():
            entry = self.servers[server_of(name) or ""]
            found[name] = McpTool(
                entry.name, offered, no_servers, network=entry.reaches_out, program=entry.command is not None
            )
        return found

    def expanded(self, words: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(name for word in words for name in self._matching(word)))

    def _matching(self, word: str) -> list[str]:
        if server_of(word) is None:
            return [word]
        found = [name for name, tool in self.granted.items() if covers(word, name, tool.tool)]
        beyond = [name for name in self.absent if name == word or covers(name, word, "") or covers(word, name, "")]
        return found or beyond or [word]

    def check_servers(self, wanted: Sequence[str]) -> None:
        """Raise ToolMissing where none of the servers of the wanted tools can be used now."""
        words = [name for name in wanted if server_of(name) is not None]
        if not words or any(server_of(name) not in self.unreachable for name in words):
            return
        why = "; ".join(dict.fromkeys(self.absent[name] for name in words))
        raise ToolMissing(
            f"{self.role.name} works with MCP servers, and none of them can be used now: {why}. Try again in half a"
            " minute, since a server may be slow the first time; `ava doctor` shows each",
            words[0],
        )

    def check_need(self, need: str, tools: Sequence[str]) -> None:
        """Raise ToolMissing where an MCP tool that is needed is not there, Refused where the call blocked it."""
        if any(name in tools and covers(need, name, tool.tool) for name, tool in self.granted.items()):
            return
        why = self.absent.get(need)
        if why is None:
            raise excluded(self.role, need)
        raise ToolMissing(f"{self.role.name} needs {need}, and {why}; see `ava doctor`, or use another role", need)

    def uses(self, tools: Sequence[str]) -> dict[str, ForeignUse]:
        """Return what is approved of each server: its address or program, its rights, and its tools' definitions."""
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
        return tuple(f"{name} is not there: {why}" for name, why in self.absent.items() if name in tools)


def resolve_mcp_scope(
    role: Role, servers: Mapping[str, ServerEntry], listings: Mapping[str, ToolListing]
) -> tuple[McpScope, tuple[str, ...]]:
    """Return the MCP tools that a role gets, and those that it needs.

    A tool that is not annotated as read-only has to be named in full; a pattern does not bring it.
    """
    words = [name for name in role.tools if server_of(name) is not None]
    if not words:
        return McpScope(role), ()
    granted: dict[str, OfferedTool] = {}
    absent: dict[str, str] = {}
    unreachable: set[str] = set()
    names: list[str] = []
    size = 0
    for word in role.tools:
        server = server_of(word)
        if server is None:
            names.append(word)
            continue
        listing = listings.get(server)
        if server not in servers or listing is None or listing.fault:
            unreachable.add(server)
        found, why = _found(word, role, servers.get(server), listing)
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
    needs = tuple(need for need in role.needs if server_of(need) is None)
    own = role.model_copy(update={"tools": tuple(dict.fromkeys(names)), "needs": needs})
    foreign_needs = tuple(need for need in role.needs if server_of(need))
    return McpScope(own, granted, absent, servers, frozenset(unreachable)), foreign_needs


def _found(
    word: str, role: Role, entry: ServerEntry | None, listing: ToolListing | None
) -> tuple[list[OfferedTool], str]:
    """Return the tools of a role's pattern or name, or why there are none."""
    server = server_of(word)
    if entry is None or listing is None:
        return [], f"no MCP server {server} is configured here ([mcp_servers.{server}] in config.toml)"
    if listing.fault:
        return [], f"the MCP server {server} {listing.fault}"

    def matches(tool: OfferedTool) -> bool:
        denied = any(covers(each, tool.name, tool.tool) for each in role.denied)
        return covers(word, tool.name, tool.tool) and not denied

    matching = list(filter(matches, listing.tools))
    if is_wildcard(word):
        found = [tool for tool in matching if not tool.fault and not tool.changes]
        return found, "" if found else (
            f"no such tool of the MCP server {server} says that it only reads;"
            " a role has to name a tool that can change things in full"
        )
    if not matching:
        return [], f"the MCP server {server} has no such tool"
    return ([], matching[0].fault) if matching[0].fault else (matching[:1], "")


# -- users over HTTP --------------------------------------------------------------------------------------------------


def roles_over_http(settings: Settings, user: str, *, owner: bool) -> Catalog:
    """Return the roles of a user over HTTP: the built-in ones and the data root's. Blocks.

    Roles of projects and Claude Code's agents are only for the person at this machine. A role file that may use
    secrets, MCP servers, or commands with this machine's network acts with the operator's rights: only the operator and
    users whose `roles` name it have it.

    `owner`: it is the operating system's user, to whom the data root belongs.
    """
    named = user_settings(settings, user).roles

    def theirs(role: Role) -> bool:
        if named is not None:
            return role.name in named
        # The tools of MCP servers act with the operator's rights.
        foreign = any(name.startswith(PREFIX) for name in (*role.tools, *role.needs))
        return owner or role.source == BUILT_IN_SOURCE or not (role.secrets or role.network or foreign)

    found = RolePlaces(settings.paths, None, False, None).load()
    roles = {name: role for name, role in found.by_name.items() if theirs(role)}
    # Problems and paths of files are shown only to the owner, who can fix them.
    return replace(found, by_name=MappingProxyType(roles), problems=found.problems if owner else (), untrusted=())


def workspace_over_http(asked: str | None, roots: tuple[Path, ...], data_root: Path, home: Path) -> Workspace:
    """Return the workspace that a call over HTTP names: only beneath the folders of `[users.NAME]`. Blocks.

    No other folder is ever used, and a refusal is the same whatever exists there.

    Raises:
        BadInput: This folder is not allowed.
    """
    beneath = " or ".join(map(str, roots))
    how = f"give a folder beneath {beneath}" if roots else "no folder is set for this user (workspaces in [users.NAME])"
    if asked is None or not asked.strip():
        return Workspace(None, False, f"no workspace was named; {how}")
    try:
        return resolve_workspace(
            asked=asked,
            client_roots=(),
            env=None,
            cwd=Path(data_root.anchor),
            roots=roots,
            data_root=data_root,
            home=home,
            allow=roots,
            only_roots=True,
        )
    except RolesError:
        raise BadInput(f"workspace: this user may not use {asked[:200]!r}; {how}") from None


def sandbox_over_http(find: Callable[[], Sandbox | Unavailable], settings: Settings) -> Sandbox | Unavailable:
    """Return the sandbox for commands of a user over HTTP, who may not run commands without one. Blocks."""
    if settings.sandbox.mode == "none":
        return Unavailable("nothing confines commands here", "a person on the server sets sandbox.mode to auto")
    return find()
