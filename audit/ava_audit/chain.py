"""The hash chain: what is hashed of an entry, and how entries hold on to each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from pydantic_core import PydanticSerializationError, to_json

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
