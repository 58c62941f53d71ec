"""What a run hands over has the room of one answer."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.runtime import hand_over, open_lab

from ava_server.service.render_text import text_of
from ava_server.service.run_view import LEAST_ROOM, RESULTS_CHARS, fitting, json_chars, room_for


@given(st.text(max_size=400), st.integers(1, 300))
def test_truncates_to_the_longest_text_that_fits(text: str, room: int) -> None:
    end = fitting(text, room)
    assert end == len(text) or end >= 1
    if end > 1:
        assert json_chars(text[:end]) - 2 <= room
    if end < len(text):
        assert json_chars(text[: end + 1]) - 2 > room


@given(st.integers(0, 40))
def test_results_share_the_size_limit_of_one_answer(count: int) -> None:
    room = room_for(count)
    assert LEAST_ROOM <= room <= RESULTS_CHARS
    assert room_for(count + 1) <= room


async def test_shows_zero_confidence_but_omits_other_zero_values(
    tmp_path: Path,
) -> None:
    async with open_lab(tmp_path, [hand_over(confidence=0)]) as lab:
        result = await lab.outcome()
        answer = await lab.call("check_subagent", subagent_id=result["subagent_id"])
        (run,) = answer.runs
    assert run.confidence == 0 == result["confidence"]
    assert "Confidence (the model's own): 0" in text_of(answer)
    assert run.uncosted is None and run.overrun is None, "what is not so is not said"
