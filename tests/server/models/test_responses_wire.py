import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_server import EVENTS, JSON, Fail, Gate, Raw, Received, Say, Script, run_model_server
from support.models import responses_format
from support.runtime import check_requests, hand_over, open_lab

from ava_audit.events import AssistantMessage, CostUpdate, RunClaimed, Usage
from ava_server.core.errors import ModelError
from ava_server.models import json_text
from ava_server.models.base import AssistantTurn, Completion, Delta, Request, ToolSchema, ToolTurn, Turn, UserTurn
from ava_server.models.clients import ClientPool
from ava_server.models.errors import may_have_been_billed
from ava_server.models.http_model import HttpModel
from ava_server.models.prices import cost_micros, find_price
from ava_server.models.selection import thinking_of
from ava_server.models.wires.base import MOST_CALLS
from ava_server.models.wires.responses import ResponsesAnswer, ResponsesWire
from ava_server.models.wires.stream import EventReader

SEARCH = ToolSchema("search", "Finds things.", {"type": "object", "properties": {"q": {"type": "string"}}})
TASK = UserTurn("Find the blue door.")
MODEL = "gpt-6.1-terra"
SUMMED = {"model": MODEL, "input": [], "reasoning": {"summary": "auto"}}
"""A request that asks for a summary of the model's thinking, which ours does not."""
PLAIN = {"input_tokens": 100, "output_tokens": 20}
WIRE = ResponsesWire(thinking=thinking_of(MODEL))


# -- what is sent -----------------------------------------------------------------------------------------------------


async def test_each_request_is_self_contained_and_asks_for_what_the_next_one_needs() -> None:
    _, (received,) = await answers([Say("ok")], ask(thinking=4096))
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
    assert received.body == HttpModel("p", "m", "http://x", None, ClientPool(), WIRE).encode(ask(thinking=4096))


async def test_without_a_key_there_is_no_authorization_header() -> None:
    _, (received,) = await answers([Say("ok")], key=None)
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
    _, (received,) = await answers([Say("ok")], ask(model=model, thinking=tokens), wire=wire)
    assert received.json.get("reasoning") == (None if effort is None else {"effort": effort})
    assert ("include" in received.json) is (effort is not None), "models that do not think refuse it"


@pytest.mark.parametrize(
    "model", ["gpt-5-pro", "gpt-5.2-pro", "gpt-5.4-pro-2026-03-05", "gpt-5.1-codex-mini", "gpt-5.2-chat-latest"]
)
async def test_sends_no_effort_to_models_with_one_level_or_none_below_medium(model: str) -> None:
    _, (received,) = await answers([Say("ok")], ask(model=model), wire=ResponsesWire(thinking=thinking_of(model)))
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
    (first,), (asked,) = await answers([say], wire=wire)
    assert first.raw["output"] == responses_format.items(say, asked.json)

    results = [ToolTurn(call.call_id, call.name, f"found {call.call_id}") for call in first.calls]
    request = ask(TASK, AssistantTurn(first.raw), *results, UserTurn("Hurry."))
    _, (received,) = await answers([Say("ok")], request, wire=wire)
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
        return list(WIRE.body(ask(TASK, AssistantTurn({"role": "assistant", "output": list(output)})))["input"][1:])

    assert sent(sealed, bare, plain, said("so")) == [sealed, plain, said("so")]
    assert sent(said("so"), sealed, plain) == [said("so")], "nothing follows it"
    assert sent(sealed) == sent() == sent("text", None, {}) == []


def test_sends_the_phase_of_a_message_back() -> None:
    raw = {"role": "assistant", "output": [said("I look.", id="msg_1", status="completed", phase="commentary")]}
    assert WIRE.body(ask(TASK, AssistantTurn(raw)))["input"][1] == said("I look.", phase="commentary")


# -- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
async def test_assembles_text_and_calls_from_their_events(streaming: bool) -> None:
    calls = [("search", {"q": "blue döor ✓"}), ("search", {"q": "second"}), ("search", {})]
    say = Say("I look for it.", calls, usage=PLAIN)
    (completion,), (received,) = await answers([say], wire=ResponsesWire(streaming, WIRE.thinking))
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
            HttpModel("o", "m", server.base_url, None, clients, WIRE).stream(ask()) as one,
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
        (completion,), _ = await answers([Say("words", usage=reported)], wire=ResponsesWire(streaming, WIRE.thinking))
        assert completion.usage == usage
        assert completion.notes == ()
        assert cost_micros(PRICE, usage) == micros


