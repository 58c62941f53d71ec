"""The embedded database's schema: how it is migrated, and whether it was changed."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Generator, Mapping
from importlib import resources
from typing import cast

from ava_audit.database import Database
from ava_audit.entries import Fault
from ava_audit.errors import DataRootRefused, SchemaNewer, SchemaOlder
from ava_audit.projections import rebuild_projections
from ava_audit.store.backend import OlderSchema
from ava_audit.store.connection import SqliteDatabase

log = logging.getLogger("ava.store")


def reducers_changed(_db: Database) -> None:
    """Do nothing: `apply_migrations` rebuilds the projections once every table has the form that reducers need."""


MIGRATIONS: tuple[Callable[[Database], None], ...] = ()
"""From the schema as it was first released (`schema.sql`, of both databases) to today's, in order."""

NEEDED_PROGRAM = "0.2.0"
"""The oldest program that knows the newest schema, as the log says it in its table `needs`. With a new migration, it is
the version that will have it."""
FIRST_SCHEMA = 20
"""The version of the schema as it was first released. Development versions before it had lower ones: they refuse this
one as newer in place of migrating it, and no program since then takes theirs for an older log of its own."""
SCHEMA_VERSION = FIRST_SCHEMA + len(MIGRATIONS)


def needs_migration(db: Database, place: str, older: OlderSchema) -> bool:
    """Tell whether a log has to be migrated; one without a schema has not.

    Raises SchemaNewer if a newer program has migrated it; SchemaOlder if it would have to be, and may not;
    DataRootRefused if it is of a version before the first release.
    """
    version = db.schema_version()
    if version > SCHEMA_VERSION:
        raise SchemaNewer(
            f"{place} needs {_needed_program(db)} (it has schema {version}, this program knows {SCHEMA_VERSION}):"
            " install the newer ava, or choose another AVA_DATA_ROOT"
        )
    if 0 < version < FIRST_SCHEMA:
        raise DataRootRefused(
            f"a development version of ava from before its first release wrote {place} (schema {version}), and no"
            " release reads it: write it to a file with that version's `ava export` and read the file into a new data"
            " root with `ava import`, or choose another AVA_DATA_ROOT"
        )
    if version in (0, SCHEMA_VERSION):
        return False
    if older is OlderSchema.REFUSE:
        raise SchemaOlder(
            f"an older ava wrote {place} (schema {version}, this version has {SCHEMA_VERSION}): `ava migrate` copies"
            " the log and migrates it; so does the next server that starts"
        )
    return True


def _needed_program(db: Database) -> str:
    """Return the program that a log with a newer schema needs at least."""
    try:
        (program,) = db.execute("SELECT program FROM needs").fetchone()
    except Exception:  # whatever the driver says of a table that is not there
        return "a newer ava"
    return f"ava {program} or newer"


def _note_needed_program(db: Database) -> None:
    db.execute("DELETE FROM needs")
    db.execute("INSERT INTO needs (program) VALUES (?)", (NEEDED_PROGRAM,))


def apply_migrations(db: Database, version: int) -> None:
    """Bring a log from a version to the newest, in the caller's transaction."""
    missing = MIGRATIONS[version - FIRST_SCHEMA :]
    for migration in missing:
        migration(db)
    _note_needed_program(db)
    if reducers_changed in missing:
        log.info("the tables are rebuilt from the log, because the rules that derive them have changed")
        rebuild_projections(db)


def create(db: SqliteDatabase) -> None:
    """Make the newest schema in an empty database, in the caller's transaction."""
    for statement in _statements(resources.files("ava_audit.store").joinpath("schema.sql").read_text("utf-8")):
        db.execute(statement)
    for migration in MIGRATIONS:
        migration(db)
    _note_needed_program(db)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


class MigrationStatements:
    """Takes the place of a database to collect the statements of all migrations."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        for migration in MIGRATIONS:
            migration(cast("Database", self))

    def execute(self, sql: str, _values: object = ()) -> None:
        self.statements.append(sql)


def migrate(db: SqliteDatabase, version: int) -> None:
    """Bring a log from a version to the newest in one transaction; the caller holds the write lock."""
    with transaction(db):
        apply_migrations(db, version)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextlib.contextmanager
def transaction(db: SqliteDatabase) -> Generator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def open_in_memory() -> SqliteDatabase:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=SqliteDatabase)
    with transaction(db):
        create(db)
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
    return compare_definitions(expected, _definitions(db))


def compare_definitions(expected: Mapping[tuple[str, str], str], actual: Mapping[tuple[str, str], str]) -> Changes:
    """Return how definitions, by kind and name, differ from the expected ones."""
    changes: Changes = {}
    for key, definition in expected.items():
        if key not in actual:
            changes[key] = "removed"
        elif actual[key] != definition:
            changes[key] = "changed"
    for key in actual:
        if key not in expected:
            changes[key] = "added"
    return changes


def schema_faults(changes: Changes) -> list[Fault]:
    faults: list[Fault] = []
    for (kind, name), change in changes.items():
        text = f"the {kind} {name} was {change}: find out what else writes to this file"
        faults.append(Fault("schema", 0, text))
    return faults


def _definitions(db: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """Return the SQL of each table, index and trigger; the inner tables of the text index are up to SQLite."""
    return {(kind, name): "" if name.startswith("words_") else sql for kind, name, sql in db.execute(_SELECT)}
