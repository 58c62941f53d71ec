"""Runs git so that nothing in a repository is executed: with Ava's own git directory, without its configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.git_folders import NoGitFolder, find_git_folders, only
from ava_roles.sandbox.path_access import make_folders, read_small
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import path_outside

GIT_S = 30.0
_INDEX_MAX = 500_000_000
_POLL_S = 0.02
_FIRST_POLL_S = 0.002
SAFE_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.preloadIndex=false",
    "core.multiPackIndex=false",  # it could name packs of another repository
    "submodule.recurse=false",
    "diff.ignoreSubmodules=all",
    "diff.external=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
)
"""Settings that override every configuration: git executes no program and contacts no server."""


@dataclass(frozen=True)
class GitOutput:
    """How a call of git ended: `code` is None where it took too long, `errors` the beginning of its stderr."""

    code: int | None
    out: bytes
    errors: str

    def names(self) -> list[str]:
        """Each is followed by a zero byte."""
        return [os.fsdecode(name) for name in self.out.split(b"\0") if name]


def git_program(project: Path | None) -> str | None:
    """Return the path of git, but never of one in the project or by a relative PATH."""
    return shutil.which("git", path=path_outside(os.environ.get("PATH", os.defpath), project))


def git_environment(own: Path) -> dict[str, str]:
    """Return the whole environment of a git that uses a git directory of Ava's."""
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
    outlives: bool = False,
) -> GitOutput:
    """Run git to its end. Blocks; git is ended when `check` raises, when it takes too long, or with this process.

    `env` is its whole environment, and `aside` a folder for temporary files without a name. It inherits the descriptors
    `held`. With `outlives`, it goes on if this process is killed. Raises OSError if it cannot be started.
    """
    with (
        tempfile.TemporaryFile(dir=aside) as input_file,
        tempfile.TemporaryFile(dir=aside) as out,
        _memory_file() as errors,
    ):
        input_file.write(stdin)
        input_file.seek(0)
        process = subprocess.Popen(  # noqa: S603 - Ava's own arguments, and names from a file or after `--`
            list(command) if outlives else ending_with_us(command),
            cwd=folder,
            env=dict(env),
            stdin=input_file,
            stdout=out,
            stderr=errors,
            pass_fds=held,
            start_new_session=True,  # a signal to the server's process group is the server's, not git's
        )
        try:
            code = _wait(process, within_s, check)
        finally:
            process.kill()
            process.wait()
        out.seek(0)
        errors.seek(0)
        return GitOutput(code, out.read(), errors.read(2_000).decode("utf-8", "replace").strip())


_SETPRIV = "/usr/bin/setpriv"
_UNLESS_ORPHANED = '[ "$PPID" = "$0" ] && exec "$@"'


def ending_with_us(command: Sequence[str]) -> list[str]:
    """Return a command line whose process the kernel kills with this thread, where the kernel and `setpriv` can.

    The shell starts nothing if this process ended before the kernel knew.
    """
    if not _knows_death_signal():
        return list(command)
    return [_SETPRIV, "--pdeathsig", "KILL", "/bin/sh", "-c", _UNLESS_ORPHANED, str(os.getpid()), *command]


@cache
def _knows_death_signal() -> bool:
    """Tell whether `setpriv` has the option; that of BusyBox and of util-linux before 2.33 do not."""
    try:
        command = [_SETPRIV, "--pdeathsig", "KILL", "/bin/sh", "-c", "exit 0"]
        return subprocess.run(command, env={}, capture_output=True, timeout=5, check=False).returncode == 0  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False


def _memory_file() -> IO[bytes]:
    """Return a file that can be written to although the disk is full."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("errors"), "w+b")
    return tempfile.TemporaryFile()


def _wait(process: subprocess.Popen[bytes], within_s: float, check: Callable[[], None]) -> int | None:
    until = time.monotonic() + within_s
    pause = _FIRST_POLL_S
    while time.monotonic() < until:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(pause)
        check()
        pause = min(_POLL_S, pause * 2)
    return None


@dataclass(frozen=True)
class Checkout:
    """The names in a folder of a checkout, relative to it."""

    tracked: tuple[str, ...]  # what git tracks; a submodule by its folder
    # What is neither tracked nor ignored; a nested repository by its folder, with `/` at the end.
    others: tuple[str, ...]
    ignored: tuple[str, ...]  # folders that are ignored as a whole
    foreign: bool = False  # the folder itself is ignored: it lies in the repository, but is not part of it


def list_checkout(
    repository: Path,
    folder: Path,
    aside: Path,
    home: Path,
    check: Callable[[], None] = lambda: None,
    git_folder: str = "",
) -> Checkout:
    """Return the names in a folder of a repository. Blocks; stops at once when `check` raises. Raises ToolFailed."""
    git = git_program(repository)
    if git is None:
        raise ToolFailed("git is not installed here, and without it the files of this checkout cannot be listed")
    within = folder.relative_to(repository).as_posix()
    with _isolated_git_folder(repository, aside, git_folder) as own:
        lister = _Lister(git, repository, own, home, check)
        tagged_names = lister.names(within, "-t", "--cached", "--others", "--exclude-standard")
        ignored_names = lister.names(within, "--others", "--ignored", "--exclude-standard", "--directory")
    above = "" if within == "." else f"{within}/"
    return _checkout_beneath(above, tagged_names, ignored_names)


class _Lister:
    """Calls `git ls-files` for a repository, with a git directory of Ava's."""

    def __init__(self, git: str, repository: Path, own: Path, home: Path, check: Callable[[], None]) -> None:
        self._repository = repository
        self._own = own
        self._check = check
        self._command = [git, f"--git-dir={own}", f"--work-tree={repository}"]
        for setting in (*SAFE_CONFIG, f"core.excludesFile={global_excludes_file(git, own, home)}"):
            self._command += ["-c", setting]
        self._command += ["ls-files", "-z"]

    def names(self, within: str, *options: str) -> list[str]:
        """Return the names that git lists in a folder, relative to the repository. Raises ToolFailed."""
        output = run_git(
            [*self._command, *options, "--", within],
            folder=self._repository,
            env=git_environment(self._own),
            aside=self._own,
            within_s=GIT_S,
            check=self._check,
        )
        if output.code is None:
            raise ToolFailed(f"git did not list the files of this checkout within {GIT_S:g} s")
        if output.code != 0:
            why = output.errors[:300] or f"exit code {output.code}"
            raise ToolFailed(f"git cannot list the files of this checkout: {why}")
        return output.names()


