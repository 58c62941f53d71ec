"""Numbered migrations: all that a database lacks are applied and recorded in one transaction, or none.

A change of `schema.sql`'s tables is a migration of its own after `_first`, which stays as it was released. A change of
what a reducer gives is one too, `reducers_changed`: it folds the log anew, and because the number grows, an older
program on the same data root stops writing.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from importlib import resources

from ava_audit.errors import SchemaNewer
from ava_audit.store.projections import refold

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
            refold(db)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def scratch() -> sqlite3.Connection:
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
