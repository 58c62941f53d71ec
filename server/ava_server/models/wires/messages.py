"""Anthropic Messages: a request's body with its cache marks, and an answer made of blocks.

Blocks are kept as they came and sent back so. Left out on the way back is what the API would refuse: blocks of text
without text, an answer without blocks, thinking before which something has been changed since (newer models bind it to
all that stood before it: platform.claude.com, preserved thinking), and, of models with a budget, all thinking while
they do not think.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

VERSION = "2023-06-01"
_MARK: Mapping[str, Any] = {"type": "ephemeral"}
"""Writes the prompt up to here to the cache, for five minutes."""
_THOUGHT = ("thinking", "redacted_thinking")
_GROWS = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking")}
"""What a piece of a block adds to: the block's field, and the piece's own."""
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")


@dataclass(frozen=True)
class MessagesWire:
    """Anthropic Messages as one endpoint has them.

    Attributes:
        streaming: Ask for a stream; some servers cannot.
        thinking: How the model is told to think.
        bearer: The key is sent as a bearer token as well: servers that only speak the format look for it there.
    """

    streaming: bool = True
    thinking: Thinking = UNKNOWN
    bearer: bool = False
    speaks: str = field(default="Anthropic Messages", init=False)
    part: str = field(default="content", init=False)

    def url(self, base_url: str) -> str:
        """Return where messages are asked for, under an API's address, which people write with and without /v1."""
        base = base_url.rstrip("/")
        if base.endswith("/messages"):
            return base
        return f"{base}/messages" if base.endswith("/v1") else f"{base}/v1/messages"

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the version and, if there is one, the key."""
        headers = {"anthropic-version": VERSION}
        if api_key:
            headers["x-api-key"] = api_key
            if self.bearer:
                headers["authorization"] = f"Bearer {api_key}"
        return headers

    def message(self, turn: Turn) -> Mapping[str, Any]:
        """Return a turn as a message of its own; in a request, neighbours of one role are one message."""
        return self._message(turn, with_thinking=True)

    def _message(self, turn: Turn, *, with_thinking: bool) -> Mapping[str, Any]:
        match turn:
            case AssistantTurn(raw, edited_before, without_thinking):
                stale = without_thinking or (edited_before and self.thinking.bound)
                return {"role": "assistant", "content": _kept(raw, with_thinking=with_thinking and not stale)}
            case UserTurn(text):
                return {"role": "user", "content": [{"type": "text", "text": text}]}
            case ToolTurn(call_id, _, text):
                return {"role": "user", "content": [_result(call_id, text)]}

    def body(self, request: Request) -> dict[str, Any]:
        """Return the whole body of a request.

        The cache is told to keep what stands up to the system prompt, up to where the last request ended, and up to
        here: looking back from one mark, it passes over 20 blocks at most, and an answer may ask for as many calls.
        """
        thinks = request.thinking if self.may_think(request.turns) else 0
        with_thinking = bool(thinks) or self.thinking.on != "budget"  # these take none back while they do not think
        messages: list[dict[str, Any]] = []
        for turn in request.turns:
            one = self._message(turn, with_thinking=with_thinking)
            if not one["content"]:
                continue
            if messages and messages[-1]["role"] == one["role"]:
                messages[-1]["content"].extend(one["content"])
            else:
                messages.append({"role": one["role"], "content": list(one["content"])})
        for message in [one for one in messages if one["role"] == "user"][-2:]:
            message["content"][-1] = {**message["content"][-1], "cache_control": _MARK}
        parts: dict[str, Any] = {"model": request.model, "max_tokens": request.max_output}
        if request.system:
            parts["system"] = [{"type": "text", "text": request.system, "cache_control": _MARK}]
        if request.tools:
            parts["tools"] = [_tool(tool) for tool in request.tools]
        return {**parts, "messages": messages, **self._thinking(thinks), "stream": self.streaming}

    def answer(self) -> MessagesAnswer:
        """Return an empty answer."""
        return MessagesAnswer()

    def fault(self, event: Mapping[str, Any]) -> Any:
        """Return the error in an event's or an answer's place."""
        return event.get("error")

    def is_answer(self, whole: Mapping[str, Any]) -> bool:
        """Tell whether JSON that came in one piece is a message."""
        return isinstance(whole.get("content"), list)

    def unseen(self, raw: Mapping[str, Any]) -> int:
        """Return the bytes of an earlier answer's thinking and signatures."""
        return sum(len(wire_json.encode(block)) for block in as_list(raw.get("content")) if _is_thought(block))

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> dict[str, Any]:
        """Return an answer as the provider would have sent it."""
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        content += [
            {"type": "tool_use", "id": call.call_id, "name": call.name, "input": dict(call.args or {})}
            for call in calls
        ]
        return {"role": "assistant", "content": content}

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """Tell whether the API lets the model think now.

        With a budget, a conversation of calls and results is one turn of the model's (platform.claude.com, thinking
        with tools): it has to begin with a thought, and goes on without any.
        """
        if self.thinking.on != "budget":
            return True
        first: Mapping[str, Any] | None = None  # answer of the model's turn at hand
        goes_on = False
        for turn in turns:
            match turn:
                case AssistantTurn(raw):
                    first, goes_on = raw if first is None or not goes_on else first, False
                case ToolTurn():
                    goes_on = True
                case UserTurn():
                    pass
        return first is None or not goes_on or any(map(_is_thought, as_list(first.get("content"))[:1]))

    def _thinking(self, tokens: int) -> dict[str, Any]:
        """Return what tells the model to think for at most so many tokens, or, with 0, not to."""
        adaptive = {"type": "adaptive", "display": "summarized"}  # else the text of its thinking stays empty
        if tokens and self.thinking.on == "budget":
            return {"thinking": {"type": "enabled", "budget_tokens": tokens}}
        if tokens and self.thinking.possible:
            return {"thinking": adaptive, "output_config": {"effort": EFFORT}}
        match self.thinking.off:
            case "disabled":
                return {"thinking": {"type": "disabled"}}
            case "between_tools":  # with it, the effort must stay what it was
                return {"thinking": {"type": "between_tools"}, "output_config": {"effort": EFFORT}}
            case "low":
                return {"thinking": adaptive, "output_config": {"effort": LOW}}
            case _:
                return {}


