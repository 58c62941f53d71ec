"""What is a view of the log or follows it, in tables: the projections, the text index, the keeper's progress.

With `writer.py`, `appending.py`, `connection.py` and `migrations.py` this is the only place that writes SQL. What
follows from an event is said in `reducers.py`; here is where the rows are kept.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from operator import attrgetter, ne
from typing import Any, Generic

from ava_audit.entries import HEADER
from ava_audit.errors import Contradiction, StoreUnavailable
from ava_audit.reducers import CONTENT_TYPES, R, fold
from ava_audit.rows import Bucket, GroupRow, ProposalRow, RunRow

CACHED_ROWS = 300
"""So many rows of a table stay in memory from one transaction to the next; a run's are some kilobytes."""
FLUSH_EVERY = 1_000
"""After so many entries a log that is folded anew writes what has come of them."""

INDEX_LOOK_CHARS = 20_000
"""So many characters are indexed between two looks at the clock, a row itself counted as `INDEX_ROW_CHARS`."""
INDEX_ROW_CHARS = 500

IndexRow = tuple[int, str, str, str, str, str]
"""A row of the text index: `seq`, then the tokens of agent, session and user, those of type and severity, the text."""


class TableSpec(Generic[R]):
    """What a projection's tables are called, what its rows are, and the statements for them.

    Args:
        name: The table.
        kind: Its rows.
        apart: A table and those columns of the rows that it has instead: large ones, because a row that changes is
            written whole.
    """

    def __init__(self, name: str, kind: type[R], apart: tuple[str, frozenset[str]] | None = None) -> None:
        columns = [field.name for field in fields(kind)]
        self.name = name
        self.kind = kind
        self.columns = columns
        self.values: Callable[[R], tuple[Any, ...]] = attrgetter(*columns)
        parts = {name: frozenset(columns)}
        if apart is not None:
            parts = {name: frozenset(columns) - apart[1], apart[0]: apart[1] | {columns[0]}}
        self.parts = parts
        self.select = f"SELECT {', '.join(columns)} FROM {' JOIN '.join(parts)}"  # noqa: S608
        if apart is not None:
            self.select += f" USING ({columns[0]})"
        self.one = f"{self.select} WHERE {columns[0]} = ?"
        self._updates: dict[tuple[bool, ...], list[tuple[str, list[int]]]] = {}

    def insert(self, db: sqlite3.Connection, values: tuple[Any, ...]) -> None:
        """Insert a row."""
        for table, columns in self.parts.items():
            own = {column: value for column, value in zip(self.columns, values, strict=True) if column in columns}
            db.execute(
                f"INSERT INTO {table} ({', '.join(own)}) VALUES ({', '.join('?' * len(own))})",  # noqa: S608
                (*own.values(),),
            )

    def update(self, db: sqlite3.Connection, values: tuple[Any, ...], before: tuple[Any, ...]) -> None:
        """Update a row: the columns that are not as before."""
        changed = tuple(map(ne, values, before))
        for statement, places in self._updates.get(changed) or self._update_of(changed):
            db.execute(statement, [values[place] for place in places])

    def _update_of(self, changed: tuple[bool, ...]) -> list[tuple[str, list[int]]]:
        """Return the statements that update some of the columns, and where their values stand in a row."""
        statements: list[tuple[str, list[int]]] = []
        for table, columns in self.parts.items():
            places = [place for place, column in enumerate(self.columns) if changed[place] and column in columns]
            if places:
                assignments = ", ".join(f"{self.columns[place]} = ?" for place in places)
                statement = f"UPDATE {table} SET {assignments} WHERE {self.columns[0]} = ?"  # noqa: S608
                statements.append((statement, [*places, 0]))
        self._updates[changed] = statements
        return statements


PROPOSALS = TableSpec("proposals", ProposalRow)
RUNS = TableSpec("runs", RunRow, apart=("configs", frozenset({"config"})))
GROUPS = TableSpec("groups", GroupRow)
BUDGETS = TableSpec("budgets", Bucket)
PROJECTIONS = tuple(table for shape in (PROPOSALS, RUNS, GROUPS, BUDGETS) for table in shape.parts)


