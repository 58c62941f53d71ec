"""Retention: erases the content of old runs. The entries stay, and the hash chain still verifies.

An erasure has two parts. First, the log changes, one transaction a batch: contents become NULL, their text leaves the
index, the mirror files that hold them are marked, and a `LogErased` is appended. Second comes what cannot be part of a
transaction: marked files are repaired, the index is merged, the run's folders are removed, the database is rewritten,
the write-ahead log is emptied. Whichever process does maintenance finishes this, however often it is killed in between.
`progress.erased` is the `seq` of the last `LogErased` for which everything is done.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from ava_audit.database import Database, IndexRow
from ava_audit.entries import HEADER, entry_of
from ava_audit.events import TRANSCRIPT_TYPES, Event, LogErased, Who
from ava_audit.mirror import Mirror, file_of, remove_quarantined_runs
from ava_audit.projections import erase_entries, forget_live, merge_words, note_progress
from ava_audit.rows import WAITING, RunRow
from ava_audit.search import index_row
from ava_audit.store.connection import file_size
from ava_audit.store.store import Outcome, Store, T
from ava_audit.units import DAY_US, now_us
from ava_audit.view import View, placeholders

SESSION_ID = "keeper"
"""The session of entries that maintenance writes; it is not a host connection."""
BATCH = 25
BATCH_CHARS = 50_000
"""What one transaction erases at most, so that other writers wait briefly."""
LOOK_AHEAD = 4_000
MERGE_PAGES = 25
REWRITE_BYTES = 100_000_000
"""A larger database is not rewritten after an erasure, because writers would wait too long."""
WAL_BYTES = 4_000_000
"""A larger write-ahead log is moved into the database at once; a smaller one when no process writes."""
PAUSE_S = 0.01
"""The shortest pause after a transaction. The pause is as long as the transaction took: half of the time stays free."""
BUSY_S = 0.2
_TYPES = tuple(sorted(TRANSCRIPT_TYPES))
_HAS_CONTENT = f"content IS NOT NULL AND type IN ({placeholders(_TYPES)})"
_TYPE = HEADER.index("type")
_RUN_ID = HEADER.index("run_id")
_CONTENT = len(HEADER)


@dataclass(frozen=True)
class Retention:
    """How long content is kept: days after a run's end, or after an orchestrator's own entry was written.

    `folders` are those in which a run may have its own, named by its id; it is removed with the content.
    """

    days: int
    folders: tuple[Path, ...] = ()


@dataclass
class _Batch:
    """What one transaction erases, and the `seq` up to which the log was searched before and for it."""

    after: int = 0
    upto: int = 0
    rows: list[IndexRow] = field(default_factory=list[IndexRow])
    owners: dict[int, tuple[str, str | None]] = field(default_factory=dict[int, tuple[str, str | None]])
    files: set[str] = field(default_factory=set[str])
    chars: int = 0

    @property
    def full(self) -> bool:
        return len(self.rows) >= BATCH or self.chars >= BATCH_CHARS

    def add(self, row: Sequence[object]) -> None:
        entry = entry_of(row)
        self.rows.append(index_row(entry))
        self.owners[entry.seq] = (entry.who.user_id, entry.run_id)
        self.files.add(file_of(entry.who.agent_id, entry.ts_us))
        self.chars += len(entry.content or "")


def is_over(view: View, run: RunRow, now_us: int) -> bool:
    """Tell whether a run can no longer change: it has ended, or its proposal expired undecided.

    A plan needs the results of its runs, so these are over with it.
    """
    plan_id = _plan_of_step(run)
    if plan_id is not None:
        plan = view.run(plan_id)
        if plan is not None and not plan.ended:
            return False
    if run.state != WAITING:
        return run.ended
    proposal = view.proposal(run.pending_id)
    return proposal is None or proposal.expires_us <= now_us


def _plan_of_step(run: RunRow) -> str | None:
    """Return the plan that a run is a step of; None for any other run."""
    return None if run.step is None else run.plan_id


def retention_horizon(view: View, now_us: int, days: int) -> tuple[int, int]:
    """Return the last `seq` of the entries that are older than `days`, and the time limit (microseconds UTC).

    A clock may be wrong, and an erasure is final, so only time that the log has seen pass counts. "Now" is at most one
    day after the newest entry that is a day old: if the clock jumps ahead, nothing is erased for a day. An entry is not
    old if any entry before it is young: the clock was behind then. Limits are whole UTC days, so that there is work
    once a day.
    """
    seen = view.newest_before(now_us - DAY_US)
    if seen is None:
        return 0, 0
    limit = seen + DAY_US - days * DAY_US
    limit -= limit % DAY_US
    first, _last = view.seq_bounds(limit, now_us + 1)
    return view.last_older(limit, first or view.head() + 1), limit


@dataclass(frozen=True)
class ComingErasure:
    """A day whose ended runs lose their texts, and when that begins; days since 1970, UTC."""

    ended_on: int
    erased_on: int
    runs: int


def coming_erasures(view: View, now_us: int, days: int, most: int, user: str | None = None) -> list[ComingErasure]:
    """Return the next erasures of runs' texts, at most `most`; `user` None means everybody's.

    They come a day later where the clock was wrong, and none comes while no entry is a day old.
    """
    erasures: list[ComingErasure] = []
    since_us = (now_us // DAY_US - days) * DAY_US
    of_user = "(CAST(? AS TEXT) IS NULL OR user_id = ?)"
    for _ in range(most):
        first = f"SELECT min(ended_us) FROM runs WHERE ended_us >= ? AND {of_user}"  # noqa: S608
        ((ended_us,),) = view.select(first, since_us, user, user)
        if ended_us is None:
            break
        day = int(ended_us) // DAY_US
        count = f"SELECT count(*) FROM runs WHERE ended_us >= ? AND ended_us < ? AND {of_user}"  # noqa: S608
        ((runs,),) = view.select(count, day * DAY_US, (day + 1) * DAY_US, user, user)
        erasures.append(ComingErasure(day, day + days + 1, int(runs)))
        since_us = (day + 1) * DAY_US
    return erasures


async def erase_expired(store: Store, days: int, *, batches: int) -> bool:
    """Erase at most `batches` of what is older than `days`; return True if nothing is left."""
    upto, limit = await store.read(partial(retention_horizon, now_us=now_us(), days=days))
    for _ in range(batches):
        batch = await store.read(partial(_next_batch, upto=upto, limit=limit))
        if batch is None:
            return True
        await _transact(store, partial(_erase_expired, batch=batch, why=f"older than {days} days"))
    return False


async def erase_run(store: Store, run_id: str, also: Sequence[int], who: Who, why: str) -> int:
    """Erase the content of a run that is over, and return the number of erased entries.

    Maintenance finishes the erasure (`erasure_pending` tells when). Until then, files and free pages may hold text.
    `also` has the `seq` of the orchestrator's entries that quote the run without naming it in their header. Raises
    StoreUnavailable: the log cannot be read or written.
    """
    total = 0
    while True:
        batch = await store.read(partial(_run_batch, run_id=run_id, also=also))
        erased = await _transact(store, partial(_erase_run, batch=batch, run_id=run_id, who=who, why=why))
        total += erased or 0
        if erased is None or not batch.full:
            return total
        also = ()


def erasure_pending(view: View) -> bool:
    """Tell whether content that was erased from the log may still be elsewhere in the data root."""
    return view.last_erasure() > view.progress("erased")


def erasure_requested(view: View) -> bool:
    return bool(_unfinished(view).whole)


async def finish_erasures(store: Store, mirror: Mirror, folders: Iterable[Path], *, mirrored: bool) -> None:
    """Finish all erasures: the rest of each run, the mirror, the index, folders, and the database file.

    Every step can be repeated. After a kill, the next process starts again from the first step. Raises
    StoreUnavailable: the log cannot be read or written; OSError: a file cannot be written, or a folder not removed.
    """
    while await store.read(erasure_pending):
        unfinished = await store.read(_unfinished)
        for run_id, (who, why) in unfinished.whole.items():
            if (await store.read(partial(_run_batch, run_id=run_id))).rows:
                await erase_run(store, run_id, (), who, why)
        await mirror.repair_erased(create=mirrored)
        more = await store.maintain(partial(merge_words, pages=-MERGE_PAGES))
        while more:
            await anyio.sleep(PAUSE_S)
            more = await store.maintain(partial(merge_words, pages=MERGE_PAGES))
        await anyio.to_thread.run_sync(_remove_folders, list(folders), unfinished.runs)
        await anyio.to_thread.run_sync(remove_quarantined_runs, mirror.folder, unfinished.runs)
        if store.blobs is not None:
            await anyio.to_thread.run_sync(store.blobs.release, unfinished.runs)
        # `secure_delete` overwrites deleted rows, but not the copies that remain in a page after its rows move.
        await store.checkpoint(rewrite=await anyio.to_thread.run_sync(file_size, store.path) <= REWRITE_BYTES)
        while not await store.checkpoint():  # noqa: ASYNC110 - a reader still needs the old pages
            await anyio.sleep(BUSY_S)
        await store.maintain(partial(note_progress, duty="erased", seq=unfinished.upto))


async def remove_erased_folders(store: Store, folders: Iterable[Path]) -> None:
    """Remove folders of runs that another machine erased. Raises StoreUnavailable, OSError."""
    names = await anyio.to_thread.run_sync(_folder_names, list(folders))
    erased = await store.read(lambda view: [name for name in names if view.is_erased(name)])
    await anyio.to_thread.run_sync(_remove_folders, list(folders), erased)


def _folder_names(folders: Iterable[Path]) -> list[str]:
    names: set[str] = set()
    for folder in folders:
        if folder.is_dir():
            names.update(path.name for path in folder.glob("S-*"))
    return sorted(names)


@dataclass(frozen=True)
class _Unfinished:
    """Erasures to finish: their last `seq`, their runs, and who erases which whole run, and why."""

    upto: int
    runs: tuple[str, ...]
    whole: dict[str, tuple[Who, str]]


def _unfinished(view: View) -> _Unfinished:
    upto = view.last_erasure()
    runs: dict[str, None] = {}
    whole: dict[str, tuple[Who, str]] = {}
    for row in view.rows("type = 'LogErased' AND seq > ? AND seq <= ?", view.progress("erased"), upto):
        entry = entry_of(row)
        if isinstance(entry.fact, LogErased) and entry.fact.run_id is not None:
            runs[entry.fact.run_id] = None
            if entry.fact.whole:
                whole[entry.fact.run_id] = (entry.who, entry.fact.why)
    return _Unfinished(upto, tuple(runs), whole)


def _run_batch(view: View, *, run_id: str, also: Sequence[int] = ()) -> _Batch:
    """Return the next batch of a run. The first includes all entries that quote it: later they could not be found."""
    batch = _Batch()
    for seq in also:
        for row in view.rows(f"seq = ? AND {_HAS_CONTENT}", seq, *_TYPES):
            batch.add(row)
    for row in view.rows(f"run_id = ? AND {_HAS_CONTENT}", run_id, *_TYPES):
        if batch.full:
            break
        batch.add(row)
    return batch


def _next_batch(view: View, *, upto: int, limit: int) -> _Batch | None:
    """Return the next batch before the horizon (the entry `upto`, and the time `limit`); None if there is none.

    The text of a run that is not over yet is left out here; it is added when its `RunEnded` comes.
    """
    after = view.progress("retention")
    if after >= upto:
        return None
    batch = _Batch(after, after)
    was_over: dict[str, bool] = {}
    for row in view.rows("seq > ? AND seq <= ?", after, upto, limit=LOOK_AHEAD):
        seq = row[0]
        run_id = row[_RUN_ID]
        if row[_TYPE] == "RunEnded" and run_id is not None:
            for ended_id in _runs_over_with(view, run_id, upto, limit):
                _add_text_until(view, batch, ended_id, seq)
                if batch.full:  # `batch.upto` stays: the next batch finds the rest, and everything after it
                    return batch
        elif row[_CONTENT] is not None and row[_TYPE] in TRANSCRIPT_TYPES:
            if run_id is not None and run_id not in was_over:
                was_over[run_id] = _was_over(view, run_id, upto, limit)
            if run_id is None or was_over[run_id]:
                batch.add(row)
        batch.upto = seq
        if batch.full:
            break
    return batch


def _add_text_until(view: View, batch: _Batch, run_id: str, seq: int) -> None:
    """Add a run's entries with text, the last at `seq`, until the batch is full."""
    rows_with_text = f"run_id = ? AND seq <= ? AND {_HAS_CONTENT}"
    for row in view.rows(rows_with_text, run_id, seq, *_TYPES, limit=BATCH):
        batch.add(row)
        if batch.full:
            return


