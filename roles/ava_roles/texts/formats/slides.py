"""PowerPoint files: the text of each slide with its notes and comments; what cannot be text is named.

`_TEXT`, `_SILENT`, `_NAMED` and `_Reader._HANDLERS` say what each element of the XML gives. One that is in none of
them gives what is inside it, so that the text of an unknown element is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ava_roles.texts.extracted import ALL, Extracted, Part, Wanted
from ava_roles.texts.formats.asides import Aside, join_line
from ava_roles.texts.formats.package import (
    OfficePackage,
    attribute_of,
    child,
    children,
    descendants,
    drawn_text,
    name_of,
    number_of,
    value_of,
    words_of,
)
from ava_roles.texts.formats.part_reader import ADDRESS_CHARS, CUT, TEXT_CHARS, PartReader
from ava_roles.texts.numerals import NUMERALS
from ava_roles.texts.phrases import count_phrase
from ava_roles.texts.web_page import MAX_COLUMNS, parsing, render_table

_MAX_SLIDES = 5_000
_LEVELS = 9

_TEXT = frozenset({"a:t", "m:t"})
_SILENT = frozenset(("a:pPr", "a:rPr", "a:endParaRPr", "p:spPr", "p:style", "a:bodyPr", "a:lstStyle", "p:extLst"))
_NAMED = {
    "p:control": "a control",
    "p:contentPart": "an ink drawing",
    "a:videoFile": "a video",
    "a:audioFile": "a sound",
    "a:wavAudioFile": "a sound",
}
_MARGINS = {"hdr": "header", "ftr": "footer"}
_TITLES = ("title", "ctrTitle")
_NUMBERS = {
    "arabic": "decimal",
    "alphaLc": "lowerLetter",
    "alphaUc": "upperLetter",
    "romanLc": "lowerRoman",
    "romanUc": "upperRoman",
}
_ENDS = {"Period": ("", "."), "ParenR": ("", ")"), "ParenBoth": ("(", ")"), "Plain": ("", "")}


@parsing("presentation")
def read_pptx(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return a presentation as text, a part for each slide. Raises ToolFailed."""
    package = OfficePackage(data, "presentation", ".pptx")
    reader = _Reader(package)
    parts = reader.read()
    return Extracted(tuple(parts), package.title(), len(parts), reader.missing())


def _reference(element: Any) -> str:
    """Return the id of a relation; the element has another id of its own."""
    for key, value in element.attrib.items():
        if key.endswith("}id"):
            return str(value)
    return ""


