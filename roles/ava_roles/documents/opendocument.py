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

from ava_roles.documents.opendocument_lists import OpenLists, OpenStyles, outline_level
from ava_roles.documents.package import OfficePackage, child, name_of, value_of
from ava_roles.documents.part_reader import ADDRESS_CHARS, CUT, NAME_CHARS, TEXT_CHARS, FlowReader
from ava_roles.errors import ToolFailed
from ava_roles.tools.extracted import Part
from ava_roles.tools.pages import MAX_COLUMNS, render_table

_MANIFEST = "META-INF/manifest.xml"
_EMPTY_LIBRARIES = ("script-lb.xml", "script-lc.xml", "dialog-lb.xml", "dialog-lc.xml")
_WHITE = re.compile(r"[ \t\r\n]+")
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
        """Raises ToolFailed: it is encrypted, no such file, or would take too much to read."""
        super().__init__(data, kind, suffix, has_doctypes=True)
        manifest = self.root(_MANIFEST) if _MANIFEST in self.names else None
        entries = () if manifest is None else manifest.iter()
        if "encrypted-package" in self.names or any(name_of(each) == "manifest:encryption-data" for each in entries):
            raise ToolFailed(f"this {kind} cannot be read: it is encrypted; ask for a copy without a password")

    def main(self, *names: str) -> tuple[str, Any]:
        """Return the content of the file, which must be of one of these kinds. Raises ToolFailed."""
        root = self.root("content.xml") if "content.xml" in self.names else None
        body = child(root, "office:body")
        for each in () if body is None else body:
            if name_of(each) in names:
                return "content.xml", root
        raise ToolFailed("this file has no text of its kind: it is damaged, or has the name of another kind")

    def title(self) -> str | None:
        """Return the title that the file's properties name."""
        found = child(self.root("meta.xml"), "office:meta", "dc:title") if "meta.xml" in self.names else None
        return " ".join((found.text or "").split())[:2_000] or None if found is not None else None


@dataclass
class _Note:
    """A footnote, an endnote or a comment: its text, and for a comment who wrote it."""

    author: str = ""
    text: str = ""