@pytest.mark.parametrize(
    "reported", [None, {"input_tokens": "many", "output_tokens": 1}, {"output_tokens": 20}, {"prompt_tokens": True}]
)
async def test_ignores_impossible_figures(reported: dict[str, Any] | None) -> None:
    if reported == {"prompt_tokens": True}:
        reported = {"input_tokens": True, "output_tokens": 1}
    (completion,), _ = await answers([Say("words", usage=reported)])
    assert completion.usage is None
    assert completion.notes[-1].startswith(("usage not counted", "the provider reported no usage"))


async def test_accepts_smaller_figures_for_a_prompt_without_its_earlier_thinking() -> None:
    thought = {"type": "reasoning", "encrypted_content": "g" * 9_999, "summary": []}
    raw = {"role": "assistant", "output": [thought, said("so")]}
    (completion,), (received,) = await answers([Say("ok", usage=PLAIN)], ask(TASK, AssistantTurn(raw), UserTurn("x")))
    assert len(received.body) // 16 > 100, "as a whole it would be too long for 100 tokens"
    assert completion.usage == Usage(input_tokens=100, output_tokens=20)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("finish", "reason"),
    [("length", "max_output_tokens"), ("content_filter", "content_filter"), ("refusal", "refusal")],
)
async def test_an_incomplete_answer_gives_the_providers_reason(finish: str, reason: str, streaming: bool) -> None:
    say = Say("I cannot", [("search", '{"q": "bl')] if finish == "length" else (), finish_reason=finish)
    (completion,), _ = await answers([say], wire=ResponsesWire(streaming, WIRE.thinking))
    assert (completion.text, completion.stop_reason) == ("I cannot", reason)
    assert [(call.args, call.raw_args) for call in completion.calls] == [(None, '{"q": "bl')][: len(say.calls)]
    sent = WIRE.body(ask(TASK, AssistantTurn(completion.raw)))["input"][1]
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
            await answers([Raw([failed], EVENTS)])


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_error_event_in_the_stream_may_have_been_billed(fault: dict[str, Any]) -> None:
    begun = responses_format.events(Say("half a sent"), {"model": "m", "input": []})[:5]
    pieces = [*begun, f"event: x\ndata: {json.dumps(fault)}\n\n".encode()]
    with pytest.raises(ModelError, match=r"It broke \[server_error\]\.") as caught:
        await answers([Raw(pieces, EVENTS)])
    assert caught.value.answered and may_have_been_billed(caught.value)
    assert (caught.value.kind, caught.value.retryable) == ("overloaded", True)


@pytest.mark.parametrize("fault", [FAILED, {**FAILED, "error": None}, {"error": {"message": "It broke."}}])
async def test_an_error_in_place_of_a_whole_answer_is_an_error(fault: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"It broke|the response is failed"):
        await answers([Raw([json.dumps(fault).encode()], JSON)])


async def test_distinguishes_json_that_is_not_a_response() -> None:
    with pytest.raises(ModelError, match="JSON without `output`") as caught:
        await answers([Raw([b'{"choices": []}'], JSON)])
    assert caught.value.what_to_do == "Check that the endpoint speaks OpenAI Responses."


async def test_reports_an_api_rejection_in_its_own_words() -> None:
    with pytest.raises(ModelError, match="'none' is not supported") as caught:
        await answers([Say("x")], ask(model="gpt-6.1-sol"))
    assert not caught.value.answered
    with pytest.raises(ModelError, match="must be verified"):
        await answers([Fail(400, {"error": {"message": "Your organization must be verified."}})])


async def test_a_stream_that_ends_before_its_last_event_is_a_bad_answer() -> None:
    events = responses_format.events(Say("words", usage=PLAIN), {"model": "m", "input": []})
    for count in (1, 5, len(events) - 1):
        with pytest.raises(ModelError, match="ended without a finish reason"):
            await answers([Raw(events[:count], EVENTS)])
    (completion,), _ = await answers([Raw([*events, b"data: {not JSON\n\n"], EVENTS)])
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
    plain = done(*events_of(CALLS))
    known = events_of(CALLS)
    by_item = [[event for event in known[2:-1] if event["output_index"] == index] for index in range(4)]
    in_turn = [event for step in zip_longest(*by_item) for event in step if event is not None]
    for events in (in_turn, [event for item in reversed(by_item) for event in item]):
        assert len(events) == len(known[2:-1])
        assert done(*known[:2], *events, known[-1]) == plain


