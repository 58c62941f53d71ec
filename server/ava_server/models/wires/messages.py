"""Anthropic Messages: request bodies with cache marks, and answers made of blocks.

Blocks are kept as they came and sent back verbatim. Left out is what the API would refuse: text blocks without text, an
answer without blocks, thinking that follows something edited since (newer models bind it to all that stood before it:
platform.claude.com, preserved thinking), and, for models with a budget, all thinking while they do not think.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from ava_server.models import json_text
from ava_server.models.base import AssistantTurn, Delta, Request, ToolTurn, ToolUse, Turn, UserTurn
from ava_server.models.json_text import as_list, as_text, fields_of, grown, objects_in
from ava_server.models.model_choice import EFFORT, LOW
from ava_server.models.wires.wire import (
    MOST_CALLS,
    WholeAnswer,
    Wire,
    WireAnswer,
    asks_for_something,
    dropped_calls_note,
    one_line,
    set_unique_ids,
    tool_use,
)

VERSION = "2023-06-01"
_MARK: Mapping[str, Any] = {"type": "ephemeral"}
"""Writes the prompt up to here to the cache, for five minutes."""
_THOUGHT = ("thinking", "redacted_thinking")
_GROWS = {"text_delta": "text", "thinking_delta": "thinking"}
"""The field, of the block and of the delta, that a delta adds to."""


@dataclass(frozen=True)
class MessagesWire(Wire):
    """Anthropic Messages as one endpoint has them; `bearer` also sends the key as a token, for others' servers."""

    speaks: ClassVar[str] = "Anthropic Messages"
    flavors: ClassVar[tuple[str, ...]] = ("anthropic", "default")
    part: ClassVar[str] = "content"
    sorts_cache: ClassVar[bool] = True
    path: ClassVar[str] = "/messages"
    bearer: bool = False

    def address(self, base: str, model: str) -> str:
        """People write the address with and without /v1."""
        return super().address(base if base.endswith(("/messages", "/v1")) else f"{base}/v1", model)

    def headers(self, api_key: str | None) -> dict[str, str]:
        headers = {"anthropic-version": VERSION}
        if api_key:
            headers["x-api-key"] = api_key
        return {**headers, **super().headers(api_key)} if self.bearer else headers

    def error_body(self, status: int, kind: str, message: str, wait_s: float | None) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message}}

    def message(self, turn: Turn) -> Mapping[str, Any]:
        """Return a turn as a message of its own; in a request, neighbours of one role are one message."""
        return self._message(turn, with_thinking=True)

    def _message(self, turn: Turn, *, with_thinking: bool) -> Mapping[str, Any]:
        match turn:
            case AssistantTurn(raw, edited_before, without_thinking):
                stale = without_thinking or (edited_before and self.thinking.bound)
                return {"role": "assistant", "content": _sent_back(raw, with_thinking=with_thinking and not stale)}
            case UserTurn(text):
                return {"role": "user", "content": [{"type": "text", "text": text}]}
            case ToolTurn(call_id, _, text):
                result = {"type": "tool_result", "tool_use_id": call_id, "content": text}
                return {"role": "user", "content": [result]}

    def body(self, request: Request) -> dict[str, Any]:
        """Return the whole body of a request, with cache marks.

        They stand after each part of the system prompt, the last request, and this one, and there may be four. The
        cache looks back at most 20 blocks from a mark, and one answer may ask for as many calls.
        """
        thinks = request.thinking if self.may_think(request.turns) else 0
        with_thinking = bool(thinks) or self.thinking.on != "budget"  # these accept none back while they do not think
        messages: list[dict[str, Any]] = []
        for turn in request.turns:
            message = self._message(turn, with_thinking=with_thinking)
            role, content = message["role"], message["content"]
            if not content:
                continue
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"].extend(content)
            else:
                messages.append({"role": role, "content": list(content)})
        user_messages = [message for message in messages if message["role"] == "user"]
        for message in user_messages[-2:]:
            content = message["content"]
            content[-1] = {**content[-1], "cache_control": _MARK}
        parts: dict[str, Any] = {"model": request.model, "max_tokens": request.max_output}
        if request.system:
            parts["system"] = [{"type": "text", "text": text, "cache_control": _MARK} for text in request.system_parts]
        if request.tools:
            parts["tools"] = [tool.as_dict("input_schema") for tool in request.tools]
        return {**parts, "messages": messages, **self._thinking(thinks), "stream": self.streaming}

    def answer(self) -> MessagesAnswer:
        return MessagesAnswer()

    def is_answer(self, whole: Mapping[str, Any]) -> bool:
        return isinstance(whole.get("content"), list)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if text:
            content.append({"type": "text", "text": text})
        for call in calls:
            content.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": dict(call.args or {})})
        return {"role": "assistant", "content": content}

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """Tell whether the API lets the model think now.

        With a budget, a sequence of calls and results is one turn of the model (platform.claude.com, thinking with
        tools): either it begins with a thought, or it goes on without any.
        """
        if self.thinking.on != "budget":
            return True
        first: Mapping[str, Any] | None = None  # answer of the model's current turn
        goes_on = False
        for turn in turns:
            match turn:
                case AssistantTurn(raw):
                    if first is None or not goes_on:
                        first = raw
                    goes_on = False
                case ToolTurn():
                    goes_on = True
                case UserTurn():
                    pass
        return first is None or not goes_on or any(map(_is_thought, as_list(first.get("content"))[:1]))

    def _thinking(self, tokens: int) -> dict[str, Any]:
        """Return what tells the model to think for at most so many tokens, or, with 0, not to think."""
        adaptive = {"type": "adaptive", "display": "summarized"}  # otherwise the text of its thinking stays empty
        if tokens and self.thinking.on == "budget":
            return {"thinking": {"type": "enabled", "budget_tokens": tokens}}
        if tokens and self.thinking.possible:
            return {"thinking": adaptive, "output_config": {"effort": EFFORT}}
        match self.thinking.off:
            case "disabled":
                return {"thinking": {"type": "disabled"}}
            case "between_tools":  # with it, the effort must stay the same
                return {"thinking": {"type": "between_tools"}, "output_config": {"effort": EFFORT}}
            case "low":
                return {"thinking": adaptive, "output_config": {"effort": LOW}}
            case _:
                return {}