def _runs_over_with(view: View, run_id: str, upto: int, limit: int) -> list[str]:
    """Return the runs whose content nobody needs once this one has ended: itself, and those of a plan's steps."""
    run = view.run(run_id)
    if run is not None and run.is_plan:
        step_ids = [step.id for step in view.step_runs(run_id)]
        return [run_id, *step_ids]
    if _was_over(view, run_id, upto, limit):
        return [run_id]
    return []


def _was_over(view: View, run_id: str, upto: int, limit: int) -> bool:
    """Tell whether a run was over at the horizon: the entry `upto`, and the time `limit`."""
    run = view.run(run_id)
    if run is None:
        return True
    if not is_over(view, run, limit):
        return False
    if not run.ended:
        return True
    last_run = _plan_of_step(run) or run_id
    end = view.last_entry(last_run, "RunEnded")
    return end is not None and end.seq <= upto


def _erase_expired(db: Database, batch: _Batch, why: str) -> Outcome[int]:
    if View(db).progress("retention") != batch.after:  # another process has erased meanwhile
        return Outcome(0)
    note_progress(db, "retention", batch.upto)
    counts = _erase(db, batch)
    events: list[Event] = []
    for (user, run_id), count in counts.items():
        fact = LogErased(run_id=run_id, entries=count, why=why)
        events.append(Event(Who(SESSION_ID, "ava", user), fact, run_id=run_id))
    return Outcome(counts.total(), tuple(events))


