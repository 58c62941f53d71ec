"""OpenDocument files: their parts, and the walk through their text, which letters, slides and sheets share.

`_FIXED`, `_SILENT`, `_NAMED` and `OpenReader._HANDLERS` say what each element of the XML gives. One that is in none of
them gives what is inside it, so that the text of an unknown element is never lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from ava_roles.errors import ToolFailed
from ava_roles.texts.extracted import Part
from ava_roles.texts.formats.asides import Aside
from ava_roles.texts.formats.opendocument_lists import OpenLists, OpenStyles, outline_level
from ava_roles.texts.formats.package import (
    OfficePackage,
    attribute_of,
    child,
    children,
    descendants,
    name_of,
    value_of,
    words_of,
)
from ava_roles.texts.formats.part_reader import ADDRESS_CHARS, CUT, NAME_CHARS, TEXT_CHARS, FlowReader
from ava_roles.texts.phrases import comment_text, count_phrase
from ava_roles.texts.web_page import MAX_COLUMNS, render_table

_MANIFEST = "META-INF/manifest.xml"
_EMPTY_LIBRARIES = ("script-lb.xml", "script-lc.xml", "dialog-lb.xml", "dialog-lc.xml")
_WHITE = re.compile(r"[ \t\r\n]+")
_DIGITS = re.compile(r"[0-9]+")
_MOST_SPACES = 1_000
_MOST_REPEATS = 1_000_000_000

_FIXED = {"text:tab": "\t", "text:line-break": "\n"}
_SILENT_NAMES = """
    office:forms office:event-listeners office:change-info office:binary-data office:annotation-end
    text:note-citation text:sequence-decls text:variable-decls text:user-field-decls text:dde-connection-decls
    text:alphabetical-index-auto-mark-file text:table-of-content-source text:illustration-index-source
    text:table-index-source text:object-index-source text:user-index-source text:alphabetical-index-source
    text:bibliography-source text:list-style
    dc:creator dc:date meta:creator-initials meta:date-string svg:title svg:desc
    draw:glue-point draw:image-map draw:contour-polygon draw:contour-path draw:enhanced-geometry
    draw:layer-set draw:page-thumbnail
    presentation:settings presentation:date-time-decl presentation:animations anim:par table:shadow
    table:table-column table:table-columns table:table-header-columns table:table-column-group table:table-source
"""
_SILENT = frozenset(_SILENT_NAMES.split())
_NAMED = {
    "text:script": "a script",
    "draw:applet": "a program (applet)",
    "draw:floating-frame": "a page in a frame",
    "dr3d:scene": "a drawing in three dimensions",
}
_SHAPES = """
    draw:caption draw:circle draw:connector draw:custom-shape draw:ellipse draw:line draw:measure draw:path draw:polygon
    draw:polyline draw:rect draw:regular-polygon draw:g
"""
_ROW_GROUPS = frozenset(("table:table-header-rows", "table:table-rows", "table:table-row-group"))
_CELLS = frozenset(("table:table-cell", "table:covered-table-cell"))
_OBJECTS = {"office:text": "document", "office:spreadsheet": "spreadsheet", "office:drawing": "drawing"}
_NOTES = ("footnote", "endnote", "comment")


class OpenPackage(OfficePackage):
    """The parts of an OpenDocument file."""

    def __init__(self, data: bytes, kind: str, suffix: str) -> None:
        """Raises ToolFailed if it is encrypted, no such file, or would take too much to read."""
        super().__init__(data, kind, suffix, has_doctypes=True)
        manifest = self.root_of(_MANIFEST)
        if "encrypted-package" in self.names or descendants(manifest, "manifest:encryption-data"):
            raise ToolFailed(f"this {kind} cannot be read: it is encrypted; ask for a copy without a password")

    def main(self, *names: str) -> tuple[str, Any]:
        """Return the content of the file, which must be of one of these kinds. Raises ToolFailed."""
        root = self.root_of("content.xml")
        if children(child(root, "office:body"), *names):
            return "content.xml", root
        raise ToolFailed("this file has no text of its kind: it is damaged, or has the name of another kind")

    def title(self) -> str | None:
        """Return the title that the file's properties name."""
        title = child(self.root_of("meta.xml"), "office:meta", "dc:title")
        return words_of(title)[:2_000] or None


@dataclass
class _Note:
    """A footnote, an endnote or a comment. Only a comment has an author."""

    author: str = ""
    text: str = ""