def test_deltas_items_and_the_final_response_yield_the_same_answer() -> None:
    plain = done(*events_of(CALLS))
    assert done(*without("delta")) == plain
    assert done(*without("output_item.added")) == plain
    assert done(*without("output_item.done")) == plain
    assert done(*without("response.out", output=events_of(CALLS)[-1]["response"]["output"])) == plain
    assert done(*without("none of them", output=[])) == plain, "Codex's backend does not repeat the items"
    assert done(events_of(CALLS)[-1]["response"]) == plain


def test_deltas_alone_yield_an_answer_without_incomplete_thinking() -> None:
    answer = done(*without("output_item.done", output=[]))
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
    answer = done(*bare)
    assert (answer.thinking, answer.text, answer.stop_reason) == ("Hm.", "one, two", "completed")
    assert [(call.call_id, call.args) for call in answer.calls] == [("call_0", {"q": 1})]


def test_keeps_all_items_that_share_one_index() -> None:
    items = responses_format.items(CALLS, {"input": []})
    assert done(*(item(one) for one in items), END).raw["output"] == items
    assert done(*(item(one, step=step) for one in items for step in ("added", "done")), END).raw["output"] == items
    assert done(item(items[0]), item(items[0]), item(items[0], step="added"), END).raw["output"] == items[:1]


def test_converts_arguments_sent_as_an_object_to_text() -> None:
    answer = done(item(call("a", arguments={"q": "ü", "n": float("nan")})), END)
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
    answer = done(*(item(call(identity), index) for index, identity in enumerate(given)), END)
    assert [call.call_id for call in answer.calls] == ids
    assert [one["call_id"] for one in answer.raw["output"]] == ids
    assert done(item(call(None, id="fc_1")), END).calls[0].call_id == "fc_1"


def test_keeps_the_first_of_too_many_calls() -> None:
    answer = done(item(said("All.")), *(item(call(f"c{index}"), index + 1) for index in range(MOST_CALLS + 2)), END)
    assert [call.call_id for call in answer.calls] == [f"c{index}" for index in range(MOST_CALLS)]
    assert len(answer.raw["output"]) == MOST_CALLS + 1
    assert f"kept the first {MOST_CALLS} of {MOST_CALLS + 2} tool calls" in answer.notes


def test_notes_earlier_thinking_that_was_not_shown_to_the_model() -> None:
    gone = [{"id": "rs_1", "type": "reasoning", "action": "removed", "reason": "prefix_mismatch"}]
    end = {**END, "response": {**END["response"], "input_transformations": gone}}
    assert done(end).notes[0] == "1 piece(s) of earlier thinking not shown to the model: prefix_mismatch"


def test_truncates_and_sanitizes_the_providers_own_text() -> None:
    answer = done({**END, "response": {"id": "\ud800" * 9_999, "status": "\udfff" * 9_999}})
    assert answer.request_id == answer.stop_reason == "\ufffd" * 200


def test_the_kept_plan_is_sent_as_a_message_of_the_model() -> None:
    raw = WIRE.assistant_message("1. Read.", done(item(call("a")), END).calls)
    sent = WIRE.body(ask(TASK, AssistantTurn(raw), ToolTurn("a", "search", "x")))
    assert responses_format.why_refused(sent) is None
    assert sent["input"][1]["content"] == [{"type": "output_text", "text": "1. Read.", "annotations": []}]
    assert sent["input"][2] == call("a")


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
    answer = done(*pieces)
    stored = json.dumps(answer.raw, ensure_ascii=False, allow_nan=False)
    assert json.loads(stored.encode()) == answer.raw
    words = (answer.text, answer.thinking, answer.stop_reason, answer.request_id, *answer.notes)
    assert all((word or "").encode() is not None for word in words)
    asked = [one["call_id"] for one in answer.raw["output"] if one.get("type") == "function_call"]
    assert asked == [call.call_id for call in answer.calls] and len(set(asked)) == len(asked)
    results = tuple(ToolTurn(call.call_id, call.name, "x") for call in answer.calls)
    json_text.encode(WIRE.body(ask(TASK, AssistantTurn(answer.raw), *results, UserTurn("y"))))


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
    (completion,), _ = await answers([Raw([bytes([byte]) for byte in stream], EVENTS, chunked=True)])
    plain = read([stream])
    assert (completion.text, completion.calls, completion.raw) == (plain.text, plain.calls, plain.raw)


# -- a run ------------------------------------------------------------------------------------------------------------

