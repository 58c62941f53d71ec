"""The keeper: the one process on a data root that brings text index, mirror and database file up to date, and erases.

Whoever holds `keeper.lock` is it; when it dies, another process takes the lock. Its duties run side by side, each
retried for ever: what fails here is late, and never stops a run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from ava_audit.entries import ENTRY_COLUMNS, entry_of
from ava_audit.errors import SchemaNewer, StoreUnavailable
from ava_audit.mirror import Mirror, remove_old_quarantined
from ava_audit.projections import IndexRow, index_words
from ava_audit.retention import (
    WAL_BYTES,
    Retention,
    erase_expired,
    erasure_pending,
    erasure_requested,
    finish_erasures,
    retention_horizon,
)
from ava_audit.store.locks import hold_when_free
from ava_audit.store.store import Store, T
from ava_audit.text_index import index_row
from ava_audit.view import View

log = logging.getLogger("ava.keeper")

TAKE_OVER_S = 1.0
"""How often a process that is not the keeper tries to become it."""
GROUP_S = 0.2
"""How long a duty waits for more news after it has dealt with some; the mirror has 1 s after a commit."""
RETRY_S = (1.0, 5.0, 30.0)
FINAL_S = 2.0
"""How long a keeper that is asked to end may take to finish its duties; the server has 5 s in all."""
INDEX_BATCH = 500
INDEX_CHARS = 4_000_000
INDEX_S = 0.005
"""After so long no more is put into the index in one piece: whoever writes waits meanwhile."""
WAL_LOOK_S = 0.1
"""How often is looked how large it is, while somebody writes: the larger, the longer whoever writes waits."""
QUIET_S = 3.0
REFUSED_S = (0.1, 1.6)
"""How long is waited for a reader that still needs what is in the write-ahead log: at first, and at most."""
SWEEP_EVERY_S = 3_600.0
"""How often is looked for what has become old."""
SWEEP_PIECES = 50
"""Pieces of it between two looks for a run that somebody wants erased now."""


async def run_maintenance(store: Store, root: Path, *, mirror: bool, retention: Retention | None = None) -> None:
    """Be the keeper of a data root whenever no other process is, until cancelled; then finish what is begun.

    It ends by itself when a newer program has migrated the log: that one keeps it then.

    Cancel it while the store is still open, after the last entry has been written.

    Args:
        store: The open log.
        root: The data root.
        mirror: Write the JSONL mirror too.
        retention: How long words are kept; None erases nothing.
    """
    with await hold_when_free(root / "keeper.lock", TAKE_OVER_S):
        await _keep(store, Mirror(store, root / "logs"), mirror, retention)


async def _keep(store: Store, mirror: Mirror, mirrored: bool, retention: Retention | None) -> None:
    """Do the duties until cancelled, and once more before the end; or until a newer program has migrated the log."""
    outdated = False
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_duty, "the text index", store, partial(index_new_entries, store))
            if mirrored:
                tasks.start_soon(_duty, "the mirror", store, mirror.catch_up)
            tasks.start_soon(_mind_the_wal, store)
            if retention is not None:
                tasks.start_soon(_erase, store, mirror, mirrored, retention)
    except* SchemaNewer as group:
        outdated = True
        log.warning("the log is kept by a newer program from now on: %s", group.exceptions[0])
    finally:
        if not outdated:
            with anyio.move_on_after(FINAL_S, shield=True):
                await _finish(store, mirror if mirrored else None)


async def _finish(store: Store, mirror: Mirror | None) -> None:
    try:
        await store.keep_house(lambda _db: None)  # behind what was posted and nobody waited for, as a farewell is
        if mirror is not None:
            await mirror.catch_up()
        await index_new_entries(store)
        await store.checkpoint()
    except Exception as error:  # the next keeper completes it
        log.warning("the keeper ended before its work was done: %s", error)


async def _erase(store: Store, mirror: Mirror, mirrored: bool, retention: Retention) -> None:
    """Erase what has become old, now and every hour, and finish what anybody has begun to erase, at once."""
    finish = partial(finish_erasures, store, mirror, retention.folders, mirrored=mirrored)
    while True:
        await _retried("erasing", finish)
        while not await _retried(
            "erasing what is old", partial(erase_expired, store, retention.days, pieces=SWEEP_PIECES)
        ):
            if await _retried("erasing", partial(store.read, erasure_requested)):
                await _retried("erasing", finish)
        await _retried("erasing", finish)
        await _retried("erasing what is old", partial(_forget_old, store, mirror.folder, retention.days))
        with anyio.move_on_after(SWEEP_EVERY_S):
            while True:
                head = store.head
                if await _retried("erasing", partial(store.read, erasure_pending)):
                    await _retried("erasing", finish)
                await store.newer_than(head)
                await anyio.sleep(GROUP_S)


async def _forget_old(store: Store, folder: Path, days: int) -> None:
    _upto, limit_us = await store.read(partial(retention_horizon, now_us=time.time_ns() // 1000, days=days))
    await anyio.to_thread.run_sync(remove_old_quarantined, folder, limit_us)


async def _duty(name: str, store: Store, work: Callable[[], Awaitable[None]]) -> None:
    """Do a piece of work now, and again whenever the log has news."""
    while True:
        head = store.head
        await _retried(name, work)
        await anyio.sleep(GROUP_S)
        await store.newer_than(head)


async def _retried(name: str, work: Callable[[], Awaitable[T]]) -> T:
    """Do a piece of work until it succeeds."""
    failures = 0
    while True:
        try:
            return await work()
        except SchemaNewer:
            raise
        except Exception as error:
            pause = RETRY_S[min(failures, len(RETRY_S) - 1)]
            failures += 1
            # ValueError: an entry whose content is no longer what was written; `ava verify` names it.
            expected = isinstance(error, StoreUnavailable | OSError | ValueError)
            log.warning(
                "%s could not be brought up to date: %s; again in %g s",
                name,
                str(error).partition("\n")[0],
                pause,
                exc_info=not expected,
            )
            await anyio.sleep(pause)


async def index_new_entries(store: Store) -> None:
    """Put the words of all entries that the text index does not have into it.

    Raises:
        StoreUnavailable: The log cannot be read or written.
    """
    while True:
        after, erased, rows = await store.read(_next_index_rows)
        if not rows:
            return
        while rows:
            some = partial(index_words, rows=rows, after=after, erased=erased, for_s=INDEX_S)
            done = await store.keep_house(some)
            if done == 0:
                break
            after, rows = rows[done - 1][0], rows[done:]
            erased = {seq for seq in erased if seq > after}


def _next_index_rows(view: View) -> tuple[int, set[int], list[IndexRow]]:
    """Return how far the index is, which entries of the next batch are erased, and the batch."""
    done = view.progress("words")
    rows: list[IndexRow] = []
    erased: set[int] = set()
    size = 0
    sql = f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
    for row in view.select(sql, done, INDEX_BATCH):
        entry = entry_of(row)
        if entry.content is None:
            erased.add(entry.seq)
        rows.append(index_row(entry))
        size += len(rows[-1][-1])
        if size > INDEX_CHARS:
            break
    return done, erased, rows


async def _mind_the_wal(store: Store) -> None:
    """Empty the write-ahead log when it has grown, and when nobody has written into it for a while.

    Whether somebody has is told by the file itself: what the keeper writes is no entry, and no news.
    """
    seen, since = (-1, -1), anyio.current_time()
    pause_s = REFUSED_S[0]
    while True:
        head = store.head
        state = await anyio.to_thread.run_sync(_size_and_time, store.wal)
        changed = state != seen
        if changed:
            seen, since = state, anyio.current_time()
        quiet = anyio.current_time() - since >= QUIET_S
        if state[0] > WAL_BYTES or (state[0] > 0 and quiet):
            if await _retried("the database file", store.checkpoint):
                pause_s = REFUSED_S[0]
            else:
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, REFUSED_S[1])
        if not changed:
            with anyio.move_on_after(QUIET_S):
                await store.newer_than(head)
        await anyio.sleep(WAL_LOOK_S)


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
