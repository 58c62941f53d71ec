import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_server import EVENTS, Fail, Raw, Received, Say, Script, run_model_server
from support.models import messages_format

from ava_audit.events import Usage
from ava_server.core.errors import ModelError
from ava_server.models import json_text
from ava_server.models.base import AssistantTurn, Completion, Request, ToolSchema, ToolTurn, ToolUse, Turn, UserTurn
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.model_choice import Thinking, thinking_of
from ava_server.models.wires.messages import MessagesAnswer, MessagesWire
from ava_server.models.wires.stream import EventReader
from ava_server.models.wires.wire import MOST_CALLS

SEARCH = ToolSchema("search", "Finds things.", {"type": "object", "properties": {"q": {"type": "string"}}})
TASK = UserTurn("Find the blue door.")
ADAPTIVE = thinking_of("claude-sonnet-5-5")
BUDGET = thinking_of("claude-haiku-4-5")
PLAIN = {"input_tokens": 100, "output_tokens": 20}
MARK = {"type": "ephemeral"}


def ask(*turns: Turn, model: str = "claude-sonnet-5-5", thinking: int = 0, tools: bool = True) -> Request:
    return Request(model, "You are terse.", (SEARCH,) if tools else (), turns or (TASK,), 8192, thinking)


async def answers(
    script: Script, *requests: Request, wire: MessagesWire | None = None, key: str | None = "key-0123456789"
) -> tuple[list[Completion], list[Received]]:
    """Ask a server that plays the script, and return its answers and what it received."""
    found: list[Completion] = []
    with anyio.fail_after(40), run_model_server(script) as server:
        async with ClientPool() as clients:
            model = HttpModel("anthropic", "m", server.base_url, key, clients, wire or MessagesWire(thinking=ADAPTIVE))
            for request in requests or (ask(),):
                async with model.stream(request) as stream:
                    async for _ in stream:
                        pass
                found.append(stream.completion)
        return found, server.requests


@pytest.mark.parametrize("streaming", [True, False])
async def test_assembles_thinking_text_and_calls_from_their_events(streaming: bool) -> None:
    calls = [("search", {"q": "blue döor ✓"}), ("search", {"q": "second"}), ("search", {})]
    say = Say("I look for it.", calls, reasoning="Where could it be?", redacted="b64==", usage=PLAIN)
    (completion,), (received,) = await answers([say], wire=MessagesWire(streaming, ADAPTIVE))

    assert completion.text == "I look for it."
    assert completion.thinking == "Where could it be?"
    assert [(call.name, call.args) for call in completion.calls] == calls
    assert completion.usage == Usage(input_tokens=100, output_tokens=20)
    assert (completion.stop_reason, completion.notes) == ("tool_use", ())
    assert completion.request_id == ("msg_1" if streaming else "req-1"), "the header's, where it is there"
    assert completion.raw["content"] == messages_format.blocks(say, 0, received.json)
    assert received.path == "/v1/messages"
    assert (received.headers["x-api-key"], received.headers["anthropic-version"]) == ("key-0123456789", "2023-06-01")
    assert "authorization" not in received.headers
    assert received.json["stream"] is streaming


async def test_sends_answers_back_verbatim_and_merges_neighbours_of_one_role() -> None:
    say = Say("Both.", [("search", {"q": "a"}), ("search", {"q": "b"})], reasoning="Hm.", redacted="x==", usage=PLAIN)
    (first,), _ = await answers([say])
    results = [ToolTurn(call.call_id, call.name, f"found {call.call_id}") for call in first.calls]
    request = ask(TASK, AssistantTurn(first.raw), *results, UserTurn("Hurry."), UserTurn("Please."))
    _, (received,) = await answers([Say("ok", usage=PLAIN)], request)

    _task, answer, results_and_words = received.json["messages"]
    assert answer == {"role": "assistant", "content": first.raw["content"]}
    assert [block["type"] for block in results_and_words["content"]] == ["tool_result", "tool_result", "text", "text"]
    assert results_and_words["content"][1] == {
        "type": "tool_result",
        "tool_use_id": first.calls[1].call_id,
        "content": f"found {first.calls[1].call_id}",
    }
    assert received.body == HttpModel("p", "m", "http://x", None, ClientPool(), MessagesWire(thinking=ADAPTIVE)).encode(
        request
    )


