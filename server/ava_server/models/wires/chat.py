"""OpenAI-compatible chat completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import groupby
from typing import Any, ClassVar, Literal, cast

from ava_server.models import json_text
from ava_server.models.base import AssistantTurn, Delta, Request, ToolTurn, ToolUse, Turn, UserTurn
from ava_server.models.json_text import as_list, as_object, as_text, fields_of, grown, objects_in
from ava_server.models.prompt_cache import CacheMark
from ava_server.models.wires.wire import (
    MOST_CALLS,
    WholeAnswer,
    Wire,
    WireAnswer,
    asks_for_something,
    cache_key,
    dropped_calls_note,
    is_whole_object,
    marked,
    set_unique_ids,
    tool_use,
)

_THINKING = ("reasoning_content", "reasoning", "reasoning_details")
"""Parts of an earlier answer that templates and providers leave out of the next prompt."""
_SIGNED = ("thought_signature", "extra_content")
"""Google's seals of an answer's thinking, which come whole."""
_KEPT = (*_THINKING, "refusal", *_SIGNED)
"""Parts of an answer besides text and calls that a provider wants back as it sent them."""
_MOST_CHOICES = 8
OUTPUT_FIELDS = ("max_tokens", "max_completion_tokens")
"""What endpoints call the limit on an answer."""
ASK_USAGE: Mapping[str, Any] = {"include_usage": True}
"""The `stream_options` that have a stream end with its usage."""
_STOPPED_TO_CALL = ("tool_calls", "function_call")
_CALL_FIELDS = ("id", "index", "type", "function")
_JOINED = ("text", "summary", "data")
"""Fields of a piece of reasoning that a stream splits."""


@dataclass(frozen=True)
class ChatWire(Wire):
    """Chat completions as one endpoint has them: its names for the limit of tokens and thinking, and `extra` parts.

    `cache_mark` marks the end of what other runs share; without it, the provider caches by itself.
    """

    speaks: ClassVar[str] = "chat completions"
    flavors: ClassVar[tuple[str, ...]] = ("chat", "default")
    part: ClassVar[str] = "choices"
    path: ClassVar[str] = "/chat/completions"
    has_other_limit: ClassVar[bool] = True
    output_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    thinking_field: Literal["reasoning_effort", "reasoning"] = "reasoning_effort"
    asks_usage: bool = True
    cache_mark: CacheMark = ""

    def message(self, turn: Turn) -> Mapping[str, Any]:
        """Return a turn's message; an answer is the provider's own, without thinking that it would not accept."""
        sent = message(turn)
        if not isinstance(turn, AssistantTurn):
            return sent
        is_stale = turn.edited_before and self.thinking.bound
        if not (turn.without_thinking or is_stale):
            return sent
        kept = {name: value for name, value in sent.items() if name not in _THINKING}
        if isinstance(kept.get("content"), list):
            words = [part for part in as_list(kept["content"]) if not _is_thought(part)]
            kept["content"] = words or None
        return kept

    def body(self, request: Request) -> dict[str, Any]:
        parts = body(request, self.message)
        if self.cache_mark and request.shared_chars:
            texts = [{"type": "text", "text": text} for text in request.system_parts]
            parts["messages"][0] = {"role": "system", "content": marked(texts, self.cache_mark)}
            parts |= cache_key(request, self.cache_mark)
        parts[self._limit_name(other=request.other_limit)] = request.max_output
        parts["stream"] = self.streaming
        if self.streaming and self.asks_usage:
            parts["stream_options"] = ASK_USAGE
        parts |= self.tier(refused=request.tier_refused)
        return {**parts, **self._thinking(request.thinking), **self.extra}

    def accepted_body(self, body: Mapping[str, Any], *, other_limit: bool = False) -> dict[str, Any]:
        parts = {name: value for name, value in body.items() if name not in OUTPUT_FIELDS}
        limits = [body[name] for name in OUTPUT_FIELDS if name in body]
        if limits:
            parts[self._limit_name(other=other_limit)] = limits[0]
        parts.pop("stream_options", None)
        if parts.get("stream") is True and self.asks_usage:
            parts["stream_options"] = ASK_USAGE
        return {**parts, **self.extra}

    def _limit_name(self, *, other: bool) -> str:
        if not other:
            return self.output_field
        usual = OUTPUT_FIELDS.index(self.output_field)
        return OUTPUT_FIELDS[1 - usual]

    def _thinking(self, tokens: int) -> dict[str, Any]:
        """Return what tells the model to think for about so many tokens, or, with 0, not to think."""
        effort = self.effort(tokens)
        if self.thinking_field == "reasoning_effort":
            return {} if effort is None else {"reasoning_effort": effort}
        if tokens and self.thinking.on == "budget":
            return {"reasoning": {"max_tokens": tokens}}
        if not tokens and self.thinking.off == "disabled":
            return {"reasoning": {"enabled": False}}
        return {} if effort is None else {"reasoning": {"effort": effort}}

    def answer(self) -> ChatAnswer:
        return ChatAnswer()

    def is_answer(self, whole: Mapping[str, Any]) -> bool:
        """Tell whether JSON is an answer; one that Azure's filter cut off has a reason for its end alone."""
        choices = objects_in(whole.get("choices"))
        return bool(choices) and any(choices[0].get(name) for name in ("message", "delta", "finish_reason"))

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> dict[str, Any]:
        return assistant_message(text, calls)


