"""An answer put together from whatever pieces come: nothing odd in it raises, and nothing is lost without a note."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_server.models.base import Completion
from ava_server.models.wires.chat import ChatAnswer, ChatWire
from ava_server.models.wires.stream import EventReader
from ava_server.models.wires.wire import MOST_CALLS, tool_use

odd: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(["", "a", "text", "call_0", "call_1", "{}", '{"q": 1}', "\ud800", "\udfff", "1e999"]),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["index", "type", "text", "summary", "data", "id", "name", "arguments", "\ud800"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
"""Any JSON, with names that mean something more often than chance would have it."""

functions: st.SearchStrategy[Any] = st.one_of(odd, st.fixed_dictionaries({}, optional={"name": odd, "arguments": odd}))
fragments: st.SearchStrategy[Any] = st.one_of(
    odd,
    st.fixed_dictionaries({}, optional={"index": odd, "id": odd, "type": odd, "function": functions, "more": odd}),
)
details: st.SearchStrategy[Any] = st.one_of(
    odd, st.lists(st.fixed_dictionaries({"index": st.integers(0, 1)}, optional={"text": odd, "type": odd, "data": odd}))
)
deltas: st.SearchStrategy[Any] = st.one_of(
    odd,
    st.fixed_dictionaries(
        {},
        optional={
            "content": odd,
            "reasoning": odd,
            "reasoning_content": odd,
            "reasoning_details": details,
            "refusal": odd,
            "tool_calls": st.one_of(odd, st.lists(fragments, max_size=5)),
        },
    ),
)
choices: st.SearchStrategy[Any] = st.one_of(
    odd, st.fixed_dictionaries({}, optional={"delta": deltas, "message": deltas, "finish_reason": odd})
)
chunks: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {}, optional={"id": odd, "usage": odd, "choices": st.one_of(odd, st.lists(choices, max_size=2))}
)


def opening(name: str = "search", **more: Any) -> dict[str, Any]:
    return {**more, "function": {"name": name, "arguments": "{}"}}


@given(st.lists(chunks, max_size=6))
def test_any_input_yields_a_storable_answer(pieces: list[dict[str, Any]]) -> None:
    growing = ChatAnswer()
    for piece in pieces:
        growing.add(piece)
    completion = growing.complete(request_id=None, sent_bytes=0)
    stored = json.dumps(completion.raw, ensure_ascii=False, allow_nan=False)
    words = (stored, completion.text, completion.stop_reason, completion.request_id, *completion.notes)
    assert all((word or "").encode() is not None for word in words)
    assert len({call.call_id for call in completion.calls}) == len(completion.calls)
    assert [call.call_id for call in completion.calls] == [call["id"] for call in completion.raw.get("tool_calls", ())]


@given(st.lists(chunks, max_size=6))
def test_a_call_rebuilt_from_its_three_strings_is_identical(pieces: list[dict[str, Any]]) -> None:
    growing = ChatAnswer()
    for piece in pieces:
        growing.add(piece)
    for call in growing.complete(request_id=None, sent_bytes=0).calls:
        stored = json.loads(json.dumps([call.call_id, call.name, call.raw_args]))
        assert tool_use(*stored) == call


@given(st.text(), st.text(), st.one_of(st.text(), odd.map(lambda value: json.dumps(value))))
def test_parsing_a_call_depends_only_on_its_strings(call_id: str, name: str, raw_args: str) -> None:
    call = tool_use(call_id, name, raw_args)
    assert (call.call_id, call.name, call.raw_args) == (call_id, name, raw_args)
    assert call == tool_use(call_id, name, raw_args)
    if call.args is not None:
        json.dumps(call.args, allow_nan=False, ensure_ascii=False).encode()


LIST = [{"type": "reasoning.text", "index": 0, "text": "one"}]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (LIST, "text", "dropped a piece of reasoning_details that was text"),
        ("text", LIST, "dropped a piece of reasoning_details that was a list"),
        (LIST, {"text": "two"}, "dropped a piece of reasoning_details that was an object"),
        ("text", 7, "dropped a piece of reasoning_details that was a number or a truth value"),
        (
            LIST,
            [{**LIST[0], "text": 7}],
            "dropped a piece of reasoning_details: its text was a number or a truth value",
        ),
        (LIST, [{**LIST[0], "text": ["x"]}], "dropped a piece of reasoning_details: its text was a list"),
    ],
)
def test_drops_thinking_fragments_that_do_not_fit_the_earlier_ones(first: Any, second: Any, said: str) -> None:
    completion = answer({"reasoning_details": first}, {"reasoning_details": second}, {"content": "done"})
    assert completion.raw["reasoning_details"] == first
    assert completion.text == "done"
    assert completion.notes[0] == said


def test_joins_fragments_of_one_thinking_block_even_if_the_first_has_no_text() -> None:
    pieces = [{**LIST[0], "text": text} for text in (None, "one ", "two")]
    completion = answer(*({"reasoning_details": [piece]} for piece in pieces))
    assert completion.raw["reasoning_details"] == [{**LIST[0], "text": "one two"}]


def test_keeps_text_from_strings_and_parts_in_order() -> None:
    part = {"type": "text", "text": "two "}
    completion = answer({"content": "on"}, {"content": "e "}, {"content": [part]}, {"content": "three"})
    assert completion.text == "one two three"
    assert completion.raw["content"] == [{"type": "text", "text": "one "}, part, {"type": "text", "text": "three"}]


def test_keeps_the_first_of_too_many_calls_so_that_each_can_have_a_result() -> None:
    completion = calls([opening(index=number, id=f"c{number}") for number in range(MOST_CALLS + 72)])
    assert [call.call_id for call in completion.calls] == [f"c{number}" for number in range(MOST_CALLS)]
    assert [call["id"] for call in completion.raw["tool_calls"]] == [call.call_id for call in completion.calls]
    assert f"kept the first {MOST_CALLS} of 200 tool calls" in completion.notes


def test_the_maximum_number_of_calls_needs_no_note() -> None:
    completion = calls([opening(index=number) for number in range(MOST_CALLS)])
    assert len(completion.calls) == MOST_CALLS
    assert not any("kept the first" in note for note in completion.notes)


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        (["", ""], ["call_0", "call_1"]),
        (["a", "a"], ["a", "a_1"]),
        (["a_2", "a", "a"], ["a_2", "a", "a_2_2"]),
        (["call_1", ""], ["call_1", "call_1_1"]),
        (["a\ud800", "a\ud801"], ["a\ufffd", "a\ufffd_1"]),
    ],
)
def test_each_call_has_a_unique_id_in_the_message_too(given: list[str], ids: list[str]) -> None:
    message = {"tool_calls": [opening(id=identity) for identity in given]}
    growing = ChatAnswer()
    growing.add({"choices": [{"message": message}]})
    completion = growing.complete(request_id=None, sent_bytes=0)
    assert [call.call_id for call in completion.calls] == ids
    assert [call["id"] for call in completion.raw["tool_calls"]] == ids


def test_truncates_and_sanitizes_the_providers_own_text() -> None:
    growing = ChatAnswer()
    growing.add({"id": "\ud800" * 9_999, "choices": [{"delta": {"content": "x"}, "finish_reason": "\udfff" * 9_999}]})
    completion = growing.complete(request_id=None, sent_bytes=0)
    assert completion.request_id == completion.stop_reason == "\ufffd" * 200


def chunk(delta: dict[str, Any] | None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, **more.pop("choice", {})}]
    fields = {"id": "gen-1", "object": "chat.completion.chunk", "choices": choices, **more}
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()


def call(index: int, **function: str) -> dict[str, Any]:
    opening = {"id": f"call_{index}", "type": "function"} if "name" in function else {}
    return {"tool_calls": [{"index": index, **opening, "function": function}]}


USAGE = {
    "prompt_tokens": 137,
    "completion_tokens": 20,
    "total_tokens": 157,
    "cost": 0.00123,
    "prompt_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 7},
    "completion_tokens_details": {"reasoning_tokens": 9},
}
EVERY_KIND = [
    b": OPENROUTER PROCESSING\n\n",
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning": "Where… ", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "Where… "}]}),
    chunk({"reasoning": "✓", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "✓"}]}),
    chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": "c2ln"}]}),
    chunk({"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "ZW5j", "format": "x"}]}),
    chunk({"content": "Grüße, "}),
    chunk({"content": "世界 ✓"}),
    b"event: message\nid: 7\nretry: 100\n" + chunk(call(0, name="search", arguments="")),
    chunk(call(0, arguments='{"q": "blü')),
    chunk(call(0, arguments='e"}')),
    chunk(call(1, name="search", arguments="{}")),
    chunk({}, choice={"finish_reason": "tool_calls", "native_finish_reason": "tool_use", "logprobs": None}),
    chunk(None, usage=USAGE),
    b"data: [DONE]\n\n",
]


def read_all(pieces: Sequence[bytes]) -> Completion:
    reader, growing = EventReader(), ChatAnswer()
    found = [data for piece in pieces for data in reader.feed(piece)]
    for data in (*found, *reader.finish()):
        if data != "[DONE]":
            growing.add(json.loads(data))
    return growing.complete(request_id=None, sent_bytes=100)


def test_a_stream_with_every_kind_of_chunk_parses_the_same_wherever_it_is_split() -> None:
    stream = b"".join(EVERY_KIND)
    plain = read_all([stream])
    assert (plain.text, plain.thinking, plain.stop_reason) == ("Grüße, 世界 ✓", "Where… ✓", "tool_calls")
    assert [one.args for one in plain.calls] == [{"q": "blüe"}, {}]
    assert plain.raw["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "Where… ✓", "signature": "c2ln"},
        {"type": "reasoning.encrypted", "index": 1, "data": "ZW5j", "format": "x"},
    ]
    assert plain.usage is not None
    assert (plain.usage.input_tokens, plain.usage.cache_read_tokens, plain.usage.cache_write_tokens) == (100, 30, 7)
    assert (plain.usage.thinking_tokens, plain.cost_micros, plain.notes) == (9, 1230, ())
    for at in range(1, len(stream)):
        assert read_all([stream[:at], stream[at:]]) == plain
    assert read_all([bytes([byte]) for byte in stream]) == plain
    assert read_all([stream.replace(b"\n", b"\r\n")]) == plain


def calls_of(*calls: dict[str, Any], offered: frozenset[str] = frozenset()) -> list[tuple[str, Any]]:
    growing = ChatAnswer(offered=offered)
    for call in calls:
        growing.add({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    return [(call.name, call.args) for call in growing.complete(request_id=None, sent_bytes=0).calls]


def test_two_calls_without_ids_on_one_index_stay_two() -> None:
    first = {"index": 0, "id": "", "function": {"name": "get_time", "arguments": "{}"}}
    second = {"index": 0, "id": "", "function": {"name": "get_date", "arguments": '{"a": 1}'}}
    again = {"index": 0, "id": "", "function": {"name": "get_date", "arguments": '{"a": 2}'}}
    assert calls_of(first, second, again) == [("get_time", {}), ("get_date", {"a": 1}), ("get_date", {"a": 2})]


def named(*pieces: str) -> list[dict[str, Any]]:
    return [{"index": 0, "function": {"name": piece, "arguments": ""}} for piece in pieces]


@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        (("get_time", "get_date"), ["get_time", "get_date"]),
        (("get_", "time"), ["get_time"]),
        (("get_time", "_zone"), ["get_time_zone"]),  # also where the first piece is a tool itself
        (("get_time", "get_time"), ["get_time"]),  # some servers repeat it
        (("get_ti", "me", "get_da", "te"), ["get_time", "get_date"]),
        (("look", "up"), ["lookup"]),  # no tool on offer: the model is told so
    ],
)
def test_a_second_name_begins_a_call_where_the_first_is_whole(pieces: tuple[str, ...], names: list[str]) -> None:
    tools = frozenset(("get_time", "get_date", "get_time_zone"))
    assert [name for name, _args in calls_of(*named(*pieces), offered=tools)] == names


def test_a_fragment_without_a_name_begins_no_call() -> None:
    first = {"index": 0, "id": "call_1", "function": {"name": "search", "arguments": ""}}
    more = [
        {"index": 0, "id": f"call_{number}", "function": {"name": "", "arguments": text}}
        for number, text in enumerate(('{"q": ', '"x"}'), 2)
    ]
    assert calls_of(first, *more) == [("search", {"q": "x"})]


def test_fragments_of_two_calls_on_one_index_are_told_apart_by_their_ids() -> None:
    begun = [{"index": 0, "id": name, "function": {"name": name, "arguments": ""}} for name in ("a", "b")]
    more = [{"index": 0, "id": name, "function": {"arguments": f'{{"q": "{name}"}}'}} for name in ("a", "b")]
    assert calls_of(*begun, *more) == [("a", {"q": "a"}), ("b", {"q": "b"})]


def test_arguments_that_come_cumulatively_are_read_once() -> None:
    pieces = ['{"q"', '{"q": "x', '{"q": "xy"}', '{"q": "xy"}']
    calls = [{"index": 0, "id": "a", "function": {"name": "search", "arguments": text}} for text in pieces]
    assert calls_of(*calls) == [("search", {"q": "xy"})]


def test_the_old_form_of_a_call_is_a_call() -> None:
    growing = ChatAnswer()
    for old in ({"name": "search", "arguments": ""}, {"arguments": '{"q": '}, {"arguments": '"x"}'}):
        growing.add({"choices": [{"index": 0, "delta": {"function_call": old}}]})
    (call,) = growing.complete(request_id=None, sent_bytes=0).calls
    assert (call.name, call.args) == ("search", {"q": "x"})


def test_of_two_choices_the_first_is_the_answer() -> None:
    growing = ChatAnswer()
    for text, index in (("one", 0), ("two", 1), (" and", 0), (" more", 1)):
        growing.add({"choices": [{"index": index, "delta": {"content": text}}]})
    done = growing.complete(request_id=None, sent_bytes=0)
    assert done.text == "one and"
    assert "the answer came as several choices" in done.notes


def test_a_text_and_its_calls_as_two_choices_are_one_answer() -> None:
    growing = ChatAnswer()
    call = {"id": "a", "function": {"name": "search", "arguments": "{}"}}
    growing.add(
        {
            "choices": [
                {"finish_reason": "tool_calls", "message": {"content": "I look."}},
                {"finish_reason": "tool_calls", "message": {"tool_calls": [call]}},
            ]
        }
    )
    done = growing.complete(request_id=None, sent_bytes=0)
    assert (done.text, [one.name for one in done.calls]) == ("I look.", ["search"])


def test_thinking_parts_and_signatures_are_kept_and_read() -> None:
    growing = ChatAnswer()
    thoughts = [[{"type": "thinking", "thinking": [{"type": "text", "text": text}]}] for text in ("Hm", "m.")]
    for content in (*thoughts, "Yes."):
        growing.add({"choices": [{"index": 0, "delta": {"content": content}}]})
    seal = {"extra_content": {"google": {"thought_signature": "abc="}}, "thought_signature": "abc="}
    growing.add({"choices": [{"index": 0, "delta": seal, "finish_reason": "stop"}]})
    done = growing.complete(request_id=None, sent_bytes=0)
    assert (done.text, done.thinking) == ("Yes.", "Hmm.")
    assert {name: done.raw[name] for name in seal} == seal
    assert len(done.raw["content"]) == 2


@pytest.mark.parametrize("given", [None, "", "{}", {}])
@pytest.mark.parametrize("where", ["message", "delta"])
def test_a_call_without_name_and_arguments_is_none(where: str, given: Any) -> None:
    nothing = {"name": "", "arguments": given}
    for field in ({"function_call": nothing}, {"tool_calls": [{"id": "a", "index": 0, "function": nothing}]}):
        growing = ChatAnswer()
        growing.add({"choices": [{where: {"content": "4", **field}, "finish_reason": "stop"}]})
        done = growing.complete(request_id=None, sent_bytes=0)
        assert (done.text, done.calls, "tool_calls" in done.raw) == ("4", (), False)


def test_a_call_beside_an_empty_one_is_kept() -> None:
    fragments = [{"index": 0, "function": {"name": ""}}, {"index": 1, "id": "b", "function": {"name": "search"}}]
    done = calls(fragments)
    assert [(call.call_id, call.name) for call in done.calls] == [("b", "search")]


WHOLE = {"role": "assistant", "content": "It is 4.", "reasoning_content": "2 + 2"}
CALLS_TOO = {"content": None, "tool_calls": [{"id": "a", "function": {"name": "search", "arguments": '{"q": "x"}'}}]}


@pytest.mark.parametrize("empty", [{}, {"content": ""}, {"role": "assistant", "content": None, "tool_calls": []}])
def test_a_whole_message_beside_an_empty_delta_is_the_answer(empty: dict[str, Any]) -> None:
    """As Perplexity sends them."""
    for whole, text, names in ((WHOLE, "It is 4.", []), (CALLS_TOO, "", ["search"])):
        body = {"choices": [{"delta": empty, "message": whole, "finish_reason": "stop"}]}
        assert ChatWire().is_answer(body)
        growing = ChatAnswer()
        growing.add(body)
        done = growing.complete(request_id=None, sent_bytes=0)
        assert (done.text, [call.name for call in done.calls]) == (text, names)
        assert done.thinking == whole.get("reasoning_content", "")


def test_a_full_delta_beside_no_message_is_the_answer() -> None:
    body = {"choices": [{"delta": WHOLE, "message": None, "finish_reason": "stop"}]}
    assert ChatWire().is_answer(body)
    growing = ChatAnswer()
    growing.add(body)
    assert growing.complete(request_id=None, sent_bytes=0).text == "It is 4."


def test_an_answer_that_a_filter_cut_off_without_a_message_is_one() -> None:
    """As Azure sends it: it has a usage, by which it is booked."""
    body = {"choices": [{"index": 0, "finish_reason": "content_filter"}], "usage": {"prompt_tokens": 9}}
    assert ChatWire().is_answer(body)
    assert not ChatWire().is_answer({"choices": [{"index": 0, "message": None, "finish_reason": None}]})


def test_a_message_that_repeats_the_pieces_so_far_adds_nothing() -> None:
    growing, so_far = ChatAnswer(), ""
    for piece in ("It ", "is ", "4.", ""):
        so_far += piece
        growing.add({"choices": [{"index": 0, "delta": {"content": piece}, "message": {"content": so_far}}]})
    done = growing.complete(request_id=None, sent_bytes=0)
    assert (done.text, done.raw["content"]) == ("It is 4.", "It is 4.")


def test_messages_that_grow_beside_empty_deltas_are_read_to_their_end() -> None:
    growing = ChatAnswer()
    for so_far in ("It ", "It is ", "It is 4."):
        growing.add({"choices": [{"index": 0, "delta": {"content": ""}, "message": {"content": so_far}}]})
    assert growing.complete(request_id=None, sent_bytes=0).text == "It is 4."


def answer(*pieces: Mapping[str, Any]) -> Completion:
    """Return the answer made of these deltas."""
    growing = ChatAnswer()
    for piece in pieces:
        growing.add({"choices": [{"delta": piece}]})
    return growing.complete(request_id=None, sent_bytes=0)


def calls(fragments: Sequence[Mapping[str, Any]]) -> Completion:
    return answer({"tool_calls": list(fragments)})
