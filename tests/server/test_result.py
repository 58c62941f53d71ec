"""What a run hands over has the room of one answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ava_server.status import LEAST_ROOM, RESULTS_CHARS, fitting, json_chars, room_for


@given(st.text(max_size=400), st.integers(1, 300))
def test_what_fits_is_the_most_that_fits(text: str, room: int) -> None:
    end = fitting(text, room)
    assert end == len(text) or end >= 1
    if end > 1:
        assert json_chars(text[:end]) - 2 <= room
    if end < len(text):
        assert json_chars(text[: end + 1]) - 2 > room


@given(st.integers(0, 40))
def test_results_share_the_room_of_one_answer(count: int) -> None:
    room = room_for(count)
    assert LEAST_ROOM <= room <= RESULTS_CHARS
    assert room_for(count + 1) <= room
