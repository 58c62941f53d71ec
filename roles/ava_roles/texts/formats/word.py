"""Word documents: everything that a reader sees on the pages, in its order; what cannot be text is named.

`_TEXT`, `_FIXED`, `_BRACKETS`, `_SILENT`, `_NAMED` and `_Reader._HANDLERS` say what each element of the XML gives. One
that is in none of them gives what is inside it, so that the text of an unknown element is never lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

from ava_roles.texts.extracted import ALL, Extracted, Part, Wanted
from ava_roles.texts.formats.asides import Aside
from ava_roles.texts.formats.package import (
    OfficePackage,
    attribute_of,
    child,
    children,
    name_of,
    value_of,
)
from ava_roles.texts.formats.part_reader import (
    ADDRESS_CHARS,
    CUT,
    MOST_NAMED,
    NAME_CHARS,
    TEXT_CHARS,
    FlowReader,
)
from ava_roles.texts.formats.symbols import symbol_of, with_symbols
from ava_roles.texts.formats.word_lists import Lists, Style, Styles, heading_level, is_on
from ava_roles.texts.phrases import comment_text, count_phrase
from ava_roles.texts.web_page import MAX_COLUMNS, parsing, render_table

_LINK_PIECES = 100  # of the text of a link, to compare it with the address
_DIGITS = re.compile(r"[0-9]+")
_WORD_COLUMNS = 63  # the most that a table of Word has

_TEXT = frozenset({"w:t", "m:t", "a:t"})
_FIXED = {
    "w:tab": "\t",
    "w:ptab": "\t",
    "w:br": "\n",
    "w:cr": "\n",
    "a:br": "\n",
    "w:noBreakHyphen": "-",
}
_BRACKETS = {
    "w:rt": ("(", ")"),
    "a:p": ("", "\n"),
    "m:num": ("(", ")"),
    "m:den": ("/(", ")"),
    "m:sup": ("^(", ")"),
    "m:sub": ("_(", ")"),
    "m:deg": ("[", "]"),
    "m:rad": ("√(", ")"),
    "m:d": ("(", ")"),
    "m:mr": ("", "; "),
}
"""What is put before and after the text of an element, if it has any."""
_SILENT_NAMES = """
    w:pPr w:rPr w:tblPr w:tblPrEx w:tblGrid w:trPr w:tcPr w:sectPr w:sdtPr w:sdtEndPr w:customXmlPr w:smartTagPr
    w:rubyPr w:delText w:delInstrText w:moveFrom w:ffData w:fldData m:ctrlPr m:rPr a:rPr a:endParaRPr
"""
_SILENT = frozenset(_SILENT_NAMES.split())
_NAMED = {
    "w:altChunk": "an inserted file",
    "w:subDoc": "a part that is a file of its own",
    "w:control": "a control",
    "w:contentPart": "an ink drawing",
}
_LINK_FIELD = re.compile(r'\s*HYPERLINK\s+(?:"([^"]+)"|([^\s"\\]\S*))', re.IGNORECASE)
_NOTHING_SHOWN = frozenset(("XE", "TC", "TA", "RD", "SET", "ASK", "PRIVATE", "ADVANCE", "NEXT", "NEXTIF", "SKIPIF"))
"""Fields that have no result to show."""


@parsing("Word document")
def read_docx(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return a Word document as text: headings marked, tables as rows, in their order. Raises ToolFailed."""
    package = OfficePackage(data, "Word document", ".docx")
    reader = _Reader(package)
    parts = reader.read()
    return Extracted(tuple(parts), package.title(), len(parts), reader.missing())


@dataclass
class _Field:
    """A field whose end has not come yet: its instruction, and where its result begins.

    `said`: how many texts had been said when the result began.
    """

    instruction: list[str] = field(default_factory=list[str])
    has_result: bool = False
    is_form: bool = False
    paragraph: int = 0
    start: int = 0
    said: int = 0


class _Notes:
    """Footnotes, endnotes or comments: each is read once, in the order of the marks in the text."""

    def __init__(self, word: str, part: str, elements: dict[str, Any]) -> None:
        self.word, self.part, self.elements = word, part, elements
        self.numbers: dict[str, int] = {}

    def mark(self, note_id: str) -> str:
        number = self.numbers.setdefault(note_id, len(self.numbers) + 1)
        return f"[{self.word} {number}]"


