"""Moving a whole log from one database to another: every entry with its content and hashes, as lines of JSON.

The file is what the mirror writes for the entries of a log, in their order and without a gap. Nothing is computed
again: an import checks each line and the chain, stores what the lines say, and rebuilds the tables that follow from it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import IO, Any, BinaryIO, Generic, NamedTuple

import anyio.to_thread

from ava_audit.database import Database
from ava_audit.entries import GENESIS, ProgressCallback, VerifyReport, check_line, mirror_line
from ava_audit.errors import BadQuery
from ava_audit.projections import Projections, append_entries, rebuild_projections
from ava_audit.store.backend import Backend
from ava_audit.store.store import Store
from ava_audit.store.writer import Appender
from ava_audit.units import now_us
from ava_audit.verify import LONGEST_LINE, verify_backend
from ava_audit.view import Command, T, View

SLICE = 500


class ImportRefused(BadQuery):
    """Raised when a file is not a whole log, or the target is not empty; nothing was written."""


async def export_log(store: Store, file: IO[bytes], on_progress: ProgressCallback) -> tuple[int, str]:
    """Write all entries until now as lines; return their number, and the newest hash in hex."""
    head = await store.read(View.head)
    seq, digest = 0, GENESIS
    while seq < head:
        rows = await store.read(partial(_rows, after=seq, upto=head))
        await anyio.to_thread.run_sync(file.write, b"".join(map(mirror_line, rows)))
        seq, digest = rows[-1][0], rows[-1][-2]
        on_progress(seq, head)
    return seq, digest.hex()


def _rows(view: View, *, after: int, upto: int) -> list[tuple[Any, ...]]:
    return list(view.rows("seq > ? AND seq <= ?", after, upto, limit=SLICE))


class Imported(NamedTuple, Generic[T]):
    """An imported log: the number of lines and the hash of the last in hex, what `then` returned, and the check."""

    entries: int
    head: str
    done: T
    report: VerifyReport


def import_log(backend: Backend, lines: BinaryIO, on_progress: ProgressCallback, then: Command[T]) -> Imported[T]:
    """Fill an empty log with the lines of `export_log`, in one transaction, and verify it. Blocking.

    `on_progress` gets the number of bytes that were read, and of all (0: unknown). `then` runs on the filled log in the
    same transaction, so that no server sees the log before it.

    Raises ImportRefused: the target has entries, or a line is not the next entry of a log; StoreUnavailable: it cannot
    be written; DataRootRefused: this data root cannot have its log there.
    """
    backend.prepare(fresh=True)
    try:
        with contextlib.closing(backend.connect()) as db:
            try:
                with backend.turn():
                    head, done = _fill(db, lines, on_progress, then)
            except backend.error as error:
                raise backend.translate_error(error) from error
    finally:
        backend.close()
    report = verify_backend(backend, head[1], on_progress=on_progress)
    return Imported(head[0], head[1].hex(), done, report)


def _fill(
    db: Database, lines: BinaryIO, on_progress: ProgressCallback, then: Command[T]
) -> tuple[tuple[int, bytes], T]:
    db.begin_bulk()
    try:
        if View(db).head():
            raise ImportRefused("the target already has entries: import into a new data root or an empty database")
        rows = _chained(lines)
        head = 0, GENESIS
        while True:
            entries = list(islice(rows, SLICE))
            if not entries:
                break
            append_entries(db, entries)
            head = entries[-1][0], entries[-1][-1]
            on_progress(lines.tell() if lines.seekable() else 0, _size(lines))
        rebuild_projections(db)
        projections = Projections(db)
        appender = Appender(db, projections)
        outcome = then(View(db, projections, appender.head), now_us())
        appender.append(outcome.events, appender.check(outcome.events))
        projections.flush()
        db.commit(appender.commit._replace(before=0, types=None))  # the lines too, of any type
        return head, outcome.value
    except BaseException:
        db.rollback()
        raise


def _chained(lines: BinaryIO) -> Iterator[tuple[Any, ...]]:
    """Yield the row of each line. Raises ImportRefused if a line is not the next entry of one chain."""
    seq, digest = 0, GENESIS
    while True:
        line = lines.readline(LONGEST_LINE)
        if not line:
            return
        result = check_line(line)
        if isinstance(result, str):
            raise ImportRefused(f"line {seq + 1}: {result}; nothing was imported")
        *entry, before = result[1]
        if entry[0] != seq + 1 or before != digest:
            raise ImportRefused(
                f"line {seq + 1} is not the entry after entry {seq}: the file is not a whole log; nothing was imported"
            )
        seq, digest = entry[0], entry[-1]
        yield tuple(entry)


def _size(lines: BinaryIO) -> int:
    try:
        return os.fstat(lines.fileno()).st_size
    except OSError:
        return 0
