"""Bad moments for the log: a full or read-only disk, a damaged file, a clock that jumps. Nothing is acknowledged that
is not stored, every error is one of ours, and what can be answered is."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.log import Life, message, write, write_each, write_texts
from support.logs.small_disks import run_on_small_disk

from ava_audit.entries import Entry
from ava_audit.errors import AuditError, StoreUnavailable
from ava_audit.maintenance import run_maintenance
from ava_audit.search import LogQuery, search
from ava_audit.store import connection
from ava_audit.store.connection import DAMAGED
from ava_audit.store.store import Command, Outcome, Store
from ava_audit.units import HOUR_US
from ava_audit.verify import verify, verify_lines
from ava_audit.view import View


@pytest.mark.sqlite_only("the disk of the data root")
def test_a_full_disk_loses_no_acknowledged_entry_and_the_log_stays_readable(
    tmp_path: Path,
) -> None:
    some, words, read, stored, whole = run_on_small_disk(tmp_path / "disk", FULL)
    assert some == "True True"
    assert words == "the disk of the data root is full, so nothing was written: free some space and try again"
    assert (read, stored, whole) == ("True", "True", "True")


READ_ONLY = """
import subprocess, sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ava_audit.errors import AuditError
from ava_audit.store.connection import DAMAGED
from ava_audit.store.store import Command, Outcome, Store
from ava_audit.verify import verify
from support.log import message, write
async def main():
    root = Path(sys.argv[2])
    async with Store.open(root) as log:
        await write(log, message("before"))
        await log.checkpoint()
    subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
    try:
        async with Store.open(root):
            print("opened")
    except AuditError as error:
        print(str(error).replace(str(root), "ROOT"))
    subprocess.run(["mount", "-o", "remount,bind,rw", root], check=True)
    async with Store.open(root) as log:
        await write(log, message("after"))
    print(verify(root))
anyio.run(main)
"""


@pytest.mark.sqlite_only("the disk of the data root")
def test_opening_on_a_read_only_disk_fails_and_leaves_the_log_unchanged(tmp_path: Path) -> None:
    refused, report = run_on_small_disk(tmp_path / "disk", READ_ONLY, size="2m")
    assert refused.startswith("the log in ROOT cannot be opened: ") and "ead-only" in refused
    assert "entries=2" in report and "faults=()" in report


NO_ROOM_TO_OPEN = """
import sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ava_audit.errors import StoreUnavailable
from ava_audit.store.sqlite import copy_log
from ava_audit.store.store import Store
from ava_audit.verify import verify
from support.log import message, write
async def main():
    root = Path(sys.argv[2])
    async with Store.open(root) as log:
        await write(log, message("before"))
    with (root / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4_096):
                pass
        except OSError:
            pass
    def failed(error):
        print(str(error).replace(str(root), "ROOT"))
    try:
        async with Store.open(root):
            print("opened")
    except StoreUnavailable as error:
        failed(error)
    for use in (lambda: verify(root), lambda: copy_log(root / "ava.db", root.parent / "copy.db")):
        try:
            use()
        except StoreUnavailable as error:
            failed(error)
    (root / "filler").unlink()
    print(verify(root).ok)
