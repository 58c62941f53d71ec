"""OpenAI-compatible chat completions: a request's body, and an answer made of pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

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
from ava_server.models.thinking import EFFORT, LOW, UNKNOWN, Thinking
from ava_server.models.tokens import larger, read_usage
from ava_server.models.wires import base as wire_json
from ava_server.models.wires.base import MOST_CALLS, as_list, as_object, told_apart, too_many, tool_use, word

_KEPT = ("reasoning_content", "reasoning", "reasoning_details", "refusal")
"""Parts of an answer beside words and calls that a provider wants back as it sent them."""
_OWN = ("id", "index", "type", "function")
_JOINED = ("text", "summary", "data")
"""Fields of a piece of reasoning that a stream cuts apart."""
_UNSEEN = ("reasoning_content", "reasoning", "reasoning_details")
"""Parts of an earlier answer that templates and providers leave out of the next prompt."""


@dataclass(frozen=True)
class ChatWire:
    """Chat completions as one endpoint has them.

    Attributes:
        streaming: Ask for a stream; some servers cannot.
        output_field: What the endpoint calls the limit of an answer's tokens.
        extra: Further parts of each request's body, such as OpenRouter's `provider`.
        thinking: How the model is told to think.
        thinking_field: Where it is told: a word of its own, or OpenRouter's table.
    """

    streaming: bool = True
    output_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    thinking: Thinking = UNKNOWN
    thinking_field: Literal["reasoning_effort", "reasoning"] = "reasoning_effort"
    speaks: str = field(default="chat completions", init=False)
    part: str = field(default="choices", init=False)

    def url(self, base_url: str) -> str:
        """Return where completions are asked for, under an API's address."""
        base = base_url.rstrip("/")
        return base if base.endswith("/chat/completions") else f"{base}/chat/completions"

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the bearer token, if there is a key."""
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    def message(self, turn: Turn) -> Mapping[str, Any]:
        """Return the message that a turn is.

        An answer is the provider's own, verbatim, but for thinking that it would not take back.
        """
        sent = message(turn)
        if not isinstance(turn, AssistantTurn):
            return sent
        if turn.without_thinking or (turn.edited_before and self.thinking.bound):
            return {name: value for name, value in sent.items() if name not in _UNSEEN}
        return sent

    def body(self, request: Request) -> dict[str, Any]:
        """Return the whole body of a request."""
        parts = body(request, self.message)
        parts[self.output_field] = request.max_output
        parts["stream"] = self.streaming
        if self.streaming:
            parts["stream_options"] = {"include_usage": True}
        return {**parts, **self._thinking(request.thinking), **self.extra}

    def _thinking(self, tokens: int) -> dict[str, Any]:
        """Return what tells the model to think for about so many tokens, or, with 0, not to."""
        in_table = self.thinking_field == "reasoning"
        if tokens:
            if in_table and self.thinking.on == "budget":
                return {"reasoning": {"max_tokens": tokens}}
            effort = EFFORT if self.thinking.possible else None
        elif in_table and self.thinking.off == "disabled":
            return {"reasoning": {"enabled": False}}
        else:
            effort = {"default": None, "disabled": "none"}.get(self.thinking.off, LOW)
        if effort is None:
            return {}
        return {"reasoning": {"effort": effort}} if in_table else {"reasoning_effort": effort}

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """Tell whether the model can be told to think: always, or never."""
        return self.thinking.possible

    def answer(self) -> ChatAnswer:
        """Return an empty answer."""
        return ChatAnswer()

    def fault(self, event: Mapping[str, Any]) -> Any:
        """Return the error in a chunk's or an answer's place."""
        return event.get("error")

    def is_answer(self, whole: Mapping[str, Any]) -> bool:
        """Tell whether JSON that came in one piece has a message."""
        choices = as_list(whole.get("choices"))
        return bool(choices and (as_object(choices[0]) or {}).get("message"))

    def unseen(self, raw: Mapping[str, Any]) -> int:
        """Return the bytes of an earlier answer's thinking."""
        return sum(len(wire_json.encode(raw[key])) for key in _UNSEEN if key in raw)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> dict[str, Any]:
        """Return an answer as a provider would have sent it."""
        return assistant_message(text, calls)


