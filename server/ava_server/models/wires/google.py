"""Google's `generateContent`: request bodies, and answers made of parts.

Parts are kept as they came and sent back with their signatures, which seal the model's thinking. Left out is what the
model need not be shown again (summaries of its thinking) and parts of kinds that were never asked for. Gemini 3 refuses
a call without a signature; Google's documented stand-in takes its place where there is none, as for calls that Ava
wrote itself (ai.google.dev, thought signatures).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, urlsplit

from ava_server.models import json_text
from ava_server.models.base import AssistantTurn, Delta, Request, ToolTurn, ToolUse, Turn, UserTurn
from ava_server.models.json_text import as_object, as_text, fields_of, objects_in
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

WITHOUT_SIGNATURE = "skip_thought_signature_validator"
"""What Google's documentation names for a call whose signature is not known."""
LEAST_BUDGET = 128
"""The smallest budget of the models with one that always think: Gemini 2.5 Pro."""
WHOLE, STREAM = "generateContent", "streamGenerateContent"
_TOKEN = "ya29."  # noqa: S105 - a prefix
"""How the tokens of Google accounts begin, which both of its addresses take; a key goes into a header of its own."""
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}
"""Google's names of the statuses that the gateway gives."""
_TEXT = frozenset(("text", "thought"))
_SENT_BACK = frozenset(("text", "thought", "functionCall", "thoughtSignature"))
"""Fields of a part that go into later requests; others belong to tools that Google runs, which Ava never asks for."""
_STOPPED = {"MAX_TOKENS": "max_tokens"} | dict.fromkeys(
    ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"), "content_filter"
)
"""Reasons for an answer's end that a run acts on, in its own words."""
_UNSIGNED = "MISSING_THOUGHT_SIGNATURE"
"""The reason that says that a call in the conversation lacks its signature."""
_REJECTED = frozenset(("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"))
"""Reasons that say that Google did not take what the model wrote."""


