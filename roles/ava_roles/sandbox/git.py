"""git, called so that nothing of a repository runs: through a folder of our own, without anybody's configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.programs import path_apart_from, read_small

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
class GitOutput:
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
) -> GitOutput:
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
        return GitOutput(code, out.read(), errors.read(2_000).decode("utf-8", "replace").strip())


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


GIT_S = 30.0
_INDEX_MAX = 500_000_000


@dataclass(frozen=True)
class Checkout:
    """The names of a folder, relative to it.

    Attributes:
        tracked: What git knows of; a submodule by its folder.
        others: What is there besides and not ignored; a repository of its own by its folder, with a `/` at the end.
        ignored: The folders that are ignored as a whole.
        foreign: The folder itself is ignored: it lies in the repository, and is no part of it.
    """

    tracked: tuple[str, ...]
    others: tuple[str, ...]
    ignored: tuple[str, ...]
    foreign: bool = False


def look_at(
    repository: Path, folder: Path, aside: Path, home: Path, check: Callable[[], None] = lambda: None
) -> Checkout:
    """Return what belongs to a folder of a repository. Blocking; ends at once when `check` raises.

    Args:
        repository: The folder in which `.git` stands.
        folder: The folder in question, within it.
        aside: Where a folder of our own may be made; it is gone afterwards.
        home: The user's home folder, for the names that they have git ignore everywhere.
        check: Called again and again.

    Raises:
        ToolFailed: git is not there, or cannot tell.
    """
    git = git_program(repository)
    if git is None:
        raise ToolFailed("git is not installed here, and what belongs to this checkout cannot be told without it")
    within = folder.relative_to(repository).as_posix()
    with _folder_of_our_own(repository, aside) as own:
        asking = _Git(git, own, repository, ignored_everywhere(git, own, home), check)
        marked = asking("-t", "--cached", "--others", "--exclude-standard", "--", within)
        ignored = asking("--others", "--ignored", "--exclude-standard", "--directory", "--", within)
    above = "" if within == "." else f"{within}/"
    return Checkout(
        tracked=tuple(dict.fromkeys(_beneath(above, (name[2:] for name in marked if not name.startswith("? "))))),
        others=tuple(_beneath(above, (name[2:] for name in marked if name.startswith("? ")))),
        ignored=tuple(name.rstrip("/") for name in _beneath(above, ignored) if name.endswith("/")),
        foreign=any(name.endswith("/") and above.startswith(name) for name in ignored),
    )


def _beneath(above: str, names: Iterable[str]) -> Iterator[str]:
    return (name.removeprefix(above) for name in names if name.startswith(above) and name != above)


@dataclass(frozen=True)
class _Git:
    """Asks `git ls-files` about a work tree, through a folder of our own."""

    git: str
    own: Path
    work_tree: Path
    ignores: str
    check: Callable[[], None]

    def __call__(self, *args: str) -> list[str]:
        """Return the names that git prints.

        Raises:
            ToolFailed: It fails, or takes too long.
        """
        options = [part for each in (*OFF, f"core.excludesFile={self.ignores}") for part in ("-c", each)]
        command = [self.git, f"--git-dir={self.own}", f"--work-tree={self.work_tree}", *options, "ls-files", "-z"]
        said = run_git(
            [*command, *args],
            folder=self.work_tree,
            env=environment(self.own),
            aside=self.own,
            within_s=GIT_S,
            check=self.check,
        )
        if said.code is None:
            raise ToolFailed(f"git did not tell within {GIT_S:g} s what belongs to this checkout")
        if said.code != 0:
            why = said.errors[:300] or f"exit code {said.code}"
            raise ToolFailed(f"git cannot tell what belongs to this checkout: {why}")
        return said.names()


@contextmanager
def _folder_of_our_own(repository: Path, aside: Path) -> Generator[Path]:
    """Hold a folder that git takes for the repository's, with its index and nothing of it that could run.

    Raises:
        ToolFailed: The repository cannot be read.
    """
    own = aside / "git"
    (own / "objects" / "info").mkdir(mode=0o700, parents=True)
    (own / "refs").mkdir()
    (own / "info").mkdir()
    try:
        theirs, common = folders_of(repository)
        (own / "HEAD").write_text("ref: refs/heads/none\n")
        (own / "config").write_text(format_of(common))
        (own / "objects" / "info" / "alternates").write_bytes(os.fsencode(common / "objects") + b"\n")
        shared = (path.name for path in theirs.glob("sharedindex.*"))
        for source, name in ((theirs, "index"), (common, "info/exclude"), *((theirs, name) for name in shared)):
            take(source, name, own / name)
        yield own
    except NoGitFolder as error:
        raise ToolFailed(str(error)) from None
    except OSError as error:
        raise ToolFailed(f"the repository {repository} cannot be read: {error.strerror}") from None
    finally:
        shutil.rmtree(own, ignore_errors=True)


def take(folder: Path, name: str, target: Path) -> None:
    """Copy a regular file of a folder, if it is there."""
    root = Root.open(folder)
    try:
        with suppress(ToolFailed):
            data, more = root.read(name, _INDEX_MAX)
            if not more:
                target.write_bytes(data)
    finally:
        root.close()


def format_of(common: Path) -> str:
    """Return a configuration that says nothing but how the index has to be read."""
    said = b""
    with suppress(OSError):
        said = read_small(common / "config", 100_000)
    if b"sha256" not in said.lower():
        return "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
    return "[core]\n\trepositoryformatversion = 1\n\tbare = false\n[extensions]\n\tobjectformat = sha256\n"


def ignored_everywhere(git: str, own: Path, home: Path) -> str:
    """Return the file of names that the user has git ignore everywhere, as their own configuration says."""
    env = {**environment(own), "HOME": str(home), "GIT_DIR": str(own)}
    del env["GIT_CONFIG_GLOBAL"]
    with suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(  # noqa: S603 - fixed arguments
            [git, "config", "--global", "--type=path", "--get", "core.excludesFile"],
            cwd="/",
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=False,
        )
        if asked.returncode == 0 and asked.stdout.strip():
            return os.fsdecode(asked.stdout.rstrip(b"\n"))
    return str(home / ".config" / "git" / "ignore")
