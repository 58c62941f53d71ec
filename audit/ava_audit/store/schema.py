"""Whether the database has the tables, indexes and triggers that it was made with."""

from __future__ import annotations

import contextlib
import sqlite3

from ava_audit.faults import Fault
from ava_audit.store.migrations import scratch

_SELECT = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY type, name"


Changes = dict[tuple[str, str], str]
"""Of each table, index or trigger that is not as it was made, by kind and name: removed, changed or added."""


def schema_changes(db: sqlite3.Connection) -> Changes:
    """Return what is not as it was made.

    Without a trigger anybody's SQL could change entries; without a table nothing can be written any more.
    """
    with contextlib.closing(scratch()) as new:
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