def test_marks_the_prefix_the_last_request_and_this_request_for_caching() -> None:
    raw = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "search", "input": {}}]}
    again = {"role": "assistant", "content": [{"type": "tool_use", "id": "u", "name": "search", "input": {}}]}
    turns = (TASK, AssistantTurn(raw), ToolTurn("t", "search", "1"), AssistantTurn(again), ToolTurn("u", "search", "2"))
    for length in (1, 3, 5):
        body = MessagesWire().body(ask(*turns[:length]))
        marked = [
            (at, block["type"])
            for at, message in enumerate(body["messages"])
            for block in message["content"]
            if block.get("cache_control") == MARK
        ]
        assert body["system"] == [{"type": "text", "text": "You are terse.", "cache_control": MARK}]
        assert [at for at, _ in marked] == [number for number in (0, 2, 4) if number < length][-2:]
        assert messages_format.why_refused(body) is None


def test_leaves_out_the_parts_of_an_answer_that_the_api_would_reject() -> None:
    blank = {"type": "text", "text": " \n"}
    thought = {"type": "thinking", "thinking": "", "signature": "s"}
    nothing = AssistantTurn({"role": "assistant", "content": []})
    blanks = AssistantTurn({"role": "assistant", "content": [blank]})
    body = MessagesWire().body(ask(TASK, nothing, UserTurn("Go on."), blanks, UserTurn("Go on!")))
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert [block["text"] for block in body["messages"][0]["content"]] == [TASK.text, "Go on.", "Go on!"]

    kept = AssistantTurn({"role": "assistant", "content": [thought, blank, {"type": "text", "text": "word"}]})
    body = MessagesWire().body(ask(TASK, kept, UserTurn("Go on.")))
    assert body["messages"][1]["content"] == [thought, {"type": "text", "text": "word"}]


@pytest.mark.parametrize(("how", "kept"), [(ADAPTIVE, False), (BUDGET, True)])
def test_sends_thinking_after_an_edited_turn_only_where_it_is_not_bound_to_the_prefix(
    how: Thinking, kept: bool
) -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "text", "text": "so"},
    ]
    raw = {"role": "assistant", "content": content}
    wire = MessagesWire(thinking=how)
    edited = AssistantTurn(raw, edited_before=True)
    body = wire.body(ask(TASK, edited, UserTurn("x"), AssistantTurn(raw), UserTurn("y"), thinking=4096))
    assert body["messages"][1]["content"] == (content if kept else content[-1:])
    assert body["messages"][3]["content"] == content


@pytest.mark.parametrize("thoughtful", [True, False])
@pytest.mark.parametrize("thinking", [4096, 0])
def test_with_a_budget_sends_thinking_only_if_the_exchange_began_with_thinking(thinking: int, thoughtful: bool) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}

    def call(number: int) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"t{number}", "name": "search", "input": {}}

    first = AssistantTurn({"role": "assistant", "content": [thought, call(0)] if thoughtful else [call(0)]})
    later = AssistantTurn({"role": "assistant", "content": [call(1)]})
    turns = (TASK, first, ToolTurn("t0", "search", "x"), later, ToolTurn("t1", "search", "y"))
    wire = MessagesWire(thinking=BUDGET)
    body = wire.body(ask(*turns, thinking=thinking, model="claude-haiku-4-5"))
    thinks = bool(thinking) and thoughtful
    assert wire.may_think(turns) == thoughtful
    assert ("thinking" in body) == thinks
    assert body["messages"][1]["content"] == ([thought, call(0)] if thinks else [call(0)])
    assert messages_format.why_refused(body) is None
    anew = (*turns, AssistantTurn({"role": "assistant", "content": [{"type": "text", "text": "so"}]}), UserTurn("z"))
    assert wire.may_think(anew), "what follows a message without results is a new turn of the model's"
    assert messages_format.why_refused(wire.body(ask(*anew, thinking=4096, model="claude-haiku-4-5"))) is None


def test_drops_a_thinking_block_that_follows_a_dropped_text_block() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    call = {"type": "tool_use", "id": "t", "name": "search", "input": {}}
    raw = {"role": "assistant", "content": [thought, {"type": "text", "text": "\n\n"}, thought, call]}
    body = MessagesWire(thinking=ADAPTIVE).body(ask(TASK, AssistantTurn(raw), ToolTurn("t", "search", "x")))
    assert body["messages"][1]["content"] == [call]


