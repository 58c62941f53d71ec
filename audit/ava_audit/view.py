"""What commands and readers see: the current state, read from one connection in one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ava_audit.events import Entry, Usage, Who, read_fact

HEADER = [
    "seq",
    "ts_us",
    "session_id",
    "agent_id",
    "user_id",
    "type",
    "v",
    "run_id",
    "generation",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost_micros",
    "model",
    "parent_agent_id",
    "duration_ms",
]
"""The columns of an entry's header, in the order in which they are hashed."""

ENTRY_COLUMNS = ", ".join([*HEADER, "content", "content_sha", "hash"])

LINE_COLUMNS = ENTRY_COLUMNS + ", (SELECT hash FROM events AS before WHERE before.seq = events.seq - 1)"  # noqa: S608
"""The columns of a mirror line: the entry's, and the hash of the entry before it."""

WAITING = "awaiting_approval"
QUEUED = "queued"
RUNNING = "running"
UNENDED = (WAITING, QUEUED, RUNNING)


@dataclass(frozen=True)
class RunRow:
    """A run as the log has it. Money in micro-USD, times in microseconds UTC, durations in microseconds.

    `config` is the approved configuration (with the decision's changes applied); `in_flight` the `CostReserved` of a
    model call that has not been settled; `tokens` those that count against `max_tokens`.
    """

    id: str
    pending_id: str
    group_id: str | None
    user_id: str
    session_id: str
    role: str
    name: str | None
    task_id: str | None
    model: str
    config: str
    config_sha: str
    retry_of: str | None
    state: str
    stop_reason: str | None
    error_kind: str | None
    created_us: int
    queued_us: int | None
    started_us: int | None
    claimed_us: int | None
    ended_us: int | None
    last_us: int | None
    active_us: int
    generation: int
    instance: str | None
    turns: int
    tool_calls: int
    tokens: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_micros: int
    uncosted_micros: int
    overrun: int
    in_flight: str | None
    wrap_micros: int
    wrap_scopes: str | None
    cancel_seq: int | None
    task_seq: int | None
    started_seq: int | None
    result_seq: int | None
    fetched_us: int | None

    @property
    def ended(self) -> bool:
        """Whether the run has an ending."""
        return self.state not in UNENDED


@dataclass(frozen=True)
class ProposalRow:
    """A proposal: which run waits for approval, until when, and what became of it."""

    pending_id: str
    run_id: str
    user_id: str
    session_id: str
    state: str
    digest: str
    created_us: int
    expires_us: int
    decided_us: int | None
    channel: str | None
    group_id: str | None


@dataclass(frozen=True)
class GroupRow:
    """Runs approved together: one aggregate cost cap (micro-USD) and one clock (seconds), if it has one."""

    id: str
    user_id: str
    cap_micros: int
    timeout_s: float | None
    created_us: int
    started_us: int | None


@dataclass(frozen=True)
class Bucket:
    """What a cap's scope has spent, and what is held for calls in flight and wrap-ups; micro-USD."""

    spent_micros: int = 0
    held_micros: int = 0

    @property
    def committed(self) -> int:
        """Spent and held together."""
        return self.spent_micros + self.held_micros


_RUN_COLUMNS = ", ".join(field.name for field in fields(RunRow))
_PROPOSAL_COLUMNS = ", ".join(field.name for field in fields(ProposalRow))


