"""Connections to the log's database: opened one way, made ready once, and what SQLite says put into words."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from ava_audit.errors import AuditError, StoreUnavailable
from ava_audit.store.locks import WriteLock
from ava_audit.store.migrations import migrate
from ava_audit.store.mounts import refuse_unfit

BUSY_MS = 1_000
DAMAGED = "ava.db is damaged: put back a copy of it, or set AVA_DATA_ROOT to another folder"


def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open a connection as the store uses it: our own transactions, durable commits, no checkpoints by chance."""
    db = sqlite3.connect(
        path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("PRAGMA secure_delete = ON")
    if readonly:
        db.execute("PRAGMA query_only = ON")
    return db


def prepare(root: Path, path: Path) -> WriteLock:
    """Create or migrate the database under the write lock, and return the lock.

    Raises:
        DataRootRefused: It is not a folder, or lies on a network file system.
        SchemaNewer: A newer program has migrated it.
        StoreUnavailable: It could not be opened.
    """
    refuse_unfit(root)
    try:
        path.touch(mode=0o600, exist_ok=True)
        lock = WriteLock(root / "write.lock")
        try:
            with lock.held(), contextlib.closing(connect(path)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                migrate(db)
        except BaseException:
            lock.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(
            f"the log in {root} cannot be opened: {error}; choose another AVA_DATA_ROOT or mend it"
        ) from error
    return lock


def translated(error: BaseException) -> BaseException:
    """Turn what SQLite says of a write into what a person can act on; what no future takes into what one does."""
    if isinstance(error, AuditError):
        return error
    if isinstance(error, StopIteration):  # raised where it is handed over, it would leave a whole batch unanswered
        return RuntimeError("StopIteration in a command: it looked for what is not there")
    if isinstance(error, sqlite3.Error):
        text = str(error)
        if "full" in text:
            return StoreUnavailable(
                "the disk of the data root is full, so nothing was written: free some space and try again"
            )
        if "readonly" in text:
            return StoreUnavailable(
                "the data root is read-only, so nothing was written: make it writable and try again"
            )
        if is_damaged(error):
            return StoreUnavailable(f"the log could not be written ({text}), so nothing was; {DAMAGED}")
        return StoreUnavailable(f"the log could not be written ({text}), so nothing was; mend that and try again")
    return error


def is_damaged(error: sqlite3.Error) -> bool:
    """Tell whether SQLite says that the file is not what it was."""
    return any(words in str(error) for words in ("malformed", "not a database", "no such table", "no such column"))