class _Reader(PartReader):
    """Walks through the slides of a presentation, and collects the text of each."""

    def __init__(self, package: OfficePackage) -> None:
        super().__init__(package, "p:presentation")
        self._numbers: dict[int, tuple[str, int]] = {}
        self._is_title = self._only_free = False
        self._pictures = 0
        self._margins: set[str] = set()

    def read(self) -> list[Part]:
        parts: list[Part] = []
        layouts: dict[str, None] = {}
        ids = [_reference(each) for each in children(child(self._root, "p:sldIdLst"), "p:sldId")]
        relations = self._package.relations(self._main)
        for number, relation_id in enumerate(ids, 1):
            if self._full() or number > _MAX_SLIDES:
                more = count_phrase(len(ids) - number + 1, "more slide is", "more slides are")
                parts.append(Part("", f"({more} not shown)"))
                break
            relation = relations.get(relation_id)
            root = None
            if relation is not None and not relation.outside:
                root = self._package.root(relation.target)
            if relation is None or root is None:
                self._name("a slide that is damaged or not in the file", f"slide {number}")
                continue
            heading = f"slide {number}"
            if value_of(root, "show") in ("0", "false"):
                heading += " (hidden)"
            parts.append(Part(heading, self._slide(relation.target, root)))
            layouts.update(dict.fromkeys(self._package.related(relation.target, "slideLayout")))
        shared = self._shared_text(list(layouts))
        if shared:
            parts.append(Part("on several slides", shared))
        if self._cut:
            parts.append(Part("", CUT))
        return parts

    def missing(self) -> tuple[str, ...]:
        """Return phrases on what is in the presentation and not in its text."""
        pictures = [count_phrase(self._pictures, "picture")] if self._pictures else []
        return (*pictures, *self._hidden_text("shapes"), *self._named_objects(), *self._unread_parts())

    def _margin_of_notes(self, notes: str, shape: Any, kind: str) -> list[str]:
        """Return the header or footer of a page of notes; nothing where an earlier page has the same."""
        text = " ".join(" ".join(self._blocks_of(notes, shape)).split())
        line = f"[{kind} of the notes] {text}"
        if not text or line in self._margins:
            return []
        self._margins.add(line)
        return [line]

    # -- slides -----------------------------------------------------------------------------------------------

    def _slide(self, part: str, root: Any) -> str:
        blocks = self._blocks_of(part, root)
        for notes in self._package.related(part, "notesSlide"):
            texts: list[str] = []
            margins: list[str] = []
            for shape in descendants(self._package.root(notes), "p:sp"):
                place = _placeholder(shape)
                if place in ("body", None):
                    texts += self._blocks_of(notes, shape)
                elif place in _MARGINS:
                    margins += self._margin_of_notes(notes, shape, _MARGINS[place])
            text = "\n\n".join(texts)
            if text:
                blocks.append(f"Notes:\n{text}")
            blocks += margins
        for comments in self._package.related(part, "comments"):
            for each in descendants(self._package.root(comments), "p:text", "a:p"):
                words = words_of(each) if name_of(each) == "p:text" else drawn_text(each)
                if words:
                    self._add(blocks, f"[comment] {words}")
        return "\n\n".join(blocks)

    def _shared_text(self, layouts: list[str]) -> str:
        """Return the text of layouts and masters that is shown on each slide, such as a company's name."""
        parts = dict.fromkeys(layouts)
        for layout in layouts:
            parts.update(dict.fromkeys(self._package.related(layout, "slideMaster")))
        texts: dict[str, None] = {}
        self._only_free = True
        for part in parts:
            root = self._package.root(part)
            if root is not None:
                texts.update(dict.fromkeys(self._blocks_of(part, root)))
        self._only_free = False
        return "\n\n".join(texts)

    def _blocks_of(self, part: str, element: Any) -> list[str]:
        self._part, self._blocks, self._line = part, [], []
        if name_of(element) == "p:sp":
            self._shape(element)
        else:
            self._inside(element)
        return self._blocks

    def _full(self) -> bool:
        if self._size >= TEXT_CHARS or self._budget.late:
            self._cut = True
        return self._cut

    def _add(self, blocks: list[str], block: str) -> None:
        room = max(0, TEXT_CHARS - self._size)
        if len(block) > room:
            self._cut = True
            block = block[:room]
        if block.strip():
            blocks.append(block)
            self._size += len(block)

    # -- the walk ---------------------------------------------------------------------------------------------

    def _inside(self, element: Any) -> None:
        for each in element:
            name = name_of(each)
            handler = self._HANDLERS.get(name)
            if handler is not None:
                handler(self, each)
            elif name in _TEXT:
                self._say(each.text or "")
            elif name in _NAMED:
                self._name(_NAMED[name])
            elif name not in _SILENT:
                self._inside(each)

    def _say(self, text: str) -> None:
        self._emitted += 1
        self._line.append(text)

    def _shape(self, element: Any) -> None:
        placeholder = _placeholder(element)
        if self._only_free and placeholder is not None:
            return  # a place for the text of a slide, with a hint
        kind = name_of(element)
        properties = _properties(element)
        if value_of(properties, "hidden") in ("1", "true"):
            self._emitted += 1
            self._hidden_words += len(drawn_text(element).split())
            return
        outer_is_title = self._is_title
        self._is_title = placeholder in _TITLES
        is_picture = kind == "p:pic"
        noun = "picture" if is_picture else "shape"
        self._describe(attribute_of(properties, "descr"), noun)
        first = len(self._blocks)
        self._numbers.clear()
        self._inside(element)
        lines = self._blocks[first:]
        if kind == "p:sp" and len(lines) > 1:  # the lines of one shape belong together
            self._blocks[first:] = ["\n".join(lines)]
        self._is_title = outer_is_title
        if is_picture:
            self._emitted += 1
            self._pictures += 1

    def _describe(self, text: str, what: str) -> None:
        words = " ".join(text.split())
        if words:
            self._emitted += 1
            self._add(self._blocks, f"[{what}: {words}]")

    def _paragraph(self, element: Any) -> None:
        if self._full():
            return
        outer, self._line = self._line, []
        self._inside(element)
        text = join_line(self._line).strip()
        self._line = outer
        properties = child(element, "a:pPr")
        if text and self._is_title:
            self._add(self._blocks, f"# {' '.join(text.split())}")
        elif text:
            self._add(self._blocks, f"{self._label(properties)}{text}")

    def _label(self, properties: Any) -> str:
        level = max(0, min(number_of(properties, "lvl"), _LEVELS - 1))
        indent = "  " * level
        for deeper in range(level + 1, _LEVELS):
            self._numbers.pop(deeper, None)
        numbers = child(properties, "a:buAutoNum")
        if numbers is not None:
            return f"{indent}{self._number(level, numbers)} "
        self._numbers.pop(level, None)
        bullet = attribute_of(child(properties, "a:buChar"), "char")
        if bullet.isalnum() or not bullet.isprintable():  # a sign of some font
            bullet = "•"
        return f"{indent}{bullet} " if bullet else indent

    def _number(self, level: int, numbers: Any) -> str:
        """Count an item of a level, and return its number as the scheme `numbers` writes it."""
        scheme = attribute_of(numbers, "type")
        last_scheme, count = self._numbers.get(level, ("", 0))
        if scheme == last_scheme:
            count += 1
        else:
            count = number_of(numbers, "startAt", 1)
        self._numbers[level] = scheme, count
        for ending, (before, after) in _ENDS.items():
            if scheme.endswith(ending):
                numeral = NUMERALS[_NUMBERS.get(scheme.removesuffix(ending), "decimal")]
                return f"{before}{numeral(count)}{after}"
        return NUMERALS[_NUMBERS.get(scheme, "decimal")](count)

    def _run(self, element: Any) -> None:
        self._inside(element)
        link = child(element, "a:rPr", "a:hlinkClick")
        if link is None:
            return
        relation = self._package.relations(self._part).get(_reference(link))
        if relation is None or not relation.outside:
            return
        address = relation.target
        if drawn_text(element) not in (address, address.removeprefix("mailto:"), address.rstrip("/")):
            self._say(Aside(f" ({address[:ADDRESS_CHARS]})"))

    def _break(self, _element: Any) -> None:
        self._say("\n")

    # -- tables and objects -----------------------------------------------------------------------------------

    def _table(self, element: Any) -> None:
        self._emitted += 1
        if not self._full():
            rows = map(self._cells, children(element, "a:tr"))
            self._add(self._blocks, render_table(rows, self._budget))

    def _cells(self, row: Any) -> Iterable[str]:
        for cell in children(row, "a:tc")[: MAX_COLUMNS + 1]:
            outer, size = self._blocks, self._size
            self._blocks = []
            self._inside(cell)
            text = "\n".join(self._blocks)
            self._blocks, self._size = outer, size  # the table is counted as a whole
            yield text

    def _target(self, element: Any, attribute: str = "id") -> str:
        relation = self._package.relations(self._part).get(attribute_of(element, attribute))
        return relation.target if relation and not relation.outside else ""

    def _diagram(self, element: Any) -> None:
        lines = self._package.drawn_lines(self._target(element, "dm"), "a:p")
        if lines:
            self._emitted += 1
            self._add(self._blocks, "\n".join(lines))
        else:
            self._name("a diagram")

    def _embedded(self, element: Any) -> None:
        self._name("an embedded object", value_of(element, "progId") or attribute_of(element, "name"))

    _HANDLERS: ClassVar[dict[str, Callable[[_Reader, Any], None]]] = {
        "p:sp": _shape,
        "p:pic": _shape,
        "p:graphicFrame": _shape,
        "p:grpSp": _shape,
        "a:p": _paragraph,
        "a:r": _run,
        "a:br": _break,
        "a:tbl": _table,
        "c:chart": PartReader._chart,
        "dgm:relIds": _diagram,
        "p:oleObj": _embedded,
        "mc:AlternateContent": PartReader._alternatives,
    }
    """What each element gives that is more than its text."""


def _properties(shape: Any) -> Any:
    """Return the element with the name and description of a shape."""
    for each in shape:
        properties = child(each, "p:cNvPr")
        if properties is not None:
            return properties
    return None


def _placeholder(shape: Any) -> str | None:
    """Return for what of its layout a shape is, e.g. `title`; None: it is one of its own."""
    for each in shape:
        placeholder = child(each, "p:nvPr", "p:ph")
        if placeholder is not None:
            return value_of(placeholder, "type") or "body"
    return None
