"""The command of a stdio server: its program, what it sees of this machine, and its whole environment."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from ava_roles.errors import ToolFailed
from ava_roles.mcp_client.entry import ServerEntry
from ava_roles.sandbox.environment import child_environment
from ava_roles.sandbox.sandbox import Bind, Command
from ava_roles.sandbox.toolchains import find_installation, overlap

LIFE_S = 24 * 3600.0
"""No run lasts as long: a server's end is the run's end."""


def command_of(
    entry: ServerEntry,
    env: Mapping[str, str],
    run_id: str,
    folder: Path,
    *,
    read_only: tuple[Path, ...],
    closed: tuple[Path, ...],
) -> Command:
    """Return how a stdio server is started. Blocking.

    It sees the system's programs, its own program with the installation that this belongs to, files that its arguments
    name, `sandbox.read_only`, and its `read_write` folders; its home is a folder of its own, which goes with it.

    Args:
        entry: What is configured.
        env: Its environment, secrets put in.
        run_id: The mark in its environment.
        folder: Its home, empty.
        read_only: Further folders that confined programs may read.
        closed: Folders of which it sees nothing but its home.

    Raises:
        ToolFailed: Its program, or a folder, is not there.
    """
    assert entry.command is not None
    path = env.get("PATH") or os.environ.get("PATH") or os.defpath
    program = shutil.which(entry.command, path=path)
    if program is None:
        raise ToolFailed("cannot be started: its program is not found (give its whole path as command)")
    missing = [each for each in entry.read_write if not each.is_dir()]
    if missing:
        raise ToolFailed(f"cannot be started: its folder {missing[0]} is not there")
    if kept := [each for each in entry.read_write if any(overlap(each.resolve(), one.resolve()) for one in closed)]:
        raise ToolFailed(f"cannot be started: its folder {kept[0]} is, contains or lies in Ava's own folder")
    needed = find_installation(
        Path(program).absolute(), _named(entry.args), read_only=read_only, home=Path.home(), closed=closed
    )
    seen = [Bind(source, PurePosixPath(name)) for name, source in needed.shown.items()]
    seen += [Bind(each, PurePosixPath(each), writable=True) for each in (*entry.read_write, folder)]
    given = {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), **env}
    return Command(
        argv=(program, *entry.args),
        folder=PurePosixPath(folder),
        binds=tuple(seen),
        environment=child_environment(run_id, given),
        timeout_s=LIFE_S,
        network=entry.network,
        stdin=True,
    )


def _named(args: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files that arguments name by their whole path, such as the script of an interpreter."""
    for arg in args:
        path = Path(arg)
        try:
            if path.is_absolute() and stat.S_ISREG(path.stat().st_mode):
                yield path
        except (OSError, ValueError):
            continue