@dataclass(frozen=True)
class GoogleWire(Wire):
    """`generateContent` as one endpoint has it.

    `bearer` sends the key as a token, where its address has no header for keys. `call_ids`: it accepts the ids of
    calls, and of their results.
    """

    speaks: ClassVar[str] = "Google's generateContent"
    flavors: ClassVar[tuple[str, ...]] = ("default",)
    part: ClassVar[str] = "candidates"
    sorts_cache: ClassVar[bool] = True
    path: ClassVar[str] = ""
    bearer: bool = False
    call_ids: bool = True

    def address(self, base: str, model: str) -> str:
        """Return the address with the model and the method; people write an API's with and without a version."""
        versioned = base if urlsplit(base).path else f"{base}/v1beta"
        if not model:
            return versioned
        method = f"{STREAM}?alt=sse" if self.streaming else WHOLE
        return f"{versioned}/models/{quote(model.removeprefix('models/'), safe='')}:{method}"

    def request_at(self, path: str) -> Mapping[str, Any] | None:
        model, _, method = path.rpartition("/models/")[2].rpartition(":")
        if method not in (WHOLE, STREAM) or "/models/" not in path:
            return None
        return {"model": model, "stream": method == STREAM}

    def unanswered_form(self, path: str, query: str) -> str:
        """Without `alt=sse`, Google streams the elements of one JSON array, which no client of its own asks for."""
        is_stream = path.endswith(f":{STREAM}")
        if not is_stream or "sse" in parse_qs(query).get("alt", []):
            return ""
        return f"{STREAM} is answered here as server-sent events alone: add ?alt=sse, or call {WHOLE}"

    def counted(self, path: str) -> bool:
        return path.endswith(":countTokens")

    def model_list(self, ids: Sequence[str]) -> dict[str, Any]:
        methods = [WHOLE, STREAM, "countTokens"]
        return {"models": [{"name": f"models/{one}", "supportedGenerationMethods": methods} for one in ids]}

    def error_body(self, status: int, kind: str, message: str, wait_s: float | None) -> dict[str, Any]:
        error: dict[str, Any] = {"code": status, "message": message, "status": _STATUS.get(status, "INTERNAL")}
        if wait_s is not None:
            wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{max(round(wait_s), 1)}s"}
            error["details"] = [wait]
        return {"error": error}

    def models_url(self, base_url: str) -> str:
        url = super().models_url(base_url)
        sign = "&" if "?" in url else "?"
        return f"{url}{sign}pageSize=1000"

    def listed_ids(self, answer: Any) -> list[Any]:
        return [
            as_text(one["name"]).removeprefix("models/")
            for one in answer["models"]
            if WHOLE in one.get("supportedGenerationMethods", (WHOLE,))
        ]

    def headers(self, api_key: str | None) -> dict[str, str]:
        if not api_key:
            return {}
        if self.bearer or api_key.startswith(_TOKEN):
            return super().headers(api_key)
        return {"x-goog-api-key": api_key}

    def message(self, turn: Turn) -> Mapping[str, Any]:
        """Return a turn as a content of its own; in a request, neighbours of one role are one content."""
        match turn:
            case AssistantTurn(raw, edited_before, without_thinking):
                stale = without_thinking or (edited_before and self.thinking.bound)
                parts = self._sent_back(raw, with_thinking=not stale)
                if not self.call_ids:
                    parts = list(map(_without_id, parts))
                return {"role": "model", "parts": parts}
            case UserTurn(text):
                return {"role": "user", "parts": [{"text": text}]}
            case ToolTurn(call_id, name, text):
                response = {"name": name, "response": {"output": text}}
                if self.call_ids:
                    response = {"id": call_id, **response}
                return {"role": "user", "parts": [{"functionResponse": response}]}

    def body(self, request: Request) -> dict[str, Any]:
        contents: list[dict[str, Any]] = []
        for turn in request.turns:
            one = self.message(turn)
            if not one["parts"]:
                continue
            if contents and contents[-1]["role"] == one["role"]:
                contents[-1]["parts"].extend(one["parts"])
            else:
                contents.append({"role": one["role"], "parts": list(one["parts"])})
        parts: dict[str, Any] = {}
        if request.system:
            parts["systemInstruction"] = {"parts": [{"text": request.system}]}
        if request.tools:
            declared = [tool.as_dict("parametersJsonSchema") for tool in request.tools]
            parts["tools"] = [{"functionDeclarations": declared}]
        parts["contents"] = contents
        parts["generationConfig"] = {"maxOutputTokens": request.max_output, **self._thinking(request.thinking)}
        return parts

    def accepted_body(self, body: Mapping[str, Any], *, other_limit: bool = False) -> dict[str, Any]:
        if self.call_ids:
            return dict(body)
        contents = [
            {**content, "parts": list(map(_without_id, objects_in(content.get("parts"))))}
            for content in objects_in(body.get("contents"))
        ]
        return {**body, "contents": contents}

    def _sent_back(self, raw: Mapping[str, Any], *, with_thinking: bool) -> list[dict[str, Any]]:
        names = _SENT_BACK if with_thinking else _SENT_BACK - {"thoughtSignature"}
        sent: list[dict[str, Any]] = []
        for part in objects_in(raw.get("parts")):
            kept = {name: value for name, value in part.items() if name in names}
            has_call = "functionCall" in kept or "thoughtSignature" in kept
            has_words = kept.get("text") and not part.get("thought")
            if has_call or has_words:
                sent.append(kept)
        if self._checks_signatures:
            calls = [part for part in sent if "functionCall" in part]
            if calls:
                calls[0].setdefault("thoughtSignature", WITHOUT_SIGNATURE)
        return sent

    @property
    def _checks_signatures(self) -> bool:
        """Tell whether calls need a signature: from Gemini 3 on, which have levels of thinking and no budget."""
        return self.thinking.always and self.thinking.on != "budget"

    def _thinking(self, tokens: int) -> dict[str, Any]:
        """Return what tells the model to think for about so many tokens, or, with 0, not to think."""
        if tokens and self.thinking.on == "budget":
            return {"thinkingConfig": {"thinkingBudget": tokens, "includeThoughts": True}}
        if self.thinking.on == "budget":
            if self.thinking.off == "default":
                return {}
            least = 0 if self.thinking.off == "disabled" else LEAST_BUDGET
            return {"thinkingConfig": {"thinkingBudget": least}}
        level = self.effort(tokens)
        if level in (None, "none"):
            return {}
        thinking: dict[str, Any] = {"thinkingLevel": level.upper()}
        if tokens:
            thinking["includeThoughts"] = True
        return {"thinkingConfig": thinking}

    def answer(self) -> GoogleAnswer:
        return GoogleAnswer()

    def fault(self, event: Mapping[str, Any]) -> Any:
        """Return the error in an event; what the model wrote and Google did not take is one."""
        for candidate in objects_in(event.get("candidates"))[:1]:
            reason = as_text(candidate.get("finishReason"))
            if reason == _UNSIGNED:
                return {"message": as_text(candidate.get("finishMessage")) or "it gives no reason", "status": reason}
            if reason in _REJECTED:
                words = as_text(candidate.get("finishMessage"))
                written = words or _words(objects_in(fields_of(candidate.get("content")).get("parts")))
                return {"message": words or "it gives no reason", "status": reason, "failed_generation": written}
        return super().fault(event)

    def is_answer(self, whole: Mapping[str, Any]) -> bool:
        return bool(objects_in(whole.get("candidates"))) or _block_reason(whole) != ""

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> dict[str, Any]:
        parts: list[dict[str, Any]] = []
        if text:
            parts.append({"text": text})
        for call in calls:
            parts.append({"functionCall": {"id": call.call_id, "name": call.name, "args": dict(call.args or {})}})
        return {"role": "model", "parts": parts}


