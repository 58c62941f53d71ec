"""The store: one write path, nothing lost, nothing half written."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from support.log import AVA, Life, child, message, write, write_command, write_each
from support.logs.cutting import all_entries
from support.logs.store import entry_texts, hold_writer, open_store, run_in_one_batch, stored_texts

from ava_audit.errors import Contradiction, EntryTooLarge, SchemaNewer, StaleOwner, StoreUnavailable
from ava_audit.events import AssistantMessage, Event, UserMessage
from ava_audit.store import sqlite, store
from ava_audit.store.locks import WriteLock
from ava_audit.store.store import Outcome, Store
from ava_audit.verify import verify
from ava_audit.view import View


async def test_stores_an_acknowledged_entry_with_its_header_and_content(tmp_path: Path, database: str) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write(log, message("hello"))
        async with Store.open(tmp_path) as log:
            (entry,) = await all_entries(log)
    assert (entry.seq, entry.type, entry.who, entry_texts([entry])) == (1, "UserMessage", AVA, ["hello"])
    if database == "sqlite":
        assert (tmp_path / "ava.db").stat().st_mode & 0o777 == 0o600


async def test_a_command_sees_the_state_left_by_earlier_commands_of_its_batch(tmp_path: Path) -> None:
    def count(view: View, _now: int) -> Outcome[int]:
        return Outcome(view.head(), (message("one more"),))

    async with open_store(tmp_path) as log:
        assert await run_in_one_batch(log, count, count, count) == [0, 1, 2]


async def test_a_command_that_raises_writes_nothing_while_the_rest_of_its_batch_commits(tmp_path: Path) -> None:
    def refuse(_view: View, _now: int) -> Outcome[int]:
        raise LookupError("no such thing")

    async with open_store(tmp_path) as log:
        first, error, last = await run_in_one_batch(
            log, write_command(message("a")), refuse, write_command(message("b"))
        )
        assert (first, last) == (1, 1)
        assert isinstance(error, LookupError)
        assert await stored_texts(log) == ["a", "b"]


async def test_one_oversized_event_rejects_all_events_of_its_command(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        with pytest.raises(EntryTooLarge, match="2,000,000"):
            await write(log, message("before"), message("x" * 2_000_001))
        assert await log.read(View.head) == 0


async def test_runs_the_other_commands_one_by_one_when_one_fails_to_apply(
    tmp_path: Path,
) -> None:
    life = Life("S-aaaaaa")
    async with open_store(tmp_path) as log:
        await write(log, life.proposal())
        # The second proposal of the same id passes every check of the command and fails in the reducer.
        answers = await run_in_one_batch(
            log,
            write_command(message("a")),
            write_command(message("b"), life.proposal()),
            write_command(message("c")),
            write_command(message("d")),
        )
        assert isinstance(answers[1], Contradiction)
        assert "already has P-aaaaaa00" in str(answers[1])
        assert (answers[0], answers[2], answers[3]) == (1, 1, 1)
        assert entry_texts((await all_entries(log))[1:]) == ["a", "c", "d"]
    assert verify(tmp_path).ok


@pytest.mark.sqlite_only("what SQLite does by itself where a disk is full")
async def test_writes_the_other_commands_once_after_sqlite_rolled_back_by_itself(tmp_path: Path) -> None:
    def fail(view: View, _now: int) -> Outcome[int]:
        view._db.execute("ROLLBACK")  # as SQLite does where a disk is full, whatever the statement was
        raise sqlite3.OperationalError("database or disk is full")

    async with open_store(tmp_path) as log:
        answers = await run_in_one_batch(log, write_command(message("a")), fail, write_command(message("b")))
        assert (answers[0], answers[2]) == (1, 1)
        assert isinstance(answers[1], StoreUnavailable)
        assert await stored_texts(log) == ["a", "b"]
    assert verify(tmp_path).ok


async def test_a_command_that_raises_stop_iteration_blocks_nobody(tmp_path: Path) -> None:
    def fail(_view: View, _now: int) -> Outcome[int]:
        return next(iter(()))  # StopIteration, as a search among candidates raises it that finds none

    async with open_store(tmp_path) as log:
        first, error, last = await run_in_one_batch(log, write_command(message("a")), fail, write_command(message("b")))
    assert (first, last) == (1, 1)
    assert isinstance(error, RuntimeError) and "StopIteration" in str(error)


async def test_commits_commands_in_the_order_they_arrive(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        await run_in_one_batch(log, *(write_command(message(str(number))) for number in range(50)))
        assert await stored_texts(log) == [str(number) for number in range(50)]


@pytest.mark.sqlite_only("counts frames of the write-ahead log")
async def test_waiting_commands_share_one_commit(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        await write(log, message("first"))
        other = sqlite3.connect(tmp_path / "ava.db")
        try:
            before = frames(other)
            await run_in_one_batch(log, *(write_command(message(str(number))) for number in range(20)))
            together = frames(other) - before
            for number in range(20):
                await write(log, message(str(number)))
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

    async with open_store(tmp_path) as log:
        monkeypatch.setattr(sqlite.SqliteBackend, "turn", turn)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, log, message("first"))
            await anyio.to_thread.run_sync(waits.wait)
            tasks.start_soon(write, log, message("second"))
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(log.checkpoint)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(write, log, message("after the checkpoint"))
            await anyio.wait_all_tasks_blocked()
            go_on.set()
        assert len(turns) == 2
        assert await stored_texts(log) == ["first", "second", "after the checkpoint"]


def frames(db: sqlite3.Connection) -> int:
    """How many pages the write-ahead log has; a passive look."""
    return int(db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])


async def test_rejects_an_entry_of_an_older_generation(tmp_path: Path) -> None:
    old, new = Life("S-aaaaaa"), Life("S-aaaaaa", generation=2)
    async with open_store(tmp_path) as log:
        await write_each(log, old.beginning())
        await write(log, old.answer("mine"))
        await write(log, new.claim())
        with pytest.raises(StaleOwner, match="generation 1"):
            await write(log, message("not written either"), old.answer("too late"))
        await write(log, new.answer("yours"))
        assert (await stored_texts(log))[-2:] == ["claimed by abc (start)", "yours"]


async def test_writes_nothing_for_an_ended_run(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with open_store(tmp_path) as log:
        await write_each(log, life.all_events())
        with pytest.raises(StaleOwner):
            await write(log, life.answer("from the grave"))


@pytest.mark.sqlite_only("another connection holds SQLite's own lock")
async def test_a_command_that_timed_out_never_runs_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ANSWER_S", 0.2)
    async with open_store(tmp_path) as log:
        other = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="nothing was written"):
                await write(log, message("given up"))
            other.execute("ROLLBACK")
        finally:
            other.close()
        monkeypatch.setattr(store, "ANSWER_S", 4.0)
        await write(log, message("after"))
        assert await stored_texts(log) == ["after"]


@pytest.mark.sqlite_only("holds write.lock")
async def test_a_held_write_lock_fails_commands_but_not_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = (
        "import sys, pathlib; from ava_audit.store.locks import WriteLock\n"
        "with WriteLock(pathlib.Path(sys.argv[1])).held(): print('held', flush=True); sys.stdin.read()\n"
    )
    async with open_store(tmp_path) as log:
        await write(log, message("before"))
        monkeypatch.setattr(store, "ANSWER_S", 0.2)
        async with await anyio.open_process(child(hold, tmp_path / "write.lock")) as process:
            assert process.stdout is not None and process.stdin is not None
            await process.stdout.receive()
            with pytest.raises(StoreUnavailable):
                await write(log, message("given up"))
            assert await stored_texts(log) == ["before"]
            await process.stdin.aclose()
            await process.wait()
        monkeypatch.setattr(store, "ANSWER_S", 4.0)
        await write(log, message("after"))
        assert await stored_texts(log) == ["before", "after"]


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
        await write(log, message("before"))
    with anyio.fail_after(20), lock.held():
        async with Store.open(tmp_path) as log:
            assert await stored_texts(log) == ["before"]
    lock.close()


@pytest.mark.sqlite_only("another connection holds SQLite's own lock")
@pytest.mark.slow
async def test_closing_the_store_answers_waiting_callers(tmp_path: Path) -> None:
    answers: list[BaseException] = []

    async def call(log: Store) -> None:
        try:
            await write(log, message("never"))
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
            event = message(str(number))
            assert isinstance(event.fact, UserMessage)
            tasks.start_soon(log.do, write_command(event))
            yield weakref.ref(event.fact)

    async with open_store(tmp_path, within_s=3) as log:
        async with anyio.create_task_group() as tasks:
            kept = list(facts())
        while any(fact() is not None for fact in kept):  # noqa: ASYNC110 - the writer's thread forgets its batch
            await anyio.sleep(0.01)


APPEND = """
import sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from ava_audit.store.store import Store
from support.log import message, write
async def main():
    async with Store.open(Path(sys.argv[1])) as log:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(int(sys.argv[3])):
            await write(log, message(f"{sys.argv[2]} {number}"))
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
            written = await stored_texts(log)
    assert sorted(written) == sorted(f"{name} {number}" for name in ("one", "two") for number in range(60))
    for name in ("one", "two"):
        assert [text for text in written if text.startswith(name)] == [f"{name} {number}" for number in range(60)]
    assert verify(tmp_path).ok


