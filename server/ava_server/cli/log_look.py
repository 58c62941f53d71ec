"""A look at the log, for commands that create, lock and migrate nothing: they work on a medium that is only read."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ava_audit.errors import DataRootRefused, StoreUnavailable
from ava_server.cli.terminal import tell
from ava_server.core.data_root import DataRoot, has_log
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.store.look import OpenedLog
    from ava_audit.view import Query

T = TypeVar("T")


class NoLog(BadInput):
    """There is no log yet."""


class LogLook:
    """A log that is opened in this thread for each query, only to be read; a `Readable`.

    Ctrl-C ends a query that takes long. It raises ConfigError: the data root cannot be used; DataRootRefused: it holds
    no log; SchemaOlder, SchemaNewer: it has another schema; StoreUnavailable: unreadable.

    Attributes:
        partial: As in `OpenedLog`, of the log that a query reads or has read.
    """

    def __init__(self, root: DataRoot) -> None:
        self.root = root
        self.partial = False

    async def read(self, query: Query[T], /, *, within_s: float | None = None, short: bool = False) -> T:
        """Run a query. Raises NoLog if there is no log yet; other errors are those of the class."""
        from ava_audit.view import View

        del within_s, short  # a store has them; here they mean nothing
        answer = self.look(lambda log: (query(View(log.db)),))  # in a tuple, since a query may return None itself
        if answer is None:
            raise NoLog(f"there is no log in {self.root.path} yet")
        return answer[0]

    def look(self, use: Callable[[OpenedLog], T]) -> T | None:
        """Return what `use` finds in the log; None where there is none yet. Raises as the class says."""
        import sqlite3

        from ava_audit.store.backend import OlderSchema
        from ava_audit.store.look import look_at
        from ava_audit.store.schema import needs_migration

        root = self.root

        def checked(log: OpenedLog) -> T | None:
            version = log.db.schema_version()
            if version == 0 and root.db.stat().st_size == 0:
                return None  # another process is about to make it
            if version == 0:
                raise DataRootRefused(f"{root.db} is not a log: its beginning is gone (`ava doctor` tells more)")
            needs_migration(log.db, str(root.db), OlderSchema.REFUSE)
            self.partial = log.partial
            return use(log)

        if not has_log(root):
            return None
        try:
            return look_at(root.path, checked)
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


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing, as one with a `LogLook`: importing an event loop takes a while."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("it waits for something")