@dataclass(slots=True)
class _Part:
    """A part on its way: its `fields` as they came, and the `pieces` of a text without a signature."""

    fields: dict[str, Any]
    pieces: list[str] | None = None

    def whole(self) -> dict[str, Any]:
        part = dict(self.fields)
        if self.pieces is not None:
            part["text"] = "".join(self.pieces)
        call = as_object(part.get("functionCall"))
        if call is not None:  # Google takes back only an object
            part["functionCall"] = {**call, "args": fields_of(call.get("args"))}
        return part


@dataclass
class GoogleAnswer(WireAnswer):
    """An answer that grows with every event of a stream, or is taken whole; never `over`, as no event says so."""

    usage_field: ClassVar[str] = "usageMetadata"
    _parts: list[_Part] = field(default_factory=list[_Part])
    _blocked: bool = False
    _notes: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, event: Mapping[str, Any]) -> Delta:
        self._read_id_and_usage(event)
        reason = _block_reason(event)
        if reason:
            self.stop_reason, self._blocked = reason, True
            self._note(f"the prompt was refused: {reason}", event["promptFeedback"].get("blockReasonMessage"))
        candidates = objects_in(event.get("candidates"))
        if not candidates:
            return Delta()
        reason = as_text(candidates[0].get("finishReason"))
        if reason:
            self.stop_reason = reason
            words = as_text(candidates[0].get("finishMessage"))
            if words and reason != "STOP":  # of an ordinary end it says what everybody sees: that there are calls
                self._note(f"stopped: {reason}", words)
        return self._grow(objects_in(fields_of(candidates[0].get("content")).get("parts")))

    def whole(self) -> WholeAnswer:
        call_parts = list(filter(_is_call, self._calls()))
        dropped = {id(part) for part in self._calls()} - {id(part) for part in call_parts[:MOST_CALLS]}
        kept = [part.whole() for part in self._parts if id(part) not in dropped]
        raw, changed = json_text.storable({"role": "model", "parts": kept})
        called = [part["functionCall"] for part in raw["parts"] if "functionCall" in part]
        answer_id = one_line(self.request_id) or "call"
        for number, call in enumerate(called):  # older models give no id; that of the answer makes it unique
            call["id"] = as_text(call.get("id")) or f"{answer_id}_{number}"
        set_unique_ids(called, "id")
        calls = tuple(
            tool_use(call["id"], as_text(call.get("name")), _raw_args(part))
            for call, part in zip(called, call_parts[:MOST_CALLS], strict=True)
        )
        return WholeAnswer(
            raw=raw,
            text=_words(raw["parts"]),
            calls=calls,
            thinking=_words(raw["parts"], thought=True),
            is_empty=not raw["parts"],
            notes=(*self._notes, *dropped_calls_note(len(call_parts) + self._let_go), *changed),
            stop_reason="content_filter" if self._blocked else _STOPPED.get(self.stop_reason or ""),
        )

    def chat_usage(self) -> Mapping[str, Any] | None:
        """Return the usage with the names of chat completions; Google leaves out a count that is 0.

        Thinking is counted beside the answer, and what tools of Google's own showed the model beside the prompt.
        """
        usage = self.usage
        if usage is None:
            return None
        return {
            "prompt_tokens": _sum(usage, "promptTokenCount", "toolUsePromptTokenCount"),
            "completion_tokens": _sum(
                {"candidatesTokenCount": 0, **usage}, "candidatesTokenCount", "thoughtsTokenCount"
            ),
            "prompt_tokens_details": {"cached_tokens": usage.get("cachedContentTokenCount")},
            "completion_tokens_details": {"reasoning_tokens": usage.get("thoughtsTokenCount")},
            "total_tokens": usage.get("totalTokenCount"),
        }

    def _read_id_and_usage(self, fields: Mapping[str, Any]) -> None:
        super()._read_id_and_usage({"id": fields.get("responseId"), self.usage_field: fields.get(self.usage_field)})

    def _grow(self, parts: Sequence[dict[str, Any]]) -> Delta:
        arguments: list[str] = []
        for part in parts:
            if "functionCall" in part and as_object(part["functionCall"]) is None:
                self._notes["dropped a call that was no object"] = None
                continue
            if "functionCall" in part:
                arguments.append(_raw_args(_Part(part)))
            self._add_part(part)
        text, thinking = (json_text.join_surrogates(_words(parts, thought=one))[0] for one in (False, True))
        return Delta(text, thinking, "".join(arguments))

    def _add_part(self, part: dict[str, Any]) -> None:
        """Keep a part; a text goes on the text before it, where neither has a signature."""
        if not part.keys() <= _TEXT:
            self._parts.append(_Part(part))
            surplus = set(map(id, self._surplus(len(self._parts), self._calls)))
            if surplus:
                self._parts = [kept for kept in self._parts if id(kept) not in surplus]
            return
        text = as_text(part.get("text"))
        if not text:
            return
        if self._parts:
            last = self._parts[-1]
            if last.pieces is not None and last.fields.get("thought") == part.get("thought"):
                last.pieces.append(text)
                return
        self._parts.append(_Part(part, [text]))

    def _calls(self) -> list[_Part]:
        return [part for part in self._parts if "functionCall" in part.fields]

    def _note(self, what: str, words: Any) -> None:
        self._notes[one_line(f"{what}: {words}" if as_text(words) else what) or ""] = None


