"""The messages of OpenAI-compatible chat completions: a request's body, and an answer made of pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ava_server.models import wire_json
from ava_server.models.base import (
    AssistantTurn,
    Completion,
    Delta,
    Request,
    ToolSchema,
    ToolTurn,
    ToolUse,
    Turn,
    UserTurn,
)
from ava_server.models.usage import read_usage
from ava_server.models.wire_json import as_list, as_object

_KEPT = ("reasoning_content", "reasoning", "reasoning_details", "refusal")
"""Parts of an answer beside words and calls that a provider wants back as it sent them."""
_OWN = ("id", "index", "type", "function")


def message(turn: Turn) -> Mapping[str, Any]:
    """Return the message that a turn is on the wire; an answer is the provider's own, verbatim."""
    match turn:
        case UserTurn(text):
            return {"role": "user", "content": text}
        case AssistantTurn(raw):
            return raw
        case ToolTurn(call_id, _, text):
            return {"role": "tool", "tool_call_id": call_id, "content": text}


def body(request: Request) -> dict[str, Any]:
    """Return the parts of a request's body that every endpoint understands, in a fixed order."""
    messages: list[Mapping[str, Any]] = (
        [{"role": "system", "content": request.system}] if request.system else []
    )
    messages += [message(turn) for turn in request.turns]
    parts: dict[str, Any] = {"model": request.model, "messages": messages}
    if request.tools:
        parts["tools"] = [_tool(tool) for tool in request.tools]
    return parts


def assistant_message(text: str | None, calls: Sequence[ToolUse] = ()) -> dict[str, Any]:
    """Return an answer as a provider would have sent it."""
    raw: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        raw["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.raw_args},
            }
            for call in calls
        ]
    return raw


def tool_use(call_id: str, name: str, raw_args: str) -> ToolUse:
    """Return a tool call with its arguments read, as far as they are a JSON object."""
    return ToolUse(call_id, name, wire_json.decode_object(raw_args), raw_args)


