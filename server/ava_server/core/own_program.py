"""A person's own program that Ava starts outside the sandbox: `on_event`, and the `key_command` of a provider.

It is named in `config.toml` alone, started without a shell, and only if nobody else can change it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from ava_roles.sandbox.sandbox import path_outside
from ava_server.core.data_root import home_folder
from ava_server.core.errors import ConfigError

if TYPE_CHECKING:
    from anyio.abc import Process

END_S = 1.0
"""Seconds that the end of a killed program is awaited."""
_PIECE = 16 * 1024


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended: its exit code (None: it took too long, or wrote too much), and what it wrote."""

    code: int | None
    output: bytes
    too_much: bool = False


def checked_command(command: Sequence[str], project: Path | None = None) -> tuple[str, ...]:
    """Return a command with the full path of its program. Blocking.

    Raises ConfigError: the program is not found outside `project`; or it, a file among its arguments or a folder above
    one of them belongs to somebody else, can be changed by everybody, or lies in `project`.
    """
    name = command[0]
    found = Path(shutil.which(name, path=path_outside(os.environ.get("PATH", os.defpath), project)) or "")
    if not found.is_absolute():
        raise ConfigError(f"the program {name} is not found on the PATH: install it, or give its full path")
    home = home_folder()
    named = (home / word for word in command[1:] if word and "\0" not in word)
    for path in (found, *(each for each in named if _is_file(each))):
        fault = _fault(path, project)
        if fault is not None:
            raise ConfigError(fault)
    return str(found), *command[1:]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for a file is an argument like any other
        return False


def _fault(path: Path, project: Path | None) -> str | None:
    """Say why a file may be somebody else's work; None where nobody else can have written it."""
    target = path.resolve()
    if project is not None:
        inside = project.resolve()
        if path.is_relative_to(inside) or target.is_relative_to(inside):
            return f"{path} lies in the project {project}, whose files others write; install it elsewhere"
    user = getattr(os, "geteuid", None)  # Windows has none, and no such modes
    if user is None:
        return None
    for each in (path, *path.parents, target, *target.parents):
        found = each.lstat()
        if stat.S_ISLNK(found.st_mode):
            continue  # where it leads is checked as well
        if found.st_uid not in (0, user()):
            return f"{each} belongs to another user, who could put another program there"
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_mode & stat.S_IWOTH and not sticky:
            return f"every user can write to {each}: take that away with `chmod o-w {each}`"
    return None


async def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    within_s: float,
    *,
    given: bytes | None = None,
    most_output: int | None = None,
) -> ProgramEnd:
    """Run a command in the person's home until it ends, with `given` on its standard input; without a shell.

    `most_output`: the bytes of its standard output that are read; None discards them. Its errors are discarded. It is
    killed with all that it started once it takes more than `within_s` seconds or writes more. Raises OSError,
    ValueError: it cannot be started.
    """
    # A session of its own: Ctrl-C here does not reach it, and everything that it starts can be killed with it.
    process = await anyio.open_process(
        list(command),
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=subprocess.DEVNULL if most_output is None else subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=home_folder(),
        start_new_session=True,
    )
    output = bytearray()
    try:
        with anyio.move_on_after(within_s):
            if given is not None:
                await _write(process, given)
            if most_output is not None:
                await _read(process, output, most_output)
                if len(output) > most_output:
                    return ProgramEnd(None, b"", too_much=True)
            return ProgramEnd(await process.wait(), bytes(output))
        return ProgramEnd(None, b"")
    finally:
        if process.returncode is None:  # a program that ended by itself may leave others running
            _kill_session(process)
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
            await process.aclose()


async def _write(process: Process, given: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # it need not read it
        await process.stdin.send(given)
    with contextlib.suppress(OSError, anyio.BrokenResourceError):
        await process.stdin.aclose()


async def _read(process: Process, output: bytearray, most: int) -> None:
    assert process.stdout is not None
    with contextlib.suppress(anyio.EndOfStream):
        while len(output) <= most:
            output += await process.stdout.receive(_PIECE)


def _kill_session(process: Process) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
