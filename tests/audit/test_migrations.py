"""Migrations: each whole or not at all, after a copy, by whoever may; and a newer database is left alone."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import re
import sqlite3
from importlib.resources import files
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from support.log import child, write_texts
from support.logs.cutting import become_newer
from support.logs.schemas import MIGRATES, add_novelty, table_names

from ava_audit import reducers
from ava_audit.database import Database
from ava_audit.entries import ENTRY_COLUMNS
from ava_audit.errors import DataRootRefused, SchemaNewer, SchemaOlder, StoreUnavailable
from ava_audit.projections import BUDGETS, PLANS, PROJECTIONS, PROPOSALS, RUNS
from ava_audit.store import schema, sqlite
from ava_audit.store.backend import OlderSchema
from ava_audit.store.connection import SqliteDatabase
from ava_audit.store.schema import (
    FIRST_SCHEMA,
    MIGRATIONS,
    SCHEMA_VERSION,
    migrate,
    open_in_memory,
    reducers_changed,
)
from ava_audit.store.sqlite import backend_of
from ava_audit.store.store import Store
from ava_audit.verify import verify
from ava_audit.view import View
from ava_server.core.data_root import DataRoot

TESTS = Path(__file__).parent.parent


def test_a_new_database_has_all_tables_and_the_latest_version() -> None:
    with contextlib.closing(open_in_memory()) as db:
        assert db.schema_version() == SCHEMA_VERSION
        assert {"events", "live", "progress", "words", "mirrored", *PROJECTIONS} <= table_names(db)
        columns = [row[1] for row in db.execute("PRAGMA table_info(events)")]
        assert ", ".join(columns) == ENTRY_COLUMNS
        for shape in (PROPOSALS, RUNS, PLANS, BUDGETS):
            for table, its_columns in shape.parts.items():
                found = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
                assert found == its_columns, f"{table}: MIGRATIONS must add each new column of rows.py"


@pytest.mark.sqlite_only("sets the version in the file")
async def test_refuses_a_newer_database_and_leaves_it_unchanged(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["a"])
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db")) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(SchemaNewer, match=f"schema {SCHEMA_VERSION + 1}, this program knows {SCHEMA_VERSION}"):
        async with Store.open(tmp_path):
            pass
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db")) as db:
        assert db.execute("SELECT count(*) FROM events").fetchone() == (1,)


@pytest.mark.parametrize("version", [1, 12, FIRST_SCHEMA - 1])
async def test_refuses_the_log_of_a_version_before_the_first_release_and_leaves_it_unchanged(
    tmp_path: Path, version: int, database: str
) -> None:
    """Their numbers began at 1, as those of releases would have: each would have taken the other for an older log."""
    statement = f"PRAGMA user_version = {version}" if database == "sqlite" else f"UPDATE meta SET version = {version}"
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["a"])
        await log.maintain(lambda db: db.execute(statement))
    for older in OlderSchema:
        with pytest.raises(DataRootRefused, match=f"before its first release .*schema {version}.*`ava export`"):
            async with Store.open(tmp_path, older=older):
                pass
    with pytest.raises(DataRootRefused, match="before its first release"):
        verify(tmp_path)


async def test_a_log_says_which_program_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["a"])
    with monkeypatch.context() as newer:
        become_newer(newer, add_novelty)
        newer.setattr(schema, "NEEDED_PROGRAM", "7.8")
        async with Store.open(tmp_path, older=MIGRATES):
            pass
    with pytest.raises(SchemaNewer, match=r"needs ava 7\.8 or newer .*install the newer ava"):
        async with Store.open(tmp_path):
            pass


@pytest.mark.sqlite_only("looks into the file")
async def test_migrates_an_older_database_and_keeps_its_entries_and_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["a"])
    version = become_newer(monkeypatch, add_novelty)
    async with Store.open(tmp_path, older=MIGRATES) as log:
        await write_texts(log, ["b"])
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db", factory=SqliteDatabase)) as db:
        assert (db.schema_version(), "novelty" in table_names(db)) == (version, True)
        assert db.execute("SELECT count(*) FROM events").fetchone() == (2,)
    [copy] = DataRoot(tmp_path).log_copies
    assert copy.stat().st_mode & 0o777 == 0o600
    with contextlib.closing(sqlite3.connect(copy, factory=SqliteDatabase)) as db:
        assert (db.schema_version(), "novelty" in table_names(db)) == (version - 1, False)
        assert db.execute("SELECT count(*) FROM events").fetchone() == (1,)


async def test_a_log_is_migrated_only_by_whoever_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["a"])
    become_newer(monkeypatch, add_novelty)
    for _ in range(2):
        with pytest.raises(SchemaOlder, match="`ava migrate` copies"):
            async with Store.open(tmp_path):
                pass
    with pytest.raises(SchemaOlder):
        verify(tmp_path)
    backend = backend_of(tmp_path)
    copy = backend.prepare(older=MIGRATES)
    backend.close()
    assert copy is not None
    async with Store.open(tmp_path) as log:
        assert await log.read(View.head) == 1
    assert verify(tmp_path).ok
    with contextlib.closing(backend_of(tmp_path)) as again:
        assert again.prepare(older=MIGRATES) is None, "once is enough"


@pytest.mark.sqlite_only("fills the place of the copy")
async def test_a_log_that_cannot_be_copied_is_not_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["a"])
    before = SCHEMA_VERSION
    become_newer(monkeypatch, add_novelty)
    monkeypatch.setattr(sqlite, "COPY_NAME", "ava.db")  # that file exists
    with pytest.raises(StoreUnavailable, match="cannot be copied"):
        async with Store.open(tmp_path, older=MIGRATES):
            pass
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db", factory=SqliteDatabase)) as db:
        assert db.schema_version() == before


def test_a_failed_migration_leaves_the_previous_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(db: Database) -> None:
        db.execute("CREATE TABLE half (a)")
        raise RuntimeError("out of luck")

    with contextlib.closing(open_in_memory()) as db:
        become_newer(monkeypatch, add_novelty, broken)
        with pytest.raises(RuntimeError):
            migrate(db, SCHEMA_VERSION)
        assert db.schema_version() == SCHEMA_VERSION
        assert not {"half", "novelty"} & table_names(db)


# -- a changed reducer ----------------------------------------------------------------------------------------------


OLDER = """
import sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from ava_audit.errors import SchemaNewer
from ava_audit.store.store import Store
from ava_audit.view import View
from support.log import message, write
async def main():
    async with Store.open(Path(sys.argv[1])) as log:
        await write(log, message("the older one"))
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            await write(log, message("too late"))
        except SchemaNewer as error:
            print(error, flush=True)
        print(await log.read(View.head), flush=True)
