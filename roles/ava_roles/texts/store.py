"""Keeps the texts of files under the hash of their bytes, with an index of their words, so that none is read twice.

A text is content: it may be removed at any time, and is made anew from its file. A folder's files are kept with what
tells that one has changed. Whoever searches names the texts of *its* files, so that no other folder's text is found,
and none has a part in how passages rank.

The index only finds passages that may match: each token of `passages.tokens`, a text without spaces as its pairs of
characters. What matches, and how well, is decided on the passages themselves.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from ava_roles.passages import FilePassage, index_terms, passage_length
from ava_roles.sandbox.path_access import FileMark
from ava_roles.threads import run_sync

log = logging.getLogger("ava.texts")

_Result = TypeVar("_Result")

VERSION = 2
"""Raised with every change of what a parser makes of a file, how it is cut, or of the index: all is made anew then."""
MOST_BYTES = 1_000_000_000
FRESH_S = 2.0
"""A file that changed less than so long before it was read may change again without its times telling."""
PASSAGES_MOST = 1 << 16
"""The most passages of one text: what a file of 10 MB can have, cut into lines of a hundred characters or more."""
_BUSY_MS = 5_000
_USED_US = 3_600_000_000
_DAY_US = 86_400_000_000
_SCHEMA = """
CREATE TABLE texts (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, body BLOB NOT NULL,
    failed TEXT NOT NULL, missing TEXT NOT NULL, unread TEXT NOT NULL,
    passages INTEGER NOT NULL, length INTEGER NOT NULL, bytes INTEGER NOT NULL, used_us INTEGER NOT NULL
);
CREATE INDEX texts_used ON texts (used_us);
CREATE TABLE files (
    folder TEXT NOT NULL, path TEXT NOT NULL, mark TEXT NOT NULL, entered_ns INTEGER NOT NULL,
    text INTEGER NOT NULL REFERENCES texts (id) ON DELETE CASCADE, PRIMARY KEY (folder, path)
) WITHOUT ROWID;
CREATE INDEX files_text ON files (text);
CREATE TABLE readers (
    text INTEGER NOT NULL REFERENCES texts (id) ON DELETE CASCADE, run TEXT NOT NULL, PRIMARY KEY (text, run)
) WITHOUT ROWID;
CREATE INDEX readers_run ON readers (run);
CREATE TABLE passages (id INTEGER PRIMARY KEY, place TEXT NOT NULL, text BLOB NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (tokens, content='', columnsize=0, detail=none, tokenize="ascii");
CREATE VIRTUAL TABLE vocabulary USING fts5vocab (words, row);
"""


_DROP = [f"DROP TABLE IF EXISTS {name}" for name in ("vocabulary", "words", "passages", "readers", "files", "texts")]


_PASSAGES = "SELECT id, text FROM passages WHERE id >= ? AND id < ?"
_PLACED = "SELECT place, text FROM passages WHERE id >= ? AND id < ? ORDER BY id"
_ONE = "SELECT place, text FROM passages WHERE id = ?"


class KeptText(NamedTuple):
    """A text of the store: its number, how many passages it has, and their length in words together.

    `failed`: why there is none. `missing`: what is in the file and not in its text; `unread`: which end of it was not
    read. Each is a sentence, or empty.
    """

    id: int
    passages: int
    length: int
    failed: str = ""
    missing: str = ""
    unread: str = ""


_COLUMNS = ", ".join(KeptText._fields)


class TextStore:
    """One SQLite file of texts, used by any thread and by several processes. Blocks.

    Raises sqlite3.Error where it cannot be used (a full disk); the caller then reads files without it.
    """

    def __init__(self, path: Path | None, most_bytes: int = MOST_BYTES) -> None:
        """Open or make the store; without a path it is in memory. A damaged file is made anew."""
        self._path = path
        self._most_bytes = most_bytes
        self._lock = threading.RLock()
        try:
            self._db = self._opened()
        except sqlite3.DatabaseError as error:
            if path is None or isinstance(error, sqlite3.OperationalError):
                raise
            log.warning("%s is damaged (%s) and is made anew: files are read again", path, error)
            remove_store(path)
            self._db = self._opened()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _opened(self) -> sqlite3.Connection:
        if self._path is not None:
            with suppress(FileExistsError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        name = ":memory:" if self._path is None else str(self._path)
        db = sqlite3.connect(name, timeout=_BUSY_MS / 1000, check_same_thread=False, isolation_level=None)
        try:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA secure_delete = ON")
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("BEGIN IMMEDIATE")
            if (version := db.execute("PRAGMA user_version").fetchone()[0]) != VERSION:
                for statement in (*(_DROP if version else ()), *_SCHEMA.split(";\n")):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

    # -- what is kept --

    def known(self, folder: str) -> dict[str, tuple[str, int, KeptText]]:
        """Return the files of a folder that are kept, by path: mark, when it was entered, text."""
        query = f"SELECT path, mark, entered_ns, {_COLUMNS} FROM files JOIN texts ON id = text WHERE folder = ?"  # noqa: S608 - fixed names
        with self._lock:
            rows = self._db.execute(query, (folder,)).fetchall()
        return {path: (mark, entered_ns, KeptText(*fields)) for path, mark, entered_ns, *fields in rows}

    def find(self, digest: bytes) -> KeptText | None:
        query = f"SELECT {_COLUMNS} FROM texts WHERE digest = ?"  # noqa: S608 - fixed names
        with self._lock:
            row = self._db.execute(query, (digest,)).fetchone()
        return None if row is None else KeptText(*row)

    def keep(
        self,
        digest: bytes,
        body: bytes,
        passages: Sequence[FilePassage] = (),
        failed: str = "",
        missing: str = "",
        unread: str = "",
    ) -> KeptText:
        """Keep a text with its passages and their words; the sentences are those of `KeptText`."""
        now = time.time_ns() // 1000
        length = sum(passage_length(each.text) for each in passages)
        packed = zlib.compress(body, 1)
        texts = [_packed(each.text) for each in passages]
        terms = [" ".join(index_terms(each.text)) for each in passages]
        size = len(packed) + sum(map(len, texts)) + sum(map(len, terms))
        with self._writing() as db:
            if (found := self.find(digest)) is not None:
                return found
            number = db.execute(
                "INSERT INTO texts (digest, body, failed, missing, unread, passages, length, bytes, used_us)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (digest, packed, failed, missing, unread, len(passages), length, size, now),
            ).lastrowid
            assert number is not None
            rows = range(number * PASSAGES_MOST, (number + 1) * PASSAGES_MOST)
            places = (each.where for each in passages)
            db.executemany("INSERT INTO passages (id, place, text) VALUES (?, ?, ?)", zip(rows, places, texts))  # noqa: B905
            db.executemany("INSERT INTO words (rowid, tokens) VALUES (?, ?)", zip(rows, terms))  # noqa: B905
        return KeptText(number, len(passages), length, failed, missing, unread)

    def enter(self, folder: str, files: Iterable[tuple[str, FileMark, int, int]], run: str) -> None:
        """Note what files of a folder are now (path, mark, when it was read in ns, text), and which run read them."""
        with self._writing() as db:
            for path, mark, entered_ns, text in files:
                db.execute(
                    "INSERT OR REPLACE INTO files (folder, path, mark, entered_ns, text) VALUES (?, ?, ?, ?, ?)",
                    (folder, path, written(mark), entered_ns, text),
                )
                db.execute("INSERT OR IGNORE INTO readers (text, run) VALUES (?, ?)", (text, run))

    def leave(self, folder: str, paths: Iterable[str]) -> None:
        """Forget files of a folder that are gone, or are no longer allowed, and texts that no file has any more."""
        with self._writing() as db:
            db.executemany("DELETE FROM files WHERE folder = ? AND path = ?", ((folder, path) for path in paths))
            self._remove(db, "id NOT IN (SELECT text FROM files)")

    def body(self, text: int) -> bytes:
        """Return what was kept. Raises KeyError: it was removed meanwhile."""
        with self._lock:
            row = self._db.execute("SELECT body FROM texts WHERE id = ?", (text,)).fetchone()
        if row is None:
            raise KeyError(text)
        return zlib.decompress(row[0])

    def use(self, texts: Iterable[int], run: str) -> None:
        """Note that texts were used now (to the hour: most questions then write nothing), and by which run."""
        now, numbers = time.time_ns() // 1000, json.dumps(list(texts))
        with self._writing() as db:
            db.execute(
                "UPDATE texts SET used_us = ? WHERE used_us < ? AND id IN (SELECT value FROM json_each(?))",
                (now, now - _USED_US, numbers),
            )
            db.execute(
                "INSERT OR IGNORE INTO readers SELECT id, ? FROM texts WHERE id IN (SELECT value FROM json_each(?))",
                (run, numbers),
            )

    # -- search --

    def terms(self, beginning: str) -> list[str]:
        """Return the terms of all texts that begin so."""
        query, end = "SELECT term FROM vocabulary WHERE term >= ? AND term < ?", beginning + "\U0010ffff"
        with self._lock:
            return [term for (term,) in self._db.execute(query, (beginning, end))]

    def terms_with(self, part: str) -> list[str]:
        """Return the terms of all texts in which a part stands anywhere."""
        with self._lock:
            return [term for (term,) in self._db.execute("SELECT term FROM vocabulary WHERE instr(term, ?)", (part,))]

    def find_passages(self, texts: Sequence[int], expressions: Iterable[str]) -> dict[int, set[int]]:
        """Return by text the numbers of its passages that match one of some expressions of FTS5."""
        found: dict[int, set[int]] = {}
        wanted = set(texts)
        with self._lock:
            for expression in expressions:
                for (row,) in self._db.execute("SELECT rowid FROM words WHERE words MATCH ?", (expression,)):
                    text, number = divmod(row, PASSAGES_MOST)
                    if text in wanted:
                        found.setdefault(text, set()).add(number)
        return found

    def passages(self, text: int, numbers: Sequence[int] | None = None) -> list[FilePassage]:
        """Return the passages of a text in their order; `numbers`: only these, which are in order as well."""
        first = text * PASSAGES_MOST
        with self._lock:
            if numbers is None:
                rows = self._db.execute(_PLACED, (first, first + PASSAGES_MOST)).fetchall()
            else:
                rows = [self._db.execute(_ONE, (first + number,)).fetchone() for number in numbers]
        return [FilePassage(place, _unpacked(packed)) for place, packed in filter(None, rows)]

    # -- removal --

    def erase_run(self, run: str) -> int:
        """Erase the texts that only this run read, so that their bytes are gone; return how many."""
        only = "id IN (SELECT text FROM readers WHERE run = ?) AND id NOT IN (SELECT text FROM readers WHERE run != ?)"
        with self._writing() as db:
            count = self._remove(db, only, run, run)
            db.execute("DELETE FROM readers WHERE run = ?", (run,))
        self._scrub()
        return count

    def erase_all(self) -> int:
        with self._writing() as db:
            count = self._remove(db, "true")
        self._scrub()
        return count

    def expire(self, before_us: int) -> int:
        """Remove what was not used since then, and what was used least where all together is too much."""
        together = "SELECT id, sum(bytes) OVER (ORDER BY used_us DESC, id DESC) AS together FROM texts"
        oldest = f"id IN (SELECT id FROM ({together}) WHERE together > ?)"  # noqa: S608 - no values in it
        with self._writing() as db:
            count = self._remove(db, "used_us < ?", before_us)
            count += self._remove(db, oldest, self._most_bytes)
        if count:
            self._scrub()
        return count

    def _remove(self, db: sqlite3.Connection, where: str, *given: object) -> int:
        """Remove texts with the words of their passages; an index without content has to be told what they were."""
        count = 0
        query = f"SELECT id FROM texts WHERE {where}"  # noqa: S608 - conditions of this module
        for (text,) in db.execute(query, given).fetchall():
            for row, passage in db.execute(_PASSAGES, (text * PASSAGES_MOST, (text + 1) * PASSAGES_MOST)).fetchall():
                terms = " ".join(index_terms(_unpacked(passage)))
                db.execute("INSERT INTO words (words, rowid, tokens) VALUES ('delete', ?, ?)", (row, terms))
                db.execute("DELETE FROM passages WHERE id = ?", (row,))
            db.execute("DELETE FROM texts WHERE id = ?", (text,))
            count += 1
        return count

    def _scrub(self) -> None:
        """Overwrite what was removed: the index has it until its parts are merged, and the log until it is emptied."""
        with self._lock:
            self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
            self._db.executescript("PRAGMA incremental_vacuum;")  # `execute` gives back one page
            if self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                log.info("what was erased stays in %s-wal until other processes have read on", self._path)


class KeptTexts:
    """The texts that one data root keeps of files, opened when a run first needs them; without a path, none are kept.

    `most_bytes` 0 keeps none either. Where they cannot be opened or written (a full disk), a run reads files without
    them, and the log says so once.
    """

    def __init__(self, path: Path | None = None, most_bytes: int = 0) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._store: TextStore | None = None
        self._said = False

    async def use(self, work: Callable[[TextStore], Awaitable[_Result]]) -> _Result:
        """Return what `work` makes with the store; where that fails, with an empty one in memory."""
        store = await run_sync(self._opened_or_none)
        if store is not None:
            try:
                return await work(store)
            except* sqlite3.Error as errors:
                await run_sync(self._give_up, store, _first_of(errors))
        passing = TextStore(None)
        try:
            return await work(passing)
        finally:
            passing.close()

    def _opened_or_none(self) -> TextStore | None:
        with self._lock:
            if self._store is None and self._path is not None and self._most_bytes:
                try:
                    self._store = TextStore(self._path, self._most_bytes)
                except (OSError, sqlite3.Error) as error:
                    self._say(error)
            return self._store

    def _give_up(self, store: TextStore, error: BaseException) -> None:
        """Say that the store failed; a damaged one is made anew when it is next needed."""
        damaged = isinstance(error, sqlite3.DatabaseError) and "malformed" in str(error)
        with self._lock:
            self._say(error)
            if damaged and self._store is store and self._path is not None:
                store.close()
                remove_store(self._path)
                self._store = None

    def _say(self, error: BaseException) -> None:
        if not self._said:
            log.warning("%s cannot be used (%s): files are read anew for each question", self._path, error)
            self._said = True

    def erase_run(self, run: str) -> int:
        """Erase the texts that only this run read, and return how many; as `erase_all` does."""
        return self._removed(lambda store: store.erase_run(run))

    def erase_all(self) -> int:
        """Erase all texts; return how many. Raises OSError, sqlite3.Error: they are still there."""
        return self._removed(TextStore.erase_all)

    def expire(self, days: int) -> None:
        """Remove what no run used for so many days, and what does not fit any more; a failure is tried again later."""
        try:
            self._removed(lambda store: store.expire(time.time_ns() // 1000 - days * _DAY_US))
        except (OSError, sqlite3.Error) as error:
            log.warning("old texts in %s were not removed (%s)", self._path, error)

    def _removed(self, remove: Callable[[TextStore], int]) -> int:
        if self._path is None or not self._path.exists():
            return 0
        store = TextStore(self._path, max(self._most_bytes, 1))
        try:
            return remove(store)
        finally:
            store.close()

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None


def _first_of(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        within = cast("tuple[BaseException, ...]", errors.exceptions)  # pyright: ignore[reportUnknownMemberType]
        errors = within[0]
    return errors


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def _unpacked(packed: bytes) -> str:
    return zlib.decompress(packed).decode("utf-8", "surrogatepass")


def written(mark: FileMark) -> str:
    return ":".join(map(str, mark))


def is_same(mark: FileMark, kept: str, entered_ns: int) -> bool:
    """Tell whether a file is the one that was read: no less than two seconds old at that time, so that times tell."""
    newest = max(mark.modified_ns, mark.changed_ns)
    return written(mark) == kept and newest + int(FRESH_S * 1e9) <= entered_ns


def remove_store(path: Path) -> None:
    for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        each.unlink(missing_ok=True)