def message(turn: Turn) -> Mapping[str, Any]:
    """Return a turn's message; an answer is the provider's own, verbatim."""
    match turn:
        case UserTurn(text):
            return {"role": "user", "content": text}
        case AssistantTurn(raw):
            return raw
        case ToolTurn(call_id, _, text):
            return {"role": "tool", "tool_call_id": call_id, "content": text}


def body(request: Request, message: Callable[[Turn], Mapping[str, Any]] = message) -> dict[str, Any]:
    """Return the parts of a request's body that every endpoint understands, in a fixed order."""
    messages: list[Mapping[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": request.system})
    messages += [message(turn) for turn in request.turns]
    parts: dict[str, Any] = {"model": request.model, "messages": messages}
    if request.tools:
        parts["tools"] = [{"type": "function", "function": tool.as_dict()} for tool in request.tools]
    return parts


def assistant_message(text: str | None, calls: Sequence[ToolUse] = ()) -> dict[str, Any]:
    raw: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        raw["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.raw_args}}
            for call in calls
        ]
    return raw


@dataclass
class ChatAnswer(WireAnswer):
    """An answer of chunks, or a whole message; never `over`, as `[DONE]` after the last chunk is not a chunk."""

    _content: list[Any] = field(default_factory=list[Any])
    _kept: dict[str, Any] = field(default_factory=dict[str, Any])
    _dropped: dict[str, None] = field(default_factory=dict[str, None])
    _calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _known: dict[int | str, dict[str, Any]] = field(default_factory=dict[int | str, dict[str, Any]])
    _first: int | None = None
    _other: ChatAnswer | None = None
    _beside: Mapping[str, Any] | None = None  # the last message that came beside pieces

    def add(self, chunk: Mapping[str, Any]) -> Delta:
        """Take in a chunk; of several choices the first counts, and the calls of another where it lacks its own."""
        self._read_id_and_usage(chunk)
        if not self.usage:  # unless Groq is asked for the usage, it stands here
            self._read_id_and_usage({"usage": fields_of(chunk.get("x_groq")).get("usage")})
        delta = Delta()
        for place, choice in enumerate(objects_in(as_list(chunk.get("choices"))[:_MOST_CHOICES])):
            number = place
            index = choice.get("index")
            if isinstance(index, int) and choice.get("message") is None:
                number = index
            if self._first is None:
                self._first = number
            if number == self._first:
                delta = self._add_choice(choice)
            else:
                self._add_other(choice)
        return delta

    def _add_choice(self, choice: Mapping[str, Any]) -> Delta:
        """Take in a piece or a whole message. Perplexity sends both: the message repeats the pieces so far."""
        self.stop_reason = as_text(choice.get("finish_reason")) or self.stop_reason
        message = as_object(choice.get("message"))
        delta = as_object(choice.get("delta"))
        if delta is None:
            return self._grow_whole(message or {})
        if message:
            self._beside = message
        return self._grow(delta)

    def _grow_whole(self, message: Mapping[str, Any]) -> Delta:
        calls: list[dict[str, Any]] = []
        for number, call in enumerate(as_list(message.get("tool_calls"))):  # each is a separate call, even without id
            calls.append({**fields_of(call), "index": number})
        return self._grow({**message, "tool_calls": calls})

    def _fill_from_message(self) -> None:
        """Take from the message beside the pieces what no piece had."""
        message, self._beside = self._beside, None
        if message is None:
            return
        missing = dict(message)
        if any(self._content):
            missing.pop("content", None)
        if self._called():
            missing.pop("tool_calls", None)
            missing.pop("function_call", None)
        for key in self._kept:
            missing.pop(key, None)
        self._grow_whole(missing)

    def _add_other(self, choice: Mapping[str, Any]) -> None:
        """Keep the calls of another choice: some gateways give a text and its calls as two."""
        self._other = self._other or ChatAnswer(_first=0)
        part = {name: value for name, value in choice.items() if name != "index"}
        self._other.add({"choices": [part]})

    def _called(self) -> list[dict[str, Any]]:
        return [call for call in self._calls if _is_call(call["function"])]

    def _calls_of_answer(self) -> list[dict[str, Any]]:
        calls = self._called()
        if self._other is None or calls or self.stop_reason not in _STOPPED_TO_CALL:
            return calls
        return self._other._called()

    def whole(self) -> WholeAnswer:
        for choice in (self, self._other):
            if choice is not None:
                choice._fill_from_message()
        raw: dict[str, Any] = {"role": "assistant", "content": _joined(self._content), **self._kept}
        all_calls = self._calls_of_answer()
        if all_calls:
            raw["tool_calls"] = all_calls[:MOST_CALLS]
        raw, changed = json_text.storable(raw)
        text = raw["content"]
        if not isinstance(text, str):
            text = _words(text)
        raw_calls = raw.get("tool_calls", [])
        set_unique_ids(raw_calls, "id")
        calls: list[ToolUse] = []
        for call in raw_calls:
            function = call["function"]
            calls.append(tool_use(call["id"], function["name"], function["arguments"]))
        notes = [*self._dropped, *dropped_calls_note(len(all_calls) + self._let_go), *changed]
        if self._other is not None:
            notes.insert(0, "the answer came as several choices")
        return WholeAnswer(
            raw=raw,
            text=text,
            calls=tuple(calls),
            thinking=_readable(raw),
            is_empty=not any((text, calls, self._kept)),
            notes=tuple(notes),
        )

    def final_request_id(self, in_headers: str | None) -> str | None:
        """Return the id of the call; the answer's own counts first."""
        return self.request_id or in_headers

    def _grow(self, piece: Mapping[str, Any]) -> Delta:
        text = thinking = ""
        content = piece.get("content")
        if isinstance(content, str):
            self._content.append(content)
            text = content
        elif parts := as_list(content):
            self._content.extend(parts)
            text, thinking = _words(parts), _thoughts(parts)
        for key in _KEPT:
            value = piece.get(key)
            if value:
                thinking = self._keep(key, value) or thinking
        fragments = objects_in(piece.get("tool_calls"))
        old_form = as_object(piece.get("function_call"))
        if old_form is not None and not fragments:
            fragments = [{"function": old_form}]
        arguments = "".join([self._add_fragment(fragment) for fragment in fragments])
        return Delta(json_text.join_surrogates(text)[0], json_text.join_surrogates(thinking)[0], arguments)

    def _keep(self, key: str, value: Any) -> str:
        """Keep a part that a provider wants back, while its type stays the same; return what of it is thinking."""
        known = self._kept.get(key)
        if key in _SIGNED and isinstance(value, str | dict):
            if isinstance(value, dict):
                value = {**fields_of(known), **fields_of(value)}
            self._kept[key] = value
        elif isinstance(value, str) and isinstance(known, StringIO | None):
            self._kept[key] = grown(known, value)
            if key in _THINKING:
                return value
        elif isinstance(value, list) and isinstance(known, list | None):
            for name, kind in _extend(self._kept.setdefault(key, []), as_list(value)):
                self._dropped[f"dropped a piece of {key}: its {name} was {kind}"] = None
        else:
            self._dropped[f"dropped a piece of {key} that was {_kind(value)}"] = None
        return ""

    def _begin(self) -> dict[str, Any]:
        function = {"name": StringIO(), "arguments": ""}
        call: dict[str, Any] = {"id": "", "type": "function", "function": function}
        self._calls.append(call)
        self._known[""] = call  # of a fragment with neither index nor id
        if self._surplus(len(self._calls), lambda: self._calls):
            del self._calls[MOST_CALLS:-1]
            held = set(map(id, self._calls))
            self._known = {key: known for key, known in self._known.items() if id(known) in held}
        return call

    def _add_fragment(self, fragment: Mapping[str, Any]) -> str:
        """Add a fragment to its tool call, found by index, else by id, else the last one; return new arguments."""
        function = fields_of(fragment.get("function"))
        call = self._call_of(fragment, function)
        for key, value in fragment.items():
            if key not in _CALL_FIELDS and value is not None:
                call[key] = value
        name = as_text(function.get("name"))
        known = call["function"]["name"]
        if len(name) != known.tell() or name != known.getvalue():  # some servers repeat it
            known.write(name)
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # some local servers send an object instead of its text
            arguments = json_text.encode(json_text.storable(arguments)[0]).decode()
        text = as_text(arguments)
        if not text:
            return ""
        before = call["function"]["arguments"]
        if isinstance(before, StringIO) and _repeats(before, text):  # some servers send all of it so far each time
            text = text[before.tell() :]
        call["function"]["arguments"] = grown(before, text)
        return text

    def _call_of(self, fragment: Mapping[str, Any], function: Mapping[str, Any]) -> dict[str, Any]:
        """Return the call of a fragment, known or begun by it."""
        identity = as_text(fragment.get("id"))
        index = fragment.get("index")
        call = self._known.get(index if isinstance(index, int) else identity)
        # Some servers number every call 0: another id is another call, and so is what follows a whole one. Others give
        # each fragment an id of its own; without a name it begins no call.
        if call is not None and identity and call["id"] not in ("", identity):
            same = None if function.get("name") else call
            call = self._known.get(identity, same)
        if call is None or (not identity and self._begins_another(call["function"], function)):
            call = self._begin()
        if isinstance(index, int):
            self._known[index] = call
        if not call["id"]:
            call["id"] = identity
        self._known.setdefault(call["id"], call)
        return call

    def _begins_another(self, known: Mapping[str, Any], function: Mapping[str, Any]) -> bool:
        """Tell whether a fragment without an id begins another call than the one so far."""
        name = as_text(function.get("name"))
        if not name:
            return False
        if isinstance(known["arguments"], StringIO) and known["arguments"].tell():
            return name != known["name"].getvalue() or _has_new_arguments(known["arguments"], function)
        # Without arguments so far, it may be the next piece of a name that some servers split.
        if known["name"].tell() not in map(len, self.offered):
            return False
        so_far = known["name"].getvalue()
        may_go_on = any(one.startswith(so_far + name) for one in self.offered)
        return name != so_far and so_far in self.offered and not may_go_on


def _is_call(function: Mapping[str, Any]) -> bool:
    """Tell whether a call has a name or arguments; some servers (Snowflake) put an empty one into every answer."""
    return asks_for_something(_text_of(function["name"]), _text_of(function["arguments"]))


def _text_of(text: str | StringIO) -> str:
    return text if isinstance(text, str) else text.getvalue()


def _has_new_arguments(arguments: StringIO, function: Mapping[str, Any]) -> bool:
    """Tell whether a fragment that repeats a call's name has the arguments of another call."""
    piece = function.get("arguments")
    is_new = True
    if not isinstance(piece, dict):
        text = as_text(piece)
        is_new = text.strip() != "" and not _repeats(arguments, text)
    return is_new and is_whole_object(arguments.getvalue())


def _repeats(known: StringIO, piece: str) -> bool:
    """Tell whether a piece of arguments begins with all that came before; no next piece of JSON can do that."""
    return 1 < known.tell() <= len(piece) and piece.lstrip().startswith("{") and piece.startswith(known.getvalue())


def _is_thought(part: Any) -> bool:
    return fields_of(part).get("type") == "thinking"


def _own_thought(part: Any) -> Any:
    """Return a thinking part with a list of its own, to which more can be added."""
    fields = fields_of(part)
    known = fields.get("thinking")
    if not _is_thought(part) or not isinstance(known, list):
        return part
    return {**fields, "thinking": as_list(known)}


def _thoughts(parts: Any) -> str:
    """Return the text of Mistral's thinking parts, which are lists of text parts."""
    texts: list[str] = []
    for part in objects_in(parts):
        if _is_thought(part):
            thinking = part.get("thinking")
            texts.append(thinking if isinstance(thinking, str) else _words(thinking))
    return "".join(texts)


def _words(parts: Any) -> str:
    return "".join(as_text(part.get("text")) for part in objects_in(parts))


def _joined(pieces: Sequence[Any]) -> Any:
    """Return content as it came: text, or a list of parts, where text in between becomes a part as well."""
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces) or None
    parts: list[Any] = []
    for is_text, group in groupby(pieces, lambda piece: isinstance(piece, str)):
        if is_text:
            text = "".join(group)
            if text:
                parts.append({"type": "text", "text": text})
            continue
        for part in group:
            last_thought: list[Any] | None = None
            if parts:
                last_thought = _open_thought(parts[-1])
            thought = _open_thought(part)
            if last_thought is None or thought is None:
                parts.append(_own_thought(part))
            else:
                last_thought.extend(thought)
    return parts


def _open_thought(part: Any) -> list[Any] | None:
    """Return the list of a thinking part, which the next such part goes on; None for any other part."""
    thinking = fields_of(part).get("thinking")
    if _is_thought(part) and isinstance(thinking, list):
        return cast("list[Any]", thinking)
    return None


def _readable(raw: Mapping[str, Any]) -> str:
    thoughts = (as_text(raw.get("reasoning_content")), as_text(raw.get("reasoning")), _thoughts(raw.get("content")))
    for thought in thoughts:
        if thought:
            return thought
    texts: list[str] = []
    for piece in objects_in(raw.get("reasoning_details")):
        text = piece.get("text") or piece.get("summary")
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    return "a number or a truth value"


def _extend(known: list[Any], pieces: Sequence[Any]) -> set[tuple[str, str]]:
    """Append pieces of reasoning, joining a block's; return what was dropped as its type changed: field, new type."""
    dropped: set[tuple[str, str]] = set()
    for piece in pieces:
        fields = as_object(piece)
        if fields is None:
            known.append(piece)
            continue
        last = None
        if known:
            last = as_object(known[-1])
        if last is None or not _same_block(fields, last):
            known.append(dict(fields))
            continue
        for key, value in fields.items():
            if value is None:
                continue
            before = last.get(key)
            if key not in _JOINED or before is None:
                last[key] = value
            elif isinstance(value, str) and isinstance(before, str | StringIO):
                last[key] = grown(before, value)
            else:
                dropped.add((key, _kind(value)))
    return dropped


def _same_block(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return isinstance(one.get("index"), int) and all(one.get(key) == other.get(key) for key in ("index", "type"))
