"""Entries: events as stored in the log, their hash chain, their JSONL lines, and the faults that a check finds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from ava_audit.events import FACTS, TRANSCRIPT_TYPES, CostUpdate, Fact, Unknown, Usage, Who
from ava_audit.units import iso_utc

GENESIS = bytes(32)


def content_sha(content: bytes) -> bytes:
    """Return the hash of an entry's content. It stays when the content is erased."""
    return hashlib.sha256(content).digest()


def entry_hash(previous: bytes, header: Sequence[object], sha: bytes) -> bytes:
    """Return the sha256 over the previous hash, the header (`seq` to `duration_ms`) and the content's hash."""
    return hashlib.sha256(previous + _header_json(header) + sha).digest()


def _header_json(header: Sequence[object]) -> bytes:
    try:
        line = to_json(header)  # five times as fast as `json`, and the same bytes for every valid header
    except PydanticSerializationError:  # a lone surrogate: only an entry that was tampered with has one
        return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if bytes in map(type, header):  # `to_json` would write them as text
        raise TypeError("the header has bytes in place of text or a number")
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
"""The columns of an entry's header, in the order they are hashed."""
_TS = HEADER.index("ts_us")
_COST = HEADER.index("cost_micros")

ENTRY_COLUMNS = ", ".join([*HEADER, "content", "content_sha", "hash"])

LINE_COLUMNS = ENTRY_COLUMNS + ", (SELECT hash FROM events AS before WHERE before.seq = events.seq - 1)"  # noqa: S608
"""The columns of a mirror line: the entry's columns, and the hash of the entry before it."""


class _Columns(NamedTuple):
    seq: int
    ts_us: int
    session_id: str
    agent_id: str
    user_id: str
    type: str
    version: int
    run_id: str | None
    generation: int | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    cost_micros: int | None
    model: str | None
    parent_agent_id: str | None
    duration_ms: int | None
    content: str | None
    content_sha: bytes
    hash: bytes


class Entry(_Columns):
    """An event stored in the log, as the row that was read. `content` is None if retention has erased it."""

    @property
    def who(self) -> Who:
        return Who(self.session_id, self.agent_id, self.user_id, self.parent_agent_id)

    @property
    def usage(self) -> Usage | None:
        if self.input_tokens is None:
            return None
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens or 0,
            cache_read_tokens=self.cache_read_tokens or 0,
            cache_write_tokens=self.cache_write_tokens or 0,
        )

    @cached_property
    def fact(self) -> Fact | None:
        """What happened; None if erased. Parsed on first use. Raises ValueError if the content was changed."""
        return None if self.content is None else read_fact(self.type, self.version, self.content)

    @property
    def added_micros(self) -> int:
        """What the entry adds to the cost of its run, in micro-USD: less what a late settlement takes the place of."""
        cost = self.cost_micros or 0
        if isinstance(self.fact, CostUpdate):
            cost -= self.fact.replaced_micros
        return cost


_WIDTH = len(Entry._fields)


def entry_of(row: Sequence[Any]) -> Entry:
    """Return the entry of a row selected with `ENTRY_COLUMNS`; further columns are ignored."""
    return Entry._make(row[:_WIDTH])  # takes 0.6 of `Entry(*row)`, and a search does it a hundred times


def limit_content(rows: Iterable[Sequence[Any]], max_chars: int) -> Iterator[Any]:
    """Yield rows of the log until their contents exceed `max_chars`: 500 of the largest would be a gigabyte."""
    size = 0
    for row in rows:
        yield row
        size += len(row[len(HEADER)] or "")
        if size > max_chars:
            return


def content_of(fact: Fact) -> bytes:
    """Return a fact as its stored JSON, without fields that are None. Raises ValueError if it has a lone surrogate."""
    return fact.__pydantic_serializer__.to_json(fact, exclude_none=True)


def read_fact(type_name: str, version: int, content: str | bytes) -> Fact:
    """Return the fact in stored content; `Unknown` for a type, or version of a type, that this program does not know.

    How types evolve: a new field has a default, so that older entries keep their meaning, and older programs ignore
    the field. A field that changes its meaning raises the type's `version`. A field that a reducer reads also needs a
    migration (`user_version`), so that older programs on the same data root stop writing.
    """
    model = FACTS.get(type_name)
    if model is None or version > model.version:
        return Unknown(name=type_name, content=json.loads(content))
    fact: Fact = model.__pydantic_validator__.validate_json(content, extra="ignore")
    return fact


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


