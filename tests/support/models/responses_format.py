"""OpenAI Responses as its API speaks it: a scripted answer in its events, and what it refuses of a request.

What is refused is what people have met: ids of items that are not stored, thinking without its encrypted content or
without an item after it, calls without results and results without calls, encrypted thinking of models that do not
think, `none` for those that always do, and a summary of thinking for an organisation that is not verified.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from support.model_server import Say

THINK = ("gpt-5", "gpt-6", "o1", "o3", "o4")
NEVER_NONE = ("gpt-5-mini", "gpt-5.3-codex", "gpt-6.1-sol", "gpt-6-astra")
ENDS = {"length": "max_output_tokens", "content_filter": "content_filter"}
REFUSAL = "refusal"
"""The `finish_reason` of an answer whose words are a refusal."""


def events(step: Say, request: Mapping[str, Any]) -> list[bytes]:
    """Return the events of a streamed answer, with every kind that the API sends."""
    begun = envelope(request, "in_progress")
    found: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(items(step, request)):
        found += [{"output_index": index, **event} for event in pieces(item, step.fragment)]
    end = whole(step, request)
    found.append({"type": f"response.{end['status']}", "response": end})
    numbered = [{**one, "sequence_number": number} for number, one in enumerate(found)]
    return [f"event: {one['type']}\ndata: {json.dumps(one, ensure_ascii=False)}\n\n".encode() for one in numbered]


def whole(step: Say, request: Mapping[str, Any]) -> dict[str, Any]:
    reason = ENDS.get(step.finish_reason or "")
    return {
        **envelope(request, "incomplete" if reason else "completed"),
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items(step, request),
        "usage": figures(step),
        "service_tier": step.tier or "default",
    }


def envelope(request: Mapping[str, Any], status: str) -> dict[str, Any]:
    effort = {"effort": "medium", "summary": None, **request.get("reasoning", {})}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_790_000_000,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.get("instructions"),
        "max_output_tokens": request.get("max_output_tokens"),
        "max_tool_calls": None,
        "model": request["model"],
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": effort,
        "service_tier": "auto",
        "store": request.get("store", True),
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": request.get("tools", []),
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": {},
    }


def items(step: Say, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    turn = len(request["input"])
    status = "incomplete" if step.finish_reason in ENDS else "completed"
    found: list[dict[str, Any]] = []
    if step.reasoning:
        asked = bool(request.get("reasoning", {}).get("summary"))
        found.append(
            {
                "id": f"rs_{turn}",
                "type": "reasoning",
                "encrypted_content": f"gAAAA{step.reasoning.encode().hex()}==",
                "summary": [{"type": "summary_text", "text": step.reasoning}] if asked else [],
            }
        )
    if step.text:
        part: dict[str, Any] = {"type": "output_text", "text": step.text, "annotations": [], "logprobs": []}
        if step.finish_reason == REFUSAL:
            part = {"type": "refusal", "refusal": step.text}
        found.append({"id": f"msg_{turn}", "type": "message", "role": "assistant", "status": status, "content": [part]})
    for number, (name, args) in enumerate(step.calls):
        found.append(
            {
                "id": f"fc_{turn}_{number}",
                "type": "function_call",
                "call_id": f"call_{turn}_{number}",
                "name": name.rpartition("::")[2],
                **({"namespace": name.partition("::")[0]} if "::" in name else {}),
                "arguments": args if isinstance(args, str) else json.dumps(args, ensure_ascii=False),
                "status": status,
            }
        )
    return found


def pieces(item: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Return the events of one item, from its announcement to the whole of it."""
    named: dict[str, Any] = {"item_id": item["id"]}
    at: dict[str, Any]

    def of(kind: str, text: str, name: str, **more: Any) -> list[dict[str, Any]]:
        cut = [text[start : start + size] for start in range(0, len(text), size)]
        deltas = [{"type": f"response.{kind}.delta", **named, **more, "delta": part} for part in cut]
        return [*deltas, {"type": f"response.{kind}.done", **named, **more, name: text}]

    found: list[dict[str, Any]] = []
    match item["type"]:
        case "reasoning":
            begun = {**item, "summary": [], "encrypted_content": item["encrypted_content"][:9]}
            for index, part in enumerate(item["summary"]):
                at = {**named, "summary_index": index}
                found.append({"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}})
                found += of("reasoning_summary_text", part["text"], "text", summary_index=index)
                found.append({"type": "response.reasoning_summary_part.done", **at, "part": part})
        case "message":
            begun = {**item, "status": "in_progress", "content": []}
            for index, part in enumerate(item["content"]):
                at = {**named, "content_index": index}
                name = "refusal" if part["type"] == "refusal" else "text"
                found.append({"type": "response.content_part.added", **at, "part": {**part, name: ""}})
                logs: dict[str, Any] = {} if name == "refusal" else {"logprobs": []}
                found += of(part["type"], part[name], name, content_index=index, **logs)
                found.append({"type": "response.content_part.done", **at, "part": part})
        case _:
            begun = {**item, "status": "in_progress", "arguments": ""}
            found += of("function_call_arguments", item["arguments"], "arguments")
    added, done = {"type": "response.output_item.added", "item": begun}, {"type": "response.output_item.done"}
    return [added, *found, {**done, "item": item}]


def figures(step: Say) -> dict[str, Any] | None:
    if step.usage is None or "prompt_tokens" not in step.usage:
        return None if step.usage is None else dict(step.usage)
    prompt, output = step.usage["prompt_tokens"], step.usage["completion_tokens"]
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }


def why_refused(request: Mapping[str, Any]) -> str | None:
    """Return why the API would refuse a request, or None."""
    if not isinstance(request.get("max_output_tokens"), int) or request["max_output_tokens"] < 16:
        return "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16."
    unknown = [name for name in ("messages", "max_tokens", "reasoning_effort", "stream_options") if name in request]
    if unknown:
        return f"Unknown parameter: '{unknown[0]}'."
    for number, tool in enumerate(request.get("tools", [])):
        if not tool.get("name") and tool.get("type") != "web_search":
            return f"Missing required parameter: 'tools[{number}].name'."
    reasoning, thinks = request.get("reasoning", {}), request["model"].startswith(THINK)
    if request.get("include") and not thinks:
        return "Encrypted content is not supported with this model."
    if reasoning.get("effort") and not thinks:
        return "Unsupported parameter: 'reasoning.effort' is not supported with this model."
    if reasoning.get("effort") == "none" and request["model"].startswith(NEVER_NONE):
        return f"Unsupported value: 'none' is not supported with the '{request['model']}' model."
    if reasoning.get("summary"):
        return "Your organization must be verified to generate reasoning summaries."
    return _items(request["input"])


def _items(given: list[Mapping[str, Any]]) -> str | None:
    called = [item["call_id"] for item in given if item["type"] == "function_call"]
    answered = [item["call_id"] for item in given if item["type"] == "function_call_output"]
    for call_id in called:
        if answered.count(call_id) != 1:
            return f"No tool output found for function call {call_id}."
    for call_id in answered:
        if called.count(call_id) != 1:
            return f"No tool call found for function call output with call_id {call_id}."
    for number, (item, after) in enumerate(pairwise([*given, {"type": "message", "role": "user"}])):
        if "id" in item:
            return (
                f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false."
                " Try again with `store` set to true, or remove this item from your input."
            )
        if item["type"] == "reasoning" and (not item.get("encrypted_content") or "summary" not in item):
            return f"Invalid 'input[{number}]': the encrypted content could not be verified, or 'summary' is missing."
        if item["type"] == "reasoning" and after.get("role", "assistant") != "assistant":
            return "Item of type 'reasoning' was provided without its required following item."
        if item["type"] == "message" and not _parts_fit(item):
            return f"Invalid value: 'input[{number}].content'."
    return None


def _parts_fit(message: Mapping[str, Any]) -> bool:
    kinds: Iterable[str] = ("output_text", "refusal") if message["role"] == "assistant" else ("input_text",)
    return all(part["type"] in kinds for part in message["content"])
