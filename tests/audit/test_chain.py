"""The chain: what an entry's hash covers."""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ava_audit.entries import GENESIS, content_sha, entry_hash

HEADER = (1, 5, "sess", "ava", "ben", "UserMessage", 1, *[None] * 10)
columns = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8), min_size=17, max_size=17)


def test_the_hash_is_sha256_over_previous_hash_header_and_content_hash() -> None:
    line = '[1,5,"sess","ava","ben","UserMessage",1,null,null,null,null,null,null,null,null,null,null]'
    sha = content_sha(b"{}")
    assert sha == hashlib.sha256(b"{}").digest()
    assert entry_hash(GENESIS, HEADER, sha) == hashlib.sha256(bytes(32) + line.encode() + sha).digest()


def test_the_hash_does_not_depend_on_the_sequence_type_of_the_header() -> None:
    assert entry_hash(GENESIS, HEADER, b"") == entry_hash(GENESIS, list(HEADER), b"")


@given(columns, columns)
def test_only_equal_headers_have_the_same_hash(one: list[Any], other: list[Any]) -> None:
    assert (entry_hash(GENESIS, one, b"") == entry_hash(GENESIS, other, b"")) == (one == other)


@given(columns, st.integers(0, 16), st.integers(0, 16))
def test_moving_text_between_columns_changes_the_hash(header: list[Any], one: int, other: int) -> None:
    moved = list(header)
    moved[one], moved[other] = moved[other], moved[one]
    assert (entry_hash(GENESIS, header, b"") == entry_hash(GENESIS, moved, b"")) == (header == moved)


def test_the_hash_depends_on_the_previous_entry() -> None:
    first = entry_hash(GENESIS, HEADER, b"x")
    assert entry_hash(first, HEADER, b"x") != first
