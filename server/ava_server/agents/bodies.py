"""Bodies of model requests that another agent makes: read, checked and rewritten, closed to what is not known.

Only fields and kinds of content that `forms.py` knows pass, at every depth, and secrets are replaced in all of them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ava_audit.redaction import Redactor
from ava_server.agents.forms import FORMS, Closing, unseen
from ava_server.agents.seam import MOST_NEW_BYTES, AgentCall, CallRefused
from ava_server.models.json_text import as_list, as_object, as_text, decode, deeper_than, encode, fields_of, objects_in
from ava_server.models.tokens import shown_bytes

log = logging.getLogger("ava.agents")


_IDS = frozenset(("id", "call_id", "tool_use_id", "tool_call_id"))
_FREE = frozenset(("input", "input_schema", "parameters", "arguments", "schema", "json_schema", "metadata")).union(
    ("args", "response", "parametersJsonSchema", "responseSchema", "responseJsonSchema")  # Google's
)
"""Fields whose content an agent is free to choose: nothing in them goes as it came."""
_SEALED = frozenset(("signature", "data", "encrypted_content", "thought_signature", "thoughtSignature"))
"""Fields that the provider checks, so that nothing in them can be replaced."""
_REMEMBERED_BYTES = 16 * 1024 * 1024


MOST_FRESH_BYTES = 8_000_000
"""Of one request, that are searched for secrets: what earlier ones had is not searched again. More than any prompt."""


class _Fresh:
    """Counts what a request has that no earlier one had."""

    def __init__(self) -> None:
        self._bytes = 0

    def take(self, size: int) -> None:
        """Count bytes before they are searched. Raises CallRefused if they are too many."""
        self._bytes += size
        if size > MOST_NEW_BYTES:
            raise CallRefused("form", f"a message has more than {MOST_NEW_BYTES:,} bytes")
        if self._bytes > MOST_FRESH_BYTES:
            raise CallRefused("form", f"it has more than {MOST_FRESH_BYTES:,} bytes that no earlier request had")


class Bodies:
    """Reads the bodies of one run's requests; what earlier ones had is not searched for secrets again.

    `models` maps what the agent may call a model to the approved id. `off` are names of the agent's own tools that are
    taken out. What one endpoint needs or refuses is not known here, but by its wire (`accepted_body`).
    """

    def __init__(
        self,
        wire: str,
        models: Mapping[str, str],
        off: frozenset[str],
        redactor: Redactor,
    ) -> None:
        self._form = FORMS[wire]
        self._models = models
        self._off = off
        self._redactor = redactor
        self._clean: dict[bytes, Any] = {}
        self._clean_bytes = 0

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._models)

    def read(self, content: bytes, taken: Sequence[str] = (), in_address: Mapping[str, Any] | None = None) -> AgentCall:
        """Return a request as it may be sent. Blocks for a long one. Raises CallRefused.

        `taken` names what was taken out of its headers; `in_address` are fields that its address has.
        """
        if content.count(b"{") + content.count(b"[") > _MOST_PARTS:
            raise CallRefused("form", f"the body has more than {_MOST_PARTS:,} objects and lists")
        try:
            given = as_object(decode(content.decode()))
            if given is not None and not deeper_than(given, _MOST_DEEP):
                return self._read({**given, **(in_address or {})}, taken)
        except (TypeError, ValueError) as error:  # a list where a name should be, text where a number should be
            log.debug("unreadable body", exc_info=error)
        raise CallRefused("form", "the body is not a JSON object as the API has it, or is nested too deep")

    def _read(self, given: dict[str, Any], taken: Sequence[str]) -> AgentCall:
        form, closing = self._form, Closing(self._form, self._off)
        known = {"model", "tools", "stream_options", form.one_answer}
        known.update(form.fields, form.output, form.refused, form.forced)
        given = {form.name(name, known): value for name, value in given.items()}
        limits = given
        if form.output_under:
            limits = as_object(given.get(form.output_under)) or {}
        limits = {form.name(name, (*form.output, form.one_answer)): value for name, value in limits.items()}
        self._refuse_unapproved(given, limits)
        model = as_text(given.get("model"))
        body: dict[str, Any] = {"model": self._models[model]}
        fresh = _Fresh()
        first_names = (*form.head, form.items)
        for name in (*first_names, *sorted(form.fields.keys() - set(first_names))):
            value = given.get(name)
            if name == "tools":
                value = self._tools(value, closing)
            elif value is not None:
                value = closing.close(name, value)
            if name == form.items:
                value = self._with_tools(value, closing)
            if value is not None:
                body[name] = self._cleaned(value, fresh)
        body.setdefault(form.items, [])
        self._adjust(body, closing)
        for name in sorted(given.keys() - known):
            closing.take(name[:_NAME_CHARS])
        for name in taken:
            closing.take(name)
        outputs: list[int] = []
        for name in form.output:
            output = limits.get(name)
            if isinstance(output, int) and output > 0:
                outputs.append(output)
        head_names = sorted(body.keys() - _NOT_SHOWN - {form.items})
        return AgentCall(
            model=model,
            body={**body, **form.forced},
            head=encode({name: body[name] for name in head_names}),
            items=tuple(encode(_unmarked(item)) for item in body[form.items]),
            asked_output=min(outputs, default=None),
            dropped=tuple(map(self._hide, closing.taken)),
        )

    def limited(self, call: AgentCall, output: int) -> dict[str, Any]:
        """Return the body of a call with the limit on its answer."""
        kept = {name: value for name, value in call.body.items() if name not in self._form.in_address}
        if self._form.output_under:
            return {**kept, self._form.output_under: self._limits(kept, output)}
        body = {**kept, self._form.output[0]: output}
        reasoning = as_object(body.get("reasoning")) or {}
        if "max_tokens" in reasoning:
            body["reasoning"] = _within(reasoning, "max_tokens", output)
        thinking = as_object(body.get("thinking")) or {}
        budget = thinking.get("budget_tokens")
        if isinstance(budget, int) and budget >= output:  # the API refuses a budget that leaves no answer
            if output >= 2 * _LEAST_BUDGET:
                body["thinking"] = {**thinking, "budget_tokens": output // 2}
            else:
                del body["thinking"]
        return body

    def _limits(self, body: Mapping[str, Any], output: int) -> dict[str, Any]:
        """Return Google's settings of an answer with its limit; a budget for thinking leaves room for the answer."""
        limits = {**(as_object(body.get(self._form.output_under)) or {}), self._form.output[0]: output}
        thinking = as_object(limits.get("thinkingConfig")) or {}
        budget = thinking.get("thinkingBudget")
        if isinstance(budget, int) and budget >= output:
            limits["thinkingConfig"] = {**thinking, "thinkingBudget": output // 2}
        return limits

    def shown_bytes(self, call: AgentCall) -> int:
        """Return the bytes of text of a call that the model is certainly shown: no earlier thinking, no envelope."""
        return shown_bytes(call.body[self._form.items])

    # -- parts --------------------------------------------------------------------------------------------------------

    def _tools(self, given: Any, closing: Closing) -> list[dict[str, Any]] | None:
        """Return the tools that the agent itself runs. Raises CallRefused if there is one of an unknown kind."""
        if given is None:
            return None
        if self._form.tools_under:
            return self._declared(given, closing)
        kept: list[dict[str, Any]] = []
        for tool in _objects(given, "tools"):
            name, kind = _tool_name(tool), tool.get("type") or ""
            if name in self._off:
                closing.take(f"tool {name or kind}"[:100])
                continue
            if not isinstance(kind, str):
                raise unseen(f"the tool {name!r} of type {kind!r}")
            if closing.is_taken_tool(kind):
                closing.take(f"tool {name or kind}"[:100])
                continue
            if kind not in self._form.tools.known:
                raise unseen(f"the tool {name!r} of type {kind!r}")
            closed = closing.close_tool(tool, kind)
            if kind == "namespace":
                closed["tools"] = self._tools(tool.get("tools"), closing) or []
            kept.append(closed)
        return kept

    def _with_tools(self, items: Any, closing: Closing) -> Any:
        """Return a conversation in which the tools that come later are closed as those that come first."""
        kept: list[Any] = []
        for item in as_list(items):
            fields = as_object(item)
            if fields is not None and fields.get("type") == "additional_tools":
                tools = self._tools(fields.get("tools"), closing)
                if not tools:
                    continue
                item = {**fields, "tools": tools}
            kept.append(item)
        return kept if isinstance(items, list) else items

    def _declared(self, given: Any, closing: Closing) -> list[dict[str, Any]]:
        """Return Google's tools: those that the agent runs are declared in a list, and each other is the provider's."""
        under = self._form.tools_under
        known = {under, *self._form.taken_tools}
        kept: list[dict[str, Any]] = []
        for tool in _objects(given, "tools"):
            for name, value in tool.items():
                kind = self._form.name(name, known)
                if kind == under:
                    for declared in _objects(value, f"tools.{under}"):
                        if _tool_name(declared) in self._off:
                            closing.take(f"tool {_tool_name(declared)}"[:100])
                        else:
                            kept.append(closing.close_tool(declared, ""))
                elif closing.is_taken_tool(kind):
                    closing.take(f"tool {kind}")
                elif value is not None:
                    raise unseen(f"the tool {kind!r}")
        if not kept:
            return []
        return [{under: kept}]

    def _refuse_unapproved(self, given: Mapping[str, Any], limits: Mapping[str, Any]) -> None:
        model = as_text(given.get("model"))
        if model not in self._models:
            known = ", ".join(sorted(set(self._models.values())))
            raise CallRefused("model", f"the model {model[:80]!r} was not approved for this run; approved: {known}")
        for name in self._form.refused & given.keys():
            if given[name] not in (None, False, [], {}):
                raise CallRefused("form", f"{name} cannot be used here: Ava does not see what it stands for")
        if limits.get(self._form.one_answer, 1) not in (1, None):
            raise CallRefused("form", f"{self._form.one_answer} must be 1: each answer costs")

    def _adjust(self, body: dict[str, Any], closing: Closing) -> None:
        if self._form.tools_under:
            self._adjust_declared(body, closing)
            return
        choice = as_object(body.get("tool_choice")) or {}
        name = _tool_name(choice)
        offered = _offered_names(body.get("tools"))
        for item in objects_in(body.get(self._form.items)):
            if item.get("type") == "additional_tools":
                offered |= _offered_names(item.get("tools"))
        nothing_allowed = False
        if choice.get("type") == "allowed_tools":
            body["tool_choice"], nothing_allowed = _offered_choice(choice, offered)
        if not offered or nothing_allowed or (name and name not in offered):
            if body.pop("tool_choice", None) is not None:
                closing.take("tool_choice")
            if not offered:
                body.pop("tools", None)
                body.pop("parallel_tool_calls", None)

    def _adjust_declared(self, body: dict[str, Any], closing: Closing) -> None:
        """Leave out the limit on the answer, and what is said about tools that are not there."""
        limits = fields_of(body.get(self._form.output_under))
        for name in (*self._form.output, self._form.one_answer):
            limits.pop(name, None)
        offered: set[str] = set()
        for tool in objects_in(body.get("tools")):
            offered.update(map(_tool_name, tool[self._form.tools_under]))
        if not offered:
            body.pop("tools", None)
        config = fields_of(fields_of(body.get("toolConfig")).get("functionCallingConfig"))
        named = as_list(config.get("allowedFunctionNames"))
        allowed = [name for name in named if name in offered]
        allows_nothing = not offered or (named and not allowed)
        if "toolConfig" in body and allows_nothing:
            del body["toolConfig"]
            closing.take("toolConfig")
        elif allowed:
            body["toolConfig"] = {"functionCallingConfig": {**config, "allowedFunctionNames": allowed}}

    def _cleaned(self, value: Any, fresh: _Fresh) -> Any:
        """Return what a request has in a field, without secrets, and with cache marks for five minutes only."""
        if isinstance(value, list):
            return [self._cleaned(each, fresh) for each in as_list(value)]
        content = encode(value)
        clean_value = self._clean.get(content)
        if clean_value is None:
            fresh.take(len(content))
            clean_value = _each_text(value, self._hide)
            self._clean_bytes += len(content)
            if self._clean_bytes > _REMEMBERED_BYTES:
                self._clean, self._clean_bytes = {}, len(content)
            self._clean[content] = clean_value
        return clean_value

    def _hide(self, text: str) -> str:
        return self._redactor.redact(text)[0]


_NOT_SHOWN = frozenset(("model", "stream", "store"))
"""Fields that reach no prompt; all others count in its bound."""
_MOST_DEEP = 100
_NAME_CHARS = 60
_MOST_PARTS = 200_000
_LEAST_BUDGET = 1_024
"""The smallest budget for thinking that Anthropic's API takes."""


def _within(reasoning: Mapping[str, Any], name: str, output: int) -> dict[str, Any]:
    """Return how a model is to reason with a budget that leaves room for the answer; without one where none fits."""
    budget = reasoning[name]
    if isinstance(budget, int) and 0 < budget < output:
        return dict(reasoning)
    without = {key: value for key, value in reasoning.items() if key != name}
    if output >= 2 * _LEAST_BUDGET:
        return {**without, name: output // 2}
    return without


def _objects(given: Any, path: str) -> list[dict[str, Any]]:
    """Return the objects in a list, or the one in its place. Raises CallRefused if there is something else."""
    values: list[Any] = [given]
    if isinstance(given, list):
        values = as_list(given)
    for value in values:
        if value is not None and not isinstance(value, dict):
            raise unseen(f"a {type(value).__name__} in {path}")
    return objects_in([value for value in values if value is not None])


def _tool_name(tool: Mapping[str, Any]) -> str:
    return as_text(tool.get("name")) or as_text((as_object(tool.get("function")) or {}).get("name"))


def _offered_names(tools: Any) -> set[str]:
    names: set[str] = set()
    for tool in objects_in(tools):
        names.add(_tool_name(tool))
        names |= _offered_names(tool.get("tools"))
    return names


def _offered_choice(choice: dict[str, Any], offered: set[str]) -> tuple[dict[str, Any], bool]:
    """Return a choice of allowed tools with those that are offered, and whether there are none."""
    inner = as_object(choice.get("allowed_tools"))
    listed = choice if inner is None else inner
    tools = [tool for tool in objects_in(listed.get("tools")) if _tool_name(tool) in offered]
    kept = {**listed, "tools": tools}
    if inner is not None:
        kept = {**choice, "allowed_tools": kept}
    return kept, not tools


def _each_text(value: Any, hide: Callable[[str], str], *, free: bool = False) -> Any:
    """Return JSON with its texts hidden.

    `free`: an agent chose its form, so no field in it is a mark or an id. Raises CallRefused if a secret stands in a
    field that a provider has signed.
    """
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list):
        return [_each_text(each, hide, free=free) for each in as_list(value)]
    fields = as_object(value)
    if fields is None:
        return value
    hidden: dict[str, Any] = {}
    if free:
        for name, each in fields.items():
            hidden[hide(name)] = _each_text(each, hide, free=True)
        return hidden
    sealed = _SEALED
    if fields.get("type") == "thinking" and fields.get("signature"):
        sealed = sealed | {"thinking"}
    for name, each in fields.items():
        text = as_text(each)
        if text and name in sealed:
            _refuse_secret(text, name, hide)
        if name == "cache_control":
            hidden[name] = {"type": "ephemeral"}
        elif not text:
            hidden[hide(name)] = _each_text(each, hide, free=name in _FREE)
        elif name in _IDS:
            hidden[name] = own_id(text, hide)
        elif name == "arguments":
            hidden[hide(name)] = _in_json(text, hide)
        else:
            hidden[hide(name)] = hide(text)
    return hidden


def _refuse_secret(text: str, name: str, hide: Callable[[str], str]) -> None:
    if hide(text) != text:
        raise CallRefused(
            "form",
            f"a secret stands in the {name} of earlier thinking, which cannot be changed: begin a new conversation",
        )


def _in_json(text: str, hide: Callable[[str], str]) -> str:
    """Return a text without secrets; JSON is searched as its values, as its escapes could hide a secret."""
    try:
        value = decode(text)
        hidden = _each_text(value, hide, free=True)
    except ValueError:
        return hide(text)
    if hidden == value:
        return hide(text)
    return hide(encode(hidden).decode())


def own_id(given: str, hide: Callable[[str], str]) -> str:
    """Return an id, or another one that is the same wherever this one stands, if it looks like a secret."""
    if hide(given) == given:
        return given
    return f"id_{hashlib.sha256(given.encode()).hexdigest()[:24]}"


def _unmarked(item: Any) -> Any:
    """Return a message without cache marks, which move from request to request."""
    if isinstance(item, list):
        return [_unmarked(each) for each in as_list(item)]
    fields = as_object(item)
    if fields is None:
        return item
    unmarked: dict[str, Any] = {}
    for name, value in fields.items():
        if name != "cache_control":
            unmarked[name] = value if name in _FREE else _unmarked(value)
    return unmarked
