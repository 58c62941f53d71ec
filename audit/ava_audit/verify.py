"""Verification: is the log what was written, and are the projections what follows from it?

The chain finds any entry that was changed, removed, inserted or moved; a cut tail or a log that was rewritten
as a whole shows only against a head that was noted elsewhere. Synchronous: callers put it in a thread.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

from ava_audit.entries import ENTRY_COLUMNS, GENESIS, HEADER, checked_line, content_sha, entry_hash, read_fact
from ava_audit.errors import AuditError, BadQuery, SchemaNewer, StoreUnavailable
from ava_audit.events import TRANSCRIPT_TYPES, LogErased
from ava_audit.faults import WINDOW, Fault, Progress, Report, Row, diagnose, missing_hash
from ava_audit.mirror import mirror_faults
from ava_audit.projections import BUDGETS, GROUPS, PROPOSALS, RUNS, TableSpec
from ava_audit.reducers import CONTENT_TYPES, MemoryRows, MemoryState, R, fold
from ava_audit.store.schema import SCHEMA_VERSION, schema_changes, schema_faults, schema_version
from ava_audit.view import View

SLICE = 2_000
MAX_FAULTS = 20

_N = len(HEADER)
_TYPE, _VERSION = HEADER.index("type"), HEADER.index("v")
_CONTENT, _SHA, _HASH = _N, _N + 1, _N + 2
_READ_ELSEWHERE = CONTENT_TYPES | TRANSCRIPT_TYPES
"""The types whose content is read by reducers, or may have been erased."""


def verify(
    path: Path,
    *,
    head: str | None = None,
    since: str | None = None,
    mirror: Path | None = None,
    told: Progress | None = None,
) -> Report:
    """Check a log, and say what is wrong with it.

    Args:
        path: The database file.
        head: The hash (hex) of an entry that was noted elsewhere; the log must still have it.
        since: The hash (hex) of an entry that was noted elsewhere and from which on the chain is checked; what is
            before it is trusted, and the projections, which follow from the whole log, are not compared.
        mirror: The folder of the files that mirror it: what they have last, the log must have.
        told: Is told after each slice how many entries have been checked, and of how many.

    Raises:
        BadQuery: A hash is no hash.
        StoreUnavailable: There is no log, or it cannot be read now.
    """
    wanted, trusted = (None if given is None else hash_of(given) for given in (head, since))
    try:
        with contextlib.closing(_open(path)) as db:
            return _verify(db, wanted, trusted, mirror, told or (lambda _done, _all: None))
    except sqlite3.Error as error:
        if _is_damage(error):  # not even its first page can be read
            return Report(
                0, 0, GENESIS.hex(), (Fault("damaged", 0, f"{path} cannot be read as a log: {error}"),), False
            )
        raise StoreUnavailable(f"{path} cannot be read as a log: {error}") from error


def hash_of(digest: str) -> bytes:
    """Return the bytes of a hash as `ava verify` shows it.

    Raises:
        BadQuery: It is none.
    """
    try:
        value = bytes.fromhex(digest)
    except ValueError:
        value = b""
    if len(value) != len(GENESIS) or len(digest.strip()) != 2 * len(GENESIS):
        raise BadQuery(
            f"{digest[:80]!r} is no hash of an entry: it has 64 hexadecimal digits, as `ava verify` shows it"
        )
    return value


def _open(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise StoreUnavailable(f"there is no log at {path}")
    # As a URI, because only so a file that has gone meanwhile is not made anew.
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
    )
    try:
        db.execute("PRAGMA query_only = ON")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        version = schema_version(db)
        if version > SCHEMA_VERSION:
            raise SchemaNewer(f"{path} has schema {version}, this program knows {SCHEMA_VERSION}: use the newer ava")
        if version == 0:
            no_log = sqlite3.DatabaseError("it was emptied, or its beginning is gone")
            no_log.sqlite_errorcode = sqlite3.SQLITE_NOTADB
            raise no_log
        if version < SCHEMA_VERSION:
            raise StoreUnavailable(f"{path} has an older schema ({version}): `ava logs` brings it up to date, once")
    except BaseException:
        db.close()
        raise
    return db


def _is_damage(error: sqlite3.Error) -> bool:
    """Tell whether SQLite says of the file that its bytes are wrong, and not that it cannot be had just now."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _verify(
    db: sqlite3.Connection, head: bytes | None, since: bytes | None, mirror: Path | None, told: Progress
) -> Report:
    start, before = 0, GENESIS
    changes = schema_changes(db)
    if any(kind == "table" and what == "removed" for (kind, _name), what in changes.items()):
        return Report(0, 0, GENESIS.hex(), tuple(schema_faults(changes)), False)
    if since is not None and since != GENESIS:
        found = _seq_of(db, since)
        if found is None:
            return Report(0, 0, GENESIS.hex(), (missing_hash(since, 0),), False)
        start, before = found, since
    walk = _Walk(db, start, before, rebuild=since is None, noted=head)
    faults = _faults(db, walk, told)
    compared = since is None and walk.fault is None
    if head is not None and not walk.met and walk.fault is None:
        faults.append(missing_hash(head, walk.seq))
    if walk.fault is None:
        faults += [*schema_faults(changes), *mirror_faults(View(db), mirror)]
    return Report(walk.seq - start, walk.seq, walk.before.hex(), tuple(faults), compared)


