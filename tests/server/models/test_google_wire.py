"""Google's wire: what is sent, what comes back well and badly, the bound of a call, and runs over it."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_server import EVENTS, JSON, Raw, Say, run_model_server
from support.models import google_format
from support.models.google_wire import (
    MODEL,
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
from ava_server.models.base import AssistantTurn, Completion, Delta, ToolTurn, UserTurn
from ava_server.models.errors import may_have_been_billed
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.prices import cost_micros, find_price
from ava_server.models.wires.google import GoogleAnswer, GoogleWire
from ava_server.models.wires.wire import MOST_CALLS


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


def test_a_part_of_a_call_without_name_and_args_is_none() -> None:
    done = grown({"candidates": [{"content": {"parts": [{"text": "4"}, {"functionCall": {}}]}}]})
    assert (done.text, done.calls, done.raw["parts"]) == ("4", (), [{"text": "4"}])


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


# -- a run ------------------------------------------------------------------------------------------------------------


def grown(*said: Mapping[str, Any]) -> Completion:
    answer = GoogleAnswer()
    for event in said:
        answer.add(event)
    return answer.complete(request_id=None, sent_bytes=0)
