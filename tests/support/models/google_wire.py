"""Requests in Google's format, and the answers to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio

from ava_server.models.base import Completion, Request, ToolSchema, Turn, UserTurn
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.model_choice import thinking_of
from ava_server.models.wires.google import GoogleWire
from support.model_server import EVENTS, JSON, Raw, Received, Script, run_model_server

MODEL = "gemini-3.8-flash"
SEARCH = ToolSchema("search", "Finds things.", {"type": "object", "properties": {"q": {"type": "string"}}})
TASK = UserTurn("Find the blue door.")
WIRE = GoogleWire(thinking=thinking_of(MODEL))


def google_events(*said: Mapping[str, Any]) -> Raw:
    """Return a stream of these events."""
    return Raw([f"data: {json.dumps(one)}\r\n\r\n".encode() for one in said], EVENTS)


def whole_event(answer: Mapping[str, Any]) -> Raw:
    """Return an answer that is not streamed."""
    return Raw([json.dumps(answer).encode()], JSON)


def candidate(*parts: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return an event with these parts."""
    ending = {"finishReason": finish} if finish else {}
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0, **ending, **more}]}


def usage_of(prompt: int, answer: int = 0, thought: int = 0, **more: int) -> dict[str, Any]:
    """Return a usage as Google writes it: without the counts that are 0."""
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": answer, "thoughtsTokenCount": thought, **more}
    tools = more.get("toolUsePromptTokenCount", 0)
    return {name: count for name, count in counts.items() if count} | {
        "totalTokenCount": prompt + answer + thought + tools
    }


def google_error(code: int, status: str, message: str, *details: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error as Google writes it."""
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def ask_google(*turns: Turn, model: str = MODEL, thinking: int = 0) -> Request:
    """Return a request with these turns."""
    return Request(model, "You are terse.", (SEARCH,), turns or (TASK,), 8192, thinking)


async def read_answers(
    script: Script, *requests: Request, wire: GoogleWire = WIRE, key: str | None = "key-0123456789", model: str = MODEL
) -> tuple[list[Completion], list[Received]]:
    """Ask a server that plays the script, and return its answers and what it received."""
    found: list[Completion] = []
    with anyio.fail_after(40), run_model_server(script) as server:
        async with ClientPool() as clients:
            http = HttpModel("google", model, server.base_url, key, clients, wire)
            for request in requests or (ask_google(model=model),):
                async with http.stream(request) as stream:
                    async for _ in stream:
                        pass
                found.append(stream.completion)
        assert server.refused == []
        return found, server.requests