async def test_waits_for_an_entry_committed_by_another_process(tmp_path: Path) -> None:
    async with open_store(tmp_path, within_s=40) as log:
        async with await anyio.open_process(child(APPEND, tmp_path, "other", "1", TESTS), stderr=None) as process:
            assert process.stdin is not None
            await process.stdin.send(b"go\n")
            assert await log.wait_for_entry_after(0) == 1
        assert await stored_texts(log) == ["other 0"]


@pytest.mark.sqlite_only("sets the version in the file")
async def test_stops_writing_after_a_newer_program_migrated_the_database(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        await write(log, message("before"))
        other = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
        other.execute("PRAGMA user_version = 99")
        other.close()
        for error in await run_in_one_batch(log, write_command(message("a")), write_command(message("b"))):
            assert isinstance(error, SchemaNewer)
            assert "restart" in str(error)
        assert await stored_texts(log) == ["before"]


@pytest.mark.sqlite_only("attacks the file")
async def test_entries_cannot_be_deleted_or_changed_but_can_be_erased(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        await write(log, message("hello"), message("keep"))
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
        erased, kept = await all_entries(log)
    assert erased.fact is None
    assert entry_texts([kept]) == ["keep"]


async def test_replaces_a_lone_surrogate_instead_of_losing_the_entry(tmp_path: Path) -> None:
    fact = AssistantMessage(text="cut \ud83d here", raw={"a": "\udc00"})
    async with open_store(tmp_path) as log:
        await write(log, Event(AVA, fact), message("next"))
        entries = await all_entries(log)
    assert entry_texts(entries) == ["cut \ufffd here", "next"]
    assert verify(tmp_path).ok


async def test_writes_posted_commands_without_waiting_and_before_closing(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            log.post(write_command(message("posted")))
            log.set_live("S-aaaaaa", "reading")
        async with Store.open(tmp_path) as log:
            assert await stored_texts(log) == ["posted"]
            live = await log.read(lambda view: view.live("S-aaaaaa"))
    assert live is not None and live[0] == "reading"


async def test_writes_live_activity_with_the_next_command_or_soon_after(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        log.set_live("S-aaaaaa", "reading")
        log.set_live("S-aaaaaa", "writing")
        await log.do(write_command(message("a")))
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
            await write(log, message("late"))


async def test_a_cancelled_caller_leaves_the_writer_working(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        go_on = hold_writer(log)
        with anyio.move_on_after(0):
            await write(log, message("perhaps"))
        go_on.set()
        await write(log, message("after"))
        assert (await stored_texts(log))[-1] == "after"


@pytest.mark.sqlite_only("the write-ahead log of SQLite")
async def test_a_checkpoint_empties_the_write_ahead_log_unless_a_reader_needs_it(tmp_path: Path) -> None:
    wal = tmp_path / "ava.db-wal"
    async with open_store(tmp_path) as log:
        await write(log, message("x" * 10_000))
        reader = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
        try:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchone()
            await write(log, message("newer than the reader"))
            assert not await log.checkpoint()
            reader.execute("ROLLBACK")
        finally:
            reader.close()
        assert await log.checkpoint()
        assert wal.stat().st_size == 0
        await write(log, message("and on"))
