"""What has become of the work: a branch, and what differs on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ava_roles.worktree.verdict import Verdict


@dataclass(frozen=True)
class Changed:
    """A file that differs.

    Attributes:
        path: Its path, relative to the repository's root.
        added: Lines; 0 for a binary file.
        removed: Lines; 0 for a binary file.
        kind: What happened to it.
        test: It is a test, or decides what the verify command runs.
    """

    path: str
    added: int
    removed: int
    kind: Literal["added", "changed", "removed"]
    test: bool


@dataclass(frozen=True)
class Branch:
    """Where the work is kept.

    Attributes:
        name: The branch, without `refs/heads/`.
        base: The commit that it began at.
        head: The commit that it is.
        changed: What differs between the two.
        tree: What the head consists of; the `tree` of the verdict that it was checked with.
        notes: What there is to know about it, in sentences.
    """

    name: str
    base: str
    head: str
    changed: tuple[Changed, ...]
    tree: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """How things stood before the work.

    Attributes:
        base: The commit that the work begins at.
        notes: What there is to know about the worktree, for the model.
        setup: How the setup command ended; None where there is none, or it was not run.
        verify: How the verify command ended; None where it was not run.
    """

    base: str
    notes: str
    setup: Verdict | None = None
    verify: Verdict | None = None
