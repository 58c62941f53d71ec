"""Log queries: what a person or a model asks of the log, answered newest first.

Everything that a query filters by is a token in the text index, so that a filter is an intersection; entries
that the keeper has not indexed yet are put into an index in memory and asked the same question. No write lock
is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import anyio

from ava_audit.entries import ENTRY_COLUMNS, HEADER, LINE_COLUMNS, Entry, entry_of, mirror_line
from ava_audit.errors import StoreUnavailable
from ava_audit.events import Severity
from ava_audit.projections import index_words
from ava_audit.store.schema import open_in_memory
from ava_audit.store.store import Query, Store
from ava_audit.text_index import index_row, match_expression, type_filter
from ava_audit.view import View

T = TypeVar("T")

SLICE = 500
SEARCH_S = 30.0
"""A search that takes longer has met a stuck disk: the slowest measured one takes well under a second."""
_FEW = 1_000
"""Counting so many entries of a time takes a tenth of a millisecond."""


@dataclass(frozen=True)
class LogQuery:
    """What is asked of the log. An empty tuple means all; all conditions hold together.

    Attributes:
        agents: Agent ids.
        users: User ids.
        sessions: Session ids.
        runs: Runs to which an entry belongs, whoever did it: also the proposal, the decision, what was fetched.
        types: Event types by name in any case, or the short names of `SHORT_TYPES`.
        since_us: Only entries at or after this time (microseconds UTC).
        until_us: Only entries before it.
        search: Words that all occur in the entry; words in double quotes stand together.
        level: At least this severity.
        limit: At most so many entries.
        before_seq: Only older entries than this one: the cursor of the page before.
        after_seq: Only newer ones.
        upto_seq: Nothing newer than this one: the `upto` of the first page, so that pages neither skip nor
            repeat.
    """

    agents: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    since_us: int | None = None
    until_us: int | None = None
    search: str | None = None
    level: Severity | None = None
    limit: int = 50
    before_seq: int | None = None
    after_seq: int | None = None
    upto_seq: int | None = None


@dataclass(frozen=True)
class Page:
    """An answer to a query.

    Attributes:
        entries: Newest first.
        next: The `before_seq` of the next (older) page, None when this was the last.
        upto: The newest `seq` of the log when it was asked; give it as `upto_seq` with the next page.
    """

    entries: tuple[Entry, ...]
    next: int | None
    upto: int


async def search(store: Store, query: LogQuery) -> Page:
    """Return the newest entries that fulfil a query.

    Args:
        store: The open log.
        query: What is asked.

    Raises:
        BadQuery: It names an event type that does not exist.
        StoreUnavailable: The log cannot be read.
    """
    conditions = Conditions(query)
    return await read_within(store, partial(_page, query=query, conditions=conditions))


async def follow(store: Store, query: LogQuery) -> AsyncIterator[Entry]:
    """Yield entries that fulfil a query as any process writes them, oldest first; never ends by itself.

    Args:
        store: The open log.
        query: What is asked. It begins after `after_seq`, without one at the log's present end.

    Raises:
        BadQuery: It names an event type that does not exist.
        StoreUnavailable: The log cannot be read.
    """
    conditions = Conditions(query)
    seen = store.head if query.after_seq is None else query.after_seq
    while True:
        head = await store.newer_than(seen)
        while seen < head:
            upto = min(head, seen + SLICE)
            for row in await store.read(partial(_new_rows, conditions=conditions, after=seen, upto=upto)):
                yield entry_of(row)
            seen = upto


class Conditions:
    """A query as SQL: exact conditions on the columns, and the question to a text index.

    Attributes:
        where: Conditions on `events`, true for every entry when there are none.
        values: Their values.
        match: The question to the index, None when nothing is asked of it.
        words: The question about text and severity alone, for an index that has only fitting entries.
        nothing: No entry can fulfil it (a search without any word in it).
    """

    def __init__(self, query: LogQuery) -> None:
        types = type_filter(query.types)
        parts, self.values = ["1"], list[Any]()
        for column, wanted in (
            ("agent_id", query.agents),
            ("user_id", query.users),
            ("session_id", query.sessions),
            ("run_id", query.runs),
        ):
            if wanted:
                parts.append(f"{column} IN ({', '.join('?' * len(wanted))})")
                # Half a surrogate is in no id, and SQLite takes none: it stands for what fits nothing.
                self.values += [value.encode("utf-8", "replace").decode() for value in wanted]
        if query.since_us is not None:
            parts.append("+ts_us >= ?")
            self.values.append(query.since_us)
        if query.until_us is not None:
            parts.append("+ts_us < ?")
            self.values.append(query.until_us)
        self.where = " AND ".join(parts)
        # A run belongs to one user and session: asking the index for them too would only cost time.
        runs_only = bool(query.agents) and all(is_run(agent) for agent in query.agents)
        whom = replace(query, users=(), sessions=()) if runs_only else query
        text = match_expression(types=types, level=query.level, search=query.search)
        self.nothing = text.impossible
        self.words = text.expression
        self.match = match_expression(
            agents=whom.agents, users=whom.users, sessions=whom.sessions, types=types, level=query.level,
            search=query.search,
        ).expression  # fmt: skip


async def read_within(store: Store, query: Query[T]) -> T:
    """Ask the log, for as long as a search may take; whoever is cancelled leaves nothing running.

    Raises:
        StoreUnavailable: The log cannot be read, or not in time.
    """
    try:
        with anyio.fail_after(SEARCH_S):
            return await store.read(query, interrupt=True)
    except TimeoutError as error:
        raise StoreUnavailable(
            f"the log did not answer within {SEARCH_S:.0f} s; see that nothing else holds ava.db, and try again"
        ) from error


def _page(view: View, *, query: LogQuery, conditions: Conditions) -> Page:
    """Answer a query in one go: one consistent state of the log, and no step back to the event loop in between."""
    head, indexed = view.head(), view.progress("words")
    low, high = bounds(view, query, head)
    wanted = query.limit + 1
    rows: list[Any] = []
    if not conditions.nothing:
        if high > indexed:
            rows += _tail(view, conditions, max(low, indexed), high, wanted)
        if len(rows) < wanted:
            rows += _index(view, conditions, low, min(high, indexed), wanted - len(rows))
    entries = tuple(entry_of(row) for row in rows[: query.limit])
    more = len(rows) > query.limit and bool(entries)
    return Page(entries, entries[-1].seq if more else None, head)


def bounds(view: View, query: LogQuery, head: int) -> tuple[int, int]:
    """Return the entries to look at: those after the first number, up to and including the second."""
    high = head
    if query.upto_seq is not None:
        high = min(high, query.upto_seq)
    if query.before_seq is not None:
        high = min(high, query.before_seq - 1)
    low = query.after_seq or 0
    if query.since_us is not None:
        # A clock that was set back makes time and `seq` disagree, so the bound is looked up, not assumed; of
        # a long time nothing is gained by it, because the newest entries are read first.
        ((first, count),) = view.select(
            "SELECT min(seq), count(*) FROM (SELECT seq FROM events WHERE ts_us >= ? LIMIT ?)", query.since_us, _FEW
        )
        if count < _FEW:
            low = max(low, head if first is None else int(first) - 1)
    if query.agents and all(is_run(agent) for agent in query.agents):
        # A run's entries lie close together: of the words of all others the index need not be asked.
        spans = [view.span(agent) for agent in query.agents]
        low = max(low, min(first for first, _last in spans) - 1)
        high = min(high, max(last for _first, last in spans))
    return low, high


def is_run(agent: str) -> bool:
    """Tell whether an agent is a subagent: then it is one run of one user."""
    return agent.startswith("S-")


def _index(view: View, conditions: Conditions, low: int, high: int, limit: int) -> list[Any]:
    """Ask the index of the log, or without a question the log itself."""
    if conditions.match is None:
        sql = (
            f"SELECT {ENTRY_COLUMNS} FROM events WHERE {conditions.where} AND seq > ? AND seq <= ?"  # noqa: S608
            " ORDER BY seq DESC LIMIT ?"
        )
        return list(view.select(sql, *conditions.values, low, high, limit))
    # CROSS JOIN keeps the index as the outer loop: it delivers in the order that is asked for.
    sql = (
        f"SELECT {ENTRY_COLUMNS} FROM words CROSS JOIN events ON events.seq = words.rowid"  # noqa: S608
        f" WHERE words MATCH ? AND words.rowid > ? AND words.rowid <= ? AND {conditions.where}"
        " ORDER BY words.rowid DESC LIMIT ?"
    )
    return list(view.select(sql, conditions.match, low, high, *conditions.values, limit))


def _tail(view: View, conditions: Conditions, low: int, high: int, limit: int) -> list[Any]:
    """Return what fits among the entries that are not indexed yet, newest first."""
    found: list[Any] = []
    sql = (
        f"SELECT {ENTRY_COLUMNS} FROM events WHERE {conditions.where} AND seq > ? AND seq <= ?"  # noqa: S608
        " ORDER BY seq DESC LIMIT ?"
    )
    while len(found) < limit:
        rows = list(view.select(sql, *conditions.values, low, high, SLICE))
        found += matching(rows, conditions.words)
        if len(rows) < SLICE:
            break
        high = rows[-1][0] - 1
    return found[:limit]


def _new_rows(view: View, *, conditions: Conditions, after: int, upto: int) -> list[Any]:
    if conditions.nothing:
        return []
    rows = list(view.rows(f"{conditions.where} AND seq > ? AND seq <= ?", *conditions.values, after, upto))
    return matching([row[:-1] for row in rows], conditions.words)


def matching(rows: Sequence[Any], words: str | None) -> list[Any]:
    """Return the rows that an index of them alone finds, in the order given."""
    if words is None or not rows:
        return list(rows)
    with contextlib.closing(open_in_memory()) as db:
        index_words(db, [index_row(entry_of(row)) for row in sorted(rows)], after=0, erased=())
        fitting = {seq for (seq,) in db.execute("SELECT rowid FROM words WHERE words MATCH ?", (words,))}
    return [row for row in rows if row[0] in fitting]


SLICE_CHARS = 8_000_000
_CONTENT = len(HEADER)


@dataclass(frozen=True)
class ExportSlice:
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


async def export_lines(store: Store, query: LogQuery) -> AsyncGenerator[ExportSlice]:
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


def _slice(view: View, *, conditions: Conditions, low: int, high: int) -> ExportSlice:
    """Return the next lines after `low`."""
    indexed = view.progress("words")
    if conditions.match is None or low >= indexed:
        rows = _rows(view, f"events WHERE {conditions.where}", conditions.values, "events.seq", low, high)
        reached = rows[-1][0] if rows else high
        if conditions.match is not None:
            kept = {row[0] for row in matching([row[:-1] for row in rows], conditions.words)}
            rows = [row for row in rows if row[0] in kept]
        return ExportSlice(_lines(rows), len(rows), reached, high)
    # CROSS JOIN keeps the index as the outer loop: it delivers in order.
    source = f"words CROSS JOIN events ON events.seq = words.rowid WHERE words MATCH ? AND {conditions.where}"
    upto = min(indexed, high)
    rows = _rows(view, source, (conditions.match, *conditions.values), "words.rowid", low, upto)
    return ExportSlice(_lines(rows), len(rows), rows[-1][0] if rows else upto, high)


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
