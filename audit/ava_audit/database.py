"""A connection to the log's database, as the rest of this package uses it: SQLite's or Postgres'.

SQL is written once, in the form that both understand, with `?` or `:name` for values. What only one of them can do has
a method here. Two hints for SQLite's planner mean nothing to Postgres and are taken out there: the unary plus, and
`CROSS JOIN … ON`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ava_audit.model_calls import LoggedCall

ALL_ROWS = 2**62
NEWEST_ENTRY = "SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1"

IndexRow = tuple[int, str, str, str, str, str]
"""A row of the text index: `seq`, then the tokens of agent, session and user, those of type and severity, the text."""

Values = Sequence[object] | Mapping[str, object]


class Commit(NamedTuple):
    """What is known of a commit.

    Attributes:
        head: Its newest `seq`.
        before: The newest `seq` before it.
        types: The types of its entries; None: they are not known.
        hash: The newest entry's, where this process has written it.
        calls: What its entries say of model calls, where this process has written them.
    """

    head: int
    before: int = 0
    types: frozenset[str] | None = None
    hash: bytes = b""
    calls: tuple[LoggedCall, ...] = ()


@dataclass(frozen=True)
class IndexQuery:
    """A query of the index. An entry must meet every part; without any part, every entry matches."""

    filters: tuple[tuple[str, tuple[str, ...]], ...] = ()  # a column, and the tokens of which an entry has one
    phrases: tuple[str, ...] = ()  # words, or several that are adjacent, that are all in the text
    impossible: bool = False

    def __bool__(self) -> bool:
        return bool(self.filters or self.phrases)

    @property
    def expression(self) -> str | None:
        """The query as SQLite's text index reads it, None without any condition."""
        parts = [f"{column} : ({' OR '.join(tokens)})" for column, tokens in self.filters]
        if self.phrases:
            quoted = " AND ".join(f'"{phrase}"' for phrase in self.phrases)
            parts.append(f"text : ({quoted})")
        return " AND ".join(parts) if parts else None


class FoundRows(Protocol):
    """The result of a statement."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection. It is used by one thread at a time."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open that can still be committed."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the connection is gone or spent: the next transaction needs another."""
        ...

    def execute(self, sql: str, values: Values = (), /) -> FoundRows: ...

    def executemany(self, sql: str, values: Iterable[Sequence[object]], /) -> object: ...

    def stream(self, sql: str, values: Values = (), /) -> Iterable[Any]:
        """Yield the rows of a SELECT in portions, because all of them may not fit into memory."""
        ...

    def begin_read(self) -> None:
        """Begin a transaction that sees one state of the log."""
        ...

    def begin_write(self, ask: Callable[[], None] | None = None, /) -> None:
        """Begin a transaction that writes. Raises Busy: try again; LogForked: it is another log than before.

        `ask` asks for rows that will be read, and is called where they can come with the answer.
        """
        ...

    def begin_bulk(self) -> None:
        """Begin a transaction that writes much and reads much of what it wrote. Raises Busy: as for `begin_write`."""
        ...

    def commit(self, commit: Commit | None = None, /) -> None:
        """Commit; other processes are told of the entries that were appended, if there are any.

        Raises Busy if the connection was lost, and nothing was written; OutcomeUnknown if it was lost during the
        commit.
        """
        ...

    def rollback(self) -> None:
        """End the transaction without writing; errors do not matter."""
        ...

    def schema_version(self) -> int:
        """Return the schema's version, 0 for an empty database."""
        ...

    def newest_entry(self) -> tuple[int, bytes] | None:
        """Return the `seq` and hash of the newest entry, None in an empty log."""
        ...

    def data_version(self) -> object:
        """Return a value that changes when another connection has changed a projection."""
        ...

    def sizes(self) -> dict[str, int]:
        """Return bytes on the disk: of the `database`, and of its `write_ahead_log` if that is its own."""
        ...

    def empty_log(self, rewrite: bool, /) -> bool:
        """Move the write-ahead log into the database; False if a reader still needs a part of it.

        With `rewrite`, first rewrite the tables, so that no page keeps bytes of deleted rows.
        """
        ...

    def accept_any_text(self) -> bool:
        """Return invalid text with surrogates from now on; False if that changes nothing."""
        ...

    def stop_at(self, time_s: float | None, /) -> None:
        """Stop statements that still run at this time of the monotonic clock; None: let them run."""
        ...

    def interrupt(self) -> None:
        """Stop the running statement, from another thread and without waiting."""
        ...

    def close(self) -> None: ...

    # -- the text index -----------------------------------------------------------------------------------------------

    def add_words(self, rows: Sequence[IndexRow], /) -> None: ...

    def forget_words(self, row: IndexRow, /) -> None:
        """Remove the text of a row from the index, which was added as it is given; the filters stay."""
        ...

    def merge_words(self, pages: int, /) -> bool:
        """Remove what is left of forgotten words in the index; False if nothing is left.

        `pages` is about how many to write; a negative number starts it, a positive one continues it.
        """
        ...

    def words_condition(self, query: IndexQuery, near: tuple[int, int] | None = None, /) -> tuple[str, list[object]]:
        """Return the SQL condition on `words` for a query, and its values.

        With `near`, the index need not find entries outside of this range (after the first `seq`, up to the
        second).
        """
        ...

    @property
    def words_key(self) -> str:
        """The column of `words` that is an entry's `seq`."""
        ...

    @property
    def words_in_order(self) -> bool:
        """Whether the text index finds entries in the order of the log, so that the first ones cost little."""
        ...


class Busy(Exception):
    """Raised when a transaction cannot begin yet, or was lost before its end; the text says why."""