class _Reader(FlowReader):
    """Walks through the parts of a document, and collects the text of each."""

    def __init__(self, package: OfficePackage) -> None:
        super().__init__(package, "w:document")
        self._styles = Styles(self._related_root("styles"))
        self._lists = Lists(self._related_root("numbering"))
        self._notes = {
            "w:footnoteReference": self._read_notes("footnote", "footnotes"),
            "w:endnoteReference": self._read_notes("endnote", "endnotes"),
            "w:commentReference": self._read_notes("comment", "comments"),
        }
        self._fields: list[_Field] = []
        self._is_hidden = False
        self._font = ""
        self._tables = 0
        self._in_object = False
        self._alternative = ""
        self._paragraphs = self._said = 0
        self._instructions = 0  # open fields whose result has not begun
        self._counts: Counter[str] = Counter()

    def read(self) -> list[Part]:
        parts = [Part("", self._story(self._main, self._root))]
        margins: list[str] = []
        headers = self._package.related(self._main, "header")
        footers = self._package.related(self._main, "footer")
        for part in [*headers, *footers]:
            root = self._package.root(part)
            if root is None:
                continue
            text = self._story(part, root)
            if text and text not in margins:
                margins.append(text)
        if margins:
            parts.append(Part("headers and footers", "\n\n".join(margins)))
        for notes in self._notes.values():
            text = "\n\n".join(self._note_texts(notes))
            if text:
                parts.append(Part(f"{notes.word}s", text))
        if self._cut:
            parts[-1] = Part(parts[-1].place, f"{parts[-1].text}\n\n{CUT}".strip())
        return parts

    def missing(self) -> tuple[str, ...]:
        """Return phrases on what is in the document and not in its text."""
        phrases = [count_phrase(count, noun) for noun, count in self._counts.items()]
        phrases += self._hidden_text("text") + self._named_objects()
        for number_format in sorted(self._lists.other_formats)[:MOST_NAMED]:
            phrases.append(f"numbers of lists as {number_format[:NAME_CHARS]} (shown as 1, 2, 3)")
        return (*phrases, *self._unread_parts())

    # -- parts ------------------------------------------------------------------------------------------------

    def _related_root(self, kind: str) -> Any:
        parts = self._package.related(self._main, kind)
        return self._package.root(parts[0]) if parts else None

    def _read_notes(self, word: str, kind: str) -> _Notes:
        parts = self._package.related(self._main, kind)
        if not parts:
            return _Notes(word, "", {})
        notes: dict[str, Any] = {}
        for each in children(self._package.root(parts[0]), f"w:{word}"):
            if value_of(each, "type") in (None, "normal"):
                notes[attribute_of(each, "id")] = each
        return _Notes(word, parts[0], notes)

    def _note_texts(self, notes: _Notes) -> Iterator[str]:
        for note_id in notes.elements:
            notes.mark(note_id)  # those without a mark in the text come last
        for note_id in notes.numbers:
            element = notes.elements[note_id]
            author = attribute_of(element, "author")
            text = self._story(notes.part, element)
            if text or notes.word == "comment":
                yield f"{notes.mark(note_id)} {comment_text(author[:NAME_CHARS], text)}"

    def _story(self, part: str, element: Any) -> str:
        """Return the text of a part, or of one note."""
        self._part = part
        return "\n\n".join(self._apart(element))

    def _apart(self, element: Any) -> list[str]:
        """Return the blocks of something that is separate from the paragraph around it, such as a text box."""
        outer = self._fields, self._instructions, self._is_hidden
        self._fields, self._instructions, self._is_hidden = [], 0, False
        blocks = self._blocks_of(element)
        if self._instructions:
            self._name("what follows the beginning of a field that has no end")
        self._fields, self._instructions, self._is_hidden = outer
        return blocks

    # -- the walk ---------------------------------------------------------------------------------------------

    def _inside(self, element: Any) -> None:
        for each in element:
            name = name_of(each)
            handler = self._HANDLERS.get(name)
            if handler is not None:
                handler(self, each)
            elif name in _TEXT:
                self._say(each.text or "")
            elif name in _FIXED:
                self._say(_FIXED[name])
            elif name in _BRACKETS:
                self._inside_brackets(each, *_BRACKETS[name])
            elif name in _NAMED:
                self._name(_NAMED[name], self._target(each))
            elif name not in _SILENT:
                self._inside(each)

    def _say(self, text: str) -> None:
        """Add text to the open paragraph, if it can be seen."""
        if not text:
            return
        self._emitted += 1
        if self._is_hidden:
            self._hidden_words += len(text.split())
        elif not self._instructions:
            self._said += 1
            if self._font and not isinstance(text, Aside):
                self._line.append(with_symbols(text, self._font))
            else:
                self._line.append(text)

    def _inside_brackets(self, element: Any, before: str, after: str) -> None:
        start, emitted = len(self._line), self._emitted
        self._inside(element)
        if self._emitted != emitted and len(self._line) > start:
            self._line.insert(start, before)
            self._line.append(after)

    def _target(self, element: Any, attribute: str = "id") -> str:
        """Return what an element refers to: a part of the file, or an address outside."""
        relation = self._package.relations(self._part).get(attribute_of(element, attribute))
        return relation.target[:ADDRESS_CHARS] if relation else ""

    # -- paragraphs -------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        if self._size > TEXT_CHARS or self._budget.late:
            self._cut = True
        return self._cut

    def _paragraph(self, element: Any) -> None:
        if self._is_full():
            return
        self._paragraphs += 1
        properties = child(element, "w:pPr")
        style_id = value_of(child(properties, "w:pStyle")) or self._styles.default
        style = self._styles.style(style_id)
        outer = self._is_hidden
        self._is_hidden = outer or style.hidden
        self._inside(element)
        self._is_hidden = outer
        if children(child(properties, "w:rPr"), "w:del", "w:moveFrom"):
            return  # the end of the paragraph is deleted: the next one continues it
        level = heading_level(properties)
        if level is None:
            level = style.heading
        self._end_paragraph(self._label(properties, style, style_id), level)

    def _label(self, properties: Any, style: Style, style_id: str | None) -> str:
        numbers = child(properties, "w:numPr")
        list_id = value_of(child(numbers, "w:numId")) or style.list_id
        if list_id is None or list_id == "0":
            return ""
        own = attribute_of(child(numbers, "w:ilvl"))
        if _DIGITS.fullmatch(own):
            level = int(own[:2])
        elif style.list_level is not None:
            level = style.list_level
        else:
            level = self._lists.level_of(list_id, style_id)
        label = self._lists.label(list_id, level)
        indent = "  " * min(level, 8)
        return f"{indent}{label} " if label else ""

    def _run(self, element: Any) -> None:
        properties = child(element, "w:rPr")
        if properties is None:
            self._inside(element)
            return
        outer_hidden, outer_font = self._is_hidden, self._font
        vanish = child(properties, "w:vanish")
        if vanish is not None:
            self._is_hidden = is_on(vanish)
        elif self._styles.style(value_of(child(properties, "w:rStyle"))).hidden:
            self._is_hidden = True
        self._font = attribute_of(child(properties, "w:rFonts"), "ascii")
        self._inside(element)
        self._is_hidden, self._font = outer_hidden, outer_font

    def _deletion(self, _element: Any) -> None:
        self._emitted += 1
        self._counts["tracked deletion"] += 1

    def _symbol(self, element: Any) -> None:
        code = attribute_of(element, "char")
        font = attribute_of(element, "font")
        try:
            sign = symbol_of(int(code, 16), font)
        except ValueError:
            sign = None
        if sign:
            self._say(sign)
        elif font:
            self._say(f"[sign {code[:8]} of {font[:50]}]")
        else:
            self._say(f"[sign {code[:8]} of a font]")

    def _ruby(self, element: Any) -> None:
        base, reading = child(element, "w:rubyBase"), child(element, "w:rt")  # in the file, the reading comes first
        if base is not None:
            self._inside(base)
        if reading is not None:
            self._inside_brackets(reading, *_BRACKETS["w:rt"])

    def _operator(self, element: Any) -> None:
        self._say(value_of(child(element, "m:naryPr", "m:chr")) or "∫")
        self._inside(element)

    def _note_mark(self, element: Any) -> None:
        note_id = attribute_of(element, "id")
        notes = self._notes[name_of(element)]
        if note_id not in notes.elements:
            self._name(f"a {notes.word} that is not in the file")
        elif notes.word == "comment":
            self._say(Aside(notes.mark(note_id)))
        else:
            self._say(notes.mark(note_id))

    # -- links and fields -------------------------------------------------------------------------------------

    def _link(self, element: Any) -> None:
        start = len(self._line)
        self._inside(element)
        address = self._target(element)
        if address:  # otherwise it leads to a place in the document
            self._say_address(address, start)

    def _say_address(self, address: str, start: int) -> None:
        """Add the address of a link whose words begin at `start`, unless they are the address."""
        words = "".join(self._line[start : start + _LINK_PIECES]).strip()
        if words not in (address, address.removeprefix("mailto:"), address.removesuffix("/")):
            if words:
                self._say(Aside(f" ({address[:ADDRESS_CHARS]})"))
            else:
                self._say(address[:ADDRESS_CHARS])

    def _field_mark(self, element: Any) -> None:
        kind = value_of(element, "fldCharType")
        if kind == "begin":
            form = child(element, "w:ffData")
            if form is not None:
                self._form_value(form)
            self._fields.append(_Field(is_form=form is not None))
            self._instructions += 1
            return
        if not self._fields:
            return
        innermost = self._fields[-1]
        if kind == "separate" and not innermost.has_result:
            self._begin_result(innermost)
            self._instructions -= 1
        elif kind == "end":
            self._fields.pop()
            if not innermost.has_result:
                self._instructions -= 1
            self._end_field(innermost)

    def _begin_result(self, of: _Field) -> None:
        of.has_result = True
        of.paragraph = self._paragraphs
        of.start = len(self._line)
        of.said = self._said

    def _instruction(self, element: Any) -> None:
        if self._fields and not self._fields[-1].has_result:
            self._fields[-1].instruction.append(element.text or "")

    def _simple_field(self, element: Any) -> None:
        simple = _Field([attribute_of(element, "instr")])
        self._begin_result(simple)
        self._inside(element)
        self._end_field(simple)

    def _end_field(self, field: _Field) -> None:
        instruction = "".join(field.instruction)
        words = instruction.split()
        name = ""
        if words:
            name = words[0].upper()
        link = _LINK_FIELD.match(instruction)
        if link:
            self._say_address(link[1] or link[2], self._result_start(field))
        elif name == "MACROBUTTON":
            self._say(" ".join(words[2:]))
        elif not self._instructions and not self._has_value(field):
            self._name_field(name)

    def _name_field(self, kind: str) -> None:
        if kind and kind not in _NOTHING_SHOWN:
            self._name("the value of a field", kind)

    def _result_start(self, of: _Field) -> int:
        """Return where the result of a field begins in the open paragraph; the paragraph's end without a result."""
        if not of.has_result:
            return len(self._line)
        return of.start if of.paragraph == self._paragraphs else 0

    def _has_value(self, of: _Field) -> bool:
        if of.is_form:
            return True
        return of.has_result and self._said > of.said

    def _form_value(self, form: Any) -> None:
        box, choices = child(form, "w:checkBox"), child(form, "w:ddList")
        if box is not None:
            state = child(box, "w:checked")
            if state is None:
                state = child(box, "w:default")
            if is_on(state):
                self._say("☒")
            else:
                self._say("☐")
        elif choices is not None:
            self._say(_chosen_entry(choices))

    # -- boxes, pictures and objects --------------------------------------------------------------------------

    def _box(self, element: Any) -> None:
        self._emitted += 1
        size = self._size
        self._after += self._apart(element)
        self._size = size  # it is counted where it is shown

    def _drawing(self, element: Any) -> None:
        properties = None
        for place in element:  # the drawing stands in the line, or is anchored
            properties = child(place, "wp:docPr")
            if properties is not None:
                break
        self._inside_alternative(element, value_of(properties, "descr") or attribute_of(properties, "title"))

    def _inside_alternative(self, element: Any, text: str) -> None:
        """Show the alternative text of an element, and read what is inside, which may repeat it."""
        outer, self._alternative = self._alternative, text
        self._describe(text)
        self._inside(element)
        self._alternative = outer

    def _describe(self, text: str) -> None:
        words = " ".join(text.split())
        if words:
            self._say(Aside(f"[picture: {words}]"))

    def _picture(self, element: Any) -> None:
        own = attribute_of(child(element, "pic:nvPicPr", "pic:cNvPr"), "descr")
        if own != self._alternative:
            self._describe(own)
        self._count_picture()

    def _count_picture(self) -> None:
        self._emitted += 1
        self._counts["picture"] += 1

    def _old_picture(self, element: Any) -> None:
        if not self._in_object:
            self._count_picture()
            title = attribute_of(element, "title")
            if title != self._alternative:
                self._describe(title)

    def _old_shape(self, element: Any) -> None:
        self._inside_alternative(element, attribute_of(element, "alt"))

    def _letters(self, element: Any) -> None:
        text = value_of(element, "string")
        if text:
            self._emitted += 1
            self._after.append(text)

    def _object(self, element: Any) -> None:
        outer, self._in_object = self._in_object, True
        self._inside(element)
        self._in_object = outer

    def _embedded(self, element: Any) -> None:
        self._name("an embedded object", value_of(element, "ProgID") or self._target(element))

    def _diagram(self, element: Any) -> None:
        lines = self._package.drawn_lines(self._target(element, "dm"), "a:p")
        if lines:
            self._emitted += 1
            self._after.append("\n".join(lines))
        else:
            self._name("a diagram")

    # -- tables -----------------------------------------------------------------------------------------------

    def _table(self, element: Any) -> None:
        self._end_paragraph()
        if self._cut:
            return
        rows = list(_rows(element))
        frame = _frame_cell(rows)
        if frame is not None:
            self._inside(frame)
            return
        self._tables += 1
        if self._tables == 1:
            text = render_table(map(self._cell_texts, rows), self._budget)
        else:
            lines: list[str] = []
            for row in rows:
                cells = [" ".join(cell.split()) for cell in self._cell_texts(row)]
                lines.append("; ".join(cells))
            text = " / ".join(lines)
        self._tables -= 1
        self._add(text)

    def _cell_texts(self, row: Any) -> Iterable[str]:
        for cell in islice(_cells(row), MAX_COLUMNS + 1):
            size = self._size
            yield "\n".join(self._blocks_of(cell))
            self._size = size  # the table is counted as a whole
            yield from [""] * _more_columns(cell)

    _HANDLERS: ClassVar[dict[str, Callable[[_Reader, Any], None]]] = {
        "w:p": _paragraph,
        "w:tbl": _table,
        "w:r": _run,
        "w:del": _deletion,
        "w:sym": _symbol,
        "w:ruby": _ruby,
        "m:nary": _operator,
        "w:footnoteReference": _note_mark,
        "w:endnoteReference": _note_mark,
        "w:commentReference": _note_mark,
        "w:hyperlink": _link,
        "w:fldChar": _field_mark,
        "w:instrText": _instruction,
        "w:fldSimple": _simple_field,
        "mc:AlternateContent": FlowReader._alternatives,
        "w:txbxContent": _box,
        "w:drawing": _drawing,
        "pic:pic": _picture,
        "v:imagedata": _old_picture,
        **dict.fromkeys(("v:shape", "v:rect", "v:roundrect", "v:oval", "v:group"), _old_shape),
        "v:textpath": _letters,
        "w:object": _object,
        "o:OLEObject": _embedded,
        "c:chart": FlowReader._chart,
        "dgm:relIds": _diagram,
    }
    """What each element gives that is more than its text."""