anyio.run(main)
"""


async def test_an_older_running_program_stops_writing_after_a_migration_and_says_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(40):
        async with await anyio.open_process(child(OLDER, tmp_path, TESTS), stderr=None) as older:
            assert older.stdin is not None and older.stdout is not None
            heard = BufferedByteReceiveStream(older.stdout)
            assert await heard.receive_until(b"\n", 100) == b"ready"
            become_newer(monkeypatch, reducers_changed)
            async with Store.open(tmp_path, older=MIGRATES) as log:
                await write_texts(log, ["the newer one"])
                await older.stdin.send(b"go\n")
                said = b"".join([part async for part in heard]).decode().splitlines()
                assert await log.read(View.head) == 2
            assert await older.wait() == 0
    assert said == ["a newer ava has migrated this data root: restart this server", "2"]


SCHEMA = "d23ce4ea"
"""Of `schema.sql`, which stays as it was released: what comes later is a migration."""
REDUCERS = ("25e7c10c",)
"""Of the reducers, first as they were released, then after each `reducers_changed`."""


def test_a_schema_or_reducer_change_requires_a_migration() -> None:
    schema = " ".join(re.sub(r"--.*", "", files("ava_audit.store").joinpath("schema.sql").read_text("utf-8")).split())
    assert short(schema) == SCHEMA, (
        "schema.sql has changed, and databases that exist do not: add a migration instead"
        " (before the first release: write the new digest here)"
    )
    assert len(REDUCERS) == 1 + MIGRATIONS.count(reducers_changed), (
        "REDUCERS must have one more digest than MIGRATIONS has `reducers_changed`: add what the test shows next"
    )
    assert short(repr(reached("reduce"))) == REDUCERS[-1], (
        "a reducer has changed, and the tables of databases that exist have what the old one gave: add"
        " `reducers_changed` to MIGRATIONS and the new digest here, so that they are made anew (before the first"
        " release, or if every row stays what it was: only write the new digest here)"
    )


def short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def reached(name: str) -> dict[str, object]:
    """What reducers.py defines and a name leads to, without comments, docstrings and layout."""
    defined: dict[str, ast.stmt] = {}
    for node in ast.parse(Path(reducers.__file__).read_text("utf-8")).body:
        for target in getattr(node, "targets", [getattr(node, "target", node)]):
            own = target.id if isinstance(target, ast.Name) else getattr(target, "name", "")
            defined[own] = node
    found: dict[str, object] = {}
    wanted = [name]
    while wanted:
        name = wanted.pop()
        if name in defined and name not in found:
            found[name] = bare(defined[name])
            wanted += [node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)]
    return dict(sorted(found.items()))


def bare(node: object) -> object:
    """A syntax tree as plain values, the same in every version of Python: without what is empty, and without words."""
    if isinstance(node, list):
        return [bare(item) for item in node if not is_docstring(item)]
    if isinstance(node, ast.AST):
        members = ((field, bare(value)) for field, value in ast.iter_fields(node) if value not in (None, []))
        return (type(node).__name__, *members)
    return node


def is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_the_reducer_digest_ignores_formatting_and_comments() -> None:
    assert {"reduce", "_BY_FACT", "_BY_HEADER", "_settled", "_holdings", "_hold", "Header"} <= set(reached("reduce"))
    assert not {"fold", "MemoryState", "MemoryRows"} & set(reached("reduce"))
    one = "def f(db):\n    'Words.'\n    # and more\n    db.execute('UPDATE runs SET a = 1')\n"
    same = "def f( db ):\n    db.execute(\n        'UPDATE runs SET a = 1',\n    )\n"
    other = one.replace("= 1", "= 2")
    assert bare(ast.parse(one)) == bare(ast.parse(same)) != bare(ast.parse(other))