class ProjectionTable(Generic[R]):
    """A projection's rows, those in memory that were asked for last, as reducers have changed them.

    What is changed is written when somebody reads the table in another way, and before the transaction ends.
    """

    def __init__(self, db: sqlite3.Connection, shape: TableSpec[R]) -> None:
        self._db = db
        self._shape = shape
        self._rows: dict[str, R] = {}
        self._written: dict[str, tuple[Any, ...]] = {}
        self._given: dict[str, None] = {}

    def seen(self, key: str | None) -> R | None:
        """Return the row of a key as it is now, not to be changed, or None."""
        if key is None:
            return None
        row = self._rows.pop(key, None)
        if row is None:
            values = self._db.execute(self._shape.one, (key,)).fetchone()
            if values is None:
                return None
            self._written[key] = values
            row = self._shape.kind(*values)
        self._rows[key] = row  # now the last of all: the first ones are forgotten first
        return row

    def copy(self, key: str) -> R | None:
        """Return a copy of the row of a key as it is now, or None."""
        row = self.seen(key)
        return None if row is None else self._shape.kind(*self._shape.values(row))

    def get(self, key: str | None) -> R | None:
        """Return the row of a key, to be changed, or None."""
        row = self.seen(key)
        if row is not None and key is not None:
            self._given[key] = None
        return row

    def add(self, row: R) -> None:
        """Add a row.

        Raises:
            Contradiction: There is one of this key.
        """
        key = self._shape.values(row)[0]
        if self.seen(key) is not None:
            raise Contradiction(f"{self._shape.name} has a {key} already, so nothing was written: take another id")
        self._rows[key] = row
        self._given[key] = None

    def write(self) -> None:
        """Bring the table up to date."""
        for key in self._given:
            values = self._shape.values(self._rows[key])
            before = self._written.get(key)
            if before is None:
                self._shape.insert(self._db, values)
            elif values != before:
                self._shape.update(self._db, values, before)
            self._written[key] = values
        self._given.clear()

    def forget(self, but: int = 0) -> None:
        """Let go of what is in memory, written or not, but for so many rows that were asked for last."""
        for key in list(islice(self._rows, max(0, len(self._rows) - but))):
            del self._rows[key]
            self._written.pop(key, None)
            self._given.pop(key, None)


