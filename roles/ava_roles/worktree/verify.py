"""The verify command: how one run of it ended, what failed, and when the setup command has to run again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ava_roles.sandbox.sandbox import Ended
from ava_roles.worktree.git import Git

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

    Attributes:
        passed: It ended by itself, with exit code 0.
        code: Its exit code; None if it was ended.
        ended: As `sandbox.Finished.ended`.
        output: What it wrote, unchanged; at most 400,000 bytes.
        took_s: Seconds.
        tree: The git tree that was checked: the candidate.
    """

    passed: bool
    code: int | None
    ended: Ended
    output: str
    took_s: float
    tree: str = ""

    def failing(self, limit: int = 6_000) -> str:
        """Return the part of the output that says what failed, at most `limit` characters."""
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
    """Return a text cut in the middle, at line ends if possible."""
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
    manifests = (entry for entry in listed if _is_manifest(entry.partition("\t")[2]))
    return hashlib.sha256("\0".join(manifests).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _is_manifest(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name in _MANIFESTS or (name.startswith("requirements") and name.endswith(".txt"))
