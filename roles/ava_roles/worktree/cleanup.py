"""What commands leave in a tree that has no business there: taken away by descriptors, through no link."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ava_roles.sandbox.removal import remove_tree

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_DEEPEST = 200
"""Nobody nests folders so deep but to hide something."""
_GITS = re.compile(r"(\.git|git~1)[ .]*([\\:].*)?", re.IGNORECASE | re.DOTALL)
"""Names that some system takes for `.git`; git refuses to work with them."""


def is_git_name(name: str) -> bool:
    """Tell whether a name is git's own on some system."""
    return _GITS.fullmatch(name) is not None


def remove_unwanted(tree: Path, trash: Path, check: Callable[[], None] = lambda: None) -> list[str]:
    """Remove what is git's own, pipes, sockets, devices and folders nested too deep; make the rest ours to read.

    No process may be at work in the tree. No link is followed.

    Args:
        tree: The tree.
        trash: A folder that is not there, on the same file system; it is gone afterwards.
        check: Called for every folder.

    Returns:
        What was removed, relative to the tree.

    Raises:
        OSError: Something cannot be read or removed.
    """
    removed: list[str] = []
    remove_tree(trash)
    trash.mkdir(mode=0o700)
    stack: list[tuple[int, str, list[str]]] = []

    def enter(name: str, at: str, above: int | None) -> None:
        here = os.open(name, _FOLDER, dir_fd=above)
        stack.append((here, at, []))
        stack[-1][2].extend(_tidied(here, at, len(stack) >= _DEEPEST, trash, removed))

    try:
        tree.chmod(stat.S_IMODE(tree.lstat().st_mode) | stat.S_IRWXU)
        enter(os.fspath(tree), "", None)
        while stack:
            here, at, folders = stack[-1]
            if not folders:
                os.close(stack.pop()[0])
                continue
            check()
            name = folders.pop()
            enter(name, f"{at}{name}/", here)
    finally:
        for here, _at, _folders in stack:
            os.close(here)
        remove_tree(trash)
    return removed


def _tidied(here: int, at: str, deepest: bool, trash: Path, removed: list[str]) -> list[str]:
    """Tidy one folder, and return the folders in it."""
    folders: list[str] = []
    with os.scandir(here) as scan:
        names = [entry.name for entry in scan]
    for name in names:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        is_folder = stat.S_ISDIR(found.st_mode)
        if is_folder and mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(name, mode | stat.S_IRWXU, dir_fd=here)
        wanted = is_folder or stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
        linked = name.lower() == ".gitmodules" and stat.S_ISLNK(found.st_mode)
        if is_git_name(name) or linked or not wanted or (is_folder and deepest):
            _remove(name, here, trash)
            removed.append(at + name)
        elif is_folder:
            folders.append(name)
        elif stat.S_ISREG(found.st_mode):
            plain = (mode | stat.S_IRUSR | stat.S_IWUSR) & 0o777
            if mode != plain:
                os.chmod(name, plain, dir_fd=here)
    return folders


def _remove(name: str, here: int, trash: Path) -> None:
    place = trash / os.urandom(8).hex()
    try:
        os.unlink(name, dir_fd=here)
    except OSError:  # a folder
        os.rename(name, place, src_dir_fd=here)
        remove_tree(place)


def remove_names(tree: Path, names: Iterable[str], trash: Path) -> None:
    """Remove files or folders of a tree, and folders that get empty by it; through no link.

    Raises:
        OSError: Something cannot be removed.
    """
    remove_tree(trash)
    trash.mkdir(mode=0o700)
    try:
        for name in names:
            *above, last = name.split("/")
            with suppress(FileNotFoundError, NotADirectoryError):
                here = _way(tree, above)
                try:
                    _remove(last, here, trash)
                finally:
                    os.close(here)
                _remove_empty(tree, above)
    finally:
        remove_tree(trash)


def _remove_empty(tree: Path, parts: list[str]) -> None:
    for depth in range(len(parts), 0, -1):
        try:
            here = _way(tree, parts[: depth - 1])
        except OSError:
            return
        try:
            os.rmdir(parts[depth - 1], dir_fd=here)
        except OSError:
            return
        finally:
            os.close(here)


def _way(tree: Path, parts: list[str]) -> int:
    """Open a folder of a tree, name by name."""
    here = os.open(tree, _FOLDER)
    for part in parts:
        try:
            below = os.open(part, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here
