"""Work on a repository, as values: the paths that it may change, what was approved, how it was verified, its branch.

Changes within the namespace are made by `Edits`, never through a link, each atomically. It blocks: call it in a thread.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ava_roles.errors import AccessRefused, BadNamespace, ToolFailed
from ava_roles.sandbox.path_access import remove_tree
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.sandbox import Ended
from ava_roles.wrap import list_names

BYTES_MAX = 2_000_000
"""The largest file that can be edited or written."""

_MAX_NAMED = 12
_LFS_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\r?\n")
_LFS_POINTER_BYTES = 1024
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
"""Characters that HFS+ ignores in a name (git's list, and the rest of the two blocks that it is from)."""
_MAX_PATHS = 200
_MAX_CHARS = 1_000
_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def namespace_of(namespace: str | Sequence[str]) -> tuple[str, ...]:
    """Return paths from the repository's root, with `/`; "." is all; none inside another. Raises BadNamespace."""
    texts = [namespace] if isinstance(namespace, str) else list(namespace)
    if not texts:
        raise BadNamespace('it names nothing; give the files or folders that may be changed, such as "src/parser"')
    if len(texts) > _MAX_PATHS:
        raise BadNamespace(f"it names {len(texts)} paths, and at most {_MAX_PATHS} are allowed; name their folders")
    paths = dict.fromkeys(map(_normal, texts))
    if "." in paths:
        return (".",)
    folders = tuple(f"{path}/" for path in paths)
    return tuple(path for path in paths if not path.startswith(folders))


def within(namespace: Sequence[str], path: str) -> bool:
    """Tell whether a path, relative to the repository's root, is in a namespace."""
    return any(each in (".", path) or path.startswith(f"{each}/") for each in namespace)


def _normal(text: str) -> str:
    if not text.strip():
        raise BadNamespace('an empty path; give one relative to the repository\'s root, or "." for all of it')
    parts = [part for part in text.split("/") if part not in ("", ".")]
    fault = _fault_of_path(text, parts)
    if fault is not None:
        raise BadNamespace(f"{shown(text)!r} {fault}")
    return "/".join(parts) or "."


def _fault_of_path(text: str, parts: Sequence[str]) -> str | None:
    if _CONTROL.search(text):
        return "has a control character in it; give the path as it is"
    if len(text) > _MAX_CHARS:
        return f"is longer than {_MAX_CHARS} characters; name the folder that it lies in"
    if text.startswith(("/", "~", "\\")) or _DRIVE.match(text):
        return "is not relative; give it as it is called from the repository's root"
    if ".." in parts:
        return 'has ".." in it; give it as it is called from the repository\'s root'
    if ".git" in [part.lower() for part in parts]:
        return "lies in .git, which is git's own; name files of the project"
    if "*" in text or "?" in text:
        return "is a pattern, and only plain paths are understood; name the folder"
    return None


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
        """Return a path in its normal form. Raises AccessRefused if the run may not change it; says what it may."""
        parts = self._root.parts(path)
        if not parts:
            raise AccessRefused("this is the worktree itself, a folder; name a file in it")
        with suppress(ToolFailed):  # a new file
            parts = self._root.find(path).split("/")
        name = "/".join(parts)
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
        return list_names([*map(shown, self._namespace)], _MAX_NAMED)


def belongs_to_git(name: str) -> bool:
    """Tell whether git, on any system, takes a name for `.git`.

    HFS+ ignores characters of no width. NTFS ignores case, spaces and dots at the end, streams; it has `git~1`.
    """
    visible = _IGNORED_BY_HFS.sub("", unicodedata.normalize("NFKC", name)).casefold()
    for part in re.split(r"[\\/]", visible):
        stem = part.partition(":")[0].rstrip(" .")
        if stem == ".git" or re.fullmatch(r"git~\d+", stem):
            return True
    return False


def _is_within(parts: Sequence[str], folder: str) -> bool:
    names = _split(folder)
    return list(parts[: len(names)]) == names


def _split(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


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
    """Return the part of a test run's output that says what failed, in at most `limit` characters.

    It starts where a known test runner begins to report failures; where none does, it is the end of the output. Of a
    long part the middle is cut, so that the runner's summary at the end stays. pytest's summary, which has a line for
    each failure, has priority over its details.
    """
    text = _COLOUR.sub("", output).replace("\r\n", "\n").rstrip()
    if len(text) <= limit:
        return text
    lines = text.split("\n")
    from_end = _first(lines[::-1], (_PYTEST_SUMMARY,))
    if from_end is not None:
        start = len(lines) - 1 - from_end
        summary = "\n".join(lines[start:])
        first = _first(lines[:start], (_PYTEST,))
        if first is None or len(summary) > limit * 2 // 3:
            return _cut_middle(summary, limit)
        chars_left = limit - len(summary) - 1
        if chars_left <= 200:
            return summary
        details = _cut_middle("\n".join(lines[first:start]), chars_left)
        return f"{details}\n{summary}"
    first = _first(lines, _STARTS_OF_FAILURES)
    if first is None:
        return _cut_beginning(text, limit)
    return _cut_middle("\n".join(lines[first:]), limit)


def _first(lines: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> int | None:
    """Return the number of the first line that begins with one of the patterns."""
    for number, line in enumerate(lines):
        if any(pattern.match(line) for pattern in patterns):
            return number
    return None


def _cut_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    room = max(0, limit - len(_CUT) - 2)
    head_chars = room * 2 // 3
    head, tail = text[:head_chars], text[len(text) - (room - head_chars) :]
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


@dataclass(frozen=True)
class WorktreeSpec:
    """What was approved of the work on a repository.

    `repository` is the root of the user's checkout: the folder that contains `.git`; `git_folder` the approved one
    outside of it, empty if it has none there. `namespace` is what `namespace_of` returns. The work begins at `base`;
    None takes the commit that is checked out when the worktree is made. It must pass `verify`, in a tree that `setup`
    prepares: command lines for bash, each of which may take `verify_timeout_s`. `carry`: further folders of the
    checkout that are shown as they are. `identity` is the repository's; empty accepts any.
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

    `added` and `removed` are lines, 0 for a binary file. `test`: it is a test, or a setting that decides which tests
    run. `link`: the target, if it is now a symbolic link; else None. `named`: it is no test by its path, and the verify
    command or what that runs names it: the program under test, or a script that tests.
    """

    path: str
    added: int
    removed: int
    kind: Literal["added", "changed", "removed"]
    test: bool
    link: str | None = None
    named: bool = False


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
