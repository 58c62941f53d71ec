"""Anthropic Messages as its API speaks it: a scripted answer in its events, and what it refuses of a request.

What is refused is what the documentation says is: blocks without text, calls without results and results without
calls, too many cache marks, thinking of the wrong kind for the model, and thinking blocks before which something was
changed since they were written: `signature` is a hash of all that stood before the block.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from support.model_server import Say

MARKS = 4
OLD = ("claude-haiku-4-5", "claude-sonnet-4-5", "claude-opus-4-5")
"""Models that are given a budget to think, and whose thinking is not bound to what stood before it."""
ENDS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def events(step: Say, turn: int, request: Mapping[str, Any]) -> list[bytes]:
    """Return the events of a streamed answer, with every kind that the API sends."""
    usage = figures(step)
    begun = {"input_tokens": usage.get("input_tokens", 0), "output_tokens": 1} if usage else {}
    start = {
        **envelope(request),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, **begun},
    }
    found: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(blocks(step, turn, request)):
        opening, deltas = pieces(block, step.fragment)
        found.append({"type": "content_block_start", "index": index, "content_block": opening})
        found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        found.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": reason(step), "stop_sequence": None}
    found.append({"type": "message_delta", "delta": stop, "usage": usage})
    found.append({"type": "message_stop"})
    return [f"event: {one['type']}\ndata: {json.dumps(one, ensure_ascii=False)}\n\n".encode() for one in found]


def whole(step: Say, turn: int, request: Mapping[str, Any]) -> dict[str, Any]:
    content = blocks(step, turn, request)
    return {
        **envelope(request),
        "content": content,
        "stop_reason": reason(step),
        "stop_sequence": None,
        "usage": figures(step),
    }


def why_refused(request: Mapping[str, Any]) -> str | None:
    """Return why the API would refuse a request, or None."""
    messages = request.get("messages") or []
    if not isinstance(request.get("max_tokens"), int) or request["max_tokens"] < 1:
        return "max_tokens: Field required"
    if not messages or messages[0]["role"] != "user" or messages[-1]["role"] != "user":
        return "messages: the conversation must begin and end with a user message"
    for number, message in enumerate(messages):
        if not message["content"]:
            return f"messages.{number}: all messages must have non-empty content"
        for at, block in enumerate(message["content"]):
            if block["type"] == "text" and not block["text"].strip():
                return f"messages.{number}.content.{at}: text content blocks must contain non-whitespace text"
    marked = [block for block in every_block(request) if "cache_control" in block]
    if len(marked) > MARKS:
        return f"A maximum of {MARKS} blocks with cache_control may be provided. Found {len(marked)}."
    if any(block.get("type") in ("thinking", "redacted_thinking") for block in marked):
        return "cache_control cannot be set on thinking blocks"
    return _calls(messages) or _thinking(request, messages)


def signature(request: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], before: Sequence[Any]) -> str:
    """Return the signature of a thinking block: of everything that stands before it."""
    bare = [[message["role"], [_bare(block) for block in message["content"]]] for message in messages]
    all_before = [[_bare(block) for block in request.get("system") or []], request.get("tools"), bare, list(before)]
    return "sig-" + hashlib.sha256(json.dumps(all_before, sort_keys=True).encode()).hexdigest()[:24]


def blocks(step: Say, turn: int, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if step.reasoning:
        signed = signature(request, request["messages"], [])
        found.append({"type": "thinking", "thinking": step.reasoning, "signature": signed})
    if step.redacted:
        found.append({"type": "redacted_thinking", "data": step.redacted})
    if step.text:
        found.append({"type": "text", "text": step.text})
    for number, (name, args) in enumerate(step.calls):
        found.append({"type": "tool_use", "id": f"toolu_{turn}_{number}", "name": name, "input": args})
    return found


def pieces(block: Mapping[str, Any], size: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return how a block begins, and the deltas that complete it."""

    def cut(text: str) -> Iterable[str]:
        return (text[start : start + size] for start in range(0, len(text), size))

    match block["type"]:
        case "text":
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in cut(block["text"])]
        case "thinking":
            thought = [{"type": "thinking_delta", "thinking": part} for part in cut(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {"type": "thinking", "thinking": "", "signature": ""}, [*thought, signed]
        case "tool_use":
            given = (
                block["input"] if isinstance(block["input"], str) else json.dumps(block["input"], ensure_ascii=False)
            )
            parts = [{"type": "input_json_delta", "partial_json": part} for part in ("", *cut(given))]
            return {**block, "input": {}}, parts
        case _:
            return dict(block), []


def figures(step: Say) -> dict[str, Any]:
    given = dict(step.usage or {})
    if "prompt_tokens" not in given:
        return given
    return {
        "input_tokens": given["prompt_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": given["completion_tokens"],
        "service_tier": "standard",
    }


def envelope(request: Mapping[str, Any]) -> dict[str, Any]:
    number = len(request["messages"])  # Claude Code joins answers of one id
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": request["model"]}


def reason(step: Say) -> str:
    said = step.finish_reason or ("tool_calls" if step.calls else "stop")
    return ENDS.get(said, said)


def every_block(request: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from request.get("system") or []
    yield from request.get("tools") or []
    for message in request["messages"]:
        yield from message["content"]


def _bare(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "cache_control"}


def _calls(messages: Sequence[Mapping[str, Any]]) -> str | None:
    for number, (one, after) in enumerate(pairwise([*messages, {"role": "assistant", "content": []}])):
        asked = [block["id"] for block in one["content"] if block["type"] == "tool_use"]
        given = [block["tool_use_id"] for block in after["content"] if block["type"] == "tool_result"]
        if one["role"] == "assistant" and asked != given:
            return f"messages.{number}: `tool_use` ids {asked} without `tool_result` blocks immediately after: {given}"
        if one["role"] == after["role"]:
            return f"messages.{number}: two messages of one role in a row"
    return None


def _begun(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the first answer of the turn that goes on: of those behind the last message without a result."""
    for number in range(len(messages) - 1, -1, -1):
        one = messages[number]
        if one["role"] == "user" and not any(block["type"] == "tool_result" for block in one["content"]):
            return messages[number + 1]["content"] if number + 1 < len(messages) else ()
    return ()


def _thinking(request: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> str | None:
    given = request.get("thinking") or {}
    old = request["model"].startswith(OLD)
    kinds = {"enabled"} if old else {"adaptive", "disabled", "between_tools"}
    if given and given["type"] not in kinds:
        return f'"thinking.type.{given["type"]}" is not supported for this model.'
    if given.get("type") == "enabled":
        if not 1024 <= given["budget_tokens"] < request["max_tokens"]:
            return "thinking.enabled.budget_tokens: Input should be at least 1024 and less than max_tokens"
        first = _begun(messages)
        if first and first[0]["type"] not in ("thinking", "redacted_thinking"):
            return "messages: Expected `thinking` or `redacted_thinking`, but found `tool_use`"
    elif old and any(block["type"] == "thinking" for message in messages for block in message["content"]):
        return "messages: When `thinking` is disabled, an `assistant` message cannot contain `thinking`"
    for number, message in enumerate(messages):
        for at, block in enumerate(message["content"]):
            if block["type"] == "thinking" and not old:
                before = [_bare(one) for one in message["content"][:at]]
                if block["signature"] != signature(request, messages[:number], before):
                    return (
                        f"messages.{number}.content.{at}: Invalid `signature` in `thinking` block."
                        " The block is bound to a different conversation."
                    )
    return None
