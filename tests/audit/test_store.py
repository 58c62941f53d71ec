"""The store: one write path, nothing lost, nothing half written."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.log import AVA, Life, child, said, write, write_each, writing

from ava_audit.entries import Entry
from ava_audit.errors import Contradiction, DataRootRefused, EntryTooLarge, SchemaNewer, StaleOwner, StoreUnavailable
from ava_audit.events import Activity, AssistantMessage, Event, ToolResult, UserMessage
from ava_audit.store import locks, store
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


async def test_an_acknowledged_entry_is_on_the_disk_with_its_header_and_content(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            await write(log, said("hello"))
        async with Store.open(tmp_path) as log:
            (entry,) = await log.read(all_entries)
    assert (entry.seq, entry.type, entry.who, texts([entry])) == (1, "UserMessage", AVA, ["hello"])
    assert (tmp_path / "ava.db").stat().st_mode & 0o777 == 0o600


async def test_a_command_reads_the_state_that_earlier_commands_of_its_batch_left(tmp_path: Path) -> None:
    def count(view: View, _now: int) -> Outcome[int]:
        return Outcome(view.head(), (said("one more"),))

    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            assert await in_one_batch(log, count, count, count) == [0, 1, 2]


async def test_a_command_that_raises_writes_nothing_and_the_rest_of_its_batch_commits(tmp_path: Path) -> None:
    def refuse(_view: View, _now: int) -> Outcome[int]:
        raise LookupError("no such thing")

    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            first, error, last = await in_one_batch(log, writing(said("a")), refuse, writing(said("b")))
            assert (first, last) == (1, 1)
            assert isinstance(error, LookupError)
            assert texts(await log.read(all_entries)) == ["a", "b"]


async def test_events_of_which_one_is_too_large_are_refused_together(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            with pytest.raises(EntryTooLarge, match="2,000,000"):
                await write(log, said("before"), said("x" * 2_000_001))
            assert await log.read(View.head) == 0


async def test_when_applying_one_command_fails_the_others_of_its_batch_are_run_one_by_one(
    tmp_path: Path,
) -> None:
    life = Life("S-aaaaaa")
    with anyio.fail_after(5):
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
    assert verify(tmp_path / "ava.db").ok


async def test_when_sqlite_has_rolled_back_by_itself_the_others_of_the_batch_are_written_once(tmp_path: Path) -> None:
    def fail(view: View, _now: int) -> Outcome[int]:
        view._db.execute("ROLLBACK")  # as SQLite does where a disk is full, whatever the statement was
        raise sqlite3.OperationalError("database or disk is full")

    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            answers = await in_one_batch(log, writing(said("a")), fail, writing(said("b")))
            assert (answers[0], answers[2]) == (1, 1)
            assert isinstance(answers[1], StoreUnavailable)
            assert texts(await log.read(all_entries)) == ["a", "b"]
    assert verify(tmp_path / "ava.db").ok


async def test_a_command_whose_error_no_future_takes_keeps_nobody_waiting(tmp_path: Path) -> None:
    def fail(_view: View, _now: int) -> Outcome[int]:
        return next(iter(()))  # StopIteration, as a search among candidates raises it that finds none

    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            first, error, last = await in_one_batch(log, writing(said("a")), fail, writing(said("b")))
    assert (first, last) == (1, 1)
    assert isinstance(error, RuntimeError) and "StopIteration" in str(error)


async def test_commands_are_committed_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            await in_one_batch(log, *(writing(said(str(number))) for number in range(50)))
            assert texts(await log.read(all_entries)) == [str(number) for number in range(50)]


async def test_commands_that_wait_together_share_one_commit(tmp_path: Path) -> None:
    with anyio.fail_after(5):
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


def frames(db: sqlite3.Connection) -> int:
    """How many pages the write-ahead log has; a passive look."""
    return int(db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])


async def test_an_entry_of_an_older_generation_is_refused(tmp_path: Path) -> None:
    old, new = Life("S-aaaaaa"), Life("S-aaaaaa", generation=2)
    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            await write_each(log, old.begun())
            await write(log, old.answered("mine"))
            await write(log, new.claimed())
            with pytest.raises(StaleOwner, match="generation 1"):
                await write(log, said("not written either"), old.answered("too late"))
            await write(log, new.answered("yours"))
            assert texts(await log.read(all_entries))[-2:] == ["claimed by abc (start)", "yours"]


async def test_nothing_is_written_for_a_run_that_has_ended(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            await write_each(log, life.whole())
            with pytest.raises(StaleOwner):
                await write(log, life.answered("from the grave"))


async def test_a_command_that_the_store_did_not_take_in_time_never_runs_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ANSWER_S", 0.2)
    with anyio.fail_after(5):
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


async def test_a_process_that_keeps_the_write_lock_makes_commands_fail_and_reads_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = (
        "import sys, pathlib; from ava_audit.store.locks import WriteLock\n"
        "with WriteLock(pathlib.Path(sys.argv[1])).held(): print('held', flush=True); sys.stdin.read()\n"
    )
    with anyio.fail_after(5):
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


async def test_who_waits_when_the_store_is_closed_is_answered_then(tmp_path: Path) -> None:
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
    assert verify(tmp_path / "ava.db").entries == 0


async def test_of_what_is_answered_nothing_is_kept(tmp_path: Path) -> None:
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


async def test_two_processes_that_append_at_once_lose_nothing_and_the_chain_holds(tmp_path: Path) -> None:
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
    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, "one")
            tasks.start_soon(append, "two")
        async with Store.open(tmp_path) as log:
            written = texts(await log.read(all_entries))
    assert sorted(written) == sorted(f"{name} {number}" for name in ("one", "two") for number in range(60))
    for name in ("one", "two"):
        assert [text for text in written if text.startswith(name)] == [f"{name} {number}" for number in range(60)]
    assert verify(tmp_path / "ava.db").ok


async def test_a_reading_whose_caller_is_cancelled_is_broken_off(tmp_path: Path) -> None:
    for_ever = "WITH RECURSIVE n (i) AS (SELECT begun() UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    begun, ended = threading.Event(), threading.Event()

    def begins() -> int:
        begun.set()
        return 1

    def count(view: View) -> None:
        view._db.create_function("begun", 0, begins)
        try:
            list(view.select(for_ever))
        finally:
            ended.set()

    with anyio.fail_after(10):
        async with Store.open(tmp_path) as log, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(log.read, count, interrupt=True))
            assert await anyio.to_thread.run_sync(begun.wait, 4)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                assert await anyio.to_thread.run_sync(ended.wait, 4)
        async with Store.open(tmp_path) as log:
            assert await log.read(View.head) == 0


async def test_newer_than_sees_what_another_process_committed(tmp_path: Path) -> None:
    with anyio.fail_after(10):
        async with Store.open(tmp_path) as log:
            async with await anyio.open_process(child(APPEND, tmp_path, "other", "1", TESTS), stderr=None) as process:
                assert process.stdin is not None
                await process.stdin.send(b"go\n")
                assert await log.wait_for_entry_after(0) == 1
            assert texts(await log.read(all_entries)) == ["other 0"]


async def test_a_store_stops_writing_when_a_newer_program_has_migrated_the_database(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            await write(log, said("before"))
            other = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
            other.execute("PRAGMA user_version = 99")
            other.close()
            for error in await in_one_batch(log, writing(said("a")), writing(said("b"))):
                assert isinstance(error, SchemaNewer)
                assert "restart" in str(error)
            assert texts(await log.read(all_entries)) == ["before"]


async def test_entries_can_be_neither_deleted_nor_changed_but_erased(tmp_path: Path) -> None:
    with anyio.fail_after(5):
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
    (fault,) = verify(tmp_path / "ava.db").faults
    assert fault.kind == "erased", "the chain holds, and nobody's erasure is on record"
    async with Store.open(tmp_path) as log:
        erased, kept = await log.read(all_entries)
    assert erased.fact is None
    assert texts([kept]) == ["keep"]


async def test_a_lone_surrogate_is_stored_replaced_instead_of_losing_the_entry(tmp_path: Path) -> None:
    fact = AssistantMessage(text="cut \ud83d here", raw={"a": "\udc00"})
    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            await write(log, Event(AVA, fact), said("next"))
            entries = await log.read(all_entries)
    assert texts(entries) == ["cut \ufffd here", "next"]
    assert verify(tmp_path / "ava.db").ok


async def test_what_is_posted_is_written_without_waiting_and_before_the_store_closes(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            log.post(writing(said("posted")))
            log.set_live("S-aaaaaa", "reading")
        async with Store.open(tmp_path) as log:
            assert texts(await log.read(all_entries)) == ["posted"]
            live = await log.read(lambda view: view.live("S-aaaaaa"))
    assert live is not None and live[0] == "reading"


async def test_what_runs_do_this_second_is_written_with_the_next_command_or_soon(tmp_path: Path) -> None:
    with anyio.fail_after(5):
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
    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            pass
        with pytest.raises(StoreUnavailable, match="shutting down"):
            await write(log, said("late"))


async def test_a_caller_that_is_cancelled_leaves_the_writer_whole(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with Store.open(tmp_path) as log:
            go_on = hold_the_writer(log)
            with anyio.move_on_after(0):
                await write(log, said("perhaps"))
            go_on.set()
            await write(log, said("after"))
            assert texts(await log.read(all_entries))[-1] == "after"


async def test_a_checkpoint_empties_the_write_ahead_log_unless_a_reader_needs_it(tmp_path: Path) -> None:
    wal = tmp_path / "ava.db-wal"
    with anyio.fail_after(5):
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


async def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "ava.db").write_bytes(b"not a database, but long enough to look at " * 50)
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        async with Store.open(tmp_path):
            pass


async def test_a_data_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
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
async def test_a_network_file_system_is_refused_and_named(
    folder: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    monkeypatch.setattr(locks, "_MOUNTS", table)
    assert locks.network_file_system(Path(folder)) == kind


async def test_a_data_root_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
