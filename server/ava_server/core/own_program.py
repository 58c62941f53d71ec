"""A person's own program that Ava starts outside the sandbox: `on_event`, and the `key_command` of a provider.

It is named in `config.toml` alone, started without a shell, and only if nobody else can change it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from ava_roles.sandbox import linux
from ava_roles.sandbox.sandbox import path_outside
from ava_server.core.data_root import home_folder
from ava_server.core.errors import ConfigError

if TYPE_CHECKING:
    from anyio.abc import Process

END_S = 1.0
"""Seconds that the end of a killed program is awaited."""
REST_S = 0.2
"""Seconds for which the output of a program is read after its end: what it left behind may hold the pipe open."""
_LOOK_S = 0.02
MARK = "AVA_PROGRAM"
"""A variable with a value for each run of a program: all that it starts has it."""
_LOOKS = 5
"""How often what is left is looked for: it may start more meanwhile, and what was killed needs a moment to go."""
_PIECE = 16 * 1024
_MOST_LINKS = 40
"""As in Linux."""
_ADMIN = 80
"""The group of macOS whose members may become root; Homebrew's folders belong to it."""
_BETWEEN = re.compile(r"[\s=;&|<>()'\"`:,]+")


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended: its exit code (None: it took too long, or wrote too much), and what it wrote."""

    code: int | None
    output: bytes = field(repr=False)  # may be a key
    too_much: bool = False


@dataclass(frozen=True)
class OwnCommand:
    """A command that was checked: with the full path of its program, and the PATH for what that starts."""

    argv: tuple[str, ...]
    path: str


def checked_command(command: Sequence[str], projects: Iterable[Path] = ()) -> OwnCommand:
    """Find the program of a command, and check it and the files that its arguments name. Blocking.

    `projects`: folders whose files others write. They, this process's folder and AVA_WORKSPACE are left out of the
    PATH, as is each folder that somebody else can change.

    Raises ConfigError if the program is not found; or it, a link to it, a file that an argument names or a folder above
    one of them belongs to somebody else, can be changed by others, or lies in one of `projects`; OSError: a file
    cannot be looked at.
    """
    projects = tuple(projects)
    path = _safe_path(projects)
    program = Path(shutil.which(command[0], path=path) or "")
    if not program.is_absolute():
        raise ConfigError(
            f"the program {command[0]} is not found on the PATH, outside the project and where nobody else can write:"
            " install it, or give its full path"
        )
    files = [program]
    for word in command[1:]:
        files += _files_named_in(word)
    for file in files:
        fault = _fault(file, projects)
        if fault is not None:
            raise ConfigError(fault)
    return OwnCommand((str(program), *command[1:]), path)


def _safe_path(projects: Sequence[Path]) -> str:
    """Return the folders of the PATH from which nobody else's programs come."""
    path = os.environ.get("PATH", os.defpath)
    home = home_folder().resolve()
    for here in (Path.cwd(), Path(os.environ.get("AVA_WORKSPACE") or Path.cwd())):
        if not home.is_relative_to(here.resolve()):  # a person's own programs are often in the home
            path = path_outside(path, here)
    for project in projects:
        path = path_outside(path, project)
    folders = path_outside(path, None).split(os.pathsep)
    return os.pathsep.join(filter(_is_safe, folders))


def _is_safe(folder: str) -> bool:
    try:
        return bool(folder) and _fault(Path(folder), ()) is None
    except OSError:
        return False


def _files_named_in(word: str) -> Iterator[Path]:
    """Yield what an argument may name: `x`, `--file=x`, `-f/x`, and each word of a shell's `-c`."""
    pieces = {word, *_BETWEEN.split(word)}
    pieces |= {piece[piece.index("/") :] for piece in pieces if "/" in piece}
    for piece in sorted(pieces):
        if not piece or "\0" in piece:
            continue
        path = home_folder() / piece
        try:
            is_name = path.is_file() or (Path(piece).is_absolute() and path.exists())
        except OSError:  # a name too long for a file is an argument like any other
            continue
        if is_name:
            yield path


