"""Arguments that a JSON parser lets through and that are no arguments all the same."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from ava_server.approval.requests import Arguments, CheckArgs, ConfirmArgs, LogArgs, SpawnArgs, parse, show_value
from ava_server.core.errors import BadInput

TASK = {"role": "researcher", "task": "x"}


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_rejects_a_cap_that_is_not_a_number_by_name(value: float) -> None:
    with pytest.raises(BadInput, match=r"^timeout: .*give "):
        parse(SpawnArgs, {**TASK, "timeout": value})


def test_rejects_a_wait_that_is_not_a_number() -> None:
    with pytest.raises(BadInput, match=r"^wait_seconds: "):
        parse(CheckArgs, {"wait_seconds": float("nan")})


CAPS = ("max_cost_cents", "timeout", "max_tokens", "max_iterations", "max_tool_calls")


@pytest.mark.parametrize("value", [True, False])
def test_rejects_true_and_false_for_every_number_and_says_what_to_give(value: bool) -> None:
    """They would count as 1 and 0."""
    pending, given = ["P-00000000"], "true" if value else "false"
    calls: list[tuple[type[Arguments], dict[str, Any], str]] = [(SpawnArgs, {**TASK, cap: value}, cap) for cap in CAPS]
    calls += [
        (ConfirmArgs, {"pending_ids": pending, "changes": {"P-00000000": {"caps": {cap: value}}}}, cap) for cap in CAPS
    ]
    calls += [
        (ConfirmArgs, {"pending_ids": pending, field: value}, field)
        for field in ("group_max_cost_cents", "group_timeout", "wait_seconds")
    ]
    calls += [(CheckArgs, {"wait_seconds": value}, "wait_seconds"), (LogArgs, {"last_n": value}, "last_n")]
    for model, arguments, field in calls:
        with pytest.raises(BadInput) as refused:
            parse(model, arguments)
        kind = "a whole number" if field.startswith(("max_t", "max_i", "last")) else "a number"
        said = str(refused.value)
        assert said.endswith(f"{field}: '{given}' was given where {kind} belongs; give {kind}."), said


def test_the_schemas_of_the_arguments_have_the_bounds_of_numbers() -> None:
    properties = SpawnArgs.model_json_schema()["properties"]
    assert [properties[cap]["anyOf"][0]["exclusiveMinimum"] for cap in CAPS] == [0] * len(CAPS)
    caps = ConfirmArgs.model_json_schema()["$defs"]["Caps"]["properties"]
    assert [caps[cap]["anyOf"][0]["exclusiveMinimum"] for cap in CAPS] == [0] * len(CAPS)
    wait, last = CheckArgs.model_json_schema()["properties"]["wait_seconds"], LogArgs.model_json_schema()["properties"]
    assert (wait["minimum"], wait["maximum"]) == (0, 240)
    assert (last["last_n"]["minimum"], last["last_n"]["maximum"]) == (1, 500)


def test_the_schema_accepts_a_retry_with_nothing_else() -> None:
    schema = SpawnArgs.model_json_schema()
    jsonschema.validate({"retry_of": "S-7f3a2b"}, schema)
    assert "gives the defaults" in schema["properties"]["retry_of"]["description"]


def test_the_approval_line_is_the_first_argument_of_confirm_spawn() -> None:
    assert next(iter(ConfirmArgs.model_json_schema()["properties"])) == "approving"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"P-00000000": {"caps": {"max_cost_cents": -1}}}, "max_cost_cents"),
        ({"P-00000000": {"caps": {"price": 1}}}, "price"),
        ({"P-00000000": {"model": "other"}}, "model"),
    ],
)
def test_rejects_an_unknown_change_by_its_position(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(BadInput, match=rf"^changes\.P-00000000\..*{names}"):
        parse(ConfirmArgs, {"pending_ids": ["P-00000000"], "changes": changes})


def test_shows_a_value_truncated_and_without_anything_that_looks_like_a_key() -> None:
    assert len(show_value("word " * 100)) <= 90
    key = "sk-or-" + "v1" + "0" * 30
    assert key not in show_value({"key": key})
    assert show_value("a\ud800").encode("utf-8")
