"""Writers of a log on a Postgres server: one at a time, none for long, and what each hears of the others."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.log import AVA, message, write, write_command
from support.logs.on_postgres import connect_to, psycopg, verify_on
from support.logs.store import open_store_at, stored_texts

from ava_audit.database import Busy, FoundRows
from ava_audit.errors import StoreUnavailable
from ava_audit.events import AssistantMessage, Event
from ava_audit.postgres import backend as postgres_backend
from ava_audit.postgres import server as postgres
from ava_audit.postgres.backend import PostgresBackend
from ava_audit.store import store
from ava_audit.store.store import Outcome
from ava_audit.view import View


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
