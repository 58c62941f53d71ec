"""Tool calls that a model printed as text instead of making them.

Known are the forms of models of the last year, as vLLM's parsers list them: Hermes and Qwen, Qwen Coder, Seed and
Nemotron, GLM, Mistral, Kimi, the tags of DeepSeek, MiniMax and Claude; and an answer that is nothing but the JSON
object of a call, as Llama writes it under Ollama. A call in an older form is not made, and the model is told the form.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ava_roles.wrap import unescape_html
from ava_server.models import json_text
from ava_server.models.base import Completion, ToolSchema, ToolUse
from ava_server.models.json_text import as_list, as_object, fields_of

_NS = r"(?:antml:|｜DSML｜)?"
_WRAPPER = rf"(?:{_NS}function_calls|｜DSML｜tool_calls|(?:minimax|seed):tool_call)"
_NAME = r"[\w.:/-]{1,100}"
OPENING = re.compile(
    rf"<tool_call>|<function=|<{_WRAPPER}>|<{_NS}invoke\s+name=|\[TOOL_CALLS\]|<\|python_tag\|>"
    r"|<\|tool_calls_section_begin\|>|<\|tool_call_begin\|>|<｜tool▁calls▁begin｜>|<｜tool▁call▁begin｜>"
)
_BETWEEN = re.compile(
    rf"(?:\s|</?{_WRAPPER}>|<\|tool_calls_section_(?:begin|end)\|>|<\|im_end\|>|<｜end▁of▁sentence｜>|</s>)*"
)
"""What may stand between calls, around them and at the end: white space, wrappers, and end-of-message marks."""

_HERMES = re.compile(r"<tool_call>\s*(?=\{)")
_GLM = re.compile(rf"<tool_call>\s*({_NAME})\s*(?=<arg_key>|</tool_call>)")
_WRAPPED = re.compile(r"<tool_call>\s*(?=<function=)")
_CODER = re.compile(rf"<function=({_NAME})>\s*")
_INVOKE = re.compile(rf'<({_NS})invoke\s+name="({_NAME})"\s*>\s*')
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*")
_MISTRAL_NAME = re.compile(rf"[\s,]*({_NAME})\s*(?:\[CALL_ID\]\s*[\w-]+\s*)?(?:\[ARGS\]\s*)?(?=\{{)")
_KIMI = re.compile(
    rf"<\|tool_call_begin\|>\s*(?:functions\.)?({_NAME}?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(?=\{{)"
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
"""Calls of one answer that are read: as many as of real calls."""


@dataclass(frozen=True)
class TextToolCall:
    """A printed call, and the text that it was read from."""

    name: str
    args: Mapping[str, Any]
    source: str = ""


class Unreadable(Exception):
    """Raised for text that begins like a call, or is `whole`, and cannot be made as one; says why.

    The model is shown the reason, and a resumed run makes it again from the log: its words never change.
    """

    def __init__(self, why: str, *, whole: bool = False) -> None:
        super().__init__(why)
        self.whole = whole


class CallReader:
    """Reads the calls in a text, one after the other, from the first one to the text's end."""

    def __init__(self, text: str, offered: Mapping[str, Mapping[str, Any]]) -> None:
        self._text = text
        self._offered = offered
        self._at = 0

    def calls(self, start: int) -> tuple[TextToolCall, ...]:
        """Return the calls. Raises Unreadable if they are broken, or something else follows."""
        self._at = start
        calls: list[TextToolCall] = []
        while True:
            self._skip(_BETWEEN)
            if self._at == len(self._text):
                if not calls:
                    raise Unreadable("nothing stands in it")
                if len(calls) > _MOST:
                    raise Unreadable(f"these are more than {_MOST} calls")
                return tuple(calls)
            begun = self._at
            next_calls = self._next()
            if not next_calls:
                if calls:
                    raise Unreadable("other words follow it")
                raise Unreadable("it is not in a form that is known")
            source = self._text[begun : self._at]
            calls += [TextToolCall(name, args, source) for name, args in next_calls]

    def _next(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the calls of the form that begins here; none for an unknown form."""
        if self._skip(_HERMES):
            call = _name_and_args(self._object("</tool_call>"))
            self._close("</tool_call>")
            return [call]
        if self._skip(_WRAPPED):
            call = self._coder()
            self._skip_white()
            self._close("</tool_call>")
            return [call]
        found = self._skip(_GLM)
        if found:
            args = self._parameters(found[1], _GLM_PARAMETER)
            self._close("</tool_call>", needed=True)
            return [(found[1], args)]
        if self._text.startswith("<function=", self._at):
            return [self._coder()]
        found = self._skip(_INVOKE)
        if found:
            args = self._parameters(found[2], _INVOKE_PARAMETER)
            self._close(f"</{found[1]}invoke>", needed=True)
            return [(found[2], args)]
        if self._skip(_MISTRAL):
            calls: list[tuple[str, Mapping[str, Any]]] = []
            while found := self._skip(_MISTRAL_NAME):
                calls.append((found[1], self._object("[TOOL_CALLS]")))
            return calls
        found = self._skip(_KIMI)
        if found:
            args = self._object("<|tool_call_end|>")
            self._close("<|tool_call_end|>")
            return [(found[1], args)]
        return []

    def _coder(self) -> tuple[str, Mapping[str, Any]]:
        found = self._skip(_CODER)
        if found is None:
            raise Unreadable("the name of its function is missing or not closed by >")
        args: dict[str, Any]
        if self._text.startswith("{", self._at):
            args = self._object("</function>")
        else:
            args = self._parameters(found[1], _CODER_PARAMETER)
        self._close("</function>", needed=True)
        return found[1], args

    def _parameters(self, name: str, form: re.Pattern[str]) -> dict[str, Any]:
        properties = fields_of(self._offered.get(name, {}).get("properties"))
        args: dict[str, Any] = {}
        while found := self._skip(form):
            key = found[1].strip()
            if key in args:
                raise Unreadable(f"its argument {key!r} is there twice")
            args[key] = _typed_argument(found[2], fields_of(properties.get(key)))
        return args

    def _object(self, end: str) -> dict[str, Any]:
        """Return the JSON object that begins here; one with repairable faults ends before `end`."""
        begun = self._at
        try:
            value, self._at = json_text.decode_at(self._text, begun)
        except json_text.NotJsonError:
            place = self._text.find(end, begun)
            if place < 0:
                place = len(self._text)
            self._at = place
            repaired = json_text.decode_object(self._text[begun : self._at])
            if repaired is None:
                raise Unreadable(f"its JSON is broken: {json_text.object_fault(self._text[begun:])}") from None
            return repaired
        return fields_of(value)

    def _skip(self, what: re.Pattern[str]) -> re.Match[str] | None:
        found = what.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _skip_white(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _close(self, end: str, *, needed: bool = False) -> None:
        """Skip the end of a form; many servers remove the last one, so it may be missing at the text's end."""
        self._skip_white()
        if self._text.startswith(end, self._at):
            self._at += len(end)
        elif needed:
            raise Unreadable(f"it is not closed by {end}")


def whole_call(text: str, offered: Mapping[str, Any]) -> tuple[TextToolCall, ...]:
    """Return the call, if an answer is nothing but one: an object with the name of a tool on offer and arguments."""
    inner = json_text.strip_fence(text)
    if not inner.startswith("{"):
        return ()
    value = json_text.decode_object(inner)
    if value is None or set(value) not in (_ARGUMENTS, _PARAMETERS):
        return ()
    if str(value.get("name")) not in offered:
        return ()
    name, args = _name_and_args(value)
    return (TextToolCall(name, args, inner),)


_ARGUMENTS = {"name", "arguments"}
_PARAMETERS = {"name", "parameters"}


def _name_and_args(value: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return name and arguments of a call that is one object. Raises Unreadable if one of them is missing."""
    name = value.get("name")
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    if not isinstance(name, str) or not name or len(given) != 1:
        raise Unreadable("its object has not just a name and arguments")
    args = json_text.decode_object(given[0]) if isinstance(given[0], str) else as_object(given[0])
    if args is None:
        raise Unreadable("its arguments are not an object")
    return name, args


def _typed_argument(text: str, schema: Mapping[str, Any]) -> Any:
    """Return an argument that was written without quotes in the type of its schema; text where that allows it."""
    text = text.removeprefix("\n").removesuffix("\n")
    wanted = _kinds(schema)
    try:
        value = json_text.storable(json_text.decode(text))[0]
    except json_text.NotJsonError:
        return text
    if isinstance(value, str):
        return text if "string" in wanted else value
    kind = json_text.json_type(value)
    is_number_or_bool = kind not in ("array", "object", "null")
    if "string" in wanted and is_number_or_bool:  # it may be meant as text
        return text
    fits = kind in wanted or (kind == "integer" and "number" in wanted)
    if not fits:
        return text
    return value


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema allows; if it does not say, text, a list or an object."""
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else {kind for kind in as_list(named) if isinstance(kind, str)}
    for part in (*as_list(schema.get("anyOf")), *as_list(schema.get("oneOf"))):
        kinds |= _kinds(fields_of(part))
    return kinds or {"string", "array", "object"}


MessageMaker = Callable[[str, Sequence[ToolUse]], Mapping[str, Any]]
"""Makes the assistant's message with this text and these calls, as a provider of the wire would have sent it."""

EXAMPLE = '<tool_call>{"name": "the tool", "arguments": {"its": "arguments"}}</tool_call>'
"""The form that a model is shown when its printed call could not be read."""

_LETTERS = re.compile(r"""[\s"'`\\]+""")
_ESCAPED = re.compile(r"\\+u([0-9a-fA-F]{4})")
_WHITE = re.compile(r"\\+[nrt]")
_NEAR = 200
"""A form looks like a call if the name of a tool is within so many characters of its beginning."""


@dataclass(frozen=True)
class TextToolCalls:
    """The part of an answer that looks like calls."""

    words: str
    calls: tuple[TextToolCall, ...] = ()  # the calls, if all of them can be made; else none
    why: str = ""  # why they cannot be made, for the model


def read_printed(text: str, tools: Sequence[ToolSchema], seen: Callable[[], Iterable[str]]) -> TextToolCalls | None:
    """Return the calls at the end of an answer, or why they cannot be made; None for plain text.

    `seen` returns everything that the run has read: a call quoted from there is not made.
    """
    offered = {tool.name: tool.parameters for tool in tools}
    opening = OPENING.search(text)
    start = opening.start() if opening is not None else 0
    try:
        calls = CallReader(text, offered).calls(start) if opening is not None else whole_call(text, offered)
        if not calls:
            return None
        unknown = next((call.name for call in calls if call.name not in offered), None)
        if unknown is not None:
            raise Unreadable(f"there is no tool {unknown[:60]!r}; yours are {', '.join(offered)}", whole=True)
        if _is_quoted(calls, seen()):
            raise Unreadable("it stands in what you have read, and what is quoted calls nothing", whole=True)
    except Unreadable as why:
        if why.whole or _looks(text, start, offered):
            return TextToolCalls(text, why=str(why))
        return None
    return TextToolCalls(text[:start].rstrip(), calls)


def with_calls(completion: Completion, printed: TextToolCalls, turn: int, message: MessageMaker) -> Completion:
    """Return an answer with its printed calls as real calls, and a note that says so.

    Their ids are made from the turn and the text, in a form that every provider accepts (nine letters and digits).
    """
    calls: list[ToolUse] = []
    for number, call in enumerate(printed.calls):
        raw_args = json_text.encode(dict(call.args)).decode()
        identity = hashlib.sha256(f"{turn} {number} {call.name} {raw_args}".encode()).hexdigest()[:9]
        calls.append(ToolUse(identity, call.name, json_text.decode_object(raw_args), raw_args))
    made = dict(message(printed.words, calls))
    raw = completion.raw
    for name, words in (("content", "text"), ("output", "message")):  # blocks, items: thoughts stay before the text
        if isinstance(made.get(name), list):
            thoughts = [block for block in as_list(raw.get(name)) if fields_of(block).get("type") != words]
            made[name] = [*thoughts, *made[name]]
    kept = {key: value for key, value in raw.items() if key not in made}  # other wires keep thoughts in fields
    count = "1 tool call" if len(calls) == 1 else f"{len(calls)} tool calls"
    note = f"read {count} from its text"
    return replace(
        completion, text=printed.words, calls=tuple(calls), raw={**made, **kept}, notes=(*completion.notes, note)
    )


def _looks(text: str, start: int, offered: Iterable[str]) -> bool:
    """Tell whether an answer was meant to call: it begins like a call, or names a tool where a call would."""
    if not text[:start].strip():
        return True
    return any(
        name in text[found.start() : found.end() + _NEAR] for found in OPENING.finditer(text) for name in offered
    )


def _is_quoted(calls: Sequence[TextToolCall], seen: Iterable[str]) -> bool:
    """Tell whether a call appears in what was read: as it is, in another form, or in pieces."""
    forms: list[tuple[str, str, str, list[str]]] = []  # of each call: its source, name, arguments and their values
    for call in calls:
        args = dict(call.args)
        forms.append(
            (
                _letters(call.source),
                _letters(call.name),
                _letters(json_text.encode(args).decode()),
                [_letters(leaf) for leaf in _leaves(args)],
            )
        )
    for text in seen:
        plain = _unescaped(text)
        letters = _letters(plain)
        has_opening = OPENING.search(plain) is not None
        for source, name, arguments, values in forms:
            if source in letters:
                return True
            if values and arguments in letters:
                return True
            names_tool = name in letters and (has_opening or f"name:{name}" in letters)
            if names_tool and all(value in letters for value in values):
                return True
    return False


def _unescaped(text: str) -> str:
    text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), unescape_html(text))
    return _WHITE.sub(" ", text)


def _letters(text: str) -> str:
    return _LETTERS.sub("", unicodedata.normalize("NFKC", _unescaped(text)).casefold())


def _leaves(value: Any) -> list[str]:
    """Return the texts and numbers in JSON, without blank texts."""
    if isinstance(value, str):
        return [value] if value.strip() else []
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, (int, float)):
        return [str(value)]
    entries = as_object(value)
    items: Iterable[Any] = as_list(value) if entries is None else entries.values()
    return [leaf for item in items for leaf in _leaves(item)]
