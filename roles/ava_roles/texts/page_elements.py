"""The elements of HTML: which of them are inline, end others, hold no tags, or are hidden."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ava_roles.texts.markup import attributes

_INLINE_NAMES = """
    a abbr b bdi bdo cite code data del dfn em font i ins kbd mark q rb rp rt rtc ruby s samp small span strike strong
    sub sup time tt u var wbr
"""
INLINE = frozenset(_INLINE_NAMES.split())
_BLOCKS_NAMES = """
    address article aside blockquote body br caption center dd details dialog dir div dl dt fieldset figcaption
    figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li listing main menu nav ol optgroup
    option p pre search section summary table tbody tfoot thead title tr ul xmp
"""
BLOCKS = frozenset(_BLOCKS_NAMES.split())
_VOID_NAMES = """
    area base basefont bgsound br col embed frame hr img input link meta param source track wbr
"""
VOID = frozenset(_VOID_NAMES.split())
_LEAVE_P_OPEN_NAMES = """
    body br caption dd dt html legend li optgroup option summary tbody tfoot thead title tr
"""
_END_P = BLOCKS - frozenset(_LEAVE_P_OPEN_NAMES.split())
CELLS = frozenset(("td", "th"))
IN_TABLES = frozenset(("td", "th", "tr", "tbody", "thead", "tfoot"))
ENDS_BEFORE: dict[str, frozenset[str]] = {
    "li": frozenset(("li",)),
    "dt": frozenset(("dt", "dd")),
    "dd": frozenset(("dt", "dd")),
    "td": CELLS,
    "th": CELLS,
    "tr": frozenset((*CELLS, "tr")),
    "tbody": IN_TABLES,
    "thead": IN_TABLES,
    "tfoot": IN_TABLES,
    "option": frozenset(("option",)),
    "optgroup": frozenset(("option", "optgroup")),
    "body": frozenset(("head",)),
    **dict.fromkeys(_END_P, frozenset(("p",))),
}
"""The elements that a start tag ends, if they are the last open ones: their end tags may be left out."""
_RAW = ("script", "style", "iframe", "noembed", "xmp", "title", "textarea")
"""Elements whose content has no tags."""
RAW_END = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _RAW}
_WITH_ATTRIBUTES_NAMES = """
    base dialog embed frame iframe img input area li meta object ol optgroup option script table td template th
"""
_WITH_ATTRIBUTES = frozenset(_WITH_ATTRIBUTES_NAMES.split())
_MAY_MATTER = re.compile(r"hidden|style|\bid\b|popover", re.IGNORECASE)
_HIDING_STYLE = re.compile(r"display\s*+:\s*+none|visibility\s*+:\s*+(?:hidden|collapse)", re.IGNORECASE)
LISTS = frozenset(("ol", "ul", "menu", "dir"))
_NUMERALS = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_NO_NUMBERS = re.compile(r"list-style(?:-type)?+\s*+:[^;]{0,50}\bnone", re.IGNORECASE)
INTEGER = re.compile(r"\s*+([-+]?+\d{1,9})(?!\d)")


@dataclass
class OpenList:
    """A list that is open. `step`: what the number of its next item adds; 0 for a list without numbers."""

    number: int = 0
    step: int = 0
    numeral: str = "decimal"


def attributes_that_matter(name: str, source: str) -> dict[str, str]:
    """Return the attributes of a tag; none where they cannot affect what is shown. `source`: as the tag has them."""
    if name in _WITH_ATTRIBUTES or _MAY_MATTER.search(source) is not None:
        return attributes(source)
    return {}


def open_list(name: str, values: dict[str, str]) -> OpenList:
    if name != "ol":
        return OpenList()
    if "reversed" in values:  # where it begins is not known yet
        return OpenList()
    if _NO_NUMBERS.search(values.get("style", "")):
        return OpenList()
    start = INTEGER.match(values.get("start", ""))
    number_before = int(start[1]) - 1 if start else 0
    numeral = _NUMERALS.get(values.get("type", ""), "decimal")
    return OpenList(number_before, 1, numeral)


def is_hidden_element(name: str, values: dict[str, str]) -> bool:
    if name == "template":
        return "shadowrootmode" not in values
    if name == "dialog" and "open" not in values:
        return True
    if values.get("hidden", "until-found").lower() != "until-found":
        return True
    if "popover" in values:
        return True
    return _HIDING_STYLE.search(values.get("style", "")) is not None


def is_program(kind: str) -> bool:
    """Tell a script by its type from data in a <script>."""
    kind = kind.strip().lower()
    if kind in ("", "module"):
        return True
    return "javascript" in kind or "ecmascript" in kind