CONFIG = """
[providers.custom]
wire = "responses"
[prices."gpt-6.1-sol"]
input = 2.0
output = 10.0
cache_read = 0.1
cache_write = 2.5
"""
ENV = {"AVA_MODEL": "gpt-6.1-sol"}
CACHED = {
    "input_tokens": 9_000,
    "input_tokens_details": {"cached_tokens": 6_000, "cache_write_tokens": 2_000},
    "output_tokens": 500,
    "output_tokens_details": {"reasoning_tokens": 300},
}


async def test_a_run_calls_tools_and_sends_the_same_bytes_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    reads = Say("I read.", [("read_file", {"path": "0.md"})], reasoning="Where is it?", usage=CACHED)
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
            assert entries[0].cost_micros == 1_000 * 2 + 6_000 * 0.1 + 2_000 * 2.5 + 500 * 10
            (first, *_) = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.turn]
            assert (first.text, first.stop_reason, first.request_id) == ("I read.", "completed", "resp_1")
        await check_requests(tmp_path / "data", server.requests)
        _, lost, again = server.requests
        assert again.body == lost.body
        thought, words, called, result = again.json["input"][-4:]
        assert again.path == "/v1/responses"
        assert again.json["reasoning"] == {"effort": "medium"}
        assert thought["encrypted_content"] and "id" not in thought
        assert words["content"][0]["text"] == "I read."
        assert called["call_id"] == result["call_id"] and "twelve cents" in result["output"]


async def test_a_plan_and_its_thinking_stay_after_the_planning_turn(tmp_path: Path) -> None:
    script: Script = [
        Say("It is about a price.", reasoning="analysing"),
        Say("1. Read the file.\n2. Hand over.", reasoning="planning"),
        Say("KEEP", reasoning="reviewing"),
        Say(calls=[("read_file", {"path": "0.md"})] * 2, reasoning="reading"),
        Say(reasoning="nothing but thinking", finish_reason="length"),
        hand_over(),
    ]
    async with open_lab(tmp_path, script, config=CONFIG, env=ENV) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        run = await lab.ended(await lab.start(extended_thinking=True, plan=True))
        assert run.state == "success", run.stop_reason
        sent = [request.json["input"] for request in lab.server.requests]
    kinds = [[item["type"] for item in items] for items in sent]
    assert kinds[3] == ["message", "reasoning", "message", "message"], "of the planning the plan alone stays"
    called = ["reasoning", *["function_call"] * 2, *["function_call_output"] * 2]
    assert kinds[4] == [*kinds[3], *called]
    assert kinds[5] == [*kinds[4], "message"], (
        "what follows an answer that was cut in its thinking is the word about it"
    )


async def test_a_run_translates_why_an_answer_ended_into_its_own_terms(tmp_path: Path) -> None:
    script: Script = [
        Say("I read it.", [("read_file", '{"path": "0')], finish_reason="length"),
        Say("I would rather not.", finish_reason="refusal"),
        hand_over(),
    ]
    async with open_lab(tmp_path, script, config=CONFIG, env=ENV) as lab:
        run = await lab.ended(await lab.start())
        assert run.state == "success", run.stop_reason
        _, second, third = (request.json["input"] for request in lab.server.requests)
    assert "your answer was cut at its length" in second[-1]["output"]
    assert third[-2]["content"] == [{"type": "refusal", "refusal": "I would rather not."}]
    assert "declined" in third[-1]["content"][0]["text"]


def ask(*turns: Turn, model: str = MODEL, thinking: int = 0) -> Request:
    return Request(model, "You are terse.", (SEARCH,), turns or (TASK,), 8192, thinking)


async def answers(
    script: Script, *requests: Request, wire: ResponsesWire = WIRE, key: str | None = "key-0123456789"
) -> tuple[list[Completion], list[Received]]:
    """Ask a server that plays the script, and return its answers and what it received."""
    found: list[Completion] = []
    with anyio.fail_after(40), run_model_server(script) as server:
        async with ClientPool() as clients:
            model = HttpModel("openai", "m", server.base_url, key, clients, wire)
            for request in requests or (ask(),):
                async with model.stream(request) as stream:
                    async for _ in stream:
                        pass
                found.append(stream.completion)
        return found, server.requests


def growing(*events: Mapping[str, Any]) -> ResponsesAnswer:
    answer = ResponsesAnswer()
    for event in events:
        answer.add(event)
    return answer


def done(*events: Mapping[str, Any]) -> Completion:
    """Return the answer made of these events."""
    return growing(*events).complete(request_id=None, sent_bytes=0)


def item(fields: Mapping[str, Any], index: int = 0, step: str = "done") -> dict[str, Any]:
    return {"type": f"response.output_item.{step}", "output_index": index, "item": fields}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def call(call_id: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "search", "arguments": "{}", **more}
