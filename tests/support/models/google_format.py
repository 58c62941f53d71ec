"""Google's generateContent as its API speaks it: a scripted answer in its events, and what it refuses of a request.

What is refused is what people have met: unknown fields, contents without parts, results that do not follow their calls
or are of another number, and, from Gemini 3 on, calls without a signature, and a budget with a level of thinking.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from support.model_server import Say

SIGNATURE = "c2VhbGVk"
ENDS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
BLOCKED = "blocked"
"""The `finish_reason` of an answer that is none, as the prompt was refused."""
_FIELDS = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings"}
_PART_FIELDS = {"text", "thought", "thoughtSignature", "functionCall", "functionResponse"}


def events(step: Say, request: Mapping[str, Any]) -> list[bytes]:
    """Return the events of a streamed answer: texts in pieces, calls whole, and the usage so far in each."""
    usage = figures(step)
    chunks = [{**chunk, **({"usageMetadata": usage} if usage else {})} for chunk in _chunks(step, request)]
    common = {"modelVersion": "test", "responseId": response_id(request)}
    return [f"data: {json.dumps({**chunk, **common}, ensure_ascii=False)}\r\n\r\n".encode() for chunk in chunks]


def whole(step: Say, request: Mapping[str, Any]) -> dict[str, Any]:
    usage = figures(step)
    answer: dict[str, Any] = {"modelVersion": "test", "responseId": response_id(request)}
    if usage:
        answer["usageMetadata"] = usage
    if step.finish_reason == BLOCKED:
        return {**answer, "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}
    content: dict[str, Any] = {"role": "model"}
    if parts := _parts(step, request):
        content["parts"] = parts
    return {**answer, "candidates": [{"content": content, "finishReason": _reason(step), "index": 0}]}


def response_id(request: Mapping[str, Any]) -> str:
    return f"resp{len(request['contents'])}"


def _reason(step: Say) -> str:
    return ENDS.get(step.finish_reason or "", step.finish_reason or "STOP")


def _parts(step: Say, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if step.reasoning:
        parts.append({"text": step.reasoning, "thought": True})
    if step.text:
        parts.append({"text": step.text})
    for number, (name, args) in enumerate(step.calls):
        call = {"name": name, "args": args, "id": f"fc{len(request['contents'])}_{number}"}
        parts.append({"functionCall": call, **({} if number else {"thoughtSignature": SIGNATURE})})
    return parts


def _chunks(step: Say, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    if step.finish_reason == BLOCKED:
        return [{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}]
    pieces: list[dict[str, Any]] = []
    for part in _parts(step, request):
        text = part.get("text")
        if text is None:
            pieces.append(part)
        else:
            size = step.fragment
            pieces += [{**part, "text": text[start : start + size]} for start in range(0, len(text), size)]
    chunks: list[dict[str, Any]] = [{"content": {"parts": [piece], "role": "model"}, "index": 0} for piece in pieces]
    chunks.append({"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": _reason(step), "index": 0})
    return [{"candidates": [chunk]} for chunk in chunks]


def figures(step: Say) -> dict[str, Any] | None:
    if step.usage is None or "prompt_tokens" not in step.usage:
        return None if step.usage is None else dict(step.usage)
    prompt, output = step.usage["prompt_tokens"], step.usage["completion_tokens"]
    thought = min(len(step.reasoning), output - 1)
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": output - thought,
        **({"thoughtsTokenCount": thought} if thought else {}),
        "totalTokenCount": prompt + output,
    }


def why_refused(request: Mapping[str, Any], model: str) -> str | None:
    """Return why the API would refuse a request, or None."""
    if unknown := request.keys() - _FIELDS:
        return f'Invalid JSON payload received. Unknown name "{min(unknown)}": Cannot find field.'
    config = request.get("generationConfig", {})
    if not isinstance(config.get("maxOutputTokens"), int) or config["maxOutputTokens"] < 1:
        return "max_output_tokens must be positive."
    thinking, newer = config.get("thinkingConfig", {}), model.startswith(("gemini-3", "gemini-4"))
    if newer and thinking.get("thinkingBudget") is not None:
        return "You can only set only one of thinking budget and thinking level."
    if not newer and thinking.get("thinkingLevel"):
        return "Thinking level is not supported for this model."
    return _contents(request["contents"], checks_signatures=newer)


def _contents(given: list[Mapping[str, Any]], *, checks_signatures: bool) -> str | None:
    if not given or given[0]["role"] != "user":
        return "Please ensure that single turn requests end with a user role or the role field is empty."
    calls: list[Mapping[str, Any]] = []
    for number, content in enumerate(given):
        parts = content["parts"]
        if not parts or any(part.keys() - _PART_FIELDS for part in parts):
            return f"Unable to submit request: contents[{number}] must include at least one parts field."
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if [(one.get("id"), one["name"]) for one in results] != [(one.get("id"), one["name"]) for one in calls]:
            return (
                "Please ensure that the number of function response parts is equal to the number of function call"
                " parts of the function call turn."
            )
        called = [part for part in parts if "functionCall" in part]
        if called and checks_signatures and not called[0].get("thoughtSignature"):
            return "Function call is missing a thought_signature in functionCall parts."
        calls = [part["functionCall"] for part in called]
    return "a call without its result" if calls else None
