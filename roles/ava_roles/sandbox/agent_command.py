"""The command that starts somebody else's coding agent in the sandbox: what it sees, and what it may use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.command_workspace import CommandSandbox
from ava_roles.sandbox.launcher.spec import MIB, Limits
from ava_roles.sandbox.sandbox import RUN_ID, Bind, Command, LocalServer, child_environment, path_outside
from ava_roles.sandbox.toolchains import SYSTEM_PATH, HostFolders, Toolchains, find_installation, script_interpreter

HOME = PurePosixPath("/agent")
LIFE_S = 24 * 3600.0
"""Longer than any run: an agent ends with its run."""
LIMITS = Limits(
    memory=4 * 1024 * MIB,
    address_space=0,  # engines of JavaScript reserve far more than they use
    processes=512,
    open_files=4_096,
    cpu_s=int(LIFE_S),
)


def find_agent(name: str, project: Path | None) -> Path:
    """Return an agent's program, absolute or on the PATH. Blocking. Raises ToolFailed: none outside `project`."""
    program = Path(shutil.which(name, path=path_outside(os.environ.get("PATH", os.defpath), project)) or "")
    if not program.is_absolute():
        raise ToolFailed(f"the agent's program {name} is not found: install it, or give its full path")
    if project is not None and any(each.is_relative_to(project.resolve()) for each in (program, program.resolve())):
        raise ToolFailed(f"the agent's program {program} lies in the project; install it elsewhere")
    return program


def agent_command(
    argv: Sequence[str],
    bench: CommandSandbox,
    home: Path,
    local: LocalServer,
    host: HostFolders,
    *,
    variables: Mapping[str, str] | None = None,
    project: Path | None = None,
) -> Command:
    """Return the command that starts an agent (`argv[0]` is from `find_agent`) for `Sandbox.start`. Blocking.

    It sees what the run's own commands see, at the same places and with the same rights, its own installation, and its
    home: `home`, a folder here of this run alone, since the agent writes to it. Nothing else of the person's home is
    there. `variables` are in addition to those of the run's commands. Raises ToolFailed: its program cannot be shown.
    """
    words, needed = _installed(Path(argv[0]), host, project)
    folders = [*bench.environment.get("PATH", "").split(":"), *SYSTEM_PATH, *needed.path]
    folders += [str(Path(word).parent) for word in (words[0], words[-1])]
    given = {
        **bench.environment,
        **(variables or {}),
        "HOME": str(HOME),
        "PATH": ":".join(dict.fromkeys(filter(None, folders))),
    }
    there = {bind.target for bind in bench.binds}
    shown = (Bind(source, PurePosixPath(name)) for name, source in needed.shown.items())
    return Command(
        argv=(*words, *argv[1:]),
        folder=bench.folder,
        binds=(*bench.binds, *(bind for bind in shown if bind.target not in there), Bind(home, HOME, writable=True)),
        environment=child_environment(bench.environment.get(RUN_ID, ""), given),
        timeout_s=LIFE_S,
        stdin=True,
        limits=LIMITS,
        local=local,
    )


def _installed(program: Path, host: HostFolders, project: Path | None) -> tuple[tuple[str, ...], Toolchains]:
    """Return the words that start a program, and what it needs. Raises ToolFailed: it cannot be shown."""
    path = path_outside(os.environ.get("PATH", os.defpath), project)
    needed = find_installation(program, (), host, programs=path, workspace=project)
    started = program if _is_whole(program, needed) else program.resolve()
    if not _is_whole(started, needed) and started not in needed.shown:
        raise ToolFailed(
            f"the agent's program {program} cannot be shown in the sandbox; name the folder of its installation in"
            " sandbox.read_only"
        )
    # The project's own folders come first on the path of commands, so the interpreter is not looked up there.
    return (*script_interpreter(started, path), str(started)), needed


def _is_whole(program: Path, needed: Toolchains) -> bool:
    """Tell whether a program is seen with the folder that it lies in; alone, a link's target is seen in its place."""
    system = any(program.is_relative_to(folder) for folder in ("/usr", "/bin", "/sbin", "/lib", "/lib64"))
    return system or any(program != name and program.is_relative_to(name) for name in needed.shown)
