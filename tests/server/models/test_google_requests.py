"""What Google is sent: a whole request, the right key, thoughts and signatures as each model accepts them."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.model_server import Say
from support.models import google_format
from support.models.google_wire import (
    MODEL,
    SEARCH,
    TASK,
    WIRE,
    ask_google,
    read_answers,
)

from ava_server.models import json_text
from ava_server.models.base import AssistantTurn, ReportedUsage, Segment, ToolTurn, Turn, UserTurn
from ava_server.models.model_choice import thinking_of
from ava_server.models.tokens import bound
from ava_server.models.wires.google import WITHOUT_SIGNATURE, GoogleWire

# -- what is sent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("streaming", "method"), [(True, "streamGenerateContent?alt=sse"), (False, "generateContent")])
async def test_a_request_is_whole_and_its_address_has_the_model(streaming: bool, method: str) -> None:
    wire = GoogleWire(streaming, WIRE.thinking)
    _, (received,) = await read_answers([Say("ok")], ask_google(thinking=4096), wire=wire)
    assert received.path == f"/v1/models/{MODEL}:{method}"
    assert received.headers["x-goog-api-key"] == "key-0123456789"
    assert "authorization" not in received.headers
    assert received.json == {
        "systemInstruction": {"parts": [{"text": "You are terse."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "search", "description": "Finds things.", "parametersJsonSchema": SEARCH.parameters}
                ]
            }
        ],
        "contents": [{"role": "user", "parts": [{"text": TASK.text}]}],
        "generationConfig": {
            "maxOutputTokens": 8192,
            "thinkingConfig": {"thinkingLevel": "MEDIUM", "includeThoughts": True},
        },
    }


async def test_a_token_goes_to_vertex_as_one_and_nothing_without_a_key() -> None:
    _, (received,) = await read_answers([Say("ok")], wire=GoogleWire(bearer=True))
    assert received.headers["authorization"] == "Bearer key-0123456789"
    assert "x-goog-api-key" not in received.headers
    _, (received,) = await read_answers([Say("ok")], key="ya29.a0AfB_byC0123456789")
    assert received.headers["authorization"] == "Bearer ya29.a0AfB_byC0123456789"
    _, (received,) = await read_answers([Say("ok")], key=None)
    assert not {"authorization", "x-goog-api-key"} & received.headers.keys()


@pytest.mark.parametrize(
    ("base_url", "model", "url"),
    [
        ("https://h", "m", "https://h/v1beta/models/m:generateContent"),
        ("https://h/v1beta/", "m", "https://h/v1beta/models/m:generateContent"),
        ("https://h/v1", "models/m", "https://h/v1/models/m:generateContent"),
        ("https://h/v1", "a/b?c", "https://h/v1/models/a%2Fb%3Fc:generateContent"),
        (
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/google",
            "m",
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/google/models/m:generateContent",
        ),
    ],
)
def test_the_address_of_an_answer(base_url: str, model: str, url: str) -> None:
    assert GoogleWire(streaming=False).url(base_url, model) == url


@pytest.mark.parametrize(
    ("model", "tokens", "told"),
    [
        ("gemini-3.8-flash", 4096, {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        ("gemini-3.8-flash", 0, {"thinkingLevel": "LOW"}),
        ("gemini-4-argon", 0, {"thinkingLevel": "LOW"}),
        ("gemini-3-pro-preview", 4096, None),
        ("gemini-3-pro-preview", 0, {"thinkingLevel": "LOW"}),
        ("gemini-2.5-flash", 4096, {"thinkingBudget": 4096, "includeThoughts": True}),
        ("gemini-2.5-flash-lite", 0, {"thinkingBudget": 0}),
        ("gemini-2.5-pro", 4096, {"thinkingBudget": 4096, "includeThoughts": True}),
        ("gemini-2.5-pro", 0, {"thinkingBudget": 128}),
        ("gemini-2.0-flash", 4096, None),
        ("gemini-2.0-flash", 0, None),
    ],
)
async def test_each_model_is_told_to_think_as_it_accepts_it(model: str, tokens: int, told: Any) -> None:
    wire = GoogleWire(thinking=thinking_of(model))
    _, (received,) = await read_answers([Say("ok")], ask_google(model=model, thinking=tokens), wire=wire, model=model)
    assert received.json["generationConfig"].get("thinkingConfig") == told


@pytest.mark.parametrize("streaming", [True, False])
async def test_signatures_and_calls_go_back_and_summaries_of_thinking_do_not(streaming: bool) -> None:
    wire = GoogleWire(streaming, WIRE.thinking)
    say = Say("Both.", [("search", {"q": "a"}), ("search", {"q": "b"})], reasoning="Hm.")
    (first,), _ = await read_answers([say], wire=wire)
    assert (first.text, first.thinking) == ("Both.", "Hm.")
    results = [ToolTurn(call.call_id, call.name, f"found {call.call_id}") for call in first.calls]
    request = ask_google(TASK, AssistantTurn(first.raw), *results, UserTurn("Hurry."))
    _, (received,) = await read_answers([Say("ok")], request, wire=wire)
    asked, answered = received.json["contents"][1:]
    assert asked["role"] == "model" and answered["role"] == "user"
    assert asked["parts"] == [
        {"text": "Both."},
        {
            "functionCall": {"id": "fc1_0", "name": "search", "args": {"q": "a"}},
            "thoughtSignature": google_format.SIGNATURE,
        },
        {"functionCall": {"id": "fc1_1", "name": "search", "args": {"q": "b"}}},
    ]
    assert answered["parts"] == [
        {"functionResponse": {"id": "fc1_0", "name": "search", "response": {"output": "found fc1_0"}}},
        {"functionResponse": {"id": "fc1_1", "name": "search", "response": {"output": "found fc1_1"}}},
        {"text": "Hurry."},
    ]


def test_no_id_of_a_call_goes_to_an_endpoint_that_refuses_it_and_what_is_stored_keeps_it() -> None:
    call: dict[str, Any] = {
        "functionCall": {"id": "a", "name": "search", "args": {"id": "7"}},
        "thoughtSignature": "c2Vh",
    }
    raw: dict[str, Any] = {"role": "model", "parts": [{"text": "So."}, call]}
    vertex = GoogleWire(thinking=WIRE.thinking, call_ids=False)
    body = vertex.body(ask_google(TASK, AssistantTurn(raw), ToolTurn("a", "search", "found")))
    assert body["contents"][1:] == [
        {
            "role": "model",
            "parts": [
                {"text": "So."},
                {"functionCall": {"name": "search", "args": {"id": "7"}}, "thoughtSignature": "c2Vh"},
            ],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "search", "response": {"output": "found"}}}],
        },
    ]
    assert raw["parts"][1] == call and call["functionCall"]["id"] == "a"


def test_a_call_whose_signature_is_not_known_has_the_documented_stand_in_for_models_that_check_it() -> None:
    call = {"id": "a", "name": "search", "args": {}}
    raw = {"role": "model", "parts": [{"functionCall": call}, {"functionCall": {**call, "id": "b"}}]}
    older = GoogleWire(thinking=thinking_of("gemini-2.5-pro"))
    assert WIRE.message(AssistantTurn(raw))["parts"][0]["thoughtSignature"] == WITHOUT_SIGNATURE
    assert "thoughtSignature" not in WIRE.message(AssistantTurn(raw))["parts"][1]
    assert "thoughtSignature" not in str(older.message(AssistantTurn(raw)))
    assert "thoughtSignature" not in raw["parts"][0], "what is stored stays as it is"

    sealed = {"role": "model", "parts": [{"text": "so", "thoughtSignature": "c2Vh"}, {"functionCall": call}]}
    parts = WIRE.message(AssistantTurn(sealed, without_thinking=True))["parts"]
    assert parts == [{"text": "so"}, {"functionCall": call, "thoughtSignature": WITHOUT_SIGNATURE}]


# -- the bound of a call ----------------------------------------------------------------------------------------------


def test_a_bound_has_a_token_for_each_byte_and_its_answer_includes_thinking() -> None:
    signed = {"functionCall": {"id": "a", "name": "search", "args": {"q": "<>" * 40}}, "thoughtSignature": "x" * 400}
    raw = {"role": "model", "parts": [{"text": "a thought", "thought": True}, signed]}
    turns: Sequence[Turn] = (TASK, AssistantTurn(raw), ToolTurn("a", "search", "found\n" * 50))
    request = ask_google(*turns, thinking=4096)
    counted = bound(request, WIRE.message, None)
    body = json_text.encode(WIRE.body(request))
    assert counted.prompt_tokens > len(body) + 400, "a template may escape the arguments of calls"
    assert counted.output_tokens == request.max_output == WIRE.body(request)["generationConfig"]["maxOutputTokens"]
    known = ReportedUsage((Segment(90, (0,)),), {1: 300})
    assert bound(request, WIRE.message, known).prompt_tokens < counted.prompt_tokens