class OpenReader(FlowReader):
    """Walks through the text of an OpenDocument file."""

    def __init__(self, package: OpenPackage, main: str) -> None:
        super().__init__(package, main)
        self._body = child(self._root, "office:body", main)
        self._styles_root = package.root_of("styles.xml")
        self._styles = OpenStyles([self._styles_root, self._root])
        self._lists = OpenLists([self._styles_root, self._root])
        self._notes: dict[str, list[_Note]] = {word: [] for word in _NOTES}
        self._controls = _controls(self._root)
        self._paragraphs = 0  # how many are open
        self._is_hidden = self._is_title = False
        self._tables = 0
        self._counts: Counter[str] = Counter()

    # -- parts ------------------------------------------------------------------------------------------------

    def margins(self) -> str:
        """Return the headers and footers of the pages, each once."""
        texts: dict[str, None] = {}
        for page in self.master_pages():
            for each in self.margins_of(page):
                texts["\n\n".join(self._apart(each))] = None
        return "\n\n".join(filter(None, texts))

    def margins_of(self, page: Any) -> Iterator[Any]:
        """Yield the headers and footers of a page that are shown; `page` is one of `master_pages`."""
        for each in page:
            is_margin = name_of(each).startswith(("style:header", "style:footer"))
            if is_margin and value_of(each, "display") != "false":
                yield each

    def master_pages(self) -> list[Any]:
        return children(child(self._styles_root, "office:master-styles"), "style:master-page")

    def note_parts(self) -> Iterator[Part]:
        """Yield a part for each kind of note that the text has."""
        for word, notes in self._notes.items():
            texts: list[str] = []
            for number, note in enumerate(notes, 1):
                texts.append(f"[{word} {number}] {comment_text(note.author, note.text)}".rstrip())
            if texts:
                yield Part(f"{word}s", "\n\n".join(texts))

    def with_cut(self, parts: list[Part]) -> list[Part]:
        """Return the parts, and a line at their end if the text was cut."""
        return [*parts, Part("", CUT)] if self._cut else parts

    def missing(self) -> tuple[str, ...]:
        """Return sentences on what is in the file and not in its text."""
        counts = [count_phrase(count, noun) for noun, count in self._counts.items()]
        return (*counts, *self._hidden_text("text"), *self._named_objects(), *self._unread_parts())

    def _unread_parts(self) -> list[str]:
        unread = super()._unread_parts()
        for name in self._package.names:
            if name.startswith(("Basic/", "Scripts/")) and not name.endswith(("/", *_EMPTY_LIBRARIES)):
                return ["macros", *unread]
        return unread

    # -- the walk ---------------------------------------------------------------------------------------------

    def _inside(self, element: Any) -> None:
        self._say(element.text)
        for each in element:
            self._element(each)
            self._say(each.tail)

    def _element(self, element: Any) -> None:
        name = name_of(element)
        handler = self._HANDLERS.get(name)
        if handler is not None:
            handler(self, element)
        elif name in _FIXED:
            self._put(_FIXED[name])
        elif name in _NAMED:
            self._name(_NAMED[name], self._target(element, "href"))
        elif name and name not in _SILENT:
            self._inside(element)

    def _say(self, written: str | None) -> None:
        """Add text of the XML: several blanks become one, and blanks between paragraphs are dropped."""
        if not written:
            return
        if written.isspace() and not self._paragraphs:
            return
        text = _WHITE.sub(" ", written)
        last = self._line[-1][-1:] if self._line else " "
        if last in " \t\n":
            text = text.removeprefix(" ")
        self._put(text)

    def _put(self, text: str) -> None:
        if not text:
            return
        self._emitted += 1
        if self._is_hidden:
            self._hidden_words += len(text.split())
        else:
            self._line.append(text)

    def _target(self, element: Any, attribute: str = "id") -> str:
        return attribute_of(element, attribute)[:ADDRESS_CHARS]

    def _apart(self, element: Any) -> list[str]:
        """Return the blocks of something that is separate from the paragraph around it, such as a text box."""
        outer = self._paragraphs, self._is_hidden, self._lists.open
        self._paragraphs, self._is_hidden, self._lists.open = 0, False, []
        blocks = self._blocks_of(element)
        self._paragraphs, self._is_hidden, self._lists.open = outer
        return blocks

    def _full(self) -> bool:
        if self._size >= TEXT_CHARS or self._budget.late:
            self._cut = True
        return self._cut

    # -- paragraphs -------------------------------------------------------------------------------------------

    def _paragraph(self, element: Any) -> None:
        if self._full():
            return
        if not self._paragraphs:
            self._end_paragraph()  # text that stood outside of any
        style = self._styles.style(value_of(element, "style-name"))
        is_heading = name_of(element) == "text:h"
        level = outline_level(element) if is_heading else style.heading
        if is_heading and not self._lists.open:
            label = self._lists.label_of_heading(level)
        else:
            label = self._lists.label()

        self._paragraphs += 1
        self._inside_hidden(element, style.hidden or _is_true(element, "is-hidden"))
        self._paragraphs -= 1
        if not self._paragraphs:
            if self._is_title:
                level = 1
            self._end_paragraph(label, min(level, 6))

    def _inside_hidden(self, element: Any, is_hidden: bool) -> None:
        """Read what is inside an element, which may be hidden or stand in something hidden."""
        outer = self._is_hidden
        self._is_hidden = outer or is_hidden
        self._inside(element)
        self._is_hidden = outer

    def _list(self, element: Any) -> None:
        with self._lists.within(element):
            self._inside(element)

    def _item(self, element: Any) -> None:
        self._lists.begin_item(element)
        self._inside(element)

    def _section(self, element: Any) -> None:
        source = child(element, "text:section-source")
        if source is not None and value_of(source, "href"):
            self._name("a section that comes from another file", self._target(source, "href"))
        is_hidden = value_of(element, "display") == "none" or _is_true(element, "is-hidden")
        self._inside_hidden(element, is_hidden)

    def _span(self, element: Any) -> None:
        style = self._styles.style(value_of(element, "style-name"))
        self._inside_hidden(element, style.hidden)

    def _spaces(self, element: Any) -> None:
        self._put(" " * min(count_of(element, "c"), _MOST_SPACES))

    def _hidden_string(self, element: Any) -> None:
        """Read a text that a condition hides; an attribute has it too."""
        if _is_true(element, "is-hidden"):
            self._emitted += 1
            self._hidden_words += len(attribute_of(element, "string-value").split())
        else:
            self._inside(element)

    def _ruby_text(self, element: Any) -> None:
        start = len(self._line)
        self._inside(element)
        if len(self._line) > start:
            self._line.insert(start, "(")
            self._line.append(")")

    def _link(self, element: Any) -> None:
        start = len(self._line)
        self._inside(element)
        words = "".join(self._line[start : start + 100]).strip()
        address = self._target(element, "href")
        if not address or address.startswith("#"):
            return
        if words not in (address, address.removeprefix("mailto:"), address.rstrip("/")):
            if words:
                self._put(Aside(f" ({address})"))
            else:
                self._put(address)

    def _changes(self, element: Any) -> None:
        """Count what is deleted, and leave it out; what is inserted is in the text."""
        for each in element.iter():
            name = name_of(each)
            if name in ("text:deletion", "table:deletion"):
                self._counts["tracked deletion"] += 1
            elif name == "table:cell-content-change":
                self._counts["earlier content of a cell"] += 1
            elif name == "office:change-info" and child(each, "text:p") is not None:
                self._counts["comment on a tracked change"] += 1

    # -- notes ------------------------------------------------------------------------------------------------

    def _footnote(self, element: Any) -> None:
        word = "endnote" if value_of(element, "note-class") == "endnote" else "footnote"
        body = child(element, "text:note-body")
        if body is None or self._full():
            return
        note = _Note()
        self._notes[word].append(note)
        self._put(f"[{word} {len(self._notes[word])}]")
        note.text = "\n\n".join(self._apart(body))

    def _comment(self, element: Any) -> None:
        if self._full():
            return
        note = _Note()
        self._notes["comment"].append(note)
        self._put(Aside(f"[comment {len(self._notes['comment'])}]"))
        note.author, note.text = self._read_comment(element)

    def _read_comment(self, comment: Any) -> tuple[str, str]:
        """Return who wrote a comment, and its text."""
        author = words_of(child(comment, "dc:creator"))[:NAME_CHARS]
        return author, "\n\n".join(self._apart(comment))

    # -- drawings ---------------------------------------------------------------------------------------------

    def _frame(self, element: Any) -> None:
        """Read the first form of what a frame shows that gives anything; the others show the same."""
        outer, self._is_title = self._is_title, value_of(element, "class") == "title"
        self._describe(element, "picture")
        for each in element:
            before = self._emitted
            if name_of(each) not in _SILENT:
                self._element(each)
            if self._emitted != before:
                break
        self._is_title = outer

    def _shape(self, element: Any) -> None:
        self._describe(element, "shape")
        self._box(element)

    def _describe(self, element: Any, what: str) -> None:
        texts: dict[str, None] = {}
        for name in ("svg:title", "svg:desc"):
            texts[words_of(child(element, name))] = None
        words = ": ".join(texts).strip(": ")
        if words:
            self._add_beside([f"[{what}: {words}]"])

    def _box(self, element: Any) -> None:
        outer = self._size
        blocks = self._apart(element)
        self._size = outer  # they are counted where they are shown
        if blocks:
            self._emitted += 1
            if self._joins_lines:
                self._add_beside(["\n".join(blocks)])
            else:
                self._add_beside(blocks)

    _joins_lines = False
    """The lines of a box belong together, as on a slide."""

    def _add_beside(self, blocks: Iterable[str]) -> None:
        """Add blocks below the paragraph that is open, or here."""
        if self._paragraphs:
            self._after += blocks
        else:
            for each in blocks:
                self._add(each)

    def _picture(self, element: Any) -> None:
        self._box(element)
        self._emitted += 1
        self._counts["picture"] += 1

    def _media(self, element: Any) -> None:
        self._name("a video, sound or other program's content", self._target(element, "href"))

    def _object(self, element: Any) -> None:
        """Read an embedded formula; name another object."""
        part = self._target(element, "href").removeprefix("./").rstrip("/")
        inner = children(element, "math:math", "office:document")
        root = inner[0] if inner else self._package.root_of(f"{part}/content.xml")
        if root is None:
            self._name("an embedded object", part)
        elif name_of(root) == "math:math":
            self._formula(root)
        else:
            self._name_object(root, part)

    def _name_object(self, root: Any, part: str) -> None:
        body = child(root, "office:body")
        kind = ""
        if body is not None and len(body):
            kind = name_of(body[0])
        if kind == "office:chart":
            self._name("a chart", _first_text(body, "chart:title"))
        else:
            self._name("an embedded object", _OBJECTS.get(kind, part))

    def _formula(self, element: Any) -> None:
        text = " ".join(_first_text(element, "math:annotation").split())
        if not text:
            text = " ".join(_formula_text(element).split())
        if not text:
            return
        if self._paragraphs:
            self._put(text)
        else:
            self._emitted += 1
            self._add(text)

    def _control(self, element: Any) -> None:
        text = self._controls.get(attribute_of(element, "control"), "")
        self._emitted += 1
        if text:
            self._add_beside([text])
        else:
            self._counts["form control without a value"] += 1

    # -- tables -----------------------------------------------------------------------------------------------

    def _table(self, element: Any) -> None:
        if not self._paragraphs:
            self._end_paragraph()
        if self._full():
            return
        self._emitted += 1
        outer = self._paragraphs, self._lists.open
        self._paragraphs, self._lists.open = 0, []
        self._tables += 1
        if self._tables == 1:
            text = render_table(map(self._cell_texts, self._rows(element)), self._budget)
        else:
            lines: list[str] = []
            for row in self._rows(element):
                cells = [" ".join(cell.split()) for cell in self._cell_texts(row)]
                lines.append("; ".join(cells))
            text = " / ".join(lines)
        self._tables -= 1
        self._paragraphs, self._lists.open = outer
        self._add_beside([text])

    def _rows(self, table: Any) -> Iterator[Any]:
        """Yield the rows of a table in a text; one that is repeated comes once, which is said."""
        for row in rows_of(table):
            if count_of(row, "number-rows-repeated") > 1 and any(each.strip() for each in row.itertext()):
                self._name("a row of a table that comes several times, and is shown once")
            yield row

    def _cell_texts(self, row: Any) -> Iterator[str]:
        cells = (each for each in row if name_of(each) in _CELLS)
        for cell in islice(cells, MAX_COLUMNS + 1):
            text = ""
            if name_of(cell) == "table:table-cell":
                size = self._size
                text = "\n".join(self._blocks_of(cell))
                self._size = size  # the table is counted as a whole
            repeats = 1
            if self._tables == 1:  # a table within a cell shows each of its cells once
                repeats = count_of(cell, "number-columns-repeated")
            yield from [text] * min(repeats, MAX_COLUMNS + 1)

    _HANDLERS: ClassVar[dict[str, Callable[[OpenReader, Any], None]]] = {
        "text:p": _paragraph,
        "text:h": _paragraph,
        "text:list": _list,
        "text:list-item": _item,
        "text:section": _section,
        "text:span": _span,
        "text:s": _spaces,
        "text:hidden-text": _hidden_string,
        "text:hidden-paragraph": _hidden_string,
        "text:ruby-text": _ruby_text,
        "text:a": _link,
        "draw:a": _link,
        "text:tracked-changes": _changes,
        "table:tracked-changes": _changes,
        "text:note": _footnote,
        "office:annotation": _comment,
        "officeooo:annotation": _comment,
        "draw:frame": _frame,
        **dict.fromkeys(_SHAPES.split(), _shape),
        "draw:text-box": _box,
        "draw:image": _picture,
        "draw:plugin": _media,
        "draw:object": _object,
        "draw:object-ole": _object,
        "math:math": _formula,
        "draw:control": _control,
        "table:table": _table,
    }
    """What each element gives that is more than its text."""