def message(turn: Turn) -> Mapping[str, Any]:
    """Return the message that a turn is on the wire; an answer is the provider's own, verbatim."""
    match turn:
        case UserTurn(text):
            return {"role": "user", "content": text}
        case AssistantTurn(raw):
            return raw
        case ToolTurn(call_id, _, text):
            return {"role": "tool", "tool_call_id": call_id, "content": text}


def body(request: Request, message: Callable[[Turn], Mapping[str, Any]] = message) -> dict[str, Any]:
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


@dataclass
class ChatAnswer:
    """An answer that grows with every chunk of a stream, or is taken whole from a message.

    Attributes:
        finish_reason: The provider's word for why it ended; None while it has not said.
        request_id: The provider's id of the call.
        usage: The provider's figures as they came.
        over: Never true: the last chunk looks like any other, and `[DONE]`, which follows it, is none.
    """

    finish_reason: str | None = None
    request_id: str | None = None
    usage: Mapping[str, Any] | None = None
    over: bool = False
    _content: list[Any] = field(default_factory=list[Any])
    _kept: dict[str, Any] = field(default_factory=dict[str, Any])
    _dropped: dict[str, None] = field(default_factory=dict[str, None])
    _calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _by_index: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    _by_id: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @property
    def ended(self) -> bool:
        """Whether the provider has said why it ended."""
        return self.finish_reason is not None

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

    def complete(
        self, *, request_id: str | None, sent_bytes: int, unseen: Callable[[], int] = int, notes: tuple[str, ...] = ()
    ) -> Completion:
        """Return the answer as it is to be stored: everything in it is plain, finite JSON."""
        raw: dict[str, Any] = {"role": "assistant", "content": _whole(self._content), **self._kept}
        if self._calls:
            raw["tool_calls"] = self._calls[:MOST_CALLS]
        raw, changed = wire_json.storable(raw)
        asked = raw.get("tool_calls", [])
        for call, identity in zip(asked, told_apart(one["id"] for one in asked), strict=True):
            call["id"] = identity
        text = raw["content"] if isinstance(raw["content"], str) else _words(raw["content"])
        calls = tuple(tool_use(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in asked)
        said_something = bool(text or calls or self._kept)
        usage, cost_micros, odd = read_usage(
            self.usage, sent_bytes=sent_bytes, said_something=said_something, unseen=unseen
        )
        return Completion(
            text=text,
            calls=calls,
            raw=raw,
            usage=usage,
            cost_micros=cost_micros,
            thinking=_readable(raw),
            stop_reason=word(self.finish_reason),
            request_id=word(self.request_id or request_id),
            notes=(*notes, *self._dropped, *too_many(len(self._calls)), *changed, *odd),
        )

    def _grow(self, piece: Mapping[str, Any]) -> Delta:
        text = thinking = arguments = ""
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
                arguments += self._fragment(fields)
        return Delta(wire_json.whole_text(text)[0], wire_json.whole_text(thinking)[0], arguments)

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

    def _fragment(self, fragment: Mapping[str, Any]) -> str:
        """Add a fragment to the tool call that it belongs to: by index, else by id, else the last one.

        Returns:
            What it brought of the call's arguments.
        """
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
        if not isinstance(arguments, str):
            return ""
        call["function"]["arguments"] += arguments
        return arguments


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


def _readable(raw: Mapping[str, Any]) -> str:
    """Return the thinking in an answer as far as a person can read it."""
    for key in ("reasoning_content", "reasoning"):
        if isinstance(said := raw.get(key), str) and said:
            return said
    details = (as_object(piece) or {} for piece in as_list(raw.get("reasoning_details")))
    texts = (piece.get("text") or piece.get("summary") for piece in details)
    return "\n".join(text for text in texts if isinstance(text, str))


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