@dataclass
class MessagesAnswer(WireAnswer):
    """An answer that grows with every event of a stream, or is taken whole from a message."""

    _blocks: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    _pieces: dict[int, dict[str, list[str]]] = field(default_factory=dict[int, dict[str, list[str]]])
    _notes: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, event: Mapping[str, Any]) -> Delta:
        match event.get("type"):
            case "message_start":
                self._read_id_and_usage(fields_of(event.get("message")))
            case "content_block_start":
                return self._begin(_index(event), fields_of(event.get("content_block")))
            case "content_block_delta":
                return self._grow(_index(event), fields_of(event.get("delta")))
            case "message_delta":
                self._stop(fields_of(event.get("delta")))
                self._read_id_and_usage({"usage": event.get("usage")})
            case "message_stop":
                self.over = True
            case _ if isinstance(event.get("content"), list):
                self._read_id_and_usage(event)
                for number, block in enumerate(as_list(event["content"])):
                    self._begin(number, fields_of(block))
                self._stop(event)
            case _:
                pass
        return Delta()

    def whole(self) -> WholeAnswer:
        blocks = [block for block in map(self._whole_block, self._blocks) if not _is_empty_call(block)]
        all_calls = [block for block in blocks if block.get("type") == "tool_use"]
        raw_args = [block.pop("_raw") for block in all_calls]
        dropped = set(map(id, all_calls[MOST_CALLS:]))
        content = [block for block in blocks if id(block) not in dropped]
        raw, changed = json_text.storable({"role": "assistant", "content": content})
        kept = [block for block in raw["content"] if block.get("type") == "tool_use"]
        set_unique_ids(kept, "id")
        calls: list[ToolUse] = []
        for block, text in zip(kept, raw_args, strict=False):
            calls.append(tool_use(block["id"], as_text(block.get("name")), json_text.join_surrogates(text)[0]))
        return WholeAnswer(
            raw=raw,
            text=_words(raw, "text", ""),
            calls=tuple(calls),
            thinking=_words(raw, "thinking", "\n"),
            is_empty=not raw["content"],
            notes=(*self._notes, *dropped_calls_note(len(all_calls) + self._let_go), *changed, *self._cache_notes()),
        )

    def chat_usage(self) -> Mapping[str, Any] | None:
        """Return the usage with the names of chat completions, whose prompt includes the cached tokens."""
        usage = self.usage
        if usage is None:
            return None
        read = _whole_count(usage, "cache_read_input_tokens") or 0
        written = _whole_count(usage, "cache_creation_input_tokens") or 0
        counts: list[Any] = [_whole_count(usage, "input_tokens"), read, written]
        wrong = [count for count in counts if isinstance(count, bool) or not isinstance(count, int)]
        thought = fields_of(usage.get("output_tokens_details")).get("thinking_tokens")
        return {
            "prompt_tokens": wrong[0] if wrong else sum(counts),
            "completion_tokens": _whole_count(usage, "output_tokens"),
            "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
            "completion_tokens_details": {"reasoning_tokens": thought},
            "cost": usage.get("cost"),
        }

    def _stop(self, delta: Mapping[str, Any]) -> None:
        self.stop_reason = as_text(delta.get("stop_reason")) or self.stop_reason
        details = fields_of(delta.get("stop_details"))
        category = as_text(details.get("category"))
        explanation = as_text(details.get("explanation"))
        why = ": ".join(filter(None, (category, explanation)))
        if why:
            note = one_line(f"{details.get('type') or 'stopped'}: {why}") or ""
            self._notes[note] = None

    def _begin(self, index: int, block: Mapping[str, Any]) -> Delta:
        own = {name: as_list(value) for name, value in block.items() if isinstance(value, list)}  # citations grow
        self._blocks[index] = {**block, **own}
        for call in self._surplus(len(self._blocks), self._calls):
            del self._blocks[call]
            self._pieces.pop(call, None)
        return Delta(as_text(block.get("text")), as_text(block.get("thinking")))

    def _calls(self) -> list[int]:
        return [index for index, block in self._blocks.items() if block.get("type") == "tool_use"]

    def _grow(self, index: int, delta: Mapping[str, Any]) -> Delta:
        kind = as_text(delta.get("type"))
        block = self._blocks.get(index)
        if block is None:
            self._notes["dropped a piece of a block that never began"] = None
            return Delta()
        pieces = self._pieces.setdefault(index, {})
        name = _GROWS.get(kind)
        if name:
            pieces.setdefault(name, []).append(piece := as_text(delta.get(name)))
            return Delta(**{name: json_text.join_surrogates(piece)[0]})
        if kind == "input_json_delta":
            pieces.setdefault("input", []).append(piece := as_text(delta.get("partial_json")))
            return Delta(arguments=json_text.join_surrogates(piece)[0])
        if kind == "signature_delta":
            block["signature"] = grown(block.get("signature"), as_text(delta.get("signature")))
        elif kind == "citations_delta":
            if not isinstance(block.get("citations"), list):
                block["citations"] = []
            cast("list[Any]", block["citations"]).append(delta.get("citation"))
        else:
            self._notes[f"dropped a piece of a block that was {one_line(kind) or 'without a type'}"] = None
        return Delta()

    def _whole_block(self, index: int) -> dict[str, Any]:
        """Return a block with its pieces put in; a call's arguments are in it as text too, under `_raw`."""
        block = dict(self._blocks[index])
        pieces = self._pieces.get(index, {})
        for name in _GROWS.values():
            if name in pieces:
                block[name] = as_text(block.get(name)) + "".join(pieces[name])
        if block.get("type") == "tool_use":
            text = "".join(pieces.get("input", ()))
            if not text:
                begun = block.get("input")
                text = json_text.encode(json_text.storable({} if begun is None else begun)[0]).decode()
            block["_raw"] = text
            block["input"] = json_text.decode_object(text) or {}
        return block

    def _cache_notes(self) -> tuple[str, ...]:
        written = fields_of((self.usage or {}).get("cache_creation"))
        hour = written.get("ephemeral_1h_input_tokens")
        if hour:
            return (f"{hour} tokens were cached for an hour, which costs more than the price used here",)
        return ()


