"""Entries: events as they stand in the log, and how they are read from its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ava_audit.events import FACTS, Fact, Unknown, Usage, Who

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


@dataclass(slots=True)
class Entry:
    """An event as it stands in the log; `content` is None where retention has erased it."""

    seq: int
    ts_us: int
    who: Who
    type: str
    version: int
    run_id: str | None
    generation: int | None
    usage: Usage | None
    cost_micros: int | None
    model: str | None
    duration_ms: int | None
    content: str | None
    content_sha: bytes
    hash: bytes
    _fact: Fact | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def fact(self) -> Fact | None:
        """What happened, None where the content was erased; read when it is first wanted, and most of it never is.

        Raises:
            ValueError: The content is none that the type has: it was changed.
        """
        if self._fact is None and self.content is not None:
            self._fact = read_fact(self.type, self.version, self.content)
        return self._fact


def entry_of(row: Sequence[Any]) -> Entry:
    """Return the entry of a row that was selected with `ENTRY_COLUMNS`."""
    (
        seq, ts_us, session_id, agent_id, user_id, type_name, version, run_id, generation, fresh, output, read, written,
        cost_micros, model, parent_agent_id, duration_ms, content, sha, digest,
    ) = row  # fmt: skip
    return Entry(
        seq,
        ts_us,
        Who(session_id, agent_id, user_id, parent_agent_id),
        type_name,
        version,
        run_id,
        generation,
        usage_of(fresh, output, read, written),
        cost_micros,
        model,
        duration_ms,
        content,
        sha,
        digest,
    )


def content_of(fact: Fact) -> bytes:
    """Return what an entry holds of a fact: JSON, without what is None.

    Raises:
        ValueError: It has half a surrogate, which no UTF-8 can carry.
    """
    return fact.__pydantic_serializer__.to_json(fact, exclude_none=True)


def read_fact(type_name: str, version: int, content: str | bytes) -> Fact:
    """Return the fact that stored content holds; `Unknown` for a type that is not ours, or a newer version of one.

    How types grow: a new field has a default, so that older entries read as they were meant, and a program that does
    not know it passes it over. A field that changes its meaning raises the type's `version`; one that a reducer reads
    needs a migration too (`user_version`), so that older programs on the same data root stop writing.
    """
    model = FACTS.get(type_name)
    if model is None or version > model.version:
        return Unknown(name=type_name, content=json.loads(content))
    return model.model_validate_json(content, extra="ignore")


def usage_of(fresh: int | None, output: int, cache_read: int, cache_written: int) -> Usage | None:
    """Return the tokens of an entry from the columns of its header, None where it has none.

    Raises:
        ValueError: It has some and not all.
    """
    if fresh is None:
        return None
    return Usage(
        input_tokens=fresh, output_tokens=output, cache_read_tokens=cache_read, cache_write_tokens=cache_written
    )