def _faults(db: sqlite3.Connection, walk: _Walk, told: Progress) -> list[Fault]:
    """Walk to the end of the log, compare the projections where they were rebuilt, and return what is wrong."""
    begun = walk.seq
    differences: list[Fault] = []
    try:
        if begun == 0:
            walk.look_before()
        # In slices, so that no long-lived reader keeps the write-ahead log from being emptied.
        while walk.fault is None and walk.step():
            (newest,) = db.execute("SELECT max(seq) FROM events").fetchone()
            told(walk.seq - begun, newest - begun)
        if walk.fault is None and walk.rebuilds:
            differences = walk.compare()
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        walk.fault = walk.find_damage()
    return [walk.fault] if walk.fault is not None else differences


class _Walk:
    """A walk along the chain, with the projections rebuilt on the way."""

    def __init__(
        self, db: sqlite3.Connection, seq: int, before: bytes, *, rebuild: bool, noted: bytes | None = None
    ) -> None:
        self._db = db
        self._rebuilt = MemoryState() if rebuild else None
        self._noted = noted
        self.seq = seq
        self.before = before
        self.met = noted in (before, GENESIS)
        self.fault: Fault | None = None
        self._slice = SLICE
        self._erased = 0
        self._on_record = 0

    @property
    def rebuilds(self) -> bool:
        """Whether the projections are rebuilt."""
        return self._rebuilt is not None

    def look_before(self) -> None:
        """Look for entries before the first one, where no walk comes by."""
        (first,) = self._db.execute("SELECT min(seq) FROM events").fetchone()
        if first is not None and first < 1:
            self.fault = Fault("inserted", first, f"entry {first} was inserted: the first entry is number 1")

    def step(self) -> bool:
        """Check the next slice; False when there was none."""
        begun = self.seq
        try:
            for row in self._db.execute(
                f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq > ? ORDER BY seq LIMIT ?",  # noqa: S608
                (self.seq, self._slice),
            ):
                self.fault = self._check(row)
                if self.fault is not None:
                    break
                self.seq, self.before = row[0], row[_HASH]
                self.met = self.met or self.before == self._noted
        except sqlite3.OperationalError as error:
            if self._db.text_factory is _any_text or "decode" not in str(error).lower():
                raise
            self._take_any_text()
            return True
        return self.seq > begun

    def find_damage(self) -> Fault:
        """Name the entry that cannot be read: they are read ahead, so the next ones may be whole."""
        self._slice = 1
        try:
            while self.fault is None and self.step():
                pass
        except sqlite3.DatabaseError as error:
            return Fault("damaged", self.seq + 1, f"from entry {self.seq + 1} on the file is damaged: {error}")
        return self.fault or Fault("damaged", self.seq, "what follows from the log cannot be read: the file is damaged")

    def _take_any_text(self) -> None:
        """Read texts also where their bytes are none; slower, and used only where something is wrong."""
        self._db.text_factory = _any_text

    def compare(self) -> list[Fault]:
        """Compare the projections at the newest entry, in one consistent state, with the rebuilt ones."""
        assert self._rebuilt is not None
        self._db.execute("BEGIN")
        try:
            while self.step():
                if self.fault is not None:
                    return []
            if self.fault is not None:
                return []
            self._take_any_text()  # whoever changed a table may have put in bytes that are none
            differences = list(islice(_differences(self._db, self._rebuilt, self.seq), MAX_FAULTS))
            if self._erased > self._on_record:
                count = self._erased - self._on_record
                which = "an entry" if count == 1 else f"{count:,} entries"
                text = f"the words of {which} were taken out, and no erasure of them is on record: it was not Ava"
                differences.append(Fault("erased", self.seq, text))
            return differences
        finally:
            self._db.execute("ROLLBACK")

    def _count(self, type_name: str, version: int, content: str | None) -> None:
        """Count what was erased, and what the log says of it; read what neither reducers nor readers of words do.

        Raises:
            ValueError: The content is none that the type has.
        """
        if content is None:
            self._erased += 1
        elif type_name not in _READ_ELSEWHERE:
            fact = read_fact(type_name, version, content)
            self._on_record += fact.entries if isinstance(fact, LogErased) else 0

    def _check(self, row: Row) -> Fault | None:
        try:
            return self._fault_of(row)
        except (TypeError, AttributeError, UnicodeError):  # values of another kind than any that was written
            return Fault("changed", row[0], f"entry {row[0]} was changed: it has values that no entry has")

    def _fault_of(self, row: Row) -> Fault | None:
        seq = row[0]
        if seq != self.seq + 1:
            first = self.seq + 1
            which = f"entry {first} is" if seq == first + 1 else f"entries {first} to {seq - 1} are"
            return Fault("missing", first, f"{which} missing")
        content = row[_CONTENT]
        if content is None and row[_TYPE] not in TRANSCRIPT_TYPES:
            return Fault("changed", seq, f"the content of entry {seq} was erased, and it is no transcript")
        if entry_hash(self.before, row[:_N], row[_SHA]) != row[_HASH]:
            self._take_any_text()
            near = self._db.execute(
                f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq > ? AND seq <= ? ORDER BY seq",  # noqa: S608
                (seq - WINDOW, seq + WINDOW),
            )
            return diagnose(row, near.fetchall())
        if content is not None and content_sha(content.encode("utf-8", "surrogateescape")) != row[_SHA]:
            return Fault("changed", seq, f"the content of entry {seq} was changed")
        try:
            if self._rebuilt is not None:
                fold(self._rebuilt, row)
                self._count(row[_TYPE], row[_VERSION], content)
        except (ValueError, TypeError, AssertionError, LookupError, AuditError) as error:
            return Fault("changed", seq, f"entry {seq} is as it was written, but nothing follows from it: {error}")
        return None