@dataclass
class MessagesAnswer:
    """An answer that grows with every event of a stream, or is taken whole from a message.

    Attributes:
        stop_reason: The provider's word for why it ended; None while it has not said.
        over: The stream has said that nothing more comes.
        request_id: The provider's id of the message.
        usage: The provider's figures as they came.
    """

    stop_reason: str | None = None
    over: bool = False
    request_id: str | None = None
    usage: Mapping[str, Any] | None = None
    _blocks: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    _pieces: dict[int, dict[str, list[str]]] = field(default_factory=dict[int, dict[str, list[str]]])
    _notes: dict[str, None] = field(default_factory=dict[str, None])

    @property
    def ended(self) -> bool:
        """Whether the provider has said why it ended."""
        return self.stop_reason is not None

    def add(self, event: Mapping[str, Any]) -> Delta:
        """Take in one event, or a whole message, and return what it brought; unknown ones bring nothing."""
        match event.get("type"):
            case "message_start":
                self._message(as_object(event.get("message")) or {})
            case "content_block_start":
                return self._begun(_index(event), as_object(event.get("content_block")) or {})
            case "content_block_delta":
                return self._grow(_index(event), as_object(event.get("delta")) or {})
            case "message_delta":
                self._stopped(as_object(event.get("delta")) or {})
                self.usage = larger(self.usage, as_object(event.get("usage")) or None)
            case "message_stop":
                self.over = True
            case _ if isinstance(event.get("content"), list):
                self._message(event)
                for number, block in enumerate(as_list(event["content"])):
                    self._begun(number, as_object(block) or {})
                self._stopped(event)
            case _:
                pass
        return Delta()

    def complete(
        self, *, request_id: str | None, sent_bytes: int, unseen: Callable[[], int] = int, notes: tuple[str, ...] = ()
    ) -> Completion:
        """Return the answer as it is to be stored: everything in it is plain, finite JSON."""
        blocks = [self._whole(index) for index in self._blocks]
        asked = [block for block in blocks if block.get("type") == "tool_use"]
        raw_args = [block.pop("_raw") for block in asked]
        dropped = [id(block) for block in asked[MOST_CALLS:]]
        raw, changed = wire_json.storable(
            {"role": "assistant", "content": [block for block in blocks if id(block) not in dropped]}
        )
        kept = [block for block in raw["content"] if block.get("type") == "tool_use"]
        for block, identity in zip(kept, told_apart(_text_of(block.get("id")) for block in kept), strict=True):
            block["id"] = identity
        calls = tuple(
            tool_use(block["id"], _text_of(block.get("name")), wire_json.whole_text(text)[0])
            for block, text in zip(kept, raw_args, strict=False)
        )
        said = _joined(raw["content"], "text")
        usage, cost_micros, odd = read_usage(
            _figures(self.usage), sent_bytes=sent_bytes, said_something=bool(raw["content"]), unseen=unseen
        )
        return Completion(
            text=said,
            calls=calls,
            raw=raw,
            usage=usage,
            cost_micros=cost_micros,
            thinking=_joined(raw["content"], "thinking"),
            stop_reason=word(self.stop_reason),
            request_id=word(request_id or self.request_id),
            notes=(*notes, *self._notes, *too_many(len(asked)), *changed, *odd, *self._odd_usage()),
        )

    def _message(self, message: Mapping[str, Any]) -> None:
        if isinstance(identity := message.get("id"), str) and identity:
            self.request_id = identity
        self.usage = larger(self.usage, as_object(message.get("usage")) or None)

    def _stopped(self, delta: Mapping[str, Any]) -> None:
        if isinstance(reason := delta.get("stop_reason"), str) and reason:
            self.stop_reason = reason
        details = as_object(delta.get("stop_details")) or {}
        why = [said for name in ("category", "explanation") if isinstance(said := details.get(name), str) and said]
        if why:
            self._notes[word(f"{details.get('type') or 'stopped'}: {': '.join(why)}") or ""] = None

    def _begun(self, index: int, block: Mapping[str, Any]) -> Delta:
        self._blocks[index] = dict(block)
        return Delta(_text_of(block.get("text")), _text_of(block.get("thinking")))

    def _grow(self, index: int, delta: Mapping[str, Any]) -> Delta:
        kind = delta.get("type")
        block = self._blocks.get(index)
        if block is None:
            self._notes["dropped a piece of a block that never began"] = None
            return Delta()
        pieces = self._pieces.setdefault(index, {})
        if kind in _GROWS:
            name, source = _GROWS[kind]
            piece = _text_of(delta.get(source))
            pieces.setdefault(name, []).append(piece)
            shown = wire_json.whole_text(piece)[0]
            return Delta(text=shown) if name == "text" else Delta(thinking=shown)
        if kind == "input_json_delta":
            pieces.setdefault("input", []).append(written := _text_of(delta.get("partial_json")))
            return Delta(arguments=wire_json.whole_text(written)[0])
        if kind == "signature_delta":
            block["signature"] = _text_of(block.get("signature")) + _text_of(delta.get("signature"))
        elif kind == "citations_delta":
            block["citations"] = [*as_list(block.get("citations")), delta.get("citation")]
        else:
            self._notes[f"dropped a piece of a block that was {word(_text_of(kind)) or 'without a type'}"] = None
        return Delta()

    def _whole(self, index: int) -> dict[str, Any]:
        """Return a block with its pieces put in; a call's arguments stand in it as text too, under `_raw`."""
        block, pieces = dict(self._blocks[index]), self._pieces.get(index, {})
        for name, _ in _GROWS.values():
            if name in pieces:
                block[name] = _text_of(block.get(name)) + "".join(pieces[name])
        if block.get("type") == "tool_use":
            text = "".join(pieces.get("input", ()))
            if not text:
                begun = block.get("input")
                text = wire_json.encode(wire_json.storable({} if begun is None else begun)[0]).decode()
            block["_raw"], block["input"] = text, wire_json.decode_object(text) or {}
        return block

    def _odd_usage(self) -> tuple[str, ...]:
        written = as_object((self.usage or {}).get("cache_creation")) or {}
        hour = written.get("ephemeral_1h_input_tokens")
        return (f"{hour} tokens were cached for an hour, which costs more than the price used here",) if hour else ()


