"""What a run may change in its worktree, and how: within its namespace, through no link, in one step.

Everything here blocks: callers put it in a thread.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.removal import remove_tree

BYTES_MAX = 2_000_000
"""The largest file that is edited or written: what is larger nobody writes by hand."""

_NAMED = 12
_LFS = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\r?\n")
_LFS_BYTES = 1024
_PASSED_OVER = re.compile("[\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
"""What HFS+ does not see in a name (git's list, and the rest of two blocks that it is from)."""


class Edits:
    """The files of a worktree that one run may change.

    Args:
        root: The worktree, open.
        namespace: Files and folders in it, relative and with `/`, also such as are not there yet; `.` is all.
        aside: A folder beside the worktree, on the same file system: what is being written stands there until it is
            complete. It is made, and emptied of what a process that was killed has left.
        submodules: Paths whose content is another repository's.
    """

    def __init__(self, root: Root, namespace: Sequence[str], aside: Path, submodules: Collection[str] = ()) -> None:
        self._root = root
        self._namespace = tuple(namespace)
        self._submodules = tuple(submodules)
        self._aside = aside
        remove_tree(aside)
        aside.mkdir(mode=0o700, parents=True)

    def allowed(self, path: str) -> str:
        """Return a path in its normal form, if the run may change what it names.

        Raises:
            AccessRefused: It may not; says what it may change, and what to do.
        """
        parts = self._root.parts(path)
        name = "/".join(parts)
        if not parts:
            raise AccessRefused("this is the worktree itself, a folder; name a file in it")
        if "\\" in name or any(unicodedata.category(char) in ("Cc", "Cs") for char in name):
            raise AccessRefused(
                f"{shown(name)} has a backslash or a control character in it; give a plain path, with /"
            )
        if any(belongs_to_git(part) for part in parts):
            raise AccessRefused(f"{shown(name)} is git's own, which no tool changes; the branch is made by Ava")
        for submodule in self._submodules:
            if _within(parts, submodule):
                raise AccessRefused(
                    f"{shown(name)} lies in the submodule {shown(submodule)}, another repository that this run does not"
                    " change; say in the result what it would need"
                )
        if not any(_within(parts, each) for each in self._namespace):
            raise AccessRefused(
                f"{shown(name)} is outside of what this run may change ({self.named()}); leave it as it is, and say in"
                " the result if it needs a change"
            )
        return name

    def named(self) -> str:
        """Return the namespace as a sentence names it."""
        if any(not _names(each) for each in self._namespace):
            return "the whole worktree"
        more = len(self._namespace) - _NAMED
        return ", ".join(map(shown, self._namespace[:_NAMED])) + (f" and {more} more" if more > 0 else "")

    def read(self, path: str) -> bytes:
        """Return a file that may be changed.

        Raises:
            AccessRefused: It may not be; or it is a link, a pipe, a file with a second name, or stands for another one.
            NotThere: There is none.
            ToolFailed: It cannot be read, or is too large.
        """
        name = self.allowed(path)
        data, more = self._root.read(name, BYTES_MAX)
        if more:
            raise ToolFailed(
                f"{shown(name)} has more than {BYTES_MAX:,} bytes, too large to be edited; leave it as it is"
            )
        if len(data) <= _LFS_BYTES and _LFS.match(data):
            raise AccessRefused(
                f"{shown(name)} is a pointer of Git LFS: its content is not in this worktree; leave it as it is"
            )
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write a file in one step; folders on the way are made, the permissions of what was there stay.

        Raises:
            AccessRefused: It may not be changed.
            ToolFailed: It cannot be written, or would be too large; what was there is still there.
        """
        name = self.allowed(path)
        if len(data) > BYTES_MAX:
            raise ToolFailed(f"{shown(name)} would have {len(data):,} bytes, more than {BYTES_MAX:,}; write less")
        self._root.replace(name, data, create_dirs=True, aside=self._aside)


def belongs_to_git(name: str) -> bool:
    """Tell whether git, on some system, takes a name for `.git`.

    HFS+ passes over characters of no width; NTFS does not tell upper from lower case, passes over blanks and dots at
    the end, knows streams (`:`) and short names (`git~1`).
    """
    seen = _PASSED_OVER.sub("", unicodedata.normalize("NFKC", name)).casefold()
    for part in re.split(r"[\\/]", seen):
        stem = part.partition(":")[0].rstrip(" .")
        if stem == ".git" or re.fullmatch(r"git~\d+", stem):
            return True
    return False


def _within(parts: Sequence[str], name: str) -> bool:
    names = _names(name)
    return list(parts[: len(names)]) == names


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