anyio.run(main)
"""


@pytest.mark.sqlite_only("the disk of the data root")
def test_a_log_that_a_full_disk_leaves_no_room_to_open_is_not_called_broken(tmp_path: Path) -> None:
    *refused, whole = run_on_small_disk(tmp_path / "disk", NO_ROOM_TO_OPEN, size="2m")
    assert len(refused) == 3 and whole == "True"
    for words in refused:
        assert "its disk is full" in words and "free some space" in words and "I/O error" not in words


# -- a damaged file ---------------------------------------------------------------------------------------------------


def garbage_header(path: Path) -> None:
    path.with_name("ava.db-wal").unlink()  # it has the first page too, and would heal it
    path.write_bytes(b"garbage!" * 12 + path.read_bytes()[96:])


def flipped_pages(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    for page in range(len(raw) // 4096 // 2, len(raw) // 4096):
        raw[page * 4096 : page * 4096 + 64] = bytes(byte ^ 0xFF for byte in raw[page * 4096 : page * 4096 + 64])
    path.write_bytes(raw)


def truncated(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) * 2 // 3 + 100])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def no_header_of_the_wal(path: Path) -> None:
    wal = path.with_name("ava.db-wal")
    wal.write_bytes(b"\0" * 32 + wal.read_bytes()[32:])


def damaged_wal(path: Path) -> None:
    wal = path.with_name("ava.db-wal")
    raw = bytearray(wal.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    wal.write_bytes(raw)


DAMAGES: tuple[Callable[[Path], None], ...] = (
    garbage_header, flipped_pages, truncated, emptied, no_header_of_the_wal, damaged_wal,
)  # fmt: skip


def test_closes_a_connection_to_a_file_that_is_not_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def kept(*args: Any, **more: Any) -> sqlite3.Connection:
        made.append(connect(*args, **more))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", kept)
    path = tmp_path / "ava.db"
    path.write_bytes(b"no database" * 500)
    with pytest.raises(sqlite3.DatabaseError):
        connection.connect(path)
    (db,) = made
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.execute("SELECT 1")


@pytest.mark.sqlite_only("damages the file")
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_file_raises_audit_errors_and_acknowledges_no_unstored_entry(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    path, head = await damaged(tmp_path, damage)
    written: dict[int, str] = {}
    told: list[str] = []
    with anyio.fail_after(20):
        try:
            async with Store.open(path.parent) as log:
                for number in range(5):
                    try:
                        written[await log.do(next_one(f"after {number}"))] = f"after {number}"
                    except AuditError as error:
                        told.append(str(error))
                with contextlib.suppress(StoreUnavailable):
                    await log.read(lambda view: view.entries("S-aaaaaa"))
        except AuditError as error:
            told.append(str(error))
        if written:
            async with Store.open(path.parent) as log:
                for seq, text in written.items():
                    entry = await log.read(partial(View.entry, seq=seq))
                    assert entry is not None and entry.fact is not None and entry.fact.search_text() == text
    assert len(written) + len(told) == 5 or told[-1].startswith(f"the log in {path.parent} cannot be opened: ")
    for text in told:
        assert DAMAGED in text or "cannot be opened" in text, text
    assert not found_whole(path, head), "against the head that was noted it shows, whatever was damaged"


def found_whole(path: Path, head: str) -> bool:
    try:
        return verify(path, head=head).ok
    except StoreUnavailable:
        return False


def next_one(text: str) -> Command[int]:
    return lambda view, _now_us: Outcome(view.head() + 1, (message(text),))


async def damaged(tmp_path: Path, damage: Callable[[Path], None]) -> tuple[Path, str]:
    """A log of some hundred entries, the newest in the write-ahead log, that somebody has damaged; and its head."""
    live, root = tmp_path / "live", tmp_path / "data"
    live.mkdir()
    async with Store.open(live) as log:
        await write_each(log, Life("S-aaaaaa").all_events())
        await write_texts(log, (f"message {number} " + "x" * 500 for number in range(300)))
        await log.checkpoint()
        await write_texts(log, (f"newer {number} " + "x" * 500 for number in range(50)))
        head = verify(log.path).head
        shutil.copytree(live, root)  # as a machine leaves it that loses its power
    (root / "ava.db-shm").unlink()
    damage(root / "ava.db")
    return root / "ava.db", head


# -- a clock that jumps -----------------------------------------------------------------------------------------------


async def test_clock_jumps_of_an_hour_neither_stop_nor_reorder_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, off_us = time.time_ns, 0
    monkeypatch.setattr(time, "time_ns", lambda: real() + off_us * 1_000)
    life = Life("S-aaaaaa")
    with anyio.fail_after(40):
        async with Store.open(tmp_path) as log, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run_maintenance(log, tmp_path, mirror=True))
            await write_each(log, [*life.beginning(), life.reservation(), message("before")])
            began_us = real() // 1_000
            off_us = -HOUR_US
            await write_each(log, [life.settlement(), *life.tool(), message("an hour back")])
            off_us = HOUR_US
            await write_each(log, [life.answer(), *life.ending(), message("an hour on")])
            off_us = 0
            await write(log, message("and right again"))
            run = await log.read(lambda view: view.run(life.run_id))
            assert run is not None and run.state == "success" and run.active_us >= 0
            newest = await search(log, LogQuery(types=("UserMessage",), agents=("ava",)))
            assert words(newest.entries) == ["and right again", "an hour on", "an hour back", "before"]
            since = await search(
                log, LogQuery(types=("UserMessage",), agents=("ava",), since_us=began_us - HOUR_US // 2)
            )
            assert words(since.entries) == ["and right again", "an hour on", "before"]
            late = await search(log, LogQuery(types=("UserMessage",), since_us=began_us + HOUR_US // 2))
            assert words(late.entries) == ["an hour on"]
            head = await log.read(View.head)
            tasks.cancel_scope.cancel()
    assert verify(tmp_path).ok
    lines = [verify_lines(path) for path in (tmp_path / "logs").rglob("*.jsonl")]
    assert all(report.ok for report in lines) and sum(report.entries for report in lines) == head


def words(entries: Iterable[Entry]) -> list[str]:
    return [entry.fact.search_text() if entry.fact else "" for entry in entries]


SHOWS = """
import os, sys
from pathlib import Path
from ava_audit.store.locks import LockedInstances
instances = LockedInstances(Path(sys.argv[2]) / "instances")
own, late = instances.join(), instances.join()
own.show({"S-aaaaaa": "Thinking (1 token)"})
try:
    with open(Path(sys.argv[2]) / "filler", "wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass
except OSError as error:
    print(error.strerror)
own.show({"S-aaaaaa": "Thinking (2 tokens)"})
print(list(LockedInstances(instances.folder).activities().values()))
late.show({"S-bbbbbb": "Reading"})
own.show({"S-aaaaaa": "x" * 9_000})
print(list(LockedInstances(instances.folder).activities().values()))
own.remove()
late.remove()
print(os.listdir(instances.folder))
"""


@pytest.mark.sqlite_only("the disk of the data root")
def test_on_a_full_disk_it_is_rewritten_or_not_shown_and_raises_nothing(tmp_path: Path) -> None:
    assert run_on_small_disk(tmp_path / "disk", SHOWS, size="200k") == [
        "No space left on device", "['Thinking (2 tokens)']", "[]", "[]",
    ]  # fmt: skip


FULL = """
import sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ava_audit.errors import StoreUnavailable
from ava_audit.entries import Entry
from ava_audit.maintenance import run_maintenance
from ava_audit.store.connection import DAMAGED
from ava_audit.store.store import Command, Outcome, Store
from ava_audit.verify import verify
from ava_audit.view import View
from support.log import message, write
async def main():
    root = Path(sys.argv[2])
    filler = root / "filler"
    filler.write_bytes(b"x" * 200_000)
    acknowledged, refused, words = [], 0, set()
    async with Store.open(root) as log, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: run_maintenance(log, root, mirror=True))
        async def produce(name):
            nonlocal refused
            for number in range(12):
                text = f"{name}-{number} " + "x" * 4_000
                try:
                    await write(log, message(text))
                    acknowledged.append(text)
                except StoreUnavailable as error:
                    refused += 1
                    words.add(str(error))
        async with anyio.create_task_group() as producers:
            for name in "abcdefgh":
                producers.start_soon(produce, name)
        print(len(acknowledged) > 5, refused > 5)
        print("; ".join(sorted(words)))
        print(await log.read(View.head) == len(acknowledged))
        filler.unlink()
        (root / "ava.db-wal").stat()
        await write(log, message("there is room again"))
        tasks.cancel_scope.cancel()
    async with Store.open(root) as log:
        texts = await log.read(lambda view: [view.entry(seq).fact.text for seq in range(1, view.head() + 1)])
    print(texts == [*acknowledged, "there is room again"] or set(texts) ^ {*acknowledged, "there is room again"})
    print(verify(root).ok)
anyio.run(main)
"""
