"""The JSONL line of an entry: the seed's names, the stored bytes of the content, and what verifies it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from ava_audit.chain import GENESIS, content_sha, entry_hash
from ava_audit.entries import HEADER
from ava_audit.events import TRANSCRIPT_TYPES
from ava_audit.times import iso_utc

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
