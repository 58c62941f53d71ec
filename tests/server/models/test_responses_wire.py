import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_server import EVENTS, JSON, Fail, Raw, Say, run_model_server
from support.models import responses_format
from support.models.responses_wire import (
    MODEL,
    TASK,
    WIRE,
    ask_responses,
    call_item,
    done_event,
    item_of,
    message_item,
    read_answers,
)

from ava_audit.events import Usage
from ava_server.core.errors import ModelError
from ava_server.models import json_text
from ava_server.models.base import AssistantTurn, Completion, Delta, ToolTurn, UserTurn
from ava_server.models.errors import may_have_been_billed
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.prices import cost_micros, find_price
from ava_server.models.wires.responses import ResponsesAnswer, ResponsesWire
from ava_server.models.wires.stream import EventReader
from ava_server.models.wires.wire import MOST_CALLS

SUMMED = {"model": MODEL, "input": [], "reasoning": {"summary": "auto"}}
"""A request that asks for a summary of the model's thinking, which ours does not."""
PLAIN = {"input_tokens": 100, "output_tokens": 20}


# -- what is sent -----------------------------------------------------------------------------------------------------


# -- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
async def test_assembles_text_and_calls_from_their_events(streaming: bool) -> None:
    calls = [("search", {"q": "blue döor ✓"}), ("search", {"q": "second"}), ("search", {})]
    say = Say("I look for it.", calls, usage=PLAIN)
    (completion,), (received,) = await read_answers([say], wire=ResponsesWire(streaming, WIRE.thinking))
    assert completion.text == "I look for it."
    assert [(call.name, call.args) for call in completion.calls] == calls
    assert [call.call_id for call in completion.calls] == ["call_1_0", "call_1_1", "call_1_2"]
    assert completion.usage == Usage(input_tokens=100, output_tokens=20)
    assert (completion.stop_reason, completion.notes) == ("completed", ())
    assert completion.request_id == ("resp_1" if streaming else "req-1")
    assert received.json["stream"] is streaming


async def test_reports_thinking_text_and_arguments_to_the_activity_line_as_they_arrive() -> None:
    say = Say("the words", [("search", {"q": "the words"})], reasoning="the thinking", usage=PLAIN)
    events = responses_format.events(say, SUMMED)
    heard: list[Delta] = []
    with run_model_server([Raw(events, EVENTS, chunked=True)]) as server:
        async with (
            ClientPool() as clients,
            HttpModel("o", "m", server.base_url, None, clients, WIRE).stream(ask_responses()) as one,
        ):
            async for delta in one:
                heard.append(delta)
    assert "".join(delta.text for delta in heard) == "the words"
    assert "".join(delta.thinking for delta in heard) == "the thinking" == one.completion.thinking
    assert "".join(delta.arguments for delta in heard) == '{"q": "the words"}' == one.completion.calls[0].raw_args


PRICE = find_price("openai", MODEL, base_url=None, overrides={})
DETAILS = {"input_tokens_details": {"cached_tokens": 9_000, "cache_write_tokens": 2_000}}


@pytest.mark.parametrize(
    ("reported", "usage", "micros"),
    [
        # USD per million tokens: input 1, cached 0.05, written 1.25, output 5; above 272,000 2, 0.1, 2.5 and 7.5.
        (PLAIN, Usage(input_tokens=100, output_tokens=20), 200),
        ({**PLAIN, "input_tokens_details": None}, Usage(input_tokens=100, output_tokens=20), 200),
        (
            {"input_tokens": 12_345, "output_tokens": 678, "total_tokens": 13_023, **DETAILS},
            Usage(input_tokens=1_345, cache_read_tokens=9_000, cache_write_tokens=2_000, output_tokens=678),
            7_685,
        ),
        (
            {"input_tokens": 1_000, "output_tokens": 900, "output_tokens_details": {"reasoning_tokens": 832}},
            Usage(input_tokens=1_000, output_tokens=900, thinking_tokens=832),
            5_500,
        ),
        (
            {"input_tokens": 300_000, "output_tokens": 1_001, "input_tokens_details": {"cached_tokens": 299_999}},
            Usage(input_tokens=1, cache_read_tokens=299_999, output_tokens=1_001),
            37_510,
        ),
    ],
)  # fmt: skip
async def test_reads_usage_by_class_and_prices_it_by_the_price_table(
    reported: dict[str, Any], usage: Usage, micros: int
) -> None:
    for streaming in (True, False):
        (completion,), _ = await read_answers(
            [Say("words", usage=reported)], wire=ResponsesWire(streaming, WIRE.thinking)
        )
        assert completion.usage == usage
        assert completion.notes == ()
        assert cost_micros(PRICE, usage) == micros


