"""OpenAI Responses: request bodies, and answers made of items that come piece by piece and then whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ava_server.models import json_text
from ava_server.models.base import AssistantTurn, Delta, Request, ToolTurn, ToolUse, Turn, UserTurn
from ava_server.models.json_text import as_list, as_object, as_text, fields_of, objects_in
from ava_server.models.prompt_cache import CacheMark
from ava_server.models.wires.wire import (
    MOST_CALLS,
    WholeAnswer,
    Wire,
    WireAnswer,
    asks_for_something,
    cache_key,
    dropped_calls_note,
    marked,
    one_line,
    set_unique_ids,
    tool_use,
)

MESSAGE, THOUGHT, CALL = "message", "reasoning", "function_call"
_GROWS = {
    "output_text": (MESSAGE, "content", "output_text", "text", "content_index"),
    "refusal": (MESSAGE, "content", "refusal", "refusal", "content_index"),
    "reasoning_text": (THOUGHT, "content", "reasoning_text", "text", "content_index"),
    "reasoning_summary_text": (THOUGHT, "summary", "summary_text", "text", "summary_index"),
}
"""What `response.….delta` adds to: the item's type, its list, the part's type, the part's field, and its index."""
_LEFT_OUT = ("id", "status")
"""Fields of an item that are about what the provider has stored, which is nothing."""


@dataclass(frozen=True)
class ResponsesWire(Wire):
    """OpenAI Responses as one endpoint has them.

    `cache_mark` marks the end of what other runs share, which `instructions` cannot; without it, the provider caches by
    itself.
    """

    speaks: ClassVar[str] = "OpenAI Responses"
    flavors: ClassVar[tuple[str, ...]] = ("responses", "default")
    part: ClassVar[str] = "output"
    path: ClassVar[str] = "/responses"
    sorts_cache: ClassVar[bool] = True
    cache_mark: CacheMark = ""

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
        parts: dict[str, Any] = {"model": request.model}
        items: list[Any] = []
        if self.cache_mark and request.shared_chars:
            texts = [{"type": "input_text", "text": text} for text in request.system_parts]
            items.append({"type": "message", "role": "developer", "content": marked(texts, self.cache_mark)})
            parts |= cache_key(request, self.cache_mark)
        elif request.system:
            parts["instructions"] = request.system
        for turn in request.turns:
            message = self.message(turn)
            if isinstance(turn, AssistantTurn):
                items += message["output"]
            else:
                items.append(message)
        parts["input"] = items
        if request.tools:  # strict schemas have no optional property
            parts["tools"] = [{"type": "function", **tool.as_dict(), "strict": False} for tool in request.tools]
        parts |= {"max_output_tokens": request.max_output, **self._thinking(request.thinking), "store": False}
        if self.thinking.possible:  # models that do not think refuse it: "Encrypted content is not supported"
            parts["include"] = ["reasoning.encrypted_content"]
        return {**parts, **self.tier(refused=request.tier_refused), "stream": self.streaming}

    def _thinking(self, tokens: int) -> dict[str, Any]:
        effort = self.effort(tokens)  # OpenAI gives summaries only to the verified
        return {"reasoning": {"effort": effort}} if effort else {}

    def answer(self) -> ResponsesAnswer:
        return ResponsesAnswer()

    def fault(self, event: Mapping[str, Any]) -> Any:
        if event.get("type") == "error":
            return event.get("error") or event
        response = as_object(event.get("response")) or event
        error = response.get("error") or event.get("error")
        if error:
            return error
        status = response.get("status")
        if event.get("type") == "response.failed" or status in ("failed", "cancelled"):
            return {"message": f"the response is {status or 'failed'}"}
        if "type" in event:
            return None
        return super().fault(event)

    def is_answer(self, whole: Mapping[str, Any]) -> bool:
        return isinstance(whole.get("output"), list)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> dict[str, Any]:
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
        output: list[dict[str, Any]] = [{"type": "message", "role": "assistant", "content": [part]}] if text else []
        output += [
            {"type": CALL, "call_id": call.call_id, "name": call.name, "arguments": call.raw_args} for call in calls
        ]
        return {"role": "assistant", "output": output}


