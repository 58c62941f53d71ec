"""The schema of a log's file."""

from __future__ import annotations

import sqlite3

from ava_audit.database import Database
from ava_audit.store.backend import OlderSchema
from ava_audit.view import View

MIGRATES = OlderSchema.COPY_AND_MIGRATE


def schema_version(db: sqlite3.Connection) -> int:
    """Return the version that a database file says it has."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def table_names(db: sqlite3.Connection) -> set[str]:
    """Return the names of all tables of a database file."""
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def add_novelty(db: Database) -> None:
    """Add a table, as a migration of a program to come would."""
    db.execute("CREATE TABLE novelty (a integer)")


def tool_calls_of_runs(view: View) -> list[int]:
    """Return how many calls of tools each run has made."""
    return [run.tool_calls for run in view.runs()]
