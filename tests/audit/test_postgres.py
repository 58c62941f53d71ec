"""The log on a Postgres server: what the other tests of the store cannot ask of both databases."""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.log import AVA, Life, message, write, write_command, write_each, write_texts
from support.logs.cutting import become_newer
from support.logs.on_postgres import connect_to, psycopg, table_files, verify_on
from support.logs.store import open_store_at, stored_texts
from support.postgres import PostgresServer

from ava_audit.database import Busy, Database, FoundRows
from ava_audit.errors import StoreUnavailable
from ava_audit.events import AssistantMessage, Event
from ava_audit.maintenance import index_new_entries
from ava_audit.postgres import backend as postgres_backend
from ava_audit.postgres import database as postgres
from ava_audit.postgres.backend import PostgresBackend
from ava_audit.search import LogQuery, search
from ava_audit.store import backend, locks, store
from ava_audit.store.store import Outcome
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


async def test_waiting_commands_share_one_commit(url: str, tmp_path: Path) -> None:
    def transactions() -> int:
        with connect_to(url) as other:
            return int(other.execute("SELECT count(DISTINCT xmin::text) FROM events").fetchone()[0])

    go_on = threading.Event()

    def wait(_view: View, _now: int) -> Outcome[None]:
        go_on.wait(5)
        return Outcome(None)

    async with open_store_at(tmp_path, url, within_s=40) as log:
        log.post(wait)
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(log.do, write_command(message(str(number))))
            await anyio.sleep(0.1)
            go_on.set()
        assert await log.read(View.head) == 20
    assert transactions() <= 2


async def test_a_held_lock_fails_commands_but_not_reads(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ANSWER_S", 0.3)
    async with open_store_at(tmp_path, url, within_s=40) as log:
        with connect_to(url) as other:
            other.execute("SELECT pg_advisory_lock(%s)", (postgres.LOCK,))
            with pytest.raises(StoreUnavailable, match="another process writes; nothing was written"):
                await write(log, message("given up"))
            assert await stored_texts(log) == []
        monkeypatch.setattr(store, "ANSWER_S", 5.0)
        await write(log, message("after"))
        assert await stored_texts(log) == ["after"]


@pytest.mark.parametrize("before", range(4, 8))
def test_a_statement_that_was_skipped_while_another_process_wrote_is_known_afterwards(
    url: str, tmp_path: Path, before: int
) -> None:
    backend = PostgresBackend(tmp_path, url)
    backend.prepare()
    with contextlib.closing(backend.connect()) as db, connect_to(url) as other:
        several = "SELECT id FROM runs WHERE id IN (?, ?)"

        def look() -> list[Any]:
            found: list[FoundRows] = []
            db.begin_write(lambda: found.append(db.execute(several, ("S-aaaaaa", "S-bbbbbb"))))
            try:
                return found[0].fetchall()
            finally:
                db.rollback()

        for _ in range(before):  # the driver prepares what it has sent some times
            assert look() == []
        other.execute("SELECT pg_advisory_lock(%s)", (postgres.LOCK,))
        with pytest.raises(Busy):
            look()
        other.execute("SELECT pg_advisory_unlock(%s)", (postgres.LOCK,))
        assert look() == []


async def test_a_process_that_stops_inside_a_transaction_keeps_others_from_writing_for_a_moment_only(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "HELD_S", 1.0)
    inside, wake = threading.Event(), threading.Event()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    def stopping(_view: View, _now: int) -> Outcome[None]:
        inside.set()
        assert wake.wait(20)
        return Outcome(None, (message("stopped"),))

    with anyio.fail_after(20):
        async with store.Store.open(tmp_path / "one", url) as one, store.Store.open(tmp_path / "two", url) as two:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.do, stopping)
                assert await anyio.to_thread.run_sync(inside.wait, 20)
                await write(two, message("other"))
                wake.set()
            assert await stored_texts(two) == ["other", "stopped"]
    assert verify_on(tmp_path / "two", url, monkeypatch).ok


async def test_a_process_that_stops_inside_a_transaction_keeps_others_from_opening_the_log_for_a_moment_only(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "HELD_S", 1.0)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    async with store.Store.open(tmp_path / "one", url) as one:
        await write(one, message("before"))
        with connect_to(url) as stopped:
            stopped.execute("BEGIN")
            stopped.execute("SELECT pg_advisory_xact_lock(%s)", (postgres.LOCK,))
            with anyio.fail_after(20):
                async with store.Store.open(tmp_path / "two", url) as two:
                    assert await stored_texts(two) == ["before"]
            with pytest.raises(psycopg.OperationalError, match="terminating connection"):
                stopped.execute("COMMIT")


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


async def test_hears_of_an_entry_of_another_process_without_polling(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_backend, "POLL_S", 60.0)
    with anyio.fail_after(40):
        async with store.Store.open(tmp_path, url) as log, store.Store.open(tmp_path, url) as other:
            await anyio.sleep(0.2)  # both listen now
            for number in range(20):
                await write(other, message(str(number)))
                assert await log.wait_for_entry_after(number) >= number + 1


async def test_polls_when_nothing_tells_of_an_entry(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_backend, "POLL_S", 0.1)
    monkeypatch.setattr(postgres, "CHANNEL", "elsewhere")
    async with open_store_at(tmp_path, url, within_s=40) as log:
        await anyio.sleep(0.2)
        monkeypatch.setattr(postgres, "CHANNEL", "nowhere")
        async with store.Store.open(tmp_path, url) as other:
            await write(other, message("unheard"))
            assert await log.wait_for_entry_after(0) == 1


async def test_a_told_commit_is_not_asked_for_and_an_untold_one_is_found(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asks(_query: object) -> None:
        raise AssertionError("the log was asked")

    async with store.Store.open(tmp_path, url) as log, store.Store.open(tmp_path, url) as other:
        await anyio.sleep(0.2)  # both listen now
        for number in range(3):
            await write(other, message("told"))
            assert await log.wait_for_entry_after(number) == number + 1
        with monkeypatch.context() as patched:
            patched.setattr(log, "look", asks)
            assert await log.any_after(0, ["UserMessage"]) and not await log.any_after(0, ["SpawnDecided"])
            assert not await log.any_after(3, ["UserMessage"])
        with monkeypatch.context() as patched:
            patched.setattr(postgres, "CHANNEL", "nowhere")
            await write(other, Event(AVA, AssistantMessage(text="untold", turn=1)))
        await write(log, message("told by itself"))
        assert log.head == 5 and await log.any_after(3, ["AssistantMessage"])
        with connect_to(url) as older:  # tells no types
            older.execute(f"SELECT pg_notify('{postgres.CHANNEL}', '6')")
        assert await log.wait_for_entry_after(5) == 6
        with monkeypatch.context() as patched:
            patched.setattr(log, "look", asks)
            with pytest.raises(AssertionError, match="asked"):
                await log.any_after(5, ["AssistantMessage"])


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
