"""Which rows of a question stand in so many lines: the leading ones always, the others by weight, the rest counted."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ava_server.approval.choose import LEAD, Row, choose, row_ends
from ava_server.approval.plain_text import ENDS_CHARS, path_ends
from ava_server.approval.summary import FOLDED, TOPICS, weight
from ava_server.core.columns import cells

WORDS = st.text(alphabet='ab "`/…契é', min_size=1, max_size=200).map(lambda text: " ".join(text.split()) or "x")
ROWS = st.lists(st.tuples(st.sampled_from(list(TOPICS)), WORDS), min_size=LEAD, max_size=30).map(
    lambda rows: [Row(topic, f"{number} {text}") for number, (topic, text) in enumerate(rows)]
)


def rows_taken(text: str, columns: int) -> int:
    """Return how many rows of a screen a text takes that is broken up only where a row is full."""
    rows, width = 1, 0
    for word in re.findall(r"\S+", text):
        if width and width + 1 + cells(word) > columns:
            rows, width = rows + 1, 0
        width += cells(word) + bool(width)
        while width > columns:
            rows, width = rows + 1, width - columns
    return rows


@settings(max_examples=200, deadline=None)
@given(ROWS, st.integers(20, 100), st.integers(LEAD, 40))
def test_every_row_is_shown_or_counted_and_all_fit(rows: list[Row], columns: int, lines: int) -> None:
    chosen = choose(rows, columns, lines)
    assert chosen.rows <= lines
    assert sum(len(row_ends(line, columns)) for line in chosen.lines) <= lines
    assert len(chosen.lines) + len(chosen.left_out) == len(rows)
    shown = [row for row in rows if row not in chosen.left_out]
    for row, line in zip(shown, chosen.lines, strict=True):
        assert line == row.text or row in chosen.cut
    assert bool(chosen.missing) is bool(chosen.left_out or chosen.cut)
    assert not any(row in chosen.left_out for row in rows[:LEAD])


@settings(max_examples=200, deadline=None)
@given(ROWS, st.integers(LEAD, 40))
def test_a_row_is_left_out_only_for_heavier_ones(rows: list[Row], lines: int) -> None:
    chosen = choose(rows, 74, lines)
    shown = [row for row in rows[LEAD:] if row not in chosen.left_out]
    for row in chosen.left_out:
        lighter = [other for other in shown if weight(other.topic) < weight(row.topic)]
        assert not lighter, (row, lighter)


@settings(max_examples=300, deadline=None)
@given(WORDS, st.integers(20, 100), st.integers(1, 4))
def test_nothing_that_is_quoted_stays_open_where_it_is_cut(text: str, columns: int, lines: int) -> None:
    rows = [Row("What", text), Row("Where", "x"), Row("How much", "y")]
    line = choose(rows, columns, lines + 2).lines[0]
    assert len(row_ends(line, columns)) <= lines
    if line != text:
        assert line.rstrip('"`').endswith("…") and line.count('"') % 2 == 0 and line.count("`") % 2 == 0


@pytest.mark.parametrize("columns", [40, 74, 76])
def test_counts_the_rows_that_a_terminal_needs(columns: int) -> None:
    text = f'Look at /{"long/" * 40} and at "{"word " * 60}" and 契約{"契" * 100}'
    assert len(row_ends(text, columns)) == rows_taken(text, columns)


def test_the_short_form_leads_only_where_the_line_is_too_narrow() -> None:
    row = Row("Where", "It can read /a/very/long/path and reach the web.", "reaches the web, reads /a/…/path", seen=48)
    others = [Row("What", "x"), Row("How much", "y")]
    wide, narrow = choose([*others, row], 48, 9), choose([*others, row], 40, 9)
    assert wide.lines == ("x", "y", row.text) and not wide.missing
    assert narrow.lines == ("x", "y", row.short, row.text) and not narrow.missing
    assert choose([*others, row], 40, 3).missing == "the end of 1 sentence"


def test_what_a_terminal_folds_is_the_lightest() -> None:
    assert [weight(topic) for topic in FOLDED] == [5, 4, 3, 2, 1]
    assert weight("a topic of a newer version") > max(map(weight, TOPICS))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/srv/notes", "/srv/notes"),
        ("/home/somebody/projects/acme/2026/notes", "/home/…/notes"),
        ("/home/somebody/projects/acme/2026/yearly accounts", '"/home/…/yearly accou…"'),
        ('/home/somebody/projects/a"; it costs nothing', '"/home/…/a\'; it costs…"'),
        ("/home/somebody/projects/\u202e\u202e\u202e\u202e", '"/home/…/⟨U+202E⟩⟨U+2…"'),
        ("/" + "x" * 70, "/" + "x" * 19 + "…"),
    ],
)
def test_a_path_is_shown_by_its_ends_and_nothing_in_it_passes_for_our_words(path: str, shown: str) -> None:
    assert path_ends(path) == shown
    assert len(shown) <= ENDS_CHARS + len('"…"')