def _places(names: Mapping[str, str]) -> list[tuple[str, int]]:
    return [(name, HEADER.index(column)) for column, name in names.items()]


_PLACES = [_places(names) for names in (_SEED, _METADATA, _TOP)]
"""For each part of a line: the names of its fields, and where in a row their values are."""


def mirror_line(row: Sequence[Any]) -> bytes:
    """Return a row selected with `LINE_COLUMNS` as one line of JSON, with the newline and without null values."""
    content, sha, digest, before = row[len(HEADER) : len(HEADER) + 4]
    seed, metadata, top = [_members(row, places) for places in _PLACES]
    cost_micros = row[_COST]
    if cost_micros is not None:  # written as an exact decimal; a float would not be exact
        cents = b'"costCents":' + _cents(cost_micros).encode()
        metadata = b",".join(filter(None, (metadata, cents)))
    chain = f'"contentSha":"{sha.hex()}","prevHash":"{(before or GENESIS).hex()}","hash":"{digest.hex()}"'
    return b"".join(
        [
            b'{"timestamp":"', iso_utc(row[_TS]).encode(), b'",', seed,
            b"" if content is None else _CONTENT + content.encode(),
            b',"metadata":{', metadata, b"},", top, b",", chain.encode(), b"}\n",
        ]
    )  # fmt: skip


def _members(row: Sequence[Any], places: Sequence[tuple[str, int]]) -> bytes:
    """Return the members of a JSON object, without its braces: the values of a row that are not None."""
    members: dict[str, Any] = {}
    for name, place in places:
        value = row[place]
        if value is not None:
            members[name] = value
    return to_json(members)[1:-1]


def line_fault(line: bytes) -> str | None:
    """Return what is wrong with a mirror line, None if it is byte for byte what the mirror writes for an entry."""
    checked = check_line(line)
    return checked if isinstance(checked, str) else None


def check_line(line: bytes) -> tuple[dict[str, Any], list[Any]] | str:
    """Return a mirror line's JSON object and its row as `LINE_COLUMNS` select it, or what is wrong with the line."""
    try:
        value, row = _parse_line(line)
        *header, content, sha, digest, before = row
        written = mirror_line(row)
        numbered = isinstance(value["seq"], int) and value["seq"] > 0
    except _NO_LINE as error:
        return f"it is not a line of the log ({type(error).__name__}: {str(error)[:200]})"
    if content is not None and content_sha(content.encode()) != sha:
        return "its content was changed"
    if content is None and value["eventType"] not in TRANSCRIPT_TYPES:
        return "its content is missing, although content of its type is never erased"
    if not numbered or entry_hash(before, header, sha) != digest:
        return "its header was changed"
    # Anything else in the line is not hashed, e.g. a second `content` that another reader would use.
    if written != line.rstrip(b"\r\n") + b"\n":
        return "its header was changed, or something was added to it"
    return value, row


def entry_of_line(line: bytes) -> Entry:
    """Return the entry of a mirror line; its hashes are not checked. Raises ValueError: it is not a line of the log."""
    try:
        return entry_of(_parse_line(line)[1])
    except _NO_LINE as error:
        raise ValueError("it is not a line of the log") from error


_NO_LINE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def _parse_line(line: bytes) -> tuple[dict[str, Any], list[Any]]:
    value: dict[str, Any] = json.loads(line)
    metadata = value["metadata"]
    header: list[Any] = []
    for column in HEADER:
        if column in _SEED:
            header.append(value[_SEED[column]])
        elif column in _METADATA:
            header.append(metadata.get(_METADATA[column]))
        else:
            header.append(value.get(_TOP[column]))
    sha, before, digest = (bytes.fromhex(value[name]) for name in ("contentSha", "prevHash", "hash"))
    content = _raw_content(line) if "content" in value else None
    return value, [*header, content, sha, digest, before]


def _cents(micros: int) -> str:
    sign = "-" if micros < 0 else ""
    cents, rest = divmod(abs(micros), 10_000)
    if not rest:
        return f"{sign}{cents}"
    return f"{sign}{cents}.{rest:04d}".rstrip("0")


def _raw_content(line: bytes) -> str:
    """Return the content as a line of valid JSON has it; no object precedes it, and quotes in strings are escaped."""
    start = line.index(_CONTENT) + len(_CONTENT)
    text = line[start:].decode()
    _value, end = json.JSONDecoder().raw_decode(text)
    return text[:end]


WINDOW = 64
"""How many entries before and after a fault are searched for its cause."""

