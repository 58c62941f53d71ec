"""What the search for secrets costs: no text takes much more than words, and mixed text hardly more than them."""

from __future__ import annotations

import pytest
from support.slow_shapes import slow_pieces, times_words

from ava_audit.redaction import Redactor
from ava_audit.redaction.redactor import PIECE_CHARS

MOST_TIMES_WORDS = 25
"""Beside other processes, words hardly take longer and the others do: the worst took 24 times."""
WORST = [
    *("/ABSK", "/sc_", "key=1", "token=1", "JWT=a1b2c3d4&", "mysql -p", "curl\n", "@tcp(", "pwd"),
    *("oken ", "/MIIEpAIBAAKCAQEA", "DB_PASSWORD=cor ", "/pplx-"),
    *("JWT  a\n", "a,pwd\na,hunter22\n\n", "PWD,a1b2c3d4\n", "pwd=a1b2c3d4\\\na\n", "tokens=['a1',", "passwords:\n- "),
    *("PASSWORD=abcdefgh\n", "a:b1@tcp(", "mysql -pa1b2c3d4 ", "curl -u a:b1c2d3 "),
    *("a,assword\na,hunter22", "a\tassword\na\thunter22", "a|assword\n", "a;assword\na;hunter22"),
    *("a-", "a1-", "-p"),
    *("PWD,a\na1b2c3d4e5,a\n", "</password>='a b ", 'REDENTIAL="a1b2c3d4\na"\n'),
]
"""The densest marks of each kind of rule; several took 13 to 38 times as long as words in earlier versions."""


@pytest.mark.parametrize("piece", WORST)
def test_no_repeated_mark_costs_much_more_than_words(piece: str) -> None:
    assert times_words(Redactor({}).redact, piece, MOST_TIMES_WORDS) <= MOST_TIMES_WORDS


@pytest.mark.parametrize("piece", ["a-", "a1-", "a.", "key=1", "JWT=a1b2c3d4&"])
def test_a_long_text_without_blanks_costs_no_more(piece: str) -> None:
    """It is searched in pieces, which begin where a word does."""
    search, chars = Redactor({}).redact, 8 * PIECE_CHARS
    assert times_words(search, piece, MOST_TIMES_WORDS, turns=6, chars=chars) <= MOST_TIMES_WORDS


@pytest.mark.slow
def test_no_shape_of_the_rules_own_marks_costs_much_more_than_words() -> None:
    redactor = Redactor({})
    took = {piece: times_words(redactor.redact, piece, MOST_TIMES_WORDS) for piece in slow_pieces()}
    assert len(took) > 2_000
    assert {piece: times for piece, times in took.items() if times > MOST_TIMES_WORDS} == {}
