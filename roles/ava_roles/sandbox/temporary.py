"""Temporary folders, each locked by its owner, so that any process can remove those of dead owners."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ava_roles.sandbox.path_access import remove_tree

if sys.platform != "win32":
    import fcntl

STALE_S = 60.0
"""A younger folder may belong to an owner that has not locked it yet."""
log = logging.getLogger("ava.temporary")
_places: list[Path] = []


@contextmanager
def temporary_files_in(place: Path) -> Generator[None]:
    """Make this process's temporary folders in `place`, a folder of the data root that is created when needed."""
    _places.append(place)
    try:
        yield
    finally:
        _places.remove(place)


@contextmanager
def temporary_folder(prefix: str, place: Path | None = None) -> Generator[Path]:
    """Hold a new private folder, in `place`, the newest living `temporary_files_in`, or the system's. Blocking."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place or _current_place()))
    lock = _try_lock(folder)
    try:
        yield folder
    finally:
        try:
            remove_tree(folder)
        except OSError as error:  # the next sweep tries again
            log.warning("%s was not removed completely: %s", folder, error)
        finally:
            if lock is not None:
                os.close(lock)


def remove_leftovers(place: Path) -> None:
    """Remove the temporary folders of dead owners. Blocking."""
    for folder in place.glob("*/"):
        with suppress(OSError):  # another process is removing it
            # A time far in the future says nothing about the age: the clock was set back.
            if folder.is_symlink() or abs(folder.stat().st_mtime - time.time()) < STALE_S:
                continue
            lock = _try_lock(folder)
            if lock is not None:
                try:
                    remove_tree(folder)
                finally:
                    os.close(lock)


def _current_place() -> Path | None:
    for place in reversed(_places):
        if place.parent.is_dir():
            place.mkdir(mode=0o700, exist_ok=True)
            return place
    return None


def _try_lock(folder: Path) -> int | None:
    """Lock a folder and return its descriptor; None if another process holds it, or folders cannot be locked here."""
    if sys.platform == "win32":  # there are neither worktrees nor sandboxes
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
