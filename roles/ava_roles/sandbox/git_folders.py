"""Finds the git folder of a checkout, and checks that git follows nothing in it to another repository.

The author of a folder may have written its `.git` too. It, or something in it, can lead to somebody else's repository,
which git would read, and in which it would make a branch. So everything that git follows must lie beneath the checkout,
and no part of it may be a link. A folder elsewhere counts only if it names this very checkout, as those of linked
worktrees and submodules do, and the caller accepts it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ava_roles.errors import WorkspaceRefused
from ava_roles.sandbox.path_access import is_link, read_small

_CLONE = "clone the repository, and give the clone as workspace"
_POINTER_BYTES = 5_000
_LIST_BYTES = 100_000
_WORKTREE = re.compile(r"^[ \t]*worktree[ \t]*=[ \t]*(.*?)[ \t\r]*$", re.MULTILINE | re.IGNORECASE)

Accept = Callable[[Path], None]
"""Raises WorkspaceRefused for a folder outside the checkout that may not be used, before anything in it is read."""


class NoGitFolder(Exception):
    """Raised when a checkout's `.git` leads to no repository, or to another one; says why, and what to do."""


@dataclass(frozen=True)
class GitFolders:
    """The git folder of a checkout; all links are resolved.

    `folder` contains HEAD and the index of this checkout; `common` is what all checkouts of the repository share:
    objects, branches, configuration. `outside` is `common` where that is not beneath the checkout; else empty.
    """

    folder: Path
    common: Path
    outside: str


def only(approved: str) -> Accept:
    """Return what accepts one git folder, the approved one; none if that is empty."""

    def accept(folder: Path) -> None:
        if not approved or not folder.is_relative_to(approved):
            raise WorkspaceRefused("it lies outside the checkout, and is not approved")

    return accept


NOTHING_OUTSIDE = only("")


def find_git_folders(repository: Path, accept: Accept = NOTHING_OUTSIDE) -> GitFolders:
    """Return the git folder of a checkout with this root; `accept` decides about one outside that names it. Blocks.

    Raises NoGitFolder if no repository, or git would follow something in it elsewhere; OSError if it cannot be read.
    """
    root = repository.resolve()
    git = root / ".git"
    _refuse_link(git)
    folder = git
    if git.is_file():
        folder = _resolve(root / _pointer(git, "gitdir: "))
    is_inside = folder.is_relative_to(root)
    if not is_inside:
        _check_accepted(accept, git, folder)
    pointer = folder / "commondir"
    _refuse_link(pointer)
    common = folder
    if pointer.exists():
        common = _resolve(folder / _pointer(pointer))
    if is_inside:
        if not common.is_relative_to(root):
            raise NoGitFolder(f"{pointer} leads out of {root}; {_CLONE}")
    else:
        _check_accepted(accept, pointer, common)
        _check_names_checkout(root, folder, common)
    _check_followed(folder, common, (root, common))
    return GitFolders(folder, common, "" if is_inside else str(common))


def _check_names_checkout(root: Path, folder: Path, common: Path) -> None:
    if _is_checkout_of(root, folder, common):
        return
    command = ["git", f"--git-dir={common}", "worktree", "repair", str(root)]
    if folder == common:
        command = ["git", "-C", str(root), "config", "core.worktree", str(root)]
    raise NoGitFolder(
        f"{folder} does not name {root} as its checkout; if it is, run `{shlex.join(command)}`, else {_CLONE}"
    )


def _check_accepted(accept: Accept, pointer: Path, folder: Path) -> None:
    try:
        accept(folder)
    except WorkspaceRefused as refusal:
        raise NoGitFolder(f"{pointer} leads to a git folder that may not be used: {refusal}; {_CLONE}") from None


def _pointer(file: Path, before: str = "") -> str:
    text = _text(file, _POINTER_BYTES).strip()
    if not text.startswith(before) or "\0" in text or "\n" in text:
        raise NoGitFolder(f"{file} names no repository; {_CLONE}")
    return text.removeprefix(before)


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:
        raise NoGitFolder(f"{path} is a loop of links; {_CLONE}") from None


