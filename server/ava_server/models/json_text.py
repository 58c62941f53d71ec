"""Reading and writing the JSON of a provider: nothing that a provider sends can make a log entry unstorable."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from io import StringIO
from typing import Any, cast

from pydantic_core import to_json

_MOST = 2**63 - 1
_LONGEST_INT = 400
_DEEPEST = 100
_AROUND = 40
"""Characters on either side of a fault that are shown."""
_LAST_COMMA = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z))|,(?=\s*[}\]])', re.DOTALL)
"""A whole string, or a comma after a last entry; an unclosed string reaches to the end."""


class NotJsonError(ValueError):
    """Raised for text that cannot be read as JSON."""


def encode(value: Any) -> bytes:
    """Return compact JSON in UTF-8, always the same; a lone surrogate becomes U+FFFD. Raises ValueError: not finite."""
    with suppress(ValueError):  # a lone surrogate, or values nested deeper than it goes
        content = to_json(value)  # four times as fast as `json`
        if b"NaN" not in content and b"Infinity" not in content:  # else perhaps only words of a text
            return content
    return join_surrogates(_ENCODER.encode(value))[0].encode()


def decode(text: str) -> Any:
    """Read JSON; NaN and absurd numbers stay, as floats, until `storable`. Raises NotJsonError, also if too deep."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error


def decode_given(text: str) -> Any:
    """Read JSON that a person or a host wrote, also after a byte order mark.

    Raises NotJsonError: it is no JSON, too deep, or an object has a key twice, of which one would be lost.
    """
    try:
        return _UNIQUE_DECODER.decode(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error


def decode_at(text: str, at: int) -> tuple[Any, int]:
    """Return the storable JSON that begins at a place, and where it ends. Raises NotJsonError: no JSON, or too deep."""
    try:
        value, end = _LOOSE_DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
    return storable(value)[0], end


def decode_object(text: str) -> dict[str, Any] | None:
    """Read tool arguments: an object of plain JSON, or None. Empty text is an empty object.

    Faults with only one possible meaning are repaired: a code fence around the object, a JSON string that contains it,
    control characters inside strings, and commas after the last entry.
    """
    if not text.strip():
        return {}
    try:
        value = _repaired(text)
        value = _repaired(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    return as_object(storable(value)[0])


def object_fault(text: str) -> str:
    """Return why a text cannot be read as tool arguments, and where: for the model, which wrote it."""
    try:
        value = _repaired(text)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            text, value = value, _repaired(value)
    except json.JSONDecodeError as error:
        whole = error.doc
        near = whole[max(error.pos - _AROUND, 0) : error.pos + _AROUND]
        return f"{error.msg} at line {error.lineno} column {error.colno} of {len(whole)} characters, near {near!r}"
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return f"{why}: {text[:_AROUND]!r}"
    kinds = {"array": "a list", "string": "text", "boolean": "a truth value", "null": "null"}
    return f"it is {kinds.get(json_type(value), 'a number')}: {text[: 2 * _AROUND]!r}"


_JSON_TYPES: tuple[tuple[type, str], ...] = (
    (str, "string"), (bool, "boolean"), (int, "integer"), (float, "number"), (list, "array"), (dict, "object")
)  # fmt: skip


def json_type(value: Any) -> str:
    return next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), "null")


def strip_fence(text: str) -> str:
    """Return a text without the code fence around it, if it has one, and without surrounding white space."""
    text = text.strip()
    if not (len(text) >= 6 and text.startswith("```") and text.endswith("```")):
        return text
    head, line_end, rest = text[3:-3].partition("\n")
    if line_end and (not head.strip() or head.strip().isalnum()):
        return rest.strip()
    return text[3:-3].removeprefix("json").strip()


def as_object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def fields_of(value: Any) -> dict[str, Any]:
    return as_object(value) or {}


def as_list(value: Any) -> list[Any]:
    return [*cast("Iterable[Any]", value)] if isinstance(value, list) else []


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def objects_in(value: Any) -> list[dict[str, Any]]:
    return [fields for item in as_list(value) if (fields := as_object(item)) is not None]


def deeper_than(value: Any, most: int) -> bool:
    level: list[Any] = [value]
    for _ in range(most):
        members = (item for each in level for item in (as_list(each) or fields_of(each).values()))
        level = [item for item in members if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def grown(text: Any, piece: str) -> StringIO:
    """Return a text with a piece more, for `storable` to take out once: each piece added to a `str` copies it all."""
    growing = text if isinstance(text, StringIO) else StringIO()
    growing.write(as_text(text) + piece)
    return growing


def storable(value: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a value that UTF-8 JSON can hold, and a note for each kind of thing that was changed."""
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


def join_surrogates(text: str) -> tuple[str, int]:
    """Join surrogate pairs that arrived in halves, replace lone ones with U+FFFD, and count these."""
    try:
        text.encode()
    except UnicodeEncodeError:
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return whole, whole.count("\ufffd") - text.count("\ufffd")
    return text, 0


def decode_text(raw: bytes) -> tuple[str, int]:
    """Decode UTF-8, with U+FFFD for what is invalid, and count that."""
    try:
        return raw.decode(), 0
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        return text, text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")


def _repaired(text: str) -> Any:
    """Read JSON, repairing harmless faults. Raises ValueError: another fault; RecursionError: too deep."""
    try:
        return _STRICT_DECODER.decode(text)
    except ValueError:
        text = strip_fence(text)
    try:
        return _LOOSE_DECODER.decode(text)
    except ValueError:
        return _LOOSE_DECODER.decode(_LAST_COMMA.sub(lambda found: found[1] or "", text))


def _storable(value: Any, counts: dict[str, int], depth: int) -> Any:
    if depth > _DEEPEST:
        counts["nesting"] += 1
        return None
    if isinstance(value, str | StringIO):
        text, replaced = join_surrogates(value if isinstance(value, str) else value.getvalue())
        counts["surrogate"] += replaced
        return text
    entries = as_object(value)
    if entries is not None:
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
    """Read an integer; Python refuses thousands of digits, and no real number has them."""
    return int(digits) if len(digits) <= _LONGEST_INT else math.inf


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of these members. Raises ValueError if one of the keys stands twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _value in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object; give it once")
    return members


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _s(count: int) -> str:
    return "" if count == 1 else "s"


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(parse_int=_integer)
_UNIQUE_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
_STRICT_DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_refuse)
_LOOSE_DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_refuse, strict=False)