def _is_empty_call(block: Mapping[str, Any]) -> bool:
    if block.get("type") != "tool_use":
        return False
    return not asks_for_something(as_text(block.get("name")), block["_raw"])


def _whole_count(usage: Mapping[str, Any], name: str) -> Any:
    """Return a count of a call, with what the provider counts only in its steps, such as summaries of the history."""
    count = usage.get(name)
    in_steps = 0
    for step in objects_in(usage.get("iterations")):
        in_step = step.get(name)
        if isinstance(in_step, int) and in_step > 0:
            in_steps += in_step
    if in_steps == 0:
        return count
    if count is None:
        return in_steps
    lacks_steps = isinstance(count, int) and 0 <= count < in_steps
    return in_steps if lacks_steps else count


def _sent_back(raw: Mapping[str, Any], *, with_thinking: bool) -> list[Any]:
    """Return the blocks of an earlier answer that the API accepts: no thoughts if one would lack a block before it."""
    sent: list[Any] = []
    lacks_block = False
    for block in as_list(raw.get("content")):
        if _is_blank(block):
            lacks_block = True
            continue
        if lacks_block and _is_thought(block):
            with_thinking = False
        sent.append(block)
    if with_thinking:
        return sent
    return [block for block in sent if not _is_thought(block)]


def _is_thought(block: Any) -> bool:
    return fields_of(block).get("type") in _THOUGHT


def _is_blank(block: Any) -> bool:
    fields = fields_of(block)
    return fields.get("type") == "text" and not as_text(fields.get("text")).strip()


def _words(raw: Mapping[str, Any], kind: str, between: str) -> str:
    found = (as_text(block.get(kind)) for block in objects_in(raw["content"]) if block.get("type") == kind)
    return between.join(filter(None, found))


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0
