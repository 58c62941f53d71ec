"""Whether the database has the tables, indexes and triggers that it was made with."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from ava_audit.errors import AuditError, SchemaNewer, StoreUnavailable
from ava_audit.faults import Fault
from ava_audit.projections import rebuild_projections
from ava_audit.store.locks import WriteLock, refuse_unfit

log = logging.getLogger("ava.store")


def _first(db: sqlite3.Connection) -> None:
    """Version 1: the log, its projections, and the keeper's progress."""
    script = resources.files("ava_audit.store").joinpath("schema.sql").read_text("utf-8")
    for statement in _statements(script):
        db.execute(statement)


def reducers_changed(_db: sqlite3.Connection) -> None:
    """Do nothing here: the log is folded anew by `migrate`, once every table is as today's reducers want it."""


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_first,)
"""In order; the schema's version is how many of them have been applied."""

SCHEMA_VERSION = len(MIGRATIONS)


def schema_version(db: sqlite3.Connection) -> int:
    """Return the version that the database has."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection) -> None:
    """Bring a database up to date; the caller holds the write lock.

    Raises:
        SchemaNewer: The database was written by a newer program.
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
            log.info("the tables are made anew from the log, because what follows from it has changed")
            rebuild_projections(db)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def open_in_memory() -> sqlite3.Connection:
    """Return an empty log in memory, for what is to be compared with a new one, or thrown away."""
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
DAMAGED = "ava.db is damaged: put back a copy of it, or set AVA_DATA_ROOT to another folder"


def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open a connection as the store uses it: our own transactions, durable commits, no checkpoints by chance."""
    db = sqlite3.connect(
        path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False, cached_statements=256
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


def prepare_database(root: Path, path: Path) -> WriteLock:
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


def translate_error(error: BaseException) -> BaseException:
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


_SELECT = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY type, name"


Changes = dict[tuple[str, str], str]
"""Of each table, index or trigger that is not as it was made, by kind and name: removed, changed or added."""


def schema_changes(db: sqlite3.Connection) -> Changes:
    """Return what is not as it was made.

    Without a trigger anybody's SQL could change entries; without a table nothing can be written any more.
    """
    with contextlib.closing(open_in_memory()) as new:
        meant = _made_with(new)
    there = _made_with(db)
    lost = {key: "changed" if key in there else "removed" for key in meant if there.get(key) != meant[key]}
    added = {key: "added" for key in there if key not in meant}
    return {**lost, **added}


def schema_faults(changes: Changes) -> list[Fault]:
    """Return the changes as faults."""
    return [
        Fault("schema", 0, f"the {kind} {name} was {what}: see who writes to this file beside Ava")
        for (kind, name), what in changes.items()
    ]


def _made_with(db: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """Return what makes each table, index and trigger; how the text index keeps its own is SQLite's affair."""
    return {(kind, name): "" if name.startswith("words_") else sql for kind, name, sql in db.execute(_SELECT)}
