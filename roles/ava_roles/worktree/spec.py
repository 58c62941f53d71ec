"""Values of work on a repository: what was approved, how it started, and the branch that it became."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ava_roles.errors import BadNamespace
from ava_roles.sandbox.paths import shown
from ava_roles.worktree.verify import Verdict

_MAX_PATHS, _MAX_CHARS = 200, 1_000
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True)
class WorktreeSpec:
    """What was approved of the work on a repository.

    Attributes:
        run_id: The run that does the work.
        repository: The root of the user's checkout: the folder that contains `.git`.
        namespace: What may be changed, as `namespace_of` returns it.
        verify: The command line, run by bash, that the work must pass.
        base: The commit that the work begins at; None takes the one that is checked out when the worktree is made.
        setup: The command line that prepares a tree for it.
        carry: Further folders of the checkout that are shown as they are.
        verify_timeout_s: The longest that either command may take.
    """

    run_id: str
    repository: Path
    namespace: tuple[str, ...]
    verify: str
    base: str | None = None
    setup: str | None = None
    carry: tuple[str, ...] = ()
    verify_timeout_s: float = 600


def namespace_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return paths in their normal form: relative to the repository's root, with `/`; "." is all of it.

    A path inside another one of them is left out.

    Raises:
        BadNamespace: One of them cannot be used; says why.
    """
    texts = [given] if isinstance(given, str) else list(given)
    if not texts:
        raise BadNamespace('it names nothing; give the files or folders that may be changed, such as "src/parser"')
    if len(texts) > _MAX_PATHS:
        raise BadNamespace(f"it names {len(texts)} paths, and at most {_MAX_PATHS} are allowed; name their folders")
    found = dict.fromkeys(map(_normal, texts))
    if "." in found:
        return (".",)
    return tuple(path for path in found if not any(path.startswith(f"{other}/") for other in found))


def within(namespace: Sequence[str], path: str) -> bool:
    """Tell whether a path, relative to the repository's root, is in a namespace."""
    return any(each in (".", path) or path.startswith(f"{each}/") for each in namespace)


def _normal(text: str) -> str:
    name = repr(shown(text))
    if not text.strip():
        raise BadNamespace('an empty path; give one relative to the repository\'s root, or "." for all of it')
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise BadNamespace(f"{name} has a control character in it; give the path as it is")
    if len(text) > _MAX_CHARS:
        raise BadNamespace(f"{name} is longer than {_MAX_CHARS} characters; name the folder that it lies in")
    if text.startswith(("/", "~", "\\")) or _DRIVE.match(text):
        raise BadNamespace(f"{name} is not relative; give it as it is called from the repository's root")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadNamespace(f'{name} has ".." in it; give it as it is called from the repository\'s root')
    if any(part.lower() == ".git" for part in parts):
        raise BadNamespace(f"{name} lies in .git, which is git's own; name files of the project")
    if any("*" in part or "?" in part for part in parts):
        raise BadNamespace(f"{name} is a pattern, and only plain paths are understood; name the folder")
    return "/".join(parts) or "."


@dataclass(frozen=True)
class ChangedFile:
    """A file that the work changed.

    Attributes:
        path: Its path, relative to the repository's root.
        added: Lines; 0 for a binary file.
        removed: Lines; 0 for a binary file.
        kind: What happened to it.
        test: It is a test, or controls what the verify command runs.
    """

    path: str
    added: int
    removed: int
    kind: Literal["added", "changed", "removed"]
    test: bool


@dataclass(frozen=True)
class Branch:
    """The branch that holds the work.

    Attributes:
        name: The branch, without `refs/heads/`.
        base: The commit that the work began at.
        head: The commit that it points to.
        changed: The files that differ between the two.
        tree: The git tree of the head; the `tree` of the verdict that it was checked with.
        notes: What the user should know about it, one sentence each.
    """

    name: str
    base: str
    head: str
    changed: tuple[ChangedFile, ...]
    tree: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """The state before the work.

    Attributes:
        base: The commit that the work begins at.
        notes: What the model should know about the worktree.
        setup: How the setup command ended; None if it was not run.
        verify: How the verify command ended; None if it was not run.
    """

    base: str
    notes: str
    setup: Verdict | None = None
    verify: Verdict | None = None
