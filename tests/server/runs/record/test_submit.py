"""What a subagent hands over is taken as it is where it can be, bounded, and refused with what to mend."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from ava_roles.tools.files import ReadFileArgs
from ava_server.approval.output_schema import check_schema
from ava_server.models.base import ToolUse
from ava_server.runs.record.quotes import check_quotes
from ava_server.runs.record.submit import NAME, Finding, SubmitArgs, accept, arguments_fault, schema

FORM: dict[str, Any] = {"type": "array", "items": {"$ref": "#/$defs/row"}, "$defs": {"row": {"type": "integer"}}}


def handed(form: dict[str, Any] | None = None, **args: Any) -> SubmitArgs | str:
    given = {"summary": "s", **args}
    return accept(ToolUse("call_1", NAME, given, json.dumps(given)), form)


def accepted(**args: Any) -> SubmitArgs:
    submitted = handed(**args)
    assert isinstance(submitted, SubmitArgs), submitted
    return submitted


def test_accepts_a_result_unchanged() -> None:
    finding = {"claim": "Otter costs twelve cents", "quote": "“twelve cents”", "source_url": "https://example.org/"}
    submitted = accepted(output={"a": [1]}, confidence=0.5, caveats="only one page", findings=[finding])
    assert submitted.output == {"a": [1]}
    assert submitted.caveats == ["only one page"]
    assert [each.model_dump(exclude_none=True) for each in submitted.findings] == [finding]


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({"output": [1, "two"]}, "output does not match the schema that was asked for, at 1: 'two' is not of type"),
        ({"output": None}, "output does not match the schema that was asked for, at output: None is not of type"),
        ({"output": [], "confidence": 7}, "confidence: Input should be less than or equal to 1"),
        ({"output": [], "findings": [{}]}, "findings.0.claim: Field required"),
        ({"output": [], "x" * 5_000: 1}, "Extra inputs are not permitted; submit_result takes summary"),
    ],
)
def test_explains_how_to_fix_an_invalid_result(args: dict[str, Any], fault: str) -> None:
    told = handed(FORM, **args)
    assert isinstance(told, str)
    assert fault in told
    assert len(told) < 600


def test_an_unknown_argument_of_any_tool_is_named_in_short() -> None:
    with pytest.raises(ValidationError) as wrong:
        ReadFileArgs.model_validate({"path": "a", "x" * 5_000: 1})
    told = arguments_fault(wrong.value, "read_file", ReadFileArgs)
    assert "Extra inputs are not permitted; read_file takes path" in told
    assert len(told) < 300


def test_asks_again_for_arguments_that_are_not_an_object() -> None:
    told = accept(ToolUse("call_1", NAME, None, '{"summary": '), None)
    assert isinstance(told, str)
    assert told.startswith("the arguments are not a JSON object")


def test_a_schema_with_remote_references_or_slow_patterns_does_not_crash_the_run() -> None:
    for form in ({"$ref": "http://127.0.0.1:1/x"}, {"pattern": "^(a+)+$"}, {"type": "nonsense"}):
        told = handed(form, output="a" * 40 + "!")
        assert isinstance(told, str)
        assert "could not be checked" in told or "cannot be used" in told


def test_drops_excess_findings_and_adds_a_caveat() -> None:
    submitted = accepted(findings=[{"claim": f"claim {number}"} for number in range(130)], caveats=["mine"])
    assert [finding.claim for finding in submitted.findings] == [f"claim {number}" for number in range(100)]
    assert submitted.caveats == ["mine", "30 findings were left out: a result carries 100."]


def test_truncates_long_findings_and_adds_a_caveat() -> None:
    page = "The price of everything is on this page. " * 200
    long = {"claim": page, "quote": page, "source_url": "https://example.org/" + "x" * 5_000, "source_name": page}
    submitted = accepted(findings=[long, {"claim": "short", "quote": " as it is "}])
    first, second = submitted.findings
    assert submitted.caveats == ["1 finding was cut: too long."]
    assert len(first.claim) <= 2_000
    assert len(first.quote or "") == 4_000
    assert len(first.source_url or "") == len(first.source_name or "") == 2_000
    assert second == Finding(claim="short", quote=" as it is ")


def test_finds_a_truncated_quote_in_its_source() -> None:
    from ava_audit.events import ToolResult

    page = " ".join(f"word{number}" for number in range(2_000))
    submitted = accepted(findings=[{"claim": "c", "quote": page}])
    read = ToolResult(tool="read_file", success=True, output=page, sources=({"location": "a.md"},))
    assert check_quotes(submitted.findings, [(7, read)]) == [{"finding": 1, "verdict": "found", "event": 7}]


def test_drops_excess_caveats_and_the_last_one_says_so() -> None:
    submitted = accepted(caveats=["word " * 1_000] * 60)
    assert len(submitted.caveats) == 51
    assert max(map(len, submitted.caveats)) <= 1_000
    assert submitted.caveats[-1] == "10 caveats were left out: a result carries 50."


def test_the_tool_schema_embeds_the_output_schema_with_working_references() -> None:
    parameters = dict(schema(FORM).parameters)
    assert parameters["properties"]["output"]["items"] == {"$ref": "#/properties/output/$defs/row"}
    assert parameters["required"] == ["summary", "output"]
    assert check_schema(parameters) is None
