"""What a Postgres server may lose: connections, answers, itself, its disk, its log. No acknowledged entry is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from support.log import Life, message, run_who, write, write_each
from support.logs.cutting import all_entries
from support.logs.on_postgres import (
    WriteLoad,
    administer,
    append_copy,
    connect_to,
    cut_connections,
    lose_answer,
    lose_entries,
    mount,
    small_disk,
    verify_on,
)
from support.logs.store import open_store_at, stored_texts
from support.postgres import PostgresServer

from ava_audit.errors import LogForked, LogMoved, OutcomeUnknown, StoreUnavailable
from ava_audit.events import CostUpdate, Event
from ava_audit.postgres import server as postgres
from ava_audit.postgres import session
from ava_audit.postgres.backend import PostgresBackend
from ava_audit.store import store
from ava_audit.store.store import Outcome
from ava_audit.unlogged import unlogged_files
from ava_audit.view import View


async def test_reads_and_writes_go_on_after_all_connections_were_cut(url: str, tmp_path: Path) -> None:
    async with open_store_at(tmp_path, url) as log:
        await write(log, message("before"))
        assert await log.read(View.head) == 1
        for number in range(3):
            await anyio.to_thread.run_sync(cut_connections, url)
            assert await log.read(View.head) == number + 1
            await write(log, message(str(number)))
        assert await log.wait_for_entry_after(3) == 4
        assert await stored_texts(log) == ["before", "0", "1", "2"]


async def test_a_connection_that_is_cut_inside_a_transaction_writes_nothing_twice(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[int] = []

    def cutting(_view: View, _now: int) -> Outcome[int]:
        times.append(1)
        if len(times) == 1:
            cut_connections(url)
        return Outcome(len(times), (message("once"),))

    async with open_store_at(tmp_path, url) as log:
        assert await log.do(cutting) == 2, "it was rolled back, and run again"
        assert await stored_texts(log) == ["once"]
    assert verify_on(tmp_path, url, monkeypatch).ok


@pytest.mark.parametrize("done", [True, False], ids=["was done", "was not done"])
async def test_the_fate_of_a_commit_whose_answer_was_lost_is_found_out(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    async with open_store_at(tmp_path, url) as log:
        await write(log, message("before"))
        lose_answer(monkeypatch, url, done=done)
        # Not done: it runs once more. Done: it is acknowledged, and does not run again.
        await write(log, message("in doubt"))
        assert await stored_texts(log) == ["before", "in doubt"]
    assert verify_on(tmp_path, url, monkeypatch).ok


async def test_a_commit_whose_connection_the_server_ends_right_after_it_is_not_repeated(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave: Callable[[postgres.PostgresDatabase], None] = postgres.PostgresDatabase._leave
    ended: list[int] = []

    def ending(db: postgres.PostgresDatabase) -> None:
        if db._pipeline is not None and not ended:
            ended.append(1)
            with connect_to(url) as other:
                while other.execute("SELECT count(*) FROM ava.events").fetchone() != (2,):
                    time.sleep(0.01)
                cut_connections(url)
                while other.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() != (0,):
                    time.sleep(0.01)
        leave(db)

    async with open_store_at(tmp_path, url) as log:
        await write(log, message("before"))
        monkeypatch.setattr(postgres.PostgresDatabase, "_leave", ending)
        await write(log, message("once"))
        assert ended and await stored_texts(log) == ["before", "once"]
    assert verify_on(tmp_path, url, monkeypatch).ok


async def test_a_commit_whose_fate_nobody_can_tell_is_reported_as_unknown(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "SETTLE_S", 0.0)
    async with open_store_at(tmp_path, url) as log:
        await write(log, message("before"))
        lose_answer(monkeypatch, url, done=True)
        with pytest.raises(OutcomeUnknown, match="may or may not have been written"):
            await write(log, message("in doubt"))
        await write(log, message("after"))
        assert await stored_texts(log) == ["before", "in doubt", "after"]


@pytest.mark.slow
async def test_nothing_that_was_acknowledged_is_lost_while_the_server_crashes_again_and_again(
    server: PostgresServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        server.stop(signal.SIGQUIT)
        server.start()

    load = WriteLoad()
    async with open_store_at(tmp_path, url, within_s=90) as log:
        async with anyio.create_task_group() as tasks:
            for name in range(8):
                tasks.start_soon(load.write_texts, log, name)
            for _ in range(3):
                await anyio.sleep(0.7)
                crash()  # in this thread: the server ends with the thread that has started it
            await anyio.sleep(1.0)
            load.stop.set()
        texts = await stored_texts(log)
    assert len(load.acknowledged) > 50
    assert len(set(texts)) == len(texts), "nothing twice"
    assert set(load.acknowledged) <= set(texts), "nothing lost"
    assert set(texts) <= {*load.acknowledged, *load.unknown}, "nothing that was refused"
    assert verify_on(tmp_path, url, monkeypatch).ok


async def test_a_database_that_was_made_anew_is_noticed(url: str, tmp_path: Path) -> None:
    async with open_store_at(tmp_path, url) as log:
        await write(log, message("before"))
        with connect_to(url) as other:
            other.execute("UPDATE meta SET log_id = 'another'")
        with pytest.raises(LogMoved, match="another log than when this server started"):
            await write(log, message("a"))
        while log._moved is None:  # noqa: ASYNC110 - the store looks once a second
            await anyio.sleep(0.05)
        with pytest.raises(LogMoved):
            await log.read(View.head)


async def test_an_older_copy_of_the_log_is_noticed(url: str, tmp_path: Path) -> None:
    async with open_store_at(tmp_path, url) as log:
        await write(log, message("kept"), message("lost"))
        lose_entries(url, after=1)
        with pytest.raises(LogForked, match="an older copy of the log"):
            await write(log, message("a"))


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("cut", [True, False], ids=["new connections", "the same connections"])
async def test_a_log_that_lost_entries_is_refused_after_others_have_written_past_them(
    url: str, tmp_path: Path, cut: bool, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover to a server that was behind; a pooler may keep the connections of clients meanwhile."""
    roots = [tmp_path / name for name in ("old", "restarted")]
    for root in roots:
        root.mkdir()
    async with open_store_at(roots[0], url) as log:
        await write(log, message("kept"))
        for number in range(lost):
            await write(log, message(f"lost {number}"))
        others_wrote = threading.Event()
        compare_after(others_wrote, log, monkeypatch)
        lose_entries(url, after=1)
        async with open_store_at(roots[1], url) as restarted:
            if cut:
                await anyio.to_thread.run_sync(cut_connections, url)
            for number in range(lost + 2):
                await write(restarted, message(f"new {number}"))
            others_wrote.set()
            for _ in range(2):
                with pytest.raises(LogForked, match=r"number \d is another one.*restart this server"):
                    await write(log, message("by the old process"))
            while log._moved is None:  # noqa: ASYNC110 - the store looks once a second
                await anyio.sleep(0.05)
            with pytest.raises(LogForked):
                await log.read(View.head)
            assert log.forked and not restarted.forked
            await write(restarted, message("it goes on"))
    async with open_store_at(roots[0], url) as log:
        await write(log, message("after a restart"))
    report = verify_on(roots[0], url, monkeypatch)
    assert report.ok and report.entries == lost + 5


