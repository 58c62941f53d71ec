"""Styles and numbered lists of a Word document: which level a heading has, and the number or bullet of an item."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from ava_roles.texts.formats.package import attribute_of, child, children, number_of, value_of
from ava_roles.texts.numerals import NUMERALS

_BODY_LEVEL = 9  # of an outline: body text
_LEVELS = 9
_PLACE = re.compile(r"%([1-9])")
_BULLET = "•"
_MAX_BASES = 50
_HEADING = re.compile(r"heading [0-9]+")


def is_on(element: Any) -> bool:
    """Tell whether a property that is on or off is there and on."""
    if element is None:
        return False
    value = value_of(element) or "1"
    return value.lower() not in ("0", "false", "off", "none")


@dataclass
class Style:
    """A paragraph's or run's style: its level as a heading (0: none), its list, and whether its text is hidden."""

    heading: int = 0
    hidden: bool = False
    list_id: str | None = None
    list_level: int | None = None


def heading_level(properties: Any) -> int | None:
    """Return the level of a heading by the outline, 1 to 6; 0 for body text; None: not said."""
    outline = child(properties, "w:outlineLvl")
    if outline is None:
        return None
    level = number_of(outline)
    return min(level + 1, 6) if 0 <= level < _BODY_LEVEL else 0


class Styles:
    """The styles of a document, each with what it has from those that it is based on."""

    def __init__(self, root: Any) -> None:
        elements = children(root, "w:style")
        self._elements = {attribute_of(each, "styleId"): each for each in elements}
        self._styles: dict[str, Style] = {}
        self.default: str | None = None
        for each in elements:
            is_default = value_of(each, "default") in ("1", "true")
            if is_default and value_of(each, "type") == "paragraph":
                self.default = value_of(each, "styleId")
                break

    def style(self, style_id: str | None) -> Style:
        if style_id is None:
            return Style()
        if style_id not in self._styles:
            self._styles[style_id] = self._read(style_id)
        return self._styles[style_id]

    def _read(self, style_id: str) -> Style:
        """Return a style with what it inherits from the styles that it is based on; keep each of them."""
        chain: list[str] = []
        base: str | None = style_id
        while base in self._elements and len(chain) < _MAX_BASES:
            if base in self._styles or base in chain:
                break
            chain.append(base)
            base = value_of(child(self._elements[base], "w:basedOn"))
        style = self._styles.get(base or "", Style())
        for each in reversed(chain):  # each after the one that it is based on
            style = replace(style)
            _add_properties(style, self._elements[each])
            self._styles[each] = style
        return style


def _add_properties(style: Style, element: Any) -> None:
    paragraph, run = child(element, "w:pPr"), child(element, "w:rPr")
    hidden = child(run, "w:vanish")
    if hidden is not None:
        style.hidden = is_on(hidden)
    name = attribute_of(child(element, "w:name")).casefold()
    digits = name.removeprefix("heading ")
    level = heading_level(paragraph)
    if name == "title":
        style.heading = 1
    elif _HEADING.fullmatch(name):
        style.heading = max(1, min(int(digits[:2]), 6))
    elif level is not None:
        style.heading = level
    numbers = child(paragraph, "w:numPr")
    if numbers is not None:
        list_id = child(numbers, "w:numId")
        if list_id is not None:
            style.list_id = value_of(list_id)
        list_level = child(numbers, "w:ilvl")
        if list_level is not None:
            style.list_level = number_of(list_level)


@dataclass
class _Level:
    start: int = 1
    format: str = "decimal"
    text: str = ""
    restart: int | None = None
    legal: bool = False
    style: str | None = None


@dataclass
class _List:
    """A list that paragraphs name: the scheme with which it shares its numbers, and the levels that it restarts."""

    scheme: str
    levels: dict[int, _Level]
    starts: dict[int, int] = field(default_factory=dict[int, int])

    def start_of(self, number: int) -> int:
        """Return the number of the first item of a level."""
        return self.starts.get(number, self.levels.get(number, _Level()).start)


class Lists:
    """The lists of a document. `other_formats`: formats of numbers that are shown as 1, 2, 3."""

    def __init__(self, root: Any) -> None:
        self.other_formats: set[str] = set()
        self._counts: dict[str, Counter[int]] = {}
        self._begun: set[str] = set()
        self._lists: dict[str, _List] = {}
        schemes: dict[str, dict[int, _Level]] = {}
        style_of_scheme: dict[str, str] = {}  # the style whose levels a scheme borrows
        scheme_of_style: dict[str, str] = {}  # the scheme that defines a style's levels
        for element in children(root, "w:abstractNum"):
            scheme = attribute_of(element, "abstractNumId")
            schemes[scheme] = _read_levels(element)
            style_of_scheme[scheme] = attribute_of(child(element, "w:numStyleLink"))
            defined_style = attribute_of(child(element, "w:styleLink"))
            if defined_style:
                scheme_of_style[defined_style] = scheme
        for element in children(root, "w:num"):
            scheme = attribute_of(child(element, "w:abstractNumId"))
            levels_scheme = scheme
            style = style_of_scheme.get(scheme)
            if style:
                levels_scheme = scheme_of_style.get(style, scheme)
            self._lists[attribute_of(element, "numId")] = _read_list(scheme, schemes.get(levels_scheme, {}), element)

    def level_of(self, list_id: str, style_id: str | None) -> int:
        """Return the level of a list that belongs to a style."""
        of = self._lists.get(list_id)
        if of is not None and style_id:
            for number, level in of.levels.items():
                if level.style == style_id:
                    return number
        return 0

    def label(self, list_id: str, number: int) -> str:
        """Count an item of a list, and return its number or bullet as it is shown, e.g. `2.a)`."""
        of = self._lists.get(list_id)
        number = max(0, min(number, _LEVELS - 1))
        if of is None or not of.levels:
            return ""
        level = of.levels.get(number, _Level())
        counts = self._counts.setdefault(of.scheme, Counter())
        if list_id not in self._begun:
            self._begun.add(list_id)
            for start in of.starts:
                counts.pop(start, None)
        self._count(of, counts, number)
        if level.format == "bullet":
            return _bullet(level.text)

        def numeral(place: re.Match[str]) -> str:
            return self._numeral(of, counts, int(place[1]) - 1, level.legal)

        return _PLACE.sub(numeral, level.text).strip()

    def _count(self, of: _List, counts: Counter[int], number: int) -> None:
        """Count an item of a level; the levels below begin again, unless they say otherwise."""
        if number in counts:
            counts[number] += 1
        else:
            counts[number] = of.start_of(number)
        for deeper in range(number + 1, _LEVELS):
            restart = of.levels.get(deeper, _Level()).restart
            if restart is None or restart >= number + 1:
                counts.pop(deeper, None)

    def _numeral(self, of: _List, counts: Counter[int], number: int, legal: bool) -> str:
        level = of.levels.get(number, _Level())
        count = counts[number] if number in counts else of.start_of(number)
        if level.format not in NUMERALS:
            self.other_formats.add(level.format)
        if legal:
            return str(count)
        return NUMERALS.get(level.format, str)(count)


def _bullet(text: str) -> str:
    """Return a bullet; one that is only a sign of some font is shown as a dot."""
    bullet = text.strip()
    for sign in bullet:
        if sign.isalnum() or "\ue000" <= sign <= "\uf8ff":
            return _BULLET
    return bullet or _BULLET


def _read_levels(element: Any) -> dict[int, _Level]:
    levels: dict[int, _Level] = {}
    for each in children(element, "w:lvl"):
        number = number_of(each, "ilvl")
        if 0 <= number < _LEVELS:
            levels[number] = _read_level(each)
    return levels


def _read_list(scheme: str, levels: dict[int, _Level], element: Any) -> _List:
    result = _List(scheme, dict(levels))
    for each in children(element, "w:lvlOverride"):
        number = number_of(each, "ilvl")
        if not 0 <= number < _LEVELS:
            continue
        level, start = child(each, "w:lvl"), child(each, "w:startOverride")
        if level is not None:
            result.levels[number] = _read_level(level)
            result.starts[number] = result.levels[number].start
        if start is not None:
            result.starts[number] = number_of(start, default=1)
    return result


def _read_level(element: Any) -> _Level:
    restart = child(element, "w:lvlRestart")
    return _Level(
        start=number_of(child(element, "w:start"), default=0),
        format=value_of(child(element, "w:numFmt")) or "decimal",
        text=attribute_of(child(element, "w:lvlText"))[:100],
        restart=None if restart is None else number_of(restart),
        legal=is_on(child(element, "w:isLgl")),
        style=value_of(child(element, "w:pStyle")),
    )
