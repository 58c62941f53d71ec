"""Google's wire: what is sent, what comes back well and badly, the bound of a call, and runs over it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_server import EVENTS, JSON, Raw, Say, run_model_server
from support.models import google_format
from support.models.google_wire import (
    MODEL,
    SEARCH,
    TASK,
    WIRE,
    ask_google,
    candidate,
    google_events,
    read_answers,
    usage_of,
    whole_event,
)

from ava_audit.events import Usage
from ava_server.core.errors import ModelError
from ava_server.models import json_text
from ava_server.models.base import AssistantTurn, Completion, Delta, ReportedUsage, Segment, ToolTurn, Turn, UserTurn
from ava_server.models.clients import ClientPool
from ava_server.models.errors import may_have_been_billed
from ava_server.models.http_model import HttpModel
from ava_server.models.prices import cost_micros, find_price
from ava_server.models.selection import thinking_of
from ava_server.models.tokens import bound
from ava_server.models.wires.base import MOST_CALLS
from ava_server.models.wires.google import WITHOUT_SIGNATURE, GoogleAnswer, GoogleWire

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
    (completion,), _ = await read_answers([say], wire=GoogleWire(streaming, WIRE.thinking))
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
        async with model.clients, model.stream(ask_google()) as stream:
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
        (usage_of(100, 20), Usage(input_tokens=100, output_tokens=20), 80),
        (usage_of(9, 9, 34), Usage(input_tokens=9, output_tokens=43, thinking_tokens=34), 111),
        (
            usage_of(859, 28, cachedContentTokenCount=594),
            Usage(input_tokens=265, cache_read_tokens=594, output_tokens=28),
            168,
        ),
        # What a tool of Google's showed the model is billed as prompt.
        (
            usage_of(15, 40, 257, toolUsePromptTokenCount=288),
            Usage(input_tokens=303, output_tokens=297, thinking_tokens=257),
            834,
        ),
        (usage_of(15, 0, 2), Usage(input_tokens=15, output_tokens=2, thinking_tokens=2), 10),
    ],
)  # fmt: skip
async def test_usage_is_read_by_class_and_priced(reported: dict[str, Any], usage: Usage, micros: int) -> None:
    said = {**candidate({"text": "words"}, finish="STOP"), "usageMetadata": reported}
    for step, streaming in ((google_events(said), True), (whole_event(said), False)):
        (completion,), _ = await read_answers([step], wire=GoogleWire(streaming))
        assert (completion.usage, completion.notes) == (usage, ())
        assert cost_micros(PRICE, usage) == micros


async def test_the_last_usage_of_a_stream_counts_and_no_count_falls() -> None:
    step = google_events(
        {**candidate({"text": "a"}), "usageMetadata": usage_of(59, 8, 30)},
        {**candidate({"text": "b"}), "usageMetadata": usage_of(59, 21, 30)},
        {**candidate({"text": ""}, finish="STOP"), "usageMetadata": usage_of(128, 21, 30)},
    )
    (completion,), _ = await read_answers([step])
    assert completion.usage == Usage(input_tokens=128, output_tokens=51, thinking_tokens=30)


@pytest.mark.parametrize(
    "reported",
    [None, {}, {"promptTokenCount": "9"}, {"candidatesTokenCount": 9}, {"promptTokenCount": True}, usage_of(9, -1)],
)
async def test_impossible_figures_are_not_taken(reported: Any) -> None:
    (completion,), _ = await read_answers(
        [whole_event({**candidate({"text": "words"}, finish="STOP"), "usageMetadata": reported})]
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
    (completion,), _ = await read_answers([Say("I", finish_reason=finish)], wire=GoogleWire(streaming, WIRE.thinking))
    assert (completion.text, completion.stop_reason) == ("I", reason)


def test_the_words_of_an_end_are_noted_unless_it_is_an_ordinary_one() -> None:
    plain = grown(candidate({"functionCall": {"name": "search"}}, finish="STOP", finishMessage="There are calls."))
    assert plain.notes == ("the provider reported no usage",)
    cut = grown(candidate({"text": "x"}, finish="LANGUAGE", finishMessage="Not in this language."))
    assert cut.notes[0] == "stopped: LANGUAGE: Not in this language."


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_refused_prompt_is_a_refusal_and_says_why(streaming: bool) -> None:
    say = Say(finish_reason=google_format.BLOCKED)
    (completion,), _ = await read_answers([say], wire=GoogleWire(streaming, WIRE.thinking))
    assert (completion.text, completion.stop_reason) == ("", "content_filter")
    assert completion.notes == ("the prompt was refused: PROHIBITED_CONTENT",)
    assert completion.usage is not None


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_call_that_google_did_not_take_is_rejected_with_its_words_and_usage(streaming: bool) -> None:
    words = "Malformed function call: print(search(q='a'"
    said = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": words}]}
    said["usageMetadata"] = usage_of(90, 5, 3)  # type: ignore[assignment]
    with pytest.raises(ModelError, match="Malformed function call") as caught:
        await read_answers(
            [google_events(said) if streaming else whole_event(said)], wire=GoogleWire(streaming, WIRE.thinking)
        )
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
    (whole_list, events_list), _ = await read_answers(
        [
            Raw([json.dumps([*said[:2], {**said[2], "usageMetadata": usage_of(90, 5)}]).encode()], kind)
            for kind in (JSON, EVENTS)
        ],
        ask_google(),
        ask_google(),
    )
    assert whole_list == events_list
    assert (whole_list.thinking, whole_list.text, whole_list.stop_reason) == ("Hm.", "I look.", "STOP")
    assert [call.args for call in whole_list.calls] == [{"q": "x"}]
    assert whole_list.usage == Usage(input_tokens=90, output_tokens=5)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_call_that_lacks_its_signature_is_told_as_one(streaming: bool) -> None:
    """So the run goes on without its earlier thinking, whose place the documented stand-in takes."""
    said = {"candidates": [{"finishReason": "MISSING_THOUGHT_SIGNATURE"}], "usageMetadata": usage_of(90, 0, 3)}
    with pytest.raises(ModelError) as caught:
        await read_answers(
            [google_events(said) if streaming else whole_event(said)], wire=GoogleWire(streaming, WIRE.thinking)
        )
    assert (caught.value.kind, caught.value.retryable) == ("thinking", True)
    assert may_have_been_billed(caught.value) and caught.value.usage is not None


# -- what goes wrong --------------------------------------------------------------------------------------------------


async def test_a_stream_split_into_single_bytes_gives_the_same_answer() -> None:
    say = Say("Grüße, 世界 ✓", [("search", {"q": "blüe"})], reasoning="Hmm… ✓")
    stream = b"".join(google_format.events(say, {"contents": [{}]}))
    (plain, split), _ = await read_answers(
        [Raw([stream], EVENTS), Raw([bytes([byte]) for byte in stream], EVENTS, chunked=True)],
        ask_google(),
        ask_google(),
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
    json_text.encode(WIRE.body(ask_google(TASK, AssistantTurn(answer.raw), *results, UserTurn("y"))))


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


# -- a run ------------------------------------------------------------------------------------------------------------


def grown(*said: Mapping[str, Any]) -> Completion:
    answer = GoogleAnswer()
    for event in said:
        answer.add(event)
    return answer.complete(request_id=None, sent_bytes=0)
