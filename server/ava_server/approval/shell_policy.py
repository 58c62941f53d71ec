"""Commands of a run: whether it may run some, what confines them, what a person is told of it, and where they work."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ava_audit.rows import RunRow
from ava_roles.role import parse_role
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.removal import remove_tree
from ava_roles.sandbox.sandbox import STRENGTH, Sandbox, Unavailable, find_sandbox
from ava_roles.sandbox.workbench import Workbench
from ava_roles.tools.base import Tool, ToolSpec
from ava_server.approval.run_config import NO_COMMANDS, RunConfig
from ava_server.core.working_folder import home_folder

if TYPE_CHECKING:
    from ava_server.config.settings import Settings

_BENCH = "bench-"
"""How the folder is called in which the commands of a run work, with the generation of its owner behind it."""


def sandbox_here(settings: Settings) -> Sandbox | Unavailable:
    """Return what confines commands and the programs of MCP servers here. Blocks up to seconds, once in a process."""
    return find_sandbox(settings.sandbox.mode, settings.paths.sandbox)


def runs_commands(names: Sequence[str], tools: Mapping[str, Tool]) -> bool:
    """Tell whether one of these tools runs commands."""
    return any(name in tools and tools[name].spec.commands for name in names)


def needs_sandbox(names: Sequence[str], tools: Mapping[str, Tool]) -> bool:
    """Tell whether one of these tools runs commands, or is asked of a program that is started here."""
    return any(name in tools and (tools[name].spec.commands or tools[name].spec.program) for name in names)


def usable_here(tools: Mapping[str, Tool], sandbox: Sandbox | Unavailable) -> dict[str, Tool]:
    """Return the tools that this machine can give: commands where a sandbox is, and edits where it confines.

    What a run has changed runs when it is verified, and git keeps it; so edits need more than commands do.
    """
    commands = not isinstance(sandbox, Unavailable)
    edits = not isinstance(sandbox, Unavailable) and sandbox.kind != "none" and shutil.which("git") is not None
    return {
        name: tool
        for name, tool in tools.items()
        if (commands or not tool.spec.commands) and (edits or not tool.spec.edits)
    }


def sandbox_for(
    wanted: bool, find: Callable[[], Sandbox | Unavailable], *, files_open: bool
) -> Sandbox | Unavailable | None:
    """Return what would confine the commands of a run, or why it can have none; None where it asks for none.

    Args:
        wanted: It has tools that run commands.
        find: Finds what confines commands here.
        files_open: The run sees files. A run that does not would see them all the same by commands that nothing
            confines.
    """
    if not wanted:
        return None
    sandbox = find()
    if not isinstance(sandbox, Unavailable) and sandbox.kind == "none" and not files_open:
        return Unavailable(
            'nothing confines commands here (sandbox.mode = "none"), and this run is to see no files',
            "name the folder in workspace",
        )
    return sandbox


def confinement_of(sandbox: Sandbox | Unavailable | None) -> str:
    """Return what confines what a run runs here, as its configuration has it; None where it runs nothing."""
    return NO_COMMANDS if sandbox is None or isinstance(sandbox, Unavailable) else sandbox.kind


def commands_reach(
    specs: Sequence[ToolSpec], confinement: str, *, copy: Literal["copy", "worktree"] | None, network: bool
) -> str:
    """Return what commands of the run may do, in a few words; `copy` is what of the workspace they work on."""
    what = "run Python"
    if copy == "worktree" or any(spec.commands and spec.files for spec in specs):  # the verify command is one
        what = "run commands"
    where = "on an empty folder" if copy is None else f"on a {copy} of it"
    if confinement == "none":
        return f"{what} WITHOUT A SANDBOX, with all that you may do yourself"
    return f"{what} in a sandbox that reaches the network, {where}" if network else f"{what} in a sandbox {where}"


def not_looked_for() -> Unavailable:
    """Say that nobody looked for a sandbox: what there is where nothing is to run."""
    return Unavailable("no sandbox was looked for here", "use a role that runs no commands")


def strength(kind: str) -> int:
    """Return how well something confines; what a newer program calls it by is more than what is known here."""
    return next((strength for known, strength in STRENGTH.items() if known == kind), len(STRENGTH))


def bench_of(
    run: RunRow, config: RunConfig, files: Root | None, scratch: Path, sandbox: Sandbox, settings: Settings
) -> Workbench:
    """Return where the commands of a claimed run work; nothing of it is there before the first of them."""
    return Workbench(
        mounts=sandbox.mounts,
        here=scratch / f"{_BENCH}{run.generation}",
        files=files,
        run_id=run.id,
        read_only=settings.sandbox.read_only,
        carry=parse_role(config.role_text, config.role_source, config.role).carry,
        home=home_folder(),
        closed=(settings.data_root,),
        network=config.network,
    )


def remove_benches(scratch: Path, up_to: int | None = None) -> None:
    """Remove where the commands of earlier owners of a run worked, who were killed or have lost it. Blocking.

    Args:
        scratch: The run's folder.
        up_to: The generation of the last of them; None is all.
    """
    for bench in scratch.glob(f"{_BENCH}*"):
        generation = bench.name.removeprefix(_BENCH)
        if up_to is None or (generation.isdecimal() and int(generation) <= up_to):
            with suppress(OSError):  # its commands are still being ended; it goes with the run
                remove_tree(bench)
