"""What a run may read, reach and change, in words: from the flags of its tools, and what the proposal resolved.

The proposal and the role trust screen say it in the same words, so that they cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ava_audit.units import counted
from ava_roles.mcp_client.server_tools import server_of
from ava_roles.tool import ToolSpec
from ava_roles.tools.registry import tool_specs
from ava_roles.wrap import list_names
from ava_server.approval.plain_text import ENDS_CHARS, named_path, path_ends
from ava_server.core.ids import IN_PROCESS
from ava_server.core.names import quote_name
from ava_server.run_config.config import RunConfig

_SERVER = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_SERVERS = re.compile(
    rf'"[^"]*"|(?<=use the MCP server )({_SERVER})|(?<=use the MCP servers )({_SERVER}(?: and {_SERVER})+)'
)
"""What is in quotes already, or the name of a server, or of several."""
PATHS, PATH_CHARS = 8, 120
"""Most paths that a line names, and characters of one path; the digest covers all of them."""


@dataclass(frozen=True)
class RunReach:
    """What a proposal knows of its run, and a role file does not.

    Attributes:
        confinement: What confines its commands; empty for `ANY_RUN`.
        namespace: The paths of the folder that it may change.
        hosts: The only hosts that it may read from the web.
        git_folder: The git folder that it uses outside of its checkout; empty without one.
        others: More folders that runs of a plan read, each with its git folder.
    """

    workspace: str | None
    earlier: int
    confinement: str
    network: bool
    namespace: Sequence[str] = ()
    hosts: Sequence[str] = ()
    git_folder: str = ""
    others: Mapping[str, str] = field(default_factory=dict[str, str])


ANY_RUN = RunReach(workspace=None, earlier=0, confinement="", network=False)
"""No run: what tools could do in any."""


def reach(specs: Collection[ToolSpec], run: RunReach = ANY_RUN) -> str:
    """Return what tools, those of MCP servers included, may read, reach and change, from the flags of their specs."""
    own = [spec for spec in specs if spec.foreign is None]
    foreign = [spec for spec in specs if spec.foreign is not None]
    flags = flags_of(specs)
    folder = _folder(flags, run)
    changed = _changed_files(flags, run)
    parts: list[str] = []
    others = [_with_git_folder(path, git_folder) for path, git_folder in run.others.items()]
    reads = _reads(folder, others, changed, run.hosts, flags_of(own))
    if reads:
        parts.append(reads)
    if changed or "commands" in flags:  # what was changed is verified by a command
        parts.append(_command_reach(specs, run, reads=bool(folder), changes=bool(changed)))
    if foreign:
        parts.append(_server_reach(foreign, run.confinement))
    changing_tools = [spec.name for spec in own if spec.changes]
    if changing_tools:
        parts.append(f"change things with {' and '.join(changing_tools)}")
    results_and_notes = " and ".join(_results_and_notes(flags, run.earlier))
    if not parts:
        if not results_and_notes:
            return "can reach neither files nor the web"
        return f"can read {results_and_notes}, and reach neither files nor the web"
    words = f"can {', '.join(parts)}"
    if results_and_notes:
        words += f", and read {results_and_notes}"
    return words


def _folder(flags: Collection[str], run: RunReach) -> str:
    """Return the folder that is read; empty for none."""
    if run is ANY_RUN:
        if "files" in flags or "commands" in flags:
            return "files of the workspace"
        return ""
    if run.workspace is None:
        return ""
    return _with_git_folder(run.workspace, run.git_folder)


def _with_git_folder(path: str, git_folder: str) -> str:
    folder = named_path(path)
    if folder and git_folder:
        folder += f" (git folder {named_path(git_folder)})"
    return folder


def _changed_files(flags: Collection[str], run: RunReach) -> str:
    """Return what is changed of the folder; empty for nothing. Paths are in quotes unless they are plain."""
    if run is ANY_RUN:
        return "files" if "edits" in flags else ""
    if not run.namespace:
        return ""
    if tuple(run.namespace) == (".",):
        return "everything"
    return list_names([named_path(path, PATH_CHARS) for path in run.namespace], PATHS)


def _reads(folder: str, others: Sequence[str], changed: str, hosts: Sequence[str], flags: Collection[str]) -> str:
    """Return what is read of files and the web, and changed of files; empty for nothing. `others`: more folders."""
    web = _web_reach(folder, hosts, flags)
    if not folder:
        return web
    words = f"read {folder}"
    if changed:
        words += f", change {changed} on a new branch of it"
    if others:
        words += f", read {' and '.join(others)}" if changed else f" and {' and '.join(others)}"
        return f"{words}, {web}" if web else words
    if web:
        words += f" and {web}"
    return words


def _web_reach(folder: str, hosts: Sequence[str], flags: Collection[str]) -> str:
    if "network" not in flags:
        return ""
    searches = "search" in flags
    if hosts:
        only = f"reach only {', '.join(hosts)} on the web"
        return f"search the web and {only}" if searches else only
    if folder:
        return "reach the web"
    return "search and read the web" if searches else "read the web"


def _command_reach(specs: Collection[ToolSpec], run: RunReach, *, reads: bool, changes: bool) -> str:
    """Return what a run's commands may do. `reads`, `changes`: whether it reads a folder, and changes files of it."""
    has_shell = any(spec.commands and spec.files for spec in specs)
    what = "run Python"
    if changes or has_shell:  # a run that changes files may run its verify command
        what = "run commands"
    if run is ANY_RUN:  # each proposal says how its commands are confined, and on which files they work
        return what
    if run.confinement == "none":
        return f"{what} WITHOUT A SANDBOX, with all your own permissions"
    where = "on an empty folder"
    if run.others:
        where = "on worktrees and copies of them" if changes else "on copies of them"
    elif changes:
        where = "on a worktree of it"
    elif reads:
        where = "on a copy of it"
    if run.network:
        return f"{what} in a sandbox that reaches the network, {where}"
    return f"{what} in a sandbox {where}"