class OpenReader(FlowReader):
    """Walks through the text of an OpenDocument file."""

    def __init__(self, package: OpenPackage, main: str) -> None:
        super().__init__(package, main)
        self._body = child(self._root, "office:body", main)
        self._styles_root = package.root("styles.xml") if "styles.xml" in package.names else None
        self._styles = OpenStyles([self._styles_root, self._root])
        self._lists = OpenLists([self._styles_root, self._root])
        self._notes: dict[str, list[_Note]] = {word: [] for word in _NOTES}
        self._controls = dict(_controls(self._root))
        self._paragraphs = 0  # that are open
        self._hidden = self._is_title = False
        self._tables = 0
        self._counts: Counter[str] = Counter()

    # -- parts ------------------------------------------------------------------------------------------------

    def margins(self) -> str:
        """Return the headers and footers of the pages, each once."""
        found: dict[str, None] = {}
        for page in self.master_pages():
            for each in page:
                name = name_of(each)
                if name.startswith(("style:header", "style:footer")) and value_of(each, "display") != "false":
                    found["\n\n".join(self._apart(each))] = None
        return "\n\n".join(filter(None, found))

    def master_pages(self) -> list[Any]:
        masters = child(self._styles_root, "office:master-styles")
        return [each for each in (() if masters is None else masters) if name_of(each) == "style:master-page"]

    def note_parts(self) -> Iterator[Part]:
        """Yield a part for each kind of note that the text has."""
        for word, notes in self._notes.items():
            texts = [
                f"[{word} {number}] {note.author}{': ' * bool(note.author)}{note.text}".rstrip()
                for number, note in enumerate(notes, 1)
            ]
            if texts:
                yield Part(f"{word}s", "\n\n".join(texts))

    def with_cut(self, parts: list[Part]) -> list[Part]:
        """Return the parts with a line at their end if not all of them was read."""
        return [*parts, Part("", CUT)] if self._cut else parts

    def missing(self) -> tuple[str, ...]:
        """Return sentences on what is in the file and not in its text."""
        said = [f"{count:,} {what}{'s' * (count > 1)}" for what, count in self._counts.items()]
        return (*said, *self._hidden_text("text"), *self._named_objects(), *self._unread_parts())

    def _unread_parts(self) -> list[str]:
        names = [name for name in self._package.names if name.startswith(("Basic/", "Scripts/"))]
        has_macros = any(not name.endswith(("/", *_EMPTY_LIBRARIES)) for name in names)
        return ["macros"] * has_macros + super()._unread_parts()

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
        """Add text as it stands in the XML: blanks count once, and between paragraphs not at all."""
        if written and (self._paragraphs or not written.isspace()):
            text = _WHITE.sub(" ", written)
            last = self._line[-1][-1:] if self._line else " "
            self._put(text[1:] if text[0] == " " and last in " \t\n" else text)

    def _put(self, text: str) -> None:
        if not text:
            return
        self._emitted += 1
        if self._hidden:
            self._hidden_words += len(text.split())
        else:
            self._line.append(text)

    def _target(self, element: Any, attribute: str = "id") -> str:
        return (value_of(element, attribute) or "")[:ADDRESS_CHARS]

    def _apart(self, element: Any) -> list[str]:
        """Return the blocks of something that stands apart from the paragraph around it, such as a text box."""
        outer = self._paragraphs, self._hidden, self._lists.open
        self._paragraphs, self._hidden, self._lists.open = 0, False, []
        blocks = self._blocks_of(element)
        self._paragraphs, self._hidden, self._lists.open = outer
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
        outer = self._hidden
        hidden = value_of(element, "is-hidden") == "true"
        self._hidden = outer or style.hidden or hidden
        label = self._lists.label_of_heading(level) if is_heading and not self._lists.open else self._lists.label()
        self._paragraphs += 1
        self._inside(element)
        self._paragraphs -= 1
        self._hidden = outer
        if not self._paragraphs:
            self._end_paragraph(label, 1 if self._is_title else min(level, 6))

    def _list(self, element: Any) -> None:
        with self._lists.within(element):
            self._inside(element)

    def _item(self, element: Any) -> None:
        self._lists.begin_item(element)
        self._inside(element)

    def _section(self, element: Any) -> None:
        outer = self._hidden
        self._hidden = outer or value_of(element, "display") == "none" or value_of(element, "is-hidden") == "true"
        source = child(element, "text:section-source")
        if source is not None and value_of(source, "href"):
            self._name("a section that comes from another file", self._target(source, "href"))
        self._inside(element)
        self._hidden = outer

    def _span(self, element: Any) -> None:
        outer = self._hidden
        self._hidden = outer or self._styles.style(value_of(element, "style-name")).hidden
        self._inside(element)
        self._hidden = outer

    def _spaces(self, element: Any) -> None:
        self._put(" " * min(count_of(element, "c"), _MOST_SPACES))

    def _hidden_string(self, element: Any) -> None:
        """Read a text that a condition hides; it stands in an attribute too."""
        if value_of(element, "is-hidden") == "true":
            self._emitted += 1
            self._hidden_words += len((value_of(element, "string-value") or "").split())
        else:
            self._inside(element)

    def _ruby_text(self, element: Any) -> None:
        at = len(self._line)
        self._inside(element)
        if len(self._line) > at:
            self._line.insert(at, "(")
            self._line.append(")")

    def _link(self, element: Any) -> None:
        at = len(self._line)
        self._inside(element)
        address = self._target(element, "href")
        shown = "".join(self._line[at : at + 100]).strip()
        if not address or address.startswith("#") or shown in (address, address.removeprefix("mailto:")):
            return
        if shown != address.rstrip("/"):
            self._put(f" ({address})" if shown else address)

    def _changes(self, element: Any) -> None:
        """Leave out what is deleted, and say so; what is inserted stands in the text."""
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
        self._put(f"[comment {len(self._notes['comment'])}]")
        note.author, note.text = self._said_in(element)

    def _said_in(self, comment: Any) -> tuple[str, str]:
        """Return who wrote a comment, and its text."""
        author = child(comment, "dc:creator")
        name = " ".join((author.text or "").split()) if author is not None else ""
        return name[:NAME_CHARS], "\n\n".join(self._apart(comment))

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
        said = [child(element, "svg:title"), child(element, "svg:desc")]
        words = ": ".join(dict.fromkeys(" ".join((each.text or "").split()) for each in said if each is not None))
        if words.strip(": "):
            self._add_beside([f"[{what}: {words.strip(': ')}]"])

    def _box(self, element: Any) -> None:
        outer = self._size
        blocks = self._apart(element)
        self._size = outer  # they are counted where they are shown
        if blocks:
            self._emitted += 1
            self._add_beside(["\n".join(blocks)] if self._joins_lines else blocks)

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
        inner = next((each for each in element if name_of(each) in ("math:math", "office:document")), None)
        part = self._target(element, "href").removeprefix("./").rstrip("/")
        if inner is None and f"{part}/content.xml" in self._package.names:
            inner = self._package.root(f"{part}/content.xml")
        if inner is not None and name_of(inner) == "math:math":
            self._formula(inner)
            return
        body = child(inner, "office:body")
        content = body[0] if body is not None and len(body) else None
        kind = "" if content is None else name_of(content)
        if content is not None and kind == "office:chart":
            title = next((each for each in content.iter() if name_of(each) == "chart:title"), None)
            self._name("a chart", "".join(title.itertext()) if title is not None else "")
        else:
            self._name("an embedded object", _OBJECTS.get(kind, part))

    def _formula(self, element: Any) -> None:
        note = next((each for each in element.iter() if name_of(each) == "math:annotation"), None)
        text = " ".join("".join(note.itertext()).split()) if note is not None else ""
        text = text or " ".join(_formula_text(element).split())
        if text and self._paragraphs:
            self._put(text)
        elif text:
            self._emitted += 1
            self._add(text)

    def _control(self, element: Any) -> None:
        text = self._controls.get(value_of(element, "control") or "", "")
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
            rows = (map(" ".join, map(str.split, self._cell_texts(row))) for row in self._rows(element))
            text = " / ".join("; ".join(cells) for cells in rows)
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
            repeats = count_of(cell, "number-columns-repeated") if self._tables == 1 else 1
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
    written = value_of(element, name) or ""
    if not (written.isascii() and written.isdecimal()):
        return 1
    return max(1, min(int(written[:10]), _MOST_REPEATS))


