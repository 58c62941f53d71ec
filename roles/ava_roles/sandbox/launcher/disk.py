"""Measures the folders that a command may write to; follows no link, for the command may have made it."""

from __future__ import annotations

import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY = 1024  # bytes counted for a name and its inode
DEEPEST = 200
"""Only a command that hides something nests folders deeper."""


class TooDeep(Exception):
    """Raised when folders are nested deeper than `DEEPEST`."""


def measure(folders: list[str], owner: int = 0) -> int:
    """Return the bytes that folders and files take on the disk.

    Args:
        folders: The paths; missing ones count nothing.
        owner: The user who is given what root owns there; 0 changes no owner.

    Raises:
        TooDeep: Folders are nested too deep.
    """
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder in folders:
        try:
            top = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found = os.fstat(top)
            total += _size(found, seen)
            _give(None, f"/proc/self/fd/{top}", found, owner, follow=True)
            total += _measure_below(folder, seen, owner)
        finally:
            os.close(top)
    return total


def _measure_below(folder: str, seen: set[tuple[int, int]], owner: int) -> int:
    total = 0
    try:
        stack = [_list(folder, None)]
    except OSError:  # a file, or a folder that cannot be read
        return 0
    try:
        while stack:
            here, names = stack[-1]
            if not names:
                stack.pop()
                os.close(here)
                continue
            name = names.pop()
            try:
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
                total += _size(found, seen)
                _give(here, name, found, owner)
                if not stat.S_ISDIR(found.st_mode):
                    continue
                if len(stack) >= DEEPEST:
                    raise TooDeep
                stack.append(_list(name, here))
            except OSError:  # it is gone, or cannot be read
                continue
    finally:
        for here, _names in stack:
            os.close(here)
    return total


def _list(name: str, parent: int | None) -> tuple[int, list[str]]:
    """Open a folder, and return its descriptor and the names in it."""
    flags = _FOLDER if parent is not None else _FOLDER & ~os.O_NOFOLLOW
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        return descriptor, os.listdir(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _size(found: os.stat_result, seen: set[tuple[int, int]]) -> int:
    if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
        if (found.st_dev, found.st_ino) in seen:
            return _ENTRY
        seen.add((found.st_dev, found.st_ino))
    return found.st_blocks * 512 + _ENTRY


def _give(parent: int | None, name: str, found: os.stat_result, owner: int, *, follow: bool = False) -> None:
    """Give the owner what root owns, but no file with several names: one of them may be elsewhere."""
    if owner and found.st_uid == 0 and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
        os.chown(name, owner, owner, dir_fd=parent, follow_symlinks=follow)


def free(folders: list[str]) -> int:
    """Return the free bytes on the disk of the folders that has the fewest."""
    least = 1 << 62
    for folder in folders:
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        least = min(least, found.f_bavail * found.f_frsize)
    return least


def measure_unlinked(pids: list[int]) -> int:
    """Return the bytes of files that processes hold open and that no longer have a name."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):
                try:
                    found = os.stat(f"/proc/{pid}/fd/{number}")
                except OSError:  # it has been closed
                    continue
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                    sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
        except OSError:  # the process has ended, or hides itself
            continue
    return sum(sizes.values())
