"""Looking at a data root without leaving a trace: nothing is made or migrated, and the write lock is not taken."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import portalocker

from ava_audit.store.schema import schema_version
from ava_audit.view import View

BUSY_S = 1.0
_PEEK = portalocker.LockFlags.SHARED | portalocker.LockFlags.NON_BLOCKING


@dataclass(frozen=True)
class Opened:
    """A log that can be read: the state of everything, its schema, and whether its newest entries are missing."""

    db: sqlite3.Connection
    view: View
    schema: int
    partial: bool


@contextmanager
def opened(path: Path) -> Generator[Opened]:
    """Open a log to look at it, without making a file beside it.

    SQLite makes the two files that belong to a database in use where they are missing. Where they are, nobody has it
    open, and the database file alone is read.
    """
    if not path.is_file():  # opening a pipe would wait for ever
        raise OSError("it is no regular file")
    wal, shared = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    in_use = wal.is_file() and shared.is_file()
    uri = f"{path.absolute().as_uri()}?mode=ro{'' if in_use else '&immutable=1'}"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)) as db:
        db.execute("BEGIN")
        partial = not in_use and wal.exists() and wal.stat().st_size > 0
        yield Opened(db, View(db), schema_version(db), partial)


def is_held(path: Path) -> bool:
    """Tell whether a process holds a lock file: a shared lock is tried on it for a moment, and the file not made."""
    if path.is_symlink() or not path.is_file():  # opening a pipe would wait for ever
        return False
    with path.open("rb") as file:
        try:
            portalocker.lock(file, _PEEK)
        except portalocker.LockException:
            return True
        portalocker.unlock(file)
    return False
