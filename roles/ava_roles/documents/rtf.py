r"""RTF files: what a reader sees on the pages, in its order; what cannot be text is named.

The file is read once from its beginning to its end, with a state for each open group. `_SKIPPED` names destinations
that hold no text; one that begins with `\*` and is not known is left out, as the format asks for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ava_roles.documents.part_reader import ADDRESS_CHARS, CUT, MOST_NAMED, NAME_CHARS, TEXT_CHARS
from ava_roles.documents.phrases import comment_text, count_phrase, object_phrases
from ava_roles.documents.symbols import symbol_of, with_symbols
from ava_roles.errors import ToolFailed
from ava_roles.tools.extracted import ALL, OLE_MAGIC, Extracted, Part, Wanted
from ava_roles.tools.pages import MAX_COLUMNS, TableBudget, parsing, render_table

_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,40})(-?[0-9]{1,9})?+[0-9]*+ ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|[\r\n]++|([^\\{}\r\n]++)|\\"
)
_MAX_DEPTH = 5_000
_TOKENS_BETWEEN_CHECKS = 4_096
_MOST_ROWS = 20_000
_CAPTURED_CHARS = 10_000

_FIXED = {
    "tab": "\t",
    "line": "\n",
    "lbr": "\n",
    "emdash": "—",
    "endash": "–",
    "bullet": "•",
    "lquote": "‘",
    "rquote": "’",
    "ldblquote": "“",
    "rdblquote": "”",
    "emspace": " ",
    "enspace": " ",
    "qmspace": " ",
}
_SIGNS = {b"~": "\xa0", b"_": "-", b"\\": "\\", b"{": "{", b"}": "}"}
_PARAGRAPH_ENDS = frozenset(("par", "sect", "page", "column"))
_SKIPPED_NAMES = """
    colortbl listtable listoverridetable revtbl rsidtbl generator filetbl nonshppict nonesttables pgdsctbl private
    themedata colorschememapping datastore latentstyles xmlnstbl mmathPr pn pntxta pntxtb pnseclvl bkmkstart bkmkend
    atnid atnref atndate atntime atnparent atrfstart atrfend atnicn ftnsep ftnsepc ftncn aftnsep aftnsepc aftncn
    objdata objname objalias objsect objtime datafield background template xe tc rxe
    userprops docvar blipuid defchp defpap wgrffmtfilter falt panose fname fontemb