class View:
    """The state of everything, at one moment."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def head(self) -> int:
        """Return the `seq` of the newest entry, 0 for an empty log."""
        return int(self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    def run(self, run_id: str) -> RunRow | None:
        """Return a run, or None."""
        row = self._db.execute(f"SELECT {_RUN_COLUMNS} FROM runs WHERE id = ?", (run_id,)).fetchone()  # noqa: S608
        return None if row is None else RunRow(*row)

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
            limit: At most so many, the newest of them.
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
        rows = self._db.execute(
            f"SELECT {_RUN_COLUMNS} FROM runs WHERE {' AND '.join(where)} ORDER BY created_us DESC, id LIMIT ?",  # noqa: S608
            (*values, limit),
        ).fetchall()
        return [RunRow(*row) for row in reversed(rows)]

    def unfetched(self, user: str, limit: int = 50) -> list[RunRow]:
        """Return this user's runs that ended with a result that nobody has fetched and nothing erased, newest first."""
        rows = self._db.execute(
            f"SELECT {_RUN_COLUMNS} FROM runs WHERE user_id = ? AND result_seq IS NOT NULL AND fetched_us IS NULL"  # noqa: S608
            " AND (SELECT content FROM events WHERE seq = result_seq) IS NOT NULL ORDER BY ended_us DESC LIMIT ?",
            (user, limit),
        )
        return [RunRow(*row) for row in rows]

    def proposal(self, pending_id: str) -> ProposalRow | None:
        """Return a proposal, or None."""
        row = self._db.execute(
            f"SELECT {_PROPOSAL_COLUMNS} FROM proposals WHERE pending_id = ?",  # noqa: S608
            (pending_id,),
        ).fetchone()
        return None if row is None else ProposalRow(*row)

    def group(self, group_id: str) -> GroupRow | None:
        """Return a group, or None."""
        row = self._db.execute(
            "SELECT id, user_id, cap_micros, timeout_s, created_us, started_us FROM groups WHERE id = ?", (group_id,)
        ).fetchone()
        return None if row is None else GroupRow(*row)

    def group_runs(self, group_id: str) -> list[RunRow]:
        """Return the runs of a group."""
        rows = self._db.execute(f"SELECT {_RUN_COLUMNS} FROM runs WHERE group_id = ?", (group_id,))  # noqa: S608
        return [RunRow(*row) for row in rows]

    def bucket(self, scope: str) -> Bucket:
        """Return what a scope has spent and held; empty for one that nobody has used."""
        row = self._db.execute("SELECT spent_micros, held_micros FROM budgets WHERE scope = ?", (scope,)).fetchone()
        return Bucket() if row is None else Bucket(*row)

    def approved_since(self, user: str, since_us: int) -> list[int]:
        """Return when this user's approved runs were queued, from `since_us` on, oldest first."""
        rows = self._db.execute(
            "SELECT queued_us FROM runs WHERE user_id = ? AND queued_us >= ? ORDER BY queued_us", (user, since_us)
        )
        return [int(row[0]) for row in rows]

    def with_task_id(self, user: str, task_id: str) -> list[RunRow]:
        """Return this user's unended runs with the caller's own reference."""
        rows = self._db.execute(
            f"SELECT {_RUN_COLUMNS} FROM runs WHERE user_id = ? AND task_id = ? AND state IN (?, ?, ?)",  # noqa: S608
            (user, task_id, *UNENDED),
        )
        return [RunRow(*row) for row in rows]

    def entry(self, seq: int) -> Entry | None:
        """Return one entry, or None."""
        row = self._db.execute(f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq = ?", (seq,)).fetchone()  # noqa: S608
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
        rows = self._db.execute(
            f"SELECT {ENTRY_COLUMNS} FROM events WHERE run_id = ? AND seq > ?{only} ORDER BY seq",  # noqa: S608
            (run_id, after, *(types or ())),
        )
        return [entry_of(row) for row in rows]

    def last_entry(self, run_id: str, type_name: str, *, own: bool = False) -> Entry | None:
        """Return the newest entry of a type that belongs to a run, or None.

        Args:
            run_id: The run.
            type_name: The type.
            own: Only what the run itself did, not what was done about it.
        """
        row = self._db.execute(
            f"SELECT {ENTRY_COLUMNS} FROM events WHERE run_id = ? AND +type = ?"  # noqa: S608
            f"{' AND generation IS NOT NULL' if own else ''} ORDER BY seq DESC LIMIT 1",
            (run_id, type_name),
        ).fetchone()
        return None if row is None else entry_of(row)

    def rows(self, where: str, *values: object, limit: int = -1) -> Iterator[tuple[Any, ...]]:
        """Yield the rows (`LINE_COLUMNS`) that fulfil an SQL condition, in order of `seq`; `limit` -1 means all."""
        yield from self._db.execute(
            f"SELECT {LINE_COLUMNS} FROM events WHERE {where} ORDER BY seq LIMIT ?",  # noqa: S608
            (*values, limit),
        )

    def select(self, sql: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a SELECT of the caller's own."""
        yield from self._db.execute(sql, values)

    def seq_bounds(self, since_us: int, until_us: int) -> tuple[int, int]:
        """Return the first and last `seq` of the entries of a time range (end exclusive), (0, -1) without one."""
        low, high = self._db.execute(
            "SELECT min(seq), max(seq) FROM events WHERE ts_us >= ? AND ts_us < ?", (since_us, until_us)
        ).fetchone()
        return (0, -1) if low is None else (int(low), int(high))

    def progress(self, duty: str) -> int:
        """Return the `seq` up to which the keeper has done one of its duties."""
        row = self._db.execute("SELECT seq FROM progress WHERE name = ?", (duty,)).fetchone()
        return 0 if row is None else int(row[0])

    def mirrored(self) -> dict[str, int]:
        """Return how long each file of the mirror is when it is whole, in bytes; -1 where content was erased since."""
        return dict(self._db.execute("SELECT file, bytes FROM mirrored").fetchall())

    def last_erasure(self) -> int:
        """Return the `seq` of the newest `LogErased`, 0 without one."""
        row = self._db.execute("SELECT max(seq) FROM events WHERE type = 'LogErased'").fetchone()
        return int(row[0] or 0)

    def newest_before(self, ts_us: int) -> int | None:
        """Return the newest time (microseconds UTC) of an entry at or before a time, or None."""
        row = self._db.execute("SELECT max(ts_us) FROM events WHERE ts_us <= ?", (ts_us,)).fetchone()
        return None if row[0] is None else int(row[0])

    def last_older(self, ts_us: int, before_seq: int) -> int:
        """Return the newest `seq` below `before_seq` whose time is before `ts_us`, 0 without one."""
        row = self._db.execute(
            "SELECT seq FROM events WHERE seq < ? AND +ts_us < ? ORDER BY seq DESC LIMIT 1", (before_seq, ts_us)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def live(self, run_id: str) -> tuple[str, int] | None:
        """Return what a run is doing this second and since when (microseconds UTC), or None."""
        row = self._db.execute("SELECT text, at_us FROM live WHERE run_id = ?", (run_id,)).fetchone()
        return None if row is None else (str(row[0]), int(row[1]))


def entry_of(row: Sequence[Any]) -> Entry:
    """Return the entry of a row that was selected with `ENTRY_COLUMNS`."""
    (seq, ts_us, session_id, agent_id, user_id, type_name, version, run_id, generation, *tokens) = row[:13]
    cost_micros, model, parent_agent_id, duration_ms, content, sha, digest = row[13:20]
    usage = None
    if tokens[0] is not None:
        usage = Usage(
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            cache_read_tokens=tokens[2],
            cache_write_tokens=tokens[3],
        )
    return Entry(
        seq=seq,
        ts_us=ts_us,
        who=Who(session_id, agent_id, user_id, parent_agent_id),
        type=type_name,
        fact=None if content is None else read_fact(type_name, version, content),
        run_id=run_id,
        generation=generation,
        usage=usage,
        cost_micros=cost_micros,
        model=model,
        duration_ms=duration_ms,
        content=None if content is None else content.encode(),
        content_sha=sha,
        hash=digest,
    )


def loads(text: str | None) -> Any:
    """Return the JSON value of a column, None for NULL."""
    return None if text is None else json.loads(text)
