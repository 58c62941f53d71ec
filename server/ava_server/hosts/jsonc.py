"""JSON edits that keep every other character: comments, order, indentation, line ends.

Parsing is the standard library's. Comments and trailing commas are replaced by blanks first, character by character, so
every place that the decoder finds is the same in the original text.
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
"""JSON's white space and no other: a comment may end in any other."""
_SPACE = re.compile(f"[{_BLANK}]*")
_DECODER = json.JSONDecoder()

Step = str | int


@dataclass(frozen=True)
class Json:
    """JSON, with comments and trailing commas if the host accepts them."""

    comments: bool = False
    trailing_commas: bool = False

    def parse(self, text: str) -> Any:
        """A blank text is an empty object. Raises ValueError if it is not JSON; says where."""
        if self.trailing_commas:
            plain = _Source(text).plain
        elif self.comments:
            plain = _Source(text).bare
        else:
            plain = text
        if not plain.strip(_BLANK):
            return {}
        try:
            return json.loads(plain)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def put(self, text: str, path: Sequence[Step], value: Any) -> str:
        """Set a member or an element, made on the way or added as the last."""
        source = _Source(text)
        if not source.plain.strip(_BLANK):
            source = _Source(f"{text}{{}}\n")
        box = source.root
        for depth, step in enumerate(path):
            item = box.find(step)
            if item is None:
                for missing in reversed(path[depth + 1 :]):
                    value = {missing: value} if isinstance(missing, str) else [value]
                return source.with_item(box, step, value)
            if depth == len(path) - 1:
                return source.with_value(box, item, value)
            box = source.box(item.value)
        raise ValueError("the path is empty")

    def remove(self, text: str, path: Sequence[Step]) -> str:
        """Remove the comma that it needed, too."""
        source = _Source(text)
        box = source.below(path[:-1])
        return source.without(box, box[path[-1]])

    def is_bare(self, text: str, path: Sequence[Step]) -> bool:
        """Tell whether an object or array is empty, without even a comment."""
        box = _Source(text).below(path)
        return not text[box.start + 1 : box.end - 1].strip(_BLANK)

    def lines_of(self, path: Sequence[Step], value: Any) -> list[str]:
        """Between the outermost braces."""
        return self.put("", path, value).splitlines()[1:-1]


@dataclass(frozen=True)
class _Item:
    start: int
    value: int
    end: int
    key: str | None


@dataclass(frozen=True)
class _Box:
    start: int
    end: int
    items: tuple[_Item, ...]

    def find(self, step: Step) -> _Item | None:
        """Of members with the same key return the last one, as JSON parsers do."""
        if isinstance(step, str):
            return next((item for item in reversed(self.items) if item.key == step), None)
        if step < len(self.items):
            return self.items[step]
        return None

    def __getitem__(self, step: Step) -> _Item:
        item = self.find(step)
        if item is None:
            raise KeyError(step)
        return item


