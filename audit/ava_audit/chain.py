"""The hash chain: what is hashed of an entry, and how entries hold on to each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

GENESIS = bytes(32)
"""The hash before the first entry."""
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # made once: `dumps` makes one a call


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
    line = _encoded(header).encode("utf-8", "surrogatepass")
    return hashlib.sha256(previous + line + sha).digest()
