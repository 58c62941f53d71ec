"""Migrations: each whole or not at all, and a newer database is left alone."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from support.log import write_texts

from ava_audit import migrations
from ava_audit.errors import SchemaNewer
from ava_audit.migrations import SCHEMA_VERSION, migrate, schema_version, scratch
from ava_audit.projections import PROJECTIONS
from ava_audit.store import Store
from ava_audit.view import ENTRY_COLUMNS, RunRow


def tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_a_new_database_has_the_log_its_projections_and_the_newest_version() -> None:
    with contextlib.closing(scratch()) as db:
        assert schema_version(db) == SCHEMA_VERSION
        assert {"events", "live", "progress", "words", "mirrored", *PROJECTIONS} <= tables(db)
        columns = [row[1] for row in db.execute("PRAGMA table_info(events)")]
        assert ", ".join(columns) == ENTRY_COLUMNS
        assert [row[1] for row in db.execute("PRAGMA table_info(runs)")] == list(RunRow.__dataclass_fields__)


def test_migrating_twice_changes_nothing() -> None:
    with contextlib.closing(scratch()) as db:
        before = db.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
        migrate(db)
        assert db.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall() == before


async def test_a_newer_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["a"])
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db")) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(SchemaNewer, match=f"schema {SCHEMA_VERSION + 1}, this program knows {SCHEMA_VERSION}"):
        async with Store.open(tmp_path):
            pass
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db")) as db:
        assert db.execute("SELECT count(*) FROM events").fetchone() == (1,)


async def test_an_older_database_is_brought_up_to_date_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["a"])

    def second(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE novelty (a)")

    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, second))
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    monkeypatch.setattr("ava_audit.store.SCHEMA_VERSION", SCHEMA_VERSION + 1)
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["b"])
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db")) as db:
        assert (schema_version(db), "novelty" in tables(db)) == (SCHEMA_VERSION + 1, True)
        assert db.execute("SELECT count(*) FROM events").fetchone() == (2,)


def test_a_migration_that_fails_leaves_the_version_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE half (a)")
        raise RuntimeError("out of luck")

    with contextlib.closing(scratch()) as db:
        monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, broken))
        monkeypatch.setattr(migrations, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        with pytest.raises(RuntimeError):
            migrate(db)
        assert schema_version(db) == SCHEMA_VERSION
        assert "half" not in tables(db)
