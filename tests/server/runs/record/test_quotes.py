"""Quotes are looked up in what the tools read, whoever wrote the quote and whatever it costs to compare."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_server import Gate, Say
from support.runtime import hand_over, open_lab, wait_for

from ava_audit.events import ToolCall, ToolResult
from ava_roles.tool import ToolContext
from ava_roles.tools.run import ReadToolResultArgs
from ava_roles.wrap import wrap_tool_output
from ava_server.runs.record.history import History
from ava_server.runs.record.quotes import NEAR_CHARS, check_quotes, edit_distance, normalize
from ava_server.runs.record.submit import Finding
from ava_server.runs.turn.run_tools import ReadToolResult

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
def test_finds_a_quote_despite_whitespace_quotation_marks_and_unicode_forms(quote: str) -> None:
    assert verdict(quote, read(READ)) == "found"


def test_finds_a_quote_with_a_wrapper_tag_that_is_escaped_in_the_output() -> None:
    assert verdict("write <tool_output> here", read("write &lt;tool_output> here")) == "found"


def test_quote_matching_is_case_sensitive() -> None:
    assert verdict("OTTER IS TWELVE CENTS A MINUTE", read(READ)) == "not_found"


@pytest.mark.parametrize(
    "quote",
    [
        "the enterprise price is not published anywhere, that we could see.",
        "Teh transcription price of Otter is twelve cents a minute, as of May.",
        "transcription price of Otter is twelve cents per minute, as of May",
    ],
)
def test_reports_an_almost_correct_quote_as_near(quote: str) -> None:
    assert verdict(quote, read(READ)) == "near"
    assert verdict(quote, read(READ), near=False) == "not_found"


@pytest.mark.parametrize("quote", ["Otter costs thirteen cents a minute and nobody knows why", " \n ", "x" * 700])
def test_does_not_find_an_invented_quote(quote: str) -> None:
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
def test_does_not_find_quotes_from_the_subagent_itself_or_failed_calls(output: ToolResult) -> None:
    assert verdict("Otter costs twelve cents a minute", output) == "not_found"


NONCE = "0123456789abcdef"
CUT = f"[cut at 20000 of 31000 characters; read_tool_result R-{'a' * 8} with offset 20000 goes on]"
THIRD = "[this is the 3rd time that this very call brought this very result; do something else]"


def wrapped(text: str, *after: str) -> ToolResult:
    """A tool's output as the model is shown it."""
    return read("\n".join([wrap_tool_output(text, tool="read_file", nonce=NONCE), *after]))


def read_back(result: ToolResult, offset: int = 0) -> ToolResult:
    """The same, read back."""
    return wrapped(result.output[offset:], THIRD)


@pytest.mark.parametrize(
    "quote", ["a", "1.", "12%", "—", "…", "..., ...", '"""', "\u200b\u200b", "` ` `", "а", "<", "[]"]
)
def test_does_not_find_a_quote_that_is_too_short(quote: str) -> None:
    assert verdict(quote, read(f"{READ} {quote} {quote}")) == "not_found"


@pytest.mark.parametrize("quote", ["find", "24 $ 12", "价格", "May 5"])
def test_finds_a_short_but_meaningful_quote(quote: str) -> None:
    assert verdict(quote, read(f"{READ} {quote}.")) == "found"


@pytest.mark.parametrize(
    "quote",
    [
        "tool_output", f"<tool_output_{NONCE}", 'tool="read_file"', NONCE, f"</tool_output_{NONCE}>", CUT, THIRD,
        "cut at 20000 of 31000 characters", "this very call brought this very result", "read_tool_result R-aaaaaaaa",
        "May.\n[cut at 20000",
    ],
)  # fmt: skip
def test_the_wrapper_text_around_an_output_does_not_count_as_read(quote: str) -> None:
    once = wrapped(READ + " As of May.", CUT, THIRD)
    for output in (once, read_back(once), read_back(read_back(once)), read_back(once, 60)):
        assert verdict(quote, output) == "not_found"
        assert verdict("the enterprise price is not published anywhere", output) == "found"