def count_of(element: Any, name: str) -> int:
    """Return how often something is repeated, or how far it spans: 1 to a billion."""
    written = attribute_of(element, name)
    if not _DIGITS.fullmatch(written):
        return 1
    return max(1, min(int(written[:10]), _MOST_REPEATS))


def _is_true(element: Any, name: str) -> bool:
    return value_of(element, name) == "true"


def _first_text(element: Any, name: str) -> str:
    """Return the text of the first element with a name below an element; empty without one."""
    for inner in descendants(element, name):
        return "".join(inner.itertext())
    return ""


def rows_of(table: Any) -> Iterator[Any]:
    """Yield the rows of a table, also those of groups."""
    for each in table:
        name = name_of(each)
        if name == "table:table-row":
            yield each
        elif name in _ROW_GROUPS:
            yield from rows_of(each)


# What stands before, between and after the parts of an element of a formula.
_MATH_SIGNS = {
    "math:mfrac": ("(", ")/(", ")"),
    "math:msup": ("", "^(", ")"),
    "math:msub": ("", "_(", ")"),
    "math:msubsup": ("", ",", ""),
    "math:munder": ("", "_(", ")"),
    "math:mover": ("", "^(", ")"),
    "math:msqrt": ("√(", " ", ")"),
    "math:mroot": ("root(", ";", ")"),
    "math:mtr": ("", "; ", ""),
}


