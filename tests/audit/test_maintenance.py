"""The keeper: one at a time, taken over when it dies, late but never fatal."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from support.log import Life, child, write_each, write_texts
from support.logs.store import open_store

from ava_audit import maintenance, projections
from ava_audit.database import Database
from ava_audit.maintenance import index_new_entries, run_maintenance
from ava_audit.search import LogQuery, search
from ava_audit.store.locks import try_hold
from ava_audit.store.store import Store
from ava_audit.view import View

TESTS = Path(__file__).parent.parent


@asynccontextmanager
async def kept(root: Path, *, mirror: bool = True) -> AsyncIterator[Store]:
    """A store with a keeper, which is ended as a server would end it."""
    async with Store.open(root) as log, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run_maintenance, log, root, mirror=mirror))
        yield log
        tasks.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something outside of our reach is so: a file, another process."""
    while not await anyio.to_thread.run_sync(condition):  # noqa: ASYNC110
        await anyio.sleep(0.01)


async def until_progress(log: Store, duty: str, seq: int) -> None:
    while await log.read(partial(View.progress, duty=duty)) < seq:  # noqa: ASYNC110
        await anyio.sleep(0.01)


def lines(root: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (root / "logs").rglob("*.jsonl"))


async def test_indexes_and_mirrors_new_entries_within_a_second_of_the_commit(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with kept(tmp_path) as log:
            await write_each(log, Life("S-aaaaaa").all_events())
            with anyio.fail_after(1):
                await until_progress(log, "mirror", 11)
            assert lines(tmp_path) == 11
            await until_progress(log, "words", 11)
            await write_texts(log, ["more"])
            with anyio.fail_after(1):
                await until(lambda: lines(tmp_path) == 12)


@pytest.mark.sqlite_only("the write-ahead log of SQLite")
async def test_cancelled_maintenance_finishes_pending_work_and_empties_the_wal(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(run_maintenance, log, tmp_path, mirror=True))
            await write_texts(log, ["a"])
            await until_progress(log, "mirror", 1)
            await write_texts(log, ["the last words"] * 700)
            tasks.cancel_scope.cancel()
        assert lines(tmp_path) == 701
        assert await log.read(partial(View.progress, duty="words")) == 701
        assert (tmp_path / "ava.db-wal").stat().st_size == 0
        held = try_hold(tmp_path / "keeper.lock")
        assert held is not None
        held.release()


async def test_writes_no_files_without_the_mirror(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with kept(tmp_path, mirror=False) as log:
            await write_texts(log, ["a"])
            await until_progress(log, "words", 1)
        assert not (tmp_path / "logs").exists()


KEEP = """
import sys, anyio
from pathlib import Path
from functools import partial
from ava_audit.maintenance import run_maintenance
from ava_audit.search import LogQuery, search
from ava_audit.store.store import Store
async def main():
    root = Path(sys.argv[1])
    async with Store.open(root) as log, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run_maintenance, log, root, mirror=True))
        await anyio.sleep_forever()
anyio.run(main)
"""


async def test_only_one_process_runs_maintenance_and_another_takes_over_when_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "TAKE_OVER_S", 0.05)
    with anyio.fail_after(40):
        async with (
            Store.open(tmp_path) as log,
            await anyio.open_process(child(KEEP, tmp_path), stderr=None) as process,
        ):
            await write_texts(log, ["a"])
            await until(lambda: (tmp_path / "logs").exists() and lines(tmp_path) == 1)
            assert try_hold(tmp_path / "keeper.lock") is None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(run_maintenance, log, tmp_path, mirror=True))
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
                await write_texts(log, ["b"])
                await until(lambda: lines(tmp_path) == 2)
                assert try_hold(tmp_path / "keeper.lock") is None
                tasks.cancel_scope.cancel()


async def test_a_failed_mirror_write_stops_nothing_else_and_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "RETRY_S", (0.02,))
    (tmp_path / "logs").write_text("in the way")
    with anyio.fail_after(20):
        async with kept(tmp_path) as log:
            await write_texts(log, ["a"])
            await until(lambda: "updating the mirror failed" in caplog.text)
            await until_progress(log, "words", 1)  # its other duties go on
            (tmp_path / "logs").unlink()
            await until_progress(log, "mirror", 1)
        assert lines(tmp_path) == 1


