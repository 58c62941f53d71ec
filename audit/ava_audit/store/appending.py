"""Appending: an event becomes an entry, chained to the one before it and folded into the projections."""

from __future__ import annotations

import sqlite3
import time
from typing import Any, cast

from ava_audit.chain import GENESIS, content_sha, entry_hash
from ava_audit.commands import Outcome
from ava_audit.entries import ENTRY_COLUMNS, content_of
from ava_audit.errors import EntryTooLarge, StaleOwner
from ava_audit.events import Event, Fence
from ava_audit.reducers import Header, reduce
from ava_audit.rows import RUNNING
from ava_audit.storable import storable
from ava_audit.store.projections import Tables

MAX_ENTRY_BYTES = 2_000_000
_INSERT = f"INSERT INTO events ({ENTRY_COLUMNS}) VALUES ({', '.join('?' * 20)})"  # noqa: S608


class Appender:
    """Appends events to the log inside the writer's transaction."""

    def __init__(self, db: sqlite3.Connection, tables: Tables) -> None:
        self._db = db
        self.tables = tables
        row = db.execute("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        self.head: int = row[0] if row else 0
        self._hash: bytes = row[1] if row else GENESIS

    def check(self, events: tuple[Event, ...]) -> list[bytes]:
        """Return the content of each event, or raise before anything is written.

        Raises:
            StaleOwner: A fence is older than the run's claim, or the run has ended.
            EntryTooLarge: A content is over 2 MB.
        """
        checked: Fence | None = None
        for event in events:
            if event.fence is not None and event.fence != checked:
                checked = event.fence
                run = self.tables.runs.seen(checked.run_id)
                if run is None or run.generation != checked.generation or run.state != RUNNING:
                    raise StaleOwner(
                        f"{checked.run_id} is no longer owned by this claim (generation {checked.generation})"
                    )
        return [_content(event) for event in events]

    def outcome(self, value: Any) -> Any:
        """Return what housekeeping answers, with its events appended where it has any."""
        if not isinstance(value, Outcome):
            return value
        done = cast("Outcome[Any]", value)
        self.append(done.events, self.check(done.events))
        return done.value

    def append(self, events: tuple[Event, ...], contents: list[bytes]) -> None:
        """Insert the events and fold them into the projections."""
        for event, content in zip(events, contents, strict=True):
            self._insert(event, content)

    def _insert(self, event: Event, content: bytes) -> None:
        ts_us = time.time_ns() // 1000
        usage = event.usage
        run_id = event.fence.run_id if event.fence else event.run_id
        generation = event.fence.generation if event.fence else None
        header = (
            self.head + 1,
            ts_us,
            event.who.session_id,
            event.who.agent_id,
            event.who.user_id,
            event.fact.type,
            event.fact.version,
            run_id,
            generation,
            usage.input_tokens if usage else None,
            usage.output_tokens if usage else None,
            usage.cache_read_tokens if usage else None,
            usage.cache_write_tokens if usage else None,
            event.cost_micros,
            event.model,
            event.who.parent_agent_id,
            event.duration_ms,
        )
        sha = content_sha(content)
        self._hash = entry_hash(self._hash, header, sha)
        self._db.execute(_INSERT, (*header, content.decode(), sha, self._hash))
        self.head += 1
        reduce(
            self.tables,
            Header(
                self.head, ts_us, event.who.session_id, event.who.user_id, event.fact.type, run_id, generation, usage,
                event.cost_micros,
            ),
            event.fact,
        )  # fmt: skip


def _content(event: Event) -> bytes:
    """Return an event's content as it is stored.

    Raises:
        EntryTooLarge: It is over 2 MB.
    """
    try:
        content = content_of(event.fact)
    except ValueError:  # a lone surrogate that slipped past the border: better noted than lost
        value, _notes = storable(event.fact.model_dump(exclude_none=True))
        content = content_of(type(event.fact).model_validate(value))
    if len(content) > MAX_ENTRY_BYTES:
        raise EntryTooLarge(
            f"a {event.fact.type} of {len(content):,} bytes is over the {MAX_ENTRY_BYTES:,} that an entry may have"
        )
    return content
