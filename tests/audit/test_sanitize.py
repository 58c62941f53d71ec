import contextlib
import json
import math
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_audit.sanitize import MAX_BYTES, MAX_DEPTH, MAX_NODES, sanitize_json

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(st.characters(exclude_categories=())) | st.integers(), inner, max_size=5)
    ),
    max_leaves=30,
)


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


@given(anything, st.integers(min_value=200, max_value=2_000))
def test_turns_any_value_into_storable_json_of_bounded_size(value: Any, max_bytes: int) -> None:
    clean, _ = sanitize_json(value, max_bytes)

    stored = encoded(clean)
    assert len(stored) <= max_bytes
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        (back,) = db.execute("SELECT json(?)", (stored.decode(),)).fetchone()
    assert json.loads(back) == clean


@given(anything)
def test_a_second_pass_changes_nothing(value: Any) -> None:
    once, _ = sanitize_json(value)

    assert sanitize_json(once) == (once, ())


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1), st.lists, max_leaves=10))
def test_storable_values_come_back_unchanged_without_notes(value: Any) -> None:
    assert sanitize_json(value) == (value, ())


@pytest.mark.parametrize(
    ("value", "clean", "note"),
    [
        ("a\ud800b", "a\ufffdb", "replaced 1 lone surrogate"),
        (["\udc00", "\udfff\udc00"], ["\ufffd", "\ufffd\ufffd"], "replaced 3 times: lone surrogate"),
        ("\ud83d\ude00", "\U0001f600", "joined 1 split surrogate pair"),
        ("a\0b", "a\ufffdb", "replaced 1 NUL character"),
        ({"x": math.nan}, {"x": None}, "turned into null 1 number that is not finite"),
        ([math.inf, -math.inf], [None, None], "turned into null 2 times: number that is not finite"),
        (2**63, None, "turned into null 1 integer beyond 64 bits"),
        (-(2**63) - 1, None, "turned into null 1 integer beyond 64 bits"),
        (b"ab\xff", "ab\ufffd", "turned into text 1 value of type bytes"),
        ({1: "a"}, {"1": "a"}, "turned into text 1 value of type int"),
    ],
)
def test_changes_unstorable_values_and_notes_the_change(value: Any, clean: Any, note: str) -> None:
    assert sanitize_json(value) == (clean, (note,))


def test_keeps_64_bit_integers_and_ordinary_text() -> None:
    value = {
        "big": 2**63 - 1,
        "small": -(2**63),
        "text": "Grüße, 世界 \U0001f600\n\t",
        "float": 0.1,
        "none": None,
    }
    assert sanitize_json(value) == (value, ())


def test_keeps_all_keys_that_become_equal() -> None:
    clean, notes = sanitize_json(dict(zip(["\ud800", "\udc00", "\ufffd"], [1, 2, 3], strict=True)))

    assert clean == {"\ufffd": 1, "\ufffd_": 2, "\ufffd__": 3}
    assert any("key" in note for note in notes)


def test_replaces_values_nested_too_deep_with_null() -> None:
    deep: Any = "bottom"
    for _ in range(5_000):
        deep = [deep]

    clean, notes = sanitize_json(deep)

    assert encoded(clean) == b"[" * MAX_DEPTH + b"null" + b"]" * MAX_DEPTH
    assert notes == (f"turned into null 1 value nested deeper than {MAX_DEPTH} levels",)


def test_truncates_a_value_that_expands_exponentially() -> None:
    laughs: Any = ["ha"]
    for _ in range(60):
        laughs = [laughs, laughs]

    clean, notes = sanitize_json(laughs)

    assert len(encoded(clean)) <= MAX_BYTES
    assert any(f"after the first {MAX_NODES:,}" in note or "bytes" in note for note in notes)


def test_truncates_the_longest_strings_until_the_value_fits() -> None:
    value = {"a": "x" * 3_000_000, "b": ["ü" * 2_000_000, "short"], "c": "\n" * 100_000}

    clean, notes = sanitize_json(value)

    assert MAX_BYTES * 0.99 < len(encoded(clean)) <= MAX_BYTES
    assert clean["a"].endswith("… [cut: 3,000,000 characters]")
    assert clean["b"][0].endswith("… [cut: 2,000,000 characters]")
    assert clean["b"][1] == "short"
    assert clean["c"] == "\n" * 100_000
    assert [note for note in notes if "cut 2 times: string longer than" in note]


def test_replaces_a_value_of_too_many_parts_with_null_and_notes_its_size() -> None:
    clean, notes = sanitize_json(["word"] * 400_000)

    assert clean is None
    assert notes == ("turned into null 1 value of 2,800,001 bytes",)
