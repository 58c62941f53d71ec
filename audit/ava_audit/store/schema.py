"""The database: how it is opened and migrated, whether its schema was changed, and what its errors mean."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from ava_audit.entries import Fault, ProgressCallback
from ava_audit.errors import LogMoved, SchemaNewer, StoreUnavailable
from ava_audit.projections import rebuild_projections
from ava_audit.store.locks import WriteLock, refuse_unfit

log = logging.getLogger("ava.store")


def _first(db: sqlite3.Connection) -> None:
    """Version 1: the log, its projections, and the progress of background maintenance."""
    script = resources.files("ava_audit.store").joinpath("schema.sql").read_text("utf-8")
    for statement in _statements(script):
        db.execute(statement)


def _extension(db: sqlite3.Connection) -> None:
    """Version 2: what a run near a cap asks a person for."""
    db.execute("ALTER TABLE runs ADD COLUMN extension TEXT")


def _question(db: sqlite3.Connection) -> None:
    """Version 3: what a run asks a person."""
    db.execute("ALTER TABLE runs ADD COLUMN question TEXT")


def reducers_changed(_db: sqlite3.Connection) -> None:
    """Do nothing: `migrate` rebuilds the projections once every table has the form that today's reducers need."""


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_first, _extension, _question)
"""In order; the schema's version is the number of applied migrations."""

SCHEMA_VERSION = len(MIGRATIONS)


def schema_version(db: sqlite3.Connection) -> int:
    """Return the schema version of the database."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection) -> None:
    """Migrate a database to the newest version; the caller holds the write lock.

    Raises:
        SchemaNewer: A newer program has migrated the database.
    """
    version = schema_version(db)
    if version > SCHEMA_VERSION:
        raise SchemaNewer(
            f"the data root has schema {version}, this program knows {SCHEMA_VERSION}: "
            "install the newer ava, or choose another AVA_DATA_ROOT"
        )
    if version == SCHEMA_VERSION:
        return
    missing = MIGRATIONS[version:]
    db.execute("BEGIN IMMEDIATE")
    try:
        for migration in missing:
            migration(db)
        if version > 0 and reducers_changed in missing:
            log.info("the tables are rebuilt from the log, because the rules that derive them have changed")
            rebuild_projections(db)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def open_in_memory() -> sqlite3.Connection:
    """Return an empty log in memory, to compare with or to throw away."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    migrate(db)
    return db


def _statements(script: str) -> list[str]:
    """Split a script into statements, so that each runs inside our own transaction (executescript commits)."""
    statements: list[str] = []
    lines: list[str] = []
    for line in script.splitlines(keepends=True):
        lines.append(line)
        if sqlite3.complete_statement("".join(lines)):
            statements.append("".join(lines))
            lines = []
    return statements


BUSY_MS = 1_000
COPIED_PAGES = 2_000
"""How many pages are copied between two looks at the progress."""
DAMAGED = "ava.db is damaged: put back a copy of it, or set AVA_DATA_ROOT to another folder"