def _figures(usage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return figures in the names of chat completions, whose prompt has the cached tokens in it."""
    if usage is None:
        return None
    counts: list[Any] = [usage.get("input_tokens"), *(usage.get(name) or 0 for name in _CACHED)]
    wrong = [count for count in counts if isinstance(count, bool) or not isinstance(count, int)]
    thought = (as_object(usage.get("output_tokens_details")) or {}).get("thinking_tokens")
    return {
        "prompt_tokens": wrong[0] if wrong else sum(counts),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": counts[1], "cache_write_tokens": counts[2]},
        "completion_tokens_details": {"reasoning_tokens": thought},
        "cost": usage.get("cost"),
    }


def _result(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text}


def _tool(tool: ToolSchema) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}


def _kept(raw: Mapping[str, Any], *, with_thinking: bool) -> list[Any]:
    """Return the blocks of an earlier answer that the API takes back."""
    blocks = as_list(raw.get("content"))
    blanks = [number for number, block in enumerate(blocks) if _is_blank(block)]
    if blanks and any(_is_thought(block) for block in blocks[blanks[0] :]):
        with_thinking = False  # a thought behind what cannot go back would be one with something missing before it
    return [block for block in blocks if not _is_blank(block) and (with_thinking or not _is_thought(block))]


def _is_thought(block: Any) -> bool:
    return (as_object(block) or {}).get("type") in _THOUGHT


def _is_blank(block: Any) -> bool:
    fields = as_object(block) or {}
    return fields.get("type") == "text" and not _text_of(fields.get("text")).strip()


def _joined(blocks: Sequence[Any], kind: str) -> str:
    """Return the words of all blocks of a kind; the field has the kind's name."""
    found = (fields.get(kind) for block in blocks if (fields := as_object(block) or {}).get("type") == kind)
    return ("\n" if kind == "thinking" else "").join(text for text in found if isinstance(text, str) and text)


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""
