"""The ways to where binds are mounted: what a command may write to, it may have put a link into.

Bubblewrap makes the folders that a mount needs, through any link, and while it does so the machine's own files are
below `/oldroot`: a link to there had it make folders anywhere.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ava_roles.sandbox.launcher.order import Order

WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_THE_WAY = (errno.ENOTDIR, errno.ELOOP, errno.ENOENT)


def drop_indirect(order: Order) -> None:
    """Leave out what is shown of a folder that others may write to, when a link has come to stand in its path."""
    gone = {source for source in order.direct if os.path.realpath(source) != source}
    order.binds = [bind for bind in order.binds if bind[0] not in gone]


def make_ways(order: Order) -> None:
    """Make the folders that binds within other binds need, through no link.

    A bind is left out where a command has put something else in its way, within what it may write to: it has moved away
    what was shown there. No command may be at work in these folders meanwhile.

    Raises:
        OSError: There is something else in the way elsewhere: what is to be covered would be seen.
    """
    kept: list[tuple[str, str, bool]] = []
    for source, target, writable in order.binds:
        around = _around(kept, target)
        if around is not None:
            above, beneath, theirs = around
            try:
                _make_way(above, beneath, os.stat(source), order.uid if theirs else None)
            except OSError as error:
                if theirs and error.errno in _IN_THE_WAY:
                    continue
                raise
        kept.append((source, target, writable))
    order.binds = kept


def _around(binds: list[tuple[str, str, bool]], target: str) -> tuple[str, list[str], bool] | None:
    """Return what is mounted around a target: its source, the names from there on, and whether commands write to it."""
    around = [bind for bind in binds if target.startswith(f"{bind[1]}/")]
    if not around:
        return None
    source, above, writable = max(reversed(around), key=lambda bind: len(bind[1]))
    return source, [name for name in target[len(above) :].split("/") if name], writable


def _make_way(above: str, names: list[str], what: os.stat_result, owner: int | None) -> None:
    """Walk beneath a folder to a place for a mount; what is missing is made where it has an owner.

    Raises:
        OSError: Something of another kind is in the way, or cannot be made.
    """
    here = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, name in enumerate(names, 1):
            folder = number < len(names) or stat.S_ISDIR(what.st_mode)
            if owner is not None and make(here, name, folder=folder) and owner:
                os.chown(name, owner, owner, dir_fd=here, follow_symlinks=False)
            below = opened(here, name, folder=folder)
            os.close(here)
            here = below
        there = os.fstat(here).st_mode  # a pipe or a socket is covered by a file too
        if not stat.S_ISDIR(what.st_mode) and (stat.S_ISDIR(there) or stat.S_ISLNK(there)):
            raise OSError(errno.ENOTDIR, "something else is in the way", names[-1])
    finally:
        os.close(here)


def make(above: int, name: str, *, folder: bool) -> bool:
    """Make a folder or an empty file; tells whether it was not there before."""
    try:
        if folder:
            os.mkdir(name, 0o755, dir_fd=above)
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=above))
    except FileExistsError:
        return False
    return True


def opened(above: int, name: str, *, folder: bool) -> int:
    """Return a descriptor that stands for a folder, or for whatever else has the name; no link is followed."""
    return os.open(name, WAY if folder else os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