@pytest.mark.sqlite_only("the write-ahead log of SQLite")
async def test_empties_a_large_wal_while_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "WAL_CHECK_S", 0.02)
    monkeypatch.setattr(maintenance, "WAL_BYTES", 100_000)
    monkeypatch.setattr(maintenance, "QUIET_S", 10**9)
    with anyio.fail_after(20):
        async with kept(tmp_path) as log:
            await write_texts(log, ["x" * 200_000])
            await until(lambda: (tmp_path / "ava.db-wal").stat().st_size < 100_000)


@pytest.mark.sqlite_only("the write-ahead log of SQLite")
async def test_checkpoints_a_quiet_log_into_the_database_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "QUIET_S", 0.02)
    with anyio.fail_after(20):
        async with kept(tmp_path) as log:
            await write_texts(log, ["a"])
            await until_progress(log, "mirror", 1)
            await until(lambda: (tmp_path / "ava.db-wal").stat().st_size == 0)


@pytest.mark.sqlite_only("the write-ahead log of SQLite")
async def test_the_writes_of_maintenance_alone_do_not_grow_the_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "QUIET_S", 0.1)
    monkeypatch.setattr(maintenance, "WAL_CHECK_S", 0.02)
    monkeypatch.setattr(maintenance, "WAL_BYTES", 100_000)
    wal = tmp_path / "ava.db-wal"
    with anyio.fail_after(40):
        async with kept(tmp_path) as log:
            await write_texts(log, ["a"])
            await until_progress(log, "mirror", 1)
            for _ in range(3):
                await until(lambda: wal.stat().st_size == 0)
                await anyio.sleep(0.3)  # the keeper waits for news that do not come
                while wal.stat().st_size < 100_000:
                    log.set_live("S-aaaaaa", "x" * 10_000)
                    await log.maintain(lambda _db: None)  # with which it is written
                    await anyio.sleep(0.005)


async def test_an_index_batch_resumes_where_its_time_limit_stopped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "INDEX_S", 0.0)
    monkeypatch.setattr(projections, "INDEX_CHECK_CHARS", 2_000)
    pieces: list[int] = []
    real = projections.index_words

    def counted(*args: Any, **more: Any) -> int:
        pieces.append(real(*args, **more))
        return pieces[-1]

    monkeypatch.setattr(maintenance, "index_words", counted)
    async with open_store(tmp_path, within_s=40) as log:
        await write_texts(log, [f"word{number}" for number in range(600)])
        await index_new_entries(log)
        assert len(pieces) > 100 and 0 < max(pieces) < 10 and sum(pieces) == 600
        assert await log.read(partial(View.progress, duty="words")) == 600
        found = await search(log, LogQuery(search="word599 OR word0", limit=10))
        assert found.entries == ()
        for word in ("word0", "word250", "word599"):
            assert len((await search(log, LogQuery(search=word))).entries) == 1


async def test_rebuilds_an_index_batch_made_before_an_erasure(tmp_path: Path) -> None:
    from ava_audit.maintenance import next_index_rows
    from ava_audit.projections import index_words

    async with open_store(tmp_path) as log:
        await write_texts(log, ["a", "b"])
        done, erased, rows, _whole = await log.read(next_index_rows)

        def erase(db: Database) -> None:
            db.execute("UPDATE events SET content = NULL WHERE seq = 2")

        await log.maintain(erase)
        put_in = partial(index_words, rows=rows, after=done, erased=erased)
        assert not await log.maintain(put_in)
        await index_new_entries(log)
        assert not await log.maintain(put_in)
        assert await log.read(partial(View.progress, duty="words")) == 2


async def test_maintenance_cancelled_before_it_starts_finishes_pending_work(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        await write_texts(log, ["one", "two"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(run_maintenance, log, tmp_path, mirror=True))
            await anyio.lowlevel.checkpoint()  # it asks for the lock by now
            tasks.cancel_scope.cancel()
        assert await log.read(partial(View.progress, duty="words")) == 2
    assert lines(tmp_path) == 2