def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open a connection for the store: explicit transactions, durable commits, no automatic checkpoints.

    It creates no file.
    """
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        timeout=BUSY_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=True,
    )
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA secure_delete = ON")
        if readonly:
            db.execute("PRAGMA query_only = ON")
    except BaseException:
        db.close()
        raise
    return db


def copy_log(path: Path, target: Path, on_progress: ProgressCallback | None = None) -> None:
    """Copy a log as it is at one moment, while other processes write to it. Blocking.

    Args:
        path: The database file. It is not changed.
        target: The copy, which must not exist.
        on_progress: Called with the number of copied pages, and of all pages.

    Raises:
        StoreUnavailable: The log cannot be read, or the copy cannot be written.
    """

    def progress(_status: int, remaining: int, total: int) -> None:
        if on_progress is not None:
            on_progress(total - remaining, total)

    try:
        target.touch(mode=0o600, exist_ok=False)
        with contextlib.closing(connect(path, readonly=True)) as db, contextlib.closing(connect(target)) as copy:
            db.execute("BEGIN")  # one snapshot, so that a commit meanwhile does not begin the copy anew
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            db.backup(copy, pages=COPIED_PAGES, progress=progress)
        fd = os.open(target, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"the log {path} cannot be copied to {target}: {error}") from error


class LogLocation:
    """Notices if the open log is removed, moved or replaced; anything written after that would be lost.

    Args:
        path: The database file, which exists now.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = self._read()

    def check(self) -> None:
        """Compare the file at the path with the one that was opened; takes a few microseconds.

        Raises:
            LogMoved: Another file, or none, is at the path.
        """
        try:
            moved = self._read() != self._identity
        except OSError as error:
            raise LogMoved(
                f"the data root {self._path.parent} was removed or moved while this server was running"
                f" ({self._path.name}: {error.strerror}), so nothing is written and no model is called: put it back, or"
                " restart this server"
            ) from error
        if moved:
            raise LogMoved(
                f"the data root {self._path.parent} was replaced while this server was running, so nothing is written"
                " and no model is called: put the old one back, or restart this server"
            )

    def _read(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_dev, status.st_ino


def prepare_database(root: Path, path: Path) -> tuple[WriteLock, LogLocation]:
    """Create or migrate the database under the write lock; return the lock and the location of the log.

    Raises:
        DataRootRefused: The data root is not a folder, or is on a network file system.
        SchemaNewer: A newer program has migrated the database.
        StoreUnavailable: The database cannot be opened.
    """
    refuse_unfit(root)
    try:
        path.touch(mode=0o600, exist_ok=True)
        lock = WriteLock(root / "write.lock")
        try:
            with lock.held(), contextlib.closing(connect(path)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                migrate(db)
                location = LogLocation(path)
        except BaseException:
            lock.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(
            f"the log in {root} cannot be opened: {error}; fix that, or choose another AVA_DATA_ROOT"
        ) from error
    return lock, location


def translate_error(error: BaseException) -> BaseException:
    """Turn an SQLite error of a write into one that says what to do, and any error into one that a future accepts."""
    if isinstance(error, StopIteration):  # a future rejects it, which would leave a whole batch unanswered
        return RuntimeError("StopIteration in a command: next() found nothing")
    if not isinstance(error, sqlite3.Error):
        return error
    text = str(error)
    if "full" in text:
        text = "the disk of the data root is full, so nothing was written: free some space and try again"
    elif "readonly" in text:
        text = "the data root is read-only, so nothing was written: make it writable and try again"
    elif is_damaged(error):
        text = f"the log could not be written ({text}), so nothing was; {DAMAGED}"
    else:
        text = f"the log could not be written ({text}), so nothing was; fix that and try again"
    return StoreUnavailable(text)


def is_damaged(error: sqlite3.Error) -> bool:
    """Tell whether SQLite reports a damaged file."""
    return any(words in str(error) for words in ("malformed", "not a database", "no such table", "no such column"))


_SELECT = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY type, name"


Changes = dict[tuple[str, str], str]
"""What happened to a table, index or trigger, by kind and name: `removed`, `changed` or `added`."""


def schema_changes(db: sqlite3.Connection) -> Changes:
    """Return how the schema differs from that of a new database.

    Without its triggers, any SQL could change entries; without a table, nothing can be written.
    """
    with contextlib.closing(open_in_memory()) as new:
        expected = _definitions(new)
    found = _definitions(db)
    lost = {key: "changed" if key in found else "removed" for key in expected if found.get(key) != expected[key]}
    return {**lost, **{key: "added" for key in found if key not in expected}}


def schema_faults(changes: Changes) -> list[Fault]:
    """Return the changes as faults."""
    return [
        Fault("schema", 0, f"the {kind} {name} was {what}: find out what else writes to this file")
        for (kind, name), what in changes.items()
    ]


def _definitions(db: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """Return the SQL of each table, index and trigger; the inner tables of the text index are up to SQLite."""
    return {(kind, name): "" if name.startswith("words_") else sql for kind, name, sql in db.execute(_SELECT)}
