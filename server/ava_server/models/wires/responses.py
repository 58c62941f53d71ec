"""An answer of OpenAI Responses: items that come piece by piece, and then each as a whole."""

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
from ava_server.models.wires import base
from ava_server.models.wires import base as wire_json
from ava_server.models.wires.base import MOST_CALLS, as_list, as_object, told_apart, too_many, tool_use, word

MESSAGE, THOUGHT, CALL = "message", "reasoning", "function_call"
_WORDS = {"output_text": "text", "refusal": "refusal"}
"""The field that has the words of a part of a message, by the part's type."""
_GROWS = {
    "output_text": (MESSAGE, "content", "output_text", "text", "content_index"),
    "refusal": (MESSAGE, "content", "refusal", "refusal", "content_index"),
    "reasoning_text": (THOUGHT, "content", "reasoning_text", "text", "content_index"),
    "reasoning_summary_text": (THOUGHT, "summary", "summary_text", "text", "summary_index"),
}
"""What `response.….delta` adds to: the type of the item, its list, the type of the part, its field, and its place."""


@dataclass
class _Item:
    """An item on its way.

    Attributes:
        fields: What is known of it.
        done: It has come as a whole, and its pieces count no more.
        pieces: Those that came before, by what they are of and the place of their part.
        arguments: Those of a call's arguments.
    """

    fields: dict[str, Any]
    done: bool = False
    pieces: dict[tuple[str, int], list[str]] = field(default_factory=dict[tuple[str, int], list[str]])
    arguments: list[str] = field(default_factory=list[str])

    def whole(self) -> dict[str, Any]:
        """Return the item with its pieces put in."""
        item = dict(self.fields)
        if not self.done:
            item.pop("encrypted_content", None)  # it may be half of it
            grown: dict[str, list[Any]] = {}
            for (what, place), pieces in sorted(self.pieces.items(), key=lambda known: known[0][1]):
                _, name, kind, text, _ = _GROWS[what]
                parts = grown.setdefault(name, as_list(item.get(name)))
                begun = as_object(parts[place]) if 0 <= place < len(parts) else None
                if begun is None:
                    parts.append({"type": kind, text: "".join(pieces)})
                else:
                    parts[place] = {**begun, text: "".join(pieces)}
            item |= grown
        if item.get("type") == CALL:
            given = item.get("arguments")
            if isinstance(given, dict):  # an object instead of its text, as some local servers send it
                given = base.encode(base.storable(given)[0]).decode()
            item["arguments"] = _text_of(given) or "".join(self.arguments)
        return item