@dataclass
class Answer:
    """An answer that grows with every chunk of a stream, or is taken whole from a message.

    Attributes:
        finish_reason: The provider's word for why it ended; None while it has not said.
        request_id: The provider's id of the call.
        usage: The provider's figures as they came.
    """

    finish_reason: str | None = None
    request_id: str | None = None
    usage: Mapping[str, Any] | None = None
    _text: list[str] = field(default_factory=list[str])
    _parts: list[Any] = field(default_factory=list[Any])
    _kept: dict[str, Any] = field(default_factory=dict[str, Any])
    _calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _by_index: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])

    def add(self, chunk: Mapping[str, Any]) -> Delta:
        """Take in one chunk, or a whole answer, and return what it brought for the activity line."""
        if isinstance(identity := chunk.get("id"), str) and identity:
            self.request_id = identity
        self.usage = as_object(chunk.get("usage")) or self.usage
        choices = as_list(chunk.get("choices"))
        choice = as_object(choices[0]) if choices else None
        if choice is None:
            return Delta()
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self.finish_reason = reason
        if (delta := as_object(choice.get("delta"))) is not None:
            return self._grow(delta)
        whole = as_object(choice.get("message")) or {}
        # Each is a call of its own, also without an id.
        calls = [
            {**(as_object(call) or {}), "index": n} for n, call in enumerate(as_list(whole.get("tool_calls")))
        ]
        return self._grow({**whole, "tool_calls": calls})

    def complete(self, *, request_id: str | None, notes: tuple[str, ...] = ()) -> Completion:
        """Return the answer as it is to be stored: everything in it is plain, finite JSON.

        Args:
            request_id: The id from the response's headers, for answers that carry none.
            notes: What was odd on the way.
        """
        for number, call in enumerate(self._calls):
            taken = {other["id"] for other in self._calls[:number]}
            # Results are matched to calls by id; some servers send none, or the same one twice.
            if not call["id"] or call["id"] in taken:
                call["id"] = f"{call['id'] or 'call'}_{number}"
        content: Any = self._parts or "".join(self._text) or None
        raw: dict[str, Any] = {"role": "assistant", "content": content, **self._kept}
        if self._calls:
            raw["tool_calls"] = self._calls
        raw, changed = wire_json.storable(raw)
        text = raw["content"] if isinstance(raw["content"], str) else _words(raw["content"])
        calls = tuple(
            tool_use(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in raw.get("tool_calls", ())
        )
        usage, cost_micros, odd = read_usage(self.usage)
        return Completion(
            text=text,
            calls=calls,
            raw=raw,
            usage=usage,
            cost_micros=cost_micros,
            stop_reason=self.finish_reason,
            request_id=wire_json.whole_text(self.request_id or request_id or "")[0] or None,
            notes=(*notes, *changed, *odd),
        )

    def _grow(self, piece: Mapping[str, Any]) -> Delta:
        text = thinking = ""
        content = piece.get("content")
        if isinstance(content, str):
            self._text.append(content)
            text = content
        elif parts := as_list(content):
            self._parts.extend(parts)
            text = _words(parts)
        for key in _KEPT:
            value = piece.get(key)
            if isinstance(value, str) and value:
                self._kept[key] = self._kept.get(key, "") + value
                if key.startswith("reasoning"):
                    thinking = value
            elif pieces := as_list(value):
                _extend(self._kept.setdefault(key, []), pieces)
        for fragment in as_list(piece.get("tool_calls")):
            if (fields := as_object(fragment)) is not None:
                self._fragment(fields)
        return Delta(wire_json.whole_text(text)[0], wire_json.whole_text(thinking)[0])

    def _fragment(self, fragment: Mapping[str, Any]) -> None:
        """Add a fragment to the tool call that it belongs to: by index, else by id, else the last one."""
        identity, index = fragment.get("id"), fragment.get("index")
        call: dict[str, Any] | None
        if isinstance(index, int):
            call = self._by_index.get(index)
        elif identity:
            call = next((known for known in self._calls if known["id"] == identity), None)
        else:
            call = self._calls[-1] if self._calls else None
        # Some servers number every call 0: another id is another call.
        if call is None or (identity and call["id"] and identity != call["id"]):
            call = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            self._calls.append(call)
        if isinstance(index, int):
            self._by_index[index] = call
        call["id"] = call["id"] or (identity if isinstance(identity, str) else "")
        call.update({key: value for key, value in fragment.items() if key not in _OWN and value is not None})
        function = as_object(fragment.get("function")) or {}
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(name, str) and name != call["function"]["name"]:
            call["function"]["name"] += name
        if isinstance(arguments, dict):  # an object instead of its text, as some local servers send it
            arguments = wire_json.encode(wire_json.storable(arguments)[0]).decode()
        if isinstance(arguments, str):
            call["function"]["arguments"] += arguments


def _words(parts: Any) -> str:
    """Return the words of content that came as a list of parts."""
    texts = [(as_object(part) or {}).get("text") for part in as_list(parts)]
    return "".join(text for text in texts if isinstance(text, str))


def _extend(known: list[Any], pieces: Sequence[Any]) -> None:
    """Append pieces of reasoning, joining those of one block, which a stream cuts apart."""
    for piece in pieces:
        fields, last = as_object(piece), as_object(known[-1]) if known else None
        if fields is None:
            known.append(piece)
        elif last is None or not _same_block(fields, last):
            known.append(dict(fields))
        else:
            for key, value in fields.items():
                if key in ("text", "summary", "data") and isinstance(value, str):
                    last[key] = (last.get(key) or "") + value
                elif value is not None:
                    last[key] = value


def _same_block(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return isinstance(one.get("index"), int) and all(
        one.get(key) == other.get(key) for key in ("index", "type")
    )


def _tool(tool: ToolSchema) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
