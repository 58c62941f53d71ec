"""OpenAI Responses against the official SDK: what it takes for the real API's, and what Ava reads, is the same.

The SDK checks every event and every whole answer against its own types (`_strict_response_validation`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from pydantic import TypeAdapter
from support.model_server import ModelServer, Say, run_model_server
from support.models import responses_format

from ava_audit.events import Usage
from ava_server.models.base import AssistantTurn, Completion, Request, ToolSchema, ToolTurn, UserTurn
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.json_text import as_object
from ava_server.models.model_choice import thinking_of
from ava_server.models.wires.responses import ResponsesWire

if TYPE_CHECKING:  # the SDK takes a second to import, which each process of the tests would wait for
    from openai.types.responses import Response, ResponseOutputItem

MODEL = "gpt-6.1-sol"
SEARCH = ToolSchema("search", "Finds things.", {"type": "object", "properties": {"q": {"type": "string"}}})
TASK = UserTurn("Find the blue door.")
ASK = Request(MODEL, "You are terse.", (SEARCH,), (TASK,), 8192, 4096)
USED = {
    "input_tokens": 9_000,
    "input_tokens_details": {"cached_tokens": 6_000, "cache_write_tokens": 2_000},
    "output_tokens": 500,
    "output_tokens_details": {"reasoning_tokens": 300},
    "total_tokens": 9_500,
}
SAYS = {
    "words": Say("Grüße, 世界 ✓", usage=USED),
    "calls": Say("I look for it.", [("search", {"q": "blüe"}), ("search", {"q": "b"})], reasoning="Where?", usage=USED),
    "a call without words": Say(calls=[("search", {})], reasoning="Where?", usage=USED),
    "cut": Say("I would", finish_reason="length", usage=USED),
    "filtered": Say("I would", finish_reason="content_filter", usage=USED),
    "refused": Say("I would rather not.", finish_reason="refusal", usage=USED),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", SAYS)
async def test_the_openai_sdk_reads_the_same_as_ava(name: str, streaming: bool) -> None:
    from openai.types.responses import ResponseReasoningItem

    say = SAYS[name]
    with anyio.fail_after(20), run_model_server([say, say]) as server:
        known = await anyio.to_thread.run_sync(lambda: theirs(server, ASK, streaming=streaming))
        read = await ours(server, ASK, streaming=streaming)
        by_sdk, by_us = server.requests
    assert {"stream": False, **by_sdk.json} == by_us.json
    assert by_sdk.path == by_us.path == "/v1/responses"
    assert by_sdk.headers["authorization"] == by_us.headers["authorization"]
    refused = name == "refused"
    assert (known.output_text, read.text) == ("" if refused else say.text, say.text)
    assert calls_in(known.output) == [(call.call_id, call.name, call.raw_args) for call in read.calls]
    assert known.incomplete_details is None or known.incomplete_details.reason == read.stop_reason
    assert (known.status == "completed") == (read.stop_reason in ("completed", "refusal"))
    sealed = [item.encrypted_content for item in known.output if isinstance(item, ResponseReasoningItem)]
    items = [as_object(item) or {} for item in read.raw["output"]]
    assert sealed == [item["encrypted_content"] for item in items if item["type"] == "reasoning"]
    assert known.usage is not None and read.usage is not None
    assert read.usage == Usage(
        input_tokens=1_000, cache_read_tokens=6_000, cache_write_tokens=2_000, output_tokens=500, thinking_tokens=300
    )
    details = known.usage.input_tokens_details
    assert known.usage.input_tokens == read.usage.input_tokens + details.cached_tokens + details.cache_write_tokens
    assert known.usage.output_tokens == read.usage.output_tokens
    assert known.usage.output_tokens_details.reasoning_tokens == read.usage.thinking_tokens


def test_the_openai_sdk_knows_every_event_including_thinking_summaries() -> None:
    from openai.types.responses import ResponseStreamEvent

    kinds: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    request = {"model": MODEL, "input": [], "reasoning": {"summary": "auto"}}
    events = [data for say in SAYS.values() for data in responses_format.events(say, request)]
    found = {kinds.validate_json(data.partition(b"data: ")[2]).type for data in events}
    assert found >= {
        "response.created", "response.in_progress", "response.output_item.added", "response.output_item.done",
        "response.content_part.added", "response.content_part.done", "response.output_text.delta",
        "response.output_text.done", "response.refusal.delta", "response.refusal.done",
        "response.function_call_arguments.delta", "response.function_call_arguments.done",
        "response.reasoning_summary_part.added", "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
        "response.completed", "response.incomplete",
    }  # fmt: skip


async def test_the_openai_sdk_sends_back_the_same_json_as_ava() -> None:
    say = SAYS["calls"]
    with anyio.fail_after(20), run_model_server([say, Say("ok"), Say("ok")]) as server:
        first = await ours(server, ASK, streaming=True)
        results = [ToolTurn(call.call_id, call.name, "found") for call in first.calls]
        again = Request(MODEL, ASK.system, (SEARCH,), (TASK, AssistantTurn(first.raw), *results), 8192, 4096)
        await ours(server, again, streaming=True)
        await anyio.to_thread.run_sync(lambda: theirs(server, again, streaming=True))
        _, by_us, by_sdk = server.requests
    assert by_sdk.json == by_us.json


async def test_the_scripted_server_rejects_for_the_sdk_what_the_api_would_reject() -> None:
    from openai import APIStatusError, OpenAI

    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    with run_model_server([]) as server:
        client = OpenAI(base_url=server.base_url, api_key="key", max_retries=0)

        def ask() -> None:
            with client:
                client.responses.create(model=MODEL, input=[thought], max_output_tokens=99, store=False)  # type: ignore[list-item]

        with pytest.raises(APIStatusError, match="Items are not persisted when `store` is set to false"):
            await anyio.to_thread.run_sync(ask)


def wire(streaming: bool) -> ResponsesWire:
    return ResponsesWire(streaming, thinking_of(MODEL))


async def ours(server: ModelServer, request: Request, *, streaming: bool) -> Completion:
    async with ClientPool() as clients:
        model = HttpModel("openai", MODEL, server.base_url, "key", clients, wire(streaming))
        async with model.stream(request) as stream:
            async for _ in stream:
                pass
        return stream.completion


def theirs(server: ModelServer, request: Request, *, streaming: bool) -> Response:
    """Ask with the SDK's own arguments, from the body that ours would send."""
    from openai import OpenAI
    from openai.types.responses import Response, ResponseCompletedEvent, ResponseIncompleteEvent

    client = OpenAI(base_url=server.base_url, api_key="key", max_retries=0, _strict_response_validation=True)
    with client:
        given = {name: value for name, value in wire(streaming).body(request).items() if name != "stream"}
        if not streaming:
            whole = client.responses.create(**given)
            assert isinstance(whole, Response)
            return whole
        last = None
        number = 0
        for number, event in enumerate(client.responses.create(**given, stream=True)):
            assert event.sequence_number == number  # pyright: ignore[reportAttributeAccessIssue]
            last = event
        assert isinstance(last, ResponseCompletedEvent | ResponseIncompleteEvent) and number > 4
        return last.response


def calls_in(output: list[ResponseOutputItem]) -> list[tuple[str, str, str]]:
    from openai.types.responses import ResponseFunctionToolCall

    return [(item.call_id, item.name, item.arguments) for item in output if isinstance(item, ResponseFunctionToolCall)]
