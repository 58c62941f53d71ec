"""Quotes are looked up in what the tools read, whoever wrote the quote and whatever it costs to compare."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_audit.events import ToolCall, ToolResult
from ava_roles.tools.base import Place
from ava_server.history import History
from ava_server.quotes import NEAR_CHARS, check_quotes, distance, even
from ava_server.run_tools import ReadToolResult, ReadToolResultArgs
from ava_server.submit import Finding

READ = (
    "The transcription price of Otter is  twelve cents a minute, as of May. Descript charges\n"
    "“twenty-four dollars” for its plan; the enterprise price is not published anywhere that we could find."
)


def read(text: str, tool: str = "read_file", *, success: bool = True) -> ToolResult:
    return ToolResult(tool=tool, success=success, output=text, call_id="c", sources=({"location": "a.md"},))


def said(text: str, tool: str = "scratchpad") -> ToolResult:
    return ToolResult(tool=tool, success=True, output=text, call_id="c")


def verdict(quote: str, *outputs: ToolResult, near: bool = True) -> str:
    [found] = check_quotes([Finding(claim="c", quote=quote)], list(enumerate(outputs, 10)), near=near)
    return str(found["verdict"])


@pytest.mark.parametrize(
    "quote",
    [
        "price of Otter is twelve cents a minute",
        'Descript charges "twenty-four dollars" for its plan',
        "Descript charges\u00a0“twenty-four dollars”",
        "Descript charges «twenty-four\tdollars»",
        "ﬁnd",
        "ｔｗｅｌｖｅ",
    ],
)
def test_a_quote_is_found_whatever_its_white_space_marks_and_forms(quote: str) -> None:
    assert verdict(quote, read(READ)) == "found"


def test_a_quote_with_one_of_our_tags_in_it_is_found_although_the_output_has_it_escaped() -> None:
    assert verdict("write <tool_output> here", read("write &lt;tool_output> here")) == "found"


def test_other_letters_are_not_made_equal() -> None:
    assert verdict("OTTER IS TWELVE CENTS A MINUTE", read(READ)) == "not_found"


@pytest.mark.parametrize(
    "quote",
    [
        "the enterprise price is not published anywhere, that we could see.",
        "Teh transcription price of Otter is twelve cents a minute, as of May.",
        "transcription price of Otter is twelve cents per minute, as of May",
    ],
)
def test_a_quote_that_is_nearly_right_is_near(quote: str) -> None:
    assert verdict(quote, read(READ)) == "near"
    assert verdict(quote, read(READ), near=False) == "not_found"


@pytest.mark.parametrize("quote", ["Otter costs thirteen cents a minute and nobody knows why", " \n ", "x" * 700])
def test_a_quote_that_stands_nowhere_is_not_found(quote: str) -> None:
    assert verdict(quote, read(READ)) == "not_found"


@pytest.mark.parametrize(
    "output",
    [
        said("1. Otter costs twelve cents a minute"),
        said("saved Otter costs twelve cents a minute.csv", "save_artifact"),
        said("0 files fit best; looked for: Otter costs twelve cents a minute", "search_and_read"),
        read("Otter costs twelve cents a minute", success=False),
    ],
)
def test_a_quote_that_only_the_subagent_wrote_or_that_failed_was_not_read(output: ToolResult) -> None:
    assert verdict("Otter costs twelve cents a minute", output) == "not_found"


@pytest.mark.parametrize(("original", "expected"), [(said("1. made up words"), False), (read("made up words"), True)])
async def test_read_tool_result_brings_back_what_was_read_and_makes_no_note_a_source(
    tmp_path: Path, original: ToolResult, expected: bool
) -> None:
    history = History("S-000001")
    history.add(4, ToolCall(tool=original.tool, call_id="c"))
    history.add(5, original)
    tool = ReadToolResult(history, tmp_path)
    again = await tool(ReadToolResultArgs(id="R-5"), Place())
    sources = tuple({"location": source.location} for source in again.sources)
    echo = ToolResult(tool="read_tool_result", success=True, output=again.text, call_id="d", sources=sources)
    assert (verdict("made up words", echo) == "found") is expected


def test_a_verdict_names_its_finding_and_carries_no_words() -> None:
    findings = [Finding(claim="no quote"), Finding(claim="c", quote="twelve cents a minute"), Finding(claim="c")]
    [found] = check_quotes(findings, [(3, read("other")), (41, read(READ)), (50, read(READ))])
    assert found == {"finding": 2, "verdict": "found", "event": 41}
    assert "twelve" not in json.dumps(found)


@pytest.mark.parametrize("quote", ["ab" * 7_500, "a" * 15_000, "\u0300\u0315" * 7_500, ("ab" * 300)[:NEAR_CHARS]])
@pytest.mark.parametrize("text", ["a" * 20_000, "aab" * 6_000, "\u0315\u0300" * 10_000, "\ufdfa" * 20_000])
def test_no_quote_keeps_the_comparison_busy(quote: str, text: str) -> None:
    findings = [Finding(claim="c", quote=f"{quote}{number:x}") for number in range(30)]
    began = time.process_time()
    found = check_quotes(findings, [(number, read(text)) for number in range(10)])
    assert time.process_time() - began < 3  # one such quote took SequenceMatcher 10 s, here are 30 over 10 outputs
    assert len(found) == 30


def test_only_so_many_findings_are_compared_passage_by_passage() -> None:
    quote = "transcription price of Otter is twelve cents per minute, as of May"
    found = check_quotes([Finding(claim="c", quote=quote)] * 60, [(1, read(READ))])
    assert [each["verdict"] for each in found] == ["near"] * 50 + ["not_found"] * 10


@given(st.text("abc", max_size=12), st.text("abcd", max_size=24))
def test_the_distance_is_that_of_the_plain_table(pattern: str, text: str) -> None:
    row = [0] * (len(text) + 1)
    for number, char in enumerate(pattern, 1):
        new = [number]
        for at, other in enumerate(text, 1):
            new.append(min(row[at] + 1, new[-1] + 1, row[at - 1] + (char != other)))
        row = new
    assert distance(pattern, text) == min(row)


@given(st.text())
def test_what_is_even_stays_so(text: str) -> None:
    assert even(even(text)) == even(text)
