"""The part of a test run's output that says what failed."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import Ended
from ava_roles.worktree.git import Git

_PYTEST = re.compile(r"^=+ (FAILURES|ERRORS) =+$")
_PYTEST_SUMMARY = re.compile(r"^=+ short test summary info =+$")
_UNITTEST = re.compile(r"^(FAIL|ERROR): .+ \(.+\)")
_CARGO = re.compile(r"^(failures:|error(\[E\d+\])?: .+)$")
_GO = re.compile(r"^(\s*--- FAIL: |# \S+|panic: |.+\.go:\d+:\d+: )")
_NODE = re.compile(r"^(.{0,6}failing tests:|not ok \d+ |\s+not ok \d+ )")
_JEST = re.compile(r"^\s*(FAIL\s+\S+|●\s.+)$")
_CUT = "[…]"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BEGINNINGS = (_PYTEST, _UNITTEST, _JEST, _NODE, _CARGO, _GO)


def failing_part(output: str, limit: int) -> str:
    """Return the part of an output that says what failed, at most so many characters; else its end.

    That is, from where a known test runner begins to tell of failures: the beginning of it, and the end, where it sums
    up. pytest names every failure in a few lines of its own; they come first.
    """
    text = _COLOUR.sub("", output).replace("\r\n", "\n").rstrip()
    if len(text) <= limit:
        return text
    lines = text.split("\n")
    summary = _last(lines, (_PYTEST_SUMMARY,))
    if summary is not None:
        listed = "\n".join(lines[summary:])
        first = _first(lines[:summary], (_PYTEST,))
        if first is None or len(listed) > limit * 2 // 3:
            return _both_ends(listed, limit)
        rest = limit - len(listed) - 1
        return f"{_both_ends(chr(10).join(lines[first:summary]), rest)}\n{listed}" if rest > 200 else listed
    first = _first(lines, _BEGINNINGS)
    if first is None:
        return _end(text, limit)
    return _both_ends("\n".join(lines[first:]), limit)


def _first(lines: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> int | None:
    return next((n for n, line in enumerate(lines) if any(pattern.match(line) for pattern in patterns)), None)


def _last(lines: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> int | None:
    found = _first(lines[::-1], patterns)
    return None if found is None else len(lines) - 1 - found


def _both_ends(text: str, limit: int) -> str:
    """Return a text cut in the middle, at the ends of lines where there are some."""
    if len(text) <= limit:
        return text
    room = max(0, limit - len(_CUT) - 2)
    head, tail = text[: room * 2 // 3], text[len(text) - (room - room * 2 // 3) :]
    if "\n" in head:
        head = head[: head.rindex("\n")]
    if "\n" in tail:
        tail = tail[tail.index("\n") + 1 :]
    return f"{head}\n{_CUT}\n{tail}"[:limit]


def _end(text: str, limit: int) -> str:
    """Return the end of a text."""
    if len(text) <= limit:
        return text
    tail = text[len(text) - max(0, limit - len(_CUT) - 1) :]
    if "\n" in tail[:-1]:
        tail = tail[tail.index("\n") + 1 :]
    return f"{_CUT}\n{tail}"[:limit]


@dataclass(frozen=True)
class Verdict:
    """How one run of a command in the check tree ended.

    Attributes:
        passed: It ended by itself, with exit code 0.
        code: Its exit code; None where it was ended.
        ended: As `sandbox.Finished.ended`.
        output: What it wrote, as it came; at most 400,000 bytes.
        took_s: Seconds.
        tree: What was checked, as git calls it: the candidate.
    """

    passed: bool
    code: int | None
    ended: Ended
    output: str
    took_s: float
    tree: str = ""

    def failing(self, limit: int = 6_000) -> str:
        """Return the part of the output that says what failed, at most so many characters."""
        return failing_part(self.output, limit)


_MANIFESTS = frozenset(
    {
        "package.json",
        "package-lock.json",
        "npm-shrinkwrap.json",
        "pnpm-lock.yaml",
        "yarn.lock",
        "bun.lock",
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "poetry.lock",
        "uv.lock",
        "pdm.lock",
        "Pipfile",
        "Pipfile.lock",
        "environment.yml",
        "Cargo.toml",
        "Cargo.lock",
        "go.mod",
        "go.sum",
        "Gemfile",
        "Gemfile.lock",
        "composer.json",
        "composer.lock",
        "CMakeLists.txt",
    }
)


def manifests_digest(git: Git, tree: str) -> str:
    """Return a mark of a commit or tree that changes when one of these files does."""
    listed = git("ls-tree", "-r", "-z", "--full-tree", tree).names()
    wanted = (entry for entry in listed if _is_manifest(entry.partition("\t")[2]))
    return hashlib.sha256("\0".join(wanted).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _is_manifest(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last in _MANIFESTS or (last.startswith("requirements") and last.endswith(".txt"))


_LARGEST = 100_000_000


@dataclass(frozen=True)
class ProtectedPaths:
    """What of a commit is not to be touched, and what is not to be taken for changed.

    Attributes:
        submodules: Repositories of their own.
        pointers: Files that git LFS keeps.
        written: Files whose content is not what git would make of it again (line ends, `$Id$`), as it was written.
    """

    submodules: frozenset[str] = frozenset()
    pointers: frozenset[str] = frozenset()
    written: dict[str, str] = field(default_factory=dict[str, str])


def find_protected_paths(git: Git, commit: str, tree: Path | None) -> ProtectedPaths:
    """Look at a commit.

    Args:
        git: git, with a directory that has its objects.
        commit: The commit.
        tree: The tree, just written from it; None takes what was found when it was.
    """
    listed = git("ls-tree", "-r", "-z", "--full-tree", commit).names()
    entries = [(entry.partition("\t")[0].split(), entry.partition("\t")[2]) for entry in listed]
    blobs = [(words[2], name) for words, name in entries if words[1] == "blob"]
    rules = _rules(git, [object_id for object_id, name in blobs if name.rpartition("/")[2] == ".gitattributes"])
    names = [name for _id, name in blobs]
    lfs = [name for name, value in filtered_files(git, commit, names) if value == "lfs"] if b"lfs" in rules else []
    found = git.own / "written.json"
    if tree is not None:
        converted = rules or any(git.said("config", name).code == 0 for name in ("core.autocrlf", "core.eol"))
        found.write_text(json.dumps(_written(git, commit, tree) if converted else {}))
    submodules = frozenset(name for words, name in entries if words[0] == "160000")
    return ProtectedPaths(submodules, frozenset(lfs), json.loads(found.read_text()))


def filtered_files(git: Git, commit: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names that go through a git filter, by the attributes of a commit, each with the filter's name."""
    index = git.own / f"index-{os.urandom(6).hex()}"
    asking = replace(git, tree=None, index=index)
    try:
        asking("read-tree", commit)
        stdin = b"".join(os.fsencode(name) + b"\0" for name in names)
        said = asking("check-attr", "-z", "--cached", "--stdin", "filter", stdin=stdin).names()
    finally:
        index.unlink(missing_ok=True)
    found = zip(said[::3], said[2::3], strict=True)
    return [(name, value) for name, value in found if value not in ("unspecified", "unset", "set")]