def _differences(db: sqlite3.Connection, rebuilt: MemoryState, seq: int) -> Iterator[Fault]:
    """Yield where the projections are not what follows from the log."""
    yield from _differences_in(PROPOSALS, db, rebuilt.proposals, seq)
    yield from _differences_in(RUNS, db, rebuilt.runs, seq)
    yield from _differences_in(GROUPS, db, rebuilt.groups, seq)
    yield from _differences_in(BUDGETS, db, rebuilt.budgets, seq)


def _differences_in(shape: TableSpec[R], db: sqlite3.Connection, meant: MemoryRows[R], seq: int) -> Iterator[Fault]:
    key = shape.columns[0]
    for table, own in shape.parts.items():
        columns = [key, *(column for column in shape.columns if column in own and column != key)]
        values_of: Callable[[R], tuple[Any, ...]] = attrgetter(*columns)
        missing = set(meant.rows)
        for values in db.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {key}"):  # noqa: S608
            row = meant.rows.get(values[0])
            missing.discard(values[0])
            if row is None:
                text = f"{table} has {key} {values[0]}, which does not follow from the log"
            elif values != values_of(row):
                pairs = zip(columns, values, values_of(row), strict=True)
                others = ", ".join(column for column, stored, follows in pairs if stored != follows)
                text = f"{table} {values[0]} has another {others} than follows from the log"
            else:
                continue
            yield Fault("projection", seq, f"at entry {seq} {text}")
        for name in sorted(missing):
            yield Fault("projection", seq, f"at entry {seq} {table} lacks {key} {name}, which follows from the log")


def _seq_of(db: sqlite3.Connection, digest: bytes) -> int | None:
    """Return the `seq` of the entry with a hash, newest first, because heads are noted near the end."""
    row = db.execute("SELECT seq FROM events WHERE hash = ? ORDER BY seq DESC LIMIT 1", (digest,)).fetchone()
    return None if row is None else int(row[0])


def _any_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


LONGEST_LINE = 16_000_000
"""Several times what the largest entry takes; a longer line is none, and is not read to its end."""
_EVERY = 1_000


def verify_lines(lines: Path | BinaryIO, told: Progress | None = None) -> Report:
    """Check a file of the mirror or an export: each line for itself, the order, and how lines are linked.

    Args:
        lines: The file, or what it is read from.
        told: Is told now and then how many bytes have been checked, and how many there are (0: not known).

    Raises:
        OSError: The file cannot be read.
    """
    if isinstance(lines, Path):
        with lines.open("rb") as opened:
            return _verify_lines(opened, lines.stat().st_size, told)
    return _verify_lines(lines, 0, told)


def _verify_lines(lines: BinaryIO, size: int, told: Progress | None) -> Report:
    seq = entries = gaps = done = 0
    digest = ""
    while line := lines.readline(LONGEST_LINE):
        value = _checked(line, seq, digest)
        if isinstance(value, str):
            return Report(entries, seq, digest, (Fault("line", seq, f"line {entries + 1}: {value}"),), False, gaps)
        gaps += bool(entries) and value["seq"] != seq + 1
        seq, digest = value["seq"], value["hash"]
        entries += 1
        done += len(line)
        if told is not None and entries % _EVERY == 0:
            told(done, size)
    return Report(entries, seq, digest, (), False, gaps)


def _checked(line: bytes, seq: int, digest: str) -> dict[str, Any] | str:
    """Return the line that stands after the entry `seq` with the hash `digest`, or what is wrong with it."""
    if len(line) >= LONGEST_LINE:
        return f"it is longer than any entry ({LONGEST_LINE:,} bytes)"
    value = checked_line(line)
    if isinstance(value, str):
        return value if line.endswith(b"\n") else f"it is cut off; where a server is writing it, try again ({value})"
    if value["seq"] <= seq:
        return f"entry {value['seq']} stands after entry {seq}"
    before = GENESIS.hex() if value["seq"] == 1 else digest if value["seq"] == seq + 1 else ""
    if before and value["prevHash"] != before:
        return f"entry {value['seq']} does not follow the entry before it"
    return value
