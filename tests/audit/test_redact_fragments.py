from __future__ import annotations

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_audit.redaction import redact_fragments

VALUE = "tk9-Zr4q_Wv8Lm.x7hD2"
HIDDEN = "[redacted:TICKETS]"


def hidden(text: str, value: str = VALUE) -> str:
    return redact_fragments(text, "TICKETS", value)[0]


@given(
    before=st.text("abc \n", max_size=30),
    start=st.integers(0, len(VALUE) - 8),
    length=st.integers(8, len(VALUE)),
    after=st.text("abc \n", max_size=30),
)
def test_hides_any_eight_characters_of_a_secret(before: str, start: int, length: int, after: str) -> None:
    piece = VALUE[start : start + length]
    if len(piece) >= 8:
        assert hidden(f"{before}{piece} {after}") == f"{before}{HIDDEN} {after}"


@given(length=st.integers(3, len(VALUE)))
def test_hides_three_characters_of_a_secret_at_the_end_of_a_text(length: int) -> None:
    assert hidden(f"you sent {VALUE[:length]}") == f"you sent {HIDDEN}"


def test_hides_half_of_a_short_secret_but_at_least_five_characters() -> None:
    assert hidden("it is assword, really", "password") == f"it is {HIDDEN}, really"
    assert hidden("a word of it stays", "password") == "a word of it stays"
    assert hidden("-secret-", "a-secret-word") == HIDDEN


def test_hides_fragments_in_base64_hex_html_and_url_encoding() -> None:
    value = "tk9&Zr4q<Wv8Lm>x7hD2"
    encoded = base64.b64encode(f"user:{value}".encode()).decode()
    for form in (encoded[10:24], value.encode().hex()[6:20], "tk9&amp;Zr4q&lt;", "tk9%26Zr4q%3CWv8Lm", "Zr4q%3cWv8"):
        assert hidden(f"<{form}>", value) == f"<{HIDDEN}>", form


@given(text=st.text(max_size=200))
def test_leaves_text_without_fragments_unchanged(text: str) -> None:
    assert redact_fragments(text + "!", "TICKETS", VALUE) == (text + "!", 0)


@pytest.mark.parametrize("text", ["a" * 1_000_000, VALUE[:7] * 150_000, VALUE * 50_000])
def test_redacts_a_million_characters_quickly(text: str) -> None:
    began = time.thread_time()
    hidden(text)
    assert time.thread_time() - began < 10
