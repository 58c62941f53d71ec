"""Background maintenance: text index, mirror, database file and erasure, by one process on a data root.

The process that holds `keeper.lock` does it; when it dies, another process takes the lock. The duties run side by side,
and each is retried for ever: a failure here causes a delay, and never stops a run.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from ava_audit.database import IndexRow
from ava_audit.entries import ENTRY_COLUMNS, entry_of, limit_content
from ava_audit.errors import SchemaNewer, StoreUnavailable, is_thread_shortage
from ava_audit.mirror import Mirror, remove_old_quarantined, size_and_time
from ava_audit.projections import index_words
from ava_audit.retention import (
    WAL_BYTES,
    Retention,
    erase_expired,
    erasure_pending,
    erasure_requested,
    finish_erasures,
    remove_erased_folders,
    retention_horizon,
)
from ava_audit.search import index_row
from ava_audit.store.locks import hold_when_free
from ava_audit.store.store import Store, T
from ava_audit.units import now_us
from ava_audit.view import View

log = logging.getLogger("ava.maintenance")

TAKE_OVER_S = 1.0
"""How often other processes try to take the lock."""
GROUP_S = 0.2
"""How long a duty waits after an entry, for more of them and out of the way of the process that wrote it. The mirror
must follow within 1 s of a commit."""
RETRY_S = (1.0, 5.0, 30.0)
FINAL_S = 2.0
"""How long the duties may take at the end; the server has 5 s to shut down."""
INDEX_BATCH = 500
INDEX_CHARS = 4_000_000
INDEX_S = 0.005
"""How long one transaction adds to the index, because other writers wait meanwhile."""
WAL_CHECK_S = 0.1
"""How often the size of the write-ahead log is checked: a larger one makes writers wait longer for its checkpoint."""
QUIET_S = 3.0
REFUSED_S = (0.1, 1.6)
"""The shortest and longest pause while a reader still needs the write-ahead log."""
ERASE_EVERY_S = 3_600.0
"""How often expired content is looked for."""
SWEEP_EVERY_S = 300.0
"""How often leftovers of dead processes are removed."""
ERASE_BATCHES = 50
"""Batches of expired content between two checks for a run that is to be erased now."""


async def run_maintenance(
    store: Store,
    root: Path,
    *,
    mirror: bool,
    retention: Retention | None = None,
    sweep: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Maintain a data root whenever no other process does, until cancelled; then finish the work begun.

    Cancel it while the store is still open, after the last entry was written. It returns when a newer program has
    migrated the log, because that program maintains it then. `sweep` removes what dead processes left; it is called at
    once, then every `SWEEP_EVERY_S`. `retention` None erases nothing.
    """
    with await hold_when_free(root / "keeper.lock", TAKE_OVER_S):
        async with anyio.create_task_group() as tasks:
            if sweep is not None:
                tasks.start_soon(_repeat, sweep)
            if retention is not None:
                tasks.start_soon(_repeat, partial(remove_erased_folders, store, retention.folders))
            async with store.maintaining():
                await _maintain(store, Mirror(store, root / "logs"), mirror, retention)
            tasks.cancel_scope.cancel()


async def _repeat(sweep: Callable[[], Awaitable[None]]) -> None:
    while True:
        await _retry("removing what dead processes left", sweep)
        await anyio.sleep(SWEEP_EVERY_S)


async def _maintain(store: Store, mirror: Mirror, mirrored: bool, retention: Retention | None) -> None:
    outdated = False
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_follow, "updating the text index", store, partial(index_new_entries, store))
            if mirrored:
                tasks.start_soon(_follow, "updating the mirror", store, mirror.catch_up)
            tasks.start_soon(_checkpoint_wal, store)
            if retention is not None:
                tasks.start_soon(_erase, store, mirror, mirrored, retention)
    except* SchemaNewer as group:
        outdated = True
        log.warning("a newer program maintains the log from now on: %s", group.exceptions[0])
    finally:
        if not outdated:
            with anyio.move_on_after(FINAL_S, shield=True):
                await _finish(store, mirror if mirrored else None)


async def _finish(store: Store, mirror: Mirror | None) -> None:
    try:
        await store.maintain(lambda _db: None)  # runs after everything that was posted, e.g. the end of a session
        if mirror is not None:
            await mirror.catch_up()
        await index_new_entries(store)
        await store.checkpoint()
    except Exception as error:  # the next process completes it
        log.warning("maintenance stopped before its work was done: %s", error)