def _server_reach(specs: Sequence[ToolSpec], confinement: str) -> str:
    names = sorted({server_of(spec.name) or "" for spec in specs})
    if len(names) == 1:
        which, pronoun = f"use the MCP server {names[0]}", "it"
    else:
        which = f"use the MCP servers {' and '.join(names)}"
        pronoun = "they"
    flags = flags_of(specs)
    notes: list[str] = []
    if confinement == "none" and "program" in flags:
        notes.append("WITHOUT A SANDBOX, with all your own permissions")
    if "network" in flags:
        notes.append("reaches the network")
    if "writes" in flags:
        notes.append("can change things")
    if not confinement:
        notes.append(f"each proposal says what {pronoun} can do")
    if not notes:
        return which
    return f"{which} ({', '.join(notes)})"


def reach_words(reach: str) -> str:
    """Return a reach for a sentence: with the names of MCP servers, which the approval line has bare, in quotes."""

    def quote(found: re.Match[str]) -> str:
        if found[0].startswith('"'):
            return found[0]
        return " and ".join(map(quote_name, found[0].split(" and ")))

    return _SERVERS.sub(quote, reach)


def _results_and_notes(flags: Collection[str], earlier: int) -> list[str]:
    words: list[str] = []
    if earlier == 1:
        words.append("the result of 1 earlier subagent")
    elif earlier:
        words.append(f"the results of {earlier} earlier subagents")
    elif "results" in flags:
        words.append("the results of earlier subagents")
    if "memory" in flags:
        words.append("the notes in memory")
    return words


_FLAGS = ("network", "search", "files", "edits", "commands", "memory", "results", "writes", "program")


def flags_of(specs: Iterable[ToolSpec]) -> frozenset[str]:
    return frozenset(flag for spec in specs for flag in _FLAGS if getattr(spec, flag))


POWERS = (
    "run without a sandbox",
    "change files",
    "change things",
    "run commands",
    "use secrets",
    "reach the network",
    "read your files",
)
"""What runs may be able to do, the worst first, as `powers` names it."""
SERIOUS = frozenset(POWERS[:5])
"""Those that need a closer look before the approval."""


def powers(config: RunConfig, specs: Collection[ToolSpec]) -> tuple[str, ...]:
    """Return what a run can do, in words that are the same for each: what sets one of several proposals apart."""
    flags = flags_of(specs)
    coding = config.coding is not None
    has = {
        "run without a sandbox": config.confinement == "none",
        "change files": coding or _servers_write(config),
        "change things": _changes_by_servers(config) or any(spec.changes for spec in specs),
        "run commands": coding or "commands" in flags or config.runner != IN_PROCESS,
        "use secrets": any(config.secrets.values()),
        "reach the network": "network" in flags or _reaches_network(config),
        "read your files": config.workspace is not None,
    }
    return tuple(power for power in POWERS if has[power])


