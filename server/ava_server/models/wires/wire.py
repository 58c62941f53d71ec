"""The seam of a provider's format: a `Wire` makes requests, a `WireAnswer` collects what comes back."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from ava_server.models.base import Completion, Delta, Request, ToolUse, Turn
from ava_server.models.json_text import (
    NotJsonError,
    as_object,
    as_text,
    decode,
    decode_object,
    encode,
    join_surrogates,
)
from ava_server.models.model_choice import EFFORT, LOW, UNKNOWN, Thinking
from ava_server.models.prompt_cache import CacheMark
from ava_server.models.surcharges import ANSWER_FIELDS, SERVICE_TIER
from ava_server.models.tokens import CachePlace, claims_use, merge_usage, read_usage
from ava_server.models.usage_reader import UsageReader, more_words

_Call = TypeVar("_Call")
MOST_CALLS = 128
"""Tool calls of one answer that are kept; no real model asks for as many."""
_USAGE_HOLDERS = ("response", "message", "error", "x_groq")
"""The parts of an error in which providers put the usage, besides the error itself."""
_UNSAID = ("", "auto")
"""Values of a tier that leave open which one it was."""
_LONGEST_VALUE = 40
_LONGEST_LINE = 200
"""Characters of a provider's id or reason that are kept: they are for people, and go into every log line."""


@dataclass(frozen=True)
class WholeAnswer:
    """What an answer holds, in plain, finite JSON."""

    raw: dict[str, Any]
    text: str
    calls: tuple[ToolUse, ...]
    thinking: str  # its thinking as far as a person can read it
    is_empty: bool  # there is nothing in it, so no output tokens are plausible
    notes: tuple[str, ...]  # what had to be changed or was odd
    stop_reason: str | None = None  # why it ended, where that is not the provider's own word


@dataclass
class WireAnswer(ABC):
    """An answer that grows with every event of a stream, or is taken whole.

    `stop_reason` is the provider's word for why it ended; what goes wrong after that does not spoil the answer. `over`:
    the stream has said that nothing more comes. `closed`: an answer without such a word was taken. `usage` is the
    provider's as it came. `offered` are the names of the tools, where they are known. `_let_go` is how many calls are
    counted but no longer held, `_room` how many parts an answer may have before that is looked for. `usage_field` is
    where the provider has the usage, `cache` what is known of how it counts its cache, and `named` what it says of how
    it was computed, by field (`ANSWER_FIELDS`).
    """

    usage_field: ClassVar[str] = "usage"

    stop_reason: str | None = None
    over: bool = False
    closed: bool = False
    request_id: str | None = None
    usage: dict[str, Any] | None = None
    offered: frozenset[str] = frozenset()
    cache: CachePlace = field(default_factory=CachePlace)
    named: dict[str, str] = field(default_factory=dict[str, str])
    _let_go: int = 0
    _room: int = 8 * MOST_CALLS

    @property
    def ended(self) -> bool:
        return self.stop_reason is not None or self.closed

    def close(self) -> bool:
        """Take an answer whose stream came to its own end without a word why; tell whether it is one.

        It has content and usage, and the arguments of each call are whole JSON.
        """
        whole = self.whole()
        has_content = bool(whole.text.strip() or whole.calls)
        calls_are_whole = all(call.name and is_whole_object(call.raw_args) for call in whole.calls)
        self.closed = self.usage is not None and has_content and calls_are_whole
        return self.closed

    @abstractmethod
    def add(self, event: Mapping[str, Any], /) -> Delta:
        """Take in one event, or a whole answer; unknown ones add nothing."""

    @abstractmethod
    def whole(self) -> WholeAnswer: ...

    def chat_usage(self) -> Mapping[str, Any] | None:
        """Return the usage with the names of chat completions."""
        return self.usage

    def final_request_id(self, in_headers: str | None) -> str | None:
        return in_headers or self.request_id

    def complete(
        self,
        *,
        request_id: str | None,
        sent_bytes: int,
        seen: Callable[[], int] | None = None,
        most_output: int | None = None,
        notes: tuple[str, ...] = (),
        reader: UsageReader | None = None,
    ) -> Completion:
        """Return the answer as it is to be stored. `sent_bytes` is the size of the request's body.

        `seen` returns how many bytes of text in it the model was certainly shown; `most_output` is the answer's limit;
        `reader` reads the usage a second time, where it knows the provider.
        """
        whole = self.whole()
        usage, cost_micros, odd = read_usage(
            self.chat_usage(),
            sent_bytes=sent_bytes,
            has_content=not whole.is_empty,
            seen=seen,
            most_output=most_output,
            cache=self.cache,
        )
        more = None
        if usage is not None and not cost_micros:
            more = self.cache.dearer(usage)
            if more is not None:
                odd = (*odd, "cached tokens may be beside the prompt: booked so, as far as they were reserved")
            elif reader is not None:
                more = reader.more(self.usage or {}, usage)
                if more is not None:
                    odd = (*odd, more_words(more))
        return Completion(
            text=whole.text,
            calls=whole.calls,
            raw=whole.raw,
            usage=usage,
            cost_micros=cost_micros,
            thinking=whole.thinking,
            stop_reason=one_line(whole.stop_reason or self.stop_reason),
            request_id=one_line(self.final_request_id(request_id)),
            notes=(*notes, *whole.notes, *odd),
            more=more,
            named=dict(self.named),
        )

    def read_usage_of(self, event: Mapping[str, Any]) -> bool:
        """Take the usage from an event or body that is otherwise an error; tell whether it says that any was used."""
        claims = False
        for holder in (event, *(event.get(name) for name in _USAGE_HOLDERS)):
            fields = as_object(holder)
            if fields is not None:
                self._read_id_and_usage(fields)
                claims = claims or claims_use(fields.get(self.usage_field))
        return claims

    def _read_id_and_usage(self, fields: Mapping[str, Any]) -> None:
        self.request_id = as_text(fields.get("id")) or self.request_id
        usage = as_object(fields.get(self.usage_field))
        if usage:
            self.usage = merge_usage(self.usage, usage)
        self._read_named(fields, usage or {})

    def _read_named(self, fields: Mapping[str, Any], usage: Mapping[str, Any]) -> None:
        """Take what an answer says of its tier and its place; the last word counts."""
        for name in ANSWER_FIELDS:
            in_usage = name.removeprefix("usage.")
            value = as_text(fields.get(name)) if in_usage == name else as_text(usage.get(in_usage))
            if value not in _UNSAID and len(value) <= _LONGEST_VALUE:
                self.named[name] = one_line(value) or ""

    def _surplus(self, held: int, calls: Callable[[], Sequence[_Call]]) -> Sequence[_Call]:
        """Return which calls to let go of, now and then: beyond MOST_CALLS they only count, and the last still grows.

        `held` is how many parts the answer has so far; `calls` returns those of them that are calls.
        """
        if held <= self._room:
            return ()
        surplus = calls()[MOST_CALLS:-1]
        self._let_go += len(surplus)
        self._room = max(self._room, 2 * (held - len(surplus)))
        return surplus


