"""How much the folders take that a command may write to, measured through no link that it may plant."""

from __future__ import annotations

import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY = 1024  # what a name and its inode take beside the contents
DEEPEST = 200
"""Nobody nests folders so deep but to hide something."""


class TooDeep(Exception):
    """Raised when folders are nested deeper than can be looked at."""


def used(folders: list[str], owner: int = 0) -> int:
    """Return how many bytes folders and files take on the disk.

    Args:
        folders: Where to look; one that is not there takes nothing.
        owner: Whom to give what root owns there; 0 gives nothing away.

    Raises:
        TooDeep: See there.
    """
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder in folders:
        try:
            top = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            total += _size(os.fstat(top), seen)
            _give(None, f"/proc/self/fd/{top}", os.fstat(top), owner, follow=True)
            total += _below(folder, seen, owner)
        finally:
            os.close(top)
    return total


def _below(folder: str, seen: set[tuple[int, int]], owner: int) -> int:
    """Return what is below a folder; nothing where it is a file."""
    total = 0
    try:
        stack = [_listed(folder, None)]
    except NotADirectoryError:
        return 0
    except OSError:
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
                stack.append(_listed(name, here))
            except OSError:  # it went away, or it is closed to us
                continue
    finally:
        for here, _names in stack:
            os.close(here)
    return total


def _listed(name: str, above: int | None) -> tuple[int, list[str]]:
    """Open a folder, and return it with the names in it."""
    flags = _FOLDER if above is not None else _FOLDER & ~os.O_NOFOLLOW
    descriptor = os.open(name, flags, dir_fd=above)
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


def _give(above: int | None, name: str, found: os.stat_result, owner: int, *, follow: bool = False) -> None:
    """Give away what root owns; never a file of several names, of which another may be elsewhere."""
    if owner and found.st_uid == 0 and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
        os.chown(name, owner, owner, dir_fd=above, follow_symlinks=follow)


def room(folders: list[str]) -> int:
    """Return how many bytes are left where folders are; the least of them."""
    least = 1 << 62
    for folder in folders:
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        least = min(least, found.f_bavail * found.f_frsize)
    return least


def unlinked(pids: list[int]) -> int:
    """Return what files take that processes hold open and that have no name any more."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for pid in pids:
        for found in _open_files(pid):
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                total += found.st_blocks * 512
    return total


def _open_files(pid: int) -> list[os.stat_result]:
    found: list[os.stat_result] = []
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            try:
                found.append(os.stat(f"/proc/{pid}/fd/{number}"))
            except OSError:  # closed meanwhile
                continue
    except OSError:  # it went away, or it hides itself
        pass
    return found
