"""Projections: tables derived from the log, and everything else that background maintenance writes.

Besides `store/writer.py` and `store/schema.py`, this is the only module with SQL that writes. `reducers.py` says what
follows from an event; this module stores the resulting rows. The second half writes the text index, the progress of
maintenance, and erasures.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import compress, cycle, islice
from operator import attrgetter, itemgetter, ne
from typing import Any, Generic, NamedTuple

from ava_audit.database import Database, IndexRow
from ava_audit.entries import ENTRY_COLUMNS, HEADER
from ava_audit.errors import Contradiction, StoreUnavailable
from ava_audit.reducers import CONTENT_TYPES, R, fold
from ava_audit.rows import RUNNING, Bucket, DaySpending, PlanCaps, ProposalRow, RunRow, day_key, is_plan_id
from ava_audit.units import DAY_US, now_us

CACHED_ROWS = 300
"""Rows of a table that stay in memory from one transaction to the next; a run's row takes some kilobytes."""
USED_AGAIN = 8
"""Budgets that a further transaction uses again: a user's and the installation's day are in every reservation."""
FLUSH_EVERY = 1_000
"""Entries after which a rebuild writes its rows to the tables."""

INDEX_CHECK_CHARS = 20_000
"""Characters indexed between two checks of the clock; each row adds `INDEX_ROW_CHARS`."""
INDEX_ROW_CHARS = 500


