"""What a subagent hands over: what is accepted, and what is said about the rest."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from ava_server.models.base import ToolUse
from ava_server.submit import SubmitArgs, accept, cut, schema

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def call(**args: Any) -> ToolUse:
    return ToolUse("call_0", "submit_result", args, json.dumps(args))


def accepted(use: ToolUse, form: dict[str, Any] | None = None) -> SubmitArgs:
    answer = accept(use, form)
    assert isinstance(answer, SubmitArgs), answer
    return answer


def refusal(use: ToolUse, form: dict[str, Any] | None = None) -> str:
    answer = accept(use, form)
    assert isinstance(answer, str), answer
    return answer


def test_a_summary_alone_is_a_result_without_confidence() -> None:
    given = accepted(call(summary="done"))
    assert (given.output, given.confidence, given.caveats, given.findings) == (None, None, [], [])


def test_one_caveat_as_plain_text_is_a_list_of_one() -> None:
    assert accepted(call(summary="s", caveats="only one source")).caveats == ["only one source"]
    assert accepted(call(summary="s", caveats=None)).caveats == []


@pytest.mark.parametrize("confidence", [-0.1, 1.5, "very"])
def test_a_confidence_outside_of_0_to_1_is_sent_back_by_name(confidence: object) -> None:
    assert refusal(call(summary="s", confidence=confidence)).startswith("confidence: ")


def test_an_unknown_field_is_sent_back_with_the_ones_that_there_are() -> None:
    said = refusal(call(summary="s", result="x"))
    assert said.startswith("result: ") and "summary, output, confidence" in said


def test_arguments_that_are_no_object_are_sent_back_as_they_came() -> None:
    said = refusal(ToolUse("call_0", "submit_result", None, '{"summary": '))
    assert "not a JSON object" in said and '{"summary": ' in said


def test_an_output_in_another_form_is_sent_back_with_the_place() -> None:
    assert "at n" in refusal(call(summary="s", output={"n": "three"}), SCHEMA)
    assert "'n' is a required property" in refusal(call(summary="s", output={}), SCHEMA)
    assert accepted(call(summary="s", output={"n": 3}), SCHEMA).output == {"n": 3}


def test_the_form_asked_for_is_what_the_model_is_shown() -> None:
    shown = schema(SCHEMA).parameters
    assert shown["properties"]["output"]["properties"] == SCHEMA["properties"]
    assert set(shown["required"]) == {"summary", "output"}
    jsonschema.validate({"summary": "s", "output": {"n": 1}}, dict(shown))
    assert "output" not in schema(None).parameters["required"]


@pytest.mark.parametrize("text", ["word " * 200, "x" * 600, "short", " padded "])
def test_a_summary_is_cut_at_a_word_within_500_characters(text: str) -> None:
    short = cut(text)
    assert len(short) <= 500
    assert short == text.strip() if len(text) < 500 else short.endswith("…")
