"""What a request to the Responses API has."""

from typing import Any

import pytest
from support.model_server import Say
from support.models import responses_format
from support.models.responses_wire import MODEL, SEARCH, TASK, WIRE, ask_responses, message_item, read_answers

from ava_server.models.base import AssistantTurn, ToolTurn, UserTurn
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.model_choice import thinking_of
from ava_server.models.wires.responses import ResponsesWire


async def test_each_request_is_self_contained_and_asks_for_what_the_next_one_needs() -> None:
    _, (received,) = await read_answers([Say("ok")], ask_responses(thinking=4096))
    function = {"name": "search", "description": "Finds things.", "parameters": dict(SEARCH.parameters)}
    assert received.path == "/v1/responses"
    assert received.headers["authorization"] == "Bearer key-0123456789"
    assert received.json == {
        "model": MODEL,
        "instructions": "You are terse.",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": TASK.text}]}],
        "tools": [{"type": "function", **function, "strict": False}],
        "max_output_tokens": 8192,
        "reasoning": {"effort": "medium"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": True,
    }
    assert received.body == HttpModel("p", "m", "http://x", None, ClientPool(), WIRE).encode(
        ask_responses(thinking=4096)
    )


async def test_without_a_key_there_is_no_authorization_header() -> None:
    _, (received,) = await read_answers([Say("ok")], key=None)
    assert "authorization" not in received.headers


@pytest.mark.parametrize(
    ("model", "tokens", "effort"),
    [
        ("gpt-6.1-terra", 4096, "medium"),
        ("gpt-6.1-terra", 0, "none"),
        ("gpt-6-luna", 0, "none"),
        ("gpt-6.1-sol", 4096, "medium"),
        ("gpt-6.1-sol", 0, "low"),
        ("gpt-6-astra", 0, "low"),
        ("gpt-5.4", 0, "none"),
        ("gpt-5.4-mini-2026-03-17", 0, "none"),
        ("gpt-5.3-codex", 0, "low"),
        ("gpt-5.3-codex", 4096, "medium"),
        ("gpt-5.4-pro", 4096, "medium"),
        ("gpt-4.1", 4096, None),
        ("gpt-4.1", 0, None),
    ],
)
async def test_sends_each_model_an_effort_level_it_accepts(model: str, tokens: int, effort: str | None) -> None:
    wire = ResponsesWire(thinking=thinking_of(model))
    _, (received,) = await read_answers([Say("ok")], ask_responses(model=model, thinking=tokens), wire=wire)
    assert received.json.get("reasoning") == (None if effort is None else {"effort": effort})
    assert ("include" in received.json) is (effort is not None), "models that do not think refuse it"


@pytest.mark.parametrize(
    "model", ["gpt-5-pro", "gpt-5.2-pro", "gpt-5.4-pro-2026-03-05", "gpt-5.1-codex-mini", "gpt-5.2-chat-latest"]
)
async def test_sends_no_effort_to_models_with_one_level_or_none_below_medium(model: str) -> None:
    _, (received,) = await read_answers(
        [Say("ok")], ask_responses(model=model), wire=ResponsesWire(thinking=thinking_of(model))
    )
    assert "reasoning" not in received.json


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://h/v1", "https://h/v1/responses"),
        ("https://h/v1/", "https://h/v1/responses"),
        ("https://h/v1/responses", "https://h/v1/responses"),
    ],
)
def test_the_address_may_include_the_path(base_url: str, url: str) -> None:
    assert WIRE.url(base_url, "m") == url


@pytest.mark.parametrize("streaming", [True, False])
async def test_sends_thinking_text_and_calls_back_verbatim_except_ids_the_api_did_not_store(streaming: bool) -> None:
    wire = ResponsesWire(streaming, WIRE.thinking)
    say = Say("Both.", [("search", {"q": "a"}), ("search", {"q": "b"})], reasoning="Hm.")
    (first,), (asked,) = await read_answers([say], wire=wire)
    assert first.raw["output"] == responses_format.items(say, asked.json)

    results = [ToolTurn(call.call_id, call.name, f"found {call.call_id}") for call in first.calls]
    request = ask_responses(TASK, AssistantTurn(first.raw), *results, UserTurn("Hurry."))
    _, (received,) = await read_answers([Say("ok")], request, wire=wire)
    sent = received.json["input"]
    assert [one["type"] for one in sent] == [
        "message", "reasoning", "message", "function_call", "function_call",
        "function_call_output", "function_call_output", "message",
    ]  # fmt: skip
    assert [{**one, **was} for one, was in zip(sent[1:5], first.raw["output"], strict=True)] == first.raw["output"]
    assert all(
        was.keys() - one.keys() <= {"id", "status"} for one, was in zip(sent[1:5], first.raw["output"], strict=True)
    )
    assert sent[1]["encrypted_content"] == first.raw["output"][0]["encrypted_content"]
    output = {"type": "function_call_output", "call_id": first.calls[1].call_id, "output": results[1].text}
    assert sent[6] == output


def test_leaves_out_thinking_that_the_api_would_reject() -> None:
    sealed = {"type": "reasoning", "encrypted_content": "gAAAA", "summary": []}
    bare = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    plain = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}

    def sent(*output: Any) -> list[Any]:
        return list(
            WIRE.body(ask_responses(TASK, AssistantTurn({"role": "assistant", "output": list(output)})))["input"][1:]
        )

    assert sent(sealed, bare, plain, message_item("so")) == [sealed, plain, message_item("so")]
    assert sent(message_item("so"), sealed, plain) == [message_item("so")], "nothing follows it"
    assert sent(sealed) == sent() == sent("text", None, {}) == []


def test_sends_the_phase_of_a_message_back() -> None:
    raw = {"role": "assistant", "output": [message_item("I look.", id="msg_1", status="completed", phase="commentary")]}
    assert WIRE.body(ask_responses(TASK, AssistantTurn(raw)))["input"][1] == message_item("I look.", phase="commentary")
