"""What a repository is like before anything is done with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
    raise NotImplementedError