FaultKind = Literal[
    "changed", "missing", "inserted", "reordered", "damaged", "head", "projection", "line", "schema", "erased",
    "mirror", "unreserved", "progress", "index",
]  # fmt: skip
ProgressCallback = Callable[[int, int], None]
"""Called with how much has been checked, and how much there is."""
Row = tuple[Any, ...]

_N = len(HEADER)
_SHA = _N + 1
_HASH = _N + 2


@dataclass(frozen=True)
class Fault:
    """Something that differs from what was written: its kind, its `seq`, and a sentence for a person."""

    kind: FaultKind
    seq: int
    text: str


@dataclass(frozen=True)
class VerifyReport:
    """What a verification found."""

    entries: int
    seq: int  # the newest `seq` that was checked, where the projections were compared
    head: str  # the hash of that entry in hex, to be noted elsewhere
    # The first fault of the chain; if there is none, the faults of projections, head and triggers.
    faults: tuple[Fault, ...]
    projections: bool  # whether the projections were compared
    # How often a file skips entries of the log: they are in others, were not exported, or were removed.
    gaps: int = 0

    @property
    def ok(self) -> bool:
        return not self.faults


def missing_hash(digest: bytes, seq: int) -> Fault:
    """Return the fault of a log, checked up to `seq`, that lacks the entry with a hash noted elsewhere."""
    text = f"the log has no entry with the hash {digest.hex()}: its end was cut off, or it was rewritten"
    return Fault("head", seq, text)


def diagnose(row: Row, near: list[Row]) -> Fault:
    """Say what happened at an entry whose hash does not continue the chain. `near`: it and the entries around it."""
    seq = row[0]
    hashes = {0: GENESIS}
    hashes.update((other[0], other[_HASH]) for other in near)
    twin = _twin_of(row, hashes)
    if twin is not None and _follows(row, hashes.get(twin - 1, b""), twin):
        return Fault("inserted", seq, f"entry {seq} was inserted: it is a copy of entry {twin}")
    after = [other for other in near if other[0] > seq]
    if after and _follows(after[0], row[_HASH], after[0][0]):
        return Fault("changed", seq, f"entry {seq} was changed")
    missing = _count_missing(row, after)
    if missing == 1:
        return Fault("missing", seq, f"an entry is missing before entry {seq}")
    if missing:
        return Fault("missing", seq, f"{missing} entries are missing before entry {seq}")
    inserted = _find_inserted(row, after, near, hashes)
    if inserted is not None:
        return inserted
    former_seq = _place_of(row, near, hashes)
    if former_seq is not None:
        return Fault("reordered", seq, f"entry {seq} was entry {former_seq}: entries were reordered")
    return Fault("changed", seq, f"entry {seq} was changed or replaced")


def _twin_of(row: Row, hashes: Mapping[int, bytes]) -> int | None:
    """Return the number of an earlier entry with the same hash."""
    for number, digest in hashes.items():
        if 0 < number < row[0] and digest == row[_HASH]:
            return number
    return None


def _count_missing(row: Row, after: list[Row]) -> int:
    """Return how many entries are gone before one that was renumbered with its successor: these are still chained."""
    if after:
        for count in range(1, WINDOW):
            if _follows(after[0], row[_HASH], row[0] + 1 + count):
                return count
    return 0


def _find_inserted(row: Row, after: list[Row], near: list[Row], hashes: dict[int, bytes]) -> Fault | None:
    """Return the fault of entries that were inserted, so that the ones behind them were renumbered."""
    by_seq = {other[0]: other for other in reversed(near)}
    for renumbered in (row, *after):
        for count in range(1, WINDOW):
            first = renumbered[0] - count  # the number of the renumbered entry before, and of the first inserted one
            if not 1 <= first <= row[0]:
                continue
            if not _follows(renumbered, hashes.get(first - 1, b""), first):
                continue
            inserted = by_seq.get(first)
            if inserted is None or _place_of(inserted, near, hashes) is None:
                which = f"entry {first} was" if count == 1 else f"entries {first} to {renumbered[0] - 1} were"
                return Fault("inserted", first, f"{which} inserted")
    return None


def _follows(row: Row, before: bytes, seq: int) -> bool:
    return bool(entry_hash(before, (seq, *row[1:_N]), row[_SHA]) == row[_HASH])


def _place_of(row: Row, near: list[Row], hashes: dict[int, bytes]) -> int | None:
    for other in near:
        if other[0] != row[0]:
            for before in hashes.values():
                if _follows(row, before, other[0]):
                    return int(other[0])
    return None
