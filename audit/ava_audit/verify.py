"""Verification: checks the hash chain, and compares the projections with a rebuild from the log.

It also finds settlements of calls that were never reserved, and maintenance that has noted more than it has done.

The chain reveals every entry that was changed, removed, inserted or moved. A cut tail, or a log that was rewritten as a
whole, shows only against a head that was noted elsewhere. The functions block: call them in a thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

from ava_audit.chain_process import intact_slices
from ava_audit.database import Database
from ava_audit.entries import (
    ENTRY_COLUMNS,
    GENESIS,
    HEADER,
    WINDOW,
    Fault,
    ProgressCallback,
    Row,
    VerifyReport,
    check_line,
    content_sha,
    diagnose,
    entry_hash,
    missing_hash,
    read_fact,
)
from ava_audit.errors import AuditError, BadQuery, StoreUnavailable
from ava_audit.events import TRANSCRIPT_TYPES, CostReserved, CostUpdate, Fact, LogErased
from ava_audit.mirror import mirror_differences, mirror_faults
from ava_audit.projections import BUDGETS, PLANS, PROPOSALS, RUNS, SPENDING, TableSpec
from ava_audit.reducers import CONTENT_TYPES, MemoryRows, MemoryState, R, fold
from ava_audit.search import types_query
from ava_audit.store.backend import Backend
from ava_audit.store.schema import schema_faults
from ava_audit.store.sqlite import SqliteBackend, backend_at
from ava_audit.view import View

SLICE = 2_000
MAX_FAULTS = 20
LONG = 20_000
"""Entries from which on a second process gains more than its start takes."""

# Where a row of `ENTRY_COLUMNS` has what the chain needs; its header comes first.
_N = len(HEADER)
_TYPE = HEADER.index("type")
_RUN = HEADER.index("run_id")
_VERSION = HEADER.index("v")
_CONTENT = _N
_SHA = _N + 1
_HASH = _N + 2
_PARSED_OR_NEVER = CONTENT_TYPES | TRANSCRIPT_TYPES
"""Types whose content reducers parse, or whose content needs no parsing: all others are parsed here."""
_REDUCED = f"""
    SELECT {", ".join(HEADER)},
        CASE WHEN content IS NOT NULL AND type IN ({", ".join(map(repr, sorted(TRANSCRIPT_TYPES)))}) THEN ''
        ELSE content END,
        hash
    FROM events WHERE seq > ? AND seq <= ? ORDER BY seq