def _checkout_beneath(above: str, tagged_names: Sequence[str], ignored_names: Sequence[str]) -> Checkout:
    """Return the names beneath a folder; `above` is its path with `/` at the end, or empty for the repository itself.

    A tagged name is `? NAME` for an untracked file, and begins with another letter for a tracked one.
    """
    tracked: dict[str, None] = {}
    others: list[str] = []
    for tagged in tagged_names:
        tag, path = tagged[:2], tagged[2:]
        name = path.removeprefix(above)
        if not name or not path.startswith(above):
            continue
        if tag == "? ":
            others.append(name)
        else:
            tracked[name] = None
    ignored: list[str] = []
    is_ignored_itself = False
    for path in ignored_names:
        if not path.endswith("/"):
            continue
        if above.startswith(path):
            is_ignored_itself = True
        elif path.startswith(above):
            ignored.append(path.removeprefix(above).rstrip("/"))
    return Checkout(tuple(tracked), tuple(others), tuple(ignored), foreign=is_ignored_itself)


@contextmanager
def _isolated_git_folder(repository: Path, aside: Path, git_folder: str) -> Generator[Path]:
    """Hold a git directory with the repository's index and nothing that git could execute. Raises ToolFailed."""
    own = aside / "git"
    make_folders(own / "objects" / "info", aside)
    (own / "refs").mkdir()
    (own / "info").mkdir()
    try:
        folders = find_git_folders(repository, only(git_folder))
        folder, common = folders.folder, folders.common
        (own / "HEAD").write_text("ref: refs/heads/none\n")
        (own / "config").write_text(object_format_config(common))
        (own / "objects" / "info" / "alternates").write_bytes(os.fsencode(common / "objects") + b"\n")
        copy_file(common, "info/exclude", own / "info" / "exclude")
        copy_file(folder, "index", own / "index")
        for path in folder.glob("sharedindex.*"):
            copy_file(folder, path.name, own / path.name)
        yield own
    except NoGitFolder as error:
        raise ToolFailed(str(error)) from None
    except OSError as error:
        raise ToolFailed(f"the repository {repository} cannot be read: {error.strerror}") from None
    finally:
        shutil.rmtree(own, ignore_errors=True)


def copy_file(folder: Path, name: str, target: Path) -> None:
    with closing(Root.open(folder)) as root, suppress(ToolFailed):
        data, more = root.read(name, _INDEX_MAX)
        if not more:
            target.write_bytes(data)


def object_format_config(common: Path) -> str:
    """Return a git configuration that says only how the index is to be read."""
    config = b""
    with suppress(OSError):
        config = read_small(common / "config", 100_000)
    if b"sha256" not in config.lower():
        return "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
    return "[core]\n\trepositoryformatversion = 1\n\tbare = false\n[extensions]\n\tobjectformat = sha256\n"


def global_excludes_file(git: str, own: Path, home: Path) -> str:
    """Return the user's file of names to ignore in every repository, from their own configuration."""
    env = {**git_environment(own), "HOME": str(home), "GIT_DIR": str(own)}
    del env["GIT_CONFIG_GLOBAL"]
    with suppress(OSError, subprocess.SubprocessError):
        output = subprocess.run(  # noqa: S603 - fixed arguments
            ending_with_us([git, "config", "--global", "--type=path", "--get", "core.excludesFile"]),
            cwd="/",
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=False,
        )
        if output.returncode == 0 and output.stdout.strip():
            return os.fsdecode(output.stdout.rstrip(b"\n"))
    return str(home / ".config" / "git" / "ignore")
