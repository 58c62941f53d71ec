"""git, called so that nothing of a repository runs: through a folder of our own, without anybody's configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ava_roles.sandbox.programs import path_apart_from
from ava_roles.sandbox.small_files import read_small

_LOOK_S = 0.02
_FIRST_LOOK_S = 0.002
OFF = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.preloadIndex=false",
    "submodule.recurse=false",
    "diff.ignoreSubmodules=all",
    "diff.external=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
)
"""Settings that stand above every configuration: what could run something, or reach somebody, is off."""


@dataclass(frozen=True)
class Said:
    """How a call of git ended.

    Attributes:
        code: Its exit code; None where it was ended because it took too long.
        out: What it printed.
        errors: What it said of errors, its beginning.
    """

    code: int | None
    out: bytes
    errors: str

    def names(self) -> list[str]:
        """Return the names that were printed with a zero byte behind each."""
        return [os.fsdecode(name) for name in self.out.split(b"\0") if name]


def git_program(project: Path) -> str | None:
    """Return where git is: never one that a project brings."""
    return shutil.which("git", path=path_apart_from(os.environ.get("PATH", os.defpath), project))


def environment(own: Path) -> dict[str, str]:
    """Return the whole environment of a git that works through a folder of ours."""
    return {
        "PATH": os.defpath,
        "HOME": str(own),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "",
    }


def run_git(
    command: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    aside: Path,
    within_s: float,
    check: Callable[[], None] = lambda: None,
    stdin: bytes = b"",
    held: Sequence[int] = (),
) -> Said:
    """Run git to its end. Blocking; it is ended when `check` raises or when it takes too long.

    Args:
        command: The program, and its arguments.
        folder: The working folder.
        env: The whole environment.
        aside: Where files without a name may be made.
        within_s: The most it may take.
        check: Called again and again.
        stdin: What it reads.
        held: Descriptors that it holds as long as it lives.

    Raises:
        OSError: It cannot be started.
    """
    with (
        tempfile.TemporaryFile(dir=aside) as given,
        tempfile.TemporaryFile(dir=aside) as out,
        _in_memory() as errors,
    ):
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen(  # noqa: S603 - arguments of ours, and names from a file or after `--`
            list(command), cwd=folder, env=dict(env), stdin=given, stdout=out, stderr=errors, pass_fds=held
        )
        try:
            code = _ended(process, within_s, check)
        finally:
            process.kill()
            process.wait()
        out.seek(0)
        errors.seek(0)
        return Said(code, out.read(), errors.read(2_000).decode("utf-8", "replace").strip())


def _in_memory() -> IO[bytes]:
    """Return a file for a few words, which holds them also where the disk is full."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("errors"), "w+b")
    return tempfile.TemporaryFile()


def _ended(process: subprocess.Popen[bytes], within_s: float, check: Callable[[], None]) -> int | None:
    until = time.monotonic() + within_s
    pause = _FIRST_LOOK_S
    while time.monotonic() < until:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(pause)
        check()
        pause = min(_LOOK_S, pause * 2)
    return None


class NoGitFolder(Exception):
    """Raised when what a checkout's `.git` names is no repository; says what it is."""


def folders_of(repository: Path) -> tuple[Path, Path]:
    """Return where a checkout's index is, and where what all its checkouts share is: not the same in a worktree.

    Raises:
        NoGitFolder: It names none.
        OSError: It cannot be read.
    """
    git = repository / ".git"
    if git.is_file():
        said = _path_in(git)
        if not said.startswith("gitdir: "):
            raise NoGitFolder(f"{git} names no repository")
        git = repository / said.removeprefix("gitdir: ")
    named = git / "commondir"
    return git, git / _path_in(named) if named.is_file() else git


def _path_in(file: Path) -> str:
    said = read_small(file, 5_000).decode("utf-8", "surrogateescape").strip()
    if "\0" in said or "\n" in said:
        raise NoGitFolder(f"{file} names no repository")
    return said
