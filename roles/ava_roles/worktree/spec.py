"""Values of work on a repository: what was approved, how it started, how it was verified, and its branch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ava_roles.sandbox.sandbox import Ended
from ava_roles.worktree.repository import Git

_PYTEST = re.compile(r"^=+ (FAILURES|ERRORS) =+$")
_PYTEST_SUMMARY = re.compile(r"^=+ short test summary info =+$")
_STARTS_OF_FAILURES = (
    _PYTEST,
    re.compile(r"^(FAIL|ERROR): .+ \(.+\)"),  # unittest
    re.compile(r"^\s*(FAIL\s+\S+|●\s.+)$"),  # jest
    re.compile(r"^(.{0,6}failing tests:|not ok \d+ |\s+not ok \d+ )"),  # node
    re.compile(r"^(failures:|error(\[E\d+\])?: .+)$"),  # cargo
    re.compile(r"^(\s*--- FAIL: |# \S+|panic: |.+\.go:\d+:\d+: )"),  # go
)
_CUT = "[…]"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Verdict:
    """How one run of a command in the check tree ended.

    `passed`: by itself, with exit code 0. `code` is None if it was ended; `ended` is that of `sandbox.Finished`.
    `output` is unchanged, at most 400,000 bytes. `tree` is the git tree that was checked: the candidate.
    """

    passed: bool
    code: int | None
    ended: Ended
    output: str
    took_s: float
    tree: str = ""

    def failing(self, limit: int = 6_000) -> str:
        return failing_part(self.output, limit)


def failing_part(output: str, limit: int) -> str:
    """Return the part of a test run's output that says what failed, at most `limit` characters; otherwise its end.

    The part starts where a known test runner begins to report failures, and keeps the end, where it sums up. pytest's
    summary has a line for each failure: it is kept first.
    """
    text = _COLOUR.sub("", output).replace("\r\n", "\n").rstrip()
    if len(text) <= limit:
        return text
    lines = text.split("\n")
    if (from_end := _first(lines[::-1], (_PYTEST_SUMMARY,))) is not None:
        start = len(lines) - 1 - from_end
        summary = "\n".join(lines[start:])
        first = _first(lines[:start], (_PYTEST,))
        if first is None or len(summary) > limit * 2 // 3:
            return _cut_middle(summary, limit)
        room = limit - len(summary) - 1
        details = "\n".join(lines[first:start])
        return f"{_cut_middle(details, room)}\n{summary}" if room > 200 else summary
    first = _first(lines, _STARTS_OF_FAILURES)
    return _cut_beginning(text, limit) if first is None else _cut_middle("\n".join(lines[first:]), limit)


def _first(lines: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> int | None:
    return next((n for n, line in enumerate(lines) if any(pattern.match(line) for pattern in patterns)), None)


def _cut_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    room = max(0, limit - len(_CUT) - 2)
    head, tail = text[: room * 2 // 3], text[len(text) - (room - room * 2 // 3) :]
    if "\n" in head:
        head = head[: head.rindex("\n")]
    if "\n" in tail:
        tail = tail[tail.index("\n") + 1 :]
    return f"{head}\n{_CUT}\n{tail}"[:limit]


def _cut_beginning(text: str, limit: int) -> str:
    tail = text[len(text) - max(0, limit - len(_CUT) - 1) :]
    if "\n" in tail[:-1]:
        tail = tail[tail.index("\n") + 1 :]
    return f"{_CUT}\n{tail}"[:limit]


_MANIFESTS = frozenset(
    {
        "package.json", "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock",
        "pyproject.toml", "setup.py", "setup.cfg", "poetry.lock", "uv.lock", "pdm.lock", "Pipfile", "Pipfile.lock",
        "environment.yml", "Cargo.toml", "Cargo.lock", "go.mod", "go.sum", "Gemfile", "Gemfile.lock",
        "composer.json", "composer.lock", "CMakeLists.txt",
    }
)  # fmt: skip
"""Files that say what a project depends on, besides `requirements*.txt`."""


def manifests_digest(git: Git, tree: str) -> str:
    """Return a digest of a commit or tree that changes when a file that names dependencies does."""
    listed = git("ls-tree", "-r", "-z", "--full-tree", tree).names()
    found: list[str] = []
    for entry in listed:
        name = entry.partition("\t")[2].rpartition("/")[2]
        if name in _MANIFESTS or (name.startswith("requirements") and name.endswith(".txt")):
            found.append(entry)
    return hashlib.sha256("\0".join(found).encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass(frozen=True)
class WorktreeSpec:
    """What was approved of the work on a repository.

    `repository` is the root of the user's checkout: the folder that contains `.git`; `git_folder` the approved one
    outside of it, empty if it has none there. `namespace` is what `namespace_of` returns. The work begins at `base`;
    None takes the commit that is checked out when the worktree is made. It must pass `verify`, in a tree that `setup`
    prepares: command lines for bash, each of which may take `verify_timeout_s`. `carry`: further folders of the
    checkout that are shown as they are. `identity` is the repository's; empty if it was not recorded.
    """

    run_id: str
    repository: Path
    namespace: tuple[str, ...]
    verify: str
    base: str | None = None
    setup: str | None = None
    carry: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    verify_timeout_s: float = 600
    git_folder: str = ""


@dataclass(frozen=True)
class ChangedFile:
    """A file that the work changed, by its path relative to the repository's root.

    `added` and `removed` are lines, 0 for a binary file. `test`: it is a test, or controls what the verify command
    runs. `link`: the target, if it is now a symbolic link; else None.
    """

    path: str
    added: int
    removed: int
    kind: Literal["added", "changed", "removed"]
    test: bool
    link: str | None = None


@dataclass(frozen=True)
class Branch:
    """The branch that holds the work; its name without `refs/heads/`.

    `base` is the commit that the work began at, and `changed` what differs between it and `head`. `tree` is that of the
    head: the `tree` of the verdict that it was checked with. `notes`: what the user should know, one sentence each.
    """

    name: str
    base: str
    head: str
    changed: tuple[ChangedFile, ...]
    tree: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """The state before the work: its first commit, how both commands ended, if run, and `notes` for the model."""

    base: str
    notes: str
    setup: Verdict | None = None
    verify: Verdict | None = None
