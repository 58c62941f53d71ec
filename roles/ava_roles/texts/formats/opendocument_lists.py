"""Styles and lists of an OpenDocument file: what is hidden or a title, and the number or bullet of an item."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ava_roles.texts.formats.package import attribute_of, child, children, name_of, number_of, value_of
from ava_roles.texts.numerals import NUMERALS

_LEVELS = 10
_MAX_BASES = 50
_NUMERALS = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_HOLDERS = ("office:styles", "office:automatic-styles", "office:master-styles")


@dataclass
class OpenStyle:
    """A style: whether its text is hidden, and its level as a heading (0: none)."""

    heading: int = 0
    hidden: bool = False


def outline_level(element: Any) -> int:
    return max(1, min(number_of(element, "outline-level", 1), _LEVELS))


def style_elements(roots: list[Any]) -> Iterator[Any]:
    for root in roots:
        for holder in children(root, *_HOLDERS):
            yield from holder


class OpenStyles:
    """The styles of paragraphs and runs, each with what it has from those that it is based on."""

    def __init__(self, roots: list[Any]) -> None:
        self._styles: dict[str, OpenStyle] = {}
        self._elements: dict[str, Any] = {}
        for each in style_elements(roots):
            if name_of(each) == "style:style" and value_of(each, "family") in ("paragraph", "text"):
                self._elements[attribute_of(each, "name")] = each

    def style(self, name: str | None) -> OpenStyle:
        if not name:
            return OpenStyle()
        if name not in self._styles:
            self._styles[name] = self._read(name)
        return self._styles[name]

    def _read(self, name: str) -> OpenStyle:
        chain: list[str] = []
        parent = name
        while parent in self._elements and parent not in chain and len(chain) < _MAX_BASES:
            chain.append(parent)
            parent = attribute_of(self._elements[parent], "parent-style-name")
        names = {name, parent, *chain}
        heading = 1 if "Title" in names else 0
        return OpenStyle(heading, self._is_hidden(chain))

    def _is_hidden(self, chain: list[str]) -> bool:
        """Tell whether the first style that says so, of one and those that it is based on, hides its text."""
        for name in chain:
            display = value_of(child(self._elements[name], "style:text-properties"), "display")
            if display is not None:
                return display == "none"
        return False


@dataclass
class _Level:
    start: int = 1
    numeral: str = ""
    bullet: str = ""
    before: str = ""
    after: str = ""
    shown: int = 1  # how many levels its number has


@dataclass
class _List:
    """A list that is open: its style, its level (from 0), the numbers of all its levels, and its item."""

    style: str
    level: int
    counts: list[int]
    start: int | None = None
    is_waiting: bool = False  # the item has no paragraph yet
    is_header: bool = False


@dataclass
class OpenLists:
    """The lists of a file. `open`: those around the place that is read, the innermost last."""

    roots: list[Any]
    open: list[_List] = field(default_factory=list[_List])

    def __post_init__(self) -> None:
        self._styles: dict[str, dict[int, _Level]] = {}
        self._outline: dict[int, _Level] = {}
        self._last: dict[str, list[int]] = {}
        self._headings = [0] * _LEVELS
        for each in style_elements(self.roots):
            if name_of(each) == "text:list-style":
                self._styles[attribute_of(each, "name")] = _read_levels(each)
            elif name_of(each) == "text:outline-style":
                self._outline = _read_levels(each)

    @contextmanager
    def within(self, element: Any) -> Generator[None]:
        """Hold a list open: it continues the counts of an earlier list if the element says so."""
        outer = None
        if self.open:
            outer = self.open[-1]
        style = attribute_of(element, "style-name")
        if outer and not style:
            style = outer.style
        if outer is None:
            earlier = self._last.get(f"list {value_of(element, 'continue-list')}")
            if earlier is None and value_of(element, "continue-numbering") == "true":
                earlier = self._last.get(f"style {style}")
            opened = _List(style, 0, earlier or [0] * _LEVELS)
        else:
            opened = _List(style, min(outer.level + 1, _LEVELS - 1), outer.counts)
            if value_of(element, "continue-numbering") != "true":
                opened.counts[opened.level] = 0
        self._last[f"style {style}"] = opened.counts
        list_id = value_of(element, "id")
        if list_id:
            self._last[f"list {list_id}"] = opened.counts
        self.open.append(opened)
        yield
        self.open.pop()

    def begin_item(self, element: Any) -> None:
        if self.open:
            innermost = self.open[-1]
            innermost.is_waiting = True
            innermost.start = number_of(element, "start-value") if value_of(element, "start-value") else None

    def label(self) -> str:
        """Return the number or bullet for the next paragraph, with its indent; count its item if it is the first."""
        if not self.open:
            return ""
        innermost = self.open[-1]
        indent = "  " * innermost.level
        if not innermost.is_waiting:
            return indent
        innermost.is_waiting = False
        levels = self._styles.get(innermost.style, {})
        text = _count_item(levels, innermost.counts, innermost.level, innermost.start)
        if not text:
            return indent
        return f"{indent}{text} "

    def label_of_heading(self, outline: int) -> str:
        """Count a heading, and return its number."""
        text = _count_item(self._outline, self._headings, max(0, outline - 1))
        return f"{text} " if text else ""


def _count_item(levels: dict[int, _Level], counts: list[int], number: int, start: int | None = None) -> str:
    """Count an item of the level `number`, from `start` if it is given, and return its number or bullet."""
    level = levels.get(number, _Level())
    if start is not None:
        counts[number] = start
    elif counts[number]:
        counts[number] += 1
    else:
        counts[number] = level.start
    counts[number + 1 :] = [0] * (_LEVELS - number - 1)

    if level.bullet:
        return level.bullet
    if not level.numeral:
        return ""
    numbers: list[str] = []
    for each in range(max(0, number - level.shown + 1), number + 1):
        numeral = levels.get(each, _Level()).numeral
        if numeral:
            format_number = NUMERALS[_NUMERALS.get(numeral, "decimal")]
            numbers.append(format_number(max(counts[each], 1)))
    return f"{level.before}{'.'.join(numbers)}{level.after}".strip()


def _read_levels(element: Any) -> dict[int, _Level]:
    levels: dict[int, _Level] = {}
    for each in element:
        number = number_of(each, "level") - 1
        if not 0 <= number < _LEVELS:
            continue
        if name_of(each) in ("text:list-level-style-bullet", "text:list-level-style-image"):
            bullet = (value_of(each, "bullet-char") or "•").strip()[:5]
            if bullet.isalnum() or not bullet.isprintable():  # a sign of some font
                bullet = "•"
            levels[number] = _Level(bullet=bullet)
        else:
            levels[number] = _Level(
                start=number_of(each, "start-value", 1),
                numeral=attribute_of(each, "num-format")[:20],
                before=attribute_of(each, "num-prefix")[:50],
                after=attribute_of(each, "num-suffix")[:50],
                shown=number_of(each, "display-levels", 1),
            )
    return levels