class TableSpec(Generic[R]):
    """A projection's table, the class of its rows, and its SQL. `side_table` has large columns that rarely change."""

    def __init__(self, name: str, kind: type[R], side_table: tuple[str, frozenset[str]] | None = None) -> None:
        columns = [field.name for field in fields(kind)]
        key = columns[0]
        self.name = name
        self.kind = kind
        self.columns = columns
        self.values: Callable[[R], tuple[Any, ...]] = attrgetter(*columns)
        self.parts = {name: frozenset(columns)}
        if side_table is not None:
            self.parts = {name: frozenset(columns) - side_table[1], side_table[0]: side_table[1] | {key}}
        using = f" USING ({key})" if side_table else ""
        self.select = f"SELECT {', '.join(columns)} FROM {' JOIN '.join(self.parts)}{using}"  # noqa: S608
        self.one = f"{self.select} WHERE {key} = ?"
        self.several = f"{self.select} WHERE {key} IN"
        self._statements: dict[bytes, list[tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]]] = {}

    def write(self, db: Database, changed: bytes, rows: Sequence[tuple[Any, ...]]) -> None:
        """Update the columns of rows for which `changed` has a 1, or insert the rows if it has no bytes."""
        if changed not in self._statements:
            self._statements[changed] = [*self._statements_for(changed)]
        for statement, values_of in self._statements[changed]:
            db.executemany(statement, map(values_of, rows))

    def _statements_for(self, changed: bytes) -> Iterator[tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]]:
        key = self.columns[0]
        for table, columns in self.parts.items():
            changed_columns = compress(self.columns, changed or cycle([1]))
            own = [column for column in changed_columns if column in columns]
            if changed and own:
                assignments = ", ".join(f"{column} = ?" for column in own)
                own.append(key)
                yield f"UPDATE {table} SET {assignments} WHERE {key} = ?", self._pick(own)  # noqa: S608
            elif own:
                places = ", ".join("?" * len(own))
                yield f"INSERT INTO {table} ({', '.join(own)}) VALUES ({places})", self._pick(own)  # noqa: S608

    def _pick(self, columns: Sequence[str]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        return itemgetter(*map(self.columns.index, columns))


PROPOSALS = TableSpec("proposals", ProposalRow)
RUNS = TableSpec("runs", RunRow, side_table=("configs", frozenset({"config", "terms"})))
PLANS = TableSpec("plans", PlanCaps)
BUDGETS = TableSpec("budgets", Bucket)
SPENDING = TableSpec("spending", DaySpending)
PROJECTIONS = (*PROPOSALS.parts, *RUNS.parts, *PLANS.parts, *BUDGETS.parts, *SPENDING.parts)


class ProjectionTable(Generic[R]):
    """A projection's rows, those used last cached, and which ones there are not; flush before other SQL and commits."""

    def __init__(self, db: Database, spec: TableSpec[R]) -> None:
        self._db = db
        self._spec = spec
        self._rows: dict[str, R] = {}
        self._stored: dict[str, tuple[Any, ...]] = {}
        self._dirty: dict[str, None] = {}
        self._absent: set[str] = set()

    def peek(self, key: str | None) -> R | None:
        """Return the row of a key, which the caller must not change, or None."""
        if key is None:
            return None
        row = self._rows.pop(key, None)
        if row is None:
            if key in self._absent:
                return None
            values = self._db.execute(self._spec.one, (key,)).fetchone()
            if values is None:
                self._absent.add(key)
                return None
            self._stored[key] = values
            row = self._spec.kind(*values)
        self._rows[key] = row  # at the end: the least recently used rows come first
        return row

    def newest_keys(self, most: int) -> list[str]:
        return list(islice(reversed(self._rows), most))

    @property
    def cached(self) -> Collection[R]:
        """The rows in memory, also those that are not written yet."""
        return self._rows.values()

    def ask(self, keys: Iterable[str], *, again: bool) -> Callable[[], None]:
        """Ask for rows by one statement, also for those in memory if `again`; what it returns reads them."""
        known = () if again else {*self._rows, *self._absent}
        missing = [key for key in dict.fromkeys(keys) if key not in known]
        if not missing:
            return lambda: None
        cursor = self._db.execute(f"{self._spec.several} ({', '.join('?' * len(missing))})", missing)

        def read() -> None:
            for values in cursor.fetchall():
                self._stored[values[0]] = values
                self._rows[values[0]] = self._spec.kind(*values)
            self._absent.update(key for key in missing if key not in self._rows)

        return read

    def copy(self, key: str) -> R | None:
        row = self.peek(key)
        return None if row is None else self._spec.kind(*self._spec.values(row))

    def get(self, key: str | None) -> R | None:
        row = self.peek(key)
        if row is not None and key is not None:
            self._dirty[key] = None
        return row

    def add(self, row: R) -> None:
        key = self._spec.values(row)[0]
        if self.peek(key) is not None:
            raise Contradiction(f"{self._spec.name} already has {key}; nothing was written; use another id")
        self._absent.discard(key)
        self._rows[key] = row
        self._dirty[key] = None

    def flush(self) -> None:
        changes: dict[bytes, list[tuple[Any, ...]]] = {}
        for key in self._dirty:
            values = self._spec.values(self._rows[key])
            before = self._stored.get(key)
            if values != before:
                changed = b"" if before is None else bytes(map(ne, values, before))
                changes.setdefault(changed, []).append(values)
                self._stored[key] = values
        for changed, rows in changes.items():
            self._spec.write(self._db, changed, rows)
        self._dirty.clear()

    def evict(self, keep: int = 0) -> None:
        """Drop rows from memory, flushed or not, except the `keep` most recently used ones."""
        for key in list(islice(self._rows, max(0, len(self._rows) - keep))):
            del self._rows[key]
            self._stored.pop(key, None)
            self._dirty.pop(key, None)
        if len(self._absent) > keep:
            self._absent.clear()


class Projections:
    """All projections of a log, on the writer's connection. `entries`: rows that the next `flush` appends to the log.

    Cached rows stay valid from one transaction to the next, as long as no other connection has written.
    """

    def __init__(self, db: Database) -> None:
        self.proposals = ProjectionTable(db, PROPOSALS)
        self.runs = ProjectionTable(db, RUNS)
        self.plans = ProjectionTable(db, PLANS)
        self.budgets = ProjectionTable(db, BUDGETS)
        self.spending = ProjectionTable(db, SPENDING)
        self.entries: list[tuple[object, ...]] = []
        self._db = db
        self._all: tuple[ProjectionTable[Any], ...] = (
            self.proposals, self.runs, self.plans, self.budgets, self.spending,
        )  # fmt: skip
        self._version: object = None
        self._used: Sequence[str] = ()
        self._readers: list[Callable[[], None]] = []
        self._shared = False
        self._running: dict[str, tuple[str, str | None]] | None = None

    def ask(self, run_ids: Collection[str]) -> None:
        """Ask for what the next transaction is about, if others wrote before the last one: they will have again."""
        self._readers = self._ask(run_ids, again=True) if self._shared else []

    def begin(self, run_ids: Collection[str]) -> None:
        """Start a transaction: drop the least used rows over the limit, and read again what others may have changed."""
        version = self._db.data_version()
        self._shared = version != self._version
        self._version = version
        self._running = None
        readers: list[Callable[[], None]] = []
        if self._shared:
            self.evict()
            readers = self._readers
        else:
            self.evict(keep=CACHED_ROWS)
        for read in readers or self._ask(run_ids, again=False):
            read()
        self._readers = []

    def _ask(self, run_ids: Collection[str], *, again: bool) -> list[Callable[[], None]]:
        """Ask for all rows before the first is read: with Postgres, each wait for an answer takes long."""
        if not run_ids:
            return []
        readers = [self.runs.ask(run_ids, again=again), self.budgets.ask([*run_ids, *self._used], again=again)]
        if again:  # only a settlement reads it: it is asked for where that costs no wait of its own
            today = now_us() // DAY_US  # most calls that are settled were reserved today
            readers.append(self.spending.ask([day_key(run_id, today) for run_id in run_ids], again=True))
        return readers

    def running(self) -> Mapping[str, tuple[str, str | None]]:
        """Return the user and owner of each running run: read once in a transaction, which may claim many.

        Plans do not count: their runs do.
        """
        if self._running is None:
            rows = self._db.execute("SELECT id, user_id, instance FROM runs WHERE state = ?", (RUNNING,))
            self._running = {run_id: (user, instance) for run_id, user, instance in rows if not is_plan_id(run_id)}
        for row in self.runs.cached:  # all that this transaction has changed are there
            if row.state == RUNNING and not row.is_plan:
                self._running[row.id] = (row.user_id, row.instance)
            else:
                self._running.pop(row.id, None)
        return self._running

    def flush(self) -> None:
        if self.entries:
            append_entries(self._db, self.entries)
            self.entries.clear()
        for table in self._all:
            table.flush()
        self._used = self.budgets.newest_keys(USED_AGAIN) or self._used

    def evict(self, keep: int = 0) -> None:
        """Drop all but `keep` rows of each table, flushed or not: after a rollback they differ from the tables."""
        self.entries.clear()
        for table in self._all:
            table.evict(keep)


def rebuild_projections(db: Database) -> None:
    """Rebuild them from the log, in the caller's transaction. Raises StoreUnavailable: it contradicts itself."""
    for table in PROJECTIONS:
        db.execute(f"DELETE FROM {table}")  # noqa: S608
    projections = Projections(db)
    content_types = ", ".join(f"'{name}'" for name in sorted(CONTENT_TYPES))
    columns = f"{', '.join(HEADER)}, CASE WHEN type IN ({content_types}) THEN content END"
    where = "entry 1"
    try:
        for number, row in enumerate(db.stream(f"SELECT {columns} FROM events ORDER BY seq"), 1):  # noqa: S608
            where = f"entry {row[0]}"
            fold(projections, row)
            if number % FLUSH_EVERY == 0:
                where = f"the entries up to {row[0]}"
                projections.flush()
                projections.evict()
        where = "the last entries"
        projections.flush()
    except (ValueError, TypeError, Contradiction, sqlite3.IntegrityError, OverflowError) as error:
        raise StoreUnavailable(
            f"the log was not migrated and is unchanged: its tables cannot be rebuilt at {where} ({str(error)[:200]});"
            " the ava that wrote it can still open it, and its `ava verify` tells more"
        ) from error


_APPEND = f"INSERT INTO events ({ENTRY_COLUMNS}) VALUES ({', '.join('?' * (len(HEADER) + 3))})"  # noqa: S608


def append_entries(db: Database, rows: Iterable[Sequence[object]]) -> None:
    """Append the rows of entries (`ENTRY_COLUMNS`) as they are."""
    db.executemany(_APPEND, rows)


def index_words(
    db: Database, rows: Sequence[IndexRow], after: int, erased: Collection[int], for_s: float = math.inf
) -> int:
    """Add entries to the text index, note its progress, and return how many were added within `for_s` seconds.

    `rows` were prepared in a reader's thread: all entries after `after`, without a gap; `erased` of them had no content
    then. It returns 0 if another process has indexed or erased meanwhile: prepare new ones.
    """
    if not rows:
        return 0
    sql = "SELECT seq FROM events WHERE seq > ? AND seq <= ? AND content IS NULL"
    erased_now = {seq for (seq,) in db.execute(sql, (after, rows[-1][0])).fetchall()}
    if _progress(db, "words") != after or erased_now != set(erased):
        return 0
    end = time.monotonic() + for_s
    done = size = 0
    for number, row in enumerate(rows, 1):
        size += len(row[-1]) + INDEX_ROW_CHARS
        if size > INDEX_CHECK_CHARS or number == len(rows):
            db.add_words(rows[done:number])
            done, size = number, 0
            if time.monotonic() > end:
                break
    note_progress(db, "words", rows[done - 1][0])
    return done


def merge_words(db: Database, pages: int) -> bool:
    return db.merge_words(pages)


_MIRRORED = "INSERT INTO mirrored (file, bytes) VALUES (?, ?) ON CONFLICT (file) DO UPDATE SET bytes = excluded.bytes"


def erase_entries(db: Database, rows: Sequence[IndexRow], files: Iterable[str]) -> list[int]:
    """Erase entries' content and index words, mark mirror files for repair, and return each `seq` that had content."""
    indexed = _progress(db, "words")
    erased: list[int] = []
    for row in rows:
        erase = "UPDATE events SET content = NULL WHERE seq = ? AND content IS NOT NULL RETURNING seq"
        if db.execute(erase, row[:1]).fetchall():
            erased.append(row[0])
            if row[0] <= indexed:
                db.forget_words(row)
    db.executemany(_MIRRORED, [(file, -1) for file in files])
    return erased


def forget_live(db: Database, run_ids: Iterable[str]) -> None:
    db.executemany("DELETE FROM live WHERE run_id = ?", [(run_id,) for run_id in run_ids])


def note_progress(db: Database, duty: str, seq: int) -> None:
    """Note the `seq` up to which maintenance has done one of its duties."""
    sql = "INSERT INTO progress (name, seq) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seq = excluded.seq"
    db.execute(sql, (duty, seq))


def _progress(db: Database, duty: str) -> int:
    done = db.execute("SELECT seq FROM progress WHERE name = ?", (duty,)).fetchone()
    return done[0] if done else 0


def note_mirrored(db: Database, *, after: int, upto: int, before: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """Note the mirror's progress and the lengths of changed files; False if another process has noted some meanwhile.

    A file marked for repair stays marked: the appended lines may have been read before the erasure.
    """
    of_file = "SELECT coalesce(max(bytes), 0) FROM mirrored WHERE file = ?"
    if _progress(db, "mirror") != after or any(
        db.execute(of_file, (file,)).fetchone()[0] not in (size, -1) for file, size in before.items()
    ):
        return False
    db.executemany(f"{_MIRRORED} WHERE mirrored.bytes >= 0", [*sizes.items()])
    note_progress(db, "mirror", upto)
    return True


class Repaired(NamedTuple):
    """The length (bytes) of a repaired file, and the mirror's progress and newest `LogErased` at that time."""

    size: int
    upto: int
    erasure: int


def note_repaired(db: Database, file: str, repaired: Repaired) -> bool:
    """Note the length of a repaired file; False if content was erased or the mirror has progressed meanwhile."""
    newest = db.execute("SELECT max(seq) FROM events WHERE type = 'LogErased'").fetchone()[0] or 0
    if (_progress(db, "mirror"), newest) != (repaired.upto, repaired.erasure):
        return False
    db.execute(_MIRRORED, (file, repaired.size))
    return True
