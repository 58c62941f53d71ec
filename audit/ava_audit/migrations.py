"""Numbered migrations: each is recorded in the transaction that applies it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from importlib import resources

from ava_audit.errors import SchemaNewer


def _first(db: sqlite3.Connection) -> None:
    """Version 1: the log, its projections, and the keeper's progress."""
    script = resources.files("ava_audit").joinpath("schema.sql").read_text("utf-8")
    for statement in _statements(script):
        db.execute(statement)


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
    for number in range(version, SCHEMA_VERSION):
        db.execute("BEGIN IMMEDIATE")
        try:
            MIGRATIONS[number](db)
            db.execute(f"PRAGMA user_version = {number + 1}")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise


def scratch() -> sqlite3.Connection:
    """Return an empty log in memory, for what is rebuilt to be compared or thrown away."""
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
