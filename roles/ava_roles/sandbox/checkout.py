"""What of a git checkout is the project: what git tracks, and what is there besides and not ignored.

git is asked through a folder of our own, made for the one question. It has the repository's index and its list of
ignored names, and nothing else of it: no configuration and no hooks, so that nothing of the repository runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.git import OFF, NoGitFolder, environment, folders_of, git_program, run_git
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.small_files import read_small

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