@pytest.mark.parametrize(
    "reported", [None, {"input_tokens": "many", "output_tokens": 1}, {"output_tokens": 20}, {"prompt_tokens": True}]
)
async def test_ignores_impossible_figures(reported: dict[str, Any] | None) -> None:
    if reported == {"prompt_tokens": True}:
        reported = {"input_tokens": True, "output_tokens": 1}
    (completion,), _ = await read_answers([Say("words", usage=reported)])
    assert completion.usage is None
    assert completion.notes[-1].startswith(("usage not counted", "the provider reported no usage"))


async def test_accepts_smaller_figures_for_a_prompt_without_its_earlier_thinking() -> None:
    thought = {"type": "reasoning", "encrypted_content": "g" * 9_999, "summary": []}
    raw = {"role": "assistant", "output": [thought, message_item("so")]}
    (completion,), (received,) = await read_answers(
        [Say("ok", usage=PLAIN)], ask_responses(TASK, AssistantTurn(raw), UserTurn("x"))
    )
    assert len(received.body) // 16 > 100, "as a whole it would be too long for 100 tokens"
    assert completion.usage == Usage(input_tokens=100, output_tokens=20)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("finish", "reason"),
    [("length", "max_output_tokens"), ("content_filter", "content_filter"), ("refusal", "refusal")],
)
async def test_an_incomplete_answer_gives_the_providers_reason(finish: str, reason: str, streaming: bool) -> None:
    say = Say("I cannot", [("search", '{"q": "bl')] if finish == "length" else (), finish_reason=finish)
    (completion,), _ = await read_answers([say], wire=ResponsesWire(streaming, WIRE.thinking))
    assert (completion.text, completion.stop_reason) == ("I cannot", reason)
    assert [(call.args, call.raw_args) for call in completion.calls] == [(None, '{"q": "bl')][: len(say.calls)]
    sent = WIRE.body(ask_responses(TASK, AssistantTurn(completion.raw)))["input"][1]
    assert sent["content"] == completion.raw["output"][0]["content"]


FAILED = {"id": "resp_1", "status": "failed", "output": [], "error": {"code": "server_error", "message": "It broke."}}
FAULTS = [
    {"type": "response.failed", "response": FAILED},
    {"type": "error", "code": "server_error", "message": "It broke.", "param": None, "sequence_number": 3},
    {"type": "error", "error": {"type": "server_error", "message": "It broke."}},
    {"error": {"type": "server_error", "message": "It broke."}},
]


async def test_a_failed_response_without_details_is_an_error_too() -> None:
    for response in ({"id": "resp_1"}, {"status": "cancelled", "error": None}):
        failed = f"data: {json.dumps({'type': 'response.failed', 'response': response})}\n\n".encode()
        with pytest.raises(ModelError, match=r"the response is (failed|cancelled)"):
            await read_answers([Raw([failed], EVENTS)])


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_error_event_in_the_stream_may_have_been_billed(fault: dict[str, Any]) -> None:
    begun = responses_format.events(Say("half a sent"), {"model": "m", "input": []})[:5]
    pieces = [*begun, f"event: x\ndata: {json.dumps(fault)}\n\n".encode()]
    with pytest.raises(ModelError, match=r"It broke \[server_error\]\.") as caught:
        await read_answers([Raw(pieces, EVENTS)])
    assert caught.value.answered and may_have_been_billed(caught.value)
    assert (caught.value.kind, caught.value.retryable) == ("overloaded", True)


