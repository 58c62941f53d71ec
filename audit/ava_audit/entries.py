"""Entries: events as they stand in the log, and how they are read from its rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from ava_audit.events import FACTS, TRANSCRIPT_TYPES, Fact, Unknown, Usage, Who
from ava_audit.units import iso_utc

GENESIS = bytes(32)
"""The hash before the first entry."""


def content_sha(content: bytes) -> bytes:
    """Return the hash of an entry's content; it stays when the content is erased."""
    return hashlib.sha256(content).digest()


def entry_hash(previous: bytes, header: Sequence[object], sha: bytes) -> bytes:
    """Return an entry's hash: sha256 over the previous hash, the header and the content's hash.

    Args:
        previous: The hash of the entry before it, `GENESIS` for the first.
        header: The header columns in the order of the table, `seq` to `duration_ms`.
        sha: The content's hash.
    """
    return hashlib.sha256(previous + _line(header) + sha).digest()


def _line(header: Sequence[object]) -> bytes:
    """Return a header as JSON: an array without spaces, in UTF-8.

    Raises:
        TypeError: It has a value that no header has.
    """
    try:
        line = to_json(header)  # five times as fast as `json`; for what a header has, the same bytes
    except PydanticSerializationError:  # half a surrogate: no entry has it, but one that was tampered with may
        return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if bytes in map(type, header):  # which `to_json` writes as if they were text
        raise TypeError("a header has bytes where text or a number stood")
    return line


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


_CONTENT = b',"content":'
_METADATA = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cacheReadTokens",
    "cache_write_tokens": "cacheWriteTokens",
    "model": "modelId",
    "parent_agent_id": "parentAgentId",
    "duration_ms": "durationMs",
}
_TOP = {
    "seq": "seq",
    "v": "v",
    "run_id": "runId",
    "generation": "generation",
    "ts_us": "timestampUs",
    "cost_micros": "costMicros",
}
_SEED = {"session_id": "sessionId", "agent_id": "agentId", "user_id": "userId", "type": "eventType"}


def mirror_line(row: Sequence[Any]) -> bytes:
    """Return an entry as one line of JSON, with the newline; null values are absent.

    Args:
        row: Selected with `LINE_COLUMNS`.
    """
    header: dict[str, Any] = dict(zip(HEADER, row, strict=False))
    content, sha, digest, before = row[len(HEADER) : len(HEADER) + 4]
    seed = {"timestamp": iso_utc(header["ts_us"]), **_named(header, _SEED)}
    metadata = _members(_named(header, _METADATA))
    if header["cost_micros"] is not None:  # written as the exact decimal, which no float is
        metadata += (b"," if metadata else b"") + b'"costCents":' + _cents(header["cost_micros"]).encode()
    chain = {
        "contentSha": sha.hex(),
        "prevHash": (GENESIS if before is None else before).hex(),
        "hash": digest.hex(),
    }
    parts = [
        _members(seed),
        *([] if content is None else [b'"content":' + content.encode()]),
        b'"metadata":{' + metadata + b"}",
        _members({**_named(header, _TOP), **chain}),
    ]
    return b"{" + b",".join(parts) + b"}\n"


def line_fault(line: bytes) -> str | None:
    """Return what is wrong with a mirror line, None when it is, byte for byte, what is written of an entry."""
    value = checked_line(line)
    return value if isinstance(value, str) else None


def checked_line(line: bytes) -> dict[str, Any] | str:
    """Return what a mirror line says, or where it is not what is written of an entry, what is wrong with it."""
    try:
        value: dict[str, Any] = json.loads(line)
        metadata = value["metadata"]
        header = [
            value[_SEED[column]] if column in _SEED else (metadata if column in _METADATA else value).get(name)
            for column, name in ((column, {**_SEED, **_METADATA, **_TOP}[column]) for column in HEADER)
        ]
        sha, before, digest = (bytes.fromhex(value[name]) for name in ("contentSha", "prevHash", "hash"))
        content = _raw_content(line) if "content" in value else None
        written = mirror_line([*header, content, sha, digest, before])
        numbered = isinstance(value["seq"], int) and value["seq"] > 0
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        return f"it is not a line of the log ({type(error).__name__}: {str(error)[:200]})"
    if content is not None and content_sha(content.encode()) != sha:
        return "its content was changed"
    if content is None and value["eventType"] not in TRANSCRIPT_TYPES:
        return "its content is missing, and what its type holds is never erased"
    if not numbered or entry_hash(before, header, sha) != digest:
        return "its header was changed"
    # Whatever else stands in it was hashed by nobody: a second `content`, say, which another reader would take.
    if written != line.rstrip(b"\r\n") + b"\n":
        return "its header was changed, or something was added to it"
    return value


def _named(header: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {name: header[column] for column, name in names.items() if header[column] is not None}


def _members(values: dict[str, Any]) -> bytes:
    """Return the members of a JSON object, without its braces."""
    return to_json(values)[1:-1]


def _cents(micros: int) -> str:
    """Return micro-USD as an exact decimal number of cents."""
    whole, rest = divmod(abs(micros), 10_000)
    return f"{'-' if micros < 0 else ''}{whole}" + (f".{rest:04d}".rstrip("0") if rest else "")


def _raw_content(line: bytes) -> str:
    """Return the content as it stands in a line that is valid JSON.

    The first `,"content":` is the key: within a string its quotes would be escaped, and no object comes
    before it.
    """
    start = line.index(_CONTENT) + len(_CONTENT)
    text = line[start:].decode()
    _value, end = json.JSONDecoder().raw_decode(text)
    return text[:end]