def _formula_text(element: Any) -> str:
    """Return a formula of MathML on one line."""
    name = name_of(element)
    if name.startswith("math:annotation") or not name:
        return ""
    before, between, after = _MATH_SIGNS.get(name, ("", "", ""))
    inner = between.join(_formula_text(each) for each in element)
    return f"{before}{(element.text or '').strip()}{inner}{after}"


def _controls(root: Any) -> dict[str, str]:
    """Return what each control of the forms shows, by its id."""
    texts: dict[str, str] = {}
    for form in descendants(root, "office:forms"):
        for control in form.iter():
            control_id = value_of(control, "id")
            if not control_id:
                continue
            text = _control_text(control)
            if text is not None:
                texts[control_id] = text
    return texts


def _control_text(control: Any) -> str | None:
    """Return what a control shows; None for one that is hidden."""
    kind = name_of(control).removeprefix("form:")
    label = value_of(control, "label") or attribute_of(control, "name")
    if kind == "hidden":
        return None
    if kind in ("button", "fixed-text", "image", "frame"):
        return label
    if kind in ("checkbox", "radio"):
        sign = "☒" if _is_checked(control) else "☐"
        return f"{sign} {label}"
    return f"[field {label}] {_field_value(control)}"


def _is_checked(control: Any) -> bool:
    if _is_true(control, "current-selected"):
        return True
    state = value_of(control, "current-state") or value_of(control, "state")
    return state == "checked"


def _field_value(control: Any) -> str:
    """Return the chosen options of a control, or its value, or the paragraphs in it."""
    choices: list[str] = []
    for option in children(control, "form:option", "form:item"):
        if _is_true(option, "current-selected"):
            choices.append(attribute_of(option, "label"))
    choice = ", ".join(choices)
    if choice:
        return choice
    value = value_of(control, "current-value") or value_of(control, "value")
    if value:
        return value
    paragraphs = ["".join(each.itertext()) for each in children(control, "text:p")]
    return "\n".join(paragraphs) or "(empty)"
