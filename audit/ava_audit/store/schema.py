"""The embedded database's schema: how it is migrated, and whether it was changed."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources

from ava_audit.database import Database
from ava_audit.entries import Fault
from ava_audit.errors import SchemaNewer
from ava_audit.projections import rebuild_projections
from ava_audit.store.connection import SqliteDatabase

log = logging.getLogger("ava.store")

_RUN_INDEXES = (
    "CREATE INDEX runs_ended ON runs (ended_us) WHERE ended_us IS NOT NULL",
    "CREATE INDEX runs_owners ON runs (user_id, instance) WHERE state = 'running'",
    "CREATE INDEX IF NOT EXISTS runs_group ON runs (group_id) WHERE group_id IS NOT NULL",
)
"""Runs by when they ended, by owner, and by group, so that a long history makes no call slower. Postgres always had
the last one."""
_BY_ROLE = "CREATE INDEX runs_role ON runs (role, ended_us) WHERE state = 'success'"
_OWN_RUNS = (
    "CREATE INDEX runs_own ON runs (user_id, role, ended_us) WHERE started_us IS NOT NULL AND ended_us IS NOT NULL"
)
"""A user's ended runs by role, for estimates; it replaces the one before."""
_DECISION_INDEXES = (
    "CREATE INDEX events_decided ON events (ts_us, seq)"
    " WHERE +type IN ('SpawnDecided', 'ExtensionDecided', 'RunResumed')",
    "CREATE INDEX events_decided_by ON events (user_id, ts_us, seq)"
    " WHERE +type IN ('SpawnDecided', 'ExtensionDecided', 'RunResumed')",
    "CREATE INDEX events_session ON events (session_id) WHERE type = 'SessionStart'",
)
"""Decisions by time, of all users and of one, and the start of the session that decided."""
_GROWTH_INDEXES = (
    "CREATE INDEX runs_newest ON runs (user_id, created_us)",
    "CREATE INDEX runs_roles ON runs (user_id, role, created_us)",
    "CREATE INDEX proposals_waiting ON proposals (expires_us) WHERE state = 'awaiting_approval'",
)
"""A user's runs by time and by role; and proposals that have not expired, which are few among those never decided."""
INDEXES = (*_RUN_INDEXES, *_DECISION_INDEXES, _OWN_RUNS, *_GROWTH_INDEXES)


def _first(db: Database) -> None:
    """Version 1: the log, its projections, and the progress of background maintenance."""
    script = resources.files("ava_audit.store").joinpath("schema.sql").read_text("utf-8")
    _execute(list(_statements(script)), db)


def _execute(statements: Sequence[str], db: Database) -> None:
    for statement in statements:
        db.execute(statement)


ACTIVITIES = (
    'CREATE UNLOGGED TABLE activities (name text COLLATE "C" PRIMARY KEY, doing text COLLATE "C" NOT NULL,'
    " shown_at timestamptz NOT NULL)"
)
"""What the runs of each instance are doing: not a part of the log, and not in the write-ahead log either."""


def _activities(db: Database) -> None:
    """Version 6: a table for what runs are doing. Processes with the embedded database show it in files."""
    if not isinstance(db, SqliteDatabase):
        db.execute(ACTIVITIES)


def _no_answer(_db: Database) -> None:
    """Version 7: the ending `no_answer`, so that a program that does not know it stops writing."""


def _several_calls(_db: Database) -> None:
    """Version 8: several model calls of a run in flight, so that a program that does not know that stops writing."""


def _newest_messages(db: Database) -> None:
    """Version 10: the newest message to each run, so that a turn does not look for one in the log."""
    kind = "INTEGER" if isinstance(db, SqliteDatabase) else "bigint"
    db.execute(f"ALTER TABLE runs ADD COLUMN message_seq {kind}")
    newest = "SELECT max(seq) FROM events WHERE events.run_id = runs.id AND +events.type = 'UserMessage'"
    db.execute(f"UPDATE runs SET message_seq = ({newest})")  # noqa: S608


def reducers_changed(_db: Database) -> None:
    """Do nothing: `migrate` rebuilds the projections once every table has the form that today's reducers need."""


MIGRATIONS: tuple[Callable[[Database], None], ...] = (
    _first,
    partial(_execute, ["ALTER TABLE runs ADD COLUMN extension TEXT"]),  # what a run near a cap asks a person for
    partial(_execute, ["ALTER TABLE runs ADD COLUMN question TEXT"]),  # what a run asks a person
    partial(_execute, [*_RUN_INDEXES, _BY_ROLE]),
    partial(_execute, _DECISION_INDEXES),
    _activities,
    _no_answer,
    _several_calls,
    partial(_execute, ["DROP INDEX runs_role", _OWN_RUNS, "ALTER TABLE configs ADD COLUMN terms TEXT"]),
    _newest_messages,
    partial(_execute, _GROWTH_INDEXES),
    partial(_execute, ["ALTER TABLE runs ADD COLUMN money_wait TEXT"]),  # what a run waits for that others hold
)
"""In order; the schema's version is the number of applied migrations. From the fourth on, Postgres runs them too."""

SCHEMA_VERSION = len(MIGRATIONS)


def migrate(db: SqliteDatabase) -> None:
    """Migrate to the newest version; the caller holds the write lock. Raises SchemaNewer: a newer program did."""
    version = db.schema_version()
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


def open_in_memory() -> SqliteDatabase:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=SqliteDatabase)
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


_SELECT = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY type, name"


Changes = dict[tuple[str, str], str]
"""What happened to a table, index or trigger, by kind and name: `removed`, `changed` or `added`."""


def schema_changes(db: sqlite3.Connection) -> Changes:
    """Return how the schema differs from a new database's: without its triggers, any SQL could change entries."""
    with contextlib.closing(open_in_memory()) as new:
        expected = _definitions(new)
    found = _definitions(db)
    lost = {key: "changed" if key in found else "removed" for key in expected if found.get(key) != expected[key]}
    return {**lost, **{key: "added" for key in found if key not in expected}}


def schema_faults(changes: Changes) -> list[Fault]:
    return [
        Fault("schema", 0, f"the {kind} {name} was {what}: find out what else writes to this file")
        for (kind, name), what in changes.items()
    ]


def _definitions(db: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """Return the SQL of each table, index and trigger; the inner tables of the text index are up to SQLite."""
    return {(kind, name): "" if name.startswith("words_") else sql for kind, name, sql in db.execute(_SELECT)}
