"""The log on a Postgres server: what the other tests of the store cannot ask of both databases."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.log import AVA, Life, plan_events, said, write, write_each, write_texts, writing
from support.logs.cutting import newer

from ava_audit.database import Busy, Database, FoundRows
from ava_audit.errors import DataRootRefused, LogMoved, OutcomeUnknown, SchemaNewer, StoreUnavailable
from ava_audit.events import AssistantMessage, Event
from ava_audit.maintenance import index_new_entries
from ava_audit.retention import coming_erasures
from ava_audit.rows import PastRun, RunFacts
from ava_audit.search import LogQuery, search
from ava_audit.store import backend, locks, sqlite, store
from ava_audit.store import store as stores
from ava_audit.store.store import Outcome
from ava_audit.totals import (
    EntryCounts,
    count_new_entries,
    current_runs,
    day_endings,
    run_sums,
    spending,
    start_waits,
    user_sums,
)
from ava_audit.transfer import export_log, import_log
from ava_audit.verify import verify
from ava_audit.view import RunOrder, RunPhase, View

psycopg = pytest.importorskip("psycopg", reason="the driver is not installed")

from support.postgres import PostgresServer, running_server  # noqa: E402

from ava_audit.postgres import backend as postgres_backend  # noqa: E402
from ava_audit.postgres import database as postgres  # noqa: E402
from ava_audit.postgres.backend import PostgresBackend  # noqa: E402

MEANWHILE_S = 20
GROUPS: tuple[RunPhase, ...] = ("waiting", "running", "ended")


@pytest.fixture
def server() -> Generator[PostgresServer]:
    """The server of the tests, and no database of another test on it."""
    server = running_server()
    yield server
    server.empty_databases()


@pytest.fixture
def url(server: PostgresServer, tmp_path: Path) -> str:
    return server.database(tmp_path)


@contextmanager
def asking(url: str) -> Iterator[Any]:
    """A connection of somebody else who knows the password."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("SET search_path = ava")
        yield conn


def all_texts(view: View) -> list[str]:
    entries = [view.entry(seq) for seq in range(1, view.head() + 1)]
    return [entry.fact.search_text() for entry in entries if entry is not None and entry.fact is not None]


