"""Verification: is the log what was written, and are the projections what follows from it?

The chain finds any entry that was changed, removed, inserted or moved; a cut tail or a log that was rewritten
as a whole shows only against a head that was noted elsewhere. Synchronous: callers put it in a thread.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ava_audit.chain import GENESIS, content_sha, entry_hash
from ava_audit.errors import AuditError, BadQuery, StoreUnavailable
from ava_audit.events import TRANSCRIPT_TYPES
from ava_audit.line import line_fault
from ava_audit.migrations import SCHEMA_VERSION, schema_version, scratch
from ava_audit.projections import PROJECTIONS, fold
from ava_audit.view import ENTRY_COLUMNS, HEADER

SLICE = 2_000
WINDOW = 64
"""How far around a fault is looked for where an entry came from."""
MAX_FAULTS = 20

FaultKind = Literal["changed", "missing", "inserted", "reordered", "head", "projection", "line"]
_Row = tuple[Any, ...]
_N = len(HEADER)
_CONTENT, _SHA, _HASH = _N, _N + 1, _N + 2


@dataclass(frozen=True)
class Fault:
    """Something that is not as it was written: which kind, at which `seq`, and a sentence for a person."""

    kind: FaultKind
    seq: int
    text: str


@dataclass(frozen=True)
class Report:
    """What a verification found.

    Attributes:
        entries: How many entries were checked.
        seq: The newest `seq` that was checked, and at which the projections were compared.
        head: The hash of that entry in hex, for noting elsewhere.
        faults: The first fault of the chain, then those of the head and the projections; empty when all is
            well.
        projections: Whether the projections were compared.
    """

    entries: int
    seq: int
    head: str
    faults: tuple[Fault, ...]
    projections: bool

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def verify(path: Path, *, head: str | None = None, since: str | None = None) -> Report:
    """Check a log, and say what is wrong with it.

    Args:
        path: The database file.
        head: The hash (hex) of an entry that was noted elsewhere; the log must still have it.
        since: The hash (hex) of an entry from which on the chain is checked; what is before it is trusted,
            and the projections, which follow from the whole log, are not compared.

    Raises:
        BadQuery: A hash is no hash, or the log has no entry with the hash in `since`.
        StoreUnavailable: The file cannot be read as a log.
    """
    try:
        with contextlib.closing(_open(path)) as db:
            return _verify(db, head, since)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{path} cannot be read as a log: {error}") from error


def verify_lines(path: Path) -> Report:
    """Check a file of the mirror or an export: each line for itself, the order, and how lines are linked.

    Raises:
        OSError: The file cannot be read.
    """
    seq = entries = 0
    digest = ""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            text = line_fault(line)
            if text is None:
                value = json.loads(line)
                if value["seq"] <= seq:
                    text = f"entry {value['seq']} stands after entry {seq}"
                elif value["seq"] == seq + 1 and digest and value["prevHash"] != digest:
                    text = f"entry {value['seq']} does not follow the entry before it"
                else:
                    seq, digest = value["seq"], value["hash"]
            if text is not None:
                return Report(entries, seq, digest, (Fault("line", seq, f"line {number}: {text}"),), False)
            entries += 1
    return Report(entries, seq, digest, (), False)


def _open(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise StoreUnavailable(f"there is no log at {path}")
    db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA query_only = ON")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    if schema_version(db) != SCHEMA_VERSION:
        db.close()
        raise StoreUnavailable(f"{path} has another schema than this program: open it once with the newest ava")
    return db


def _text(raw: bytes) -> str:
    """Read bytes that are no text any more all the same, so that what has them is named."""
    return raw.decode("utf-8", "surrogateescape")


def _verify(db: sqlite3.Connection, head: str | None, since: str | None) -> Report:
    start, before = (0, GENESIS) if since is None else _pinned(db, since)
    walk = _Walk(db, start, before, rebuild=since is None)
    with contextlib.closing(walk):
        # In slices, so that no long-lived reader keeps the write-ahead log from being emptied.
        while walk.fault is None and walk.step():
            pass
        faults = [] if walk.fault is None else [walk.fault]
        compared = False
        if walk.fault is None and since is None:
            faults += walk.compare()
            compared = walk.fault is None
            faults += [] if walk.fault is None else [walk.fault]
        if head is not None and _seq_of(db, head) is None:
            text = f"the log has no entry with the hash {head}: its end was cut off, or it was rewritten"
            faults.append(Fault("head", walk.seq, text))
        return Report(walk.seq - start, walk.seq, walk.before.hex(), tuple(faults), compared)


class _Walk:
    """A walk along the chain, with the projections rebuilt on the way."""

    def __init__(self, db: sqlite3.Connection, seq: int, before: bytes, *, rebuild: bool) -> None:
        self._db = db
        self._copy = scratch() if rebuild else None
        if self._copy is not None:
            self._copy.execute("BEGIN")
        self.seq = seq
        self.before = before
        self.fault: Fault | None = None

    def close(self) -> None:
        """Throw the rebuilt projections away."""
        if self._copy is not None:
            self._copy.close()

    def step(self) -> bool:
        """Check the next slice; False when there was none."""
        begun = self.seq
        try:
            self._take(
                self._db.execute(
                    f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq > ? ORDER BY seq LIMIT ?",  # noqa: S608
                    (self.seq, SLICE),
                )
            )
        except sqlite3.OperationalError as error:
            if "decode" not in str(error) or self._db.text_factory is _text:
                raise
            self._db.text_factory = _text  # it costs time, so only from here on
            return True
        except sqlite3.DatabaseError as error:
            self._find(error)
        return self.seq > begun

    def _take(self, rows: Iterable[_Row]) -> None:
        for row in rows:
            try:
                self.fault = self._check(row)
            except (TypeError, ValueError, AttributeError) as error:  # a column of a kind that is never written
                self.fault = Fault("changed", row[0], f"entry {row[0]} was damaged in the file: {error}")
            if self.fault is not None:
                return
            self.seq, self.before = row[0], row[_HASH]

    def _find(self, error: sqlite3.DatabaseError) -> None:
        """Name the entry that cannot be read: the next one, or, because they are read ahead, the one after it."""
        seq = self.seq + 1
        try:
            rows = self._db.execute(f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq = ?", (seq,))  # noqa: S608
            self._take(rows.fetchall())
        except sqlite3.DatabaseError as again:
            error = again
        if self.fault is None:
            self.fault = Fault("changed", self.seq + 1, f"entry {self.seq + 1} was damaged in the file: {error}")

    def compare(self) -> list[Fault]:
        """Compare the projections at the newest entry, in one consistent state, with the rebuilt ones."""
        assert self._copy is not None
        self._db.text_factory = _text
        self._db.execute("BEGIN")
        try:
            while self.step():
                if self.fault is not None:
                    return []
            return [] if self.fault else list(_differences(self._db, self._copy, self.seq))[:MAX_FAULTS]
        finally:
            self._db.execute("ROLLBACK")

    def _check(self, row: _Row) -> Fault | None:
        seq = row[0]
        if seq != self.seq + 1:
            first = self.seq + 1
            which = f"entry {first} is" if seq == first + 1 else f"entries {first} to {seq - 1} are"
            return Fault("missing", first, f"{which} missing")
        content = row[_CONTENT]
        if content is None and row[HEADER.index("type")] not in TRANSCRIPT_TYPES:
            return Fault("changed", seq, f"the content of entry {seq} was erased, and it is no transcript")
        if entry_hash(self.before, row[:_N], row[_SHA]) != row[_HASH]:
            return self._explain(row)
        if content is not None and content_sha(content.encode()) != row[_SHA]:
            return Fault("changed", seq, f"the content of entry {seq} was changed")
        try:
            self._fold(row)
        except (ValueError, TypeError, AssertionError, LookupError, sqlite3.Error, AuditError) as error:
            return Fault("changed", seq, f"entry {seq} is as it was written, but nothing follows from it: {error}")
        return None

    def _fold(self, row: _Row) -> None:
        if self._copy is not None:
            fold(self._copy, row)

    def _explain(self, row: _Row) -> Fault:
        """Tell what happened where an entry does not follow from the one before it."""
        seq = row[0]
        near = self._db.execute(
            f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq > ? AND seq <= ? ORDER BY seq",  # noqa: S608
            (seq - WINDOW, seq + WINDOW),
        ).fetchall()
        hashes = {0: GENESIS, **{other[0]: other[_HASH] for other in near}}
        after = [other for other in near if other[0] > seq]
        if after and _follows(after[0], row[_HASH], after[0][0]):
            return Fault("changed", seq, f"entry {seq} was changed")
        for gone in range(1, WINDOW):  # renumbered down: it and its successor still hold on to each other
            if after and _follows(after[0], row[_HASH], seq + 1 + gone):
                which = "an entry is" if gone == 1 else f"{gone} entries are"
                return Fault("missing", seq, f"{which} missing before entry {seq}")
        for other in (row, *after):  # renumbered up: it follows from what stands before the inserted ones
            for more in range(1, WINDOW):
                first = other[0] - more
                if first >= 1 and first <= seq and _follows(other, hashes.get(first - 1, b""), first):
                    which = f"entry {first} was" if more == 1 else f"entries {first} to {other[0] - 1} were"
                    if not _moved(near, first, hashes):
                        return Fault("inserted", first, f"{which} inserted")
        place = _place_of(row, near, hashes)
        if place is not None:
            return Fault("reordered", seq, f"entry {seq} was entry {place}: entries were reordered")
        return Fault("changed", seq, f"entry {seq} was changed, or another stands in its place")


def _follows(row: _Row, before: bytes, seq: int) -> bool:
    """Tell whether an entry is what was written as entry `seq` after the entry with the hash `before`."""
    return bool(entry_hash(before, (seq, *row[1:_N]), row[_SHA]) == row[_HASH])


def _moved(near: list[_Row], seq: int, hashes: dict[int, bytes]) -> bool:
    """Tell whether the entry that stands at `seq` was written as another one."""
    row = next((other for other in near if other[0] == seq), None)
    return row is not None and _place_of(row, near, hashes) is not None


def _place_of(row: _Row, near: list[_Row], hashes: dict[int, bytes]) -> int | None:
    """Return the number under which an entry was written, if that was near and another than it has."""
    for other in near:
        if other[0] != row[0]:
            for before in hashes.values():
                if _follows(row, before, other[0]):
                    return int(other[0])
    return None


def _differences(db: sqlite3.Connection, copy: sqlite3.Connection, seq: int) -> Iterator[Fault]:
    """Yield where the projections are not what follows from the log."""
    for table in PROJECTIONS:
        key, there = _rows_by_key(db, table)
        _key, meant = _rows_by_key(copy, table)
        for name in sorted({*there, *meant}):
            shown = name.encode("utf-8", "replace").decode()
            if name not in meant:
                text = f"{table} has {key} {shown}, which does not follow from the log"
            elif name not in there:
                text = f"{table} lacks {key} {shown}, which follows from the log"
            elif there[name] != meant[name]:
                columns = [column for column in meant[name] if meant[name][column] != there[name].get(column)]
                text = f"{table} {shown} has another {', '.join(columns)} than follows from the log"
            else:
                continue
            yield Fault("projection", seq, f"at entry {seq} {text}")


def _rows_by_key(db: sqlite3.Connection, table: str) -> tuple[str, dict[str, dict[str, Any]]]:
    cursor = db.execute(f"SELECT * FROM {table}")  # noqa: S608
    columns = [column[0] for column in cursor.description]
    return columns[0], {str(row[0]): dict(zip(columns, row, strict=True)) for row in cursor}


def _seq_of(db: sqlite3.Connection, digest: str) -> int | None:
    """Return the `seq` of the entry with a hash, newest first, because heads are noted near the end."""
    try:
        wanted = bytes.fromhex(digest)
    except ValueError:
        wanted = b""
    if len(wanted) != len(GENESIS):
        raise BadQuery(
            f"{digest[:80]!r} is no hash of an entry: it has 64 hexadecimal digits, as `ava verify` shows it"
        )
    row = db.execute("SELECT seq FROM events WHERE hash = ? ORDER BY seq DESC LIMIT 1", (wanted,)).fetchone()
    return None if row is None else int(row[0])


def _pinned(db: sqlite3.Connection, digest: str) -> tuple[int, bytes]:
    seq = _seq_of(db, digest)
    if seq is None:
        raise BadQuery(f"the log has no entry with the hash {digest}: its end was cut off, or it was rewritten")
    return seq, bytes.fromhex(digest)
