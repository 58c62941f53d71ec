"""A look at a data root's log that creates, locks and migrates nothing: it works on a medium that is only read."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from ava_audit.database import Database
from ava_audit.store.connection import SqliteDatabase, has_unread_entries, log_state, uri_of
from ava_audit.store.sqlite import backend_of, log_file

T = TypeVar("T")
BUSY_S = 1.0
LOOKS = 3
"""How often a look at the log is begun, where other processes open and close it meanwhile."""


class OpenedLog(NamedTuple):
    """A log that is open to be read.

    What was read counts only if `changed` is still false afterwards: a database file that is read alone may be changed
    by a process that has opened it since, and what is then read of it belongs to no one state, or looks damaged.

    Attributes:
        db: It is in a transaction.
        partial: A process died while it wrote: the newest entries are missing until another one recovers them.
        changed: Tells whether the file was changed since.
    """

    db: Database
    partial: bool
    changed: Callable[[], bool] = bool


def look_at(root: Path, use: Callable[[OpenedLog], T]) -> T:
    """Return what `use` finds; it is used again if a process has opened or closed the log meanwhile. Blocking.

    Raises OSError, sqlite3.Error: the log cannot be read. From a server also DataRootRefused: the data root has another
    log; StoreUnavailable: there is none; SchemaOlder, SchemaNewer: it has another schema.
    """
    file = log_file(root)
    if file is None:
        return _look_at_server(root, use)
    for left in reversed(range(LOOKS)):
        try:
            with _opened(file) as log, _unless_changed(log):
                value = use(log)
                if not log.changed():
                    return value
        except (sqlite3.Error, OSError) as error:
            # The files beside it may have come or gone between the look for them and their opening.
            if not left or "locked" in str(error):
                raise
    raise OSError("other processes open and close it all the time; try again")


def _look_at_server(root: Path, use: Callable[[OpenedLog], T]) -> T:
    backend = backend_of(root)
    try:
        with contextlib.closing(backend.open_to_check()) as db:
            db.begin_read()
            return use(OpenedLog(db, partial=False))
    except backend.error as error:
        raise OSError(f"{backend.place}: {error}") from error


@contextmanager
def _unless_changed(log: OpenedLog) -> Generator[None]:
    """Let an error of a query pass, unless it may be due to a change of the file."""
    try:
        yield
    except Exception:
        if not log.changed():
            raise


@contextmanager
def _opened(path: Path) -> Generator[OpenedLog]:
    """Open a log to look at it, without creating a file beside it.

    SQLite would create the two files of a database in use (`-wal` and `-shm`) if they are missing. If one is missing,
    or the first is empty, only the database file is read. It then has everything, as long as it has not `changed`.
    """
    if not path.is_file():  # opening a pipe would wait for ever
        raise OSError("it is not a regular file")
    state_at_open = log_state(path)
    in_use = state_at_open[0]

    def changed() -> bool:
        if in_use:
            return False
        try:
            return log_state(path) != state_at_open
        except OSError:
            return True

    uri = uri_of(path, "mode=ro" if in_use else "mode=ro&immutable=1")
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, factory=SqliteDatabase)
    with contextlib.closing(connection) as db:
        db.execute("BEGIN")
        partial = not in_use and has_unread_entries(path)
        yield OpenedLog(db, partial, changed)
