"""Bodies of model requests that another agent makes: read, checked and rewritten, closed to what is not known.

Only fields and kinds of content that this file knows pass. What changes a price, what the provider runs itself, and
what Ava cannot see (a file's id, an address, an earlier answer's id) does not. Images and documents become a sentence:
how many tokens they are does not follow from their bytes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ava_audit.redaction import Redactor
from ava_server.agents.seam import AgentCall, CallRefused
from ava_server.models.json_text import as_list, as_object, as_text, decode, deeper_than, encode, objects_in

log = logging.getLogger("ava.agents")


@dataclass(frozen=True)
class BodyForm:
    """What a wire's bodies may have.

    `passed` are fields that pass as they are, `head` those before the conversation, `items` the field with that.
    `output` are the names of the limit on an answer, the first one where the agent gives none. `refused` fields end the
    call. `tools` are the types of tools that the agent itself runs; "" is a tool without a type.
    """

    items: str
    head: tuple[str, ...]
    passed: frozenset[str]
    output: tuple[str, ...]
    tools: frozenset[str]
    refused: frozenset[str] = frozenset()
    forced: Mapping[str, Any] = field(default_factory=dict[str, Any])


FORMS: Mapping[str, BodyForm] = {
    "messages": BodyForm(
        items="messages",
        head=("system", "tools"),
        passed=frozenset(
            ("tool_choice", "stream", "temperature", "top_p", "top_k", "stop_sequences", "thinking", "output_config")
        ),
        output=("max_tokens",),
        tools=frozenset(("", "custom")),
        refused=frozenset(("mcp_servers", "container")),
    ),
    "responses": BodyForm(
        items="input",
        head=("instructions", "tools", "text"),
        passed=frozenset(
            ("tool_choice", "parallel_tool_calls", "reasoning", "include", "stream", "temperature", "top_p")
        ).union(("prompt_cache_key", "truncation")),
        output=("max_output_tokens",),
        tools=frozenset(("function", "custom", "namespace")),
        refused=frozenset(("previous_response_id", "conversation", "prompt", "background")),
        forced={"store": False},
    ),
    "chat_completions": BodyForm(
        items="messages",
        head=("tools", "response_format"),
        passed=frozenset(
            ("tool_choice", "parallel_tool_calls", "reasoning_effort", "reasoning", "stream", "stop", "seed")
        ).union(("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")),
        output=("max_tokens", "max_completion_tokens"),
        tools=frozenset(("function",)),
        refused=frozenset(("functions", "web_search_options", "plugins")),
    ),
}
_IDS = frozenset(("id", "call_id", "tool_use_id", "tool_call_id"))
_FREE = frozenset(("input", "input_schema", "parameters", "arguments", "schema", "json_schema", "metadata"))
"""Fields whose content an agent is free to choose: nothing in them goes as it came."""
_PARTS = frozenset(("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal")).union(
    ("tool_use", "tool_result", "tool_reference", "function", "custom"),
    ("thinking", "redacted_thinking", "reasoning", "compaction"),
)
"""Types of the parts of messages that stand for nothing but themselves."""
_MEDIA = frozenset(("image", "document", "input_image", "input_file", "image_url", "file", "input_audio", "audio"))
_REFERENCES = frozenset(("file_id", "file_url", "file_data", "image_url", "video_url", "input_audio", "audio")).union(
    ("source", "server_url", "container_id")
)
"""Fields of content that stand for something else, where the content's type does not say so."""
_AS_GIVEN = _FREE.union(("cache_control", "citations", "annotations", "caller"))
"""Fields without parts: what an agent is free to choose, and what only describes a part."""
_NO_MEDIA = "[Ava has taken out {kind}: what it costs cannot be known before it is sent. Read it as text, if you can.]"
_ITEMS = frozenset(
    ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning")
)
"""Types of items of the responses format that stand for nothing but themselves."""
_REMEMBERED_BYTES = 16 * 1024 * 1024
_INCLUDED = frozenset(("reasoning.encrypted_content",))