"""  # noqa: S608
"""What follows from entries that were checked. Transcripts, the most of a log, need not be read for it."""


def verify(
    log: Path,
    *,
    head: str | None = None,
    since: str | None = None,
    mirror: Path | None = None,
    on_progress: ProgressCallback | None = None,
) -> VerifyReport:
    """Check a log, or a copy's database file, and report what is wrong with it.

    `head` is a hash (hex) noted elsewhere that the log must still have. The check starts at `since`, another:
    everything before it is trusted, and the projections, which depend on the whole log, are not compared. The log must
    have the last entry of each file of the folder `mirror`; without `since`, every line must match too. `on_progress`
    gets the number of checked entries, and of all.

    Raises BadQuery if a hash is invalid; StoreUnavailable if there is no log, or it cannot be read now.
    """
    expected_head = None if head is None else hash_of(head)
    trusted = None if since is None else hash_of(since)
    return verify_backend(backend_at(log), expected_head, trusted, mirror, on_progress)


def verify_backend(
    backend: Backend,
    head: bytes | None = None,
    since: bytes | None = None,
    mirror: Path | None = None,
    on_progress: ProgressCallback | None = None,
) -> VerifyReport:
    """Check the log of a backend as `verify` does."""
    try:
        with contextlib.closing(backend.open_to_check()) as db:
            report = _check_log(backend, db, head, since, mirror, on_progress or _no_progress)
            if db.lost:
                raise StoreUnavailable(f"{backend.place} was changed by another process while it was read; try again")
            return report
    except backend.error as error:
        text = f"{backend.place} cannot be read as a log: {error}"
        if backend.is_damage(error):  # even its first page cannot be read
            return _nothing_checked(Fault("damaged", 0, text))
        raise StoreUnavailable(text) from error


def _no_progress(_done: int, _all: int) -> None:
    pass


def _check_log(
    backend: Backend,
    db: Database,
    head: bytes | None,
    since: bytes | None,
    mirror: Path | None,
    on_progress: ProgressCallback,
) -> VerifyReport:
    changes = backend.schema_changes(db)
    for (kind, _name), change in changes.items():
        if kind == "table" and change == "removed":
            return _nothing_checked(*schema_faults(changes))
    start = 0
    before = GENESIS
    if since is not None and since != GENESIS:
        # Newest first, because heads are noted near the end.
        newest = "SELECT seq FROM events WHERE hash = ? ORDER BY seq DESC LIMIT 1"
        row = db.execute(newest, (since,)).fetchone()
        if row is None:
            return _nothing_checked(missing_hash(since, 0))
        start = row[0]
        before = since
    from_beginning = since is None
    walk = _Walk(backend, db, start, before, rebuild=from_beginning, head=head)
    faults = walk.run(on_progress)
    is_chained = walk.fault is None
    if is_chained:
        if head is not None and not walk.met_head:
            faults.append(missing_hash(head, walk.seq))
        view = View(db)
        lost = mirror_faults(view, mirror)
        faults += [*schema_faults(changes), *lost]
        if from_beginning and not lost:
            faults += mirror_differences(view, mirror)
    return VerifyReport(walk.seq - start, walk.seq, walk.before.hex(), tuple(faults), from_beginning and is_chained)


def hash_of(digest: str) -> bytes:
    try:
        value = bytes.fromhex(digest)
    except ValueError:
        value = b""
    if len(value) != len(GENESIS) or len(digest.strip()) != 2 * len(GENESIS):
        raise BadQuery(
            f"{digest[:80]!r} is not the hash of an entry: it must have 64 hexadecimal digits, as `ava verify` shows it"
        )
    return value


def _nothing_checked(*faults: Fault) -> VerifyReport:
    return VerifyReport(0, 0, GENESIS.hex(), faults, projections=False)


class _Walk:
    """A walk along the chain, which rebuilds the projections on the way."""

    def __init__(
        self, backend: Backend, db: Database, seq: int, before: bytes, *, rebuild: bool, head: bytes | None
    ) -> None:
        self._backend = backend
        self._db = db
        self._rebuilt = MemoryState() if rebuild else None
        self._head = head
        self.seq = seq
        self.before = before
        self.met_head = head in (before, GENESIS)
        self.fault: Fault | None = None
        self._slice = SLICE
        self._unreserved: list[Fault] = []
        self._erased = 0
        self._recorded = 0

    def run(self, on_progress: ProgressCallback) -> list[Fault]:
        start = self.seq
        differences: list[Fault] = []
        try:
            if start == 0:
                (first,) = self._db.execute("SELECT min(seq) FROM events").fetchone()
                if first is not None and first < 1:
                    self.fault = Fault("inserted", first, f"entry {first} was inserted: the first entry is number 1")
                self._follow(on_progress)
            # In slices, so that no long transaction keeps the write-ahead log from being emptied.
            while self.fault is None and self._step():
                on_progress(self.seq - start, self._newest() - start)
            if self.fault is None and self._rebuilt is not None:
                differences = self._compare(self._rebuilt)
        except self._backend.error as error:
            if not self._backend.is_damage(error):
                raise
            self.fault = self._find_damage()
        if self.fault is not None:
            return [self.fault]
        return differences

    def _newest(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    def _follow(self, on_progress: ProgressCallback) -> None:
        """Apply the entries of a long log while another process checks the chain ahead; `_step` does all others."""
        if self._rebuilt is None or not isinstance(self._backend, SqliteBackend):
            return
        if (os.cpu_count() or 1) < 2:
            return
        if self.fault is not None or self._newest() < LONG:
            return
        with intact_slices(self._backend.path, self._slice) as slices, contextlib.suppress(self._backend.error):
            for upto, digest in slices:
                # It opened the file a moment later: it must be the same log.
                if self._db.execute("SELECT hash FROM events WHERE seq = ?", (upto,)).fetchone() != (digest,):
                    return
                for row in self._db.execute(_REDUCED, (self.seq, upto)):
                    self.fault = self._apply(self._rebuilt, row)
                    if self.fault is not None:
                        return
                    self._advance(row[0], row[-1])
                on_progress(self.seq, self._newest())

    def _advance(self, seq: int, digest: bytes) -> None:
        self.seq, self.before = seq, digest
        if digest == self._head:
            self.met_head = True

    def _step(self) -> bool:
        """Check the next slice; False if there was none."""
        start = self.seq
        try:
            for row in self._db.execute(
                f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq > ? ORDER BY seq LIMIT ?",  # noqa: S608
                (self.seq, self._slice),
            ):
                self.fault = self._check(row)
                if self.fault is not None:
                    break
                self._advance(row[0], row[_HASH])
        except self._backend.error as error:
            # That is slower, and used only once something is wrong.
            if "decode" not in str(error).lower() or not self._db.accept_any_text():
                raise
            return True
        return self.seq > start

    def _find_damage(self) -> Fault:
        """Name the entry that cannot be read, one by one: in a slice, readable entries may follow."""
        self._slice = 1
        try:
            while self.fault is None and self._step():
                pass
        except self._backend.error as error:
            return Fault("damaged", self.seq + 1, f"the file is damaged from entry {self.seq + 1} on: {error}")
        return self.fault or Fault("damaged", self.seq, "the projections cannot be read: the file is damaged")

    def _compare(self, rebuilt: MemoryState) -> list[Fault]:
        self._db.begin_read()
        try:
            while self.fault is None and self._step():
                pass
            if self.fault is not None:
                return []
            self._db.accept_any_text()  # a tampered table may hold invalid text
            differences = list(islice(_differences(self._db, rebuilt, self.seq), MAX_FAULTS))
            if self._erased > self._recorded:
                count = self._erased - self._recorded
                which = "an entry" if count == 1 else f"{count:,} entries"
                text = f"the content of {which} was erased without a record: it was not Ava"
                differences.append(Fault("erased", self.seq, text))
            differences += self._unreserved
            differences += _upkeep_faults(self._db, self.seq)
            return differences
        finally:
            self._db.rollback()

    def _check(self, row: Row) -> Fault | None:
        try:
            return self._fault_of(row)
        except (TypeError, AttributeError, UnicodeError):  # values of a type that no entry has
            return Fault("changed", row[0], f"entry {row[0]} was changed: it has values that no entry has")

    def _fault_of(self, row: Row) -> Fault | None:
        seq, content = row[0], row[_CONTENT]
        if seq != self.seq + 1:
            first = self.seq + 1
            if seq == first + 1:
                return Fault("missing", first, f"entry {first} is missing")
            return Fault("missing", first, f"entries {first} to {seq - 1} are missing")
        if content is None and row[_TYPE] not in TRANSCRIPT_TYPES:
            return Fault("changed", seq, f"the content of entry {seq} was erased, although it is not a transcript")
        if entry_hash(self.before, row[:_N], row[_SHA]) != row[_HASH]:
            self._db.accept_any_text()
            near = self._db.execute(
                f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq > ? AND seq <= ? ORDER BY seq",  # noqa: S608
                (seq - WINDOW, seq + WINDOW),
            )
            return diagnose(row, near.fetchall())
        if content is not None and content_sha(content.encode("utf-8", "surrogateescape")) != row[_SHA]:
            return Fault("changed", seq, f"the content of entry {seq} was changed")
        if self._rebuilt is None:
            return None
        return self._apply(self._rebuilt, row)

    def _apply(self, rebuilt: MemoryState, row: Row) -> Fault | None:
        """Apply an entry to the rebuilt projections, count erasures, and parse contents that nothing else parses."""
        settled = rebuilt.runs.get(row[_RUN]) if row[_TYPE] == "CostUpdate" else None
        calls_before = "" if settled is None else settled.in_flight
        try:
            fold(rebuilt, row)
            if settled is not None and settled.in_flight == calls_before:  # no call was in flight that it settles
                self._find_reservation(row)
            if row[_CONTENT] is None:
                self._erased += 1
            elif row[_TYPE] not in _PARSED_OR_NEVER:
                fact = read_fact(row[_TYPE], row[_VERSION], row[_CONTENT])
                if isinstance(fact, LogErased):
                    self._recorded += fact.entries
        except (ValueError, TypeError, AssertionError, LookupError, AuditError) as error:
            return Fault("changed", row[0], f"entry {row[0]} is unchanged, but cannot be applied: {error}")
        return None

    def _find_reservation(self, row: Row) -> None:
        """Note a fault if a settlement is of a call that no earlier entry reserves; it may have been given up since."""
        seq, run_id = row[0], row[_RUN]
        fact = self._read_fact(seq)
        sql = "SELECT seq FROM events WHERE run_id = ? AND type = 'CostReserved' AND seq < ? ORDER BY seq DESC"
        for (earlier,) in self._db.execute(sql, (run_id, seq)).fetchall():
            reserved = self._read_fact(earlier)
            assert isinstance(fact, CostUpdate) and isinstance(reserved, CostReserved)
            if (reserved.turn, reserved.attempt) == (fact.turn, fact.attempt):
                return
        if len(self._unreserved) < MAX_FAULTS:
            text = (
                f"entry {seq} settles a model call of {run_id} that no entry reserves: the log has lost entries, or a"
                " process wrote to it that worked on another one; compare the cost with the provider's bill"
            )
            self._unreserved.append(Fault("unreserved", seq, text))

    def _read_fact(self, seq: int) -> Fact | None:
        row = self._db.execute("SELECT type, v, content FROM events WHERE seq = ?", (seq,)).fetchone()
        return None if row[2] is None else read_fact(*row)


def _upkeep_faults(db: Database, head: int) -> Iterator[Fault]:
    """Yield a fault for each duty of maintenance that has noted more than it has done, and so will not do it."""
    view = View(db)
    for duty, seq in db.execute("SELECT name, seq FROM progress ORDER BY name").fetchall():
        if seq > head:
            text = (
                f"the progress of {duty!r} is entry {seq}, and the log ends with entry {head}: its end was cut off, or"
                " the progress was changed"
            )
            yield Fault("progress", head, text)
    indexed = view.progress("words")
    sql = "SELECT type, count(CASE WHEN seq <= ? THEN 1 END) FROM events GROUP BY type ORDER BY type"
    for type_name, count in db.execute(sql, (indexed,)).fetchall():
        condition, values = db.words_condition(types_query(type_name))
        found = db.execute(f"SELECT count(*) FROM words WHERE {condition}", values).fetchone()[0]  # noqa: S608
        if found != count:
            text = (
                f"the search index has {found} of the {count} {type_name} up to entry {indexed}, where its progress is:"
                " searches find too little; `ava export` and `ava import` into a new data root make it anew"
            )
            yield Fault("index", head, text)
            return


def _differences(db: Database, rebuilt: MemoryState, seq: int) -> Iterator[Fault]:
    yield from _table_differences(PROPOSALS, db, rebuilt.proposals, seq)
    yield from _table_differences(RUNS, db, rebuilt.runs, seq)
    yield from _table_differences(PLANS, db, rebuilt.plans, seq)
    yield from _table_differences(BUDGETS, db, rebuilt.budgets, seq)
    yield from _table_differences(SPENDING, db, rebuilt.spending, seq)


def _table_differences(spec: TableSpec[R], db: Database, rebuilt: MemoryRows[R], seq: int) -> Iterator[Fault]:
    key = spec.columns[0]
    for table, own in spec.parts.items():
        columns = [key, *(column for column in spec.columns if column in own and column != key)]
        values_of: Callable[[R], tuple[Any, ...]] = attrgetter(*columns)
        missing = set(rebuilt.rows)
        for values in db.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {key}"):  # noqa: S608
            row = rebuilt.rows.get(values[0])
            missing.discard(values[0])
            if row is None:
                text = f"{table} has {key} {values[0]}, which does not follow from the log"
            elif values != values_of(row):
                pairs = zip(columns, values, values_of(row), strict=True)
                wrong = ", ".join(column for column, stored, expected in pairs if stored != expected)
                text = f"{table} {values[0]} differs from the log in {wrong}"
            else:
                continue
            yield Fault("projection", seq, f"at entry {seq} {text}")
        for name in sorted(missing):
            yield Fault("projection", seq, f"at entry {seq} {table} lacks {key} {name}, which follows from the log")


LONGEST_LINE = 16_000_000
"""Bytes, several times the size of the largest entry. A longer line is not read to its end."""
_PROGRESS_EVERY = 1_000


def verify_lines(lines: Path | BinaryIO, on_progress: ProgressCallback | None = None) -> VerifyReport:
    """Check a mirror file or an export: each line by itself, the order, and the chain of adjacent lines.

    `on_progress` gets the number of checked bytes, and of all bytes (0: unknown). Raises OSError if it cannot be read.
    """
    if isinstance(lines, Path):
        size = lines.stat().st_size
        opened: contextlib.AbstractContextManager[BinaryIO] = lines.open("rb")
    else:
        size, opened = 0, contextlib.nullcontext(lines)
    seq = entries = gaps = done = 0
    digest = ""
    with opened as file:
        while True:
            line = file.readline(LONGEST_LINE)
            if not line:
                break
            value = _check_next(line, seq, digest)
            if isinstance(value, str):
                fault = Fault("line", seq, f"line {entries + 1}: {value}")
                return VerifyReport(entries, seq, digest, (fault,), False, gaps)
            if entries and value["seq"] != seq + 1:
                gaps += 1
            seq, digest = value["seq"], value["hash"]
            entries += 1
            done += len(line)
            if on_progress is not None and entries % _PROGRESS_EVERY == 0:
                on_progress(done, size)
    return VerifyReport(entries, seq, digest, (), False, gaps)


def _check_next(line: bytes, seq: int, digest: str) -> dict[str, Any] | str:
    """Return the parsed line after the entry `seq` with the hash `digest`, or what is wrong with it."""
    if len(line) >= LONGEST_LINE:
        return f"it is longer than any entry ({LONGEST_LINE:,} bytes)"
    result = check_line(line)
    if isinstance(result, str):
        if line.endswith(b"\n"):
            return result
        return f"it is cut off; if a server is writing the file, try again ({result})"
    value, _row = result
    own_seq = value["seq"]
    if own_seq <= seq:
        return f"entry {own_seq} comes after entry {seq}"
    before = ""  # unknown, if entries are missing between the two lines
    if own_seq == 1:
        before = GENESIS.hex()
    elif own_seq == seq + 1:
        before = digest
    if before and value["prevHash"] != before:
        return f"entry {own_seq} does not follow the entry before it"
    return value
