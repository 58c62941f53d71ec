"""What the gateway takes out of an agent's body, counts in its bound and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.agents.gateway import (
    PLANTED,
    WIRES,
    agent_request,
    called_and_answered_body,
    forwarded_request,
    open_gateway,
    path_of_request,
)
from support.model_server import Say

from ava_audit.events import Usage
from ava_audit.redaction import Redactor
from ava_server.agents.bodies import Bodies
from ava_server.agents.forms import FORMS
from ava_server.agents.metering import CountedBounds, ShownResult, call_answered, results_in
from ava_server.agents.seam import AgentCall, CallRefused
from ava_server.models.json_text import encode


async def test_a_budget_for_thinking_leaves_room_for_the_answer(tmp_path: Path) -> None:
    thinks: dict[str, Any] = {
        "generation_config": {"thinking_config": {"thinking_budget": 8_000, "include_thoughts": True}}
    }
    async with open_gateway(tmp_path, [Say("ok")], "google") as at:
        assert (await at.ask(agent_request("google", **thinks))).status_code == 200
        assert at.far.requests[0].json["generationConfig"] == {
            "maxOutputTokens": 500,
            "thinkingConfig": {"thinkingBudget": 250, "includeThoughts": True},
        }
        assert at.meter.admitted[0].dropped == ()


@pytest.mark.parametrize(
    ("wire", "more"),
    [
        ("google", {"generationConfig": {"stopSequences": [PLANTED], "responseJsonSchema": {"description": PLANTED}}}),
        ("google", {"safety_settings": [{"category": PLANTED}], "labels": {"a": PLANTED}}),
        ("google", {"contents": [
            {"role": "model", "parts": [{"functionCall": {"id": PLANTED, "name": "Read", "args": {"a": "b"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"id": PLANTED, "name": "Read", "response": {
                "thoughtSignature": PLANTED}}}, {"inlineData": {"mimeType": "text/plain", "data": PLANTED}}]}]}),
        ("messages", {"stop_sequences": [PLANTED], "output_config": {"format": {"schema": {"description": PLANTED}}}}),
        ("messages", {"messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {
                "id": PLANTED, "model": PLANTED, "type": PLANTED, "signature": PLANTED, "call_id": PLANTED,
                "thought": {"type": "thinking", "signature": PLANTED, "data": PLANTED}}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "y"}]}]}),
        ("messages", {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "x", "model": PLANTED, "url": f"data:text/plain,{PLANTED}"}]}]}),
        ("responses", {"prompt_cache_key": PLANTED, "input": [
            {"type": "function_call", "call_id": PLANTED, "name": "Read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": PLANTED, "output": "y"}]}),
        ("chat_completions", {"stop": [PLANTED]}),
        ("messages", {"system": f"data:image/png;base64,{PLANTED}"}),
        ("chat_completions", {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "R", "arguments": f'{{"a":"\\u0041{PLANTED[1:]}"}}'}}]}]}),
    ],
)  # fmt: skip
async def test_secrets_do_not_leave_by_the_fields_that_are_no_text(
    tmp_path: Path, wire: str, more: dict[str, Any]
) -> None:
    sent, _call = await forwarded_request(tmp_path, wire, more)
    assert PLANTED[1:] not in sent


async def test_a_call_and_its_result_keep_one_id_also_if_it_looks_like_a_secret(tmp_path: Path) -> None:
    items = [
        {"type": "function_call", "call_id": PLANTED, "name": "Read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": PLANTED, "output": "y"},
    ]
    async with open_gateway(tmp_path, [Say("ok")], "responses") as at:
        at.far.checks = False
        await at.ask(agent_request("responses", input=items))
        sent = at.far.requests[0].json["input"]
        assert sent[0]["call_id"] == sent[1]["call_id"] != PLANTED


def content(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


BASE64 = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
MEDIA: list[tuple[str, dict[str, Any]]] = [
    ("messages", content({"type": "image", "source": BASE64})),
    ("messages", content({"type": "image", "source": {"type": "url", "url": "https://evil.example/?x=1"}})),
    ("messages", content({"type": "image", "source": "x"})),
    ("messages", {"messages": [{"role": "user", "content": [[{"type": "image", "source": BASE64}]]}]}),
    ("messages", content({"type": "tool_result", "tool_use_id": "t", "content": [
        {"type": "image", "source": BASE64}]})),
    ("messages", content({"type": "document", "source": {"type": "file", "file_id": "f"}})),
    ("responses", {"input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": "data:image/png;AA"}]}]}),
    ("responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": [
        {"type": "input_file", "file_id": "f"}]}]}),
    ("chat_completions", content({"type": "image_url", "image_url": {"url": "https://evil.example/a.png"}})),
    ("chat_completions", content({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}})),
    ("chat_completions", content({"type": "file", "file": {"file_data": "data:application/pdf;base64,AA=="}})),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "more"), MEDIA)
async def test_what_cannot_be_priced_by_its_bytes_becomes_a_sentence(
    tmp_path: Path, wire: str, more: dict[str, Any]
) -> None:
    """A blank image of 300 bytes can be 1,600 tokens, and a page of a document as many."""
    sent, call = await forwarded_request(tmp_path, wire, more)
    assert "Ava has taken out" in sent and len(call.dropped) == 1
    assert not [word for word in ("evil", "base64", "AA", "file_id", "iVBOR", '"source"') if word in sent]


def test_a_mark_in_a_tools_input_is_text_and_counts_as_it_is_sent() -> None:
    """Where the agent chooses the form, `cache_control` marks nothing: it is in the prompt."""
    bodies, bounds = Bodies("messages", {"sonnet": "far-sonnet"}, frozenset(), Redactor({})), CountedBounds()

    def read(each: dict[str, Any]) -> AgentCall:
        call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"a": [each] * 10_000}}
        return bodies.read(json.dumps(agent_request("messages", **content(call))).encode())

    plain, marked = read({}), read({"cache_control": 0})
    assert bounds.bound(marked, 1).prompt_tokens >= len(encode(bodies.limited(marked, 1))) - 200
    bounds.report(plain, Usage(input_tokens=10_000))
    assert bounds.bound(marked, 1).prompt_tokens >= 10_000 * len('{"cache_control":0}')


@pytest.mark.parametrize("wire", WIRES)
def test_a_conversation_that_is_one_object_counts_and_is_recorded_as_a_list_of_one(wire: str) -> None:
    long = "word " * 1_000
    body = agent_request(wire, long)
    name = FORMS[wire].items
    bodies = Bodies(wire, {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    one, listed = (
        bodies.read(json.dumps({**body, "model": "sonnet", name: items}).encode())
        for items in (body[name][-1], [body[name][-1]])
    )
    assert one.body == listed.body and one.items == listed.items and one.chain == listed.chain
    assert CountedBounds().bound(one, 1).prompt_tokens > len(long)


def alone(value: Any) -> Any:
    """Return a body in which every list of one object is that object."""
    if isinstance(value, list):
        return alone(value[0]) if len(value) == 1 and isinstance(value[0], dict) else [alone(each) for each in value]
    return {name: alone(each) for name, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("wire", WIRES)
def test_each_list_that_is_one_object_counts_is_recorded_and_sent_as_the_list(wire: str) -> None:
    """At every depth: parts, tools, declarations, calls, results."""
    bodies = Bodies(wire, {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    body = {**agent_request(wire), **called_and_answered_body(wire), "model": "sonnet"}
    one, listed = (bodies.read(json.dumps(each).encode()) for each in (alone(body), body))
    assert one == listed and one.chain == listed.chain
    assert [found for item in one.items for found in results_in(json.loads(item))], "a result is one"


def test_a_result_is_of_its_call_also_if_google_gave_that_no_id() -> None:
    """Gemini CLI then makes up an id of its own, for the result alone."""
    called = {"r1_0": "Read", "r1_1": "Read", "r2_0": "Bash"}
    parts = [
        {"functionResponse": {"id": call_id, "name": name, "response": {"output": text}}}
        for call_id, name, text in (("Read-17", "Read", "one"), ("", "Read", "two"), ("x", "Bash", "three"))
    ]
    answered: set[str] = set()
    found: dict[str, str] = {}
    for result in results_in({"role": "user", "parts": [*parts, *parts]}):
        call_id = call_answered(result, called, answered)
        if call_id in called and call_id not in answered:
            found[call_id] = result.text
            answered.add(call_id)
    assert found == {"r1_0": "one", "r1_1": "two", "r2_0": "three"}
    known = ShownResult("r1_1", "two", failed=False, name="Read")
    assert call_answered(known, called, answered=()) == "r1_1", "an id that is known comes first"
    assert call_answered(known._replace(call_id="r1_7"), {}, answered=()) == "r1_7"
    assert call_answered(ShownResult("toolu_9", "x", failed=False), called, answered=()) == "toolu_9"


def test_a_text_for_a_conversation_is_a_message() -> None:
    bodies = Bodies("responses", {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    message = {"type": "message", "role": "user", "content": "Do it."}
    text, listed = (
        bodies.read(json.dumps({**agent_request("responses"), "input": given}).encode())
        for given in ("Do it.", [message])
    )
    assert text == listed


NOT_LISTS: list[tuple[str, dict[str, Any], str]] = [
    ("google", {"contents": "Do it."}, "a str in contents"),
    ("google", {"contents": 7}, "a int in contents"),
    ("google", {"systemInstruction": "Be brief."}, "a str in systemInstruction"),
    ("google", {"system_instruction": ["Be brief."]}, "a list in systemInstruction"),
    ("google", {"contents": [{"role": "user", "parts": "x"}]}, "a str in contents.parts"),
    ("google", {"contents": [{"role": "user", "parts": [[{"text": "x"}]]}]}, "a list in contents.parts"),
    ("google", {"tools": "x"}, "a str in tools"),
    ("google", {"tools": [[{"googleSearch": {}}]]}, "a list in tools"),
    ("google", {"tools": [{"functionDeclarations": "x"}]}, "a str in tools.functionDeclarations"),
    ("messages", {"messages": "Do it."}, "a str in messages"),
    ("messages", {"messages": [["x"]]}, "a list in messages"),
    ("messages", {"tools": [["x"]]}, "a list in tools"),
    ("chat_completions", {"messages": "Do it."}, "a str in messages"),
    ("responses", {"input": [["x"]]}, "a list in input"),
    ("responses", {"tools": "x"}, "a str in tools"),
]


@pytest.mark.parametrize(("wire", "more", "said"), NOT_LISTS)
def test_what_is_neither_a_list_of_objects_nor_one_is_refused(wire: str, more: dict[str, Any], said: str) -> None:
    bodies = Bodies(wire, {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    with pytest.raises(CallRefused, match=re.escape(said)):
        bodies.read(json.dumps({**agent_request(wire), "model": "sonnet", **more}).encode())


@pytest.mark.parametrize("more", [{PLANTED: 1}, {"tools": [{"name": PLANTED, "type": "web_search_20250305"}]}])
def test_no_secret_is_in_the_names_of_what_was_taken_out(more: dict[str, Any]) -> None:
    bodies = Bodies("messages", {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    dropped = bodies.read(json.dumps(agent_request("messages", **more)).encode()).dropped
    assert dropped and PLANTED not in str(dropped)


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        ("messages", b'"temperature":NaN'),
        ("messages", b'"temperature":1e999'),
        ("messages", b'"messages":[{"role":"user","content":[{"type":[]}]}]'),
        ("messages", b'"messages":5,"tools":"x"'),
        ("messages", b'"tools":[{"name":"a","type":["x"]}]'),
        ("responses", b'"input":[{"type":["x"]}]'),
        ("responses", b'"include":[[]]'),
        ("responses", b'"include":[{}]'),
        ("chat_completions", b'"n":NaN'),
    ],
)
async def test_a_field_of_a_wrong_kind_is_no_fault_of_the_gateways(tmp_path: Path, wire: str, field: bytes) -> None:
    """The SDKs of agents repeat a 500."""
    async with open_gateway(tmp_path, [Say("ok")], wire) as at:
        at.far.checks = False
        body = json.dumps(agent_request(wire)).encode()[:-1] + b"," + field + b"}"
        answer = await at.http.post(f"/v1{path_of_request(wire, {})}", content=body)
        assert answer.status_code in (200, 400), answer.text
        assert len(at.far.requests) == len(at.meter.admitted) == (answer.status_code == 200)


@pytest.mark.parametrize(
    ("wire", "more"),
    [
        ("responses", {"input": [{"id": "msg_1"}]}),
        ("responses", {"input": [{"type": "computer_call_output", "output": {"image_url": "https://evil.example"}}]}),
        ("responses", {"input": [{"type": "image_generation_call", "id": "ig_1"}]}),
        ("responses", {"input": [{"type": "tool_search_output", "tools": [{"type": "mcp", "server_url": "https://x"}]}]}),
        ("chat_completions", {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
        ("chat_completions", content({"image_url": {"url": "https://evil.example"}})),
        ("chat_completions", content({"type": "text", "text": "x", "source": {"type": "url"}})),
        ("chat_completions", content({"type": "input_video", "video_url": {"url": "https://evil.example"}})),
        ("messages", content({"type": "mcp_tool_use", "name": "x", "input": {}})),
        ("messages", content({"type": "made_up"})),
    ],
)  # fmt: skip
async def test_nothing_that_stands_for_something_else_is_sent(tmp_path: Path, wire: str, more: dict[str, Any]) -> None:
    async with open_gateway(tmp_path, [Say("no")], wire) as at:
        assert (await at.ask(agent_request(wire, **more))).status_code == 400 and at.far.requests == []


async def test_every_field_that_reaches_the_prompt_counts_in_its_bound() -> None:
    bodies = Bodies("messages", {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    plain = bodies.read(json.dumps(agent_request("messages")).encode())
    schema = {"format": {"type": "json_schema", "schema": {"description": "x" * 400_000}}}
    long = bodies.read(json.dumps(agent_request("messages", output_config=schema)).encode())
    bounds = CountedBounds()
    bounds.report(plain, Usage(input_tokens=100))
    assert bounds.bound(long, 1).prompt_tokens > 400_000 and long.chain[-1] != plain.chain[-1]


async def test_what_is_remembered_of_bodies_is_bounded() -> None:
    bodies = Bodies("messages", {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    for number in range(16):
        bodies.read(json.dumps(agent_request("messages", f"{number:x}" * 1_500_000)).encode())
    assert sum(map(len, bodies._clean)) < 17_000_000  # pyright: ignore[reportPrivateUsage]