def checked(root: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(backend.VARIABLE, url)
    return verify(root)


# -- opening ----------------------------------------------------------------------------------------------------------


async def refused(root: Path, url: str, kind: type[Exception], match: str) -> str:
    with anyio.fail_after(20), pytest.raises(kind, match=match) as caught:
        async with store.Store.open(root, url):
            pass
    return f"{caught.value}{caught.value.__cause__}"


async def test_a_wrong_password_is_refused_and_no_password_is_in_the_error(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    wrong = server.url(url.rpartition("/")[2], password="wr0ng-secret", tcp=True)
    text = await refused(tmp_path, wrong, StoreUnavailable, "password authentication failed.*check the address")
    assert "wr0ng-secret" not in text
    assert "wr0ng-secret" not in repr(PostgresBackend(tmp_path, wrong))
    assert not (tmp_path / backend.MARK).exists()


async def test_a_missing_database_and_a_missing_server_are_refused(server: PostgresServer, tmp_path: Path) -> None:
    text = await refused(tmp_path, server.url("nowhere"), StoreUnavailable, 'database "nowhere" does not exist')
    assert server.password not in text
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"postgresql://ava:s3cret@127.0.0.1:{taken.getsockname()[1]}/ava"
        text = await refused(tmp_path, url, StoreUnavailable, "cannot be opened.*check the address")
    assert "s3cret" not in text


async def test_an_invalid_address_is_refused_without_being_repeated(tmp_path: Path) -> None:
    text = await refused(tmp_path, "postgresql://ava:s3cret@[host/ava", DataRootRefused, "is invalid: give one such as")
    assert "s3cret" not in text


async def test_a_newer_schema_is_refused_and_left_as_it_is(url: str, tmp_path: Path) -> None:
    async with store.Store.open(tmp_path, url) as log:
        await write(log, said("a"))
    with asking(url) as other:
        other.execute("UPDATE meta SET version = 99")
    await refused(tmp_path, url, SchemaNewer, "has schema 99, this program knows")
    with asking(url) as other:
        assert other.execute("SELECT version, (SELECT count(*) FROM events) FROM meta").fetchone() == (99, 1)


async def test_stops_writing_after_a_newer_program_migrated_the_database(url: str, tmp_path: Path) -> None:
    with anyio.fail_after(40):
        async with store.Store.open(tmp_path, url) as log:
            await write(log, said("before"))
            with asking(url) as other:
                other.execute("UPDATE meta SET version = 99")
            with pytest.raises(SchemaNewer, match="restart"):
                await write(log, said("a"))
            assert await log.read(all_texts) == ["before"]


async def test_a_server_that_only_reads_is_refused(server: PostgresServer, url: str, tmp_path: Path) -> None:
    name = url.rpartition("/")[2]
    with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await refused(tmp_path, url, StoreUnavailable, "only reads.*address of the primary server")


async def test_a_clock_that_is_minutes_off_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 600)
    await refused(tmp_path, url, StoreUnavailable, "clock is 10 minutes behind the one of")
    monkeypatch.setattr(time, "time", lambda: real() + 300)
    await refused(tmp_path, url, StoreUnavailable, "clock is 5 minutes ahead of the one of")


async def test_a_user_without_rights_is_refused(server: PostgresServer, url: str, tmp_path: Path) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
        conn.execute("DROP ROLE IF EXISTS guest")
        conn.execute("CREATE ROLE guest LOGIN PASSWORD 'guest-word'")
    guest = server.url(url.rpartition("/")[2], user="guest", password="guest-word", tcp=True)
    await refused(tmp_path, guest, StoreUnavailable, "needs the right to create a schema")


async def test_a_second_data_root_joins_a_log_unless_it_has_one_of_its_own(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    one, other, third = (tmp_path / name for name in ("one", "other", "third"))
    for root in (one, other, third):
        root.mkdir()
    async with store.Store.open(one, url) as log, store.Store.open(other, url) as same:
        await write(log, said("a"))
        await write(same, said("b"))
        assert await log.read(View.head) == 2
    async with store.Store.open(third, server.database(third)):
        pass
    await refused(third, url, DataRootRefused, "has another log than the one that")


async def test_an_empty_database_is_refused_for_a_data_root_that_has_its_log_elsewhere(
    server: PostgresServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    embedded, moved = tmp_path / "embedded", tmp_path / "moved"
    embedded.mkdir()
    moved.mkdir()
    async with store.Store.open(embedded) as log:
        await write(log, said("a"))
    await refused(embedded, url, DataRootRefused, "has a log in ava.db: move it with `ava export`")
    async with store.Store.open(moved, url):
        pass
    await refused(moved, server.database(embedded), DataRootRefused, "is empty, but .* says that this data root has")
    with pytest.raises(DataRootRefused, match=r"the log of the data root .* is in Postgres: set AVA_DATABASE_URL"):
        async with store.Store.open(moved):
            pass


def test_a_missing_driver_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ava_audit.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DataRootRefused, match=r"A log in Postgres needs the extra postgres; .*install .*\[postgres\]'"):
        sqlite.backend_of(tmp_path, "postgresql://ava@localhost/ava")


async def test_two_processes_that_open_an_empty_database_at_once_make_one_log(url: str, tmp_path: Path) -> None:
    backends = [PostgresBackend(tmp_path, url) for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        for each in backends:
            tasks.start_soon(partial(anyio.to_thread.run_sync, each.prepare))
    with asking(url) as other:
        assert other.execute("SELECT count(*) FROM meta").fetchone() == (1,)


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
        await write(log, said("hello"), said("erased"))
        with asking(url) as other:
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
        await write(log, said("hello"))
    assert checked(tmp_path, url, monkeypatch).ok
    with asking(url) as other:
        other.execute(change)
    (fault,) = checked(tmp_path, url, monkeypatch).faults
    assert (fault.kind, found in fault.text) == ("schema", True), fault


async def test_verify_finds_a_changed_entry(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with store.Store.open(tmp_path, url) as log:
        await write(log, *(said(str(number)) for number in range(5)))
    with asking(url) as other:
        other.execute("ALTER TABLE events DISABLE TRIGGER ALL")
        other.execute("UPDATE events SET user_id = 'eve' WHERE seq = 3")
        other.execute("ALTER TABLE events ENABLE TRIGGER ALL")
    (fault,) = checked(tmp_path, url, monkeypatch).faults
    assert (fault.kind, fault.seq) == ("changed", 3)


async def test_waiting_commands_share_one_commit(url: str, tmp_path: Path) -> None:
    def transactions() -> int:
        with asking(url) as other:
            return int(other.execute("SELECT count(DISTINCT xmin::text) FROM events").fetchone()[0])

    go_on = threading.Event()

    def wait(_view: View, _now: int) -> Outcome[None]:
        go_on.wait(5)
        return Outcome(None)

    with anyio.fail_after(40):
        async with store.Store.open(tmp_path, url) as log:
            log.post(wait)
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(log.do, writing(said(str(number))))
                await anyio.sleep(0.1)
                go_on.set()
            assert await log.read(View.head) == 20
    assert transactions() <= 2


async def test_a_held_lock_fails_commands_but_not_reads(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "ANSWER_S", 0.3)
    with anyio.fail_after(40):
        async with store.Store.open(tmp_path, url) as log:
            with asking(url) as other:
                other.execute("SELECT pg_advisory_lock(%s)", (postgres.LOCK,))
                with pytest.raises(StoreUnavailable, match="another process writes; nothing was written"):
                    await write(log, said("given up"))
                assert await log.read(all_texts) == []
            monkeypatch.setattr(stores, "ANSWER_S", 5.0)
            await write(log, said("after"))
            assert await log.read(all_texts) == ["after"]


@pytest.mark.parametrize("before", range(4, 8))
def test_a_statement_that_was_skipped_while_another_process_wrote_is_known_afterwards(
    url: str, tmp_path: Path, before: int
) -> None:
    backend = PostgresBackend(tmp_path, url)
    backend.prepare()
    with contextlib.closing(backend.connect()) as db, asking(url) as other:
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
        assert wake.wait(MEANWHILE_S)
        return Outcome(None, (said("stopped"),))

    with anyio.fail_after(MEANWHILE_S):
        async with store.Store.open(tmp_path / "one", url) as one, store.Store.open(tmp_path / "two", url) as two:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.do, stopping)
                assert await anyio.to_thread.run_sync(inside.wait, MEANWHILE_S)
                await write(two, said("other"))
                wake.set()
            assert await two.read(all_texts) == ["other", "stopped"]
    assert checked(tmp_path / "two", url, monkeypatch).ok


async def test_cancelling_the_caller_interrupts_a_read(url: str, tmp_path: Path) -> None:
    def sleep(view: View) -> None:
        list(view.select("SELECT pg_sleep(30)"))

    def sleeping() -> int:
        with asking(url) as other:
            sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
            return int(other.execute(sql).fetchone()[0])

    async def until(count: int) -> None:
        while await anyio.to_thread.run_sync(sleeping) != count:  # noqa: ASYNC110 - only the server knows
            await anyio.sleep(0.02)

    with anyio.fail_after(40):
        async with store.Store.open(tmp_path, url) as log:
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
                await write(other, said(str(number)))
                assert await log.wait_for_entry_after(number) >= number + 1


async def test_polls_when_nothing_tells_of_an_entry(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_backend, "POLL_S", 0.1)
    monkeypatch.setattr(postgres, "CHANNEL", "elsewhere")
    with anyio.fail_after(40):
        async with store.Store.open(tmp_path, url) as log:
            await anyio.sleep(0.2)
            monkeypatch.setattr(postgres, "CHANNEL", "nowhere")
            async with store.Store.open(tmp_path, url) as other:
                await write(other, said("unheard"))
                assert await log.wait_for_entry_after(0) == 1


async def test_a_told_commit_is_not_asked_for_and_an_untold_one_is_found(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asks(_query: object) -> None:
        raise AssertionError("the log was asked")

    async with store.Store.open(tmp_path, url) as log, store.Store.open(tmp_path, url) as other:
        await anyio.sleep(0.2)  # both listen now
        for number in range(3):
            await write(other, said("told"))
            assert await log.wait_for_entry_after(number) == number + 1
        with monkeypatch.context() as patched:
            patched.setattr(log, "look", asks)
            assert await log.any_after(0, ["UserMessage"]) and not await log.any_after(0, ["SpawnDecided"])
            assert not await log.any_after(3, ["UserMessage"])
        with monkeypatch.context() as patched:
            patched.setattr(postgres, "CHANNEL", "nowhere")
            await write(other, Event(AVA, AssistantMessage(text="untold", turn=1)))
        await write(log, said("told by itself"))
        assert log.head == 5 and await log.any_after(3, ["AssistantMessage"])
        with asking(url) as older:  # tells no types
            older.execute(f"SELECT pg_notify('{postgres.CHANNEL}', '6')")
        assert await log.wait_for_entry_after(5) == 6
        with monkeypatch.context() as patched:
            patched.setattr(log, "look", asks)
            with pytest.raises(AssertionError, match="asked"):
                await log.any_after(5, ["AssistantMessage"])


# -- losses -----------------------------------------------------------------------------------------------------------


def cut(url: str) -> None:
    """End all connections to a database, as a restart of the server does."""
    with asking(url) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_reads_and_writes_go_on_after_all_connections_were_cut(url: str, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with store.Store.open(tmp_path, url) as log:
            await write(log, said("before"))
            assert await log.read(View.head) == 1
            for number in range(3):
                await anyio.to_thread.run_sync(cut, url)
                assert await log.read(View.head) == number + 1
                await write(log, said(str(number)))
            assert await log.wait_for_entry_after(3) == 4
            assert await log.read(all_texts) == ["before", "0", "1", "2"]


async def test_a_connection_that_is_cut_inside_a_transaction_writes_nothing_twice(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[int] = []

    def cutting(_view: View, _now: int) -> Outcome[int]:
        times.append(1)
        if len(times) == 1:
            cut(url)
        return Outcome(len(times), (said("once"),))

    with anyio.fail_after(20):
        async with store.Store.open(tmp_path, url) as log:
            assert await log.do(cutting) == 2, "it was rolled back, and run again"
            assert await log.read(all_texts) == ["once"]
    assert checked(tmp_path, url, monkeypatch).ok


@pytest.mark.parametrize("done", [True, False], ids=["was done", "was not done"])
async def test_the_fate_of_a_commit_whose_answer_was_lost_is_found_out(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    with anyio.fail_after(MEANWHILE_S):
        async with store.Store.open(tmp_path, url) as log:
            await write(log, said("before"))
            lose_answer(monkeypatch, url, done=done)
            # Not done: it runs once more. Done: it is acknowledged, and does not run again.
            await write(log, said("in doubt"))
            assert await log.read(all_texts) == ["before", "in doubt"]
    assert checked(tmp_path, url, monkeypatch).ok


async def test_a_commit_whose_connection_the_server_ends_right_after_it_is_not_repeated(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave: Callable[[postgres.PostgresDatabase], None] = postgres.PostgresDatabase._leave
    ended: list[int] = []

    def ending(db: postgres.PostgresDatabase) -> None:
        if db._pipeline is not None and not ended:
            ended.append(1)
            with asking(url) as other:
                while other.execute("SELECT count(*) FROM ava.events").fetchone() != (2,):
                    time.sleep(0.01)
                cut(url)
                while other.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() != (0,):
                    time.sleep(0.01)
        leave(db)

    with anyio.fail_after(MEANWHILE_S):
        async with store.Store.open(tmp_path, url) as log:
            await write(log, said("before"))
            monkeypatch.setattr(postgres.PostgresDatabase, "_leave", ending)
            await write(log, said("once"))
            assert ended and await log.read(all_texts) == ["before", "once"]
    assert checked(tmp_path, url, monkeypatch).ok


async def test_a_commit_whose_fate_nobody_can_tell_is_reported_as_unknown(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "SETTLE_S", 0.0)
    with anyio.fail_after(MEANWHILE_S):
        async with store.Store.open(tmp_path, url) as log:
            await write(log, said("before"))
            lose_answer(monkeypatch, url, done=True)
            with pytest.raises(OutcomeUnknown, match="may or may not have been written"):
                await write(log, said("in doubt"))
            await write(log, said("after"))
            assert await log.read(all_texts) == ["before", "in doubt", "after"]


def lose_answer(monkeypatch: pytest.MonkeyPatch, url: str, *, done: bool) -> None:
    """Cut the connection once, where a commit is sent: before it arrives, or before its answer does."""
    leave: Callable[[postgres.PostgresDatabase], None] = postgres.PostgresDatabase._leave
    monkeypatch.setattr(postgres, "COMMIT", "COMMIT" if done else "ROLLBACK")
    lost: list[int] = []

    def losing(db: postgres.PostgresDatabase) -> None:
        sent = db._pipeline is not None and not lost
        leave(db)
        if sent:
            lost.append(1)
            monkeypatch.setattr(postgres, "COMMIT", "COMMIT")
            cut(url)
            assert db._conn is not None
            db._conn.close()
            raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(postgres.PostgresDatabase, "_leave", losing)


@pytest.mark.slow
async def test_nothing_that_was_acknowledged_is_lost_while_the_server_crashes_again_and_again(
    server: PostgresServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged: list[str] = []
    unknown: list[str] = []
    stop = anyio.Event()

    async def produce(log: store.Store, name: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            text = f"{name} {number}"
            try:
                await write(log, said(text))
            except OutcomeUnknown:
                unknown.append(text)
            except StoreUnavailable as error:
                assert "written" in str(error)
            else:
                acknowledged.append(text)
            await anyio.sleep(0.001)

    def crash() -> None:
        server.stop(signal.SIGQUIT)
        server.start()

    with anyio.fail_after(90):
        async with store.Store.open(tmp_path, url) as log:
            async with anyio.create_task_group() as tasks:
                for name in range(8):
                    tasks.start_soon(produce, log, name)
                for _ in range(3):
                    await anyio.sleep(0.7)
                    crash()  # in this thread: the server ends with the thread that has started it
                await anyio.sleep(1.0)
                stop.set()
            texts = await log.read(all_texts)
    assert len(acknowledged) > 50
    assert len(set(texts)) == len(texts), "nothing twice"
    assert set(acknowledged) <= set(texts), "nothing lost"
    assert set(texts) <= {*acknowledged, *unknown}, "nothing that was refused"
    assert checked(tmp_path, url, monkeypatch).ok


async def test_a_database_that_was_made_anew_is_noticed(url: str, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with store.Store.open(tmp_path, url) as log:
            await write(log, said("before"))
            with asking(url) as other:
                other.execute("UPDATE meta SET log_id = 'another'")
            with pytest.raises(LogMoved, match="another log than when this server started"):
                await write(log, said("a"))
            while log._moved is None:  # noqa: ASYNC110 - the store looks once a second
                await anyio.sleep(0.05)
            with pytest.raises(LogMoved):
                await log.read(View.head)


async def test_an_older_copy_of_the_log_is_noticed(url: str, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with store.Store.open(tmp_path, url) as log:
            await write(log, said("kept"), said("lost"))
            with asking(url) as other:
                other.execute("ALTER TABLE events DISABLE TRIGGER ALL")
                other.execute("DELETE FROM events WHERE seq = 2")
                other.execute("ALTER TABLE events ENABLE TRIGGER ALL")
            with pytest.raises(LogMoved, match="an older copy of the log"):
                await write(log, said("a"))


@contextmanager
def small_disk(server: PostgresServer) -> Iterator[tuple[str, Path]]:
    """A database on a disk of a few megabytes; yields its address and where the disk is."""
    folder = server.folder_of_its_own("small")
    try:
        mount("-t", "tmpfs", "-o", "size=14m", "none", str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        place = server.folder_of_its_own("small/space")
        with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
            conn.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
            conn.execute("CREATE DATABASE small TABLESPACE small")
            yield server.url("small"), folder
            conn.execute("DROP DATABASE small WITH (FORCE)")
            conn.execute("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "-l", folder], check=True, capture_output=True, timeout=20)


def mount(*args: str) -> None:
    subprocess.run(["mount", *args], check=True, capture_output=True, timeout=20)


@pytest.mark.slow
async def test_a_full_disk_is_refused_with_what_to_do_and_nothing_is_lost(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(server) as (url, disk), anyio.fail_after(60):
        async with store.Store.open(tmp_path, url) as log:
            dice, written = random.Random(1), 0
            with pytest.raises(StoreUnavailable, match=r"disk of the Postgres server is full.*free some space"):
                for _ in range(200):
                    await write(log, said(dice.randbytes(60_000).hex()))
                    written += 1
            assert written > 0 and log.head == written
            await anyio.to_thread.run_sync(mount, "-o", "remount,size=64m", str(disk))
            await write(log, said("after"))
            assert log.head == written + 1
        report = await anyio.to_thread.run_sync(checked, tmp_path, url, monkeypatch)
        assert report.ok and report.entries == written + 1


async def test_an_erasure_leaves_no_text_in_the_tables_of_the_server(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    with anyio.fail_after(30):
        async with store.Store.open(tmp_path, url) as log:
            await write_each(log, [*Life("S-aaaaaa").whole()])
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


def table_files(server: PostgresServer, url: str) -> list[Path]:
    """The files of the tables with text, as they are on the disk."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CHECKPOINT")
        sql = "SELECT pg_relation_filepath(name::regclass) FROM unnest(%s::text[]) AS name"
        return [server.data / path for (path,) in conn.execute(sql, (["ava.events", "ava.words"],))]


def test_the_tables_are_the_same_as_in_the_embedded_database(url: str, tmp_path: Path) -> None:
    from ava_audit.store.schema import open_in_memory

    PostgresBackend(tmp_path, url).prepare()
    embedded = open_in_memory()
    tables = ("events", "proposals", "runs", "configs", "plans", "budgets", "live", "progress", "mirrored")
    with asking(url) as other:
        for table in tables:
            here = {row[1] for row in embedded.execute(f"PRAGMA table_info({table})")}
            sql = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'ava' AND table_name = %s"
            assert {name for (name,) in other.execute(sql, (table,))} == here, table
    embedded.close()


async def test_a_migration_on_a_server_keeps_a_copy_and_the_schema_is_as_expected(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores.Store.open(tmp_path, url) as log:
        await write_texts(log, ["a"])

    def novelty(db: Database) -> None:
        db.execute("CREATE TABLE novelty (a integer)")
        db.execute("CREATE INDEX novelty_a ON novelty (a)")

    version = newer(monkeypatch, novelty)
    on_server = PostgresBackend(tmp_path, url)
    copy = on_server.prepare(older=backend.OlderSchema.COPY_AND_MIGRATE)
    with contextlib.closing(on_server.connect(readonly=True)) as db:
        assert (db.schema_version(), on_server.schema_changes(db)) == (version, {})
    assert copy is not None
    schema = copy.split()[2]
    with asking(url) as other:
        other.execute("SELECT set_config('search_path', %s, false)", (schema,))
        assert other.execute("SELECT (SELECT count(*) FROM events), version FROM meta").fetchall() == [(1, version - 1)]


def test_the_server_of_the_tests_belongs_to_no_other_user(server: PostgresServer) -> None:
    assert server.data.stat().st_mode & 0o077 == 0
    assert os.environ.get("PGPASSWORD") is None
    assert locks.network_file_system(server.data) is None


NOW = 2**52
ORDERS: tuple[tuple[RunOrder, int | str], ...] = (
    ("oldest", 0),
    ("cost", NOW),
    ("time", NOW),
    ("role", "a"),
    ("state", "a"),
)
"""Orders of the list, each with a value of its column that a page can end with."""
QUERIES: dict[str, Callable[[View], object]] = {
    "run": lambda view: view.run("S-aaaaaa"),
    "unended of others": lambda view: view.unended_of_others("eve", 0),
    "runs": lambda view: view.runs(user="ben", states=("success", "running"), ended_since_us=1, limit=-1),
    "newest runs": lambda view: [view.newest_runs(group, NOW, user="ben") for group in (None, *GROUPS)],
    "newest runs of a page": lambda view: view.newest_runs("ended", NOW, role="researcher", before=(NOW, "S-z")),
    "ordered runs": lambda view: [
        (
            view.newest_runs(None, NOW, replaced=False, order=order),
            view.newest_runs("failed", NOW, user="ben", order=order, before=(NOW, "S-z"), value=value),
        )
        for order, value in ORDERS
    ],
    "roles": lambda view: (view.roles(None), view.roles("ben"), view.roles("eve")),
    "running": lambda view: view.running(),
    "past runs": lambda view: [
        [replace(run, active_us=0) for run in view.past_runs("ben", "researcher", model, ("success",), 9, ("the ",))]
        for model in ("test:model", "other:model")
    ],
    "ended runs": lambda view: [
        [replace(run, active_us=0) for run in view.ended_runs(PastRun, 0, NOW)],
        list(view.ended_runs(RunFacts, 0, NOW, "ben")),
    ],
    "run facts": lambda view: (view.run_facts("S-aaaaaa"), view.run_facts("S-none")),
    "users": lambda view: view.users(),
    "changed": lambda view: sorted(view.changed_after(3, ("RunEnded", "RunClaimed"))),
    "unfetched": lambda view: view.unfetched("ben"),
    "proposal": lambda view: view.proposal("P-aaaaaa00"),
    "group": lambda view: (view.plan_caps("G-1"), view.plan_runs("G-1")),
    "bucket": lambda view: view.bucket("run:S-aaaaaa"),
    "approved": lambda view: view.approved_over("host_call", "ben", 0),
    "task id": lambda view: view.with_task_id("ben", "task"),
    "live": lambda view: view.live("S-aaaaaa"),
    "entries": lambda view: (view.entries("S-aaaaaa"), view.entries("S-aaaaaa", 3, ("ToolCall", "ToolResult"))),
    "pages of entries": lambda view: (view.newer_entries("S-aaaaaa", 2, 3), view.older_entries("S-aaaaaa", 9, 3)),
    "count": lambda view: view.count_entries("S-aaaaaa", 4),
    "rare": lambda view: view.rare_entries("S-aaaaaa", ("RunEnded",)),
    "of a type": lambda view: (view.of_type("CostUpdate"), view.newest(("RunEnded",)), view.last_erasure()),
    "last": lambda view: view.last_entry("S-aaaaaa", "ToolCall", own=True),
    "newest": lambda view: view.newest_entries("S-aaaaaa", ("ToolCall", "ToolResult"), 1),
    "times": lambda view: (view.newest_before(NOW), view.last_older(NOW, 9), view.seq_bounds(0, NOW), view.span("ava")),
    "progress": lambda view: (view.progress("words"), view.mirrored(), view.mirrored_size("none")),
    "rows": lambda view: list(view.rows("content LIKE ? AND seq < ?", "%LOOK it up%", 99, limit=5)),
    "endings of days": lambda view: (sorted(day_endings(view, 0, NOW), key=str), day_endings(view, 0, NOW, "eve")),
    "coming erasures": lambda view: (coming_erasures(view, 0, 30, 3), coming_erasures(view, 0, 30, 3, "ben")),
    "spending": lambda view: (spending(view, 0, NOW), spending(view, 0, NOW, "ben"), spending(view, 0, NOW, "eve")),
    "sums": lambda view: (
        sorted(map(str, run_sums(view))),
        sorted(map(str, user_sums(view))),
        current_runs(view, 0),
        start_waits(view, (1, 10**9)),
    ),
    "tally": lambda view: count_new_entries(view, EntryCounts(0)),
}


@pytest.fixture
def both(server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two data roots with the same log: one in ava.db, one in Postgres."""
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "log.jsonl"

    async def fill() -> None:
        async with store.Store.open(here, "") as log:
            over = Life("S-aaaaaa")
            overrun = (over.reserved(2), over.settled(cost=9_000), over.reserved(3), over.settled(unknown=True))
            begun = [*plan_events("G-1", 900_000), over.proposed(task_id="task"), over.task(), over.decided("G-1")]
            begun.append(over.claimed())
            steps = [over.reserved(), over.settled(), *overrun, *over.tool(success=False), over.failed("\x00?")]
            await write_each(log, [*begun, *steps, over.failed(), *over.ended()])
            alone = Life("S-dddddd")
            await write_each(log, [*alone.begun(), *alone.ended(), *Life("S-bbbbbb", "eve").begun()])
            await write_each(log, [Life("S-cccccc").proposed()])
            with file.open("wb") as lines:
                await export_log(log, lines, lambda _done, _of: None)

    here.mkdir()
    there.mkdir()
    anyio.run(fill)
    with file.open("rb") as lines:
        assert import_log(
            PostgresBackend(there, server.database(there)), lines, lambda _done, _of: None, lambda *_: Outcome(None)
        ).report.ok
    return here, there


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_answers_the_same_on_both(server: PostgresServer, both: tuple[Path, Path], name: str) -> None:
    here, there = both

    def answer(root: Path, url: str) -> object:
        with contextlib.closing(sqlite.backend_of(root, url).connect(readonly=True)) as db:
            db.begin_read()
            return QUERIES[name](View(db))

    found = answer(there, server.database(there))
    assert found == answer(here, "")
    assert str(found) not in ("None", "[]", "()", "{}", "0") or name in ("live", "task id"), "it must find something"


def test_both_tell_their_size_on_the_disk(server: PostgresServer, both: tuple[Path, Path]) -> None:
    here, there = both

    def sizes(root: Path, url: str) -> dict[str, int]:
        with contextlib.closing(sqlite.backend_of(root, url).connect(readonly=True)) as db:
            db.begin_read()
            return View(db).sizes()

    wal = here / "ava.db-wal"
    files = {"database": (here / "ava.db").stat().st_size, "write_ahead_log": wal.stat().st_size if wal.exists() else 0}
    assert sizes(here, "") == files and files["database"] > 0
    assert list(sizes(there, server.database(there))) == ["database"]
    assert sizes(there, server.database(there))["database"] > 1_000_000, "the catalogs of a new database alone are more"


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
