"""Retention: the words of runs that ended long ago go, the entries stay, and the chain still verifies.

Erasing is two things. The log itself changes in one transaction a piece: contents become NULL, their words leave the
text index, the files of the mirror in which they stand are marked, and a `LogErased` says so. What cannot be part of
a transaction follows, and is finished by whoever is the keeper, however often it is killed in between: marked files
are written anew, the index is rewritten, the run's folders are removed, the write-ahead log is emptied. How far that
is done stands in the log's database: everything up to the `LogErased` with the number in `progress.erased`.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from ava_audit.entries import entry_of
from ava_audit.events import TRANSCRIPT_TYPES, Event, LogErased, Who
from ava_audit.mirror import Mirror, file_of, remove_quarantined_runs
from ava_audit.projections import IndexRow, erase_entries, forget_live, merge_words, note_progress
from ava_audit.rows import WAITING, RunRow
from ava_audit.store.store import Outcome, Store, T
from ava_audit.text_index import index_row
from ava_audit.units import US_PER_S
from ava_audit.view import View

log = logging.getLogger("ava.retention")

DAY_US = 86_400 * US_PER_S
SESSION_ID = "keeper"
"""The session under which the keeper writes: it is no host connection."""
SLICE = 25
SLICE_CHARS = 50_000
"""What one transaction erases at most: a writer that comes meanwhile waits for no more than that."""
LOOK = 4_000
MERGE_PAGES = 25
WAL_BYTES = 4_000_000
"""A write-ahead log larger than this is moved into the database at once; a smaller one when nobody writes."""
PAUSE_S = 0.01
"""The least rest between two transactions; it is as long as the one before took, so that half of the time is free."""
BUSY_S = 0.2
_TYPES = tuple(sorted(TRANSCRIPT_TYPES))
_HAS_WORDS = f"content IS NOT NULL AND type IN ({', '.join('?' * len(_TYPES))})"


@dataclass(frozen=True)
class Retention:
    """How long words are kept.

    Attributes:
        days: Days after a run's end; the orchestrator's own entries count from when they were written.
        folders: Where an erased run's own folder, named by its id, goes with its words.
    """

    days: int
    folders: tuple[Path, ...] = ()


@dataclass
class _Piece:
    """What one transaction erases."""

    after: int
    done: int
    rows: list[IndexRow] = field(default_factory=list[IndexRow])
    owners: dict[int, tuple[str, str | None]] = field(default_factory=dict[int, tuple[str, str | None]])
    files: set[str] = field(default_factory=set[str])
    chars: int = 0

    @property
    def full(self) -> bool:
        return len(self.rows) >= SLICE or self.chars >= SLICE_CHARS

    def add(self, row: Sequence[object]) -> None:
        entry = entry_of(row[:20])
        self.rows.append(index_row(entry))
        self.owners[entry.seq] = (entry.who.user_id, entry.run_id)
        self.files.add(file_of(entry.who.agent_id, entry.ts_us))
        self.chars += len(entry.content or "")


def is_over(view: View, run: RunRow, now_us: int) -> bool:
    """Tell whether nothing of a run can happen any more: it has ended, or its proposal expired undecided."""
    if run.state != WAITING:
        return run.ended
    proposal = view.proposal(run.pending_id)
    return proposal is None or proposal.expires_us <= now_us


def retention_horizon(view: View, now_us: int, days: int) -> tuple[int, int]:
    """Return the `seq` up to which entries are older than so many days, and the time (microseconds UTC) that means.

    A clock may be wrong, and what is erased is gone; so time is believed only as far as the log has seen it pass.
    "Now" is at most a day after the newest entry that is a day old, so that a clock that jumps ahead, by a year or by
    thirty, erases nothing before it has said so for a day. And an entry is not old because its own time says so when
    one before it is young: the clock was behind then. Whole UTC days, so that the work comes once a day.
    """
    seen = view.newest_before(now_us - DAY_US)
    if seen is None:
        return 0, 0
    limit = seen + DAY_US - days * DAY_US
    limit -= limit % DAY_US
    first, _last = view.seq_bounds(limit, now_us + 1)
    return view.last_older(limit, first or view.head() + 1), limit


async def erase_expired(store: Store, days: int, *, pieces: int) -> bool:
    """Erase what has become old, at most so many pieces of it; True when nothing is left.

    Raises:
        StoreUnavailable: The log cannot be read or written.
    """
    upto, limit = await store.read(partial(retention_horizon, now_us=time.time_ns() // 1000, days=days))
    for _ in range(pieces):
        piece = await store.read(partial(_next_piece, upto=upto, limit=limit))
        if piece is None:
            return True
        await _paced(store, partial(_erase_old, piece=piece, why=f"older than {days} days"))
    return False


async def erase_run(store: Store, run_id: str, also: Sequence[int], who: Who, why: str) -> int:
    """Begin to erase everything of a run that is over, and return how many entries lost their words.

    The keeper finishes it (`erasing` tells when): until then words may stand in files and in free pages.

    Args:
        store: The open log.
        run_id: The run.
        also: Entries of the orchestrator that quote it and do not name it in their header.
        who: Who wants it.
        why: Why, for the log.

    Raises:
        StoreUnavailable: The log cannot be read or written.
    """
    total = 0
    while True:
        piece = await store.read(partial(_piece_of, run_id=run_id, also=also))
        erased = await _paced(store, partial(_erase_whole, piece=piece, run_id=run_id, who=who, why=why))
        total += erased or 0
        if erased is None or not piece.full:
            return total
        also = ()


def erasure_pending(view: View) -> bool:
    """Tell whether something that was erased from the log may still stand elsewhere in the data root."""
    return view.last_erasure() > view.progress("erased")


def erasure_requested(view: View) -> bool:
    """Tell whether somebody waits for a run to be erased."""
    return bool(_begun(view).whole)


async def finish_erasures(store: Store, mirror: Mirror, folders: Iterable[Path], *, mirrored: bool) -> None:
    """Finish every erasure that has begun: all of a run's words, the mirror, the index, folders, the database file.

    Each step may be done again: what a kill interrupts, the next keeper does from the first step on.

    Args:
        store: The open log.
        mirror: The files that mirror it.
        folders: Where runs have a folder of their own.
        mirrored: The mirror is on.

    Raises:
        StoreUnavailable: The log cannot be read or written.
        OSError: A file cannot be written, or a folder not removed.
    """
    while await store.read(erasure_pending):
        begun = await store.read(_begun)
        for run_id, (who, why) in begun.whole.items():
            if await store.read(partial(_has_words, run_id=run_id)):
                await erase_run(store, run_id, (), who, why)
        await mirror.forget(make=mirrored)
        await _merge(store)
        await anyio.to_thread.run_sync(_remove, list(folders), begun.runs)
        await anyio.to_thread.run_sync(remove_quarantined_runs, mirror.folder, begun.runs)
        while not await store.checkpoint():  # noqa: ASYNC110 - a reader still needs the old pages
            await anyio.sleep(BUSY_S)
        await store.keep_house(partial(note_progress, duty="erased", seq=begun.upto))


@dataclass(frozen=True)
class _Begun:
    upto: int
    runs: tuple[str, ...]
    whole: dict[str, tuple[Who, str]]


def _begun(view: View) -> _Begun:
    """Return what was erased since everything was last finished."""
    upto = view.last_erasure()
    runs: dict[str, None] = {}
    whole: dict[str, tuple[Who, str]] = {}
    for row in view.rows("type = 'LogErased' AND seq > ? AND seq <= ?", view.progress("erased"), upto):
        entry = entry_of(row[:-1])
        if isinstance(entry.fact, LogErased) and entry.fact.run_id is not None:
            runs[entry.fact.run_id] = None
            if entry.fact.whole:
                whole[entry.fact.run_id] = (entry.who, entry.fact.why)
    return _Begun(upto, tuple(runs), whole)


def _has_words(view: View, *, run_id: str) -> bool:
    return next(view.rows(f"run_id = ? AND {_HAS_WORDS}", run_id, *_TYPES, limit=1), None) is not None


def _piece_of(view: View, *, run_id: str, also: Sequence[int]) -> _Piece:
    """Return the next piece of a run. What quotes it is part of the first: later, nobody could tell it any more."""
    piece = _Piece(0, 0)
    for seq in also:
        for row in view.rows(f"seq = ? AND {_HAS_WORDS}", seq, *_TYPES):
            piece.add(row)
    for row in view.rows(f"run_id = ? AND {_HAS_WORDS}", run_id, *_TYPES):
        if piece.full:
            break
        piece.add(row)
    return piece


def _next_piece(view: View, *, upto: int, limit: int) -> _Piece | None:
    """Return what to erase next on the way to the horizon, None when it is reached.

    Entries of a run that goes on are passed over; they come again with its `RunEnded`.
    """
    after = view.progress("retention")
    if after >= upto:
        return None
    piece = _Piece(after, after)
    known: dict[str, bool] = {}
    for row in view.rows("seq > ? AND seq <= ?", after, upto, limit=LOOK):
        seq, type_name, run_id, content = row[0], row[5], row[7], row[17]
        if type_name == "RunEnded" and run_id is not None:
            for earlier in view.rows(f"run_id = ? AND seq <= ? AND {_HAS_WORDS}", run_id, after, *_TYPES, limit=SLICE):
                piece.add(earlier)
                if piece.full:  # its rest, and everything after it, is found again
                    return piece
        elif content is not None and type_name in TRANSCRIPT_TYPES:
            if run_id is not None and run_id not in known:
                known[run_id] = _ended_by(view, run_id, upto, limit)
            if run_id is None or known[run_id]:
                piece.add(row)
        piece.done = seq
        if piece.full:
            break
    return piece


def _ended_by(view: View, run_id: str, upto: int, limit: int) -> bool:
    """Tell whether a run was over at the horizon."""
    run = view.run(run_id)
    if run is None or not run.ended:
        return run is None or is_over(view, run, limit)
    end = view.last_entry(run_id, "RunEnded")
    return end is not None and end.seq <= upto


def _erase_old(db: sqlite3.Connection, piece: _Piece, why: str) -> Outcome[int]:
    if View(db).progress("retention") != piece.after:  # another keeper was here
        return Outcome(0)
    note_progress(db, "retention", piece.done)
    erased, counts = _erase(db, piece)
    events = tuple(
        Event(Who(SESSION_ID, "ava", user), LogErased(run_id=run_id, entries=count, why=why), run_id=run_id)
        for (user, run_id), count in counts.items()
    )
    return Outcome(erased, events)


def _erase_whole(db: sqlite3.Connection, piece: _Piece, run_id: str, who: Who, why: str) -> Outcome[int | None]:
    view = View(db)
    run = view.run(run_id)
    if run is None or not is_over(view, run, time.time_ns() // 1000):  # never on a run that goes on
        return Outcome(None)
    erased, _counts = _erase(db, piece)
    if not erased:
        return Outcome(0)
    fact = LogErased(run_id=run_id, entries=erased, why=why, whole=True)
    return Outcome(erased, (Event(who, fact, run_id=run_id),))


def _erase(db: sqlite3.Connection, piece: _Piece) -> tuple[int, Counter[tuple[str, str | None]]]:
    """Erase a piece; return how many entries that were, and how many of each user and run."""
    erased = erase_entries(db, piece.rows, piece.files)
    counts = Counter(piece.owners[seq] for seq in erased)
    forget_live(db, {run_id for _user, run_id in counts if run_id is not None})
    return len(erased), counts


async def _paced(store: Store, work: Callable[[sqlite3.Connection], Outcome[T]]) -> T:
    """Do one transaction, and leave the log to others for as long as it took."""
    began = time.monotonic()
    done = await store.amend(work)
    if await anyio.to_thread.run_sync(_size, store.wal) > WAL_BYTES:  # emptied often, so that it never takes long
        await store.checkpoint()
    await anyio.sleep(max(PAUSE_S, time.monotonic() - began))
    return done


async def _merge(store: Store) -> None:
    """Rewrite the text index in small steps."""
    more = await store.keep_house(partial(merge_words, pages=-MERGE_PAGES))
    while more:
        await anyio.sleep(PAUSE_S)
        more = await store.keep_house(partial(merge_words, pages=MERGE_PAGES))


def _remove(folders: Iterable[Path], runs: Iterable[str]) -> None:
    """Remove the folders of runs; a link in the place of one is removed, and what it leads to is not touched."""
    for folder in folders:
        for run_id in runs:
            path = folder / run_id
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.exists():
                shutil.rmtree(path)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
