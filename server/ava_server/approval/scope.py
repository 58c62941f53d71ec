"""The programs of a run: the sandbox that confines its commands and MCP servers, and the folders where they work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ava_audit.rows import RunRow
from ava_roles.errors import WorkspaceRefused
from ava_roles.project_files import READ_BY_AGENTS
from ava_roles.role import parse_role
from ava_roles.sandbox.command_workspace import CopiedWorkspace
from ava_roles.sandbox.git import git_program
from ava_roles.sandbox.git_folders import Accept, find_git_folders
from ava_roles.sandbox.path_access import remove_tree
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import STRENGTH, Sandbox, Unavailable
from ava_roles.sandbox.selection import find_sandbox
from ava_roles.sandbox.toolchains import HostFolders
from ava_roles.sandbox.workspace import recheck_workspace, repository_of
from ava_roles.tool import Tool
from ava_server.config.settings import Settings
from ava_server.core.data_root import home_folder
from ava_server.core.ids import IN_PROCESS
from ava_server.run_config.config import NO_COMMANDS, RunConfig

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
    if isinstance(sandbox, Unavailable):
        return {name: tool for name, tool in tools.items() if not tool.spec.commands and not tool.spec.edits}
    can_edit = sandbox.kind != "none" and git_program(None) is not None
    if can_edit:
        return dict(tools)
    return {name: tool for name, tool in tools.items() if not tool.spec.edits}


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
    if sandbox is None or isinstance(sandbox, Unavailable):
        return NO_COMMANDS
    return sandbox.kind


def no_sandbox() -> Unavailable:
    return Unavailable("no sandbox was looked for here", "use a role that runs no commands")


def strength(kind: str) -> int:
    """Return how strongly a sandbox confines; an unknown kind, of a newer program, counts as the strongest."""
    for known, level in STRENGTH.items():
        if known == kind:
            return level
    return len(STRENGTH)


def make_workbench(
    run: RunRow, config: RunConfig, files: Root | None, scratch: Path, sandbox: Sandbox, settings: Settings
) -> CopiedWorkspace:
    """Return the folder in which a claimed run's commands work; the first command creates it."""
    reads_instructions = config.runner == IN_PROCESS or obeys_project(config)
    return CopiedWorkspace(
        mounts=sandbox.mounts,
        here=scratch / f"{_WORKBENCH}{run.generation}",
        files=files,
        run_id=run.id,
        host=HostFolders(home_folder(), settings.sandbox.read_only, (settings.data_root,)),
        carry=parse_role(config.role_text, config.role_source, config.role).carry,
        network=config.network,
        git_folder=config.git_folder,
        without=frozenset() if reads_instructions else READ_BY_AGENTS,
    )


def obeys_project(config: RunConfig) -> bool:
    """Tell whether files in a run's folder may say how it works; the files of work that it reviews may not."""
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
    """Return the git folder of a workspace's checkout if it lies outside of that; else empty. Blocks.

    Raises:
        NoGitFolder: Git would follow something elsewhere, or that folder is refused.
        OSError: It cannot be read.
    """
    repository = repository_of(workspace, home)
    if repository is None:
        return ""
    return find_git_folders(repository, accept).outside


def remove_workbenches(scratch: Path, up_to: int | None = None) -> None:
    """Remove the command folders of a run's owners `up_to` a generation: they were killed or have lost it. Blocks."""
    for bench in scratch.glob(f"{_WORKBENCH}*"):
        generation = bench.name.removeprefix(_WORKBENCH)
        if up_to is None or (generation.isdecimal() and int(generation) <= up_to):
            with suppress(OSError):  # its commands are still being ended; the folder is removed with the run
                remove_tree(bench)
