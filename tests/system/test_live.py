"""A real call of each provider whose key is there: a turn with a tool, its result sent back, thinking where it can.

    ANTHROPIC_API_KEY=… pytest tests/system/test_live.py

costs less than a cent for each provider. Without a key the test is skipped, and says which it wants.
"""

from __future__ import annotations

import os

import anyio
import pytest

from ava_server.config.keys import WELL_KNOWN
from ava_server.models.base import AssistantTurn, Completion, Model, Request, ToolSchema, ToolTurn, UserTurn
from ava_server.models.factory import how_it_thinks, model_of, parameters
from ava_server.models.http_clients import ClientPool
from ava_server.models.model_choice import KNOWN_URLS, ModelSettings, Provider, choose
from ava_server.models.prices import cost_micros

DOOR = ToolSchema(
    "door_colour",
    "Tells the colour of a door.",
    {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
)
TASK = UserTurn("Which colour has door number 7? Ask the tool, then answer with that one word.")


async def ask(model: Model, request: Request) -> Completion:
    async with model.stream(request) as stream:
        async for _ in stream:
            pass
    return stream.completion


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("provider", sorted(KNOWN_URLS.keys() & WELL_KNOWN.keys()))
async def test_each_provider_answers_calls_a_tool_and_accepts_its_result(provider: str, thinks: bool) -> None:
    key = os.environ.get(WELL_KNOWN[provider])
    if not key:
        pytest.skip(f"no {WELL_KNOWN[provider]}")
    choice = choose("fast", "fast", ModelSettings(providers={provider: Provider(api_key=key)}))
    if thinks and not how_it_thinks(choice).possible:
        pytest.skip(f"{choice.name} cannot be told to think")
    thinking = 2048 if thinks else 0
    async with ClientPool() as clients:
        model = model_of(choice.name, parameters(choice), choice.api_key, clients)
        with anyio.fail_after(120):
            first = await ask(model, Request(choice.model_id, "Be terse.", (DOOR,), (TASK,), 4096, thinking))
            (call,) = first.calls
            assert (call.name, call.args) == ("door_colour", {"number": 7})
            turns = (TASK, AssistantTurn(first.raw), ToolTurn(call.call_id, call.name, "teal"))
            last = await ask(model, Request(choice.model_id, "Be terse.", (DOOR,), turns, 4096, thinking))
    assert "teal" in last.text.lower()
    for completion in (first, last):
        assert completion.usage is not None, completion.notes
        assert completion.request_id
        assert 0 < cost_micros(choice.price, completion.usage) < 10_000
