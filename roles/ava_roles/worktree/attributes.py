"""What a commit contains besides plain files: submodules, and files that git's attributes make special."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.worktree.git import Git, temporary_index

_MAX_BYTES = 100_000_000


@dataclass(frozen=True)
class CommitFiles:
    """The files of a commit.

    Attributes:
        submodules: The folders of submodules.
        blobs: The object id of each file, by path.
        attributes: The text of all attribute files that apply to it.
    """

    submodules: tuple[str, ...]
    blobs: Mapping[str, str]
    attributes: bytes

    @classmethod
    def of(cls, git: Git, commit: str) -> CommitFiles:
        """List a commit."""
        listed = git("ls-tree", "-r", "-z", "--full-tree", commit).names()
        entries = [(entry.partition("\t")[0].split(), entry.partition("\t")[2]) for entry in listed]
        blobs = {name: words[2] for words, name in entries if words[1] == "blob"}
        ids = [object_id for name, object_id in blobs.items() if name.rpartition("/")[2] == ".gitattributes"]
        text = git("cat-file", "--batch", stdin="".join(f"{each}\n" for each in ids).encode()).out if ids else b""
        local = git.own / "info" / "attributes"
        text += local.read_bytes() if local.is_file() else b""
        return cls(tuple(name for words, name in entries if words[0] == "160000"), blobs, text)


@dataclass(frozen=True)
class ProtectedPaths:
    """The paths of a commit that no run may change, and the files that only seem changed.

    Attributes:
        submodules: The folders of submodules.
        pointers: Files that Git LFS keeps.
        written: Files that git would store differently than it wrote them (line ends, `$Id$`), each with the digest of
            what it wrote.
    """

    submodules: frozenset[str] = frozenset()
    pointers: frozenset[str] = frozenset()
    written: Mapping[str, str] = field(default_factory=dict[str, str])


def find_protected_paths(git: Git, commit: str, tree: Path | None) -> ProtectedPaths:
    """Return the protected paths of a commit.

    Args:
        git: git, with a directory that has its objects.
        commit: The commit.
        tree: The tree that was just written from it; None uses what was found at that time.
    """
    files = CommitFiles.of(git, commit)
    filtered = filtered_files(git, commit, list(files.blobs)) if b"lfs" in files.attributes else []
    saved = git.own / "written.json"
    if tree is not None:
        converts = files.attributes or any(git.run("config", key).code == 0 for key in ("core.autocrlf", "core.eol"))
        saved.write_text(json.dumps(_seemingly_changed(git, commit, tree) if converts else {}))
    pointers = frozenset(name for name, value in filtered if value == "lfs")
    return ProtectedPaths(frozenset(files.submodules), pointers, json.loads(saved.read_text()))


def filtered_files(git: Git, commit: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the files that pass through a git filter, by the attributes of a commit, each with the filter's name."""
    with temporary_index(replace(git, tree=None)) as indexed:
        indexed("read-tree", commit)
        stdin = b"".join(os.fsencode(name) + b"\0" for name in names)
        fields = indexed("check-attr", "-z", "--cached", "--stdin", "filter", stdin=stdin).names()
    found = zip(fields[::3], fields[2::3], strict=True)
    return [(name, value) for name, value in found if value not in ("unspecified", "unset", "set")]


def is_as_written(tree: Root, name: str, digest: str) -> bool:
    """Tell whether a file is still as git wrote it."""
    return _digest(tree, name) == digest


def _seemingly_changed(git: Git, commit: str, tree: Path) -> dict[str, str]:
    """Return the files that git reports as changed in a tree that it has just written."""
    with temporary_index(replace(git, tree=tree)) as indexed:
        indexed("read-tree", commit)
        indexed.run("update-index", "-q", "--really-refresh")
        changed = dict.fromkeys(indexed("ls-files", "-z", "--modified").names())
    root = Root.open(tree)
    try:
        return {name: digest for name in changed if (digest := _digest(root, name))}
    finally:
        root.close()


def _digest(tree: Root, name: str) -> str:
    try:
        data, _more = tree.read(name, _MAX_BYTES)
    except ToolFailed:
        return ""
    return hashlib.sha256(data).hexdigest()