def _sent_back(raw: Mapping[str, Any], *, with_thinking: bool) -> list[dict[str, Any]]:
    """Return the items of an earlier answer that the API accepts; a thought sealed or, from open models, as text."""
    kept: list[dict[str, Any]] = []
    for item in objects_in(raw.get("output")):
        if item.get("type") == THOUGHT:
            has_content = item.get("encrypted_content") or item.get("content")
            if not (with_thinking and has_content):
                continue
        if item:
            kept.append(item)
    while kept and kept[-1].get("type") == THOUGHT:  # nothing follows it that it led to
        kept.pop()
    return [{name: value for name, value in item.items() if name not in _LEFT_OUT} for item in kept]


@dataclass(slots=True)
class _Item:
    """An item on its way: its `fields`, and `pieces` by kind and part until it is `done`."""

    fields: dict[str, Any]
    done: bool = False
    pieces: dict[tuple[str, int], list[str]] = field(default_factory=dict[tuple[str, int], list[str]])
    arguments: list[str] = field(default_factory=list[str])

    def whole(self) -> dict[str, Any]:
        item = dict(self.fields)
        if not self.done:
            item.pop("encrypted_content", None)  # it may be only half there
            item |= self._grown()
        if item.get("type") == CALL:
            given = item.get("arguments")
            if isinstance(given, dict):  # some local servers send an object instead of its text
                given = json_text.encode(json_text.storable(given)[0]).decode()
            item["arguments"] = as_text(given) or "".join(self.arguments)
        return item

    def _grown(self) -> dict[str, list[Any]]:
        """Return the lists of parts that the pieces add to, with the pieces put in."""
        grown: dict[str, list[Any]] = {}
        for (what, place), pieces in sorted(self.pieces.items(), key=lambda known: known[0][1]):
            _, name, kind, text, _ = _GROWS[what]
            if name not in grown:
                grown[name] = as_list(self.fields.get(name))
            parts = grown[name]
            begun = as_object(parts[place]) if 0 <= place < len(parts) else None
            if begun is None:
                parts.append({"type": kind, text: "".join(pieces)})
            else:
                parts[place] = {**begun, text: "".join(pieces)}
        return grown


