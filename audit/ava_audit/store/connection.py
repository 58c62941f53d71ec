"""A connection to the embedded database, SQLite."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ava_audit.database import NEWEST_ENTRY, Busy, Commit, IndexQuery, IndexRow, Values
from ava_audit.errors import StoreUnavailable
from ava_audit.store.locks import NoLocks, lock_fault

BUSY_MS = 1_000
READER_CACHE_KIB = 4_096
"""Pages that a reader keeps: some searches among a million entries read 1.7 MB."""
STEPS = 200
"""Steps of a statement between two looks at the clock, a few hundredths of a millisecond."""
DAMAGED = "ava.db is damaged: put back a copy of it, or set AVA_DATA_ROOT to another folder"


ROOM_BYTES = 65_536
"""Free bytes with which a log can be opened: SQLite makes a file of 32 KiB beside it, to read it too."""


class SqliteDatabase(sqlite3.Connection):
    """A connection as `Database` describes it. `sqlite3.connect` makes one when it is given as its `factory`."""

    lost = False
    words_key = "words.rowid"
    words_in_order = True

    def stream(self, sql: str, values: Values = (), /) -> Iterable[Any]:
        """SQLite always yields one by one."""
        return self.execute(sql, values)

    def begin_read(self) -> None:
        self.execute("BEGIN")

    def begin_write(self, _ask: Callable[[], None] | None = None, /) -> None:
        try:
            self.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            fault = _lock_fault(error, self._path())
            if fault:
                raise StoreUnavailable(f"{fault}. Nothing was written") from error
            if re.search("locked|busy", str(error)):
                raise Busy("another program holds ava.db") from error
            raise

    def begin_bulk(self) -> None:
        self.begin_write()

    def commit(self, _commit: Commit | None = None, /) -> None:
        self.execute("COMMIT")

    def rollback(self) -> None:
        try:
            self.execute("ROLLBACK")
        except sqlite3.Error:
            return

    def schema_version(self) -> int:
        return int(self.execute("PRAGMA user_version").fetchone()[0])

    def newest_entry(self) -> tuple[int, bytes] | None:
        row: tuple[int, bytes] | None = self.execute(NEWEST_ENTRY).fetchone()
        return row

    def data_version(self) -> object:
        return self.execute("PRAGMA data_version").fetchone()[0]

    def sizes(self) -> dict[str, int]:
        path = self._path()
        return {"database": file_size(path), "write_ahead_log": file_size(path.with_name(f"{path.name}-wal"))}

    def _path(self) -> Path:
        return Path(self.execute("PRAGMA database_list").fetchone()[2])

    def empty_log(self, rewrite: bool, /) -> bool:
        if rewrite:
            self.execute("VACUUM")
        self.execute("PRAGMA busy_timeout = 0")
        try:
            return bool(self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
        finally:
            self.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    def accept_any_text(self) -> bool:
        already = self.text_factory is _decode_any
        self.text_factory = _decode_any
        return not already

    def stop_at(self, time_s: float | None, /) -> None:
        self.set_progress_handler(None if time_s is None else lambda: time.monotonic() > time_s, STEPS)

    def add_words(self, rows: Sequence[IndexRow], /) -> None:
        self.executemany("INSERT INTO words (rowid, agent, session, user, marks, text) VALUES (?, ?, ?, ?, ?, ?)", rows)

    def forget_words(self, row: IndexRow, /) -> None:
        """Remove the text of a row from the index, but keep the tokens for filters. `merge_words` does the rest."""
        self.execute(
            "INSERT INTO words (words, rowid, agent, session, user, marks, text) VALUES ('delete', ?, ?, ?, ?, ?, ?)",
            row,
        )
        self.execute("INSERT INTO words (rowid, agent, session, user, marks, text) VALUES (?, ?, ?, ?, ?, '')", row[:5])

    def merge_words(self, pages: int, /) -> bool:
        """Merge the index's segments, so that removed words disappear from older ones too."""
        if pages < 0:  # with the default of 4, two new segments stop a merge of two: SQLite then finds nothing to merge
            self.execute("INSERT INTO words (words, rank) VALUES ('usermerge', 2)")
        before = self.total_changes
        self.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
        return self.total_changes - before >= 2  # the test that SQLite's documentation gives

    def words_condition(self, query: IndexQuery, _near: tuple[int, int] | None = None, /) -> tuple[str, list[object]]:
        return "words MATCH ?", [query.expression]


def uri_of(path: Path, options: str) -> str:
    """Return the URI of a file for SQLite. `Path.as_uri` does the same, but imports `ssl` from Python 3.14 on."""
    name = os.fsencode(path.absolute().as_posix())
    if not name.startswith(b"/"):  # a drive of Windows
        name = b"/" + name
    return f"file://{quote(name)}?{options}"


def connect(path: Path, *, readonly: bool = False) -> SqliteDatabase:
    """Open an existing database: explicit transactions, durable commits, no automatic checkpoints."""
    db = sqlite3.connect(
        uri_of(path, "mode=rw"),
        timeout=BUSY_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
        factory=SqliteDatabase,
        cached_statements=256,
        uri=True,
    )
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA secure_delete = ON")
        if readonly:
            db.execute("PRAGMA query_only = ON")
            db.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
    except BaseException:
        db.close()
        raise
    return db


def log_state(path: Path) -> tuple[bool, int, int, int]:
    """Return whether a log has the two files beside it that one in use has, and what tells that its file was changed.

    Raises OSError.
    """
    wal, shared = path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
    in_use = wal.is_file() and shared.is_file() and wal.stat().st_size > 0  # a full disk leaves empty ones
    file = path.stat()
    return in_use, file.st_ino, file.st_size, file.st_mtime_ns


def has_unread_entries(path: Path) -> bool:
    """Tell whether a log that is not in use has entries beside its file: a process died while it wrote."""
    return file_size(path.with_name(f"{path.name}-wal")) > 0


def file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def is_damaged(error: Exception) -> bool:
    return any(words in str(error) for words in ("malformed", "not a database", "no such table", "no such column"))


_WITHOUT_LOCKS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)
"""What SQLite says of files that cannot be locked: "database is locked", and others."""


def _lock_fault(error: BaseException, path: Path) -> NoLocks | None:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return lock_fault(path.parent) if code in _WITHOUT_LOCKS else None


def disk_fault(error: BaseException, path: Path) -> str | None:
    """Return that the disk of the log at `path` is full or has no locks, and what to do, if that is the cause.

    SQLite does not say so then.
    """
    fault = _lock_fault(error, path)
    if fault:
        return str(fault)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    try:
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL) and shutil.disk_usage(path.parent).free < ROOM_BYTES:
            return f"its disk is full, and there must be {ROOM_BYTES // 1024} KiB free even to read it: free some space"
    except OSError:
        pass
    return None


def advice(error: Exception) -> str:
    return DAMAGED if is_damaged(error) else "check that no other program holds ava.db, and try again"


def _decode_any(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