@dataclass(frozen=True)
class Wire(ABC):
    """A format of requests and answers, as one endpoint speaks it.

    `streaming`: ask for a stream; some servers cannot. `service_tier` is the tier that requests ask for; empty where
    they ask for none. `speaks` is its name for people, and `flavors` its names in genai-prices, the best one first.
    `part` is the field that every whole answer has. `path` is under an API's address.
    `has_other_limit`: its limit on an answer has two names, of which an endpoint may know one.
    `sorts_cache`: the format itself says whether the prompt that it counts has the cache in it.
    """

    streaming: bool = True
    thinking: Thinking = UNKNOWN
    service_tier: str = field(default="", kw_only=True)
    speaks: ClassVar[str]
    flavors: ClassVar[tuple[str, ...]]
    part: ClassVar[str]
    path: ClassVar[str]
    has_other_limit: ClassVar[bool] = False
    sorts_cache: ClassVar[bool] = False

    def url(self, base_url: str, model: str) -> str:
        """Return where answers of a model are asked for.

        `base_url` may end with the path already, have `{model}` in it, and end with a query (`ALLOWED_QUERY`).
        """
        base, question, query = base_url.partition("?")
        address = self.address(base.replace("{model}", quote(model, safe="")).rstrip("/"), model)
        if not query:
            return address
        sign = "&" if "?" in address else question
        return f"{address}{sign}{query}"

    def address(self, base: str, model: str) -> str:
        """Return the address under an API's, which has neither a query nor a slash at its end."""
        return base if base.endswith(self.path) else f"{base}{self.path}"

    def request_at(self, path: str) -> Mapping[str, Any] | None:
        """Return the fields of a request that the path of another program's has, or None: it asks for no answer."""
        return {} if path.endswith(self.path) else None

    def unanswered_form(self, path: str, query: str) -> str:
        """Return a sentence where another program's address asks for an answer in a form that no request here has."""
        return ""

    def counted(self, path: str) -> bool:
        """Tell whether a path of another program's asks only how many tokens a request has."""
        return False

    def model_list(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return a list of models as the API has it, for other programs."""
        models = [{"id": name, "object": "model", "type": "model"} for name in ids]
        return {"object": "list", "data": models, "has_more": False}

    def error_body(self, status: int, kind: str, message: str, wait_s: float | None) -> dict[str, Any]:
        """Return an error as the API has it, for other programs: by its status, and its kind in Anthropic's words."""
        code = "insufficient_quota" if kind == "billing_error" else kind
        return {"error": {"type": kind, "message": message, "code": code, "param": None}}

    def models_url(self, base_url: str) -> str:
        """Return where the API lists its models."""
        base, question, query = base_url.partition("?")
        return f"{self.address(base.rstrip('/'), '').removesuffix(self.path)}/models{question}{query}"

    def listed_ids(self, answer: Any) -> list[Any]:
        """Return the ids in a list of models. Raises LookupError, TypeError if it is none."""
        return [entry["id"] for entry in answer["data"]]

    def headers(self, api_key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    def may_think(self, turns: Sequence[Turn]) -> bool:
        return self.thinking.possible

    def effort(self, tokens: int) -> str | None:
        """Return the effort that tells a model to think, or, with 0, not to; None says nothing of it."""
        if tokens:
            return EFFORT if self.thinking.possible else None
        return {"default": None, "disabled": "none"}.get(self.thinking.off, LOW)

    def tier(self, *, refused: bool) -> dict[str, str]:
        """Return the field of a request that asks for the tier; none once the provider has `refused` it."""
        if refused or not self.service_tier:
            return {}
        return {SERVICE_TIER: self.service_tier}

    def fault(self, event: Mapping[str, Any]) -> Any:
        """Return the error in an event or in place of a whole answer, or None."""
        if event.get("object") == "error":  # vLLM
            return event.get("error") or event
        error = event.get("error")
        if not error and event.get("detail") and self.part not in event:
            return event
        return error

    @abstractmethod
    def message(self, turn: Turn) -> Mapping[str, Any]:
        """Return a turn as the wire has it, for counting its bytes."""

    @abstractmethod
    def body(self, request: Request) -> dict[str, Any]:
        """Return the whole body of a request, in a fixed order; it depends only on the request and the wire."""

    def accepted_body(self, body: Mapping[str, Any], *, other_limit: bool = False) -> dict[str, Any]:
        """Return a body that another program made in this format, with its limit, as this endpoint accepts it.

        `other_limit`: it has refused the usual name of the limit.
        """
        return dict(body)

    @abstractmethod
    def answer(self) -> WireAnswer: ...

    @abstractmethod
    def is_answer(self, whole: Mapping[str, Any]) -> bool:
        """Tell whether JSON that came in one piece is an answer."""

    @abstractmethod
    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> dict[str, Any]: ...


_MARKS: Mapping[CacheMark, Mapping[str, Any]] = {
    "cache_control": {"type": "ephemeral"},
    "prompt_cache_breakpoint": {"mode": "explicit"},
}


def marked(parts: Sequence[Mapping[str, Any]], mark: CacheMark) -> list[dict[str, Any]]:
    """Return parts of a message, each with a mark up to which the prompt is cached."""
    return [{**part, mark: _MARKS[mark]} for part in parts]


def cache_key(request: Request, mark: CacheMark) -> dict[str, str]:
    """Return the field that leads requests with the same beginning to the same cache; only OpenAI has one."""
    if mark != "prompt_cache_breakpoint":
        return {}
    shared = encode([[tool.as_dict() for tool in request.tools], request.system[: request.shared_chars]])
    return {"prompt_cache_key": hashlib.sha256(shared).hexdigest()[:32]}


def is_whole_object(text: str) -> bool:
    """Tell whether a text is a JSON object to its end, without a repair."""
    try:
        return as_object(decode(text)) is not None
    except NotJsonError:
        return False


def tool_use(call_id: str, name: str, raw_args: str) -> ToolUse:
    """Return a tool call with its arguments read, if they are a JSON object; a pure function, for resumed runs."""
    return ToolUse(call_id, name, decode_object(raw_args), raw_args)


def asks_for_something(name: str, arguments: str) -> bool:
    """Tell whether a call has a name or arguments: one without both is none, whatever field it stands in."""
    return bool(name.strip()) or arguments.strip() not in ("", "{}", "null")


def one_line(text: str | None) -> str | None:
    """Return a provider's id or reason as the log can hold it: one line, without terminal controls."""
    text = join_surrogates((text or "")[:_LONGEST_LINE])[0]
    return "".join(char if char.isprintable() else " " for char in text).strip() or None


def set_unique_ids(calls: Sequence[dict[str, Any]], key: str) -> None:
    """Give each call a unique id under `key`: results are matched by it, and servers omit ids or repeat them."""
    taken: set[str] = set()
    for number, call in enumerate(calls):
        identity = as_text(call.get(key)) or as_text(call.get("id")) or f"call_{number}"
        while identity in taken:
            identity = f"{identity}_{number}"
        taken.add(identity)
        call[key] = identity


def dropped_calls_note(found: int) -> tuple[str, ...]:
    if found > MOST_CALLS:
        return (f"kept the first {MOST_CALLS} of {found:,} tool calls",)
    return ()