async def _erase(store: Store, mirror: Mirror, mirrored: bool, retention: Retention) -> None:
    finish = partial(_retry, "erasing", partial(finish_erasures, store, mirror, retention.folders, mirrored=mirrored))
    expire = partial(erase_expired, store, retention.days, batches=ERASE_BATCHES)
    while True:
        await finish()
        while not await _retry("erasing expired content", expire):
            if await _retry("erasing", partial(store.read, erasure_requested)):
                await finish()
        await finish()
        await _retry("erasing expired content", partial(_remove_quarantined, store, mirror.folder, retention.days))
        with anyio.move_on_after(ERASE_EVERY_S):
            while True:
                head = store.head
                if await _retry("erasing", partial(store.read, erasure_pending)):
                    await finish()
                await store.wait_for_entry_after(head)
                await anyio.sleep(GROUP_S)


async def _remove_quarantined(store: Store, folder: Path, days: int) -> None:
    _upto, limit_us = await store.read(partial(retention_horizon, now_us=now_us(), days=days))
    await anyio.to_thread.run_sync(remove_old_quarantined, folder, limit_us)


async def _follow(name: str, store: Store, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        head = store.head
        await _retry(name, work)
        await store.wait_for_entry_after(head)
        await anyio.sleep(GROUP_S)


async def _retry(name: str, work: Callable[[], Awaitable[T]]) -> T:
    """Do work until it succeeds, with pauses between failures, and return its result. Raises SchemaNewer at once."""
    failures = 0
    while True:
        try:
            return await work()
        except SchemaNewer:
            raise
        except Exception as error:
            pause = RETRY_S[min(failures, len(RETRY_S) - 1)]
            failures += 1
            # ValueError: the content of an entry was changed; `ava verify` names the entry.
            is_expected = isinstance(error, StoreUnavailable | OSError | ValueError) or is_thread_shortage(error)
            reason = str(error).partition("\n")[0]
            log.warning("%s failed: %s; next try in %g s", name, reason, pause, exc_info=not is_expected)
            await anyio.sleep(pause)


async def index_new_entries(store: Store) -> None:
    """Add all entries that the text index lacks now; later ones come in the next batch. Raises StoreUnavailable."""
    while True:
        after, erased, rows, whole = await store.read(next_index_rows)
        if not rows:
            return
        while rows:
            add = partial(index_words, rows=rows, after=after, erased=erased, for_s=INDEX_S)
            done = await store.maintain(add)
            if done == 0:
                break
            after, rows = rows[done - 1][0], rows[done:]
            erased = {seq for seq in erased if seq > after}
        if whole and not rows:
            return


def next_index_rows(view: View) -> tuple[int, set[int], list[IndexRow], bool]:
    """Return the progress of the index, the next batch's erased entries and rows, and whether the log ends there."""
    done = view.progress("words")
    sql = f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
    entries = [entry_of(row) for row in limit_content(view.stream(sql, done, INDEX_BATCH), INDEX_CHARS)]
    erased = {entry.seq for entry in entries if entry.content is None}
    return done, erased, [*map(index_row, entries)], not entries or entries[-1].seq == view.head()


async def _checkpoint_wal(store: Store) -> None:
    """Empty the write-ahead log when it has grown, or when its file has not changed for a while."""

    async def look() -> tuple[int, float]:
        return await anyio.to_thread.run_sync(size_and_time, store.wal)

    seen, since = (-1, -1.0), anyio.current_time()
    pause_s = REFUSED_S[0]
    while True:
        head = store.head
        state = await _retry("looking at the write-ahead log", look)
        changed = state != seen
        if changed:
            seen, since = state, anyio.current_time()
        quiet = anyio.current_time() - since >= QUIET_S
        if state[0] > WAL_BYTES or (state[0] > 0 and quiet):
            if await _retry("emptying the write-ahead log", store.checkpoint):
                pause_s = REFUSED_S[0]
            else:
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, REFUSED_S[1])
        if not changed:
            with anyio.move_on_after(QUIET_S):
                await store.wait_for_entry_after(head)
        await anyio.sleep(WAL_CHECK_S)
