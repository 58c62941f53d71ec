"""The store: one write path, nothing lost, nothing half written."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from support.log import AVA, Life, child, said, write, write_each, write_texts, writing

from ava_audit.entries import Entry
from ava_audit.errors import (
    Contradiction,
    DataRootRefused,
    EntryTooLarge,
    LogMoved,
    SchemaNewer,
    StaleOwner,
    StoreUnavailable,
)
from ava_audit.events import Activity, AssistantMessage, Event, ToolResult, UserMessage
from ava_audit.maintenance import index_new_entries
from ava_audit.search import LogQuery, search
from ava_audit.store import locks, sqlite, store
from ava_audit.store.locks import WriteLock
from ava_audit.store.store import Outcome, Store
from ava_audit.verify import verify
from ava_audit.view import View


def all_entries(view: View) -> list[Entry]:
    return [entry for seq in range(1, view.head() + 1) if (entry := view.entry(seq)) is not None]


def texts(entries: list[Entry]) -> list[str]:
    return [entry.fact.search_text() if entry.fact else "" for entry in entries]


def hold_the_writer(log: Store) -> threading.Event:
    """Keep the writer thread busy until the event is set, so that what comes meanwhile is one batch."""
    go_on = threading.Event()

    def wait(_view: View, _now: int) -> Outcome[None]:
        go_on.wait(5)
        return Outcome(None)

    log.post(wait)
    return go_on


async def in_one_batch(log: Store, *commands: store.Command[int]) -> list[int | Exception]:
    """Run commands so that the writer takes them together; return what each brought, in order."""
    answers: list[int | Exception] = [0] * len(commands)

    async def run(place: int) -> None:
        if place == len(commands) - 1:
            all_begun.set()  # its own command is in the queue before anybody who waits for this goes on
        try:
            answer: int = await log.do(commands[place])
            answers[place] = answer
        except Exception as error:
            answers[place] = error

    all_begun = anyio.Event()
    go_on = hold_the_writer(log)
    async with anyio.create_task_group() as tasks:
        for place in range(len(commands)):
            tasks.start_soon(run, place)
        await all_begun.wait()
        go_on.set()
    return answers


async def test_stores_an_acknowledged_entry_with_its_header_and_content(tmp_path: Path, database: str) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write(log, said("hello"))
        async with Store.open(tmp_path) as log:
            (entry,) = await log.read(all_entries)
    assert (entry.seq, entry.type, entry.who, texts([entry])) == (1, "UserMessage", AVA, ["hello"])
    if database == "sqlite":
        assert (tmp_path / "ava.db").stat().st_mode & 0o777 == 0o600


async def test_a_command_sees_the_state_left_by_earlier_commands_of_its_batch(tmp_path: Path) -> None:
    def count(view: View, _now: int) -> Outcome[int]:
        return Outcome(view.head(), (said("one more"),))

    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            assert await in_one_batch(log, count, count, count) == [0, 1, 2]


async def test_a_command_that_raises_writes_nothing_while_the_rest_of_its_batch_commits(tmp_path: Path) -> None:
    def refuse(_view: View, _now: int) -> Outcome[int]:
        raise LookupError("no such thing")

    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            first, error, last = await in_one_batch(log, writing(said("a")), refuse, writing(said("b")))
            assert (first, last) == (1, 1)
            assert isinstance(error, LookupError)
            assert texts(await log.read(all_entries)) == ["a", "b"]


async def test_one_oversized_event_rejects_all_events_of_its_command(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            with pytest.raises(EntryTooLarge, match="2,000,000"):
                await write(log, said("before"), said("x" * 2_000_001))
            assert await log.read(View.head) == 0


async def test_runs_the_other_commands_one_by_one_when_one_fails_to_apply(
    tmp_path: Path,
) -> None:
    life = Life("S-aaaaaa")
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write(log, life.proposed())
            # The second proposal of the same id passes every check of the command and fails in the reducer.
            answers = await in_one_batch(
                log,
                writing(said("a")),
                writing(said("b"), life.proposed()),
                writing(said("c")),
                writing(said("d")),
            )
            assert isinstance(answers[1], Contradiction)
            assert "already has P-aaaaaa00" in str(answers[1])
            assert (answers[0], answers[2], answers[3]) == (1, 1, 1)
            assert texts((await log.read(all_entries))[1:]) == ["a", "c", "d"]
    assert verify(tmp_path).ok


@pytest.mark.sqlite_only("what SQLite does by itself where a disk is full")
async def test_writes_the_other_commands_once_after_sqlite_rolled_back_by_itself(tmp_path: Path) -> None:
    def fail(view: View, _now: int) -> Outcome[int]:
        view._db.execute("ROLLBACK")  # as SQLite does where a disk is full, whatever the statement was
        raise sqlite3.OperationalError("database or disk is full")

    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            answers = await in_one_batch(log, writing(said("a")), fail, writing(said("b")))
            assert (answers[0], answers[2]) == (1, 1)
            assert isinstance(answers[1], StoreUnavailable)
            assert texts(await log.read(all_entries)) == ["a", "b"]
    assert verify(tmp_path).ok


async def test_a_command_that_raises_stop_iteration_blocks_nobody(tmp_path: Path) -> None:
    def fail(_view: View, _now: int) -> Outcome[int]:
        return next(iter(()))  # StopIteration, as a search among candidates raises it that finds none

    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            first, error, last = await in_one_batch(log, writing(said("a")), fail, writing(said("b")))
    assert (first, last) == (1, 1)
    assert isinstance(error, RuntimeError) and "StopIteration" in str(error)


async def test_commits_commands_in_the_order_they_arrive(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await in_one_batch(log, *(writing(said(str(number))) for number in range(50)))
            assert texts(await log.read(all_entries)) == [str(number) for number in range(50)]


@pytest.mark.sqlite_only("counts frames of the write-ahead log")
async def test_waiting_commands_share_one_commit(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write(log, said("first"))
            other = sqlite3.connect(tmp_path / "ava.db")
            try:
                before = frames(other)
                await in_one_batch(log, *(writing(said(str(number))) for number in range(20)))
                together = frames(other) - before
                for number in range(20):
                    await write(log, said(str(number)))
                apart = frames(other) - before - together
            finally:
                other.close()
    assert together * 3 < apart  # every commit of its own writes its pages anew


@pytest.mark.sqlite_only("waits for write.lock")
async def test_what_comes_while_another_process_writes_is_in_the_same_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, waits, go_on, turns = sqlite.SqliteBackend.turn, threading.Event(), threading.Event(), list[str]()

    def turn(backend: sqlite.SqliteBackend) -> contextlib.AbstractContextManager[None]:
        turns.append("turn")
        waits.set()
        go_on.wait(5)
        return real(backend)

    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            monkeypatch.setattr(sqlite.SqliteBackend, "turn", turn)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write, log, said("first"))
                await anyio.to_thread.run_sync(waits.wait)
                tasks.start_soon(write, log, said("second"))
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(log.checkpoint)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(write, log, said("after the checkpoint"))
                await anyio.wait_all_tasks_blocked()
                go_on.set()
            assert len(turns) == 2
            assert texts(await log.read(all_entries)) == ["first", "second", "after the checkpoint"]


def frames(db: sqlite3.Connection) -> int:
    """How many pages the write-ahead log has; a passive look."""
    return int(db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])


async def test_rejects_an_entry_of_an_older_generation(tmp_path: Path) -> None:
    old, new = Life("S-aaaaaa"), Life("S-aaaaaa", generation=2)
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write_each(log, old.begun())
            await write(log, old.answered("mine"))
            await write(log, new.claimed())
            with pytest.raises(StaleOwner, match="generation 1"):
                await write(log, said("not written either"), old.answered("too late"))
            await write(log, new.answered("yours"))
            assert texts(await log.read(all_entries))[-2:] == ["claimed by abc (start)", "yours"]


async def test_writes_nothing_for_an_ended_run(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write_each(log, life.whole())
            with pytest.raises(StaleOwner):
                await write(log, life.answered("from the grave"))


@pytest.mark.sqlite_only("another connection holds SQLite's own lock")
async def test_a_command_that_timed_out_never_runs_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ANSWER_S", 0.2)
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            other = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
            try:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreUnavailable, match="nothing was written"):
                    await write(log, said("given up"))
                other.execute("ROLLBACK")
            finally:
                other.close()
            monkeypatch.setattr(store, "ANSWER_S", 4.0)
            await write(log, said("after"))
            assert texts(await log.read(all_entries)) == ["after"]


@pytest.mark.sqlite_only("holds write.lock")
async def test_a_held_write_lock_fails_commands_but_not_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = (
        "import sys, pathlib; from ava_audit.store.locks import WriteLock\n"
        "with WriteLock(pathlib.Path(sys.argv[1])).held(): print('held', flush=True); sys.stdin.read()\n"
    )
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write(log, said("before"))
            monkeypatch.setattr(store, "ANSWER_S", 0.2)
            async with await anyio.open_process(child(hold, tmp_path / "write.lock")) as process:
                assert process.stdout is not None and process.stdin is not None
                await process.stdout.receive()
                with pytest.raises(StoreUnavailable):
                    await write(log, said("given up"))
                assert texts(await log.read(all_entries)) == ["before"]
                await process.stdin.aclose()
                await process.wait()
            monkeypatch.setattr(store, "ANSWER_S", 4.0)
            await write(log, said("after"))
            assert texts(await log.read(all_entries)) == ["before", "after"]


@pytest.mark.sqlite_only("holds write.lock")
async def test_a_log_is_opened_while_another_process_holds_the_write_lock_and_never_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PREPARE_S", 0.2)
    lock = WriteLock(tmp_path / "write.lock")
    stuck = pytest.raises(StoreUnavailable, match=r"has held its write lock for 0\.2 s; one that was stopped")
    with anyio.fail_after(20), lock.held(), stuck:
        async with Store.open(tmp_path):
            raise AssertionError("nobody has created it")
    async with Store.open(tmp_path) as log:
        await write(log, said("before"))
    with anyio.fail_after(20), lock.held():
        async with Store.open(tmp_path) as log:
            assert texts(await log.read(all_entries)) == ["before"]
    lock.close()


@pytest.mark.sqlite_only("another connection holds SQLite's own lock")
@pytest.mark.slow
async def test_closing_the_store_answers_waiting_callers(tmp_path: Path) -> None:
    answers: list[BaseException] = []

    async def call(log: Store) -> None:
        try:
            await write(log, said("never"))
        except StoreUnavailable as error:
            answers.append(error)

    with anyio.fail_after(8), contextlib.closing(sqlite3.connect(tmp_path / "ava.db", isolation_level=None)) as other:
        async with anyio.create_task_group() as tasks:
            async with Store.open(tmp_path) as log:
                other.execute("BEGIN IMMEDIATE")
                tasks.start_soon(call, log)
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(call, log)
        other.execute("ROLLBACK")
    assert ["shutting down" in str(answer) for answer in answers] in ([False, True], [True, False])
    assert verify(tmp_path).entries == 0


async def test_keeps_no_reference_to_answered_commands(tmp_path: Path) -> None:
    def facts() -> Iterator[weakref.ref[UserMessage]]:
        """What is written, held by nobody here."""
        for number in range(50):
            event = said(str(number))
            assert isinstance(event.fact, UserMessage)
            tasks.start_soon(log.do, writing(event))
            yield weakref.ref(event.fact)

    with anyio.fail_after(3):  # less than the timer that looks after who waits
        async with Store.open(tmp_path) as log:
            async with anyio.create_task_group() as tasks:
                kept = list(facts())
            while any(fact() is not None for fact in kept):  # noqa: ASYNC110 - the writer's thread forgets its batch
                await anyio.sleep(0.01)


APPEND = """
import sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from ava_audit.store.store import Store
from support.log import said, write
async def main():
    async with Store.open(Path(sys.argv[1])) as log:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(int(sys.argv[3])):
            await write(log, said(f"{sys.argv[2]} {number}"))
