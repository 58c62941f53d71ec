"""The store of texts: what was extracted from files, by the hash of their bytes, with an index of their words.

A text is a cache: it may be removed at any time, and is then read again from its file. For each file of a folder, the
store also has what tells that the file has changed. A search names the texts of its own files: those of other folders
are neither found nor count in the ranking.

The index has the terms of each passage (`passages.index_terms`) and only finds passages that may match. Whether and how
well they do is decided on the passages themselves.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ava_roles.sandbox.path_access import FileMark
from ava_roles.texts.passages import FilePassage, index_terms, passage_length

log = logging.getLogger("ava.texts")
MADE_AGAIN = "%s is damaged (%s) and is made anew: files are read again"
"""What the log says of a damaged store."""


VERSION = 9
"""Raise it when parsers return something else, texts are cut otherwise, or the index changes: it rebuilds the store."""
MOST_BYTES = 1_000_000_000
FRESH_S = 2.0
"""A file that changed within this time before it was read may change again without a new time."""
ENDED_S = 600.0
"""How long a file whose parser crashed is not parsed again: else each question would wait for the parser."""
PASSAGES_MOST = 1 << 16
"""The most passages of one text: what a file of 10 MB can have, cut into lines of a hundred characters or more."""
_BUSY_MS = 30_000
"""How long to wait for another process that writes: reading all files again would take longer."""
_STEP = 200
"""How many texts are removed in one transaction, so that others can write between two."""
_STEP_PAGES = 2_000
_USED_US = 3_600_000_000
"""The last use of a text is noted to the hour, so what was used in the last two hours may still be in use."""
_SCHEMA = """
CREATE TABLE texts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, body BLOB NOT NULL,
    failed TEXT NOT NULL, missing TEXT NOT NULL, unread TEXT NOT NULL,
    passages INTEGER NOT NULL, length INTEGER NOT NULL, bytes INTEGER NOT NULL, used_us INTEGER NOT NULL
);
CREATE INDEX texts_used ON texts (used_us, bytes);
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER text_kept AFTER INSERT ON texts BEGIN UPDATE total SET bytes = bytes + new.bytes; END;
CREATE TRIGGER text_removed AFTER DELETE ON texts BEGIN UPDATE total SET bytes = bytes - old.bytes; END;
CREATE TABLE files (
    folder TEXT NOT NULL, path TEXT NOT NULL, mark TEXT NOT NULL, entered_ns INTEGER NOT NULL,
    text INTEGER NOT NULL REFERENCES texts (id) ON DELETE CASCADE, PRIMARY KEY (folder, path)
) WITHOUT ROWID;
CREATE INDEX files_text ON files (text);
CREATE TABLE folders (folder TEXT PRIMARY KEY, place BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE checked (folder TEXT NOT NULL, path TEXT NOT NULL);
INSERT INTO checked VALUES ('', '');
CREATE TABLE readers (
    text INTEGER NOT NULL REFERENCES texts (id) ON DELETE CASCADE, run TEXT NOT NULL, PRIMARY KEY (text, run)
) WITHOUT ROWID;
CREATE INDEX readers_run ON readers (run);
CREATE TABLE passages (id INTEGER PRIMARY KEY, place TEXT NOT NULL, text BLOB NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (tokens, content='', columnsize=0, detail=none, tokenize="ascii");
CREATE VIRTUAL TABLE vocabulary USING fts5vocab (words, row);
"""


_TABLES = ("vocabulary", "words", "passages", "readers", "checked", "folders", "files", "texts", "total")
_DROP = [f"DROP TABLE IF EXISTS {name}" for name in _TABLES]
_DAMAGE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""What SQLite says of a damaged file; the first of a damaged schema, as the statements here are fixed."""


class StoreDamaged(sqlite3.DatabaseError):
    """Raised where SQLite has read something that was not written."""


_PASSAGES = "SELECT id, text FROM passages WHERE id >= ? AND id < ?"
_PLACED = "SELECT place, text FROM passages WHERE id >= ? AND id < ? ORDER BY id"
_ONE = "SELECT place, text FROM passages WHERE id = ?"
_UNUSED = "SELECT id, bytes FROM texts WHERE used_us < ? ORDER BY used_us, id"
_USED = "UPDATE texts SET used_us = ? WHERE id = ? AND used_us < ?"
_NEXT_FILES = (
    "SELECT files.folder, path, mark, place FROM files JOIN folders ON folders.folder = files.folder"
    " WHERE (files.folder, path) > (?, ?) ORDER BY files.folder, path LIMIT ?"
)
_EMPTY_FOLDERS = "DELETE FROM folders WHERE folder NOT IN (SELECT folder FROM files)"
_READER = "INSERT OR IGNORE INTO readers (text, run) SELECT id, ? FROM texts WHERE id = ?"


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


class KeptFile(NamedTuple):
    """A file whose text is kept: its folder's identity, its path there, its mark as `written`, the folder's path."""

    folder: str
    path: str
    mark: str
    place: Path


class TextStore:
    """One SQLite file of texts, used by any thread and by several processes. Blocks.

    Raises sqlite3.Error where it cannot be used (a full disk); the caller then reads files without it.
    """

    def __init__(self, path: Path | None, most_bytes: int = MOST_BYTES) -> None:
        """Open or create the store; without a path it is in memory. A damaged file is replaced."""
        self._path = path
        self._most_bytes = most_bytes
        self._lock = threading.RLock()
        self._ended: dict[bytes, tuple[float, str]] = {}
        self._making_ended = threading.Condition()
        self._making: set[bytes] = set()
        try:
            self._db = self._opened()
        except sqlite3.DatabaseError as error:
            if path is None or not is_damage(error):
                raise
            log.warning(MADE_AGAIN, path, error)
            remove_store(path)
            self._db = self._opened()
        self._file = None if path is None else _identity(path)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def is_in_place(self) -> bool:
        """Tell whether the open file is still the one at its path; another process may have replaced it."""
        if self._path is None:
            return True
        try:
            return _identity(self._path) == self._file
        except OSError:
            return False

    def _opened(self) -> sqlite3.Connection:
        if self._path is not None:
            with suppress(FileExistsError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        name = ":memory:" if self._path is None else str(self._path)
        db = sqlite3.connect(name, timeout=_BUSY_MS / 1000, check_same_thread=False, isolation_level=None)
        try:
            with _damage_found():
                _prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        """Hold the connection. Raises sqlite3.Error; StoreDamaged where something is not what was written."""
        with self._lock, _damage_found():
            yield self._db

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # a full disk has ended it
                    db.execute("ROLLBACK")
                raise

    # -- what is kept --

    def known(self, folder: str) -> dict[str, tuple[str, int, KeptText]]:
        """Return the files of a folder that are kept, by path: mark, when it was entered, text."""
        query = f"SELECT path, mark, entered_ns, {_COLUMNS} FROM files JOIN texts ON id = text WHERE folder = ?"  # noqa: S608 - fixed names
        with self._reading() as db:
            rows = db.execute(query, (folder,)).fetchall()
        return {path: (mark, entered_ns, KeptText(*fields)) for path, mark, entered_ns, *fields in rows}

    def find(self, digest: bytes) -> KeptText | None:
        query = f"SELECT {_COLUMNS} FROM texts WHERE digest = ?"  # noqa: S608 - fixed names
        with self._reading() as db:
            row = db.execute(query, (digest,)).fetchone()
        return None if row is None else KeptText(*row)

    def keep(
        self,
        digest: bytes,
        body: bytes,
        passages: Sequence[FilePassage] = (),
        failed: str = "",
        missing: str = "",
        unread: str = "",
    ) -> KeptText | None:
        """Keep a text with its passages and their words; return the earlier one if its digest is known.

        Returns None if there is no room. `failed`, `missing` and `unread` are as in `KeptText`.
        """
        now = time.time_ns() // 1000
        length = sum(passage_length(each.text) for each in passages)
        packed = zlib.compress(body, 1)
        texts = [_packed(each.text) for each in passages]
        terms = [" ".join(index_terms(each.text)) for each in passages]
        size = len(packed) + sum(map(len, texts)) + sum(map(len, terms))
        with self._writing() as db:
            earlier = self.find(digest)
            if earlier is not None:
                return earlier
            if not self._make_room(db, size, now):
                return None
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

    @contextmanager
    def making(self, digest: bytes, check: Callable[[], None]) -> Generator[None]:
        """Make a text alone: a run of this process that wants the same one waits, and then finds it.

        `check` is called meanwhile; it raises to stop.
        """
        with self._making_ended:
            while digest in self._making:
                self._making_ended.wait(0.1)
                check()
            self._making.add(digest)
        try:
            yield
        finally:
            with self._making_ended:
                self._making.discard(digest)
                self._making_ended.notify_all()

    def ended(self, digest: bytes) -> str | None:
        """Return why a file's parser ended, if that was a short while ago."""
        until, why = self._ended.get(digest, (0.0, ""))
        return why if until > time.monotonic() else None

    def note_ended(self, digest: bytes, why: str) -> None:
        """Remember in this process that a parser ended: another time, the machine may be less busy."""
        self._ended[digest] = (time.monotonic() + ENDED_S, why)

    def _make_room(self, db: sqlite3.Connection, size: int, now_us: int) -> bool:
        """Remove the least recently used texts until `size` bytes fit.

        Returns False, and removes nothing, if texts that may be in use leave too little room.
        """
        total_bytes = db.execute("SELECT bytes FROM total").fetchone()[0]
        bytes_over = total_bytes + size - self._most_bytes
        oldest: list[int] = []
        unused = db.execute(_UNUSED, (now_us - 2 * _USED_US,))
        while bytes_over > 0:
            row = unused.fetchone()
            if row is None:
                return False
            text_id, text_bytes = row
            oldest.append(text_id)
            bytes_over -= text_bytes
        unused.close()
        self._remove(db, oldest)
        return True

    def enter(
        self, folder: str, files: Sequence[tuple[str, FileMark, int, int]], run: str, place: Path | None = None
    ) -> None:
        """Note what files of a folder are now (path, mark, when it was read in ns, text), and which run read them.

        `place` is the folder's path, where `next_files` says that they are; without it, they are not among those.

        A text that was removed meanwhile is left out; one that no file has any more goes. A path that is no UTF-8 is
        left out too, as the database takes none: its file is read again each time.
        """
        now = time.time_ns() // 1000
        with self._writing() as db:
            if place is not None and files:
                db.execute("INSERT OR REPLACE INTO folders VALUES (?, ?)", (folder, os.fsencode(place)))
            replaced: set[int] = set()
            for path, mark, entered_ns, text in files:
                if not _is_utf8(path):
                    continue
                replaced.update(self._texts_of(db, folder, path))
                db.execute(
                    "INSERT OR REPLACE INTO files (folder, path, mark, entered_ns, text)"
                    " SELECT ?, ?, ?, ?, id FROM texts WHERE id = ?",
                    (folder, path, written(mark), entered_ns, text),
                )
                db.execute(_READER, (run, text))
                db.execute(_USED, (now, text, now - _USED_US))
            self._remove_unused(db, replaced)

    def leave(self, folder: str, paths: Iterable[str]) -> None:
        """Forget files of a folder that are gone, or are no longer allowed, and texts that no file has any more."""
        rest = iter(paths)
        while step := list(islice(rest, _STEP)):
            with self._writing() as db:
                texts = {text for path in step for text in self._texts_of(db, folder, path)}
                db.executemany("DELETE FROM files WHERE folder = ? AND path = ?", ((folder, path) for path in step))
                self._remove_unused(db, texts)

    def next_files(self, most: int) -> list[KeptFile]:
        """Return the next files whose texts are kept, at most `most`; after the last one, the first one is next."""
        with self._writing() as db:
            start = db.execute("SELECT folder, path FROM checked").fetchone()
            rows = db.execute(_NEXT_FILES, (*start, most)).fetchall()
            end = rows[-1][:2] if len(rows) == most else ("", "")
            db.execute("UPDATE checked SET folder = ?, path = ?", end)
        return [KeptFile(folder, path, mark, Path(os.fsdecode(place))) for folder, path, mark, place in rows]

    def forget(self, files: Iterable[KeptFile]) -> int:
        """Forget files that are gone, and texts that no file has any more; return how many files.

        A file that was read again meanwhile has another mark, and stays.
        """
        forgotten = 0
        rest = iter(files)
        while step := list(islice(rest, _STEP)):
            with self._writing() as db:
                texts: set[int] = set()
                for file in step:
                    where = "folder = ? AND path = ? AND mark = ?"
                    values = (file.folder, file.path, file.mark)
                    removed = db.execute(f"DELETE FROM files WHERE {where} RETURNING text", values).fetchall()  # noqa: S608 - fixed names
                    texts.update(text for (text,) in removed)
                    forgotten += len(removed)
                self._remove_unused(db, texts)
        if forgotten:
            self._scrub()
        return forgotten

    def _texts_of(self, db: sqlite3.Connection, folder: str, path: str) -> list[int]:
        rows = db.execute("SELECT text FROM files WHERE folder = ? AND path = ?", (folder, path))
        return [text for (text,) in rows]

    def _remove_unused(self, db: sqlite3.Connection, texts: Iterable[int]) -> None:
        """Remove those of some texts that no file has any more."""
        has_file = "SELECT 1 FROM files WHERE text = ?"
        self._remove(db, [text for text in texts if db.execute(has_file, (text,)).fetchone() is None])

    def count(self) -> int:
        with self._reading() as db:
            count: int = db.execute("SELECT count(*) FROM texts").fetchone()[0]
        return count

    def are_kept(self, texts: Iterable[int]) -> bool:
        """Tell whether none of some texts was removed; a number never means another text."""
        numbers = set(texts)
        query = "SELECT count(*) FROM texts WHERE id IN (SELECT value FROM json_each(?))"
        with self._reading() as db:
            count: int = db.execute(query, (json.dumps(list(numbers)),)).fetchone()[0]
        return count == len(numbers)

    def body(self, text: int) -> bytes:
        """Return what was kept. Raises KeyError if it was removed meanwhile."""
        with self._reading() as db:
            row = db.execute("SELECT body FROM texts WHERE id = ?", (text,)).fetchone()
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
        query = "SELECT term FROM vocabulary WHERE term >= ? AND term < ?"
        end = beginning + "\U0010ffff"
        with self._reading() as db:
            return [term for (term,) in db.execute(query, (beginning, end))]

    def terms_with(self, part: str) -> list[str]:
        """Return the terms of all texts in which a part stands anywhere."""
        with self._reading() as db:
            return [term for (term,) in db.execute("SELECT term FROM vocabulary WHERE instr(term, ?)", (part,))]

    def find_passages(self, texts: Sequence[int], expressions: Iterable[str]) -> dict[int, set[int]]:
        """Return by text the numbers of its passages that match one of some expressions of FTS5."""
        numbers: dict[int, set[int]] = {}
        searched = set(texts)
        with self._reading() as db:
            for expression in expressions:
                for (row,) in db.execute("SELECT rowid FROM words WHERE words MATCH ?", (expression,)):
                    text, number = divmod(row, PASSAGES_MOST)
                    if text in searched:
                        numbers.setdefault(text, set()).add(number)
        return numbers

    def passages(self, text: int, numbers: Sequence[int] | None = None) -> list[FilePassage]:
        """Return the passages of a text in their order; `numbers`: only these, which are in order as well."""
        first = text * PASSAGES_MOST
        with self._reading() as db:
            if numbers is None:
                rows = db.execute(_PLACED, (first, first + PASSAGES_MOST)).fetchall()
            else:
                rows = [db.execute(_ONE, (first + number,)).fetchone() for number in numbers]
            return [FilePassage(place, _unpacked(packed)) for place, packed in filter(None, rows)]

    # -- removal --

    def erase_run(self, run: str) -> int:
        """Erase the texts that only this run read, so that their bytes are gone; return how many."""
        only = "id IN (SELECT text FROM readers WHERE run = ?) AND id NOT IN (SELECT text FROM readers WHERE run != ?)"
        count = self._remove_where(only, run, run)
        with self._writing() as db:
            db.execute("DELETE FROM readers WHERE run = ?", (run,))
            db.execute(_EMPTY_FOLDERS)
        self._scrub()
        return count

    def erase_all(self) -> int:
        """Erase all texts, so that their bytes are gone; return how many."""
        count = self.count()
        with self._writing() as db:
            db.execute("INSERT INTO words (words) VALUES ('delete-all')")
            db.execute("DELETE FROM passages")
            db.execute("DELETE FROM readers")
            db.execute("DELETE FROM files")
            db.execute("DELETE FROM folders")
            db.execute("DELETE FROM texts")
        self._scrub()
        return count

    def expire(self, before_us: int) -> int:
        """Remove texts that are not needed any more, and return how many.

        These are the texts that were not used since `before_us`, those that no file has and that were not used for an
        hour (a text is stored before its file is entered), and above the greatest size the least recently used ones.
        """
        together = "SELECT id, sum(bytes) OVER (ORDER BY used_us DESC, id DESC) AS together FROM texts"
        oldest = f"id IN (SELECT id FROM ({together}) WHERE together > ?)"  # noqa: S608 - no values in it
        count = self._remove_where("used_us < ?", before_us)
        left = "id NOT IN (SELECT text FROM files) AND used_us < ?"  # others are about to be entered
        count += self._remove_where(left, time.time_ns() // 1000 - _USED_US)
        count += self._remove_where(oldest, self._most_bytes)
        with self._writing() as db:
            db.execute(_EMPTY_FOLDERS)
        if count:
            self._scrub()
        return count

    def _remove_where(self, condition: str, *values: object) -> int:
        """Remove texts step by step, and return how many."""
        count = 0
        query = f"SELECT id FROM texts WHERE {condition} LIMIT {_STEP}"  # noqa: S608 - conditions of this module
        while True:
            with self._writing() as db:
                texts = [text for (text,) in db.execute(query, values)]
                self._remove(db, texts)
            if not texts:
                return count
            count += len(texts)

    def _remove(self, db: sqlite3.Connection, texts: Iterable[int]) -> None:
        """Remove texts with the words of their passages; an index without content has to be told what they were."""
        for text in texts:
            for row, passage in db.execute(_PASSAGES, (text * PASSAGES_MOST, (text + 1) * PASSAGES_MOST)).fetchall():
                terms = " ".join(index_terms(_unpacked(passage)))
                db.execute("INSERT INTO words (words, rowid, tokens) VALUES ('delete', ?, ?)", (row, terms))
                db.execute("DELETE FROM passages WHERE id = ?", (row,))
            db.execute("DELETE FROM texts WHERE id = ?", (text,))

    def _scrub(self) -> None:
        """Erase removed texts from the file itself: merge the index, free pages, and empty the write-ahead log.

        It works in steps, so that others can write in between.
        """
        pages = -_STEP_PAGES  # of all parts, which further steps go on with
        done = 2
        while done > 1:
            with self._writing() as db:
                before = db.total_changes
                db.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
                done = db.total_changes - before
            pages = _STEP_PAGES
        with self._lock:
            while self._db.execute("PRAGMA freelist_count").fetchone()[0]:
                self._db.executescript(f"PRAGMA incremental_vacuum({_STEP_PAGES});")  # `execute` gives back one page
            if self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                log.info("what was erased stays in %s-wal until other processes have read on", self._path)


def _prepare(db: sqlite3.Connection) -> None:
    """Set a connection up, and make what is not there or of another version."""
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA secure_delete = ON")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("BEGIN IMMEDIATE")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        if version:
            for statement in _DROP:
                db.execute(statement)
        for statement in _SCHEMA.split(";\n"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


@contextmanager
def _damage_found() -> Generator[None]:
    """Raise StoreDamaged for what cannot be unpacked or decoded, in a column or in a message of SQLite."""
    try:
        yield
    except (zlib.error, UnicodeDecodeError) as error:
        raise StoreDamaged(str(error)) from None
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" in str(error):
            raise StoreDamaged(str(error)) from None
        raise


def is_damage(error: BaseException) -> bool:
    """Tell whether an error is of a damaged store, and not of a disk or of another process."""
    return isinstance(error, StoreDamaged) or primary_code(error) in _DAMAGE


def primary_code(error: BaseException) -> int:
    """Return SQLite's primary result code; -1 for an error of another origin."""
    code = getattr(error, "sqlite_errorcode", -1)
    return code & 0xFF if code >= 0 else -1


def _is_utf8(path: str) -> bool:
    """Tell whether a path has no byte that stands in it as a lone surrogate (`os.fsdecode`)."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def _unpacked(packed: bytes) -> str:
    return zlib.decompress(packed).decode("utf-8", "surrogatepass")


def written(mark: FileMark) -> str:
    return ":".join(map(str, mark))


def without_device(mark: FileMark | str) -> str:
    """Return a mark as `written`, without the device, whose number may change when the machine starts again."""
    text = mark if isinstance(mark, str) else written(mark)
    return text.partition(":")[2]


def is_same(mark: FileMark, kept: str, entered_ns: int) -> bool:
    """Tell whether a file is the one that was read: no less than two seconds old at that time, so that times tell."""
    newest = max(mark.modified_ns, mark.changed_ns)
    return written(mark) == kept and newest + int(FRESH_S * 1e9) <= entered_ns


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def remove_store(path: Path) -> None:
    for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        each.unlink(missing_ok=True)
