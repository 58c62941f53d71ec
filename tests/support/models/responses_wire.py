"""Requests to the Responses API, and the events of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio

from ava_server.models.base import Completion, Request, ToolSchema, Turn, UserTurn
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.model_choice import thinking_of
from ava_server.models.wires.responses import ResponsesAnswer, ResponsesWire
from support.model_server import Received, Script, run_model_server

SEARCH = ToolSchema("search", "Finds things.", {"type": "object", "properties": {"q": {"type": "string"}}})
TASK = UserTurn("Find the blue door.")
MODEL = "gpt-6.1-terra"
WIRE = ResponsesWire(thinking=thinking_of(MODEL))


def ask_responses(*turns: Turn, model: str = MODEL, thinking: int = 0) -> Request:
    """Return a request with these turns."""
    return Request(model, "You are terse.", (SEARCH,), turns or (TASK,), 8192, thinking)


async def read_answers(
    script: Script, *requests: Request, wire: ResponsesWire = WIRE, key: str | None = "key-0123456789"
) -> tuple[list[Completion], list[Received]]:
    """Ask a server that plays the script, and return its answers and what it received."""
    found: list[Completion] = []
    with anyio.fail_after(40), run_model_server(script) as server:
        async with ClientPool() as clients:
            model = HttpModel("openai", "m", server.base_url, key, clients, wire)
            for request in requests or (ask_responses(),):
                async with model.stream(request) as stream:
                    async for _ in stream:
                        pass
                found.append(stream.completion)
        return found, server.requests


def answer_of(*events: Mapping[str, Any]) -> ResponsesAnswer:
    """Return the answer that these events make."""
    answer = ResponsesAnswer()
    for event in events:
        answer.add(event)
    return answer


def done_event(*events: Mapping[str, Any]) -> Completion:
    """Return the answer made of these events."""
    return answer_of(*events).complete(request_id=None, sent_bytes=0)


def item_of(fields: Mapping[str, Any], index: int = 0, step: str = "done") -> dict[str, Any]:
    """Return the event of an item."""
    return {"type": f"response.output_item.{step}", "output_index": index, "item": fields}


def message_item(text: str, **more: Any) -> dict[str, Any]:
    """Return a message of the model."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def call_item(call_id: str | None, **more: Any) -> dict[str, Any]:
    """Return a call of a tool."""
    return {"type": "function_call", "call_id": call_id, "name": "search", "arguments": "{}", **more}
