"""A look at the log, for commands that create, lock and migrate nothing: they work on a medium that is only read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ava_audit.errors import DataRootRefused, StoreUnavailable
from ava_server.cli.terminal import tell
from ava_server.core.data_root import DataRoot, has_log, in_postgres
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.database import Database
    from ava_audit.view import Query

T = TypeVar("T")
BUSY_S = 1.0
LOOKS = 3
"""How often a look at the log is begun, where other processes open and close it meanwhile."""


class NoLog(BadInput):
    """There is no log yet."""


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


class LogLook:
    """A log that is opened in this thread for each query, only to be read; a `Readable`.

    Ctrl-C ends a query that takes long. It raises ConfigError: the data root cannot be used; DataRootRefused: it holds
    no log; SchemaOlder, SchemaNewer: it has another schema; StoreUnavailable: unreadable.
    """

    def __init__(self, root: DataRoot) -> None:
        self.root = root

    async def read(self, query: Query[T], /, *, within_s: float | None = None, short: bool = False) -> T:
        """Run a query. Raises NoLog: there is none yet; otherwise as the class says."""
        from ava_audit.view import View

        del within_s, short
        found = self.look(lambda log: (query(View(log.db)),))
        if found is None:
            raise NoLog(f"there is no log in {self.root.path} yet")
        return found[0]

    def look(self, use: Callable[[OpenedLog], T]) -> T | None:
        """Return what `use` finds in the log; None where there is none yet. Raises as the class says."""
        import sqlite3

        from ava_audit.store.backend import OlderSchema
        from ava_audit.store.schema import needs_migration

        root = self.root

        def checked(log: OpenedLog) -> T | None:
            version = log.db.schema_version()
            if version == 0 and (in_postgres(root) or root.db.stat().st_size == 0):
                return None  # another process is about to make it
            if version == 0:
                raise DataRootRefused(f"{root.db} is not a log: its beginning is gone (`ava doctor` tells more)")
            needs_migration(version, str(root.db), OlderSchema.REFUSE)
            return use(log)

        if not has_log(root):
            return None
        try:
            return look_at(root.db, checked)
        except (sqlite3.Error, OSError) as error:
            raise _unreadable(error, root.db) from error

    def needs_recovery(self) -> bool:
        """Tell whether the newest entries are missing, and a `Store` would recover them; say so where none can."""
        if not self.look(lambda log: log.partial):
            return False
        if os.access(self.root.path, os.W_OK):
            return True
        tell(
            "The newest entries are missing: a process died while it wrote them, and they cannot be recovered in a"
            " folder that is only read. A copy of it that can be written shows them."
        )
        return False


def _unreadable(error: Exception, path: Path) -> StoreUnavailable:
    import sqlite3

    from ava_audit.store.connection import advice, disk_fault

    why = disk_fault(error, path)
    if why is None:
        why = f"{error}; {advice(error) if isinstance(error, sqlite3.Error) else '`ava doctor` tells more'}"
    return StoreUnavailable(f"the log cannot be read: {why}")


def look_at(path: Path, use: Callable[[OpenedLog], T]) -> T:
    """Return what `use` finds; it is used again if a process has opened or closed the log meanwhile.

    Raises OSError, sqlite3.Error: the log cannot be read.
    """
    import sqlite3

    for left in reversed(range(LOOKS)):
        try:
            with _opened(path) as log, _unless_changed(log):
                value = use(log)
                if not log.changed():
                    return value
        except (sqlite3.Error, OSError) as error:
            # The files beside it may have come or gone between the look for them and their opening.
            if not left or "locked" in str(error) or in_postgres(DataRoot(path.parent)):
                raise
    raise OSError("other processes open and close it all the time; try again")


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

    SQLite creates the two files of a database in use if they are missing. If they are, or nothing is in the first of
    them, the database file alone is read: it has everything, as long as it has not `changed`.
    """
    import sqlite3

    from ava_audit.store.connection import SqliteDatabase, uri_of

    if in_postgres(DataRoot(path.parent)):
        from ava_audit.store.sqlite import backend_of

        backend = backend_of(path.parent)
        try:
            with contextlib.closing(backend.open_to_check()) as remote:
                remote.begin_read()
                yield OpenedLog(remote, partial=False)
        except backend.error as error:
            raise OSError(f"{backend.place}: {error}") from error
        return
    if not path.is_file():  # opening a pipe would wait for ever
        raise OSError("it is not a regular file")
    wal, shared = (path.with_name(path.name + end) for end in ("-wal", "-shm"))

    def state() -> tuple[bool, int, int, int]:
        file = path.stat()
        in_use = wal.is_file() and shared.is_file() and wal.stat().st_size > 0  # empty ones are left by a full disk
        return in_use, file.st_ino, file.st_size, file.st_mtime_ns

    def changed() -> bool:
        try:
            return not in_use and state() != before
        except OSError:
            return True

    before = state()
    in_use = before[0]
    uri = uri_of(path, f"mode=ro{'' if in_use else '&immutable=1'}")
    opened = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, factory=SqliteDatabase)
    with contextlib.closing(opened) as db:
        db.execute("BEGIN")
        partial = not in_use and wal.exists() and wal.stat().st_size > 0
        yield OpenedLog(db, partial, changed)


def run_at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing, as one with a `LogLook`: importing an event loop takes a while."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise RuntimeError("it waits for something")