@pytest.mark.parametrize("fault", [FAILED, {**FAILED, "error": None}, {"error": {"message": "It broke."}}])
async def test_an_error_in_place_of_a_whole_answer_is_an_error(fault: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"It broke|the response is failed"):
        await read_answers([Raw([json.dumps(fault).encode()], JSON)])


async def test_distinguishes_json_that_is_not_a_response() -> None:
    with pytest.raises(ModelError, match="JSON without `output`") as caught:
        await read_answers([Raw([b'{"choices": []}'], JSON)])
    assert caught.value.what_to_do == "Check that the endpoint speaks OpenAI Responses."


async def test_reports_an_api_rejection_in_its_own_words() -> None:
    with pytest.raises(ModelError, match="'none' is not supported") as caught:
        await read_answers([Say("x")], ask_responses(model="gpt-6.1-sol"))
    assert not caught.value.answered
    with pytest.raises(ModelError, match="must be verified"):
        await read_answers([Fail(400, {"error": {"message": "Your organization must be verified."}})])


async def test_a_stream_that_ends_before_its_last_event_is_a_bad_answer() -> None:
    events = responses_format.events(Say("words", usage=PLAIN), {"model": "m", "input": []})
    for count in (1, 5, len(events) - 1):
        with pytest.raises(ModelError, match="ended without a finish reason"):
            await read_answers([Raw(events[:count], EVENTS)])
    (completion,), _ = await read_answers([Raw([*events, b"data: {not JSON\n\n"], EVENTS)])
    assert (completion.text, completion.notes) == ("words", ()), "what follows the last event is not looked at"


# -- servers that only nearly speak it --------------------------------------------------------------------------------


def events_of(say: Say, **more: Any) -> list[dict[str, Any]]:
    written = responses_format.events(say, {"model": "m", "input": [], **more})
    return [json.loads(one.partition(b"data: ")[2]) for one in written]


CALLS = Say("Both.", [("search", {"q": "a"}), ("search", {"q": "b"})], reasoning="Hm.", usage=PLAIN)
END: dict[str, Any] = {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": []}}


def without(kinds: str, **end: Any) -> list[dict[str, Any]]:
    """The events of an answer but for these, with other fields in the response at its end."""
    kept = [event for event in events_of(CALLS) if kinds not in event["type"]]
    kept[-1] = {**kept[-1], "response": {**kept[-1]["response"], **end}}
    return kept


def test_orders_items_by_index_whenever_they_arrive() -> None:
    plain = done_event(*events_of(CALLS))
    known = events_of(CALLS)
    by_item = [[event for event in known[2:-1] if event["output_index"] == index] for index in range(4)]
    in_turn = [event for step in zip_longest(*by_item) for event in step if event is not None]
    for events in (in_turn, [event for item in reversed(by_item) for event in item]):
        assert len(events) == len(known[2:-1])
        assert done_event(*known[:2], *events, known[-1]) == plain


def test_deltas_items_and_the_final_response_yield_the_same_answer() -> None:
    plain = done_event(*events_of(CALLS))
    assert done_event(*without("delta")) == plain
    assert done_event(*without("output_item.added")) == plain
    assert done_event(*without("output_item.done")) == plain
    assert done_event(*without("response.out", output=events_of(CALLS)[-1]["response"]["output"])) == plain
    assert done_event(*without("none of them", output=[])) == plain, "Codex's backend does not repeat the items"
    assert done_event(events_of(CALLS)[-1]["response"]) == plain


def test_deltas_alone_yield_an_answer_without_incomplete_thinking() -> None:
    answer = done_event(*without("output_item.done", output=[]))
    assert answer.text == "Both."
    assert [call.args for call in answer.calls] == [{"q": "a"}, {"q": "b"}]
    assert "encrypted_content" not in answer.raw["output"][0]
    bare = [
        {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "Hm."},
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "on"},
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "e"},
        {"type": "response.output_text.done", "output_index": 1, "content_index": 1, "text": ", two"},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"q"'},
        {"type": "response.function_call_arguments.done", "output_index": 2, "arguments": '{"q": 1}'},
        END,
    ]
    answer = done_event(*bare)
    assert (answer.thinking, answer.text, answer.stop_reason) == ("Hm.", "one, two", "completed")
    assert [(call.call_id, call.args) for call in answer.calls] == [("call_0", {"q": 1})]


