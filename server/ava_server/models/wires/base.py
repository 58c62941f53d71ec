"""Reading and writing the JSON of a provider: nothing that a provider sends can make an entry unstorable."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from ava_server.models.base import Completion, Delta, Request, ToolUse, Turn

_MOST = 2**63 - 1
_LONGEST_INT = 400
_DEEPEST = 100
_AROUND = 40
"""Characters on either side of a fault that are shown."""
_LAST_COMMA = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z))|,(?=\s*[}\]])', re.DOTALL)
"""A string as a whole, or a comma after a last entry; a string that is not closed goes to the end."""


class NotJsonError(ValueError):
    """Raised for text that cannot be read as JSON."""


def encode(value: Any) -> bytes:
    """Return compact JSON in UTF-8: the same value gives the same bytes, always.

    Half a surrogate pair, which UTF-8 has no bytes for, becomes U+FFFD.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return whole_text(text)[0].encode()


def decode(text: str) -> Any:
    """Read JSON as it comes; NaN and absurd numbers stay in it, as floats, until `storable` has them.

    Raises:
        NotJsonError: It is no JSON, or nested too deeply to be an answer.
    """
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error


def decode_at(text: str, at: int) -> tuple[Any, int]:
    """Read the JSON that begins at a place in a text.

    Returns:
        What it holds, storable, and where it ends.

    Raises:
        NotJsonError: There is none, or it is nested too deeply.
    """
    try:
        value, end = _LOOSE_DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
    return storable(value)[0], end


def decode_object(text: str) -> dict[str, Any] | None:
    """Read tool arguments: an object of plain JSON, or None. No text at all is an empty object.

    Faults that leave no doubt what was meant are mended: a code fence around the object, a JSON string that holds it,
    control characters inside strings, and commas after the last entry.
    """
    if not text.strip():
        return {}
    try:
        value = _mended(text)
        value = _mended(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    return as_object(storable(value)[0])


def object_fault(text: str) -> str:
    """Return what keeps a text from being read as tool arguments, and where: for the model, which wrote it."""
    try:
        value = _mended(text)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            text, value = value, _mended(value)
    except json.JSONDecodeError as error:
        whole = error.doc
        near = whole[max(error.pos - _AROUND, 0) : error.pos + _AROUND]
        return f"{error.msg} at line {error.lineno} column {error.colno} of {len(whole)} characters, near {near!r}"
    except (ValueError, RecursionError) as error:
        return f"{'nested too deeply' if isinstance(error, RecursionError) else error}: {text[:_AROUND]!r}"
    kinds = {"array": "a list", "string": "text", "boolean": "a truth value", "null": "null"}
    return f"it is {kinds.get(json_type(value), 'a number')}: {text[: 2 * _AROUND]!r}"


def json_type(value: Any) -> str:
    """Return what a JSON schema calls the type of a value."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "array" if isinstance(value, list) else "object"


def unfenced(text: str) -> str:
    """Return a text without the code fence around it, if there is one, and without white space around that."""
    text = text.strip()
    if not (len(text) >= 6 and text.startswith("```") and text.endswith("```")):
        return text
    head, line_end, rest = text[3:-3].partition("\n")
    if line_end and (not head.strip() or head.strip().isalnum()):
        return rest.strip()
    return text[3:-3].removeprefix("json").strip()


def as_object(value: Any) -> dict[str, Any] | None:
    """Return a value that is a JSON object, else None."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_list(value: Any) -> list[Any]:
    """Return a value that is a JSON array, else an empty one."""
    return [*cast("Iterable[Any]", value)] if isinstance(value, list) else []


def storable(value: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a value that UTF-8 JSON can hold, and a note for each kind of thing that had to be changed."""
    counts = {"surrogate": 0, "number": 0, "nesting": 0}
    kept = _storable(value, counts, 0)
    notes: list[str] = []
    if counts["surrogate"]:
        notes.append(f"replaced {counts['surrogate']} lone surrogate{_s(counts['surrogate'])} by U+FFFD")
    if counts["number"]:
        notes.append(f"took out {counts['number']} number{_s(counts['number'])} that JSON cannot hold")
    if counts["nesting"]:
        notes.append(f"cut values nested more than {_DEEPEST} deep")
    return kept, tuple(notes)


def whole_text(text: str) -> tuple[str, int]:
    """Join surrogate pairs that arrived in halves, and replace lone ones by U+FFFD.

    Returns:
        The text, and how many were replaced.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return whole, whole.count("\ufffd") - text.count("\ufffd")
    return text, 0


def decode_text(raw: bytes) -> tuple[str, int]:
    """Decode UTF-8, with U+FFFD for what is not.

    Returns:
        The text, and how many sequences were replaced.
    """
    try:
        return raw.decode(), 0
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        return text, text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")


def _mended(text: str) -> Any:
    """Read JSON that is harmlessly at fault.

    Raises:
        ValueError: It is at fault in another way; a `json.JSONDecodeError` says where.
        RecursionError: It is nested too deeply.
    """
    try:
        return _STRICT_DECODER.decode(text)
    except ValueError:
        text = unfenced(text)
    try:
        return _LOOSE_DECODER.decode(text)
    except ValueError:
        return _LOOSE_DECODER.decode(_LAST_COMMA.sub(lambda found: found[1] or "", text))


def _storable(value: Any, counts: dict[str, int], depth: int) -> Any:
    if depth > _DEEPEST:
        counts["nesting"] += 1
        return None
    if isinstance(value, str):
        text, replaced = whole_text(value)
        counts["surrogate"] += replaced
        return text
    if (entries := as_object(value)) is not None:
        below = depth + 1
        return {_storable(key, counts, below): _storable(item, counts, below) for key, item in entries.items()}
    if isinstance(value, list):
        return [_storable(item, counts, depth + 1) for item in as_list(value)]
    if isinstance(value, float) and not math.isfinite(value):
        counts["number"] += 1
        return None
    if isinstance(value, int) and abs(value) > _MOST:
        counts["number"] += 1
        return str(value)
    return value


def _integer(digits: str) -> int | float:
    """Read an integer; Python refuses to read thousands of digits, and nobody counts that far."""
    return int(digits) if len(digits) <= _LONGEST_INT else math.inf


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _s(count: int) -> str:
    return "" if count == 1 else "s"


_DECODER = json.JSONDecoder(parse_int=_integer)
_STRICT_DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_refuse)
_LOOSE_DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_refuse, strict=False)