def compare_after(event: threading.Event, log: store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a store's look at the log, once a second, wait: before others write, entries are missing, not other ones."""
    assert isinstance(log._backend, PostgresBackend)
    meet = log._backend._place.meet

    def meet_after(conn: psycopg.Connection[Any]) -> None:
        assert event.wait(20)
        meet(conn)

    monkeypatch.setattr(log._backend._place, "meet", meet_after)


async def test_an_idle_process_notices_the_loss_of_what_others_have_told_it(url: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with open_store_at(tmp_path, url) as idle, open_store_at(tmp_path / "other", url) as other:
        await write(other, message("kept"))
        assert await idle.wait_for_entry_after(0) == 1
        await write(other, message("lost"))
        assert await idle.wait_for_entry_after(1) == 2
        assert isinstance(idle._backend, PostgresBackend)
        while idle._backend._place.newest[0] < 2:  # noqa: ASYNC110 - it compares once a second
            await anyio.sleep(0.05)
        lose_entries(url, after=1)
        with connect_to(url) as conn:
            append_copy(conn)
        await anyio.to_thread.run_sync(cut_connections, url)
        for log in (idle, other):
            while not log.forked:  # noqa: ASYNC110 - the store looks once a second
                await anyio.sleep(0.05)


async def test_a_process_whose_log_lost_entries_is_no_instance_of_it_any_more(url: str, tmp_path: Path) -> None:
    """Otherwise its runs would be nobody's and everybody would wait for it."""
    async with open_store_at(tmp_path, url) as log:
        instances = log.instances(tmp_path / "instances", 2.0)
        membership = await anyio.to_thread.run_sync(instances.join)
        await write(log, message("kept"), message("lost"))
        lose_entries(url, after=1)
        with pytest.raises(LogForked):
            await write(log, message("a"))
        with pytest.raises(LogForked):
            await anyio.to_thread.run_sync(membership.renew)
        while membership.holds():  # noqa: ASYNC110 - until its lease has ended
            await anyio.sleep(0.05)
        await anyio.to_thread.run_sync(membership.remove)


async def test_a_connection_to_a_replica_is_a_fault_that_passes(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica may be behind without having lost anything."""
    async with open_store_at(tmp_path, url) as log:
        await write(log, message("kept"))
        with monkeypatch.context() as patch:
            patch.setattr(session, "_MEETS", session._MEETS.replace("pg_is_in_recovery()", "true"))
            await anyio.to_thread.run_sync(cut_connections, url)
            with pytest.raises(StoreUnavailable, match=r"only reads.*address of the primary server"):
                await write(log, message("on the replica"))
            assert not log.forked
        await write(log, message("again"))


async def test_what_a_process_knows_of_paid_calls_that_its_log_lost_is_written_down(url: str, tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with open_store_at(tmp_path, url) as log:
        await write_each(log, life.all_events()[:-1])
        known = await all_entries(log)
        [settled] = [entry for entry in known if entry.type == "CostUpdate"]
        [reserved] = [entry for entry in known if entry.type == "CostReserved"]
        lose_entries(url, after=reserved.seq)
        with pytest.raises(LogForked):
            await write(log, message("a"))
        (file,) = unlogged_files(tmp_path)
        assert (file.lives, file.pid) == (True, os.getpid()) and "restart this server" in file.why
        [call] = file.calls
        assert (call.run, call.settlement, call.micros) == ("S-aaaaaa", "billed", settled.cost_micros)
        # A call whose answer comes afterwards has its settlement there too.
        fact = CostUpdate(turn=2, attempt=1, settlement="billed", tokens=5, cost_cents=0.02, reserved_micros=300)
        await log.note_unlogged(
            [Event(run_who(life.run_id), fact, life.run_id, cost_micros=200, model="p:m"), message("no call")]
        )
        (file,) = unlogged_files(tmp_path)
        assert [each.turn for each in file.calls] == [1, 2]
        assert file.spent_micros == call.micros + 200
    (file,) = unlogged_files(tmp_path)
    assert len(file.calls) == 2


async def test_a_reservation_that_was_lost_counts_as_a_call_in_flight(url: str, tmp_path: Path) -> None:
    async with open_store_at(tmp_path, url) as log:
        for event in Life("S-aaaaaa").all_events():
            await write(log, event)
            if event.fact.type == "CostReserved":
                break
        lose_entries(url, after=log.head - 1)
        with pytest.raises(LogForked):
            await write(log, message("a"))
        (file,) = unlogged_files(tmp_path)
    [call] = file.calls
    assert (call.settlement, file.spent_micros, file.held_micros) == ("in_flight", 0, call.micros) and call.micros > 0


@pytest.mark.slow
async def test_a_full_disk_is_refused_with_what_to_do_and_nothing_is_lost(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(server) as (url, disk), anyio.fail_after(60):
        async with store.Store.open(tmp_path, url) as log:
            dice, written = random.Random(1), 0
            with pytest.raises(StoreUnavailable, match=r"disk of the Postgres server is full.*free some space"):
                for _ in range(200):
                    await write(log, message(dice.randbytes(60_000).hex()))
                    written += 1
            assert written > 0 and log.head == written
            await anyio.to_thread.run_sync(mount, "-o", "remount,size=64m", str(disk))
            await write(log, message("after"))
            assert log.head == written + 1
        report = await anyio.to_thread.run_sync(verify_on, tmp_path, url, monkeypatch)
        assert report.ok and report.entries == written + 1


async def test_a_server_whose_full_disk_lets_nobody_connect_is_said_to_be_full(
    server: PostgresServer, tmp_path: Path
) -> None:
    """It writes a file with its catalog first, after any change of that; until then it refuses everybody."""
    with small_disk(server) as (url, disk), anyio.fail_after(60):
        async with store.Store.open(tmp_path, url) as log:
            await write(log, message("before"))
            for file in disk.rglob("pg_internal.init"):
                file.unlink()
            room = os.statvfs(disk)
            used = (room.f_blocks - room.f_bfree) * room.f_frsize
            await anyio.to_thread.run_sync(mount, "-o", f"remount,size={used}", str(disk))
            with administer(server) as conn:
                conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'small'")
            with pytest.raises(StoreUnavailable, match=r"disk of the Postgres server is full.*free some space"):
                await write(log, message("lost"))
            await anyio.to_thread.run_sync(mount, "-o", "remount,size=64m", str(disk))
            await write(log, message("after"))
            assert await stored_texts(log) == ["before", "after"]
