"""The forms in which models print tool calls, and the reader that takes them off a text.

Hermes and Qwen, Qwen Coder, GLM, Mistral, Llama, Kimi, DeepSeek, and the tags that Claude learnt; and an answer that as
a whole is the object of a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ava_server.models import wire_json
from ava_server.models.wire_json import as_list, as_object

_NS = r"(?:antml:|｜DSML｜)?"
_NAME = r"[\w.:/-]{1,100}"
OPENING = re.compile(
    rf"<tool_call>|<function=|<{_NS}(?:function_calls>|invoke\s+name=)|\[TOOL_CALLS\]|<\|python_tag\|>"
    r"|<\|tool_calls_section_begin\|>|<\|tool_call_begin\|>|<｜tool▁calls▁begin｜>|<｜tool▁call▁begin｜>"
)
_BETWEEN = re.compile(
    rf"(?:\s|</?{_NS}function_calls>|<\|tool_calls_section_(?:begin|end)\|>|<｜tool▁calls▁(?:begin|end)｜>"
    r"|<\|im_end\|>|<\|eo[tm]_id\|>|<｜end▁of▁sentence｜>|</s>)*"
)
"""What may stand between calls, around them and at the end: white space, their wrappers, and the ends of a message."""

_HERMES = re.compile(r"<tool_call>\s*(?=\{)")
_GLM = re.compile(rf"<tool_call>\s*({_NAME})\s*(?=<arg_key>|</tool_call>)")
_WRAPPED = re.compile(r"<tool_call>\s*(?=<function=)")
_CODER = re.compile(rf"<function=({_NAME})>\s*")
_INVOKE = re.compile(rf'<({_NS})invoke\s+name="({_NAME})"\s*>\s*')
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*")
_MISTRAL_NAME = re.compile(rf"[\s,]*({_NAME})\s*(?:\[CALL_ID\]\s*[\w-]+\s*)?(?:\[ARGS\]\s*)?(?=\{{)")
_LLAMA = re.compile(r"(?:<\|python_tag\|>|;)\s*(?=\{)")
_KIMI = re.compile(
    rf"<\|tool_call_begin\|>\s*(?:functions\.)?({_NAME}?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(?=\{{)"
)
_DEEPSEEK = re.compile(
    rf"<｜tool▁call▁begin｜>\s*(?:function\s*<｜tool▁sep｜>\s*({_NAME})|({_NAME})\s*<｜tool▁sep｜>)"
    r"\s*(?:```(?:json)?\s*)?(?=\{)"
)

_CODER_PARAMETER = re.compile(
    r"<parameter=([^>\n]{1,100})>(.*?)</parameter>\s*(?=<parameter=|</function>|\Z)", re.DOTALL
)
_GLM_PARAMETER = re.compile(r"<arg_key>([^<\n]{1,100})</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_INVOKE_PARAMETER = re.compile(
    rf'<{_NS}parameter\s+name="([^"\n]{{1,100}})"[^>\n]{{0,60}}>(.*?)</{_NS}parameter>'
    rf"\s*(?=<{_NS}parameter\s|</{_NS}invoke>|\Z)",
    re.DOTALL,
)

_MOST = 128
"""Calls of one answer that are read, as of calls that come as such."""


@dataclass(frozen=True)
class PrintedCall:
    """A call as it was printed.

    Attributes:
        name: The tool.
        args: Its arguments.
        source: The words that it was read from.
    """

    name: str
    args: Mapping[str, Any]
    source: str = ""


class Unreadable(Exception):
    """Raised for what begins like a call and is none that can be made; says why.

    Attributes:
        whole: It is in the form of calls to the last letter.
    """

    def __init__(self, why: str, *, whole: bool = False) -> None:
        super().__init__(why)
        self.whole = whole


class Reader:
    """Reads calls off a text, one after the other, from where the first begins to the text's end."""

    def __init__(self, text: str, offered: Mapping[str, Mapping[str, Any]]) -> None:
        self._text = text
        self._offered = offered
        self._at = 0

    def calls(self, start: int) -> tuple[PrintedCall, ...]:
        """Return the calls.

        Raises:
            Unreadable: They are broken, or not all that there is from `start` on.
        """
        self._at = start
        calls: list[PrintedCall] = []
        while True:
            self._skip(_BETWEEN)
            if self._at == len(self._text):
                if not 0 < len(calls) <= _MOST:
                    raise Unreadable(f"these are more than {_MOST} calls" if calls else "nothing stands in it")
                return tuple(calls)
            begun = self._at
            found = self._next()
            if not found:
                raise Unreadable("other words follow it" if calls else "it is not in a form that is known")
            calls += [PrintedCall(name, args, self._text[begun : self._at]) for name, args in found]

    def _next(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the call, or the calls, of the form that begins here; none for no form."""
        if self._skip(_HERMES):
            call = _named(self._object(("</tool_call>",)))
            self._close("</tool_call>")
            return [call]
        if self._skip(_WRAPPED):
            call = self._coder()
            self._skip_white()
            self._close("</tool_call>")
            return [call]
        if found := self._skip(_GLM):
            args = self._parameters(found[1], _GLM_PARAMETER)
            self._close("</tool_call>", needed=True)
            return [(found[1], args)]
        if self._text.startswith("<function=", self._at):
            return [self._coder()]
        if found := self._skip(_INVOKE):
            args = self._parameters(found[2], _INVOKE_PARAMETER)
            self._close(f"</{found[1]}invoke>", needed=True)
            return [(found[2], args)]
        if self._skip(_MISTRAL):
            return self._mistral()
        if self._skip(_LLAMA):
            return [_named(self._object((";",)))]
        if found := self._skip(_KIMI):
            args = self._object(("<|tool_call_end|>",))
            self._close("<|tool_call_end|>")
            return [(found[1], args)]
        if found := self._skip(_DEEPSEEK):
            args = self._object(("```", "<｜tool▁call▁end｜>"))
            self._close("```")
            self._close("<｜tool▁call▁end｜>")
            return [(found[1] or found[2], args)]
        return []

    def _coder(self) -> tuple[str, Mapping[str, Any]]:
        found = self._skip(_CODER)
        if found is None:
            raise Unreadable("the name of its function is missing or not closed by >")
        is_object = self._text.startswith("{", self._at)
        args = self._object(("</function>",)) if is_object else self._parameters(found[1], _CODER_PARAMETER)
        self._close("</function>", needed=True)
        return found[1], args

    def _mistral(self) -> list[tuple[str, Mapping[str, Any]]]:
        if self._text.startswith("[", self._at):
            return [_named(as_object(entry) or {}) for entry in as_list(self._json())]
        calls: list[tuple[str, Mapping[str, Any]]] = []
        while found := self._skip(_MISTRAL_NAME):
            calls.append((found[1], self._object(("[TOOL_CALLS]",))))
        return calls

    def _parameters(self, name: str, form: re.Pattern[str]) -> dict[str, Any]:
        """Return arguments that are each written for itself: of the type that the tool wants of it."""
        properties = as_object(self._offered.get(name, {}).get("properties")) or {}
        args: dict[str, Any] = {}
        while found := self._skip(form):
            key = found[1].strip()
            if key in args:
                raise Unreadable(f"its argument {key!r} is there twice")
            args[key] = _typed(found[2], as_object(properties.get(key)) or {})
        return args

    def _object(self, ends: tuple[str, ...]) -> dict[str, Any]:
        """Return the JSON object that begins here; one that is all but right ends before one of `ends`."""
        begun = self._at
        try:
            value = self._json()
        except Unreadable as why:
            places = [place for end in ends if (place := self._text.find(end, begun)) >= 0]
            self._at = min(places, default=len(self._text))
            mended = wire_json.decode_object(self._text[begun : self._at])
            if mended is None:
                raise why from None
            return mended
        return as_object(value) or {}

    def _json(self) -> Any:
        try:
            value, self._at = wire_json.decode_at(self._text, self._at)
        except wire_json.NotJsonError:
            raise Unreadable(f"its JSON is broken: {wire_json.object_fault(self._text[self._at :])}") from None
        return value

    def _skip(self, what: re.Pattern[str]) -> re.Match[str] | None:
        found = what.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _skip_white(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _close(self, end: str, *, needed: bool = False) -> None:
        """Pass the end of a form; many servers take the last one out, so that it may be missing at the text's end."""
        self._skip_white()
        if self._text.startswith(end, self._at):
            self._at += len(end)
        elif needed:
            raise Unreadable(f"it is not closed by {end}")


def whole_call(text: str, offered: Mapping[str, Any]) -> tuple[PrintedCall, ...]:
    """Return the call that an answer is as a whole: one object with a name on offer and arguments, and no more."""
    inner = wire_json.unfenced(text)
    if not inner.startswith("{"):
        return ()
    value = wire_json.decode_object(inner)
    if value is None or str(value.get("name")) not in offered or set(value) not in (_ARGUMENTS, _PARAMETERS):
        return ()
    name, args = _named(value)
    return (PrintedCall(name, args, inner),)


_ARGUMENTS, _PARAMETERS = {"name", "arguments"}, {"name", "parameters"}


def _named(value: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return name and arguments of a call that is one object.

    Raises:
        Unreadable: It has not both.
    """
    name = value.get("name")
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    if not isinstance(name, str) or not name or len(given) != 1:
        raise Unreadable("its object has not just a name and arguments")
    args = wire_json.decode_object(given[0]) if isinstance(given[0], str) else as_object(given[0])
    if args is None:
        raise Unreadable("its arguments are no object")
    return name, args


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """Return an argument that was written without quotes as what its schema wants; text where that may be."""
    text = text.removeprefix("\n").removesuffix("\n")
    wanted = _kinds(schema)
    try:
        value = wire_json.storable(wire_json.decode(text))[0]
    except wire_json.NotJsonError:
        return text
    if isinstance(value, str):
        return text if "string" in wanted else value
    kind = wire_json.json_type(value)
    loose = "string" not in wanted or kind in ("array", "object", "null")
    return value if loose and (kind in wanted or (kind == "integer" and "number" in wanted)) else text


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema allows, as far as it says; else text, a list or an object."""
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else {kind for kind in as_list(named) if isinstance(kind, str)}
    for part in (*as_list(schema.get("anyOf")), *as_list(schema.get("oneOf"))):
        kinds |= _kinds(as_object(part) or {})
    return kinds or {"string", "array", "object"}
