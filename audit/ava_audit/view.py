"""What commands and readers see: the current state, read from one connection in one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ava_audit.entries import ENTRY_COLUMNS, LINE_COLUMNS, Entry, entry_of
from ava_audit.events import Event
from ava_audit.projections import RUNS, Projections
from ava_audit.rows import RUNNING, UNENDED, Bucket, GroupRow, ProposalRow, RunRow


class View:
    """The state of everything, at one moment.

    Args:
        db: The connection, in a transaction.
        tables: The projections as the writer has them in memory, where it is the writer who looks.
        head: The `seq` of the newest entry, where it is known.
    """

    def __init__(self, db: sqlite3.Connection, tables: Projections | None = None, head: int | None = None) -> None:
        self._db = db
        self._tables = tables
        self._head = head

    def head(self) -> int:
        """Return the `seq` of the newest entry, 0 for an empty log."""
        if self._head is not None:
            return self._head
        return int(self._ask("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    def after(self, entries: int) -> View:
        """Return this view as it is once so many entries are written from which nothing follows."""
        return View(self._db, self._tables, self.head() + entries)

    def run(self, run_id: str) -> RunRow | None:
        """Return a run, or None."""
        return self._rows.runs.copy(run_id)

    def runs(
        self,
        *,
        user: str | None = None,
        states: Iterable[str] | None = None,
        ended_since_us: int | None = None,
        limit: int = 1000,
    ) -> list[RunRow]:
        """Return runs, oldest first.

        Args:
            user: Only this user's.
            states: Only in these states.
            ended_since_us: Only those that ended at or after this time.
            limit: At most so many, the newest of them; -1 is all.
        """
        where = ["1"]
        values: list[str | int] = []
        if user is not None:
            where.append("user_id = ?")
            values.append(user)
        if states is not None:
            wanted = list(states)
            where.append(f"state IN ({', '.join('?' * len(wanted))})")
            values.extend(wanted)
        if ended_since_us is not None:
            where.append("ended_us >= ?")
            values.append(ended_since_us)
        rows = self._ask(
            f"{RUNS.select} WHERE {' AND '.join(where)} ORDER BY created_us DESC, id LIMIT ?",
            (*values, limit),
        ).fetchall()
        return [RunRow(*row) for row in reversed(rows)]

    def running(self, gone: Iterable[str] = (), *, but: str = "") -> dict[str, int]:
        """Return how many runs are running, by user.

        Args:
            gone: Owners whose runs do not count.
            but: A run that does not count.
        """
        rows = self._ask("SELECT user_id, instance FROM runs WHERE state = ? AND id <> ?", (RUNNING, but))
        dead = frozenset(gone)
        return dict(Counter(str(user) for user, instance in rows if instance not in dead))

    def durations(self, role: str, limit: int = 50) -> list[tuple[str, int]]:
        """Return model and active time in microseconds of a role's last runs that ended well, the newest first."""
        rows = self._ask(
            "SELECT model, active_us FROM runs WHERE +role = ? AND state = 'success' ORDER BY ended_us DESC LIMIT ?",
            (role, limit),
        )
        return [(str(model), int(active_us)) for model, active_us in rows]

    def newest(self, types: Iterable[str]) -> int:
        """Return the newest `seq` of an entry of one of these types, 0 without one."""
        found = [self._ask("SELECT max(seq) FROM events WHERE type = ?", (name,)).fetchone()[0] for name in types]
        return max((int(seq) for seq in found if seq is not None), default=0)

    def users(self) -> set[str]:
        """Return everybody who has ever proposed a run."""
        return {str(row[0]) for row in self._ask("SELECT DISTINCT user_id FROM runs")}

    def changed_after(self, seq: int, types: Iterable[str]) -> list[tuple[str, str, bool]]:
        """Return id and user of each run with entries after a `seq`, and whether one of them is of these types."""
        wanted = list(types)
        rows = self._ask(
            f"SELECT runs.id, runs.user_id, max(type IN ({', '.join('?' * len(wanted))})) FROM events"  # noqa: S608
            " JOIN runs ON runs.id = events.run_id WHERE seq > ? GROUP BY runs.id",
            (*wanted, seq),
        )
        return [(str(run_id), str(user), bool(found)) for run_id, user, found in rows]

    def unfetched(self, user: str, limit: int = 50) -> list[RunRow]:
        """Return this user's runs that ended with a result that nobody has fetched and nothing erased, newest first."""
        rows = self._ask(
            f"{RUNS.select} WHERE user_id = ? AND result_seq IS NOT NULL AND fetched_us IS NULL"  # noqa: S608
            " AND (SELECT content FROM events WHERE seq = result_seq) IS NOT NULL ORDER BY ended_us DESC LIMIT ?",
            (user, limit),
        )
        return [RunRow(*row) for row in rows]

    def proposal(self, pending_id: str) -> ProposalRow | None:
        """Return a proposal, or None."""
        return self._rows.proposals.copy(pending_id)

    def group(self, group_id: str) -> GroupRow | None:
        """Return a group, or None."""
        return self._rows.groups.copy(group_id)

    def group_runs(self, group_id: str) -> list[RunRow]:
        """Return the runs of a group, oldest first."""
        rows = self._ask(f"{RUNS.select} WHERE group_id = ? ORDER BY created_us, id", (group_id,))
        return [RunRow(*row) for row in rows]

    def bucket(self, scope: str) -> Bucket:
        """Return what a scope has spent and held; empty for one that nobody has used."""
        return self._rows.budgets.copy(scope) or Bucket(scope)

    def approved_since(self, user: str, since_us: int) -> list[int]:
        """Return when this user's approved runs were queued, from `since_us` on, oldest first."""
        rows = self._ask(
            "SELECT queued_us FROM runs WHERE user_id = ? AND queued_us >= ? ORDER BY queued_us", (user, since_us)
        )
        return [int(row[0]) for row in rows]

    def approved_over(self, channel: str, user: str, since_us: int) -> list[RunRow]:
        """Return this user's runs that were approved over a channel from `since_us` on, oldest first."""
        rows = self._ask(
            f"{RUNS.select} WHERE user_id = ? AND queued_us >= ? AND"  # noqa: S608
            " (SELECT channel FROM proposals WHERE proposals.pending_id = runs.pending_id) = ? ORDER BY queued_us",
            (user, since_us, channel),
        )
        return [RunRow(*row) for row in rows]

    def with_task_id(self, user: str, task_id: str) -> list[RunRow]:
        """Return this user's unended runs with the caller's own reference, oldest first."""
        rows = self._ask(
            f"{RUNS.select} WHERE user_id = ? AND task_id = ? AND state IN (?, ?, ?) ORDER BY created_us, id",
            (user, task_id, *UNENDED),
        )
        return [RunRow(*row) for row in rows]

    def entry(self, seq: int) -> Entry | None:
        """Return one entry, or None."""
        row = self._ask(f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq = ?", (seq,)).fetchone()  # noqa: S608
        return None if row is None else entry_of(row)

    def entries(self, run_id: str, after: int = 0, types: Sequence[str] | None = None) -> list[Entry]:
        """Return the entries that belong to a run, in order.

        Args:
            run_id: The run.
            after: Only those with a greater `seq`.
            types: Only these types.
        """
        # The plus keeps SQLite from walking all entries of the type: a run has few, the log may have a million.
        only = f" AND +type IN ({', '.join('?' * len(types))})" if types else ""
        rows = self._ask(
            f"SELECT {ENTRY_COLUMNS} FROM events WHERE run_id = ? AND seq > ?{only} ORDER BY seq",  # noqa: S608
            (run_id, after, *(types or ())),
        )
        return [entry_of(row) for row in rows]

    def of_type(self, type_name: str) -> list[Entry]:
        """Return all entries of a type that there are few of, in order."""
        rows = self._ask(f"SELECT {ENTRY_COLUMNS} FROM events WHERE type = ? ORDER BY seq", (type_name,))  # noqa: S608
        return [entry_of(row) for row in rows]

    def last_entry(self, run_id: str, type_name: str, *, own: bool = False) -> Entry | None:
        """Return the newest entry of a type that belongs to a run, or None.

        Args:
            run_id: The run.
            type_name: The type.
            own: Only what the run itself did, not what was done about it.
        """
        row = self._ask(
            f"SELECT {ENTRY_COLUMNS} FROM events WHERE run_id = ? AND +type = ?"  # noqa: S608
            f"{' AND generation IS NOT NULL' if own else ''} ORDER BY seq DESC LIMIT 1",
            (run_id, type_name),
        ).fetchone()
        return None if row is None else entry_of(row)

    def rows(self, where: str, *values: object, limit: int = -1) -> Iterator[tuple[Any, ...]]:
        """Yield the rows (`LINE_COLUMNS`) that fulfil an SQL condition, in order of `seq`; `limit` -1 means all."""
        yield from self._ask(
            f"SELECT {LINE_COLUMNS} FROM events WHERE {where} ORDER BY seq LIMIT ?",  # noqa: S608
            (*values, limit),
        )

    def select(self, sql: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a SELECT of the caller's own."""
        yield from self._ask(sql, values)

    def seq_bounds(self, since_us: int, until_us: int) -> tuple[int, int]:
        """Return the first and last `seq` of the entries of a time range (end exclusive), (0, -1) without one."""
        low, high = self._ask(
            "SELECT min(seq), max(seq) FROM events WHERE ts_us >= ? AND ts_us < ?", (since_us, until_us)
        ).fetchone()
        return (0, -1) if low is None else (int(low), int(high))

    def span(self, agent_id: str) -> tuple[int, int]:
        """Return the first and last `seq` of what an agent did, (0, -1) when it did nothing."""
        first, last = self._ask(  # apart, so that each is one look at the index
            "SELECT (SELECT min(seq) FROM events WHERE agent_id = ?), (SELECT max(seq) FROM events WHERE agent_id = ?)",
            (agent_id, agent_id),
        ).fetchone()
        return (0, -1) if first is None else (int(first), int(last))

    def progress(self, duty: str) -> int:
        """Return the `seq` up to which the keeper has done one of its duties."""
        row = self._ask("SELECT seq FROM progress WHERE name = ?", (duty,)).fetchone()
        return 0 if row is None else int(row[0])

    def mirrored(self) -> dict[str, int]:
        """Return how long each file of the mirror is when it is whole, in bytes; -1 where content was erased since."""
        return dict(self._ask("SELECT file, bytes FROM mirrored").fetchall())

    def last_erasure(self) -> int:
        """Return the `seq` of the newest `LogErased`, 0 without one."""
        row = self._ask("SELECT max(seq) FROM events WHERE type = 'LogErased'").fetchone()
        return int(row[0] or 0)

    def newest_before(self, ts_us: int) -> int | None:
        """Return the newest time (microseconds UTC) of an entry at or before a time, or None."""
        row = self._ask("SELECT max(ts_us) FROM events WHERE ts_us <= ?", (ts_us,)).fetchone()
        return None if row[0] is None else int(row[0])

    def last_older(self, ts_us: int, before_seq: int) -> int:
        """Return the newest `seq` below `before_seq` whose time is before `ts_us`, 0 without one."""
        row = self._ask(
            "SELECT seq FROM events WHERE seq < ? AND +ts_us < ? ORDER BY seq DESC LIMIT 1", (before_seq, ts_us)
        ).fetchone()
        return 0 if row is None else int(row[0])

    @property
    def _rows(self) -> Projections:
        if self._tables is None:
            self._tables = Projections(self._db)
        return self._tables

    def _ask(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        if self._tables is not None:
            self._tables.write()
        return self._db.execute(sql, values)

    def live(self, run_id: str) -> tuple[str, int] | None:
        """Return what a run is doing this second and since when (microseconds UTC), or None."""
        row = self._ask("SELECT text, at_us FROM live WHERE run_id = ?", (run_id,)).fetchone()
        return None if row is None else (str(row[0]), int(row[1]))


def loads(text: str | None) -> Any:
    """Return the JSON value of a column, None for NULL."""
    return None if text is None else json.loads(text)


T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a command answers: a value for its caller, and the events to append."""

    value: T
    events: tuple[Event, ...] = ()


Command = Callable[[View, int], Outcome[T]]
"""Pure: `(state, now in microseconds UTC) -> outcome`."""
Query = Callable[[View], T]


def append(*events: Event) -> Command[None]:
    """Return the command that appends events, whatever the state."""

    def command(_view: View, _now_us: int) -> Outcome[None]:
        return Outcome(None, events)

    return command
