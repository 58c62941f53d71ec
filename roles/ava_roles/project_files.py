"""AGENTS.md and CLAUDE.md: which of a project's files about itself a run is given, and how much of them.

Anyone may have written them. So only regular files are read, each opened without following a link, and nothing that
they name (`@file`) is read for them. Whoever wrote a change must not instruct its reviewer: a review gets them as they
stand in the project's default branch (`read_base_files`), never from the checkout that it reviews.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ava_roles.errors import NotThere, RolesError, ToolFailed
from ava_roles.sandbox.git_folders import NOTHING_OUTSIDE, Accept
from ava_roles.sandbox.paths import Root, shown
from ava_roles.worktree.repository import Git, UserRepository
from ava_roles.wrap import one_line

NAMES: Final = ("AGENTS.md", "CLAUDE.md")
_LOWER_NAMES: Final = tuple(name.lower() for name in NAMES)
READ_BY_AGENTS: Final = frozenset(
    {
        "agents.md", "agents.local.md", "agents.override.md", "claude.md", "claude.local.md", "context.md",
        "context.local.md", "gemini.md", "qwen.md", ".rules", ".agents", ".claude", ".clinerules", ".codex", ".cursor",
        ".cursorrules", ".gemini", ".goosehints", ".junie", ".kiro", ".mcp.json", ".opencode", ".qwen", ".roo",
        ".windsurf", ".windsurfrules", "copilot-instructions.md", ".github/instructions", "opencode.json",
        "opencode.jsonc",
    }
)  # fmt: skip
"""What other agents take as instructions or settings of a project, in lower case: names, and paths of two names."""
MOST_BYTES: Final = 16_000
"""Bytes of all files together."""
_MOST_BLOB_BYTES: Final = 1_000_000
"""Of a file, or the target of a link, that is read from a commit."""
REASON_CHARS: Final = 200
LEAST_BYTES: Final = 500
"""With less room left, a file is left out rather than cut."""


@dataclass(frozen=True)
class ProjectFile:
    """A file and the part of its text that a run is given; `size` is that of the whole file, in bytes."""

    path: str
    text: str
    size: int
    is_cut: bool = False


@dataclass(frozen=True)
class ProjectFiles:
    """The files from the root to the folders that the work is in, the nearest last.

    Attributes:
        left_out: The others that are there, each with why: `docs/AGENTS.md (a link)`.
        origin: Where they were read, where that is not the folder itself: `commit 1a2b3c4d5e6f (origin/main)`.
    """

    files: tuple[ProjectFile, ...] = ()
    left_out: tuple[str, ...] = ()
    origin: str = ""


class _Found(NamedTuple):
    """A file with its first bytes; `reason` says why it is left out, and is empty where it is not."""

    path: str
    data: bytes
    size: int
    reason: str = ""


def read_project_files(folder: Path, namespace: Sequence[str] = ()) -> ProjectFiles:
    """Return the files of a folder, from its root to the paths in `namespace`. Blocking. Raises OSError: see `Root`."""
    with closing(Root.open_without_links(folder)) as root:
        paths = [path for path in _paths(namespace) if _is_reachable(root, path)]
        return _choose(_in_folder(root, path) for path in paths)


def read_base_files(folder: Path, home: Path, accept: Accept = NOTHING_OUTSIDE) -> ProjectFiles:
    """Return the files in the root of a checkout as its default branch has them. Blocking.

    That branch is `origin/HEAD`, else `main` or `master` of `origin`, else the local one. Its newest commit counts, not
    where the change branched off: the author of a change chooses that. Where nothing says what the base is, there are
    no files, and `left_out` says why.
    """
    try:
        checkout = UserRepository.at(folder, home, accept=accept)
        with checkout.joined() as git:
            base = _default_branch(git)
            if base is None:
                return _without_base(folder, "it has no branch origin/HEAD, main or master")
            commit, name = base
            chosen = _choose(_in_commit(git, commit))
    except RolesError as error:
        return _without_base(folder, one_line(str(error), REASON_CHARS))
    return ProjectFiles(chosen.files, chosen.left_out, f"commit {commit[:12]} ({name})" if chosen.files else "")


def _without_base(folder: Path, why: str) -> ProjectFiles:
    names: list[str] = []
    with suppress(OSError):
        names = _in_order(entry.name for entry in folder.iterdir())
    if not names:
        return ProjectFiles()
    reason = why.partition(";")[0]
    return ProjectFiles(left_out=(f"{' and '.join(names)} (the base of the change is not known: {reason})",))


def _in_order(names: Iterable[str]) -> list[str]:
    """Return those of a folder's names that are AGENTS.md or CLAUDE.md in any case, as people write them too."""
    found = [name for name in names if name.lower() in _LOWER_NAMES]
    return sorted(found, key=lambda name: (_LOWER_NAMES.index(name.lower()), name not in NAMES, name))


def _paths(namespace: Sequence[str]) -> list[str]:
    """Return the folders from the root to each path, the root (`""`) first, the deepest last."""
    folders = {""}
    for path in namespace:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return sorted(folders, key=lambda path: (path.count("/") + bool(path), path))