def rows_of(table: Any) -> Iterator[Any]:
    """Yield the rows of a table, also those of groups."""
    for each in table:
        name = name_of(each)
        if name == "table:table-row":
            yield each
        elif name in _ROW_GROUPS:
            yield from rows_of(each)


_AROUND = {
    "math:mfrac": ("(", ")/(", ")"),
    "math:msup": ("", "^(", ")"),
    "math:msub": ("", "_(", ")"),
    "math:msubsup": ("", ",", ""),
    "math:munder": ("", "_(", ")"),
    "math:mover": ("", "^(", ")"),
    "math:msqrt": ("√(", " ", ")"),
    "math:mroot": ("root(", ";", ")"),
}


def _formula_text(element: Any) -> str:
    """Return a formula of MathML on one line."""
    name = name_of(element)
    if name.startswith("math:annotation") or not name:
        return ""
    before, between, after = _AROUND.get(name, ("", "; " if name == "math:mtr" else "", ""))
    inner = between.join(_formula_text(each) for each in element)
    return f"{before}{(element.text or '').strip()}{inner}{after}"


def _controls(root: Any) -> Iterator[tuple[str, str]]:
    """Yield the controls of forms by their ids, with what they show."""
    forms = [each for each in root.iter() if name_of(each) == "office:forms"]
    for control in (each for form in forms for each in form.iter()):
        identity = value_of(control, "id")
        if not identity:
            continue
        kind = name_of(control).removeprefix("form:")
        label = value_of(control, "label") or value_of(control, "name") or ""
        state = value_of(control, "current-state") or value_of(control, "state") or ""
        value = value_of(control, "current-value") or value_of(control, "value") or ""
        options = [each for each in control if name_of(each) in ("form:option", "form:item")]
        chosen = [value_of(each, "label") or "" for each in options if value_of(each, "current-selected") == "true"]
        text = "\n".join("".join(each.itertext()) for each in control if name_of(each) == "text:p")
        if kind in ("checkbox", "radio"):
            is_on = state == "checked" or value_of(control, "current-selected") == "true"
            yield identity, f"{'☒' if is_on else '☐'} {label}"
        elif kind in ("button", "fixed-text", "image", "frame"):
            yield identity, label
        elif kind != "hidden":
            yield identity, f"[field {label}] {', '.join(chosen) or value or text or '(empty)'}"
