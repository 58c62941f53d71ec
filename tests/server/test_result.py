"""What a run hands over, and whether its quotes were read anywhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_audit.events import ToolCall, ToolResult
from ava_server.history import History
from ava_server.result import check_quotes
from ava_server.status import LEAST_ROOM, RESULTS_CHARS, fitting, json_chars, room_for
from ava_server.submit import Finding, SubmitArgs

READ = (
    "The transcription price of Otter is  twelve cents a minute, as of May. Descript charges\n"
    "“twenty-four dollars” for its plan; the enterprise price is not published anywhere that we could find."
)


def history(*outputs: ToolResult) -> History:
    made = History("S-000001")
    for seq, output in enumerate(outputs, 10):
        made.add(seq, ToolCall(tool=output.tool, call_id=output.call_id))
        made.add(seq + 100, output)
    return made


def read(text: str, tool: str = "read_file", *, success: bool = True) -> ToolResult:
    return ToolResult(tool=tool, success=success, output=text, call_id="call_0")


def verdict(quote: str, *outputs: ToolResult) -> str:
    submitted = SubmitArgs(summary="s", findings=[Finding(claim="c", quote=quote)])
    [found] = check_quotes(submitted, history(*outputs))
    return str(found["verdict"])


@pytest.mark.parametrize(
    "quote",
    [
        "price of Otter is twelve cents a minute",
        "PRICE OF OTTER",
        'Descript charges "twenty-four dollars" for its plan',
        "Descript charges\u00a0“twenty-four dollars”",
        "ﬁnd",
    ],
)
def test_a_quote_is_found_whatever_its_white_space_marks_and_forms(quote: str) -> None:
    assert verdict(quote, read(READ)) == "found"


def test_a_quote_that_is_nearly_right_is_near_and_one_that_is_not_is_not_found() -> None:
    nearly = "the enterprise price is not published anywhere, that we could see."
    assert verdict(nearly, read(READ)) == "near"
    assert verdict("Otter costs thirteen cents a minute and nobody knows why", read(READ)) == "not_found"


@pytest.mark.parametrize("output", [read(READ, "scratchpad"), read(READ, success=False)])
def test_a_quote_that_only_the_subagent_wrote_or_that_failed_was_not_read(output: ToolResult) -> None:
    assert verdict("twelve cents a minute", output) == "not_found"


def test_a_verdict_names_its_finding_and_carries_no_words() -> None:
    findings = [Finding(claim="no quote"), Finding(claim="c", quote="twelve cents a minute")]
    [found] = check_quotes(SubmitArgs(summary="s", findings=findings), history(read(READ)))
    assert found == {"finding": 2, "verdict": "found", "event": 110}
    assert "twelve" not in json.dumps(found)


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
