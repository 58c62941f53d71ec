"""Answers of very many pieces: the time grows with their number, not with its square, and the calls fit in memory."""

import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from support.sample import sample

from ava_server.models.base import Completion
from ava_server.models.json_text import encode
from ava_server.models.wires.chat import ChatAnswer
from ava_server.models.wires.messages import MessagesAnswer
from ava_server.models.wires.responses import ResponsesAnswer
from ava_server.models.wires.wire import MOST_CALLS, WireAnswer

Event = dict[str, Any]
Events = Iterator[Event]

WORDS = "seventeen letters" * 12
"""A piece, long enough for copies of what came before to take most of the time."""
NAMES = ("chat", "messages", "responses")
ANSWERS: dict[str, type[WireAnswer]] = dict(zip(NAMES, (ChatAnswer, MessagesAnswer, ResponsesAnswer), strict=True))


def delta(**fields: Any) -> Event:
    return {"choices": [{"delta": fields}]}


def fragment(**fields: Any) -> Event:
    return delta(tool_calls=[fields])


def begun(index: int = 0, **block: Any) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def grows(kind: str, index: int = 0, **fields: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", **fields}}


def said(kind: str, index: int = 0, place: int = 0, **more: Any) -> Event:
    places = {"content_index": place, "summary_index": place}
    return {"type": f"response.{kind}", "output_index": index, "delta": WORDS, **places, **more}


def again(event: Event, *first: Event) -> Callable[[int], Events]:
    return lambda count: iter((*first, *(event for _ in range(count))))


def each(make: Callable[[int], Event]) -> Callable[[int], Events]:
    return lambda count: map(make, range(count))


def parts_begun(count: int) -> Events:
    yield item("added", 0, type="message", content=[{"type": "output_text", "text": ""} for _ in range(count)])
    yield from (said("output_text.delta", place=place) for place in range(count))


def ends_between(count: int) -> Events:
    for place in range(count // 2):
        yield item("added", place, type="message", content=[])
        yield {"output": []}


TEXTS: dict[str, Callable[[int], Events]] = {
    "chat: content": again(delta(content=WORDS)),
    "chat: reasoning_content": again(delta(reasoning_content=WORDS)),
    "chat: reasoning": again(delta(reasoning=WORDS)),
    "chat: refusal": again(delta(refusal=WORDS)),
    "chat: reasoning_details": again(delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": WORDS}])),
    "chat: summary": again(delta(reasoning_details=[{"type": "reasoning.summary", "index": 0, "summary": WORDS}])),
    "chat: sealed thinking": again(delta(reasoning_details=[{"type": "sealed", "index": 0, "data": WORDS}])),
    "chat: arguments by index": again(fragment(index=0, function={"arguments": WORDS})),
    "chat: arguments by id": again(fragment(id="c", function={"arguments": WORDS})),
    "chat: arguments of the last call": again(fragment(function={"arguments": WORDS})),
    "chat: arguments in one delta": lambda count: iter(
        (delta(tool_calls=[{"index": 0, "function": {"arguments": WORDS}}] * count),)
    ),
    "messages: text": again(grows("text", text=WORDS), begun(type="text", text="")),
    "messages: thinking": again(grows("thinking", thinking=WORDS), begun(type="thinking", thinking="")),
    "messages: signature": again(grows("signature", signature=WORDS), begun(type="thinking", signature="")),
    "messages: citations": again(grows("citations", citation={"of": WORDS}), begun(type="text", citations=None)),
    "messages: arguments": again(grows("input_json", partial_json=WORDS), begun(type="tool_use")),
    "responses: output_text": again(said("output_text.delta")),
    "responses: refusal": again(said("refusal.delta")),
    "responses: reasoning_text": again(said("reasoning_text.delta")),
    "responses: reasoning_summary_text": again(said("reasoning_summary_text.delta")),
    "responses: arguments": again(said("function_call_arguments.delta")),
    "responses: parts": each(lambda place: said("output_text.delta", place=place)),
    "responses: parts that have begun": parts_begun,
    "responses: messages": each(lambda index: said("output_text.delta", index)),
}
"""Each kind of text of which an answer may consist."""

CALLS: dict[str, Callable[[int], Events]] = {
    "chat: calls by index": each(lambda index: fragment(index=index, function={"name": "a"})),
    "chat: calls by id": each(lambda index: fragment(id=f"c{index}", function={"name": "a"})),
    "chat: calls all numbered 0": each(lambda index: fragment(index=0, id=f"c{index}", function={"name": "a"})),
    "messages: calls": each(lambda index: begun(index, type="tool_use", name="a")),
    "responses: calls": each(lambda index: item("added", index, type="function_call", name="a")),
    "responses: calls all numbered 0": each(
        lambda index: item("done", 0, type="function_call", id=f"c{index}", name="a")
    ),
    "responses: calls never announced": each(lambda index: said("function_call_arguments.delta", index, delta="[1]")),
}
OTHERS: dict[str, Callable[[int], Events]] = {
    "chat: names of a call": each(lambda index: fragment(index=0, function={"name": f"{index}{WORDS}"})),
    "chat: usage": each(lambda index: {"usage": {f"prompt_tokens_{index}": 1}}),
    "messages: blocks": each(lambda index: begun(index, type="text" if index % 2 else "tool_use")),
    "responses: items": each(lambda index: item("added", index, type=("message", "function_call")[index % 2])),
    "responses: ends": ends_between,
    "responses: calls in the end": lambda count: iter(({"output": [{"type": "function_call"} for _ in range(count)]},)),
}
KINDS = {**TEXTS, **CALLS, **OTHERS}
MILD = ("messages: citations", "messages: blocks", "responses: parts that have begun")
"""Kinds of which a copy costs little, so that it takes more of them for the square to show."""


@pytest.mark.parametrize("kind", sample(KINDS, 12))
def test_one_long_answer_takes_as_long_as_many_short_ones_of_as_many_pieces(kind: str) -> None:
    """Twice the same work, so no machine is too slow or too busy; with the square, the long one takes 16 times it."""
    whole = 32_000 if kind in MILD else 8_000
    short = whole // 16

    def took(pieces: int) -> float:
        answers = [list(KINDS[kind](pieces)) for _ in range(whole // pieces)]
        began = time.process_time()
        for events in answers:
            answered(kind, events)
        return time.process_time() - began

    assert any(took(whole) < 4 * took(short) for _ in range(3))


@pytest.mark.parametrize("kind", TEXTS)
def test_all_pieces_of_a_text_are_in_the_answer(kind: str) -> None:
    done = answered(kind, TEXTS[kind](300))
    text = done.calls[0].raw_args if done.calls else encode(done.raw).decode()
    assert text.count(WORDS) == 300


@pytest.mark.parametrize("kind", CALLS)
def test_calls_beyond_those_that_are_kept_are_counted_in_bounded_memory(kind: str) -> None:
    tracemalloc.start()
    try:
        done = answered(kind, CALLS[kind](10_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert len(done.calls) == MOST_CALLS
    assert f"kept the first {MOST_CALLS} of 10,000 tool calls" in done.notes


def pieces_of_calls(name: str, count: int) -> Events:
    """Yield calls in three pieces each; a last one comes late, for the first call."""
    for index in range(count):
        if name == "chat":
            yield fragment(index=index, id=f"c{index}", function={"name": "search"})
            yield fragment(index=index, function={"arguments": '{"n": '})
            yield fragment(index=index, function={"arguments": f"{index}}}"})
        elif name == "messages":
            yield begun(index, type="tool_use", id=f"c{index}", name="search")
            yield grows("input_json", index, partial_json='{"n": ')
            yield grows("input_json", index, partial_json=f"{index}}}")
        else:
            yield item("added", index, type="function_call", call_id=f"c{index}", name="search")
            yield said("function_call_arguments.delta", index, delta='{"n": ')
            yield said("function_call_arguments.delta", index, delta=f"{index}}}")
    yield {
        "chat": fragment(index=0, function={"arguments": " "}),
        "messages": grows("input_json", partial_json=" "),
        "responses": said("function_call_arguments.delta", delta=" "),
    }[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_in_pieces_counts_once_however_many_there_are(name: str) -> None:
    done = answered(name, pieces_of_calls(name, 3_000))
    assert [(call.call_id, call.args) for call in done.calls] == [(f"c{n}", {"n": n}) for n in range(MOST_CALLS)]
    assert [call.raw_args for call in done.calls[:2]] == ['{"n": 0} ', '{"n": 1}']
    assert f"kept the first {MOST_CALLS} of 3,000 tool calls" in done.notes


@pytest.mark.parametrize(("more", "kept"), [(0, "streamed"), (1, "repeated")])
def test_an_end_that_repeats_the_items_is_compared_with_all_that_came(more: int, kept: str) -> None:
    calls = (item("done", index, type="function_call", name="streamed") for index in range(3_000))
    end = {"output": [{"type": "function_call", "name": "repeated"} for _ in range(3_000 + more)]}
    done = answered("responses", [*calls, end])
    assert {call.name for call in done.calls} == {kept}
    assert f"kept the first {MOST_CALLS} of {3_000 + more:,} tool calls" in done.notes


def item(step: str, index: int, **fields: Any) -> Event:
    return {"type": f"response.output_item.{step}", "output_index": index, "item": fields}


def answered(kind: str, events: Iterable[Event]) -> Completion:
    growing = ANSWERS[kind.partition(":")[0]]()
    for event in events:
        growing.add(event)
    return growing.complete(request_id=None, sent_bytes=0)