def _fault(path: Path, projects: Iterable[Path]) -> str | None:
    """Say why a file may be somebody else's work; None where nobody else can have written it."""
    chain = list(_chain(path))
    for project in projects:
        if any(each.is_relative_to(project.resolve()) or each.is_relative_to(project) for each in chain):
            return f"{path} lies in the project {project}, whose files others write; install it elsewhere"
    get_uid = getattr(os, "geteuid", None)  # Windows has none, and no such modes
    if get_uid is None:
        return None
    for each in chain:
        status = each.lstat()
        if status.st_uid not in (0, get_uid()):
            return f"{each} belongs to another user, who could put another program there"
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if stat.S_ISLNK(status.st_mode) or is_sticky:
            continue  # a link has no mode of its own; in a sticky folder, others change only what is theirs
        if status.st_mode & stat.S_IWOTH:
            return f"every user can write to {each}: take that away with `chmod o-w {each}`"
        if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
            return f"other users of its group can write to {each}: take that away with `chmod g-w {each}`"
    return None


def _chain(path: Path) -> Iterator[Path]:
    """Yield a file, each link that leads to it, and all folders above them. Raises OSError if the links have no end."""
    seen = set[Path]()
    waiting = [path.resolve(), Path(os.path.abspath(path))]  # noqa: PTH100 - `resolve` would follow the links
    links = 0
    while waiting:
        each = waiting.pop()
        for part in (*reversed(each.parents), each):
            if part in seen:
                continue
            seen.add(part)
            yield part
            if part.is_symlink():
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, "too many links", str(path))
                target = part.parent.resolve() / part.readlink() / each.relative_to(part)
                waiting.append(Path(os.path.abspath(target)))  # noqa: PTH100


def _is_own_group(group: int) -> bool:
    """Tell whether only this user and root can be in a group: root's, or the user's private one."""
    if sys.platform == "win32" or group == 0:
        return True
    if sys.platform == "darwin" and group == _ADMIN:
        return True
    import grp
    import pwd

    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
        entry = grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


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
    killed once it takes more than `within_s` seconds or writes more, and what it started is killed with its end, on
    Linux in sessions of its own too. Raises OSError, ValueError: it cannot be started.
    """
    mark = secrets.token_hex(8)
    # A session of its own: Ctrl-C here does not reach it, and everything that it starts can be killed with it.
    process = await anyio.open_process(
        list(command),
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=subprocess.DEVNULL if most_output is None else subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environment, MARK: mark},
        cwd=home_folder(),
        start_new_session=True,
    )
    output = bytearray()
    try:
        with anyio.move_on_after(within_s):
            if given is not None:
                await _write(process, given)
            if most_output is not None:
                await _read_until_end(process, output, most_output)
                if len(output) > most_output:
                    return ProgramEnd(None, b"", too_much=True)
            return ProgramEnd(await _end(process), bytes(output))
        return ProgramEnd(None, b"")
    finally:
        _kill_session(process)  # also what a program that ended by itself has left running
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
            await anyio.to_thread.run_sync(_kill_marked, mark, abandon_on_cancel=True)
            await process.aclose()


async def _write(process: Process, given: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # it need not read it
        await process.stdin.send(given)
    with contextlib.suppress(OSError, anyio.BrokenResourceError):
        await process.stdin.aclose()


async def _end(process: Process) -> int:
    """Wait for a program alone: `Process.wait` may also wait for those that hold its pipes open."""
    while process.returncode is None:  # noqa: ASYNC110 - another process
        await anyio.sleep(_LOOK_S)
    return process.returncode


async def _read_until_end(process: Process, output: bytearray, most: int) -> None:
    """Read what a program writes until it has ended or has written more than `most` bytes."""
    async with anyio.create_task_group() as tasks:

        async def stop_at_end() -> None:
            await _end(process)
            await anyio.sleep(REST_S)  # for what is still in the pipe, which its own children may keep open
            tasks.cancel_scope.cancel()

        tasks.start_soon(stop_at_end)
        await _read(process, output, most)
        tasks.cancel_scope.cancel()


async def _read(process: Process, output: bytearray, most: int) -> None:
    assert process.stdout is not None
    with contextlib.suppress(anyio.EndOfStream):
        while len(output) <= most:
            output += await process.stdout.receive(_PIECE)


def _kill_marked(mark: str) -> None:
    """Kill what a program has started in other sessions (`setsid`). Blocking: it looks at each process, on Linux."""
    for _ in range(_LOOKS):
        try:
            left = linux.processes_with(MARK, mark)
        except linux.NotOnThisSystem:
            return
        if not left:
            return
        for each in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)


def _kill_session(process: Process) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