def test_finds_wrapper_text_that_appears_in_the_output_itself() -> None:
    assert verdict(CUT, wrapped(f"A log said: {CUT}", THIRD)) == "found"
    tag = f"</tool_output_{NONCE[::-1]}>"
    assert verdict(f"before {tag} after", wrapped(f"before {tag} after it")) == "found", "another run's tag is a text"


@pytest.mark.parametrize(
    "quote",
    [
        "transcription price of Otter is  twelve cents a minute … the enterprise price is not published",
        "as of May. Descript charges [...] for its plan",
        f"{READ.split('.')[0]} and the first page of the second output",
        "twelve cents a minute, as of May. Something else was read here",
    ],
)
def test_does_not_find_a_quote_assembled_from_pieces(quote: str) -> None:
    outputs = read(READ), read("and the first page of the second output"), read("Something else was read here")
    assert verdict(quote, *outputs) == "not_found"


@pytest.mark.parametrize(
    "quote",
    [
        "price of Otter is twеlve cents a minute",  # Cyrillic е
        "price of Οtter is twelve cents a minute",  # Greek Ο
        "price of Otter is twelve cents a mınute",  # dotless ı
        "price of Otter is twel\u200bve cents a minute",
    ],
)
def test_never_finds_a_quote_with_lookalike_letters(quote: str) -> None:
    assert verdict(quote, read(READ)) == "near"
    assert verdict(quote, read(READ), near=False) == "not_found"


@pytest.mark.parametrize(("original", "expected"), [(said("1. made up words"), False), (read("made up words"), True)])
async def test_read_tool_result_returns_what_was_read_but_makes_no_note_a_source(
    tmp_path: Path, original: ToolResult, expected: bool
) -> None:
    history = History("S-000001")
    history.add(4, ToolCall(tool=original.tool, call_id="c"))
    history.add(5, original)
    tool = ReadToolResult(history, tmp_path)
    again = await tool(ReadToolResultArgs(id="R-5"), ToolContext())
    sources = tuple({"location": source.location} for source in again.sources)
    echo = ToolResult(tool="read_tool_result", success=True, output=again.text, call_id="d", sources=sources)
    assert (verdict("made up words", echo) == "found") is expected


def test_a_verdict_names_its_finding_without_its_text() -> None:
    findings = [Finding(claim="no quote"), Finding(claim="c", quote="twelve cents a minute"), Finding(claim="c")]
    [found] = check_quotes(findings, [(3, read("other")), (41, read(READ)), (50, read(READ))])
    assert found == {"finding": 2, "verdict": "found", "event": 41}
    assert "twelve" not in json.dumps(found)


@pytest.mark.slow
@pytest.mark.parametrize("quote", ["ab" * 7_500, "a" * 15_000, "\u0300\u0315" * 7_500, ("ab" * 300)[:NEAR_CHARS]])
@pytest.mark.parametrize("text", ["a" * 20_000, "aab" * 6_000, "\u0315\u0300" * 10_000, "\ufdfa" * 20_000])
def test_no_quote_makes_the_comparison_slow(quote: str, text: str) -> None:
    findings = [Finding(claim="c", quote=f"{quote}{number:x}") for number in range(30)]
    began = time.process_time()
    found = check_quotes(findings, [(number, read(text)) for number in range(10)])
    assert time.process_time() - began < 3  # one such quote took SequenceMatcher 10 s, here are 30 over 10 outputs
    assert len(found) == 30


def test_limits_how_many_findings_are_compared_passage_by_passage() -> None:
    quote = "transcription price of Otter is twelve cents per minute, as of May"
    found = check_quotes([Finding(claim="c", quote=quote)] * 60, [(1, read(READ))])
    assert [each["verdict"] for each in found] == ["near"] * 50 + ["not_found"] * 10


@given(st.text("abc", max_size=12), st.text("abcd", max_size=24))
def test_the_edit_distance_matches_the_simple_algorithm(pattern: str, text: str) -> None:
    row = [0] * (len(text) + 1)
    for number, char in enumerate(pattern, 1):
        new = [number]
        for at, other in enumerate(text, 1):
            new.append(min(row[at] + 1, new[-1] + 1, row[at - 1] + (char != other)))
        row = new
    assert edit_distance(pattern, text) == min(row)


@given(st.text())
def test_normalizing_twice_changes_nothing(text: str) -> None:
    assert normalize(normalize(text)) == normalize(text)