MOST_CALLS = 128
"""Tool calls that are kept of one answer; no model asks for as many."""
_LONGEST_WORD = 200
"""Characters of a provider's id or reason that are kept: they are for people, and go into every log line."""


class Answer(Protocol):
    """An answer that grows with every event of a stream, or is taken whole."""

    @property
    def ended(self) -> bool:
        """Whether the provider has said why the answer ended: what comes after that takes nothing away from it."""
        ...

    @property
    def over(self) -> bool:
        """Whether the stream has said that nothing more comes."""
        ...

    def add(self, event: Mapping[str, Any], /) -> Delta:
        """Take in one event, or a whole answer, and return what it brought for the activity line."""
        ...

    def complete(
        self, *, request_id: str | None, sent_bytes: int, unseen: Callable[[], int], notes: tuple[str, ...] = ()
    ) -> Completion:
        """Return the answer as it is to be stored: everything in it is plain, finite JSON.

        Args:
            request_id: The id from the response's headers, for answers that carry none.
            sent_bytes: The size of the request's body.
            unseen: Returns how many of those bytes the model may not have seen: earlier thinking, signatures.
            notes: What was odd on the way.
        """
        ...


class Wire(Protocol):
    """A format of requests and answers."""

    @property
    def speaks(self) -> str:
        """What it is called, for people, e.g. `chat completions`."""
        ...

    @property
    def part(self) -> str:
        """The field that every whole answer has."""
        ...

    def url(self, base_url: str) -> str:
        """Return where answers are asked for, under an API's address."""
        ...

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the headers of a request beside its content type."""
        ...

    def message(self, turn: Turn) -> Mapping[str, Any]:
        """Return what a turn is on the wire, for counting its bytes."""
        ...

    def body(self, request: Request) -> dict[str, Any]:
        """Return the whole body of a request, in a fixed order; it depends on nothing but the request and the wire."""
        ...

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """Tell whether the model can be told to think about what follows these turns."""
        ...

    def answer(self) -> Answer:
        """Return an empty answer, to be filled."""
        ...

    def fault(self, event: Mapping[str, Any]) -> Any:
        """Return the error that stands in an event or in a whole answer's place, or None."""
        ...

    def is_answer(self, whole: Mapping[str, Any]) -> bool:
        """Tell whether JSON that came in one piece is an answer."""
        ...

    def unseen(self, raw: Mapping[str, Any]) -> int:
        """Return how many bytes of an earlier answer a provider need not show to the model again."""
        ...

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> dict[str, Any]:
        """Return an answer as a provider would have sent it."""
        ...


def tool_use(call_id: str, name: str, raw_args: str) -> ToolUse:
    """Return a tool call with its arguments read, as far as they are a JSON object.

    A pure function of three strings: the log keeps these three, and a resumed run reads the same call from them.
    """
    return ToolUse(call_id, name, decode_object(raw_args), raw_args)


def word(said: str | None) -> str | None:
    """Return a provider's word as the log can hold it, on one line and with nothing in it that steers a screen."""
    text = whole_text((said or "")[:_LONGEST_WORD])[0]
    return "".join(char if char.isprintable() else " " for char in text).strip() or None


def told_apart(ids: Iterable[str]) -> list[str]:
    """Return an id of its own for each call: results are matched by it, and servers send none, or one of them twice."""
    taken: dict[str, None] = {}
    for number, given in enumerate(ids):
        identity = given or f"call_{number}"
        while identity in taken:
            identity = f"{identity}_{number}"
        taken[identity] = None
    return list(taken)


def too_many(found: int) -> tuple[str, ...]:
    """Return the note about calls that were not kept, if there were any."""
    return (f"kept the first {MOST_CALLS} of {found:,} tool calls",) if found > MOST_CALLS else ()
