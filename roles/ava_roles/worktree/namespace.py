"""The paths that a run may change (its namespace), and changes there: never through a link, each atomically.

`Edits` blocks: call it in a thread.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path

from ava_roles.errors import AccessRefused, BadNamespace, ToolFailed
from ava_roles.sandbox.path_access import remove_tree
from ava_roles.sandbox.paths import Root, shown

BYTES_MAX = 2_000_000
"""The largest file that can be edited or written."""

_MAX_NAMED = 12
_LFS_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\r?\n")
_LFS_POINTER_BYTES = 1024
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
"""Characters that HFS+ ignores in a name (git's list, and the rest of the two blocks that it is from)."""
_MAX_PATHS, _MAX_CHARS = 200, 1_000
_DRIVE = re.compile(r"[A-Za-z]:")


def namespace_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return paths from the repository's root, with `/`; "." is all; none inside another. Raises BadNamespace."""
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
    if not text.strip():
        raise BadNamespace('an empty path; give one relative to the repository\'s root, or "." for all of it')
    has_control = any(ord(char) < 32 or ord(char) == 127 for char in text)
    is_absolute = text.startswith(("/", "~", "\\")) or _DRIVE.match(text) is not None
    parts = [part for part in text.split("/") if part not in ("", ".")]
    is_pattern = any("*" in part or "?" in part for part in parts)
    for is_wrong, why in (
        (has_control, "has a control character in it; give the path as it is"),
        (len(text) > _MAX_CHARS, f"is longer than {_MAX_CHARS} characters; name the folder that it lies in"),
        (is_absolute, "is not relative; give it as it is called from the repository's root"),
        (".." in parts, 'has ".." in it; give it as it is called from the repository\'s root'),
        (any(part.lower() == ".git" for part in parts), "lies in .git, which is git's own; name files of the project"),
        (is_pattern, "is a pattern, and only plain paths are understood; name the folder"),
    ):
        if is_wrong:
            raise BadNamespace(f"{shown(text)!r} {why}")
    return "/".join(parts) or "."


class Edits:
    """The files of a worktree that one run may change: those in its namespace, which need not exist.

    A file is written in `aside`, a folder on the worktree's file system, before it is moved into place; it is created,
    and emptied of what a killed process left there. The content of `submodules` belongs to other repositories.
    """

    def __init__(self, root: Root, namespace: Sequence[str], aside: Path, submodules: Collection[str] = ()) -> None:
        self._root = root
        self._namespace = tuple(namespace)
        self._submodules = tuple(submodules)
        self._aside = aside
        remove_tree(aside)
        aside.mkdir(mode=0o700)

    def allowed(self, path: str) -> str:
        """Return a path in its normal form. Raises AccessRefused: the run may not change it; says what it may."""
        parts = self._root.parts(path)
        name = "/".join(parts)
        if not parts:
            raise AccessRefused("this is the worktree itself, a folder; name a file in it")
        if "\\" in name or any(unicodedata.category(char) in ("Cc", "Cs") for char in name):
            raise AccessRefused(f"{shown(name)} contains a backslash or a control character; give a plain path, with /")
        if any(belongs_to_git(part) for part in parts):
            raise AccessRefused(f"{shown(name)} belongs to git, and no tool changes it; Ava makes the branch")
        for submodule in self._submodules:
            if _is_within(parts, submodule):
                raise AccessRefused(
                    f"{shown(name)} is in the submodule {shown(submodule)}, another repository that this run does not"
                    " change; say in the result what it would need"
                )
        if not any(_is_within(parts, each) for each in self._namespace):
            raise AccessRefused(
                f"{shown(name)} is outside of what this run may change ({self._describe_namespace()}); leave it as it"
                " is, and say in the result if it needs a change"
            )
        return name

    def read(self, path: str) -> bytes:
        """Return a file that may be changed: no link, pipe, hard link or Git LFS pointer, else AccessRefused."""
        name = self.allowed(path)
        data, more = self._root.read(name, BYTES_MAX)
        if more:
            raise ToolFailed(f"{shown(name)} is too large to edit (more than {BYTES_MAX:,} bytes); leave it as it is")
        if len(data) <= _LFS_POINTER_BYTES and _LFS_POINTER.match(data):
            raise AccessRefused(
                f"{shown(name)} is a pointer of Git LFS: its content is not in this worktree; leave it as it is"
            )
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically; missing folders are created, and an existing file keeps its permissions.

        Raises AccessRefused; ToolFailed: it cannot be written, and the old content is still there.
        """
        name = self.allowed(path)
        if len(data) > BYTES_MAX:
            raise ToolFailed(f"{shown(name)} would have {len(data):,} bytes, more than {BYTES_MAX:,}; write less")
        self._root.replace(name, data, create_dirs=True, aside=self._aside)

    def _describe_namespace(self) -> str:
        if any(not _split(each) for each in self._namespace):
            return "the whole worktree"
        more = len(self._namespace) - _MAX_NAMED
        return ", ".join(map(shown, self._namespace[:_MAX_NAMED])) + (f" and {more} more" if more > 0 else "")


def belongs_to_git(name: str) -> bool:
    """Tell whether git, on any system, takes a name for `.git`.

    HFS+ ignores characters of no width. NTFS ignores case, spaces and dots at the end, streams; it has `git~1`.
    """
    visible = _IGNORED_BY_HFS.sub("", unicodedata.normalize("NFKC", name)).casefold()
    stems = (part.partition(":")[0].rstrip(" .") for part in re.split(r"[\\/]", visible))
    return any(stem == ".git" or re.fullmatch(r"git~\d+", stem) for stem in stems)


def _is_within(parts: Sequence[str], folder: str) -> bool:
    names = _split(folder)
    return list(parts[: len(names)]) == names


def _split(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