def _text(file: Path, most: int) -> str:
    _refuse_link(file)
    data = read_small(file, most + 1)
    if len(data) > most:  # git would read the rest
        raise NoGitFolder(f"{file} is too long; {_CLONE}")
    return data.decode("utf-8", "surrogateescape")


def _is_checkout_of(root: Path, folder: Path, common: Path) -> bool:
    """Tell whether a git folder elsewhere names a checkout as its own: that takes the right to write there."""
    with suppress(FileNotFoundError):
        if folder != common:
            checkout = _pointer(folder / "gitdir")
            return folder.parent == common / "worktrees" and _resolve(folder / checkout) == root / ".git"
        for name in ("config.worktree", "config"):
            file = folder / name
            if not file.is_file():
                continue
            worktrees = _WORKTREE.findall(_text(file, _LIST_BYTES))
            if worktrees:
                checkout = re.sub(r"\\(.)", r"\1", worktrees[-1].strip('"'))
                return _resolve(folder / checkout) == root
    return False


def _check_followed(folder: Path, common: Path, within: Sequence[Path]) -> None:
    """Check that what git follows in a git folder is not a link, and that its objects lie in these folders."""
    _refuse_link(folder / "HEAD", may_be_ref=True)
    for place in (folder / "reftable", common / "config", common / "packed-refs", common / "reftable"):
        _refuse_links(place)
    for reftable in (folder / "reftable", common / "reftable"):
        tables = reftable / "tables.list"
        if tables.is_file() and "/" in _text(tables, _LIST_BYTES):
            raise NoGitFolder(f"{tables} leads elsewhere; {_CLONE}")
    _refuse_links(common / "refs", may_be_refs=True)
    _refuse_links(common / "logs")
    pending = [common / "objects"]
    seen: set[Path] = set()
    while pending:
        objects = pending.pop()
        if objects not in seen:
            seen.add(objects)
            _refuse_links(objects)
            pending += _alternates(objects, within)


def _alternates(objects: Path, within: Sequence[Path]) -> list[Path]:
    """Return the further folders with objects that a folder with objects names."""
    file = objects / "info" / "alternates"
    if not file.exists():
        return []
    alternates: list[Path] = []
    for line in _text(file, _LIST_BYTES).split("\n"):
        if not line or line.startswith("#"):
            continue
        path = Path(os.path.normpath(objects / line))  # as git does
        if not _is_alternate(line, objects, path, within):
            mend = f"git -C {shlex.quote(str(within[0]))} repack -a -d && rm {shlex.quote(str(file))}"
            raise NoGitFolder(
                f"{file} leads to the objects of another repository; copy them with `{mend}`, or {_CLONE}"
            )
        alternates.append(path)
    return alternates


def _is_alternate(line: str, objects: Path, path: Path, within: Sequence[Path]) -> bool:
    """Tell whether a line of `alternates` leads to a folder within these, and git reads it as we do."""
    if line.startswith('"') or "\0" in line:  # git unquotes a path in quotes, and cuts one at \0
        return False
    if not any(map(path.is_relative_to, within)):
        return False
    return _resolve(objects / line) == path


def _refuse_links(place: Path, *, may_be_refs: bool = False) -> None:
    """Refuse a link, and a folder with one in it; what is not there is fine."""
    _refuse_link(place)
    pending = [str(place)] if place.is_dir() else []
    while pending:
        with suppress(FileNotFoundError), os.scandir(pending.pop()) as scan:  # git may be removing it
            for entry in scan:
                if entry.is_file(follow_symlinks=False):
                    continue
                _refuse_link(Path(entry.path), may_be_ref=may_be_refs)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def _refuse_link(path: Path, *, may_be_ref: bool = False) -> None:
    if not is_link(path):
        return
    if may_be_ref and _is_ref(path):
        return
    raise NoGitFolder(f"{path} is a link, and git would follow it; {_CLONE}")


def _is_ref(link: Path) -> bool:
    """Tell whether git reads a link as a branch: an old form of `ref: refs/…`. Elsewhere it follows the link."""
    if not link.is_symlink():
        return False
    parts = link.readlink().parts
    return parts[:1] == ("refs",) and ".." not in parts