def test_keeps_all_items_that_share_one_index() -> None:
    items = responses_format.items(CALLS, {"input": []})
    assert done_event(*(item_of(one) for one in items), END).raw["output"] == items
    assert (
        done_event(*(item_of(one, step=step) for one in items for step in ("added", "done")), END).raw["output"]
        == items
    )
    assert (
        done_event(item_of(items[0]), item_of(items[0]), item_of(items[0], step="added"), END).raw["output"]
        == items[:1]
    )


def test_converts_arguments_sent_as_an_object_to_text() -> None:
    answer = done_event(item_of(call_item("a", arguments={"q": "ü", "n": float("nan")})), END)
    assert answer.calls[0].args == {"q": "ü", "n": None}
    assert answer.raw["output"][0]["arguments"] == answer.calls[0].raw_args == '{"q":"ü","n":null}'


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ([None, ""], ["call_0", "call_1"]),
        (["a", "a"], ["a", "a_1"]),
        (["a_2", "a", "a"], ["a_2", "a", "a_2_2"]),
        (["a\ud800", "a\ud801"], ["a\ufffd", "a\ufffd_1"]),
    ],
)
def test_each_call_has_a_unique_id_in_the_items_too(given: list[str | None], ids: list[str]) -> None:
    answer = done_event(*(item_of(call_item(identity), index) for index, identity in enumerate(given)), END)
    assert [call.call_id for call in answer.calls] == ids
    assert [one["call_id"] for one in answer.raw["output"]] == ids
    assert done_event(item_of(call_item(None, id="fc_1")), END).calls[0].call_id == "fc_1"


def test_an_item_of_a_call_without_name_and_arguments_is_none() -> None:
    empty = {"type": "function_call", "call_id": "c", "name": "", "arguments": ""}
    growing = ResponsesAnswer()
    growing.add({"output": [empty], "status": "completed"})
    done = growing.complete(request_id=None, sent_bytes=0)
    assert (done.calls, done.raw["output"]) == ((), [])


def test_keeps_the_first_of_too_many_calls() -> None:
    answer = done_event(
        item_of(message_item("All.")),
        *(item_of(call_item(f"c{index}"), index + 1) for index in range(MOST_CALLS + 2)),
        END,
    )
    assert [call.call_id for call in answer.calls] == [f"c{index}" for index in range(MOST_CALLS)]
    assert len(answer.raw["output"]) == MOST_CALLS + 1
    assert f"kept the first {MOST_CALLS} of {MOST_CALLS + 2} tool calls" in answer.notes


def test_notes_earlier_thinking_that_was_not_shown_to_the_model() -> None:
    gone = [{"id": "rs_1", "type": "reasoning", "action": "removed", "reason": "prefix_mismatch"}]
    end = {**END, "response": {**END["response"], "input_transformations": gone}}
    assert done_event(end).notes[0] == "1 piece(s) of earlier thinking not shown to the model: prefix_mismatch"


def test_truncates_and_sanitizes_the_providers_own_text() -> None:
    answer = done_event({**END, "response": {"id": "\ud800" * 9_999, "status": "\udfff" * 9_999}})
    assert answer.request_id == answer.stop_reason == "\ufffd" * 200


def test_the_kept_plan_is_sent_as_a_message_of_the_model() -> None:
    raw = WIRE.assistant_message("1. Read.", done_event(item_of(call_item("a")), END).calls)
    sent = WIRE.body(ask_responses(TASK, AssistantTurn(raw), ToolTurn("a", "search", "x")))
    assert responses_format.why_refused(sent) is None
    assert sent["input"][1]["content"] == [{"type": "output_text", "text": "1. Read.", "annotations": []}]
    assert sent["input"][2] == call_item("a")


