"""What a repository is like before anything is done with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ava_roles.sandbox.checkout import take
from ava_roles.sandbox.paths import shown
from ava_roles.worktree.git import Git, folder_aside, told
from ava_roles.worktree.protected import filters
from ava_roles.worktree.repository import Theirs


@dataclass(frozen=True)
class State:
    """How a checkout stands.

    Attributes:
        head: The commit that the work would begin at.
        branch: The branch that is checked out; None is a detached HEAD.
        uncommitted: How many files have changes that are not committed, and so are no part of the work.
        submodules: The folders of submodules, which are empty in the worktree.
        lfs: How many files are kept by git LFS, and are pointers in the worktree.
        filters: The names of git filters that files go through, and that are not run.
        notes: What of all that there is to know, in sentences.
    """

    head: str
    branch: str | None
    uncommitted: int
    submodules: tuple[str, ...]
    lfs: int
    filters: tuple[str, ...]
    notes: tuple[str, ...]


def look(repository: Path, home: Path) -> State:
    """Return how a checkout stands. Blocking, quick; runs nothing of the repository's, and changes nothing.

    Args:
        repository: The root of the checkout.
        home: The user's home folder, for what their own configuration says.

    Raises:
        NoRepository: There is no commit to begin at; says what to do.
        WorkshopFailed: git is not there, or cannot tell.
    """
    theirs = Theirs.at(repository, home)
    with folder_aside("looking at the repository") as aside:
        git = theirs.git_folder(aside / "git", joined=True)
        head, branch = theirs.head(git)
        listed = git("ls-tree", "-r", "-z", "--full-tree", head).names()
        entries = [(entry.partition("\t")[0].split(), entry.partition("\t")[2]) for entry in listed]
        submodules = tuple(name for words, name in entries if words[0] == "160000")
        through = _filtered(git, head, [name for words, name in entries if words[1] == "blob"])
        uncommitted = _uncommitted(theirs, git, head)
    lfs = sum(value == "lfs" for _name, value in through)
    others = tuple(sorted({value for _name, value in through} - {"lfs"}))
    return State(head, branch, uncommitted, submodules, lfs, others, _notes(uncommitted, submodules, lfs, others))


def _filtered(git: Git, head: str, names: list[str]) -> list[tuple[str, str]]:
    """Return which files go through a filter; quick where no attributes say so."""
    local = git.own / "info" / "attributes"
    rules = [name for name in names if name.rpartition("/")[2] == ".gitattributes"]
    stdin = "".join(f"{head}:{name}\n" for name in rules if "\n" not in name).encode("utf-8", "surrogateescape")
    said = git("cat-file", "--batch", stdin=stdin).out if stdin else b""
    if b"filter" not in said + (local.read_bytes() if local.is_file() else b""):
        return []
    return filters(git, head, names)


def _uncommitted(theirs: Theirs, git: Git, head: str) -> int:
    """Return how many files differ from the last commit, asked with a copy of the index."""
    index = git.own / "index"
    with told("reading the index"):
        for name in ("index", *(path.name for path in theirs.folder.glob("sharedindex.*"))):
            take(theirs.folder, name, git.own / name)
    asking = git.on(theirs.root, index)
    changed = set(asking("ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard").names())
    if index.exists():
        changed |= set(asking("diff-index", "--cached", "-z", "--name-only", "--ignore-submodules=all", head).names())
    return len(changed)


def _notes(uncommitted: int, submodules: tuple[str, ...], lfs: int, others: tuple[str, ...]) -> tuple[str, ...]:
    notes: list[str] = []
    if uncommitted:
        files = "1 file has" if uncommitted == 1 else f"{uncommitted:,} files have"
        notes.append(f"{files} changes that are not committed; the work begins at the last commit, without them")
    if submodules:
        some = ", ".join(map(shown, submodules[:8]))
        notes.append(f"submodules are empty in the worktree and stay as they are: {some}")
    if lfs:
        notes.append(f"files kept by git LFS are pointers in the worktree and stay as they are: {lfs:,}")
    if others:
        notes.append(f"git filters are not run: {', '.join(map(shown, others))}")
    return tuple(notes)
