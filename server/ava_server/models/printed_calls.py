"""Tool calls that a model printed as words, because nothing between it and us read them as calls.

The forms (`printed_forms.py`) are those in which open models are trained to call, and which their servers take out of
the words when they are set up to.

A call is taken only where no doubt is left that the model meant to make it: the calls stand at the end with nothing
after them, each names a tool on offer, and none of them stands in what the run has read. Whoever quotes a page that
ends in such a form has called nothing.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ava_server.models import wire_json
from ava_server.models.base import Completion, ToolSchema, ToolUse
from ava_server.models.printed_forms import OPENING, PrintedCall, Reader, Unreadable, whole_call
from ava_server.models.wire_json import as_list, as_object

MessageMaker = Callable[[str, Sequence[ToolUse]], Mapping[str, Any]]
"""Makes the assistant's message of these words and calls, as a provider of the wire would have sent it."""

EXAMPLE = '<tool_call>{"name": "the tool", "arguments": {"its": "arguments"}}</tool_call>'
"""The form that a model is shown when what it printed could not be read."""

_LETTERS = re.compile(r"""[\s"'`\\]+""")
_ESCAPED = re.compile(r"\\+u([0-9a-fA-F]{4})")
_WHITE = re.compile(r"\\+[nrt]")
_NEAR = 200
"""Characters after the beginning of a form in which the name of a tool makes it look like a call."""


@dataclass(frozen=True)
class Printed:
    """What of an answer looks like calls.

    Attributes:
        words: What stands before them.
        calls: The calls, if all of them can be made; else none.
        why: Why they cannot be, for the model.
    """

    words: str
    calls: tuple[PrintedCall, ...] = ()
    why: str = ""


def read_printed(text: str, tools: Sequence[ToolSchema], seen: Callable[[], Iterable[str]]) -> Printed | None:
    """Return the calls at the end of an answer, or why what looks like some is none; None for plain words.

    Args:
        text: The answer's words.
        tools: The tools on offer.
        seen: Brings everything that the run has read: what is quoted from there calls nothing.
    """
    offered = {tool.name: tool.parameters for tool in tools}
    opening = OPENING.search(text)
    start = opening.start() if opening is not None else 0
    try:
        calls = Reader(text, offered).calls(start) if opening is not None else whole_call(text, offered)
        if not calls:
            return None
        unknown = next((call.name for call in calls if call.name not in offered), None)
        if unknown is not None:
            raise Unreadable(f"there is no tool {unknown[:60]!r}; yours are {', '.join(offered)}", whole=True)
        if _quoted(calls, seen()):
            raise Unreadable("it stands in what you have read, and what is quoted calls nothing", whole=True)
    except Unreadable as why:
        return Printed(text, why=str(why)) if why.whole or _looks(text, start, offered) else None
    return Printed(text[:start].rstrip(), calls)


def with_calls(completion: Completion, printed: Printed, turn: int, message: MessageMaker) -> Completion:
    """Return an answer with the calls that it printed as calls of its own, and a note that says so.

    Their ids follow from the turn and the words, and are of a form that every provider takes (nine letters and digits).
    """
    calls: list[ToolUse] = []
    for number, call in enumerate(printed.calls):
        raw_args = wire_json.encode(dict(call.args)).decode()
        identity = hashlib.sha256(f"{turn} {number} {call.name} {raw_args}".encode()).hexdigest()[:9]
        calls.append(ToolUse(identity, call.name, wire_json.decode_object(raw_args), raw_args))
    made, raw = dict(message(printed.words, calls)), completion.raw
    for name, words in (("content", "text"), ("output", "message")):  # blocks, items: thoughts stay before what is said
        if isinstance(made.get(name), list):
            thoughts = [block for block in as_list(raw.get(name)) if (as_object(block) or {}).get("type") != words]
            made[name] = [*thoughts, *made[name]]
    kept = {key: value for key, value in raw.items() if key not in made}  # on others they are a field of their own
    note = f"read {len(calls)} tool call{'' if len(calls) == 1 else 's'} from its text"
    return replace(
        completion, text=printed.words, calls=tuple(calls), raw={**made, **kept}, notes=(*completion.notes, note)
    )


def _looks(text: str, start: int, offered: Iterable[str]) -> bool:
    """Tell whether an answer meant to call: it begins like a call, or names a tool where a call would."""
    if not text[:start].strip():
        return True
    return any(
        name in text[found.start() : found.end() + _NEAR] for found in OPENING.finditer(text) for name in offered
    )


def _quoted(calls: Sequence[PrintedCall], seen: Iterable[str]) -> bool:
    """Tell whether a call stands in what was read: as it is, or in another form, or in pieces around one."""
    wanted = [
        (
            _letters(call.source),
            _letters(call.name),
            _letters(wire_json.encode(dict(call.args)).decode()),
            [_letters(leaf) for leaf in _leaves(dict(call.args))],
        )
        for call in calls
    ]
    for text in seen:
        plain = _unescaped(text)
        letters, marked = _letters(plain), OPENING.search(plain) is not None
        for source, name, args, leaves in wanted:
            if source in letters or (leaves and args in letters):
                return True
            if (marked or f"name:{name}" in letters) and name in letters and all(leaf in letters for leaf in leaves):
                return True
    return False


def _unescaped(text: str) -> str:
    """Return a text without the escapes of HTML and JSON, under which it may be written where it was read."""
    text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), html.unescape(text))
    return _WHITE.sub(" ", text)


def _letters(text: str) -> str:
    """Return what of a text counts when two are compared: no white space, no quotes, no case, no escapes."""
    return _LETTERS.sub("", unicodedata.normalize("NFKC", _unescaped(text)).casefold())


def _leaves(value: Any) -> list[str]:
    """Return the texts and numbers in arguments."""
    if isinstance(value, str):
        return [value] if value.strip() else []
    if (entries := as_object(value)) is not None:
        return [leaf for item in entries.values() for leaf in _leaves(item)]
    if isinstance(value, list):
        return [leaf for item in as_list(value) for leaf in _leaves(item)]
    return [str(value)] if isinstance(value, (int, float)) and not isinstance(value, bool) else []