class Bodies:
    """Reads the bodies of one run's requests; what earlier ones had is not searched for secrets again.

    `models` maps what the agent may call a model to the approved id. `off` are names of the agent's own tools that are
    taken out. `output_field`: what the endpoint calls the limit on an
    answer. `extra` is in every body that goes to this endpoint.
    """

    def __init__(
        self,
        wire: str,
        models: Mapping[str, str],
        off: frozenset[str],
        redactor: Redactor,
        output_field: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._extra = extra or {}
        self._form = FORMS[wire]
        self._wire = wire
        self._models = models
        self._off = off
        self._redactor = redactor
        self._output_field = output_field or self._form.output[0]
        self._clean: dict[bytes, Any] = {}
        self._clean_bytes = 0

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._models)

    def read(self, content: bytes) -> AgentCall:
        """Return a request as it may be sent. Blocks for a long one. Raises CallRefused."""
        if content.count(b"{") + content.count(b"[") > _MOST_PARTS:
            raise CallRefused("form", f"the body has more than {_MOST_PARTS:,} objects and lists")
        try:
            given = as_object(decode(content.decode()))
            if given is not None and not deeper_than(given, _MOST_DEEP):
                return self._read(given)
        except (TypeError, ValueError) as error:  # a list where a name should be, text where a number should be
            log.debug("unreadable body", exc_info=error)
        raise CallRefused("form", "the body is not a JSON object as the API has it, or is nested too deep")

    def _read(self, given: dict[str, Any]) -> AgentCall:
        self._refuse_unapproved(given)
        model, form = as_text(given.get("model")), self._form
        dropped: list[str] = []
        items = given.get(form.items)
        if isinstance(items, str):  # the short form of responses
            items = [{"type": "message", "role": "user", "content": items}]
        seen = {name: given[name] for name in form.head if given.get(name) is not None}
        if "tools" in seen:
            seen["tools"] = self._tools(seen["tools"], dropped)
        seen[form.items] = [self._known(item, dropped) for item in objects_in(items)]
        seen |= {name: given[name] for name in sorted(form.passed & given.keys()) if given[name] is not None}
        body: dict[str, Any] = {
            "model": self._models[model],
            **{name: self._cleaned(value) for name, value in seen.items()},
        }
        self._adjust(body, dropped)
        taken = {"model", "n", form.items, *form.head, *form.passed, *form.output, *form.refused, *form.forced}
        dropped += sorted(given.keys() - taken - {"stream_options"})
        outputs = [given[name] for name in form.output if isinstance(given.get(name), int) and given[name] > 0]
        return AgentCall(
            model=model,
            body={**body, **form.forced},
            head=encode({name: body[name] for name in sorted(body.keys() - _NOT_SHOWN - {form.items})}),
            items=tuple(encode(_unmarked(item)) for item in body[form.items]),
            asked_output=min(outputs, default=None),
            dropped=tuple(map(self._hidden, dropped)),
        )

    def limited(self, call: AgentCall, output: int) -> bytes:
        """Return the body of a call with the limit on its answer."""
        body = {**call.body, **self._extra, self._output_field: output}
        thinking = as_object(body.get("thinking")) or {}
        budget = thinking.get("budget_tokens")
        if isinstance(budget, int) and budget >= output:  # the API refuses a budget that leaves no answer
            if output >= 2 * _LEAST_BUDGET:
                body["thinking"] = {**thinking, "budget_tokens": output // 2}
            else:
                del body["thinking"]
        return encode(body)

    def unseen(self, call: AgentCall) -> int:
        """Return the bytes of a call that the model may not have been shown: earlier thinking, in plain or sealed."""
        return sum(len(encode(part)) for part in _parts(call.body[self._form.items]) if _is_thought(part))

    # -- parts --------------------------------------------------------------------------------------------------------

    def _tools(self, given: Any, dropped: list[str]) -> list[dict[str, Any]]:
        kept: list[dict[str, Any]] = []
        for tool in objects_in(given):
            name, kind = _tool_name(tool), as_text(tool.get("type"))
            if kind in self._form.tools and name not in self._off:
                inner = {"tools": self._tools(tool.get("tools"), dropped)} if kind == "namespace" else {}
                kept.append({**tool, **inner})
            else:
                dropped.append(f"tool {name or kind}"[:100])
        return kept

    def _known(self, item: dict[str, Any], dropped: list[str]) -> dict[str, Any]:
        """Return a message without media. Raises CallRefused: something in it may stand for what Ava does not see."""
        if self._wire == "responses":
            kind = item.get("type", "message" if "role" in item else "an item without a type")
            if kind not in _ITEMS:
                raise _unseen(kind)
        return self._inner(item, dropped)

    def _inner(self, fields: dict[str, Any], dropped: list[str]) -> dict[str, Any]:
        if reference := next((name for name in _REFERENCES if fields.get(name)), None):
            raise _unseen(reference)
        return {name: each if name in _AS_GIVEN else self._content(each, dropped) for name, each in fields.items()}

    def _content(self, value: Any, dropped: list[str], *, listed: bool = False) -> Any:
        if isinstance(value, list):
            return [self._content(each, dropped, listed=True) for each in as_list(value)]
        fields = as_object(value)
        if fields is None:
            return value
        kind = fields.get("type") if listed else None  # what is in a list is a part, of a known type
        if kind in _MEDIA:
            dropped.append(str(kind))
            text = "input_text" if self._wire == "responses" else "text"
            return {"type": text, "text": _NO_MEDIA.format(kind=f"a part of type {kind}")}
        if kind is not None and kind not in _PARTS:
            raise _unseen(kind)
        return self._inner(fields, dropped)

    def _refuse_unapproved(self, given: Mapping[str, Any]) -> None:
        model = as_text(given.get("model"))
        if model not in self._models:
            known = ", ".join(sorted(set(self._models.values())))
            raise CallRefused("model", f"the model {model[:80]!r} was not approved for this run; approved: {known}")
        for name in self._form.refused & given.keys():
            if given[name] not in (None, False, [], {}):
                raise CallRefused("form", f"{name} cannot be used here: Ava does not see what it stands for")
        if given.get("n", 1) not in (1, None):
            raise CallRefused("form", "n must be 1: each answer costs")

    def _adjust(self, body: dict[str, Any], dropped: list[str]) -> None:
        choice = as_object(body.get("tool_choice")) or {}
        name, kind = _tool_name(choice), as_text(choice.get("type"))
        offered = {_tool_name(each) for each in objects_in(body.get("tools"))}
        if not offered or (name and name not in offered) or kind == "allowed_tools":
            if body.pop("tool_choice", None) is not None:
                dropped.append("tool_choice")
            if not offered:
                body.pop("tools", None)
                body.pop("parallel_tool_calls", None)
        if "include" in body:
            body["include"] = [each for each in as_list(body["include"]) if each in _INCLUDED]
        if self._wire == "chat_completions" and body.get("stream") is True:
            body["stream_options"] = {"include_usage": True}

    def _cleaned(self, value: Any) -> Any:
        """Return what a request has in a field, without secrets, and with cache marks for five minutes only."""
        if isinstance(value, list):
            return [self._cleaned(each) for each in as_list(value)]
        known = encode(value)
        found = self._clean.get(known)
        if found is None:
            found = _each_text(value, self._hidden)
            self._clean_bytes += len(known)
            if self._clean_bytes > _REMEMBERED_BYTES:
                self._clean, self._clean_bytes = {}, len(known)
            self._clean[known] = found
        return found

    def _hidden(self, text: str) -> str:
        return self._redactor.redact(text)[0]


_NOT_SHOWN = frozenset(("model", "stream", "stream_options", "store"))
"""Fields that reach no prompt; all others count in its bound."""
_MOST_DEEP = 100
_MOST_PARTS = 200_000
_LEAST_BUDGET = 1_024
"""The smallest budget for thinking that Anthropic's API takes."""


def _tool_name(tool: Mapping[str, Any]) -> str:
    return as_text(tool.get("name")) or as_text((as_object(tool.get("function")) or {}).get("name"))


def _unseen(what: Any) -> CallRefused:
    return CallRefused("form", f"{str(what)[:60]} cannot be sent: Ava does not see what it stands for")


def _each_text(value: Any, hide: Callable[[str], str], *, free: bool = False) -> Any:
    """Return JSON with its texts hidden. `free`: an agent chose its form, so no field in it is a mark or an id."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list):
        return [_each_text(each, hide, free=free) for each in as_list(value)]
    fields = as_object(value)
    if fields is None:
        return value
    made: dict[str, Any] = {}
    for name, each in fields.items():
        text = as_text(each)
        if free or not (text or name == "cache_control"):
            made[hide(name)] = _each_text(each, hide, free=free or name in _FREE)
        elif name == "cache_control":
            made[name] = {"type": "ephemeral"}
        elif name in _IDS:
            made[name] = own_id(text, hide)
        else:
            made[hide(name)] = _in_json(text, hide) if name == "arguments" else hide(text)
    return made


def _in_json(text: str, hide: Callable[[str], str]) -> str:
    """Return a text hidden, as the JSON that it is, whose escapes would hide a secret, if it is any."""
    try:
        given = decode(text)
        found = _each_text(given, hide, free=True)
    except ValueError:
        return hide(text)
    return hide(text if found == given else encode(found).decode())


def own_id(given: str, hide: Callable[[str], str]) -> str:
    """Return an id, or another one that is the same wherever this one stands, if it looks like a secret."""
    return given if hide(given) == given else f"id_{hashlib.sha256(given.encode()).hexdigest()[:24]}"


def _unmarked(item: Any) -> Any:
    """Return a message without cache marks, which move from request to request."""
    if isinstance(item, list):
        return [_unmarked(each) for each in as_list(item)]
    fields = as_object(item)
    if fields is None:
        return item
    return {
        name: each if name in _FREE else _unmarked(each) for name, each in fields.items() if name != "cache_control"
    }


def _parts(items: Any) -> Iterator[dict[str, Any]]:
    """Yield each JSON object in messages, outer ones first."""
    for item in objects_in(items):
        yield item
        for name, value in item.items():
            if name not in _FREE:
                yield from _parts(value if isinstance(value, list) else [value])


def _is_thought(part: Mapping[str, Any]) -> bool:
    return part.get("type") in ("thinking", "redacted_thinking", "reasoning")
