import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_server.models.json_text import encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(VALUES)
def test_encodes_any_value_so_that_it_reads_back_the_same(value: Any) -> None:
    assert json.loads(encode(value)) == value


@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_encodes_without_spaces_and_escapes_no_letters(value: Any) -> None:
    assert encode(value).decode() == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("a \ud800 b", '"a \ufffd b"'),
        ("\ud83d\ude00", '"\U0001f600"'),
        ("NaN, Infinity", '"NaN, Infinity"'),
        ("\ud800 NaN", '"\ufffd NaN"'),
    ],
)
def test_encodes_texts_that_utf_8_or_json_could_not_hold(text: str, encoded: str) -> None:
    assert encode(text).decode() == encoded


def test_encodes_values_nested_more_deeply_than_an_answer_may_be() -> None:
    value: list[Any] = []
    for _ in range(400):
        value = [value]
    assert encode(value) == b"[" * 401 + b"]" * 401


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_refuses_a_number_that_json_does_not_have(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"limit": [number]})
