"""Which paths of a commit git has its own ways with: submodules, pointers of git LFS, and files that it rewrites."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.worktree.git import Git

_LARGEST = 100_000_000


@dataclass(frozen=True)
class Protected:
    """What of a commit is not to be touched, and what is not to be taken for changed.

    Attributes:
        submodules: Repositories of their own.
        pointers: Files that git LFS keeps.
        written: Files whose content is not what git would make of it again (line ends, `$Id$`), as it was written.
    """

    submodules: frozenset[str] = frozenset()
    pointers: frozenset[str] = frozenset()
    written: dict[str, str] = field(default_factory=dict[str, str])


def protected(git: Git, commit: str, tree: Path | None) -> Protected:
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
    lfs = [name for name, value in filters(git, commit, names) if value == "lfs"] if b"lfs" in rules else []
    found = git.own / "written.json"
    if tree is not None:
        converted = rules or any(git.said("config", name).code == 0 for name in ("core.autocrlf", "core.eol"))
        found.write_text(json.dumps(_written(git, commit, tree) if converted else {}))
    submodules = frozenset(name for words, name in entries if words[0] == "160000")
    return Protected(submodules, frozenset(lfs), json.loads(found.read_text()))


def filters(git: Git, commit: str, names: Sequence[str]) -> list[tuple[str, str]]:
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


def same_as_written(tree: Root, name: str, mark: str) -> bool:
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