def _chosen_entry(choices: Any) -> str:
    """Return the entry of a list that is chosen, or else its default, or else the first."""
    number = value_of(child(choices, "w:result")) or value_of(child(choices, "w:default")) or "0"
    if not _DIGITS.fullmatch(number):
        return ""
    index = int(number[:4])
    entries = children(choices, "w:listEntry")
    if index >= len(entries):
        return ""
    return attribute_of(entries[index])


def _rows(table: Any) -> Iterator[Any]:
    for row in _below(table, "w:tr"):
        if child(row, "w:trPr", "w:del") is None:
            yield row


def _more_columns(cell: Any) -> int:
    """Return over how many columns a cell reaches besides its own, so that the next cells stand below their heads."""
    columns = value_of(child(cell, "w:tcPr", "w:gridSpan")) or ""
    if not _DIGITS.fullmatch(columns):
        return 0
    count = int(columns[:4])
    return count - 1 if 1 < count <= _WORD_COLUMNS else 0  # a greater claim is a lie


def _cells(row: Any) -> Iterator[Any]:
    """Yield a row's cells. A cell that spans columns comes once, whatever it claims."""
    for cell in _below(row, "w:tc"):
        if child(cell, "w:tcPr", "w:cellDel") is None:
            yield cell


def _frame_cell(rows: list[Any]) -> Any:
    """Return the only cell of a table that is a frame around a part of the document; None if it is a real table."""
    if len(rows) != 1:
        return None
    cells = list(_cells(rows[0]))
    if len(cells) != 1:
        return None
    blocks = children(cells[0], "w:p", "w:tbl", "w:sdt")
    return cells[0] if len(blocks) > 1 else None


_BETWEEN = frozenset({"w:sdt", "w:sdtContent", "w:customXml", "w:smartTag", "w:ins", "w:moveTo"})


def _below(element: Any, name: str) -> Iterator[Any]:
    """Yield the rows of a table, or the cells of a row, also those in a content control."""
    for each in element:
        own_name = name_of(each)
        if own_name == name:
            yield each
        elif own_name in _BETWEEN:
            yield from _below(each, name)