def is_as_written(tree: Root, name: str, mark: str) -> bool:
    """Tell whether a file is as it was written."""
    return _mark(tree, name) == mark


def _rules(git: Git, objects: Sequence[str]) -> bytes:
    """Return the text of all attributes."""
    said = git("cat-file", "--batch", stdin="".join(f"{each}\n" for each in objects).encode()).out if objects else b""
    local = git.own / "info" / "attributes"
    return said + (local.read_bytes() if local.is_file() else b"")


def _written(git: Git, commit: str, tree: Path) -> dict[str, str]:
    """Return what git takes for changed in a tree that it has just written."""
    index = git.own / f"index-{os.urandom(6).hex()}"
    asking = git.on(tree, index)
    try:
        asking("read-tree", commit)
        asking.said("update-index", "-q", "--really-refresh")
        changed = dict.fromkeys(asking("ls-files", "-z", "--modified").names())
    finally:
        index.unlink(missing_ok=True)
    root = Root.open(tree)
    try:
        return {name: mark for name in changed if (mark := _mark(root, name))}
    finally:
        root.close()


def _mark(tree: Root, name: str) -> str:
    try:
        data, _more = tree.read(name, _LARGEST)
    except ToolFailed:
        return ""
    return hashlib.sha256(data).hexdigest()
