"""Arguments as hosts write them, for every argument of the six tools: null, JSON text, numbers as text, empty text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Gate, Say
from support.runtime import connect, hand_over, text, wait_for

from ava_server.approval.requests import Arguments, ConfirmArgs, LogArgs, MessageArgs, SpawnArgs, parse
from ava_server.core.errors import BadInput
from ava_server.service.tool_registry import TOOLS

TASK = {"role": "researcher", "task": "x"}
PENDING = {"pending_ids": ["P-00000000"]}
LEAST: dict[str, dict[str, Any]] = {
    "spawn_subagent": TASK,
    "confirm_spawn": PENDING,
    "check_subagent": {},
    "message_subagent": {"subagent_id": "S-000000", "message": "x"},
    "cancel_subagent": {},
    "read_ava_logs": {},
}
"""What each tool must be given."""
FIELDS = [
    (tool.args, name, field)
    for tool in TOOLS.values()
    for name, field in tool.args.model_fields.items()
    if name in tool.args.model_json_schema()["properties"]  # hosts are shown no others
]
OPTIONAL = [(model, name) for model, name, field in FIELDS if not field.is_required()]
REQUIRED_TEXTS = [(SpawnArgs, "role"), (SpawnArgs, "task"), (MessageArgs, "message")]


def named(given: Any) -> str:
    return given.tool if isinstance(given, type) and issubclass(given, Arguments) else str(given)


def least(model: type[Arguments]) -> dict[str, Any]:
    return LEAST[model.tool]


@pytest.mark.parametrize("nothing", [None, "", "  "], ids=["null", "empty", "blank"])
@pytest.mark.parametrize(("model", "name"), OPTIONAL, ids=named)
def test_what_says_nothing_leaves_an_optional_argument_out(model: type[Arguments], name: str, nothing: Any) -> None:
    read = parse(model, {**least(model), name: nothing})
    assert read == parse(model, least(model))
    assert name not in read.model_fields_set


@pytest.mark.parametrize(("model", "name"), REQUIRED_TEXTS, ids=named)
def test_empty_text_stays_a_fault_where_text_is_required(model: type[Arguments], name: str) -> None:
    with pytest.raises(BadInput, match=rf"^{name}: empty text"):
        parse(model, {**least(model), name: ""})


def test_a_retry_leaves_out_what_it_repeats() -> None:
    with pytest.raises(BadInput, match=r"^role: missing"):  # the earlier run gives it, before it is parsed
        parse(SpawnArgs, {"retry_of": "S-7f3a2b", "role": "", "task": None})


EXAMPLES: dict[str, Any] = {
    "array": ["one", "two"],
    "object": {"type": "object", "properties": {"n": {"type": "number"}}},
    "boolean": True,
    "integer": 7,
    "number": 7.5,
}
"""A value of each kind of argument that is no text, as a well-behaved host gives it."""
CHANGES = {"P-00000000": {"caps": {"timeout": 9.0, "max_tokens": 70}, "blocked_tools": ["run_bash"]}}


def value_for(model: type[Arguments], name: str) -> Any:
    """Return a value of the kind of an argument; None where that is text."""
    about = model.model_json_schema()["properties"][name]
    kind = about.get("type") or about["anyOf"][0]["type"]
    if name == "steps":
        return [{"id": "one", "role": "researcher", "task": "x"}]
    return CHANGES if name == "changes" else EXAMPLES.get(kind)


VALUES = [(model, name, value_for(model, name)) for model, name, _field in FIELDS]
NOT_TEXT = [each for each in VALUES if each[2] is not None]


@pytest.mark.parametrize(("model", "name", "value"), NOT_TEXT, ids=named)
def test_json_as_text_is_what_it_says(model: type[Arguments], name: str, value: Any) -> None:
    plain = parse(model, {**least(model), name: value})
    assert name in plain.model_fields_set
    for written in (json.dumps(value), f" {json.dumps(value, indent=1)}\n"):
        assert parse(model, {**least(model), name: written}) == plain


@pytest.mark.parametrize(("model", "name", "value"), NOT_TEXT, ids=named)
def test_null_as_text_is_null_where_no_text_belongs(model: type[Arguments], name: str, value: Any) -> None:
    if name == "pending_ids":
        with pytest.raises(BadInput, match=r"^pending_ids: 'null' was given where a list belongs"):
            parse(model, {**least(model), name: "null"})
    else:
        assert parse(model, {**least(model), name: "null"}) == parse(model, least(model)), value


def test_the_table_of_arguments_that_are_no_text_is_complete() -> None:
    texts = {(model.tool, name) for model, name, value in VALUES if value is None}
    assert {("spawn_subagent", "task"), ("confirm_spawn", "decision"), ("check_subagent", "cursor")} <= texts


LISTS = [(model, name) for model, name, value in NOT_TEXT if isinstance(value, list) and name != "steps"]


@pytest.mark.parametrize(("model", "name"), LISTS, ids=named)
def test_a_single_text_is_a_list_of_one_unless_it_is_a_list_of_texts(model: type[Arguments], name: str) -> None:
    for single in ("error", "[id]", "[1]", '["a"', '{"a": 1}', "nullable"):
        assert getattr(parse(model, {**least(model), name: single}), name) == [single]
    assert getattr(parse(model, {**least(model), name: ["[1]", '["a"]']}), name) == ["[1]", '["a"]']


def test_parts_of_an_object_are_read_as_the_arguments_are() -> None:
    caps = {"timeout": "9", "max_tokens": "", "max_iterations": None}
    for written in (caps, json.dumps(caps)):
        for inner in ({"caps": written, "blocked_tools": "run_bash"}, json.dumps({"caps": written}), {"caps": ""}):
            for changes in ({"P-00000000": inner}, json.dumps({"P-00000000": inner})):
                read = parse(ConfirmArgs, {**PENDING, "changes": changes}).changes
                assert read is not None
                caps_read = read["P-00000000"].caps
                assert inner == {"caps": ""} or (caps_read is not None and caps_read.timeout == 9)
                assert caps_read is None or caps_read.model_fields_set == {"timeout"}


TEXTS = ("task", "context", "system_prompt", "verify", "rationale", "name", "workspace", "model")


@pytest.mark.parametrize("text_", ['["a"]', '{"a": 1}', "null", "5", "true", '"quoted"'])
def test_an_argument_that_is_text_is_never_parsed(text_: str) -> None:
    for name in TEXTS:
        assert getattr(parse(SpawnArgs, {**TASK, name: text_}), name) == text_
    assert parse(MessageArgs, {"subagent_id": "S-000000", "message": text_}).message == text_
    assert parse(LogArgs, {"search": text_}).search == text_


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"timeout": "soon"}, "timeout: 'soon' was given where a number belongs"),
        ({"timeout": "-5"}, "timeout: '-5' is too small"),
        ({"timeout": "inf"}, "timeout: 'inf' is not a finite number"),
        ({"max_tokens": "1.5"}, "max_tokens: '1.5' was given where a whole number belongs"),
        ({"plan": "perhaps"}, "plan: 'perhaps' was given where true or false belongs"),
        ({"output_schema": "[1]"}, "output_schema: '[1]' was given where an object belongs"),
        ({"output_schema": "yes"}, "output_schema: 'yes' was given where an object belongs"),
        ({"output_schema": '{"a":' * 50_000}, "was given where an object belongs"),
        ({"output_schema": '{"a":' * 200 + "1" + "}" * 200}, "was given where an object belongs"),
        ({"tools": 7}, "tools: '7' was given where a list belongs"),
        ({"tools": [7]}, "tools.0: '7' was given where text belongs"),
        ({"budget": None}, "budget: spawn_subagent has no argument of that name"),
        ({"budget": ""}, "budget: spawn_subagent has no argument of that name"),
        ({"task": None}, "task: 'null' was given where text belongs"),
    ],
)
def test_what_cannot_be_read_is_refused_as_it_was_given(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse(SpawnArgs, {**TASK, **given})
    assert says in str(refused.value)


async def test_a_host_that_writes_everything_as_text_proposes_confirms_steers_and_reads(tmp_path: Path) -> None:
    gate = Gate()
    steps = [Say("looking", gate=gate), hand_over(), hand_over()]
    async with connect(tmp_path, steps) as (client, _server):

        async def call(tool: str, **given: Any) -> dict[str, Any]:
            """Give every argument of a tool: those that are not used as null or as empty text."""
            names = TOOLS[tool].args.model_fields
            unused = {name: None if number % 2 else "" for number, name in enumerate(names)}
            answer = await client.call_tool(tool, {**unused, **given})
            assert not answer.is_error and answer.structured_content is not None, text(answer)
            return dict(answer.structured_content)

        workspace = str(tmp_path / "workspace")
        spawn = {"role": "researcher", "task": '["what", "does", "it", "cost?"]', "workspace": workspace}
        made = await call(
            "spawn_subagent", **spawn, timeout="60", max_tokens="50000", tools='["read_file"]', plan="false"
        )
        run, pending = made["subagent_id"], made["pending_id"]
        changes = json.dumps({pending: json.dumps({"caps": json.dumps({"timeout": "30", "max_cost_cents": ""})})})
        approved = await call(
            "confirm_spawn", pending_ids=json.dumps([pending]), approving=json.dumps([made["approval_line"]]),
            decision="", changes=changes, wait_seconds="0",
        )  # fmt: skip
        assert approved["status"] == "approved"
        await wait_for(gate.arrived)
        assert (await call("message_subagent", subagent_id=run, message="null"))["status"] == "delivered"
        gate.released.set()
        ended = await call("check_subagent", subagent_id=run, wait_seconds="30")
        assert ended["status"] == "success"
        assert "of 30 s" in str(approved) + str(ended), "the cap that was lowered"
        again = await call("spawn_subagent", retry_of=run)
        assert again["status"] == "awaiting_approval"
        cancelled = await call("cancel_subagent", pending_id=again["pending_id"])
        assert cancelled["status"] == "cancelled"
        entries = await call("read_ava_logs", subagent_id=run, last_n="500", types='["message"]')
        assert any('["what", "does", "it", "cost?"]' in line for line in entries["untrusted_entries"])
