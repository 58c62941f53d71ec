"""The messages of OpenAI-compatible chat completions: a request's body, and an answer made of pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
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
from ava_server.models.usage import larger, read_usage
from ava_server.models.wire_json import as_list, as_object

_KEPT = ("reasoning_content", "reasoning", "reasoning_details", "refusal")
"""Parts of an answer beside words and calls that a provider wants back as it sent them."""
_OWN = ("id", "index", "type", "function")
_JOINED = ("text", "summary", "data")
"""Fields of a piece of reasoning that a stream cuts apart."""
MOST_CALLS = 128
"""Tool calls that are kept of one answer; no model asks for as many."""
_LONGEST_WORD = 200
"""Characters of a provider's id or reason that are kept: they are for people, and go into every log line."""


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
    messages: list[Mapping[str, Any]] = [{"role": "system", "content": request.system}] if request.system else []
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
    """Return a tool call with its arguments read, as far as they are a JSON object.

    A pure function of three strings: the log keeps these three, and a resumed run reads the same call from them.
    """
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
    _content: list[Any] = field(default_factory=list[Any])
    _kept: dict[str, Any] = field(default_factory=dict[str, Any])
    _dropped: dict[str, None] = field(default_factory=dict[str, None])
    _calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _by_index: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    _by_id: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def add(self, chunk: Mapping[str, Any]) -> Delta:
        """Take in one chunk, or a whole answer, and return what it brought for the activity line."""
        if isinstance(identity := chunk.get("id"), str) and identity:
            self.request_id = identity
        self.usage = larger(self.usage, as_object(chunk.get("usage")) or None)
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
        calls = [{**(as_object(call) or {}), "index": n} for n, call in enumerate(as_list(whole.get("tool_calls")))]
        return self._grow({**whole, "tool_calls": calls})

    def complete(self, *, request_id: str | None, sent_bytes: int, notes: tuple[str, ...] = ()) -> Completion:
        """Return the answer as it is to be stored: everything in it is plain, finite JSON.

        Args:
            request_id: The id from the response's headers, for answers that carry none.
            sent_bytes: The size of the request's body.
            notes: What was odd on the way.
        """
        raw: dict[str, Any] = {"role": "assistant", "content": _whole(self._content), **self._kept}
        if self._calls:
            raw["tool_calls"] = self._calls[:MOST_CALLS]
        raw, changed = wire_json.storable(raw)
        _tell_apart(raw.get("tool_calls", ()))
        text = raw["content"] if isinstance(raw["content"], str) else _words(raw["content"])
        calls = tuple(
            tool_use(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in raw.get("tool_calls", ())
        )
        said_something = bool(text or calls or self._kept)
        usage, cost_micros, odd = read_usage(self.usage, sent_bytes=sent_bytes, said_something=said_something)
        dropped = list(self._dropped)
        if len(self._calls) > MOST_CALLS:
            dropped.append(f"kept the first {MOST_CALLS} of {len(self._calls):,} tool calls")
        return Completion(
            text=text,
            calls=calls,
            raw=raw,
            usage=usage,
            cost_micros=cost_micros,
            stop_reason=_word(self.finish_reason),
            request_id=_word(self.request_id or request_id),
            notes=(*notes, *dropped, *changed, *odd),
        )

    def _grow(self, piece: Mapping[str, Any]) -> Delta:
        text = thinking = ""
        content = piece.get("content")
        if isinstance(content, str):
            self._content.append(content)
            text = content
        elif parts := as_list(content):
            self._content.extend(parts)
            text = _words(parts)
        for key in _KEPT:
            if value := piece.get(key):
                thinking = self._keep(key, value) or thinking
        for fragment in as_list(piece.get("tool_calls")):
            if (fields := as_object(fragment)) is not None:
                self._fragment(fields)
        return Delta(wire_json.whole_text(text)[0], wire_json.whole_text(thinking)[0])

    def _keep(self, key: str, value: Any) -> str:
        """Keep what a provider wants back, as long as it stays what it was, and return what of it is thinking."""
        known = self._kept.get(key)
        if isinstance(value, str) and (known is None or isinstance(known, str)):
            self._kept[key] = (known or "") + value
            return value if key.startswith("reasoning") else ""
        if isinstance(value, list) and (known is None or isinstance(known, list)):
            odd = _extend(self._kept.setdefault(key, []), as_list(value))
            self._dropped.update({f"dropped a piece of {key}: its {name} was {what}": None for name, what in odd})
        else:
            self._dropped[f"dropped a piece of {key} that was {_kind(value)}"] = None
        return ""

    def _fragment(self, fragment: Mapping[str, Any]) -> None:
        """Add a fragment to the tool call that it belongs to: by index, else by id, else the last one."""
        identity, index = fragment.get("id"), fragment.get("index")
        identity = identity if isinstance(identity, str) else ""
        call: dict[str, Any] | None
        if isinstance(index, int):
            call = self._by_index.get(index)
        elif identity:
            call = self._by_id.get(identity)
        else:
            call = self._calls[-1] if self._calls else None
        # Some servers number every call 0: another id is another call.
        if call is None or (identity and call["id"] and identity != call["id"]):
            call = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            self._calls.append(call)
        if isinstance(index, int):
            self._by_index[index] = call
        call["id"] = call["id"] or identity
        self._by_id.setdefault(call["id"], call)
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


def _whole(pieces: Sequence[Any]) -> Any:
    """Return content as it came: text, or a list of parts, in which text between them is a part as well."""
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces) or None
    parts: list[Any] = []
    for is_text, group in groupby(pieces, lambda piece: isinstance(piece, str)):
        if not is_text:
            parts += group
        elif text := "".join(group):
            parts.append({"type": "text", "text": text})
    return parts


def _tell_apart(calls: Iterable[dict[str, Any]]) -> None:
    """Give each call an id of its own: results are matched by it, and servers send none, or one of them twice."""
    taken: set[str] = set()
    for number, call in enumerate(calls):
        identity = call["id"] or f"call_{number}"
        while identity in taken:
            identity = f"{identity}_{number}"
        call["id"] = identity
        taken.add(identity)


def _word(said: str | None) -> str | None:
    """Return a provider's word as the log can hold it."""
    return wire_json.whole_text((said or "")[:_LONGEST_WORD])[0] or None


def _kind(value: Any) -> str:
    """Return what a piece of JSON is, as a note says it."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict) else "a number or a truth value"


def _extend(known: list[Any], pieces: Sequence[Any]) -> set[tuple[str, str]]:
    """Append pieces of reasoning, joining those of one block, which a stream cuts apart.

    Returns:
        What was dropped because it was not of the kind that it had been: the field, and what it was.
    """
    odd: set[tuple[str, str]] = set()
    for piece in pieces:
        fields, last = as_object(piece), as_object(known[-1]) if known else None
        if fields is None:
            known.append(piece)
        elif last is None or not _same_block(fields, last):
            known.append(dict(fields))
        else:
            for key, value in fields.items():
                before = last.get(key)
                if value is None:
                    continue
                if key not in _JOINED or before is None:
                    last[key] = value
                elif isinstance(value, str) and isinstance(before, str):
                    last[key] = before + value
                else:
                    odd.add((key, _kind(value)))
    return odd


def _same_block(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return isinstance(one.get("index"), int) and all(one.get(key) == other.get(key) for key in ("index", "type"))


def _tool(tool: ToolSchema) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