def _erase_run(db: Database, batch: _Batch, run_id: str, who: Who, why: str) -> Outcome[int | None]:
    view = View(db)
    run = view.run(run_id)
    if run is None or not is_over(view, run, now_us()):
        return Outcome(None)
    erased = _erase(db, batch).total()
    if not erased:
        return Outcome(0)
    fact = LogErased(run_id=run_id, entries=erased, why=why, whole=True)
    return Outcome(erased, (Event(who, fact, run_id=run_id),))


def _erase(db: Database, batch: _Batch) -> Counter[tuple[str, str | None]]:
    counts = Counter(batch.owners[seq] for seq in erase_entries(db, batch.rows, batch.files))
    forget_live(db, {run_id for _user, run_id in counts if run_id is not None})
    return counts


async def _transact(store: Store, work: Callable[[Database], Outcome[T]]) -> T:
    """Run one transaction, then pause for as long as it took."""
    began = time.monotonic()
    done = await store.maintain_with_events(work)
    if await anyio.to_thread.run_sync(file_size, store.wal) > WAL_BYTES:  # often, so that each time is short
        await store.checkpoint()
    await anyio.sleep(max(PAUSE_S, time.monotonic() - began))
    return done


def _remove_folders(folders: Iterable[Path], runs: Iterable[str]) -> None:
    """Remove the folders of runs. If a link is in place of one, the link is removed and its target stays."""
    for folder in folders:
        for run_id in runs:
            path = folder / run_id
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.exists():
                shutil.rmtree(path)
