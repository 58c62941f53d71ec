"""Google's wire: what is sent, what comes back well and badly, the bound of a call, and runs over it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_server import EVENTS, JSON, Fail, Gate, Raw, Received, Say, Script, run_model_server
from support.models import google_format
from support.runtime import check_requests, hand_over, open_lab

from ava_audit.events import AssistantMessage, CostUpdate, RunClaimed, Usage
from ava_server.core.errors import ModelError
from ava_server.models import json_text
from ava_server.models.base import (
    AssistantTurn,
    Completion,
    Delta,
    ReportedUsage,
    Request,
    Segment,
    ToolSchema,
    ToolTurn,
    Turn,
    UserTurn,
)
from ava_server.models.clients import ClientPool
from ava_server.models.errors import may_have_been_billed
from ava_server.models.http_model import HttpModel
from ava_server.models.prices import cost_micros, find_price
from ava_server.models.selection import thinking_of
from ava_server.models.tokens import bound
from ava_server.models.wires.base import MOST_CALLS
from ava_server.models.wires.google import WITHOUT_SIGNATURE, GoogleAnswer, GoogleWire

MODEL = "gemini-3.8-flash"
SEARCH = ToolSchema("search", "Finds things.", {"type": "object", "properties": {"q": {"type": "string"}}})
TASK = UserTurn("Find the blue door.")
WIRE = GoogleWire(thinking=thinking_of(MODEL))


def events(*said: Mapping[str, Any]) -> Raw:
    return Raw([f"data: {json.dumps(one)}\r\n\r\n".encode() for one in said], EVENTS)


def whole(answer: Mapping[str, Any]) -> Raw:
    return Raw([json.dumps(answer).encode()], JSON)


def candidate(*parts: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    ending = {"finishReason": finish} if finish else {}
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0, **ending, **more}]}


def used(prompt: int, answer: int = 0, thought: int = 0, **more: int) -> dict[str, Any]:
    """Return a usage as Google writes it: without the counts that are 0."""
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": answer, "thoughtsTokenCount": thought, **more}
    tools = more.get("toolUsePromptTokenCount", 0)
    return {name: count for name, count in counts.items() if count} | {
        "totalTokenCount": prompt + answer + thought + tools
    }


# -- what is sent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("streaming", "method"), [(True, "streamGenerateContent?alt=sse"), (False, "generateContent")])
async def test_a_request_is_whole_and_its_address_has_the_model(streaming: bool, method: str) -> None:
    wire = GoogleWire(streaming, WIRE.thinking)
    _, (received,) = await answers([Say("ok")], ask(thinking=4096), wire=wire)
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
    _, (received,) = await answers([Say("ok")], wire=GoogleWire(bearer=True))
    assert received.headers["authorization"] == "Bearer key-0123456789"
    assert "x-goog-api-key" not in received.headers
    _, (received,) = await answers([Say("ok")], key="ya29.a0AfB_byC0123456789")
    assert received.headers["authorization"] == "Bearer ya29.a0AfB_byC0123456789"
    _, (received,) = await answers([Say("ok")], key=None)
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
    _, (received,) = await answers([Say("ok")], ask(model=model, thinking=tokens), wire=wire, model=model)
    assert received.json["generationConfig"].get("thinkingConfig") == told


@pytest.mark.parametrize("streaming", [True, False])
async def test_signatures_and_calls_go_back_and_summaries_of_thinking_do_not(streaming: bool) -> None:
    wire = GoogleWire(streaming, WIRE.thinking)
    say = Say("Both.", [("search", {"q": "a"}), ("search", {"q": "b"})], reasoning="Hm.")
    (first,), _ = await answers([say], wire=wire)
    assert (first.text, first.thinking) == ("Both.", "Hm.")
    results = [ToolTurn(call.call_id, call.name, f"found {call.call_id}") for call in first.calls]
    request = ask(TASK, AssistantTurn(first.raw), *results, UserTurn("Hurry."))
    _, (received,) = await answers([Say("ok")], request, wire=wire)
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
    body = vertex.body(ask(TASK, AssistantTurn(raw), ToolTurn("a", "search", "found")))
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


def test_a_signature_in_a_part_without_a_text_goes_back() -> None:
    answer = grown(
        candidate({"text": "so"}), candidate({"text": "", "thoughtSignature": "c2Vh"}, {"text": ""}, finish="STOP")
    )
    assert answer.text == "so"
    assert WIRE.message(AssistantTurn(answer.raw))["parts"] == [
        {"text": "so"},
        {"text": "", "thoughtSignature": "c2Vh"},
    ]


# -- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
async def test_assembles_text_thinking_and_calls(streaming: bool) -> None:
    calls = [("search", {"q": "blue döor ✓"}), ("search", {"q": "second"}), ("search", {})]
    say = Say("I look for it.", calls, reasoning="Where could it be?")
    (completion,), _ = await answers([say], wire=GoogleWire(streaming, WIRE.thinking))
    assert (completion.text, completion.thinking) == (say.text, say.reasoning)
    assert [(call.name, call.args) for call in completion.calls] == calls
    assert [call.call_id for call in completion.calls] == ["fc1_0", "fc1_1", "fc1_2"]
    assert [part.get("text") for part in completion.raw["parts"]] == [say.reasoning, say.text, None, None, None]
    assert (completion.stop_reason, completion.notes, completion.request_id) == (
        "STOP",
        (),
        "resp1" if streaming else "req-1",
    )


async def test_pieces_are_told_as_they_arrive() -> None:
    say = Say("the words", [("search", {"q": "x"})], reasoning="the thinking")
    heard: list[Delta] = []
    with run_model_server([say]) as server:
        model = HttpModel("g", MODEL, server.base_url, None, ClientPool(), WIRE)
        async with model.clients, model.stream(ask()) as stream:
            async for delta in stream:
                heard.append(delta)
    assert "".join(delta.text for delta in heard) == "the words"
    assert "".join(delta.thinking for delta in heard) == "the thinking"
    assert "".join(delta.arguments for delta in heard) == '{"q":"x"}'
    assert sum(bool(delta.text) for delta in heard) > 1


def test_calls_without_an_id_get_one_that_no_other_answer_has() -> None:
    said = candidate({"functionCall": {"name": "search"}}, {"functionCall": {"name": "search", "args": None}})
    first, second = (grown({**said, "responseId": name}) for name in ("r1", "r2"))
    assert [call.call_id for call in first.calls] == ["r1_0", "r1_1"]
    assert [call.call_id for call in second.calls] == ["r2_0", "r2_1"]
    assert [call.args for call in first.calls] == [{}, {}]
    assert [part["functionCall"]["id"] for part in first.raw["parts"]] == ["r1_0", "r1_1"]


PRICE = find_price("google", "gemini-2.5-flash", base_url=None, overrides={})


@pytest.mark.parametrize(
    ("reported", "usage", "micros"),
    [
        # USD per million tokens: input 0.3, cached 0.03, output 2.5.
        (used(100, 20), Usage(input_tokens=100, output_tokens=20), 80),
        (used(9, 9, 34), Usage(input_tokens=9, output_tokens=43, thinking_tokens=34), 111),
        (
            used(859, 28, cachedContentTokenCount=594),
            Usage(input_tokens=265, cache_read_tokens=594, output_tokens=28),
            168,
        ),
        # What a tool of Google's showed the model is billed as prompt.
        (
            used(15, 40, 257, toolUsePromptTokenCount=288),
            Usage(input_tokens=303, output_tokens=297, thinking_tokens=257),
            834,
        ),
        (used(15, 0, 2), Usage(input_tokens=15, output_tokens=2, thinking_tokens=2), 10),
    ],
)  # fmt: skip
async def test_usage_is_read_by_class_and_priced(reported: dict[str, Any], usage: Usage, micros: int) -> None:
    said = {**candidate({"text": "words"}, finish="STOP"), "usageMetadata": reported}
    for step, streaming in ((events(said), True), (whole(said), False)):
        (completion,), _ = await answers([step], wire=GoogleWire(streaming))
        assert (completion.usage, completion.notes) == (usage, ())
        assert cost_micros(PRICE, usage) == micros


async def test_the_last_usage_of_a_stream_counts_and_no_count_falls() -> None:
    step = events(
        {**candidate({"text": "a"}), "usageMetadata": used(59, 8, 30)},
        {**candidate({"text": "b"}), "usageMetadata": used(59, 21, 30)},
        {**candidate({"text": ""}, finish="STOP"), "usageMetadata": used(128, 21, 30)},
    )
    (completion,), _ = await answers([step])
    assert completion.usage == Usage(input_tokens=128, output_tokens=51, thinking_tokens=30)


@pytest.mark.parametrize(
    "reported",
    [None, {}, {"promptTokenCount": "9"}, {"candidatesTokenCount": 9}, {"promptTokenCount": True}, used(9, -1)],
)
async def test_impossible_figures_are_not_taken(reported: Any) -> None:
    (completion,), _ = await answers(
        [whole({**candidate({"text": "words"}, finish="STOP"), "usageMetadata": reported})]
    )
    assert completion.usage is None
    assert completion.notes[-1].startswith(("usage not counted", "the provider reported no usage"))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("STOP", "STOP"),
        ("MAX_TOKENS", "max_tokens"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("SPII", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("OTHER", "OTHER"),
    ],
)
async def test_an_end_is_told_in_the_words_of_a_run(finish: str, reason: str, streaming: bool) -> None:
    (completion,), _ = await answers([Say("I", finish_reason=finish)], wire=GoogleWire(streaming, WIRE.thinking))
    assert (completion.text, completion.stop_reason) == ("I", reason)


def test_the_words_of_an_end_are_noted_unless_it_is_an_ordinary_one() -> None:
    plain = grown(candidate({"functionCall": {"name": "search"}}, finish="STOP", finishMessage="There are calls."))
    assert plain.notes == ("the provider reported no usage",)
    cut = grown(candidate({"text": "x"}, finish="LANGUAGE", finishMessage="Not in this language."))
    assert cut.notes[0] == "stopped: LANGUAGE: Not in this language."


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_refused_prompt_is_a_refusal_and_says_why(streaming: bool) -> None:
    say = Say(finish_reason=google_format.BLOCKED)
    (completion,), _ = await answers([say], wire=GoogleWire(streaming, WIRE.thinking))
    assert (completion.text, completion.stop_reason) == ("", "content_filter")
    assert completion.notes == ("the prompt was refused: PROHIBITED_CONTENT",)
    assert completion.usage is not None


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_call_that_google_did_not_take_is_rejected_with_its_words_and_usage(streaming: bool) -> None:
    words = "Malformed function call: print(search(q='a'"
    said = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": words}]}
    said["usageMetadata"] = used(90, 5, 3)  # type: ignore[assignment]
    with pytest.raises(ModelError, match="Malformed function call") as caught:
        await answers([events(said) if streaming else whole(said)], wire=GoogleWire(streaming, WIRE.thinking))
    assert (caught.value.kind, caught.value.written) == ("rejected", words)
    assert caught.value.usage == Usage(input_tokens=90, output_tokens=8, thinking_tokens=3)
    assert may_have_been_billed(caught.value)


async def test_an_answer_that_comes_as_a_list_of_events_is_read() -> None:
    """Google sends one where `alt=sse` gets lost on the way."""
    said = [
        candidate({"text": "Hm.", "thought": True}),
        candidate({"text": "I loo"}),
        candidate({"text": "k."}, {"functionCall": {"id": "a", "name": "search", "args": {"q": "x"}}}, finish="STOP"),
    ]
    (whole_list, events_list), _ = await answers(
        [
            Raw([json.dumps([*said[:2], {**said[2], "usageMetadata": used(90, 5)}]).encode()], kind)
            for kind in (JSON, EVENTS)
        ],
        ask(),
        ask(),
    )
    assert whole_list == events_list
    assert (whole_list.thinking, whole_list.text, whole_list.stop_reason) == ("Hm.", "I look.", "STOP")
    assert [call.args for call in whole_list.calls] == [{"q": "x"}]
    assert whole_list.usage == Usage(input_tokens=90, output_tokens=5)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_call_that_lacks_its_signature_is_told_as_one(streaming: bool) -> None:
    """So the run goes on without its earlier thinking, whose place the documented stand-in takes."""
    said = {"candidates": [{"finishReason": "MISSING_THOUGHT_SIGNATURE"}], "usageMetadata": used(90, 0, 3)}
    with pytest.raises(ModelError) as caught:
        await answers([events(said) if streaming else whole(said)], wire=GoogleWire(streaming, WIRE.thinking))
    assert (caught.value.kind, caught.value.retryable) == ("thinking", True)
    assert may_have_been_billed(caught.value) and caught.value.usage is not None


# -- what goes wrong --------------------------------------------------------------------------------------------------


def google_error(code: int, status: str, message: str, *details: Mapping[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36.5s"}
QUOTA = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaMetric": "requests"}]}
NO_KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
ERRORS: dict[str, tuple[int, Any, str, float | None, bool]] = {
    "wrong key": (400, google_error(400, "INVALID_ARGUMENT", "API key not valid.", NO_KEY), "auth", None, False),
    "no right": (403, google_error(403, "PERMISSION_DENIED", "No access."), "auth", None, False),
    "no model": (404, google_error(404, "NOT_FOUND", "models/x is not found."), "bad_request", None, False),
    "bad field": (400, google_error(400, "INVALID_ARGUMENT", "Unknown name."), "bad_request", None, False),
    "too long": (
        400,
        google_error(400, "INVALID_ARGUMENT", "The input token count (2000000) exceeds the maximum number of tokens"),
        "bad_request",
        None,
        False,
    ),
    "quota": (429, google_error(429, "RESOURCE_EXHAUSTED", "Quota exceeded.", QUOTA, RETRY), "rate_limit", 36.5, True),
    "quota in a list": (429, [google_error(429, "RESOURCE_EXHAUSTED", "Quota.", RETRY)], "rate_limit", 36.5, True),
    "quota in words": (
        429,
        google_error(429, "RESOURCE_EXHAUSTED", "Quota exceeded. Please retry in 27.37s."),
        "rate_limit",
        27.37,
        True,
    ),
    "quota without a time": (429, google_error(429, "RESOURCE_EXHAUSTED", "Exhausted."), "rate_limit", None, True),
    "its fault": (500, google_error(500, "INTERNAL", "Internal error."), "overloaded", None, True),
    "busy": (503, google_error(503, "UNAVAILABLE", "The model is overloaded."), "overloaded", None, True),
    "too slow": (504, google_error(504, "DEADLINE_EXCEEDED", "Deadline."), "overloaded", None, True),
    "signature": (
        400,
        google_error(400, "INVALID_ARGUMENT", "Function call is missing a thought_signature in functionCall parts."),
        "thinking",
        None,
        True,
    ),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_each_error_has_its_kind_and_time(name: str) -> None:
    status, body, kind, again_s, retryable = ERRORS[name]
    with pytest.raises(ModelError) as caught:
        await answers([Fail(status, body)])
    error = caught.value
    assert (error.kind, error.again_after_s, error.retryable) == (kind, again_s, retryable)
    assert not may_have_been_billed(error)
    assert error.what_to_do
    assert "key-0123456789" not in str(error)


@pytest.mark.parametrize("name", ["quota", "busy", "its fault", "bad field"])
async def test_an_error_in_the_middle_of_a_stream_may_have_been_billed(name: str) -> None:
    _, body, kind, again_s, _ = ERRORS[name]
    with pytest.raises(ModelError) as caught:
        await answers([events({**candidate({"text": "half"}), "usageMetadata": used(90, 2)}, body)])
    assert (caught.value.kind, caught.value.again_after_s) == (kind, again_s)
    assert may_have_been_billed(caught.value)


BROKEN = {
    "no finish reason": (events(candidate({"text": "half a sent"})), "ended without a finish reason"),
    "nothing at all": (Raw([], EVENTS), "ended without a finish reason"),
    "half an event": (Raw([b'data: {"candidates": [{"content"'], EVENTS), "not JSON"),
    "half a body": (Raw([b'{"candidates": ['], JSON), "half a body"),
    "another format": (whole({"choices": []}), "JSON without `candidates`"),
    "an empty list": (whole({"candidates": []}), "JSON without `candidates`"),
    "a list of nothing": (Raw([b"[]"], JSON), "JSON without `candidates`"),
    "a list of something else": (Raw([b'[{"choices": []}]'], JSON), "JSON without `candidates`"),
    "half a list": (Raw([b'[{"candidates": [{"content": {"parts": [{"text": "a"}]}}]},'], JSON), "half a body"),
    "a list without an end": (Raw([json.dumps([candidate({"text": "half"})]).encode()], JSON), "finish reason"),
    "a list with an error": (
        Raw(
            [json.dumps([candidate({"text": "half"}), google_error(503, "UNAVAILABLE", "Overloaded.")]).encode()], JSON
        ),
        "Overloaded",
    ),
    "a page": (Raw([b"<html>Welcome"], "text/html"), "a web page"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_answer_is_an_error_that_may_have_been_billed(name: str) -> None:
    step, words = BROKEN[name]
    with pytest.raises(ModelError, match=words) as caught:
        await answers([step])
    assert may_have_been_billed(caught.value)


async def test_a_stream_that_breaks_after_its_end_is_an_answer() -> None:
    said = {**candidate({"text": "all"}, finish="STOP"), "usageMetadata": used(90, 5)}
    broken = Raw([f"data: {json.dumps(said)}\n\n".encode()], EVENTS, chunked=True, cut=True)
    (completion,), _ = await answers([broken])
    assert completion.text == "all"
    assert completion.usage == Usage(input_tokens=90, output_tokens=5)


async def test_leaving_in_the_middle_of_a_stream_closes_the_connection() -> None:
    gate = Gate()
    begun = [f"data: {json.dumps(candidate({'text': 'half'}))}\n\n".encode()]
    with anyio.fail_after(20), run_model_server([Raw(begun, EVENTS, chunked=True, stall=gate)]) as server:
        async with ClientPool() as clients:
            model = HttpModel("google", MODEL, server.base_url, None, clients, WIRE)
            async with model.stream(ask()) as stream:
                async for delta in stream:
                    if delta.text:
                        break
        assert await anyio.to_thread.run_sync(gate.client_left.wait, 10)


async def test_a_stream_split_into_single_bytes_gives_the_same_answer() -> None:
    say = Say("Grüße, 世界 ✓", [("search", {"q": "blüe"})], reasoning="Hmm… ✓")
    stream = b"".join(google_format.events(say, {"contents": [{}]}))
    (plain, split), _ = await answers(
        [Raw([stream], EVENTS), Raw([bytes([byte]) for byte in stream], EVENTS, chunked=True)], ask(), ask()
    )
    assert split == plain and plain.calls[0].args == {"q": "blüe"}


def test_too_many_calls_are_let_go_of() -> None:
    answer = GoogleAnswer()
    for number in range(20 * MOST_CALLS):
        answer.add(candidate({"functionCall": {"name": "search", "args": {"n": number}}}))
    assert len(answer._parts) < 10 * MOST_CALLS
    done = answer.complete(request_id=None, sent_bytes=0)
    assert [call.args for call in done.calls] == [{"n": number} for number in range(MOST_CALLS)]
    assert f"kept the first {MOST_CALLS} of {20 * MOST_CALLS:,} tool calls" in done.notes


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "\ud800", "{}", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
PART = st.fixed_dictionaries(
    {},
    optional={
        "functionCall": st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "name", "args"), ODD)) | ODD,
        **dict.fromkeys(("text", "thought", "thoughtSignature", "inlineData", "executableCode"), ODD),
    },
)
CANDIDATE = st.fixed_dictionaries(
    {},
    optional={
        "content": st.fixed_dictionaries({"parts": st.lists(PART | ODD, max_size=3) | ODD}) | ODD,
        "finishReason": st.sampled_from(["STOP", "SAFETY", "MALFORMED_FUNCTION_CALL"]) | ODD,
        "finishMessage": ODD,
    },
)
EVENT = st.fixed_dictionaries(
    {},
    optional={
        "candidates": st.lists(CANDIDATE | ODD, max_size=2) | ODD,
        "promptFeedback": st.fixed_dictionaries({"blockReason": ODD}) | ODD,
        "usageMetadata": st.dictionaries(
            st.sampled_from(["promptTokenCount", "candidatesTokenCount", "totalTokenCount"]), ODD, max_size=3
        )
        | ODD,
        "responseId": ODD,
        "error": ODD,
    },
)


@pytest.mark.slow
@given(st.lists(EVENT, max_size=8))
def test_whatever_comes_can_be_stored_and_sent_back(pieces: list[dict[str, Any]]) -> None:
    for piece in pieces:
        WIRE.fault(piece)
        WIRE.is_answer(piece)
    answer = grown(*pieces)
    stored = json.dumps(answer.raw, ensure_ascii=False, allow_nan=False)
    assert json.loads(stored.encode()) == answer.raw
    words = (answer.text, answer.thinking, answer.stop_reason, answer.request_id, *answer.notes)
    assert all((word or "").encode() is not None for word in words)
    asked = [part["functionCall"]["id"] for part in answer.raw["parts"] if "functionCall" in part]
    assert asked == [call.call_id for call in answer.calls] and len(set(asked)) == len(asked)
    results = tuple(ToolTurn(call.call_id, call.name, "x") for call in answer.calls)
    json_text.encode(WIRE.body(ask(TASK, AssistantTurn(answer.raw), *results, UserTurn("y"))))


# -- the bound of a call ----------------------------------------------------------------------------------------------


def test_a_bound_has_a_token_for_each_byte_and_its_answer_includes_thinking() -> None:
    signed = {"functionCall": {"id": "a", "name": "search", "args": {"q": "<>" * 40}}, "thoughtSignature": "x" * 400}
    raw = {"role": "model", "parts": [{"text": "a thought", "thought": True}, signed]}
    turns: Sequence[Turn] = (TASK, AssistantTurn(raw), ToolTurn("a", "search", "found\n" * 50))
    request = ask(*turns, thinking=4096)
    counted = bound(request, WIRE.message, None)
    body = json_text.encode(WIRE.body(request))
    assert counted.prompt_tokens > len(body) + 400, "a template may escape the arguments of calls"
    assert counted.output_tokens == request.max_output == WIRE.body(request)["generationConfig"]["maxOutputTokens"]
    known = ReportedUsage((Segment(90, (0,)),), {1: 300})
    assert bound(request, WIRE.message, known).prompt_tokens < counted.prompt_tokens


# -- a run ------------------------------------------------------------------------------------------------------------

CONFIG = f"""
[providers.custom]
wire = "google"
[prices."{MODEL}"]
input = 2.0
output = 10.0
cache_read = 0.1
cache_write = 2.5
"""
ENV = {"AVA_MODEL": MODEL}


async def test_a_run_calls_tools_and_sends_the_same_bytes_after_a_kill(tmp_path: Path) -> None:
    gate = Gate()
    usage = used(9_000, 200, 300, cachedContentTokenCount=6_000)
    reads = Say("I read.", [("read_file", {"path": "0.md"})], reasoning="Where is it?", usage=usage)
    with run_model_server([reads, Say("lost", gate=gate), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, config=CONFIG, env=ENV, check=False) as lab:
            (lab.workspace / "0.md").write_text("twelve cents\n")
            run_id = await lab.start(extended_thinking=True)
            with anyio.fail_after(40):
                assert await anyio.to_thread.run_sync(gate.arrived.wait, 10)
        async with open_lab(tmp_path, server=server, config=CONFIG, env=ENV, check=False) as lab:
            run = await lab.ended(run_id)
            assert run.state == "success", run.stop_reason
            assert [fact.reason for fact in await lab.facts(run_id, RunClaimed)] == ["start", "takeover"]
            entries = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostUpdate)]
            assert entries[0].cost_micros == 3_000 * 2 + 6_000 * 0.1 + 500 * 10
            (first, *_) = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.turn]
            assert (first.text, first.stop_reason, first.request_id) == ("I read.", "STOP", "resp1")
        assert server.refused == []
        await check_requests(tmp_path / "data", server.requests)
        _, lost, again = server.requests
        assert again.body == lost.body
        assert again.path == f"/v1/models/{MODEL}:streamGenerateContent?alt=sse"
        called, result = again.json["contents"][-2:]
        assert called["parts"][-1]["thoughtSignature"] == google_format.SIGNATURE
        assert "twelve cents" in str(result["parts"][0]["functionResponse"]["response"])


async def test_a_run_goes_on_after_cuts_refusals_rejected_calls_and_lost_signatures(tmp_path: Path) -> None:
    malformed = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "print(read_file('0"}]}
    malformed["usageMetadata"] = used(9_000, 5)  # type: ignore[assignment]
    script: Script = [
        Say("I read it.", [("read_file", {"path": "0.md"})], reasoning="Where?"),
        Fail(400, google_error(400, "INVALID_ARGUMENT", "Thought signature is not valid.")),
        Say("I would rather not.", finish_reason="content_filter"),
        events(malformed),
        hand_over(),
    ]
    async with open_lab(tmp_path, script, config=CONFIG, env=ENV) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        run = await lab.ended(await lab.start(extended_thinking=True))
        assert run.state == "success", run.stop_reason
        assert lab.server.refused == []
        sent = [request.json["contents"] for request in lab.server.requests]
    assert google_format.SIGNATURE in str(sent[1]), "as it came"
    assert google_format.SIGNATURE not in str(sent[2]) and WITHOUT_SIGNATURE in str(sent[2])
    assert "filter" in str(sent[3][-1])
    assert "print(read_file(" in str(sent[4][-1])


def ask(*turns: Turn, model: str = MODEL, thinking: int = 0) -> Request:
    return Request(model, "You are terse.", (SEARCH,), turns or (TASK,), 8192, thinking)


async def answers(
    script: Script, *requests: Request, wire: GoogleWire = WIRE, key: str | None = "key-0123456789", model: str = MODEL
) -> tuple[list[Completion], list[Received]]:
    """Ask a server that plays the script, and return its answers and what it received."""
    found: list[Completion] = []
    with anyio.fail_after(40), run_model_server(script) as server:
        async with ClientPool() as clients:
            http = HttpModel("google", model, server.base_url, key, clients, wire)
            for request in requests or (ask(model=model),):
                async with http.stream(request) as stream:
                    async for _ in stream:
                        pass
                found.append(stream.completion)
        assert server.refused == []
        return found, server.requests


def grown(*said: Mapping[str, Any]) -> Completion:
    answer = GoogleAnswer()
    for event in said:
        answer.add(event)
    return answer.complete(request_id=None, sent_bytes=0)
