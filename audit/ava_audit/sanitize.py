"""Sanitizing: turns values from providers and tools into JSON that the database can store.

Every change is noted, so that the log never differs silently from what was received:

- lone surrogates, which UTF-8 cannot encode, become U+FFFD; the halves of a split pair are joined;
- NUL becomes U+FFFD, because SQLite's JSON functions and text index end a text there;
- NaN, infinities and integers beyond 64 bits become null;
- values nested deeper than 100 levels become null (parsers give up at 200);
- bytes and other objects become text;
- strings are cut, the longest first, until the value fits an entry.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

MAX_DEPTH = 100
MAX_NODES = 500_000
MAX_BYTES = 1_900_000
"""The size limit of a value as UTF-8 JSON. An entry has 2 MB; the rest is for its other fields."""

_CUT = "… [cut: {} characters]"
_CUT_ROOM = 40
_VERBS = {
    "split surrogate": "joined",
    "lone surrogate": "replaced",
    "NUL": "replaced",
    "key": "renamed",
    "value of type": "turned into text",
    "string": "cut",
}
_UNSTORABLE = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff\x00]")


def sanitize_json(value: object, max_bytes: int = MAX_BYTES) -> tuple[Any, tuple[str, ...]]:
    """Return a JSON-like value of at most `max_bytes` as UTF-8 JSON, and a note for each kind of change.

    The value is in plain dicts, lists, strings, numbers, booleans and None. Without notes, nothing was changed.
    """
    cleaner = _Cleaner()
    clean = cleaner.clean(value, 0)
    size = _size(clean)
    if size > max_bytes:
        clean = _shrink(clean, size, max_bytes, cleaner.changes)
    return clean, cleaner.notes()


class _Cleaner:
    def __init__(self) -> None:
        self.changes: Counter[str] = Counter()
        self._nodes = 0

    def notes(self) -> tuple[str, ...]:
        return tuple(_note(change, count) for change, count in self.changes.items())

    def clean(self, value: object, depth: int) -> Any:
        self._nodes += 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                return self._drop("integer beyond 64 bits")
            return int(value)
        if isinstance(value, float):
            if not math.isfinite(value):
                return self._drop("number that is not finite")
            return float(value)
        if depth >= MAX_DEPTH:
            return self._drop(f"value nested deeper than {MAX_DEPTH} levels")
        if self._nodes > MAX_NODES:
            return self._drop(f"value after the first {MAX_NODES:,}")
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[object, object]", value), depth)
        if isinstance(value, list | tuple):
            return [self.clean(item, depth + 1) for item in cast("list[object]", value)]
        return self._as_text(value)

    def text(self, text: str) -> str:
        if text.isascii() and "\0" not in text:
            return str(text)
        return _UNSTORABLE.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        char = match[0]
        if len(char) == 2:
            self.changes["split surrogate pair"] += 1
            return char.encode("utf-16", "surrogatepass").decode("utf-16")
        self.changes["NUL character" if char == "\0" else "lone surrogate"] += 1
        return "\ufffd"

    def _mapping(self, value: Mapping[object, object], depth: int) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        for key, item in value.items():
            if self._nodes > MAX_NODES:
                self._drop(f"value after the first {MAX_NODES:,}")
                break
            name = self.clean(key, depth + 1) if isinstance(key, str) else self._as_text(key)
            while name in clean:
                self.changes["key that had become equal to another"] += 1
                name += "_"
            clean[name] = self.clean(item, depth + 1)
        return clean

    def _as_text(self, value: object) -> str:
        self.changes[f"value of type {type(value).__name__}"] += 1
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        return self.text(text)

    def _drop(self, what: str) -> None:
        self.changes[what] += 1


def _note(change: str, count: int) -> str:
    verb = _verb_of(change)
    if count == 1:
        return f"{verb} {count:,} {change}"
    return f"{verb} {count:,} times: {change}"


def _verb_of(change: str) -> str:
    for beginning, verb in _VERBS.items():
        if change.startswith(beginning):
            return verb
    return "turned into null"


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    items: list[object] = []
    if isinstance(value, dict):
        items = list(cast("dict[str, object]", value).values())
    elif isinstance(value, list):
        items = cast("list[object]", value)
    strings: list[str] = []
    for item in items:
        strings += _strings(item)
    return strings


def _shrink(value: Any, size: int, max_bytes: int, changes: Counter[str]) -> Any:
    """Cut the longest strings to one length, the largest with which the value fits; None if that is not enough."""
    sizes = sorted((_size(text) for text in _strings(value)), reverse=True)
    rest = size  # what the value has without the strings that are cut
    limit = -1
    for count, longest in enumerate(sizes, start=1):
        # If the `count` longest strings have `limit` bytes each, the value fits exactly.
        rest -= longest
        limit = (max_bytes - rest) // count
        next_longest = sizes[count] if count < len(sizes) else 0
        if limit >= next_longest:
            changes[f"string longer than {limit:,} bytes"] += count
            break
    if limit < _CUT_ROOM:
        changes.clear()
        changes[f"value of {size:,} bytes"] += 1
        return None
    return _cut(value, limit)


def _cut(value: object, limit: int) -> Any:
    if isinstance(value, str):
        if _size(value) <= limit:
            return value
        return _prefix(value, limit - _CUT_ROOM) + _CUT.format(f"{len(value):,}")
    if isinstance(value, dict):
        return {key: _cut(item, limit) for key, item in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_cut(item, limit) for item in cast("list[object]", value)]
    return value


def _prefix(text: str, limit: int) -> str:
    """Return the longest prefix of a text that has at most `limit` bytes as JSON, quotes included."""
    lengths = range(1, min(len(text), limit) + 1)
    return text[: bisect_right(lengths, limit, key=lambda length: _size(text[:length]))]