def short_reach(configs: Sequence[RunConfig], room: int) -> str:
    """Return what runs can do together in a few words: `reaches the web, reads /home/…/notes, runs commands`.

    The web and the folder come first, so that `room` characters have at least these.
    """
    folders = list(dict.fromkeys(config.workspace for config in configs if config.workspace is not None))
    changes = any(config.coding is not None for config in configs)
    web, others = _deeds(configs, said=("read your files", "change files" if changes else ""))
    words = [_of_one(deed) for deed in web]
    if folders:
        verb = "changes" if changes else "reads"
        room_left = room - len(", ".join([*words, f"{verb} "]))
        words.append(f"{verb} {short_folders(folders, room_left)}")
    words += [_of_one(deed) for deed in others]
    return ", ".join(words) or "reaches neither files nor the web"


def short_deeds(configs: Sequence[RunConfig]) -> str:
    """Return what several runs can do besides reading folders: `reach the web, run commands`; empty for nothing."""
    web, others = _deeds(configs, said=("read your files",))
    return ", ".join([*web, *others])


def _deeds(configs: Sequence[RunConfig], said: Collection[str]) -> tuple[list[str], list[str]]:
    """Return what runs can do: whether they reach the web or another network, and the rest, without what is `said`."""
    from ava_roles.tools.registry import specs_of  # loads every tool

    held: set[str] = set()
    reads_web = False
    for config in configs:
        specs = specs_of(config.tools, {})
        held.update(powers(config, specs))
        reads_web = reads_web or any(spec.network for spec in specs)
    network = "reach the network"
    web = ["reach the web" if reads_web else network] if network in held else []
    return web, [power for power in POWERS if power in held and power not in (network, *said)]


def _of_one(deed: str) -> str:
    """`reach the web` as `reaches the web`."""
    verb, _, thing = deed.partition(" ")
    return f"{verb}{'es' if verb.endswith('ch') else 's'} {thing}"


def short_folders(folders: Sequence[str], room: int = ENDS_CHARS) -> str:
    """Return folders in a few words: `/home/…/notes and 2 more folders`."""
    first, *others = folders
    more = f" and {counted(len(others), 'more folder')}" if others else ""
    return path_ends(first, max(room - len(more), ENDS_CHARS)) + more


def sees_files(config: RunConfig) -> bool:
    """Tell whether a run may read files of the person: of its workspace, or what its programs reach."""
    return config.workspace is not None or config.confinement == "none" or _servers_write(config)


def reaches_out(config: RunConfig) -> bool:
    """Tell whether a run has a way to send something from this machine, besides to its model."""
    from ava_roles.tools.registry import specs_of  # loads every tool

    if _reaches_network(config):
        return True
    return any(spec.network for spec in specs_of(config.tools, {}))


def reads_outside(config: RunConfig) -> bool:
    """Tell whether what a run finds may be different the next day: it reads the web, or asks a person or a server."""
    return reaches_out(config) or bool(config.foreign) or config.questions > 0


def reads_memory(config: RunConfig) -> bool:
    """Tell whether a run can read the notes in memory."""
    return any(spec.memory for name, spec in tool_specs().items() if name in config.tools)


def changes_outside(config: RunConfig) -> bool:
    """Tell whether a run may change something that stays: in a repository, or by another server's tools."""
    return config.coding is not None or _changes_by_servers(config)


def _servers_write(config: RunConfig) -> bool:
    """Tell whether programs of MCP servers may write to folders of the person."""
    return any(server.read_write for server in config.foreign.values())


def _reaches_network(config: RunConfig) -> bool:
    """Tell whether commands or MCP servers of a run reach the network."""
    if config.network:
        return True
    return any(server.network or server.remote for server in config.foreign.values())


def _changes_by_servers(config: RunConfig) -> bool:
    for server in config.foreign.values():
        for name, tool in server.tools.items():
            if tool.changes and name in config.tools:
                return True
    return False