def _without_id(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part without the id of its call or result; the order of the results says whose they are."""
    kept = dict(part)
    for name in ("functionCall", "functionResponse"):
        fields = as_object(part.get(name))
        if fields is not None:
            kept[name] = {key: value for key, value in fields.items() if key != "id"}
    return kept


def _block_reason(event: Mapping[str, Any]) -> str:
    """Return why the prompt was refused; empty where it was not."""
    return as_text(fields_of(event.get("promptFeedback")).get("blockReason"))


def _words(parts: Sequence[Mapping[str, Any]], *, thought: bool = False) -> str:
    return "".join(as_text(part.get("text")) for part in parts if (part.get("thought") is True) is thought)


def _is_call(part: _Part) -> bool:
    return asks_for_something(as_text(fields_of(part.fields["functionCall"]).get("name")), _raw_args(part))


def _raw_args(part: _Part) -> str:
    """Return a call's arguments as text; none at all are an empty object."""
    args = fields_of(part.fields.get("functionCall")).get("args")
    return json_text.encode(json_text.storable({} if args is None else args)[0]).decode()


def _sum(usage: Mapping[str, Any], first: str, more: str) -> Any:
    """Return the sum of two counts, or the first of them that is not a whole number."""
    counts: list[Any] = [usage.get(first), usage.get(more) or 0]
    wrong = [count for count in counts if isinstance(count, bool) or not isinstance(count, int)]
    return wrong[0] if wrong else sum(counts)