def test_drops_fragments_of_a_block_that_never_started_and_adds_a_note() -> None:
    growing = MessagesAnswer()
    growing.add({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{"}})
    done = growing.complete(request_id=None, sent_bytes=10)
    assert done.raw["content"] == []
    assert "dropped a piece of a block that never began" in done.notes


@pytest.mark.parametrize(
    ("model", "tokens", "told"),
    [
        ("claude-haiku-4-5-20251001", 0, {}),
        ("claude-haiku-4-5-20251001", 4096, {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        ("claude-opus-4-7", 0, {}),
        ("claude-sonnet-4@20250514", 0, {}),
        ("anthropic/claude-sonnet-4", 4096, {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        ("claude-instant-1", 4096, {}),
        ("claude-haiku-5-5", 0, {"thinking": {"type": "disabled"}}),
        ("claude-sonnet-5", 0, {"thinking": {"type": "disabled"}}),
        ("claude-sonnet-5-5", 0, {"thinking": {"type": "between_tools"}, "output_config": {"effort": "medium"}}),
        (
            "claude-opus-5-5",
            0,
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "low"}},
        ),
        (
            "claude-sonnet-5-5",
            4096,
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "medium"}},
        ),
        ("qwen3-32b", 0, {}),
        ("qwen3-32b", 4096, {}),
    ],
)
def test_turns_thinking_on_and_off_in_the_form_each_model_accepts(
    model: str, tokens: int, told: dict[str, Any]
) -> None:
    body = MessagesWire(thinking=thinking_of(model)).body(ask(model=model, thinking=tokens))
    assert {name: body[name] for name in ("thinking", "output_config") if name in body} == told


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (PLAIN, Usage(input_tokens=100, output_tokens=20)),
        ({**PLAIN, "cache_read_input_tokens": None}, Usage(input_tokens=100, output_tokens=20)),
        (
            {**PLAIN, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 300},
            Usage(input_tokens=100, cache_read_tokens=1000, cache_write_tokens=300, output_tokens=20),
        ),
        (
            {"input_tokens": 0, "cache_read_input_tokens": 100, "output_tokens": 5},
            Usage(cache_read_tokens=100, output_tokens=5),
        ),
        (
            {**PLAIN, "output_tokens_details": {"thinking_tokens": 15}},
            Usage(input_tokens=100, output_tokens=20, thinking_tokens=15),
        ),
        (
            {**PLAIN, "iterations": [{"input_tokens": 100, "output_tokens": 20}]},
            Usage(input_tokens=100, output_tokens=20),
        ),
        (  # a summary of the history that the provider wrote first
            {**PLAIN, "iterations": [{**PLAIN, "cache_read_input_tokens": 5_000}, {**PLAIN, "output_tokens": 3}]},
            Usage(input_tokens=200, output_tokens=23, cache_read_tokens=5_000),
        ),
        ({"output_tokens": 20}, None),
        ({"input_tokens": "100", "output_tokens": 20}, None),
        ({**PLAIN, "cache_read_input_tokens": True}, None),
        ({**PLAIN, "cache_creation_input_tokens": -3}, None),
    ],
)
async def test_reads_tokens_by_class(reported: dict[str, Any], usage: Usage | None) -> None:
    (completion,), _ = await answers([Say("words", usage=reported)])
    assert completion.usage == usage
    assert bool(completion.notes) == (usage is None)


async def test_the_last_usage_figures_count_and_none_decreases() -> None:
    growing = MessagesAnswer()
    growing.add({"type": "message_start", "message": {"usage": {"input_tokens": 500, "output_tokens": 1}}})
    growing.add({"type": "message_delta", "delta": {}, "usage": {"input_tokens": None, "output_tokens": 40}})
    growing.add({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 60}})
    done = growing.complete(request_id="req_1", sent_bytes=400)
    assert done.usage == Usage(input_tokens=500, output_tokens=60)
    assert done.request_id == "req_1"


async def test_accepts_smaller_figures_for_a_prompt_without_its_earlier_thinking() -> None:
    thought = {"type": "thinking", "thinking": "long " * 2000, "signature": "s" * 4000}
    raw = {"role": "assistant", "content": [thought, {"type": "text", "text": "so"}]}
    wire = MessagesWire(thinking=BUDGET)
    request = ask(TASK, AssistantTurn(raw), UserTurn("x"), model="claude-haiku-4-5", thinking=4096)
    (completion,), (received,) = await answers([Say("ok", usage=PLAIN)], request, wire=wire)
    assert len(received.body) // 16 > 100, "as a whole it would be too long for 100 tokens"
    assert completion.usage == Usage(input_tokens=100, output_tokens=20)