anyio.run(main)
"""
TESTS = Path(__file__).parent.parent


async def test_two_processes_appending_at_once_lose_nothing_and_keep_the_chain_valid(tmp_path: Path) -> None:
    async def append(name: str) -> None:
        async with await anyio.open_process(child(APPEND, tmp_path, name, "60", TESTS), stderr=None) as process:
            assert process.stdout is not None and process.stdin is not None
            await process.stdout.receive()
            ready.append(name)
            if len(ready) == 2:
                both.set()
            await both.wait()
            await process.stdin.send(b"go\n")
            assert await process.wait() == 0

    ready: list[str] = []
    both = anyio.Event()
    with anyio.fail_after(40):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, "one")
            tasks.start_soon(append, "two")
        async with Store.open(tmp_path) as log:
            written = texts(await log.read(all_entries))
    assert sorted(written) == sorted(f"{name} {number}" for name in ("one", "two") for number in range(60))
    for name in ("one", "two"):
        assert [text for text in written if text.startswith(name)] == [f"{name} {number}" for number in range(60)]
    assert verify(tmp_path).ok


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


def in_thread(view: View) -> int:
    view.head()
    return threading.get_ident()


async def test_a_look_is_done_at_once_where_that_is_quick(tmp_path: Path, database: str) -> None:
    def slow(view: View) -> None:
        view.head()
        time.sleep(2 * store.LOOK_S)  # a slow disk

    async with Store.open(tmp_path) as log:
        here = threading.get_ident()
        await log.read(View.head)  # a connection is at hand
        assert await log.read(in_thread) != here
        if database == "postgres":  # it may be far away
            assert await log.look(in_thread) != here
            return
        assert await log.look(in_thread) == here
        await log.look(slow)
        assert await log.look(in_thread) != here
        with anyio.fail_after(20):
            while await log.look(in_thread) != here:  # noqa: ASYNC110
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
            await write(log, said(f"answer {number}"))
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


async def test_waits_for_an_entry_committed_by_another_process(tmp_path: Path) -> None:
    with anyio.fail_after(40):
        async with Store.open(tmp_path) as log:
            async with await anyio.open_process(child(APPEND, tmp_path, "other", "1", TESTS), stderr=None) as process:
                assert process.stdin is not None
                await process.stdin.send(b"go\n")
                assert await log.wait_for_entry_after(0) == 1
            assert texts(await log.read(all_entries)) == ["other 0"]


async def test_what_was_told_of_commits_is_what_the_log_has(tmp_path: Path) -> None:
    dice = random.Random(11)
    types = ("UserMessage", "AssistantMessage", "SpawnDecided")
    async with Store.open(tmp_path) as log, Store.open(tmp_path) as other:
        for number in range(60):
            writer = dice.choice((log, other))
            await write(writer, dice.choice((said(str(number)), Event(AVA, AssistantMessage(text="x", turn=1)))))
            if dice.random() < 0.5:
                continue
            newest = await log.wait_for_entry_after(await log.read(View.head) - 1)
            for seq in range(max(0, newest - 8), newest + 1):
                asked = dice.sample(types, dice.randint(1, 3))
                found = await log.read(partial(View.any_after, seq=seq, types=asked))
                assert await log.any_after(seq, asked) == found


@pytest.mark.sqlite_only("sets the version in the file")
async def test_stops_writing_after_a_newer_program_migrated_the_database(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write(log, said("before"))
            other = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
            other.execute("PRAGMA user_version = 99")
            other.close()
            for error in await in_one_batch(log, writing(said("a")), writing(said("b"))):
                assert isinstance(error, SchemaNewer)
                assert "restart" in str(error)
            assert texts(await log.read(all_entries)) == ["before"]


@pytest.mark.sqlite_only("attacks the file")
async def test_entries_cannot_be_deleted_or_changed_but_can_be_erased(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write(log, said("hello"), said("keep"))
    db = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
    try:
        for attack in (
            "DELETE FROM events WHERE seq = 1",
            "UPDATE events SET user_id = 'eve' WHERE seq = 1",
            "UPDATE events SET content = '{}' WHERE seq = 1",
            "UPDATE events SET content = NULL, ts_us = 1 WHERE seq = 1",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="never"):
                db.execute(attack)
        db.execute("UPDATE events SET content = NULL WHERE seq = 1")
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            db.execute("UPDATE events SET content = '{}' WHERE seq = 1")
    finally:
        db.close()
    (fault,) = verify(tmp_path).faults
    assert fault.kind == "erased", "the chain holds, and nobody's erasure is on record"
    async with Store.open(tmp_path) as log:
        erased, kept = await log.read(all_entries)
    assert erased.fact is None
    assert texts([kept]) == ["keep"]


async def test_replaces_a_lone_surrogate_instead_of_losing_the_entry(tmp_path: Path) -> None:
    fact = AssistantMessage(text="cut \ud83d here", raw={"a": "\udc00"})
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write(log, Event(AVA, fact), said("next"))
            entries = await log.read(all_entries)
    assert texts(entries) == ["cut \ufffd here", "next"]
    assert verify(tmp_path).ok


async def test_writes_posted_commands_without_waiting_and_before_closing(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            log.post(writing(said("posted")))
            log.set_live("S-aaaaaa", "reading")
        async with Store.open(tmp_path) as log:
            assert texts(await log.read(all_entries)) == ["posted"]
            live = await log.read(lambda view: view.live("S-aaaaaa"))
    assert live is not None and live[0] == "reading"


async def test_writes_live_activity_with_the_next_command_or_soon_after(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            log.set_live("S-aaaaaa", "reading")
            log.set_live("S-aaaaaa", "writing")
            await log.do(writing(said("a")))
            live = await log.read(lambda view: view.live("S-aaaaaa"))
            assert live is not None and live[0] == "writing"
            log.set_live("S-bbbbbb", "thinking")
            while await log.read(lambda view: view.live("S-bbbbbb")) is None:  # noqa: ASYNC110
                await anyio.sleep(0.02)


async def test_a_closed_store_refuses_commands(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            pass
        with pytest.raises(StoreUnavailable, match="shutting down"):
            await write(log, said("late"))


async def test_a_cancelled_caller_leaves_the_writer_working(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            go_on = hold_the_writer(log)
            with anyio.move_on_after(0):
                await write(log, said("perhaps"))
            go_on.set()
            await write(log, said("after"))
            assert texts(await log.read(all_entries))[-1] == "after"


@pytest.mark.sqlite_only("the write-ahead log of SQLite")
async def test_a_checkpoint_empties_the_write_ahead_log_unless_a_reader_needs_it(tmp_path: Path) -> None:
    wal = tmp_path / "ava.db-wal"
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write(log, said("x" * 10_000))
            reader = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
            try:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM events").fetchone()
                await write(log, said("newer than the reader"))
                assert not await log.checkpoint()
                reader.execute("ROLLBACK")
            finally:
                reader.close()
            assert await log.checkpoint()
            assert wal.stat().st_size == 0
            await write(log, said("and on"))


@pytest.mark.sqlite_only("a damaged file")
async def test_refuses_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "ava.db").write_bytes(b"not a database, but long enough to look at " * 50)
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        async with Store.open(tmp_path):
            pass


async def test_refuses_a_data_root_that_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(DataRootRefused, match="not a folder"):
            async with Store.open(root):
                pass


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:50 / /home rw - nfs4 server:/home rw
41 22 0:51 / /mnt/my\\040share rw shared:7 - cifs //server/share rw
42 40 0:52 / /home/me/local rw - btrfs /dev/vdb rw
43 22 0:53 / /media/box rw - fuse.sshfs me@box: rw
44 22 0:54 / /media/usb rw - fuseblk /dev/sdb1 rw
45 22 0:55 / /mnt/c rw - 9p C: rw
46 22 0:56 / /twice rw - nfs server:/x rw
47 22 0:57 / /twice rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me/.ava", "nfs4"),
        ("/mnt/my share/ava", "cifs"),
        ("/media/box", "fuse.sshfs"),
        ("/mnt/c/Users", "9p"),
        ("/home/me/local/ava", None),
        ("/media/usb/ava", None),
        ("/twice/ava", None),
        ("/homestead", None),
    ],
)
async def test_recognises_a_network_file_system_by_its_mount(
    folder: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    monkeypatch.setattr(locks, "_MOUNTS", table)
    assert locks.network_file_system(Path(folder)) == kind


async def test_refuses_a_data_root_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / {tmp_path} rw - nfs server:/x rw\n")
    monkeypatch.setattr(locks, "_MOUNTS", table)
    with pytest.raises(DataRootRefused, match=r"network file system \(nfs\)"):
        async with Store.open(tmp_path):
            pass
    monkeypatch.setattr(locks, "_MOUNTS", tmp_path / "no such system")
    async with Store.open(tmp_path) as log:
        await write(log, said("local"), Event(AVA, Activity(activity="x")))
        await write(log, Event(AVA, ToolResult(tool="t", success=True)), Event(AVA, UserMessage(text="y")))


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
