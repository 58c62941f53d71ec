"""The providers' own Python SDKs as clients of the tests' model server: it speaks what they and we read alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.model_server import Say, run_model_server

from ava_server.models.base import Completion, Request, ToolSchema, UserTurn
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.messages import MessagesWire
from ava_server.models.wires.wire import Wire

SEARCH = ToolSchema("search", "Finds things.", {"type": "object", "properties": {"q": {"type": "string"}}})
CALLS = [("search", {"q": "blue döor ✓"}), ("search", {"q": "second"})]
BLOCKS = Say(
    "I look for it. 世界",
    CALLS,
    reasoning="Where could it be?",
    redacted="e30=",
    usage={
        "input_tokens": 100,
        "output_tokens": 20,
        "cache_read_input_tokens": 30,
        "cache_creation_input_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 9},
    },
)
CHAT = Say(
    "I look for it. 世界",
    CALLS,
    usage={
        "prompt_tokens": 137,
        "completion_tokens": 20,
        "total_tokens": 157,
        "prompt_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 7},
        "completion_tokens_details": {"reasoning_tokens": 9},
    },
)


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [True, False])
async def test_the_anthropic_sdk_reads_every_event_and_accepts_what_ava_sends_back(streaming: bool) -> None:
    import anthropic

    with run_model_server([BLOCKS, BLOCKS, Say("done", usage={"input_tokens": 200, "output_tokens": 2})]) as server:
        completion = await ours(server.base_url, MessagesWire(streaming))
        body: dict[str, Any] = server.requests[0].json
        body.pop("stream")
        address = server.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(api_key="key-0123456789", base_url=address, max_retries=0) as client:
            kinds: list[str] = []
            if streaming:
                async with client.messages.stream(**body) as stream:
                    async for event in stream:
                        kinds.append(event.type)
                    theirs = await stream.get_final_message()
            else:
                theirs = await client.messages.create(**body)
            results = [
                {"type": "tool_result", "tool_use_id": call.call_id, "content": "found"} for call in completion.calls
            ]
            again = [*body["messages"], completion.raw, {"role": "user", "content": results}]
            last = await client.messages.create(**{**body, "messages": again})
    assert [block.text for block in last.content if block.type == "text"] == ["done"]
    assert not server.refused
    assert_same_message(theirs, completion)
    if streaming:
        assert {"message_start", "content_block_start", "content_block_delta", "content_block_stop"} < set(kinds)
        assert {"text", "thinking", "signature", "input_json", "message_delta", "message_stop"} < set(kinds)


def assert_same_message(theirs: Any, completion: Completion) -> None:
    """What the SDK has read is what Ava has read: texts, calls, thinking, its end and its usage."""
    assert "".join(block.text for block in theirs.content if block.type == "text") == completion.text == BLOCKS.text
    uses = [(block.id, block.name, block.input) for block in theirs.content if block.type == "tool_use"]
    assert uses == [(call.call_id, call.name, call.args) for call in completion.calls]
    assert [name_and_args[1:] for name_and_args in uses] == CALLS
    thoughts = [(block.thinking, block.signature) for block in theirs.content if block.type == "thinking"]
    assert thoughts == [(completion.raw["content"][0]["thinking"], completion.raw["content"][0]["signature"])]
    assert [block.data for block in theirs.content if block.type == "redacted_thinking"] == [BLOCKS.redacted]
    assert theirs.stop_reason == completion.stop_reason == "tool_use"
    usage = completion.usage
    assert usage is not None
    assert (theirs.usage.input_tokens, theirs.usage.output_tokens) == (usage.input_tokens, usage.output_tokens)
    assert theirs.usage.cache_read_input_tokens == usage.cache_read_tokens == 30
    assert theirs.usage.cache_creation_input_tokens == usage.cache_write_tokens == 7
    assert theirs.usage.output_tokens_details is not None
    assert theirs.usage.output_tokens_details.thinking_tokens == usage.thinking_tokens == 9


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [True, False])
async def test_the_openai_sdk_reads_the_same_chat_completions(streaming: bool) -> None:
    import openai

    with run_model_server([CHAT, CHAT]) as server:
        completion = await ours(server.base_url, ChatWire(streaming))
        body: dict[str, Any] = server.requests[0].json
        body.pop("stream")
        async with openai.AsyncOpenAI(api_key="key-0123456789", base_url=server.base_url, max_retries=0) as client:
            if streaming:
                body.pop("stream_options")
                async with client.chat.completions.stream(**body, stream_options={"include_usage": True}) as stream:
                    async for _ in stream:
                        pass
                    theirs = await stream.get_final_completion()
            else:
                theirs = await client.chat.completions.create(**body)
    (choice,) = theirs.choices
    assert choice.message.content == completion.text == CHAT.text
    asked = [
        (call.id, call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()
    ]
    assert asked == [(call.call_id, call.name, call.args) for call in completion.calls]
    assert [name_and_args[1:] for name_and_args in asked] == CALLS
    assert choice.finish_reason == completion.stop_reason == "tool_calls"
    usage = completion.usage
    assert usage is not None
    assert theirs.usage is not None
    assert theirs.usage.prompt_tokens == usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens == 137
    assert theirs.usage.prompt_tokens_details is not None
    assert theirs.usage.prompt_tokens_details.cached_tokens == usage.cache_read_tokens == 30
    assert theirs.usage.completion_tokens_details is not None
    assert theirs.usage.completion_tokens_details.reasoning_tokens == usage.thinking_tokens == 9


@pytest.mark.slow
async def test_an_api_error_raises_an_error_in_the_sdk() -> None:
    import anthropic

    with run_model_server([]) as server:
        address = server.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(api_key="key-0123456789", base_url=address, max_retries=0) as client:
            with pytest.raises(anthropic.BadRequestError, match="must begin and end with a user message"):
                await client.messages.create(model="claude-sonnet-5-5", max_tokens=5, messages=[])


async def ours(url: str, wire: Wire) -> Completion:
    """What our own wire reads."""
    request = Request("claude-sonnet-5-5", "Be terse.", (SEARCH,), (UserTurn("Find it."),), 8192, 4096)
    async with (
        ClientPool() as clients,
        HttpModel("p", "m", url, "key-0123456789", clients, wire).stream(request) as one,
    ):
        async for _ in one:
            pass
    return one.completion
