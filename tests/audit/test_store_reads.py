"""Reading the store: in threads and at once, beside others who write, and until somebody cancels."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from support.log import AVA, message, write, write_texts

from ava_audit.errors import LogMoved, StoreUnavailable
from ava_audit.events import AssistantMessage, Event
from ava_audit.maintenance import index_new_entries
from ava_audit.search import LogQuery, search
from ava_audit.store import store
from ava_audit.store.store import Store
from ava_audit.view import View


@pytest.mark.sqlite_only("a function of SQLite that never ends")
async def test_cancelling_the_caller_interrupts_a_read(tmp_path: Path) -> None:
    for_ever = "WITH RECURSIVE n (i) AS (SELECT begun() UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    begun, ended = threading.Event(), threading.Event()

    def begins() -> int:
        begun.set()
        return 1

    def count(view: View) -> None:
        assert isinstance(view._db, sqlite3.Connection)
        view._db.create_function("begun", 0, begins)
        try:
            list(view.select(for_ever))
        finally:
            ended.set()

    with anyio.fail_after(40):
        async with Store.open(tmp_path) as log, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(log.read, count, within_s=60.0))
            assert await anyio.to_thread.run_sync(begun.wait, 4)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                assert await anyio.to_thread.run_sync(ended.wait, 4)
        async with Store.open(tmp_path) as log:
            assert await log.read(View.head) == 0


def thread_of_read(view: View) -> int:
    view.head()
    return threading.get_ident()


async def test_a_look_is_done_at_once_where_that_is_quick(tmp_path: Path, database: str) -> None:
    def slow(view: View) -> None:
        view.head()
        time.sleep(2 * store.LOOK_S)  # a slow disk

    async with Store.open(tmp_path) as log:
        here = threading.get_ident()
        await log.read(View.head)  # a connection is at hand
        assert await log.read(thread_of_read) != here
        if database == "postgres":  # it may be far away
            assert await log.look(thread_of_read) != here
            return
        assert await log.look(thread_of_read) == here
        await log.look(slow)
        assert await log.look(thread_of_read) != here
        with anyio.fail_after(20):
            while await log.look(thread_of_read) != here:  # noqa: ASYNC110
                await anyio.sleep(0.05)


async def test_a_task_that_only_looks_lets_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOOK_S", 60.0)  # no look goes to a thread
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with Store.open(tmp_path) as log, anyio.create_task_group() as tasks:
        await log.read(View.head)
        tasks.start_soon(other)
        for _ in range(10 * store.LOOKS):
            await log.look(View.head)
        assert turns >= 8
        tasks.cancel_scope.cancel()


async def test_a_look_sees_what_was_acknowledged_and_frees_its_connection(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as log:
        await log.read(View.head)
        for number in range(1, 20):
            await write(log, message(f"answer {number}"))
            assert await log.look(View.head) == log.head
        assert await log.checkpoint(), "no look holds a part of the write-ahead log"


async def test_a_look_that_fails_says_what_a_read_says(tmp_path: Path) -> None:
    def wrong(view: View) -> None:
        list(view.select("SELECT nonsense FROM events"))

    async with Store.open(tmp_path) as log:
        await log.read(View.head)
        with pytest.raises(StoreUnavailable) as read:
            await log.read(wrong)
        with pytest.raises(StoreUnavailable) as looked:
            await log.look(wrong)
        assert str(looked.value) == str(read.value)
        assert await log.look(View.head) == log.head
    with pytest.raises(StoreUnavailable, match="closed"):
        await log.look(View.head)


async def test_what_was_told_of_commits_is_what_the_log_has(tmp_path: Path) -> None:
    dice = random.Random(11)
    types = ("UserMessage", "AssistantMessage", "SpawnDecided")
    async with Store.open(tmp_path) as log, Store.open(tmp_path) as other:
        for number in range(60):
            writer = dice.choice((log, other))
            await write(writer, dice.choice((message(str(number)), Event(AVA, AssistantMessage(text="x", turn=1)))))
            if dice.random() < 0.5:
                continue
            newest = await log.wait_for_entry_after(await log.read(View.head) - 1)
            for seq in range(max(0, newest - 8), newest + 1):
                asked = dice.sample(types, dice.randint(1, 3))
                found = await log.read(partial(View.any_after, seq=seq, types=asked))
                assert await log.any_after(seq, asked) == found


COUNT_FAR = (
    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 300000)"
    " SELECT count(*) FROM numbers"
)


async def test_a_short_read_that_takes_longer_starts_again_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    monkeypatch.setattr(store, "LOOK_S", 0.002)
    monkeypatch.setattr(store, "THREADS_FOR", 10_000)  # on a busy machine, the thread takes long
    threads: list[int] = []

    def count(view: View) -> int:
        threads.append(threading.get_ident())
        return int(next(view.select(COUNT_FAR))[0])

    async with Store.open(tmp_path) as log:
        if database == "sqlite":
            log._readers._threads_until = 0.0  # opening the log was slow on a busy machine
        assert await log.read(count, short=True, within_s=60) == 300_000
        here = threading.get_ident()
        assert [thread == here for thread in threads] == ([True, False] if database == "sqlite" else [False])
        threads.clear()
        assert await log.read(count, short=True) == 300_000
        assert threads != [] and here not in threads, "it was slow just now, and no statement is stopped any more"


@pytest.mark.sqlite_only("Postgres is asked in threads")
async def test_a_search_of_a_page_needs_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOOK_S", 60.0)
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["one", "two"])
        await index_new_entries(log)
        monkeypatch.setattr(log._readers, "read", None)  # would fail
        found = await search(log, LogQuery(search="two"))
        assert [entry.seq for entry in found.entries] == [2]
        with pytest.raises(TypeError, match="not callable"):
            await search(log, LogQuery(search="two", limit=100_000))


@pytest.mark.sqlite_only("a file can be replaced")
async def test_a_connection_opened_after_the_log_was_replaced_reads_nothing(tmp_path: Path) -> None:
    path, aside = tmp_path / "ava.db", tmp_path / "aside.db"
    async with Store.open(tmp_path) as log:
        log._readers.close()  # the next read opens a connection
        path.rename(aside)
        with pytest.raises(LogMoved):
            await log.read(View.head)
        path.touch()
        with pytest.raises(LogMoved):
            await log.read(View.head)
        aside.replace(path)
        assert await log.read(View.head) == 0