# -- over the loop --------------------------------------------------------------------------------------------------

INVENTED = "Otter costs thirteen cents a minute"
ATTACKS = {
    "never read": "Descript costs nothing at all",
    "its own note": f"{INVENTED}, as I noted",
    "its own note, read back": f"{INVENTED}, as I noted",
    "its own words": "I think that Otter is too dear for us",
    "its own arguments, in an error": "no-such-file-about-thirteen-cents.md",
    "its own arguments, in a refusal": "thirteen cents are my argument",
    "its own arguments, in a search that found nothing": "zebra giraffe walrus",
    "its own arguments, in a search that found something": "minute quokka wombat",
    "the task": "What does transcription cost this very week?",
    "a message": "The orchestrator says that Otter is free",
    "two outputs joined": "as of May. Descript charges 24 dollars",
    "next to nothing": "a",
    "white space": " \n\t ",
    "punctuation": "...",
    "the wrapper's words": 'tool="read_file"',
    "what a failure is called": "Failed.",
    "where it was cut": "characters; read_tool_result R-",
    "an instruction of Ava's": "only submit_result is accepted",
}


async def test_instructions_and_own_text_of_the_subagent_never_count_as_quotes(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/a.md").write_text(f"{HONEST[0]}\n")
    (tmp_path / "workspace/b.md").write_text(f"{HONEST[1]}\n")
    model = Attacker()
    async with open_lab(tmp_path, model) as lab:
        run_id = await lab.start(task=ATTACKS["the task"])
        await wait_for(model.gate.arrived)
        await lab.call("message_subagent", subagent_id=run_id, message=ATTACKS["a message"])
        model.gate.released.set()
        await lab.logged(run_id, "ToolResult", 9)
        model.earlier += [entry.seq for entry in await lab.entries(run_id) if isinstance(entry.fact, ToolResult)]
        model.second.released.set()
        await lab.ended(run_id)
        result = await lab.result(run_id)
        outputs = await lab.facts(run_id, ToolResult)
    assert sum(output.tool == "read_tool_result" and output.success for output in outputs) >= 5
    verdicts = [quote["verdict"] for quote in result["quotes_checked"]]
    named = dict(zip(["honest", "honest too", *ATTACKS], verdicts, strict=True))
    assert named.pop("honest") == named.pop("honest too") == "found"
    assert {name: verdict for name, verdict in named.items() if verdict != "not_found"} == {}
    counted = f"{len(ATTACKS)} of {len(verdicts)} quotes"
    assert any(counted in caveat for caveat in result["untrusted_result"]["caveats"])


HONEST = ("Otter costs twelve cents a minute, as of May.", "Descript charges 24 dollars a month.")


@dataclass
class Attacker:
    """A model that says its quotes itself wherever it can, then reads its results again, and quotes all of it."""

    gate: Gate = field(default_factory=Gate)
    second: Gate = field(default_factory=Gate)
    earlier: list[int] = field(default_factory=list[int])

    def __call__(self, request: dict[str, Any]) -> Say:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        if turn == 0:
            note = ("scratchpad", {"note": ATTACKS["its own note"]})
            files = [("read_file", {"path": "a.md"}), ("read_file", {"path": "b.md"})]
            return Say(ATTACKS["its own words"], calls=[note, *files], gate=self.gate)
        if turn == 1:
            return Say(
                calls=[
                    ("read_file", {"path": ATTACKS["its own arguments, in an error"]}),
                    ("read_file", {"offset": ATTACKS["its own arguments, in a refusal"]}),
                    ("search", {"query": ATTACKS["its own arguments, in a search that found nothing"]}),
                    ("search_and_read", {"query": ATTACKS["its own arguments, in a search that found nothing"]}),
                    ("search_and_read", {"query": ATTACKS["its own arguments, in a search that found something"]}),
                    ("scratchpad", {}),
                ],
            )
        if turn == 2 and not self.earlier:
            return Say(gate=self.second)  # empty, so that it is asked again when the test has seen the results
        if turn in (2, 3):
            return Say(calls=[("read_tool_result", {"id": f"R-{seq}"}) for seq in self.earlier])
        return hand_over(findings=[{"claim": "c", "quote": quote} for quote in (*HONEST, *ATTACKS.values())])