"""
_SKIPPED = frozenset(_SKIPPED_NAMES.split())
_KNOWN_NAMES = "shpinst shppict picprop do nesttableprops ud footnote annotation shptxt momath momathPara formfield"
_KNOWN = frozenset(_KNOWN_NAMES.split())
_MARGINS = frozenset("header headerl headerr headerf footer footerl footerr footerf".split())  # noqa: SIM905
_NOTHING_SHOWN = frozenset(("XE", "TC", "TA", "RD", "SET", "ASK", "PRIVATE", "ADVANCE", "NEXT", "NEXTIF", "SKIPIF"))
_LINK_FIELD = re.compile(r'\s*HYPERLINK\s+(?:\\l\s+"[^"]*"|"([^"]+)"|([^\s"\\]\S*))', re.IGNORECASE)
_CHARSETS = {
    0: "cp1252", 77: "mac_roman", 128: "cp932", 129: "cp949", 130: "johab", 134: "gb18030", 136: "cp950",
    161: "cp1253", 162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251",
    222: "cp874", 238: "cp1250", 254: "cp437", 255: "cp437",
}  # fmt: skip
_PAGES = {"mac": "mac_roman", "pc": "cp437", "pca": "cp850", "ansi": "cp1252"}
_SYMBOLS = "symbols"
_FORM_DEFAULT = 25  # a check box has its default state


@parsing("RTF file")
def read_rtf(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return an RTF file as text: headings marked, tables as rows, then its notes. Raises ToolFailed."""
    if data.startswith(OLE_MAGIC):
        raise ToolFailed("this RTF file cannot be read: it is in an old binary format; ask for a copy saved as .rtf")
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n\0").startswith(b"{\\rtf"):
        raise ToolFailed("this file has no text of its kind: it is damaged, or has the name of another kind")
    reader = _Reader(data)
    parts = reader.read()
    return Extracted(tuple(parts), reader.title, len(parts), reader.missing(), reader.unread)


class _Flow:
    """Text that runs on its own: that of the body, a note, a box or a header. `after`: boxes below the paragraph."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.line: list[str] = []
        self.label = ""
        self.after: list[str] = []
        self.rows: list[list[str]] = []
        self.cells: list[str] = []
        self.in_cell: list[str] = []
        self.in_inner_cell: list[str] = []
        self.inner_cells: list[str] = []


@dataclass
class _Field:
    """A field whose group is open: its instruction, and where its result begins."""

    flow: _Flow
    at: int
    said: int
    instruction: str = ""
    form: dict[str, int] = field(default_factory=dict[str, int])
    choices: list[str] = field(default_factory=list[str])


@dataclass
class _State:
    """What holds in a group. `capture`: takes its text instead of the flow."""

    flow: _Flow
    skips: bool = False
    capture: list[str] | None = None
    hidden: bool = False
    deleted: int = 0  # the number of the deletion
    fallback: int = 1  # signs after one of Unicode that say the same
    codec: str = "cp1252"
    font: str = ""
    in_table: bool = False
    depth: int = 1  # of tables
    heading: int = 0
    level: int = 0  # of a list
    is_first: bool = False
    is_ignorable: bool = False
    in_object: bool = False
    in_fonts: bool = False
    in_styles: bool = False
    ends: Callable[[], None] | None = None

    def inner(self) -> _State:
        """Return the state of a group that begins here; a file has a million, so `dataclasses.replace` is too slow."""
        state = _State(self.flow)
        vars(state).update(vars(self))
        state.is_first, state.is_ignorable, state.ends = True, False, None
        return state


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._budget = TableBudget()
        self.title: str | None = None
        self.unread = False
        self._body = _Flow()
        self._state = _State(self._body)
        self._stack: list[_State] = []
        self._bytes = bytearray()
        self._units: list[int] = []
        self._skip = 0  # signs that repeat one of Unicode
        self._codec = "cp1252"
        self._fonts: dict[int, tuple[str, str]] = {}
        self._font = 0
        self._headings: dict[int, int] = {}
        self._style = -1
        self._fields: list[_Field] = []
        self._notes: dict[str, list[str]] = {"footnote": [], "endnote": [], "comment": []}
        self._margins: dict[str, None] = {}
        self._author = ""
        self._is_endnote = False
        self._property = ""
        self._deletions = self._seen_deletion = 0
        self._counts: Counter[str] = Counter()
        self._named: Counter[str] = Counter()
        self._hidden_words = self._size = self._said = 0
        self._cut = False

    # -- the whole --------------------------------------------------------------------------------------------

    def read(self) -> list[Part]:
        self._tokens()
        self._flush()
        self._end_flow(self._body)
        parts = [Part("", "\n\n".join(self._body.blocks))]
        if self._margins:
            parts.append(Part("headers and footers", "\n\n".join(self._margins)))
        for word, texts in self._notes.items():
            lines = [f"[{word} {number}] {text}".rstrip() for number, text in enumerate(texts, 1)]
            if lines:
                parts.append(Part(f"{word}s", "\n\n".join(lines)))
        if self._cut:
            parts.append(Part("", CUT))
        return parts

    def missing(self) -> tuple[str, ...]:
        """Return phrases on what is in the file and not in its text."""
        phrases = [count_phrase(count, noun) for noun, count in self._counts.items()]
        if self._hidden_words:
            phrases.append(f"{count_phrase(self._hidden_words, 'word')} of hidden text")
        return (*phrases, *object_phrases(self._named, MOST_NAMED))

    def _tokens(self) -> None:
        data = self._data
        position = max(data.find(b"{"), 0)
        count = 0
        while position < len(data):
            token = _TOKEN.match(data, position)
            assert token is not None
            position = token.end()
            count += 1
            if not count % _TOKENS_BETWEEN_CHECKS and (self._budget.late or self._cut):
                self.unread = not self._cut
                return
            word, number_text, byte, sign, brace, text = token.groups()
            if text is not None:
                self._text(text)
            elif word is not None:
                number = int(number_text) if number_text else None
                if word == b"bin":
                    position += max(number or 0, 0)
                else:
                    self._word(word.decode("ascii"), number)
            elif byte is not None:
                self._text(bytes((int(byte, 16),)))
            elif sign is not None:
                self._sign(sign)
            elif brace == b"{":
                self._open()
            elif brace == b"}":
                self._close()
                if not self._stack:
                    rest = data[position:].strip(b"\0 \t\r\n")
                    if rest:
                        self._named[f"what follows the end of its text ({len(rest):,} bytes)"] += 1
                    return
        self._named["what follows the place where the file breaks off"] += 1

    # -- groups -----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._flush()
        self._skip = 0
        if len(self._stack) >= _MAX_DEPTH:
            raise ToolFailed("this file has groups that are nested too deep to read here; ask for another copy")
        self._stack.append(self._state)
        self._state = self._state.inner()

    def _close(self) -> None:
        self._flush()
        self._skip = 0
        if self._state.ends is not None:
            self._state.ends()
        if self._stack:
            self._state = self._stack.pop()

    def _sign(self, sign: bytes) -> None:
        state = self._state
        if sign == b"*":
            state.is_ignorable = True
            return
        if self._skip:
            self._skip -= 1
        elif sign in (b"\n", b"\r"):
            self._word("par", None)
        elif sign in _SIGNS:
            self._flush()
            self._say(_SIGNS[sign])
        state.is_first = False

    def _word(self, name: str, number: int | None) -> None:
        state = self._state
        if name == "u":
            self._unicode(number or 0)
            return
        if self._skip:
            self._skip -= 1
            return
        self._flush()
        is_first, is_ignorable = state.is_first, state.is_ignorable
        state.is_first = state.is_ignorable = False
        if state.skips:
            return
        if is_first and self._destination(name):
            return
        if is_first and is_ignorable and name not in _KNOWN:
            state.skips = True
        elif name in _FIXED:
            self._say(_FIXED[name])
        elif name in _PARAGRAPH_ENDS:
            self._end_paragraph()
        else:
            self._property_word(name, number)

    def _destination(self, name: str) -> bool:
        """Enter a group that is more than text; return False if its first word says nothing of the kind."""
        state = self._state
        if name in _SKIPPED:
            state.skips = True
        elif name in ("footnote", "annotation"):
            self._enter(lambda flow: self._end_note(name, flow))
        elif name in _MARGINS:
            self._enter(self._end_margin)
        elif name in ("shptxt", "dptxbxtext"):
            self._enter(self._end_box)
        elif name in ("listtext", "pntext"):
            self._capture(self._end_label)
        elif name == "title":
            self._capture(self._end_title)
        elif name == "info":
            state.capture = []  # only its title is read
        elif name == "atnauthor":
            self._capture(self._end_author)
        elif name == "fldinst":
            self._capture(self._end_instruction)
        elif name == "sn":
            self._capture(self._end_property)
        elif name == "sv":
            self._capture(self._end_value)
        elif name == "objclass":
            self._capture(self._end_object_class)
        elif name in ("ffl", "ffdeftext", "ffname", "ffformat", "ffhelptext", "ffstattext", "ffentrymcr", "ffexitmcr"):
            self._capture(self._end_choice if name == "ffl" else lambda _text: None)
        elif name == "fonttbl":
            state.in_fonts, state.capture = True, []
        elif name == "stylesheet":
            state.in_styles, state.capture = True, []
        elif name == "field":
            self._fields.append(_Field(state.flow, len(state.flow.line), self._said))
            state.ends = self._end_field
        elif name == "pict":
            if not state.in_object:
                self._counts["picture"] += 1
            state.capture = []
        elif name == "object":
            state.in_object = True
            state.ends = self._end_object
            self._property = ""
        elif name == "upr":
            state.capture = []  # what follows in `ud` says the same
        elif name == "ud":
            outer = self._stack[-2] if len(self._stack) > 1 else self._state
            state.flow, state.capture = outer.flow, outer.capture
        else:
            return False
        return True

    def _enter(self, end: Callable[[_Flow], None]) -> None:
        flow = _Flow()
        state = self._state
        state.flow, state.capture, state.hidden, state.deleted = flow, None, False, 0
        state.in_table, state.depth, state.heading, state.level = False, 1, 0, 0

        def ends() -> None:
            self._end_flow(flow)
            end(flow)

        state.ends = ends

    def _capture(self, end: Callable[[str], None]) -> None:
        captured: list[str] = []
        self._state.capture = captured
        self._state.ends = lambda: end("".join(captured)[:_CAPTURED_CHARS])

    # -- what ends with a group -------------------------------------------------------------------------------

    def _outer(self) -> _State:
        return self._stack[-1]

    def _end_note(self, name: str, flow: _Flow) -> None:
        text = "\n\n".join(flow.blocks)
        if name == "annotation":
            word = "comment"
            text = comment_text(self._author, text)
            self._author = ""
        elif self._is_endnote:
            word = "endnote"
        else:
            word = "footnote"
        self._is_endnote = False
        self._notes[word].append(text)
        outer = self._outer()
        if outer.capture is None:
            outer.flow.line.append(f"[{word} {len(self._notes[word])}]")

    def _end_margin(self, flow: _Flow) -> None:
        text = "\n\n".join(flow.blocks)
        if text:
            self._margins[text] = None

    def _end_box(self, flow: _Flow) -> None:
        self._said += 1
        self._outer().flow.after += flow.blocks

    def _end_label(self, text: str) -> None:
        self._state.flow.label = text.strip()

    def _end_title(self, text: str) -> None:
        self.title = " ".join(text.split())[:2_000] or None

    def _end_author(self, text: str) -> None:
        self._author = " ".join(text.split())[:NAME_CHARS]

    def _end_instruction(self, text: str) -> None:
        if self._fields:
            self._fields[-1].instruction += text

    def _end_choice(self, text: str) -> None:
        if self._fields:
            self._fields[-1].choices.append(text.strip())

    def _end_property(self, text: str) -> None:
        self._property = text.strip()

    def _end_value(self, text: str) -> None:
        words = " ".join(text.split())
        if not words:
            return
        if self._property == "wzDescription":
            self._say_beside(f"[picture: {words}]")
        elif self._property == "gtextUNICODE":
            self._say_beside(words)

    def _say_beside(self, text: str) -> None:
        self._said += 1
        self._state.flow.after.append(text)

    def _end_object_class(self, text: str) -> None:
        self._property = text.strip()[:NAME_CHARS]

    def _end_object(self) -> None:
        if not self._outer().in_object:
            kind = f" ({self._property})" if self._property else ""
            self._named[f"an embedded object{kind}"] += 1

    def _end_field(self) -> None:
        of = self._fields.pop()
        words = of.instruction.split()
        kind = words[0].upper() if words else ""
        link = _LINK_FIELD.match(of.instruction)
        line = self._state.flow.line
        if kind == "FORMCHECKBOX":
            state = of.form.get("ffres", _FORM_DEFAULT)
            if state == _FORM_DEFAULT:
                state = of.form.get("ffdefres", 0)
            line.append("☒" if state else "☐")
        elif kind == "FORMDROPDOWN":
            choice = of.form.get("ffres", of.form.get("ffdefres", 0))
            if 0 <= choice < len(of.choices):
                line.append(of.choices[choice])
        elif link:
            address = (link[1] or link[2] or "")[:ADDRESS_CHARS]  # none for a place in the document
            if address:
                self._say_address(address, of.at)
        elif kind and self._said == of.said and kind not in _NOTHING_SHOWN:
            self._named[f"the value of a field ({kind[:NAME_CHARS]})"] += 1

    def _say_address(self, address: str, start: int) -> None:
        """Add the address of a link whose words begin at `start`, unless they are the address."""
        line = self._state.flow.line
        words = "".join(line[start:]).strip()
        if words not in (address, address.removeprefix("mailto:"), address.rstrip("/")):
            line.append(f" ({address})" if words else address)

    # -- properties -------------------------------------------------------------------------------------------

    def _property_word(self, name: str, number: int | None) -> None:
        state = self._state
        is_on = number != 0
        if name == "f":
            self._font = number or 0
            state.codec, state.font = self._fonts.get(self._font, (self._codec, ""))
        elif name == "v":
            state.hidden = is_on
        elif name in ("deleted", "mvf"):
            self._deletions += 1
            state.deleted = self._deletions if is_on else 0
        elif name == "plain":
            state.hidden, state.deleted = False, 0
            state.codec, state.font = self._codec, ""
        elif name == "pard":
            state.in_table, state.depth, state.heading, state.level = False, 1, 0, 0
        elif name == "intbl":
            state.in_table = is_on
        elif name == "itap":
            state.depth = number or 1
        elif name == "s":
            if state.in_styles:
                self._style = number or 0
            else:
                state.heading = self._headings.get(number or 0, 0)
        elif name == "outlinelevel":
            level = number if number is not None and number < 9 else -1
            if state.in_styles:
                self._headings[self._style] = min(level + 1, 6)
            state.heading = min(level + 1, 6)
        elif name == "ilvl":
            state.level = max(0, min(number or 0, 8))
        elif name == "uc":
            state.fallback = max(0, min(number or 0, 99))
        else:
            self._other_word(name, number)

    def _other_word(self, name: str, number: int | None) -> None:
        state = self._state
        if name == "cell":
            self._end_cell()
        elif name == "row":
            self._end_row()
        elif name == "nestcell":
            self._end_inner_cell()
        elif name == "nestrow":
            self._end_inner_row(state.flow)
        elif name == "ftnalt":
            self._is_endnote = True
        elif name in _PAGES:
            self._codec = state.codec = _PAGES[name]
        elif name == "ansicpg":
            self._codec = state.codec = "utf-8" if number == 65001 else f"cp{number}"
        elif name in ("fcharset", "cpg") and state.in_fonts:
            if name == "cpg":
                codec = f"cp{number}"
            elif number == 2:
                codec = _SYMBOLS
            else:
                codec = _CHARSETS.get(number or 0, self._codec)
            _, font_name = self._fonts.get(self._font, ("", ""))
            self._fonts[self._font] = (codec, font_name)
        elif name in ("ffres", "ffdefres", "fftype") and self._fields:
            self._fields[-1].form[name] = number or 0

    # -- text -------------------------------------------------------------------------------------------------

    def _text(self, written: bytes) -> None:
        state = self._state
        state.is_first = False
        if state.skips:
            return
        if self._skip:
            taken = min(self._skip, len(written))
            self._skip -= taken
            written = written[taken:]
        if written:
            self._flush_units()
            self._bytes += written

    def _unicode(self, number: int) -> None:
        state = self._state
        state.is_first = False
        if not state.skips:
            self._flush_bytes()
            self._units.append(number & 0xFFFF)
            self._skip = state.fallback

    def _flush(self) -> None:
        if self._bytes:
            self._flush_bytes()
        if self._units:
            self._flush_units()

    def _flush_units(self) -> None:
        if self._units:
            encoded = b"".join(unit.to_bytes(2, "little") for unit in self._units)
            self._units.clear()
            text = encoded.decode("utf-16-le", "replace")
            self._say(with_symbols(text, self._state.font or "symbol"))

    def _flush_bytes(self) -> None:
        if not self._bytes:
            return
        written, state = bytes(self._bytes), self._state
        self._bytes.clear()
        if state.in_fonts:
            font_name = written.decode("latin-1").strip(" ;")
            if font_name:
                codec, _ = self._fonts.get(self._font, (self._codec, ""))
                self._fonts[self._font] = (codec, font_name)
        elif state.codec == _SYMBOLS:
            self._say("".join(symbol_of(0xF000 + sign, state.font) or chr(sign) for sign in written))
        else:
            try:
                self._say(written.decode(state.codec, "replace"))
            except LookupError:
                self._say(written.decode("cp1252", "replace"))
                self._named[f"a text in an encoding that is not known here ({state.codec[:40]})"] += 1

    def _say(self, text: str) -> None:
        state = self._state
        if state.skips or not text:
            return
        if state.capture is not None:
            if len(state.capture) < _CAPTURED_CHARS:
                state.capture.append(text)
        elif state.deleted:
            if state.deleted != self._seen_deletion:
                self._seen_deletion = state.deleted
                self._counts["tracked deletion"] += 1
        elif state.hidden:
            self._said += 1
            self._hidden_words += len(text.split())
        else:
            self._said += 1
            state.flow.line.append(text)

    # -- paragraphs and tables --------------------------------------------------------------------------------

    def _take_paragraph(self, flow: _Flow) -> str:
        """Return the open paragraph with its label, and begin another."""
        label, flow.label = flow.label, ""
        text = "".join(flow.line).strip()
        flow.line.clear()
        if text and self._state.heading:
            words = [label, *text.split()] if label else text.split()
            return f"{'#' * self._state.heading} {' '.join(words)}"
        if not text or not label:
            return text
        if label.isspace() or not label.isprintable():
            label = "•"
        indent = "  " * self._state.level
        return f"{indent}{label} {text}"

    def _end_paragraph(self) -> None:
        state = self._state
        if state.capture is not None:
            state.capture.append("\n")
            return
        if state.deleted:
            return  # the end of the paragraph is deleted: the next one continues it
        flow = state.flow
        text = self._take_paragraph(flow)
        after, flow.after = flow.after, []
        for each in filter(None, (text, *after)):
            if state.depth > 1:
                flow.in_inner_cell.append(each)
            elif state.in_table:
                flow.in_cell.append(each)
            else:
                self._end_table(flow)
                self._add(flow, each)

    def _add(self, flow: _Flow, block: str) -> None:
        room = max(0, TEXT_CHARS - self._size)
        self._cut = self._cut or len(block) > room
        if block[:room].strip():
            flow.blocks.append(block[:room])
            self._size += len(block[:room])

    def _end_cell(self) -> None:
        flow = self._state.flow
        self._end_inner_table(flow)
        text = self._take_paragraph(flow)
        after, flow.after = flow.after, []
        if len(flow.cells) <= MAX_COLUMNS:
            flow.cells.append("\n".join(filter(None, (*flow.in_cell, text, *after))))
        elif text or after or flow.in_cell:
            self._named[f"a cell after the first {MAX_COLUMNS} of its row"] += 1
        flow.in_cell = []

    def _end_row(self) -> None:
        flow = self._state.flow
        if flow.cells and len(flow.rows) < _MOST_ROWS:
            flow.rows.append(flow.cells)
        elif flow.cells:
            self._named[f"a row of a table after the first {_MOST_ROWS:,}"] += 1
        flow.cells = []

    def _end_inner_cell(self) -> None:
        flow = self._state.flow
        text = self._take_paragraph(flow)
        flow.inner_cells.append(" ".join(" ".join((*flow.in_inner_cell, text)).split()))
        flow.in_inner_cell = []

    def _end_inner_row(self, flow: _Flow) -> None:
        if flow.inner_cells:
            flow.in_cell.append("; ".join(flow.inner_cells))
        flow.inner_cells = []

    def _end_inner_table(self, flow: _Flow) -> None:
        """Keep the cells of an inner table that has no end of its own."""
        flow.inner_cells += flow.in_inner_cell
        flow.in_inner_cell = []
        self._end_inner_row(flow)

    def _end_table(self, flow: _Flow) -> None:
        """Show the table that has ended, and cells that no row has."""
        self._end_inner_table(flow)
        if flow.in_cell:
            flow.cells.append("\n".join(flow.in_cell))
        if flow.cells:
            flow.rows.append(flow.cells)
        rows = flow.rows
        flow.rows, flow.cells, flow.in_cell = [], [], []
        if any(map(any, rows)):
            self._add(flow, render_table(rows, self._budget))

    def _end_flow(self, flow: _Flow) -> None:
        text = self._take_paragraph(flow)
        self._end_table(flow)
        for each in (text, *flow.after):
            self._add(flow, each)
        flow.after = []