class _Source:
    """A text, and the same text with everything that is not JSON blanked out."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def bare(self) -> str:
        """The text without comments."""

        def blank(match: re.Match[str]) -> str:
            piece = match[0]
            if piece.startswith('"'):
                return piece
            return re.sub(r"[^\r\n]", " ", piece)

        return _TEXT_OR_COMMENT.sub(blank, self.text)

    @cached_property
    def plain(self) -> str:
        """The text without comments and trailing commas."""

        def blank(match: re.Match[str]) -> str:
            piece = match[0]
            if piece.startswith('"'):
                return piece
            return f"{piece[:-1]} "

        return _TEXT_OR_TRAILING_COMMA.sub(blank, self.bare)

    @property
    def root(self) -> _Box:
        return self.box(_skip_blanks(self.plain, 0))

    def below(self, path: Sequence[Step]) -> _Box:
        box = self.root
        for step in path:
            box = self.box(box[step].value)
        return box

    def box(self, start: int) -> _Box:
        plain = self.plain
        items = list[_Item]()
        at = _skip_blanks(plain, start + 1)
        while plain[at] not in "}]":
            begin = at
            key = None
            if plain[start] == "{":
                key, at = _DECODER.raw_decode(plain, at)
                at = _skip_blanks(plain, plain.index(":", at) + 1)
            _value, end = _DECODER.raw_decode(plain, at)
            items.append(_Item(begin, at, end, key))
            at = _skip_blanks(plain, end)
            if plain[at] == ",":
                at = _skip_blanks(plain, at + 1)
        return _Box(start, at + 1, tuple(items))

    def with_value(self, box: _Box, item: _Item, value: Any) -> str:
        """Return the text with another value of an item."""
        body = self._format(value, self._indent(item.start), self._is_spread(box))
        return self.text[: item.value] + body + self.text[item.end :]

    def with_item(self, box: _Box, step: Step, value: Any) -> str:
        """Return the text with an item at the end of a box, formatted like its neighbours."""
        text = self.text
        is_spread = self._is_spread(box)
        outer = self._indent(box.start)
        inner = outer + self._unit
        if box.items and is_spread:
            inner = self._indent(box.items[0].start)
        body = self._format(value, inner, is_spread)
        if isinstance(step, str):
            body = f"{json.dumps(step, ensure_ascii=False)}: {body}"
        close = box.end - 1
        tail = len(text[:close].rstrip(_BLANK))  # after the last item, its comma and its comments
        if is_spread or _in_line_comment(text[:tail]):
            body = f"{self._newline}{inner}{body}"
        else:
            body = f" {body}"
        if not box.items:
            return f"{text[:tail]}{body}{self._newline}{outer}{text[close:]}"
        end = box.items[-1].end
        if "," in self.bare[end:close]:  # a file with trailing commas keeps them
            return f"{text[:end]}{text[end:tail]}{body},{text[tail:]}"
        return f"{text[:end]},{text[end:tail]}{body}{text[tail:]}"

    def without(self, box: _Box, item: _Item) -> str:
        text = self.text
        close = box.end - 1
        others = text[box.start + 1 : item.start] + text[item.end : close]
        if box.items == (item,) and not others.strip(f"{_BLANK},"):
            return text[: box.start + 1] + text[close:]
        start = len(text[: item.start].rstrip(_BLANK))
        end = item.end
        follows = _skip_blanks(self.bare, end)
        if self.bare[follows] == ",":
            return self._join(text[:start], text[end:follows].rstrip(_BLANK), text[follows + 1 :])
        if box.items[0] is item:
            return self._join(text[:start], text[end:])
        comma = self.bare.index(",", box.items[-2].end)  # it separates nothing any more
        return self._join(text[:comma], text[comma + 1 : start], text[end:])

    def _join(self, *parts: str) -> str:
        """So that no part ends up in the comment before it."""
        text = ""
        for part in filter(None, parts):
            if _in_line_comment(text) and part.lstrip(" \t")[:1] not in ("\r", "\n"):
                text += self._newline
            text += part
        return text

    def _is_spread(self, box: _Box) -> bool:
        """Tell whether a box has its items on lines of their own."""
        return not box.items or "\n" in self.text[box.start : box.items[0].start]

    def _format(self, value: Any, indent: str, is_spread: bool) -> str:
        if not is_spread:
            return json.dumps(value, ensure_ascii=False)
        return json.dumps(value, ensure_ascii=False, indent=self._unit).replace("\n", self._newline + indent)

    def _indent(self, at: int) -> str:
        before = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        return before[: len(before) - len(before.lstrip(" \t"))]

    @property
    def _unit(self) -> str:
        indent = re.search(r"\n([ \t]+)\S", self.text)
        if indent is None:
            return "  "
        return indent[1]

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"


def _skip_blanks(plain: str, at: int) -> int:
    blanks = _SPACE.match(plain, at)
    if blanks is None:
        return at
    return blanks.end()


def _in_line_comment(text: str) -> bool:
    last = None
    for last in _TEXT_OR_COMMENT.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    return last is not None and last[0].startswith("//") and last.end() == len(text)