@dataclass
class ResponsesAnswer:
    """An answer that grows with every event of a stream, or is taken whole from a response.

    Attributes:
        stop_reason: The provider's word for why it ended; None while it has not said.
        over: The stream has said that nothing more comes.
        request_id: The provider's id of the response.
        usage: The provider's figures as they came.
    """

    stop_reason: str | None = None
    over: bool = False
    request_id: str | None = None
    usage: Mapping[str, Any] | None = None
    _items: dict[int, list[_Item]] = field(default_factory=dict[int, list[_Item]])
    _withheld: Sequence[Any] = ()

    @property
    def ended(self) -> bool:
        """Whether the provider has said why it ended."""
        return self.stop_reason is not None

    def add(self, event: Mapping[str, Any]) -> Delta:
        """Take in one event, or a whole response, and return what it brought; unknown ones bring nothing."""
        kind = _text_of(event.get("type")).removeprefix("response.")
        what, _, step = kind.rpartition(".")
        if what in _GROWS and step in ("delta", "done"):
            return self._grow(event, what, step)
        if what == "function_call_arguments" and step in ("delta", "done"):
            return Delta(arguments=_take(self._at(event, CALL).arguments, event, step, "arguments"))
        if what == "output_item" and step in ("added", "done"):
            self._item(event, as_object(event.get("item")) or {}, done=step == "done")
        elif kind in ("completed", "incomplete"):
            self._ended(as_object(event.get("response")) or {}, kind)
            self.over = True
        elif (response := as_object(event.get("response"))) is not None:
            self._named(response)
        elif isinstance(event.get("output"), list):
            self._ended(event)
        return Delta()

    def complete(
        self, *, request_id: str | None, sent_bytes: int, unseen: Callable[[], int] = int, notes: tuple[str, ...] = ()
    ) -> Completion:
        """Return the answer as it is to be stored: everything in it is plain, finite JSON."""
        items = [item.whole() for item in self._in_order()]
        found = [item for item in items if item.get("type") == CALL]
        dropped = {id(item) for item in found[MOST_CALLS:]}
        output = [item for item in items if id(item) not in dropped]
        raw, changed = base.storable({"role": "assistant", "output": output})
        asked = [item for item in raw["output"] if item.get("type") == CALL]
        ids = told_apart(_text_of(item.get("call_id")) or _text_of(item.get("id")) for item in asked)
        for item, identity in zip(asked, ids, strict=True):
            item["call_id"] = identity
        said = [part for item in raw["output"] if item.get("type") == MESSAGE for part in _parts(item, "content")]
        declined = self.stop_reason == "completed" and any(part.get("type") == "refusal" for part in said)
        usage, cost_micros, odd = read_usage(
            _figures(self.usage), sent_bytes=sent_bytes, said_something=bool(output), unseen=unseen
        )
        return Completion(
            text="".join(_text_of(part.get(_WORDS.get(_text_of(part.get("type")), "text"))) for part in said),
            calls=tuple(tool_use(item["call_id"], _text_of(item.get("name")), item["arguments"]) for item in asked),
            raw=raw,
            usage=usage,
            cost_micros=cost_micros,
            thinking=_thinking(raw["output"]),
            stop_reason="refusal" if declined else word(self.stop_reason),
            request_id=word(request_id or self.request_id),
            notes=(*notes, *self._left_out(), *too_many(len(found)), *changed, *odd),
        )

    def _at(self, event: Mapping[str, Any], kind: str) -> _Item:
        """Return the item that an event is about; one that was not announced begins with it."""
        known = self._items.setdefault(_number(event.get("output_index")), [])
        if not known:
            known.append(_Item({"type": kind, "role": "assistant"} if kind == MESSAGE else {"type": kind}))
        return known[-1]

    def _grow(self, event: Mapping[str, Any], what: str, step: str) -> Delta:
        kind, _, _, text, index = _GROWS[what]
        pieces = self._at(event, kind).pieces.setdefault((what, _number(event.get(index))), [])
        shown = _take(pieces, event, step, text)
        return Delta(thinking=shown) if kind == THOUGHT else Delta(text=shown)

    def _item(self, event: Mapping[str, Any], fields: dict[str, Any], *, done: bool) -> None:
        """Take in an item that begins, or one that is whole; some servers give all of them one index."""
        known = self._items.setdefault(_number(event.get("output_index")), [])
        last, identity = known[-1] if known else None, fields.get("id")
        if last is None or (last.done and (identity is None or identity != last.fields.get("id"))):
            known.append(_Item(fields, done))
        elif done or not last.done:
            last.fields, last.done = fields, done

    def _named(self, response: Mapping[str, Any]) -> None:
        if isinstance(identity := response.get("id"), str) and identity:
            self.request_id = identity
        self.usage = larger(self.usage, as_object(response.get("usage")) or None)

    def _ended(self, response: Mapping[str, Any], event: str | None = None) -> None:
        """Take in a response at its end; some have all its items in it once more, some none."""
        self._named(response)
        details = as_object(response.get("incomplete_details")) or {}
        self.stop_reason = _text_of(details.get("reason")) or _text_of(response.get("status")) or event
        self._withheld = as_list(response.get("input_transformations"))
        output, known = as_list(response.get("output")), self._in_order()
        if len(output) > len(known) or (len(output) == len(known) and not all(item.done for item in known)):
            self._items = {place: [_Item(as_object(item) or {}, True)] for place, item in enumerate(output)}

    def _in_order(self) -> list[_Item]:
        return [item for index in sorted(self._items) for item in self._items[index]]

    def _left_out(self) -> tuple[str, ...]:
        """Return the note about earlier thinking that the model was not shown."""
        reasons = {_text_of((as_object(one) or {}).get("reason")) or "no reason given" for one in self._withheld}
        why = word(", ".join(sorted(reasons)))
        return (f"{len(self._withheld)} piece(s) of earlier thinking not shown to the model: {why}",) if reasons else ()


def _take(pieces: list[str], event: Mapping[str, Any], step: str, whole: str) -> str:
    """Add a piece, or put the whole in the pieces' place; return what is new."""
    if step == "delta":
        pieces.append(_text_of(event.get("delta")))
        return base.whole_text(pieces[-1])[0]
    if text := _text_of(event.get(whole)):
        pieces[:] = [text]
    return ""


def _figures(usage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return figures in the names of chat completions; what they count is the same."""
    if usage is None:
        return None
    return {
        **usage,
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
        "completion_tokens_details": usage.get("output_tokens_details"),
    }


def _thinking(output: Sequence[Mapping[str, Any]]) -> str:
    """Return the thinking in an answer as far as a person can read it."""
    thoughts = [item for item in output if item.get("type") == THOUGHT]
    parts = (part for item in thoughts for name in ("summary", "content") for part in _parts(item, name))
    return "\n".join(text for part in parts if (text := _text_of(part.get("text"))))


def _parts(item: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [fields for part in as_list(item.get(name)) if (fields := as_object(part)) is not None]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


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