class Projections:
    """All projections of a log, on the connection of its writer.

    What is in memory stays there from one transaction to the next, for as long as nobody else has written.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.proposals = ProjectionTable(db, PROPOSALS)
        self.runs = ProjectionTable(db, RUNS)
        self.groups = ProjectionTable(db, GROUPS)
        self.budgets = ProjectionTable(db, BUDGETS)
        self._db = db
        self._all: tuple[ProjectionTable[Any], ...] = (self.proposals, self.runs, self.groups, self.budgets)
        self._version = -1

    def begin(self) -> None:
        """Begin with a transaction: forget what somebody else may have changed, and what has become too much."""
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        self.forget(but=CACHED_ROWS if version == self._version else 0)
        self._version = version

    def write(self) -> None:
        """Bring all tables up to date."""
        for table in self._all:
            table.write()

    def forget(self, but: int = 0) -> None:
        """Let go of what is in memory, written or not: after a rollback it is not what the tables have.

        Args:
            but: So many rows of each table may stay.
        """
        for table in self._all:
            table.forget(but)


def rebuild_projections(db: sqlite3.Connection) -> None:
    """Make the projections anew from the whole log, in the caller's transaction; in memory are a few entries at a time.

    Raises:
        StoreUnavailable: Nothing follows from an entry; names it.
    """
    for table in PROJECTIONS:
        db.execute(f"DELETE FROM {table}")  # noqa: S608
    tables = Projections(db)
    told = ", ".join(f"'{name}'" for name in sorted(CONTENT_TYPES))
    columns = f"{', '.join(HEADER)}, CASE WHEN type IN ({told}) THEN content END"
    for number, row in enumerate(db.execute(f"SELECT {columns} FROM events ORDER BY seq"), 1):  # noqa: S608
        try:
            fold(tables, row)
        except (ValueError, TypeError, Contradiction) as error:
            raise _not_folded(f"nothing follows from its entry {row[0]}", error) from error
        if number % FLUSH_EVERY == 0:
            _write_folded(tables, row[0])
    _write_folded(tables, None)


def _write_folded(tables: Projections, upto: int | None) -> None:
    try:
        tables.write()
        tables.forget()
    except (sqlite3.IntegrityError, OverflowError) as error:
        where = "its last entries" if upto is None else f"its entries up to {upto}"
        raise _not_folded(f"what follows from {where} fits no table", error) from error


def _not_folded(why: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"the log could not be brought up to date, and is as it was: {why} ({str(error)[:200]}); the ava that wrote it"
        " still opens it, and its `ava verify` tells more"
    )


def index_words(
    db: sqlite3.Connection, rows: Sequence[IndexRow], after: int, erased: Collection[int], for_s: float = math.inf
) -> int:
    """Put the words of entries into the text index, and note how far it has come.

    Args:
        db: The writer's connection.
        rows: What to index, in order, made in a reader's thread: every entry after `after`, up to the last of them.
        after: How far the index had come when they were made.
        erased: Which of these entries had no content then.
        for_s: After so many seconds the rest is left for another time, because whoever writes waits meanwhile.

    Returns:
        How many rows are in; 0 when the log has moved on in between (another keeper, an erasure): make them anew.
    """
    if not rows:
        return 0
    now = db.execute("SELECT seq FROM progress WHERE name = 'words'").fetchone()
    gone = db.execute(
        "SELECT seq FROM events WHERE seq > ? AND seq <= ? AND content IS NULL", (after, rows[-1][0])
    ).fetchall()
    if (now[0] if now else 0) != after or {seq for (seq,) in gone} != set(erased):
        return 0
    end = time.monotonic() + for_s
    done = size = 0
    for row in rows:
        db.execute("INSERT INTO words (rowid, agent, session, user, marks, text) VALUES (?, ?, ?, ?, ?, ?)", row)
        done += 1
        size += len(row[-1]) + INDEX_ROW_CHARS
        if size > INDEX_LOOK_CHARS:
            size = 0
            if time.monotonic() > end:
                break
    db.execute("INSERT OR REPLACE INTO progress (name, seq) VALUES ('words', ?)", (rows[done - 1][0],))
    return done


def forget_words(db: sqlite3.Connection, rows: Sequence[IndexRow]) -> None:
    """Take the text of entries out of the index; what filters find them by stays. `merge_words` does the rest.

    Args:
        db: The writer's connection.
        rows: Exactly the rows that `index_words` was given for them.
    """
    for row in rows:
        db.execute(
            "INSERT INTO words (words, rowid, agent, session, user, marks, text) VALUES ('delete', ?, ?, ?, ?, ?, ?)",
            row,
        )
        db.execute("INSERT INTO words (rowid, agent, session, user, marks, text) VALUES (?, ?, ?, ?, ?, '')", row[:5])


def merge_words(db: sqlite3.Connection, pages: int) -> bool:
    """Go on rewriting the index as one piece, so that forgotten words are gone from its older segments too.

    Args:
        db: The writer's connection.
        pages: About how many pages to write; a negative number begins, a positive one goes on.

    Returns:
        False when nothing is left to rewrite.
    """
    before = db.total_changes
    db.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
    return db.total_changes - before >= 2  # as SQLite's own page tells to find out


def erase_entries(db: sqlite3.Connection, rows: Sequence[IndexRow], files: Iterable[str]) -> list[int]:
    """Take the content of entries out of the log and their words out of the index.

    Args:
        db: The writer's connection.
        rows: Those that `index_words` was given for them, or would be.
        files: The files of the mirror in which they stand, or will: these have to be healed.

    Returns:
        The `seq` of those that had content; nothing is erased twice.
    """
    done = db.execute("SELECT seq FROM progress WHERE name = 'words'").fetchone()
    indexed = done[0] if done else 0
    erased: list[int] = []
    for row in rows:
        if db.execute("UPDATE events SET content = NULL WHERE seq = ? AND content IS NOT NULL", row[:1]).rowcount:
            erased.append(row[0])
            if row[0] <= indexed:
                forget_words(db, [row])
    db.executemany("INSERT OR REPLACE INTO mirrored (file, bytes) VALUES (?, -1)", [(file,) for file in files])
    return erased


def forget_live(db: sqlite3.Connection, run_ids: Iterable[str]) -> None:
    """Remove what ended runs were doing last."""
    db.executemany("DELETE FROM live WHERE run_id = ?", [(run_id,) for run_id in run_ids])


def note_progress(db: sqlite3.Connection, duty: str, seq: int) -> None:
    """Note how far the keeper has come with one of its duties."""
    db.execute("INSERT OR REPLACE INTO progress (name, seq) VALUES (?, ?)", (duty, seq))


def note_mirrored(db: sqlite3.Connection, upto: int, sizes: Mapping[str, int]) -> None:
    """Note that the mirror has every entry up to `upto`, and how long (bytes) the changed files are now.

    A file with erased content stays marked: what was appended may have been read before the erasure.
    """
    db.executemany(
        "INSERT INTO mirrored (file, bytes) VALUES (?, ?)"
        " ON CONFLICT (file) DO UPDATE SET bytes = excluded.bytes WHERE bytes >= 0",
        sizes.items(),
    )
    note_progress(db, "mirror", upto)


def note_healed(db: sqlite3.Connection, file: str, size: int, erasure: int) -> bool:
    """Note how long a healed file is; False when content was erased after the log was read for it.

    Args:
        db: The writer's connection.
        file: The file.
        size: Its length in bytes.
        erasure: The newest `LogErased` when it was read.
    """
    newest = db.execute("SELECT max(seq) FROM events WHERE type = 'LogErased'").fetchone()[0] or 0
    if newest != erasure:
        return False
    db.execute("INSERT OR REPLACE INTO mirrored (file, bytes) VALUES (?, ?)", (file, size))
    return True
