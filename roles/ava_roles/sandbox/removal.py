"""Removes what commands left behind: folders without permissions, or nested deeper than a path can be long."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from ava_roles.sandbox.path_access import has_folder_descriptors

_ALL = stat.S_IRWXU
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def remove_tree(folder: Path) -> None:
    """Remove a folder of ours with everything in it, following no link; a missing folder is fine.

    No process may use it any more. Each folder in it is given permissions and moved to the top before it is opened, so
    that no path gets too long.

    Raises:
        OSError: Something in it cannot be removed.
    """
    if not has_folder_descriptors():
        shutil.rmtree(folder, ignore_errors=not folder.exists())
        return
    try:
        folder.chmod(_ALL)
        top = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return
    try:
        names = (f"{number}.{os.urandom(8).hex()}" for number in count())
        pending = _empty(top, top, names)
        while pending:
            name = pending.pop()
            here = os.open(name, _FOLDER, dir_fd=top)
            try:
                pending += _empty(here, top, names)
            finally:
                os.close(here)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    with suppress(FileNotFoundError):
        folder.rmdir()


def _empty(folder: int, top: int, names: Iterator[str]) -> list[str]:
    """Remove the files in an open folder, and move its folders to the top; return their names there."""
    moved: list[str] = []
    with os.scandir(folder) as scan:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in scan]
    for name, is_folder in entries:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        os.chmod(name, _ALL, dir_fd=folder)  # needed to move and to empty it
        moved.append(next(names))
        os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
    return moved