@pytest.mark.parametrize("kind", ["overloaded_error", "api_error"])
async def test_an_error_event_in_the_stream_may_have_been_billed(kind: str) -> None:
    begun = messages_format.events(Say("half a sent", usage=PLAIN), 0, {"model": "m", "messages": []})[:4]
    error = {"type": "error", "error": {"type": kind, "message": "It is too much."}, "request_id": "req_9"}
    pieces = [*begun, f"event: error\ndata: {json.dumps(error)}\n\n".encode()]
    with pytest.raises(ModelError) as caught:
        await answers([Raw(pieces, EVENTS)])
    assert f"It is too much [{kind}]." in str(caught.value)
    assert caught.value.answered


async def test_a_stream_that_ends_before_its_stop_reason_is_a_bad_answer() -> None:
    pieces = messages_format.events(Say("words", usage=PLAIN), 0, {"model": "m", "messages": []})[:-2]
    with pytest.raises(ModelError, match="ended without a finish reason"):
        await answers([Raw(pieces, EVENTS)])
    whole_but_its_stop = messages_format.events(Say("words", usage=PLAIN), 0, {"model": "m", "messages": []})[:-1]
    (completion,), _ = await answers([Raw(whole_but_its_stop, EVENTS)])
    assert (completion.text, completion.stop_reason) == ("words", "end_turn")


async def test_a_compatible_server_also_gets_the_key_as_a_bearer_token() -> None:
    _, (received,) = await answers([Say("x", usage=PLAIN)], wire=MessagesWire(bearer=True))
    assert received.headers["authorization"] == "Bearer key-0123456789"
    _, (received,) = await answers([Say("x", usage=PLAIN)], wire=MessagesWire(bearer=True), key=None)
    assert not {"authorization", "x-api-key"} & set(received.headers)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://h", "https://h/v1/messages"),
        ("https://h/", "https://h/v1/messages"),
        ("https://h/v1", "https://h/v1/messages"),
        ("https://h/api/v1/messages", "https://h/api/v1/messages"),
    ],
)
def test_accepts_the_address_with_and_without_v1(base_url: str, url: str) -> None:
    assert MessagesWire().url(base_url, "m") == url


async def test_reports_an_api_rejection_in_its_own_words() -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: too many"}}
    with pytest.raises(ModelError, match="max_tokens: too many"):
        await answers([Fail(400, error)])


def test_keeps_an_unreadable_call_as_text_and_returns_it_without_arguments() -> None:
    growing = MessagesAnswer()
    block = {"type": "tool_use", "id": "t", "name": "search", "input": {}}
    growing.add({"type": "content_block_start", "index": 0, "content_block": block})
    growing.add(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"q'}}
    )
    growing.add({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": PLAIN})
    done = growing.complete(request_id=None, sent_bytes=400)
    assert done.calls == (ToolUse("t", "search", None, '{"q'),)
    assert done.raw["content"] == [block]


def test_a_block_of_a_call_without_name_and_input_is_none() -> None:
    empty = {"type": "tool_use", "id": "t", "name": "", "input": {}}
    growing = MessagesAnswer()
    growing.add({"content": [{"type": "text", "text": "4"}, empty], "stop_reason": "end_turn"})
    done = growing.complete(request_id=None, sent_bytes=0)
    assert (done.text, done.calls, len(done.raw["content"])) == ("4", (), 1)


def test_keeps_the_first_of_too_many_calls_each_with_a_unique_id() -> None:
    growing = MessagesAnswer()
    for index in range(MOST_CALLS + 2):
        block = {"type": "tool_use", "id": "same", "name": "search", "input": {"n": index}}
        growing.add({"type": "content_block_start", "index": index, "content_block": block})
    done = growing.complete(request_id=None, sent_bytes=400)
    assert len(done.calls) == MOST_CALLS == len(done.raw["content"])
    assert len({call.call_id for call in done.calls}) == MOST_CALLS
    assert [call.call_id for call in done.calls] == [block["id"] for block in done.raw["content"]]
    assert [call.args for call in done.calls] == [{"n": index} for index in range(MOST_CALLS)]
    assert f"kept the first {MOST_CALLS} of {MOST_CALLS + 2} tool calls" in done.notes


def test_reports_arguments_as_they_stream_in() -> None:
    growing, heard = MessagesAnswer(), ""
    for data in messages_format.events(Say(calls=[("search", {"q": "blüe"})]), 0, {"model": "m", "messages": []}):
        heard += growing.add(json.loads(data.partition(b"data: ")[2])).arguments
    assert heard == growing.complete(request_id=None, sent_bytes=0).calls[0].raw_args


def test_distinguishes_ids_that_differ_only_in_unstorable_characters() -> None:
    growing = MessagesAnswer()
    for index, identity in enumerate(("a\ud800", "a\ud801")):
        block = {"type": "tool_use", "id": identity, "name": "search", "input": {}}
        growing.add({"type": "content_block_start", "index": index, "content_block": block})
    done = growing.complete(request_id=None, sent_bytes=400)
    assert [call.call_id for call in done.calls] == ["a\ufffd", "a\ufffd_1"]
    assert [block["id"] for block in done.raw["content"]] == ["a\ufffd", "a\ufffd_1"]


async def test_reports_a_refusal_with_the_providers_explanation() -> None:
    growing = MessagesAnswer()
    why = {"type": "refusal", "category": "cyber", "explanation": "It looks like an exploit."}
    why["explanation"] = "It looks like an exploit.\x1b[2J"
    growing.add({"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": why}, "usage": PLAIN})
    done = growing.complete(request_id=None, sent_bytes=400)
    assert done.stop_reason == "refusal"
    assert done.notes[0] == "refusal: cyber: It looks like an exploit. [2J"


# -- whatever comes ---------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
TYPES = st.sampled_from(
    ["text", "thinking", "tool_use", "redacted_thinking", "text_delta", "input_json_delta", "signature_delta", "new"]
)
FIELDS = ("text", "thinking", "partial_json", "signature", "id", "name", "input", "stop_reason", "usage", "content")
BLOCK = st.fixed_dictionaries({"type": TYPES}, optional=dict.fromkeys(FIELDS, JSON | st.text(max_size=9)))
EVENT = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "message_delta",
                "message_stop",
                "new_event",
            ]
        )
    },
    optional={
        "index": st.integers(-1, 3) | JSON,
        "message": BLOCK | JSON,
        "content_block": BLOCK | JSON,
        "delta": BLOCK | JSON,
        "usage": st.dictionaries(st.sampled_from(["input_tokens", "output_tokens"]), JSON, max_size=2) | JSON,
        "content": st.lists(BLOCK, max_size=2) | JSON,
    },
)


