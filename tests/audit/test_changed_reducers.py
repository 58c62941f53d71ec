"""Reducers that a migration has changed: the tables follow from the log again, or stay as they are."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from support.log import Life, write, write_each
from support.logs.cutting import become_newer
from support.logs.schemas import MIGRATES, add_novelty, table_names, tool_calls_of_runs

from ava_audit import reducers
from ava_audit.entries import ENTRY_COLUMNS
from ava_audit.errors import StoreUnavailable
from ava_audit.projections import PROJECTIONS
from ava_audit.rows import RunRow
from ava_audit.store.connection import SqliteDatabase
from ava_audit.store.schema import SCHEMA_VERSION, reducers_changed
from ava_audit.store.store import Store
from ava_audit.verify import verify
from ava_server.core.data_root import DataRoot


@pytest.mark.sqlite_only("looks into the file")
async def test_a_changed_reducer_repairs_the_tables_when_an_older_database_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Store.open(tmp_path) as log:
        for number in range(20):
            await write(log, *Life(f"S-{number:06x}").beginning())
        await write_each(log, [*(life := Life("S-aaaaaa")).all_events(), *Life("S-bbbbbb").beginning()])
        meant = projection_rows(log.path)
        await log.maintain(lambda db: db.execute(ERASE, (life.run_id,)))
    spoil = (
        "UPDATE runs SET tool_calls = tool_calls + 7, task_seq = NULL",
        "DELETE FROM proposals WHERE run_id = 'S-bbbbbb'",
        "UPDATE budgets SET spent_micros = 0, held_micros = -1",
        "INSERT INTO plans (id, user_id, cap_micros, created_us) VALUES ('G-1', 'eve', 1, 1)",
    )
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db", isolation_level=None)) as db:
        for statement in spoil:
            assert db.execute(statement).rowcount > 0
        before = db.execute(f"SELECT {ENTRY_COLUMNS} FROM events").fetchall()
    async with Store.open(tmp_path) as log:
        assert projection_rows(log.path) != meant, "a program of the same version takes them as they are"
    become_newer(monkeypatch, reducers_changed, add_novelty)
    async with Store.open(tmp_path, older=MIGRATES) as log:
        assert projection_rows(log.path) == meant
        await write(log, life.task("and on"))
    assert [fault.kind for fault in verify(tmp_path).faults] == ["erased"], "as it was done above"
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db")) as db:
        assert db.execute(f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq <= ?", (len(before),)).fetchall() == before


ERASE = "UPDATE events SET content = NULL WHERE type IN ('ToolCall', 'UserMessage', 'SubagentComplete') AND run_id = ?"


def projection_rows(path: Path) -> dict[str, list[object]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return {table: db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in PROJECTIONS}


async def test_rebuilding_with_a_changed_reducer_equals_applying_it_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life("S-aaaaaa")

    def twice(run: RunRow, _header: reducers.Header) -> None:
        run.tool_calls += 2

    async with Store.open(tmp_path) as log:
        await write_each(log, life.all_events())
        assert await log.read(tool_calls_of_runs) == [1]
    monkeypatch.setitem(reducers._BY_HEADER, "ToolCall", twice)
    become_newer(monkeypatch, reducers_changed)
    async with Store.open(tmp_path, older=MIGRATES) as log:
        assert await log.read(tool_calls_of_runs) == [2]
    assert verify(tmp_path).ok


@pytest.mark.sqlite_only("looks into the file")
async def test_a_failed_rebuild_names_the_entry_and_leaves_the_database_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Store.open(tmp_path) as log:
        await write_each(log, Life("S-aaaaaa").all_events())
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db", isolation_level=None)) as db:
        db.execute("UPDATE events SET content = NULL WHERE type = 'CostReserved'")
        before = projection_rows(tmp_path / "ava.db")
    become_newer(monkeypatch, add_novelty, reducers_changed)
    with pytest.raises(StoreUnavailable, match="cannot be rebuilt at entry 5"):
        async with Store.open(tmp_path, older=MIGRATES):
            pass
    assert not DataRoot(tmp_path).log_copies, "nothing has changed, so no copy is kept"
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db", factory=SqliteDatabase)) as db:
        assert (db.schema_version(), "novelty" in table_names(db)) == (SCHEMA_VERSION, False)
    assert projection_rows(tmp_path / "ava.db") == before