@dataclass
class ResponsesAnswer(WireAnswer):
    """An answer that grows with every event of a stream, or is taken whole from a response."""

    _items: dict[int, list[_Item]] = field(default_factory=dict[int, list[_Item]])
    _held: int = 0
    _withheld: Sequence[Any] = ()

    def add(self, event: Mapping[str, Any]) -> Delta:
        kind = as_text(event.get("type")).removeprefix("response.")
        what, _, step = kind.rpartition(".")
        if step in ("delta", "done"):
            if what in _GROWS:
                kind, _, _, text, index = _GROWS[what]
                pieces = self._item_of(event, kind).pieces.setdefault((what, _number(event.get(index))), [])
                new = _take(pieces, event, step, text)
                return Delta(thinking=new) if kind == THOUGHT else Delta(text=new)
            if what == "function_call_arguments":
                return Delta(arguments=_take(self._item_of(event, CALL).arguments, event, step, "arguments"))
        if what == "output_item" and step in ("added", "done"):
            self._add_item(event, fields_of(event.get("item")), done=step == "done")
        elif kind in ("completed", "incomplete"):
            self._end(fields_of(event.get("response")), kind)
            self.over = True
        elif (response := as_object(event.get("response"))) is not None:
            self._read_id_and_usage(response)
        elif isinstance(event.get("output"), list):
            self._end(event)
        return Delta()

    def whole(self) -> WholeAnswer:
        output: list[dict[str, Any]] = []
        found = 0
        for item in self._in_order():
            whole = item.whole()
            if whole.get("type") == CALL:
                if not asks_for_something(as_text(whole.get("name")), whole["arguments"]):
                    continue
                found += 1
                if found > MOST_CALLS:
                    continue
            output.append(whole)
        raw, changed = json_text.storable({"role": "assistant", "output": output})
        asked = [item for item in raw["output"] if item.get("type") == CALL]
        set_unique_ids(asked, "call_id")
        calls = [tool_use(item["call_id"], as_text(item.get("name")), item["arguments"]) for item in asked]
        words: list[str] = []
        refused = False
        for part in message_parts(raw["output"]):
            if part.get("type") == "refusal":
                words.append(as_text(part.get("refusal")))
                refused = self.stop_reason == "completed"
            else:
                words.append(as_text(part.get("text")))
        return WholeAnswer(
            raw=raw,
            text="".join(words),
            calls=tuple(calls),
            thinking=_readable(raw["output"]),
            is_empty=not output,
            notes=(*self._withheld_note(), *dropped_calls_note(found + self._let_go), *changed),
            stop_reason="refusal" if refused else None,
        )

    def chat_usage(self) -> Mapping[str, Any] | None:
        """Return the usage with the names of chat completions; it counts the same things."""
        if self.usage is None:
            return None
        names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
        names |= {f"{chat}_details": f"{own}_details" for chat, own in names.items()}
        return {**self.usage, **{chat: self.usage.get(own) for chat, own in names.items()}}

    def _item_of(self, event: Mapping[str, Any], kind: str) -> _Item:
        """Return the item that an event is about; one that was not announced begins with it."""
        known = self._items.setdefault(_number(event.get("output_index")), [])
        if not known:
            self._begin(known, _Item({"type": kind, "role": "assistant"} if kind == MESSAGE else {"type": kind}))
        return known[-1]

    def _add_item(self, event: Mapping[str, Any], fields: dict[str, Any], *, done: bool) -> None:
        """Take in an item that begins, or one that is whole; some servers give all items one index."""
        known = self._items.setdefault(_number(event.get("output_index")), [])
        if not known or _is_another(known[-1], fields):
            self._begin(known, _Item(fields, done))
            return
        last = known[-1]
        if done or not last.done:
            last.fields, last.done = fields, done

    def _begin(self, known: list[_Item], item: _Item) -> None:
        known.append(item)
        self._held += 1
        surplus = {id(call) for call in self._surplus(self._held, self._calls)}
        if not surplus:
            return
        self._held -= len(surplus)
        kept: dict[int, list[_Item]] = {}
        for index, items in self._items.items():
            left = [one for one in items if id(one) not in surplus]
            if left:
                kept[index] = left
        self._items = kept

    def _end(self, response: Mapping[str, Any], event: str | None = None) -> None:
        """Take in a response at its end; some repeat all their items in it, some none."""
        self._read_id_and_usage(response)
        details = fields_of(response.get("incomplete_details"))
        self.stop_reason = as_text(details.get("reason")) or as_text(response.get("status")) or event
        self._withheld = as_list(response.get("input_transformations"))
        output = as_list(response.get("output"))
        known = self._held + self._let_go
        if len(output) > known or (len(output) == known and not all(item.done for item in self._in_order())):
            self._items, self._held, self._let_go = {}, 0, 0
            for place, item in enumerate(output):
                self._begin(self._items.setdefault(place, []), _Item(fields_of(item), True))

    def _in_order(self) -> list[_Item]:
        return [item for index in sorted(self._items) for item in self._items[index]]

    def _calls(self) -> list[_Item]:
        return [item for item in self._in_order() if item.fields.get("type") == CALL]

    def _withheld_note(self) -> tuple[str, ...]:
        if not self._withheld:
            return ()
        reasons = {as_text(fields_of(piece).get("reason")) or "no reason given" for piece in self._withheld}
        why = one_line(", ".join(sorted(reasons)))
        return (f"{len(self._withheld)} piece(s) of earlier thinking not shown to the model: {why}",)


def _is_another(last: _Item, fields: Mapping[str, Any]) -> bool:
    """Tell whether an item follows the last one of its index, and is not that one once more."""
    identity = fields.get("id")
    return last.done and (identity is None or identity != last.fields.get("id"))


def message_parts(output: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of an answer's messages: its text, or why it is refused."""
    return [part for item in output if item.get("type") == MESSAGE for part in objects_in(item.get("content"))]


def _take(pieces: list[str], event: Mapping[str, Any], step: str, whole: str) -> str:
    """Add a piece, or replace the pieces by the whole; return what is new."""
    if step == "delta":
        pieces.append(as_text(event.get("delta")))
        return json_text.join_surrogates(pieces[-1])[0]
    text = as_text(event.get(whole))
    if text:
        pieces[:] = [text]
    return ""


def _readable(output: Sequence[Mapping[str, Any]]) -> str:
    texts: list[str] = []
    for item in output:
        if item.get("type") == THOUGHT:
            parts = (*objects_in(item.get("summary")), *objects_in(item.get("content")))
            texts += [as_text(part.get("text")) for part in parts]
    return "\n".join(filter(None, texts))


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
