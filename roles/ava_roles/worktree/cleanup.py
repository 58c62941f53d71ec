"""Removal of what commands leave in a tree and does not belong there. It works with descriptors and follows no link."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from ava_roles.sandbox.removal import remove_tree

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_MAX_DEPTH = 200
_GIT_NAMES = re.compile(r"(\.git|git~1)[ .]*([\\:].*)?", re.IGNORECASE | re.DOTALL)
"""Names that some system takes for `.git`; git refuses to work with them."""


def is_git_name(name: str) -> bool:
    """Tell whether some system takes a name for `.git`."""
    return _GIT_NAMES.fullmatch(name) is not None


def remove_unwanted(tree: Path, trash: Path, check: Callable[[], None] = lambda: None) -> list[str]:
    """Remove `.git`, pipes, sockets, devices and folders nested too deep; make the rest readable and writable for us.

    No process may be working in the tree.

    Args:
        tree: The tree.
        trash: A path on the same file system that does not exist; it is gone afterwards.
        check: Called for every folder; raises to stop.

    Returns:
        What was removed, relative to the tree.

    Raises:
        OSError: Something cannot be read or removed.
    """
    removed: list[str] = []
    stack: list[tuple[int, str, list[str]]] = []

    def enter(name: str, prefix: str, parent: int | None) -> None:
        folder = os.open(name, _FOLDER, dir_fd=parent)
        stack.append((folder, prefix, []))
        stack[-1][2].extend(_clean_folder(folder, prefix, len(stack) >= _MAX_DEPTH, trash, removed))

    with _trash_folder(trash):
        try:
            tree.chmod(stat.S_IMODE(tree.lstat().st_mode) | stat.S_IRWXU)
            enter(os.fspath(tree), "", None)
            while stack:
                folder, prefix, subfolders = stack[-1]
                if not subfolders:
                    os.close(stack.pop()[0])
                    continue
                check()
                name = subfolders.pop()
                enter(name, f"{prefix}{name}/", folder)
        finally:
            for folder, _prefix, _subfolders in stack:
                os.close(folder)
    return removed


def remove_names(tree: Path, names: Iterable[str], trash: Path) -> None:
    """Remove files or folders of a tree, and the folders that become empty.

    Raises:
        OSError: Something cannot be removed.
    """
    with _trash_folder(trash):
        for name in names:
            *above, last = name.split("/")
            with suppress(FileNotFoundError, NotADirectoryError):
                with _open_folder(tree, above) as folder:
                    _remove(last, folder, trash)
                with suppress(OSError):  # the first folder that is not empty
                    for depth in range(len(above), 0, -1):
                        with _open_folder(tree, above[: depth - 1]) as folder:
                            os.rmdir(above[depth - 1], dir_fd=folder)


@contextmanager
def _trash_folder(trash: Path) -> Generator[None]:
    remove_tree(trash)
    trash.mkdir(mode=0o700)
    try:
        yield
    finally:
        remove_tree(trash)


def _clean_folder(folder: int, prefix: str, deepest: bool, trash: Path, removed: list[str]) -> list[str]:
    """Clean one folder, and return the folders in it."""
    subfolders: list[str] = []
    with os.scandir(folder) as scan:
        names = [entry.name for entry in scan]
    for name in names:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        is_folder = stat.S_ISDIR(found.st_mode)
        if is_folder and mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(name, mode | stat.S_IRWXU, dir_fd=folder)
        wanted = is_folder or stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
        linked = name.lower() == ".gitmodules" and stat.S_ISLNK(found.st_mode)
        if is_git_name(name) or linked or not wanted or (is_folder and deepest):
            _remove(name, folder, trash)
            removed.append(prefix + name)
        elif is_folder:
            subfolders.append(name)
        elif stat.S_ISREG(found.st_mode):
            plain = (mode | stat.S_IRUSR | stat.S_IWUSR) & 0o777
            if mode != plain:
                os.chmod(name, plain, dir_fd=folder)
    return subfolders


def _remove(name: str, folder: int, trash: Path) -> None:
    place = trash / os.urandom(8).hex()
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:  # a folder
        os.rename(name, place, src_dir_fd=folder)
        remove_tree(place)


@contextmanager
def _open_folder(tree: Path, parts: list[str]) -> Generator[int]:
    """Open a folder of a tree, name by name."""
    folder = os.open(tree, _FOLDER)
    try:
        for part in parts:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)
