"""Edits in a JSON text that leave every other character as it is: comments, order, indentation, line ends.

The parsing is the standard library's. Comments and trailing commas are blanked out first, character by character, so
that whatever its decoder finds stands at the same place in the text as it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_TEXT_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\r\n]*|/\*.*?\*/', re.DOTALL)
_TEXT_OR_TRAILING_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[^ \t\r\n\[{,])[ \t\r\n]*,(?=[ \t\r\n]*[}\]])')
_BLANK = " \t\r\n"
"""What JSON takes for white space, and nothing else: a comment may end in any other."""
_SPACE = re.compile(f"[{_BLANK}]*")
_DECODER = json.JSONDecoder()

Step = str | int
"""A member's key, or an element's index."""


def parse(text: str, *, comments: bool, trailing_commas: bool) -> Any:
    """Return what a text says; a blank one is an empty object.

    Args:
        text: The text.
        comments: Comments are allowed.
        trailing_commas: Commas behind the last member or element are allowed.

    Raises:
        ValueError: It is not JSON; says where.
    """
    source = _Source(text)
    plain = source.plain if trailing_commas else source.bare if comments else text
    try:
        return json.loads(plain) if plain.strip(_BLANK) else {}
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def put(text: str, path: Sequence[Step], value: Any) -> str:
    """Return the text with a member or an element set: replaced where it stands, else added as the last one.

    Objects and arrays that are missing on the way are made. The text is JSON with an object in it, or blank.
    """
    source = _Source(text if _Source(text).plain.strip(_BLANK) else f"{text}{{}}\n")
    box = source.root
    for depth, step in enumerate(path):
        found = box.find(step)
        if found is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value} if isinstance(missing, str) else [value]
            return source.added(box, step, value)
        if depth == len(path) - 1:
            return source.replaced(box, found, value)
        box = source.box(found.value)
    raise ValueError("no path was given")


def remove(text: str, path: Sequence[Step]) -> str:
    """Return the text without a member or an element that is there, and without the comma that it needed."""
    source = _Source(text)
    box = source.below(path[:-1])
    return source.without(box, box[path[-1]])


def is_bare(text: str, path: Sequence[Step]) -> bool:
    """Tell whether an object or array has nothing in it, not even a comment."""
    source = _Source(text)
    box = source.below(path)
    return not text[box.start + 1 : box.end - 1].strip(_BLANK)


@dataclass(frozen=True)
class _Item:
    """A member of an object or an element of an array: where it starts, where its value does, where it ends."""

    start: int
    value: int
    end: int
    key: str | None


@dataclass(frozen=True)
class _Box:
    """An object or an array: where it starts and ends, and what is in it."""

    start: int
    end: int
    items: tuple[_Item, ...]

    def find(self, step: Step) -> _Item | None:
        """Return a member or an element; of members with the same key the last one, which is the one that counts."""
        if isinstance(step, int):
            return self.items[step] if step < len(self.items) else None
        return next((item for item in reversed(self.items) if item.key == step), None)

    def __getitem__(self, step: Step) -> _Item:
        found = self.find(step)
        if found is None:
            raise KeyError(step)
        return found


class _Source:
    """A text, and the same text with what is no JSON blanked out."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def bare(self) -> str:
        """The text without its comments."""
        return _TEXT_OR_COMMENT.sub(
            lambda found: found[0] if found[0][0] == '"' else re.sub(r"[^\r\n]", " ", found[0]), self.text
        )

    @cached_property
    def plain(self) -> str:
        """The text without its comments and trailing commas."""
        return _TEXT_OR_TRAILING_COMMA.sub(
            lambda found: found[0] if found[0][0] == '"' else f"{found[0][:-1]} ", self.bare
        )

    @property
    def root(self) -> _Box:
        """The outermost object."""
        return self.box(_seen(self.plain, 0))

    def below(self, path: Sequence[Step]) -> _Box:
        """Return the object or array at a place."""
        box = self.root
        for step in path:
            box = self.box(box[step].value)
        return box

    def box(self, start: int) -> _Box:
        """Return the object or array that starts at a place."""
        plain, items = self.plain, list[_Item]()
        at = _seen(plain, start + 1)
        while plain[at] not in "}]":
            begin, key = at, None
            if plain[start] == "{":
                key, at = _DECODER.raw_decode(plain, at)
                at = _seen(plain, plain.index(":", at) + 1)
            _value, end = _DECODER.raw_decode(plain, at)
            items.append(_Item(begin, at, end, key))
            at = _seen(plain, end)
            if plain[at] == ",":
                at = _seen(plain, at + 1)
        return _Box(start, at + 1, tuple(items))

    def replaced(self, box: _Box, item: _Item, value: Any) -> str:
        """Return the text with an item's value replaced."""
        written = self._written(value, self._indent(item.start), self._spread(box))
        return self.text[: item.value] + written + self.text[item.end :]

    def added(self, box: _Box, step: Step, value: Any) -> str:
        """Return the text with an item added at the end of a box, in the manner of its neighbours."""
        text, spread = self.text, self._spread(box)
        outer = self._indent(box.start)
        inner = self._indent(box.items[0].start) if box.items and spread else outer + self._unit
        body = self._written(value, inner, spread)
        if isinstance(step, str):
            body = f"{json.dumps(step, ensure_ascii=False)}: {body}"
        close = box.end - 1
        tail = len(text[:close].rstrip(_BLANK))  # behind the last item, its comma and its comments
        body = f"{self._newline}{inner}{body}" if spread or _in_line_comment(text[:tail]) else f" {body}"
        if not box.items:
            return f"{text[:tail]}{body}{self._newline}{outer}{text[close:]}"
        end = box.items[-1].end
        comma = "," if "," in self.bare[end:close] else ""  # whoever likes trailing commas keeps them
        return f"{text[:end]}{'' if comma else ','}{text[end:tail]}{body}{comma}{text[tail:]}"

    def without(self, box: _Box, item: _Item) -> str:
        """Return the text without an item."""
        text, close = self.text, box.end - 1
        around = text[box.start + 1 : item.start] + text[item.end : close]
        if box.items == (item,) and not around.strip(f"{_BLANK},"):
            return text[: box.start + 1] + text[close:]
        start, end = len(text[: item.start].rstrip(_BLANK)), item.end
        follows = _seen(self.bare, end)
        if self.bare[follows] == ",":
            return self._glued(text[:start], text[end:follows].rstrip(_BLANK), text[follows + 1 :])
        if box.items[0] is item:
            return self._glued(text[:start], text[end:])
        comma = self.bare.index(",", box.items[-2].end)  # it parts nothing any more
        return self._glued(text[:comma], text[comma + 1 : start], text[end:])

    def _glued(self, *parts: str) -> str:
        """Return parts as one text; none becomes a part of the comment before it."""
        glued = ""
        for part in filter(None, parts):
            if _in_line_comment(glued) and part.lstrip(" \t")[:1] not in ("\r", "\n"):
                glued += self._newline
            glued += part
        return glued

    def _spread(self, box: _Box) -> bool:
        """Tell whether a box has its items on lines of their own."""
        return not box.items or "\n" in self.text[box.start : box.items[0].start]

    def _written(self, value: Any, indent: str, spread: bool) -> str:
        if not spread:
            return json.dumps(value, ensure_ascii=False)
        return json.dumps(value, ensure_ascii=False, indent=self._unit).replace("\n", self._newline + indent)

    def _indent(self, at: int) -> str:
        """Return what the line of a place begins with."""
        found = re.match(r"[ \t]*", self.text[self.text.rfind("\n", 0, at) + 1 : at])
        return found[0] if found else ""

    @property
    def _unit(self) -> str:
        """One step of indentation, as the text has it."""
        found = re.search(r"\n([ \t]+)\S", self.text)
        return found[1] if found else "  "

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"


def _seen(plain: str, at: int) -> int:
    """Return the first place from `at` on that is not blank."""
    found = _SPACE.match(plain, at)
    return found.end() if found else at


def _in_line_comment(text: str) -> bool:
    """Tell whether a text ends in a comment that goes on to the end of its line."""
    last = None
    for last in _TEXT_OR_COMMENT.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    return last is not None and last[0].startswith("//") and last.end() == len(text)