@pytest.mark.slow
@given(st.lists(EVENT, max_size=12))
def test_any_input_yields_an_answer_that_can_be_stored_and_sent_back(pieces: list[dict[str, Any]]) -> None:
    growing = MessagesAnswer()
    for piece in pieces:
        growing.add(piece)
    done = growing.complete(request_id=None, sent_bytes=10)
    again = json.loads(json.dumps(done.raw, allow_nan=False, ensure_ascii=False).encode())
    assert again == done.raw
    assert "_raw" not in str(done.raw)
    assert len(done.calls) == len({call.call_id for call in done.calls})
    results = tuple(ToolTurn(call.call_id, call.name, "x") for call in done.calls)
    json_text.encode(MessagesWire(thinking=ADAPTIVE).body(ask(TASK, AssistantTurn(done.raw), *results, UserTurn("y"))))


def read(pieces: Sequence[bytes]) -> Completion:
    reader, growing = EventReader(), MessagesAnswer()
    for piece in pieces:
        for data in reader.feed(piece):
            growing.add(json.loads(data))
    for data in reader.finish():
        growing.add(json.loads(data))
    assert growing.over
    return growing.complete(request_id=None, sent_bytes=100)


SAID = Say(
    "Grüße, 世界 ✓", [("search", {"q": "blüe"}), ("search", {})], reasoning="Hmm… ✓", redacted="e30=", usage=PLAIN
)


def test_a_stream_with_every_event_parses_the_same_wherever_it_is_split() -> None:
    stream = b"".join(messages_format.events(SAID, 0, {"model": "m", "messages": []}))
    plain = read([stream])
    assert [call.args for call in plain.calls] == [{"q": "blüe"}, {}]
    assert (plain.text, plain.thinking, plain.notes) == (SAID.text, SAID.reasoning, ())
    for at in range(1, len(stream)):
        assert read([stream[:at], stream[at:]]) == plain
    assert read([bytes([byte]) for byte in stream]) == plain


async def test_a_stream_split_into_single_bytes_yields_the_same_answer() -> None:
    stream = b"".join(messages_format.events(SAID, 0, {"model": "m", "messages": []}))
    (completion,), _ = await answers([Raw([bytes([byte]) for byte in stream], EVENTS, chunked=True)])
    plain = read([stream])
    assert (completion.text, completion.calls, completion.raw) == (plain.text, plain.calls, plain.raw)