def _is_reachable(root: Root, folder: str) -> bool:
    """Tell whether a path is a folder that no link leads to: it may be a file, or not there yet."""
    with suppress(ToolFailed):
        return root.kind(folder) == "folder"
    return False


def _in_folder(root: Root, folder: str) -> Iterator[_Found]:
    for name in _in_order(entry.name for entry in root.entries(folder)):
        path = f"{folder}/{name}" if folder else name
        try:
            data, _more, mark = root.read_marked(path, MOST_BYTES)
        except NotThere:
            continue
        except ToolFailed as refused:
            target = root.read_link(path)
            if target is None:
                yield _Found(path, b"", 0, _why_refused(refused, path))
            elif target.removeprefix("./").lower() not in _LOWER_NAMES:  # else it is the other file, which is read
                yield _Found(path, b"", 0, "a link")
            continue
        yield _Found(path, data, mark.size)


def _why_refused(error: ToolFailed, path: str) -> str:
    """Return the reason in an error about a path, without the path and without the advice for a model."""
    return one_line(str(error).removeprefix(path).partition(";")[0].strip(), REASON_CHARS)


def _in_commit(git: Git, commit: str) -> Iterator[Iterable[_Found]]:
    about_names: dict[str, str] = {}
    for row in git("ls-tree", "-z", "-l", "--full-tree", commit).names():
        about, _tab, name = row.partition("\t")
        about_names[name] = about
    files: list[_Found] = []
    for name in _in_order(about_names):
        mode, _type, sha, size = about_names[name].split()
        if size.isdigit() and int(size) > _MOST_BLOB_BYTES:  # git writes out all of a blob, and zeros compress well
            files.append(_Found(name, b"", int(size), f"more than {_MOST_BLOB_BYTES // 1_000_000} MB"))
        elif mode in ("100644", "100755"):
            files.append(_Found(name, git("cat-file", "blob", sha).out[:MOST_BYTES], int(size)))
        elif (
            mode != "120000"
            or os.fsdecode(git("cat-file", "blob", sha).out).removeprefix("./").lower() not in _LOWER_NAMES
        ):
            files.append(_Found(name, b"", 0, "a link" if mode == "120000" else "not a regular file"))
    yield files


def _default_branch(git: Git) -> tuple[str, str] | None:
    """Return the newest commit of the default branch, and the branch's name; None where there is none."""
    refs: list[str] = []
    remote_head = git.run("symbolic-ref", "--quiet", "refs/remotes/origin/HEAD")
    if remote_head.code == 0:
        remote_branch = os.fsdecode(remote_head.out).strip()
        if remote_branch.startswith("refs/remotes/origin/"):
            refs.append(remote_branch)
    for namespace in ("refs/remotes/origin/", "refs/heads/"):
        refs += [f"{namespace}main", f"{namespace}master"]
    for ref in refs:
        commit = git.run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if commit.code == 0:
            name = ref.removeprefix("refs/remotes/").removeprefix("refs/heads/")
            return os.fsdecode(commit.out).strip(), shown(name)
    return None


def _choose(folders: Iterable[Iterable[_Found]]) -> ProjectFiles:
    """Return the files that fit, and which are left out. `folders` go from the root to the nearest.

    The nearest file gets its room first, because it says most about the work.
    """
    usable: list[tuple[_Found, str]] = []
    left_out: list[str] = []
    for folder in folders:
        texts: list[tuple[str, int]] = []
        for file in folder:
            text, reason = _text_of(file)
            if reason:
                left_out.append(f"{shown(file.path)} ({reason})")
            elif text.strip() and (text, file.size) not in texts:
                texts.append((text, file.size))
                usable.append((file, text))
    room = MOST_BYTES
    chosen: list[ProjectFile] = []
    for file, text in reversed(usable):
        if file.size <= room:
            chosen.append(ProjectFile(file.path, text, file.size))
        elif room < LEAST_BYTES:
            left_out.append(f"{shown(file.path)} (no room is left)")
            continue
        elif not (begun := _begin(text, room)):
            left_out.append(f"{shown(file.path)} (one word that is too long)")
            continue
        else:
            chosen.append(ProjectFile(file.path, begun, file.size, is_cut=True))
        room -= min(file.size, room)
    return ProjectFiles(tuple(reversed(chosen)), tuple(left_out))


def _text_of(file: _Found) -> tuple[str, str]:
    """Return the text of a file, or why it is left out."""
    if file.reason:
        return "", file.reason
    data = file.data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError as error:
        if file.size > len(file.data) and error.start >= len(data) - 3:  # cut within a character
            return data[: error.start].decode("utf-8"), ""
        return "", "not UTF-8 text"


def _begin(text: str, room: int) -> str:
    """Return the whole lines at the beginning of a text that fit into so many bytes, or else the whole words.

    A secret that is cut would no longer be recognized as one.
    """
    begun = text.encode()[:room].decode("utf-8", "ignore")
    return begun.rpartition("\n")[0] or begun.rpartition(" ")[0]
