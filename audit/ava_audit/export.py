"""Exporting: the entries that fulfil a query, oldest first, as lines of the mirror, a slice at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import anyio.to_thread

from ava_audit.errors import StoreUnavailable
from ava_audit.line import mirror_line
from ava_audit.search import SEARCH_S, SLICE, Conditions, LogQuery, bounds, errors_told, matching, reading, state
from ava_audit.view import HEADER, LINE_COLUMNS

SLICE_CHARS = 8_000_000
_CONTENT = len(HEADER)
_AT_ONCE = 20


@dataclass(frozen=True)
class Lines:
    """A slice of an export.

    Attributes:
        data: Whole lines of JSON.
        entries: How many.
        upto: The `seq` up to which everything has been looked at.
        of: The newest `seq` that will be.
    """

    data: bytes
    entries: int
    upto: int
    of: int


async def export(path: Path, query: LogQuery) -> AsyncGenerator[Lines]:
    """Yield what fulfils a query, up to the log's end as it is now; `limit` and cursors play no part.

    Each slice is read in a state of its own, so that a long export keeps nobody waiting and the write-ahead log can be
    emptied; what stands in the log does not change but by being erased.

    Raises:
        BadQuery: It names an event type that does not exist.
        StoreUnavailable: The log cannot be read.
    """
    conditions = Conditions(query)
    if not await anyio.Path(path).is_file():  # connecting would create it
        raise StoreUnavailable(f"there is no log at {path}")
    with errors_told():
        with anyio.fail_after(SEARCH_S):
            async with reading(path) as db:
                head, _indexed = await state(db)
                low, high = await bounds(db, query, head)
        if conditions.nothing:
            return
        while low < high:
            with anyio.fail_after(SEARCH_S):
                async with reading(path) as db:
                    rows, low = await _slice(db, conditions, low, high)
            data = await anyio.to_thread.run_sync(_lines, rows)
            yield Lines(data, len(rows), low, high)


async def _slice(db: aiosqlite.Connection, conditions: Conditions, low: int, high: int) -> tuple[Sequence[Any], int]:
    """Return the next rows after `low`, and the `seq` up to which there are no others."""
    _head, indexed = await state(db)
    if conditions.match is None or low >= indexed:
        rows = await _rows(db, f"events WHERE {conditions.where}", conditions.values, "events.seq", low, high)
        reached = rows[-1][0] if rows else high
        if conditions.match is not None:
            fitting = await anyio.to_thread.run_sync(matching, [row[:-1] for row in rows], conditions.words)
            kept = {row[0] for row in fitting}
            rows = [row for row in rows if row[0] in kept]
        return rows, reached
    # CROSS JOIN keeps the index as the outer loop: it delivers in order.
    source = f"words CROSS JOIN events ON events.seq = words.rowid WHERE words MATCH ? AND {conditions.where}"
    upto = min(indexed, high)
    rows = await _rows(db, source, (conditions.match, *conditions.values), "words.rowid", low, upto)
    return rows, (rows[-1][0] if rows else upto)


async def _rows(
    db: aiosqlite.Connection, source: str, values: Sequence[Any], number: str, low: int, high: int
) -> list[Any]:
    """Return rows in order of `seq`, as many as one slice holds."""
    sql = f"SELECT {LINE_COLUMNS} FROM {source} AND {number} > ? AND {number} <= ? ORDER BY {number} LIMIT ?"  # noqa: S608
    rows: list[Any] = []
    size = 0
    async with db.execute(sql, (*values, low, high, SLICE)) as cursor:
        while some := list(await cursor.fetchmany(_AT_ONCE)):
            rows += some
            size += sum(len(row[_CONTENT] or "") for row in some)
            if size > SLICE_CHARS:  # five hundred of the largest entries would be a gigabyte
                break
    return rows


def _lines(rows: Sequence[Any]) -> bytes:
    return b"".join(mirror_line(row) for row in rows)
