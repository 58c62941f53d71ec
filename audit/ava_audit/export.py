"""Exporting: the entries that fulfil a query, oldest first, as lines of the mirror, a slice at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ava_audit.entries import HEADER, LINE_COLUMNS, mirror_line
from ava_audit.search import SLICE, Conditions, LogQuery, bounds, matching, read_within
from ava_audit.store.store import Store
from ava_audit.view import View

SLICE_CHARS = 8_000_000
_CONTENT = len(HEADER)


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


async def export(store: Store, query: LogQuery) -> AsyncGenerator[Lines]:
    """Yield what fulfils a query, up to the log's end as it is now; `limit` and cursors play no part.

    Each slice is read in a state of its own, so that a long export keeps nobody waiting and the write-ahead log can be
    emptied; what stands in the log does not change but by being erased.

    Raises:
        BadQuery: It names an event type that does not exist.
        StoreUnavailable: The log cannot be read.
    """
    conditions = Conditions(query)
    low, high = await read_within(store, lambda view: bounds(view, query, view.head()))
    while low < high and not conditions.nothing:
        lines = await read_within(store, partial(_slice, conditions=conditions, low=low, high=high))
        yield lines
        low = lines.upto


def _slice(view: View, *, conditions: Conditions, low: int, high: int) -> Lines:
    """Return the next lines after `low`."""
    indexed = view.progress("words")
    if conditions.match is None or low >= indexed:
        rows = _rows(view, f"events WHERE {conditions.where}", conditions.values, "events.seq", low, high)
        reached = rows[-1][0] if rows else high
        if conditions.match is not None:
            kept = {row[0] for row in matching([row[:-1] for row in rows], conditions.words)}
            rows = [row for row in rows if row[0] in kept]
        return Lines(_lines(rows), len(rows), reached, high)
    # CROSS JOIN keeps the index as the outer loop: it delivers in order.
    source = f"words CROSS JOIN events ON events.seq = words.rowid WHERE words MATCH ? AND {conditions.where}"
    upto = min(indexed, high)
    rows = _rows(view, source, (conditions.match, *conditions.values), "words.rowid", low, upto)
    return Lines(_lines(rows), len(rows), rows[-1][0] if rows else upto, high)


def _rows(view: View, source: str, values: Sequence[Any], number: str, low: int, high: int) -> list[Any]:
    """Return rows in order of `seq`, as many as one slice holds."""
    sql = f"SELECT {LINE_COLUMNS} FROM {source} AND {number} > ? AND {number} <= ? ORDER BY {number} LIMIT ?"  # noqa: S608
    rows: list[Any] = []
    size = 0
    for row in view.select(sql, *values, low, high, SLICE):
        rows.append(row)
        size += len(row[_CONTENT] or "")
        if size > SLICE_CHARS:  # five hundred of the largest entries would be a gigabyte
            break
    return rows


def _lines(rows: Sequence[Any]) -> bytes:
    return b"".join(mirror_line(row) for row in rows)
