"""OpenAI Responses: a request's body, and an answer made of items.

It is what OpenAI's own models need to call tools: chat completions refuse those that think any function tools beside an
effort other than `none`; left out, it counts as the default one, and some take no `none` (openai/openai-openapi#541).

A request is whole in itself and asks not to be stored; thinking comes and goes back encrypted. Items are kept
as they came. What the API would refuse of them does not go back: their ids, which it would look up and does not need
(openai/codex#3390), their status, thinking that nobody can decrypt, and thinking that an answer ended in. Thinking
before which something was changed it leaves out by itself, and says so (`input_transformations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ava_server.models import wire_json
from ava_server.models.base import AssistantTurn, Request, ToolSchema, ToolTurn, ToolUse, Turn, UserTurn
from ava_server.models.responses_answer import CALL, THOUGHT, ResponsesAnswer
from ava_server.models.thinking import EFFORT, LOW, UNKNOWN, Thinking
from ava_server.models.wire_json import as_list, as_object

_LEFT_OUT = ("id", "status")
"""Fields of an item that are about what the provider has stored, which is nothing."""


@dataclass(frozen=True)
class ResponsesWire:
    """OpenAI Responses as one endpoint has them.

    Attributes:
        streaming: Ask for a stream; some servers cannot.
        thinking: How the model is told to think.
    """

    streaming: bool = True
    thinking: Thinking = UNKNOWN
    speaks: str = field(default="OpenAI Responses", init=False)
    part: str = field(default="output", init=False)

    def url(self, base_url: str) -> str:
        """Return where responses are asked for, under an API's address."""
        base = base_url.rstrip("/")
        return base if base.endswith("/responses") else f"{base}/responses"

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the bearer token, if there is a key."""
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    def message(self, turn: Turn) -> Mapping[str, Any]:
        """Return a turn as an item; an answer has several, under `output`."""
        match turn:
            case AssistantTurn(raw, _, without_thinking):
                return {"role": "assistant", "output": _sent_back(raw, with_thinking=not without_thinking)}
            case UserTurn(text):
                return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            case ToolTurn(call_id, _, text):
                return {"type": "function_call_output", "call_id": call_id, "output": text}

    def body(self, request: Request) -> dict[str, Any]:
        """Return the whole body of a request."""
        parts: dict[str, Any] = {"model": request.model}
        if request.system:
            parts["instructions"] = request.system
        items: list[Any] = []
        for turn in request.turns:
            one = self.message(turn)
            items += one["output"] if isinstance(turn, AssistantTurn) else [one]
        parts["input"] = items
        if request.tools:
            parts["tools"] = [_tool(tool) for tool in request.tools]
        parts |= {"max_output_tokens": request.max_output, **self._thinking(request.thinking), "store": False}
        if self.thinking.possible:  # models that do not think refuse it: "Encrypted content is not supported"
            parts["include"] = ["reasoning.encrypted_content"]
        return {**parts, "stream": self.streaming}

    def _thinking(self, tokens: int) -> dict[str, Any]:
        """Return what tells the model to think, or, with 0, not to.

        No summary of its thinking is asked for: OpenAI refuses that to organisations that are not verified.
        """
        if tokens and self.thinking.possible:
            return {"reasoning": {"effort": EFFORT}}
        effort = {"default": None, "disabled": "none"}.get(self.thinking.off, LOW)
        return {"reasoning": {"effort": effort}} if effort else {}

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """Tell whether the model can be told to think: always, or never."""
        return self.thinking.possible

    def answer(self) -> ResponsesAnswer:
        """Return an empty answer."""
        return ResponsesAnswer()

    def fault(self, event: Mapping[str, Any]) -> Any:
        """Return the error in an event's or an answer's place."""
        if event.get("type") == "error":
            return event.get("error") or event
        response = as_object(event.get("response")) or event
        if error := response.get("error") or event.get("error"):
            return error
        failed = event.get("type") == "response.failed" or response.get("status") in ("failed", "cancelled")
        return {"message": f"the response is {response.get('status') or 'failed'}"} if failed else None

    def is_answer(self, whole: Mapping[str, Any]) -> bool:
        """Tell whether JSON that came in one piece is a response."""
        return isinstance(whole.get("output"), list)

    def unseen(self, raw: Mapping[str, Any]) -> int:
        """Return the bytes of an earlier answer's thinking."""
        items = (as_object(item) or {} for item in as_list(raw.get("output")))
        return sum(len(wire_json.encode(item)) for item in items if item.get("type") == THOUGHT)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> dict[str, Any]:
        """Return an answer as the provider would have sent it."""
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
        output: list[dict[str, Any]] = [{"type": "message", "role": "assistant", "content": [part]}] if text else []
        output += [
            {"type": CALL, "call_id": call.call_id, "name": call.name, "arguments": call.raw_args} for call in calls
        ]
        return {"role": "assistant", "output": output}


def _sent_back(raw: Mapping[str, Any], *, with_thinking: bool) -> list[dict[str, Any]]:
    """Return the items of an earlier answer that the API takes back."""
    items = [fields for item in as_list(raw.get("output")) if (fields := as_object(item))]
    kept = [item for item in items if item.get("type") != THOUGHT or (with_thinking and _can_be_read(item))]
    while kept and kept[-1].get("type") == THOUGHT:
        kept.pop()
    return [{name: value for name, value in item.items() if name not in _LEFT_OUT} for item in kept]


def _can_be_read(thought: Mapping[str, Any]) -> bool:
    """Tell whether the model can be shown its thinking again; that of open models has no seal, and is plain words."""
    return bool(thought.get("encrypted_content") or thought.get("content"))


def _tool(tool: ToolSchema) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", **function, "strict": False}  # strict schemas have no optional property
