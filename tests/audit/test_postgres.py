"""The log on a Postgres server: what the other tests of the store cannot ask of both databases."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.log import Life, message, write, write_each, write_texts
from support.logs.cutting import become_newer
from support.logs.on_postgres import connect_to, psycopg, table_files, verify_on
from support.logs.store import open_store_at
from support.postgres import PostgresServer

from ava_audit.database import Database
from ava_audit.maintenance import index_new_entries
from ava_audit.postgres.backend import PostgresBackend
from ava_audit.search import LogQuery, search
from ava_audit.store import backend, locks, store
from ava_audit.view import View

# -- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attack",
    [
        "DELETE FROM events WHERE seq = 1",
        "TRUNCATE events",
        "UPDATE events SET user_id = 'eve' WHERE seq = 1",
        "UPDATE events SET content = '{}' WHERE seq = 1",
        "UPDATE events SET content = NULL, ts_us = 1 WHERE seq = 1",
        "UPDATE events SET content = NULL, run_id = 'S-aaaaaa' WHERE seq = 1",
        "UPDATE events SET content = '{}' WHERE seq = 2",
        "UPDATE events SET content = NULL WHERE seq = 2",
    ],
)
async def test_entries_cannot_be_deleted_or_changed(url: str, tmp_path: Path, attack: str) -> None:
    async with store.Store.open(tmp_path, url) as log:
        await write(log, message("hello"), message("erased"))
        with connect_to(url) as other:
            other.execute("UPDATE events SET content = NULL WHERE seq = 2")
            before = other.execute("SELECT * FROM events ORDER BY seq").fetchall()
            with pytest.raises(psycopg.errors.RaiseException, match=r"never (deleted|changed)"):
                other.execute(attack)
            assert other.execute("SELECT * FROM events ORDER BY seq").fetchall() == before


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("ALTER TABLE events DISABLE TRIGGER events_fixed", "the trigger events_fixed was changed"),
        ("DROP TRIGGER events_keep ON events", "the trigger events_keep was removed"),
        ("DROP INDEX events_run", "the index events_run was removed"),
        ("CREATE TABLE more (a int)", "the table more was added"),
        (
            "CREATE OR REPLACE FUNCTION events_kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
            "the function events_kept was changed",
        ),
    ],
)
async def test_verify_finds_a_changed_schema(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, found: str
) -> None:
    async with store.Store.open(tmp_path, url) as log:
        await write(log, message("hello"))
    assert verify_on(tmp_path, url, monkeypatch).ok
    with connect_to(url) as other:
        other.execute(change)
    (fault,) = verify_on(tmp_path, url, monkeypatch).faults
    assert (fault.kind, found in fault.text) == ("schema", True), fault


async def test_verify_finds_a_changed_entry(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with store.Store.open(tmp_path, url) as log:
        await write(log, *(message(str(number)) for number in range(5)))
    with connect_to(url) as other:
        other.execute("ALTER TABLE events DISABLE TRIGGER ALL")
        other.execute("UPDATE events SET user_id = 'eve' WHERE seq = 3")
        other.execute("ALTER TABLE events ENABLE TRIGGER ALL")
    (fault,) = verify_on(tmp_path, url, monkeypatch).faults
    assert (fault.kind, fault.seq) == ("changed", 3)


async def test_cancelling_the_caller_interrupts_a_read(url: str, tmp_path: Path) -> None:
    def sleep(view: View) -> None:
        list(view.select("SELECT pg_sleep(30)"))

    def sleeping() -> int:
        with connect_to(url) as other:
            sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
            return int(other.execute(sql).fetchone()[0])

    async def until(count: int) -> None:
        while await anyio.to_thread.run_sync(sleeping) != count:  # noqa: ASYNC110 - only the server knows
            await anyio.sleep(0.02)

    async with open_store_at(tmp_path, url, within_s=40) as log:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(log.read, sleep, within_s=60.0))
            await until(1)
            tasks.cancel_scope.cancel()
        await until(0)
        assert await log.read(View.head) == 0


# -- losses -----------------------------------------------------------------------------------------------------------


async def test_an_erasure_leaves_no_text_in_the_tables_of_the_server(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    async with open_store_at(tmp_path, url, within_s=30) as log:
        await write_each(log, [*Life("S-aaaaaa").all_events()])
        await write_texts(log, ["zeppelin " * 100])
        await index_new_entries(log)
        files = await anyio.to_thread.run_sync(partial(table_files, server, url))
        assert any(b"zeppelin zeppelin" in path.read_bytes() for path in files)

        def erase(db: Database) -> None:
            db.execute("UPDATE events SET content = NULL WHERE type = 'UserMessage'")
            db.execute("UPDATE words SET text = ''")

        await log.maintain(erase)
        assert await log.checkpoint(rewrite=True)
        files = await anyio.to_thread.run_sync(partial(table_files, server, url))
        assert files and not any(b"zeppelin zeppelin" in path.read_bytes() for path in files)


async def test_a_migration_on_a_server_keeps_a_copy_and_the_schema_is_as_expected(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store.Store.open(tmp_path, url) as log:
        await write_texts(log, ["a"])

    def novelty(db: Database) -> None:
        db.execute("CREATE TABLE novelty (a integer)")
        db.execute("CREATE INDEX novelty_a ON novelty (a)")

    version = become_newer(monkeypatch, novelty)
    on_server = PostgresBackend(tmp_path, url)
    copy = on_server.prepare(older=backend.OlderSchema.COPY_AND_MIGRATE)
    with contextlib.closing(on_server.connect(readonly=True)) as db:
        assert (db.schema_version(), on_server.schema_changes(db)) == (version, {})
    assert copy is not None
    schema = copy.split()[2]
    with connect_to(url) as other:
        other.execute("SELECT set_config('search_path', %s, false)", (schema,))
        assert other.execute("SELECT (SELECT count(*) FROM events), version FROM meta").fetchall() == [(1, version - 1)]


def test_the_server_of_the_tests_belongs_to_no_other_user(server: PostgresServer) -> None:
    assert server.data.stat().st_mode & 0o077 == 0
    assert os.environ.get("PGPASSWORD") is None
    assert locks.network_file_system(server.data) is None


async def test_a_repeated_search_is_always_planned_for_its_words(url: str, tmp_path: Path) -> None:
    async with store.Store.open(tmp_path, url) as log:
        await write_texts(log, [f"{'otter' if number % 90 == 0 else 'heron'} {number}" for number in range(600)])
        await index_new_entries(log)
        for _ in range(12):
            assert len((await search(log, LogQuery(search="otter"))).entries) == 7
        plans = "SELECT sum(generic_plans), sum(custom_plans) FROM pg_prepared_statements"
        searches = f"{plans} WHERE statement LIKE '% words %'"
        ((generic, custom),) = await log.read(lambda view: list(view.select(searches)))
    assert custom and not generic, "a plan for any word reads the whole table for a rare one"