# -- whatever comes ---------------------------------------------------------------------------------------------------

ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["a", "\ud800", "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["output_text", "refusal", "reasoning_text", "summary_text", "new"]) | ODD},
    optional={"text": ODD, "refusal": ODD, "annotations": ODD},
)
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "reasoning", "function_call", "web_search_call"]) | ODD},
    optional={
        "content": st.lists(PART, max_size=2) | ODD,
        "summary": st.lists(PART, max_size=2) | ODD,
        **dict.fromkeys(("id", "call_id", "name", "arguments", "encrypted_content", "status", "role"), ODD),
    },
)
USAGE = st.dictionaries(st.sampled_from(["input_tokens", "output_tokens", "input_tokens_details"]), ODD, max_size=3)
RESPONSE = st.fixed_dictionaries(
    {},
    optional={
        "output": st.lists(ITEM | ODD, max_size=3) | ODD,
        "usage": USAGE | ODD,
        "input_transformations": st.lists(ODD | ITEM, max_size=2) | ODD,
        **dict.fromkeys(("id", "status", "error", "incomplete_details"), ODD),
    },
)
KINDS = (
    "created", "output_item.added", "output_item.done", "output_text.delta", "output_text.done", "refusal.delta",
    "reasoning_text.delta", "reasoning_summary_text.delta", "reasoning_summary_text.done", "new.delta", "completed",
    "function_call_arguments.delta", "function_call_arguments.done", "content_part.done", "incomplete", "failed",
)  # fmt: skip
EVENT = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS).map(lambda kind: f"response.{kind}") | ODD},
    optional={
        "response": RESPONSE | ODD,
        "item": ITEM | ODD,
        **dict.fromkeys(("output_index", "content_index", "summary_index"), st.integers(-1, 3) | ODD),
        **dict.fromkeys(("delta", "text", "refusal", "arguments", "output"), ODD),
    },
)


@pytest.mark.slow
@given(st.lists(EVENT | RESPONSE, max_size=12))
def test_any_input_yields_an_answer_that_can_be_stored_and_sent_back(pieces: list[dict[str, Any]]) -> None:
    for piece in pieces:
        WIRE.fault(piece)
        WIRE.is_answer(piece)
    answer = done_event(*pieces)
    stored = json.dumps(answer.raw, ensure_ascii=False, allow_nan=False)
    assert json.loads(stored.encode()) == answer.raw
    words = (answer.text, answer.thinking, answer.stop_reason, answer.request_id, *answer.notes)
    assert all((word or "").encode() is not None for word in words)
    asked = [one["call_id"] for one in answer.raw["output"] if one.get("type") == "function_call"]
    assert asked == [call.call_id for call in answer.calls] and len(set(asked)) == len(asked)
    results = tuple(ToolTurn(call.call_id, call.name, "x") for call in answer.calls)
    json_text.encode(WIRE.body(ask_responses(TASK, AssistantTurn(answer.raw), *results, UserTurn("y"))))


def read(pieces: Sequence[bytes]) -> Completion:
    reader, answer = EventReader(), ResponsesAnswer()
    found = [data for piece in pieces for data in reader.feed(piece)]
    for data in (*found, *reader.finish()):
        assert not answer.over
        answer.add(json.loads(data))
    assert answer.over
    return answer.complete(request_id=None, sent_bytes=100)


SAID = Say("Grüße, 世界 ✓", [("search", {"q": "blüe"}), ("search", {})], reasoning="Hmm… ✓", usage=PLAIN)


def test_a_stream_with_every_event_parses_the_same_wherever_it_is_split() -> None:
    stream = b"".join(responses_format.events(SAID, SUMMED))
    plain = read([stream])
    assert [call.args for call in plain.calls] == [{"q": "blüe"}, {}]
    assert (plain.text, plain.thinking, plain.notes) == (SAID.text, SAID.reasoning, ())
    for at in range(1, len(stream), 3):
        assert read([stream[:at], stream[at:]]) == plain
    assert read([bytes([byte]) for byte in stream]) == plain


async def test_a_stream_split_into_single_bytes_yields_the_same_answer() -> None:
    stream = b"".join(responses_format.events(SAID, SUMMED))
    (completion,), _ = await read_answers([Raw([bytes([byte]) for byte in stream], EVENTS, chunked=True)])
    plain = read([stream])
    assert (completion.text, completion.calls, completion.raw) == (plain.text, plain.calls, plain.raw)


# -- a run ------------------------------------------------------------------------------------------------------------
