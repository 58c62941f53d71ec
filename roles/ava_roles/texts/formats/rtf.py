r"""RTF files: what a reader sees on the pages, in its order; what cannot be text is named.

The file is read once from its beginning to its end, with a state for each open group. `_SKIPPED` names destinations
that hold no text; one that begins with `\*` and is not known is left out, as the format asks for. The tables at the end
of `_Reader` say what each other word does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from ava_roles.errors import ToolFailed
from ava_roles.texts.extracted import ALL, OLE_MAGIC, Extracted, Part, Wanted
from ava_roles.texts.formats.asides import Aside
from ava_roles.texts.formats.office import save_as
from ava_roles.texts.formats.part_reader import ADDRESS_CHARS, CUT, MOST_NAMED, NAME_CHARS
from ava_roles.texts.formats.rtf_text import CAPTURED_CHARS, SYMBOLS, RtfFlow, RtfState, RtfText
from ava_roles.texts.phrases import comment_text, count_phrase, object_phrases
from ava_roles.texts.web_page import parsing

_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,40})(-?[0-9]{1,9})?+[0-9]*+ ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|[\r\n]++|([^\\{}\r\n]++)|\\"
)
_MAX_DEPTH = 5_000
_TOKENS_BETWEEN_CHECKS = 4_096

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
_FORM_TEXTS = ("ffdeftext", "ffname", "ffformat", "ffhelptext", "ffstattext", "ffentrymcr", "ffexitmcr")
"""Groups of a form's field whose text nobody sees."""
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
_FORM_DEFAULT = 25  # a check box has its default state


@parsing("RTF file")
def read_rtf(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return an RTF file as text: headings marked, tables as rows, then its notes. Raises ToolFailed."""
    if data.startswith(OLE_MAGIC):
        raise ToolFailed(f"this RTF file cannot be read: it is in an old binary format; {save_as('.rtf')}")
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n\0").startswith(b"{\\rtf"):
        raise ToolFailed("this file has no text of its kind: it is damaged, or has the name of another kind")
    reader = _Reader(data)
    parts = reader.read()
    return Extracted(tuple(parts), reader.title, len(parts), reader.missing(), reader.unread)


@dataclass
class _Field:
    """A field whose group is open: its instruction, and where its result begins."""

    flow: RtfFlow
    at: int
    said: int
    instruction: str = ""
    form: dict[str, int] = field(default_factory=dict[str, int])
    choices: list[str] = field(default_factory=list[str])

    def is_checked(self) -> bool:
        state = self.form.get("ffres", _FORM_DEFAULT)
        if state == _FORM_DEFAULT:
            state = self.form.get("ffdefres", 0)
        return state != 0

    def choice(self) -> str:
        """Return the chosen entry of a list; empty if it has no such entry."""
        number = self.form.get("ffres", self.form.get("ffdefres", 0))
        return self.choices[number] if 0 <= number < len(self.choices) else ""


class _Reader(RtfText):
    """Reads the words and groups of a file; what each means is in the tables at the end."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data
        self.title: str | None = None
        self.unread = False
        self._stack: list[RtfState] = []
        self._headings: dict[int, int] = {}
        self._style = -1
        self._fields: list[_Field] = []
        self._notes: dict[str, list[str]] = {"footnote": [], "endnote": [], "comment": []}
        self._margins: dict[str, None] = {}
        self._author = ""
        self._is_endnote = False
        self._property = ""
        self._deletions = 0

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
        return (*phrases, *object_phrases(self._objects, MOST_NAMED))

    def _tokens(self) -> None:
        data = self._data
        position = max(data.find(b"{"), 0)
        count = 0
        while position < len(data):
            token = _TOKEN.match(data, position)
            assert token is not None
            position = token.end()
            count += 1
            if not count % _TOKENS_BETWEEN_CHECKS and self._is_late_or_cut():
                return
            word, number_text, byte, sign, brace, text = token.groups()
            if text is not None:
                self._text(text)
            elif word is not None:
                number = None
                if number_text:
                    number = int(number_text)
                if word == b"bin":  # that many bytes of a binary object follow
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
                    self._name_rest(data[position:])
                    return
        self._objects["what follows the place where the file breaks off"] += 1

    def _is_late_or_cut(self) -> bool:
        if self._cut:
            return True
        self.unread = self._budget.late
        return self.unread

    def _name_rest(self, rest: bytes) -> None:
        rest = rest.strip(b"\0 \t\r\n")
        if rest:
            self._objects[f"what follows the end of its text ({count_phrase(len(rest), 'byte')})"] += 1

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
        if is_first:
            if self._begin_destination(name):
                return
            if is_ignorable and name not in _KNOWN:
                state.skips = True
                return
        self._obey(name, number)

    def _obey(self, name: str, number: int | None) -> None:
        """Do what a word says: show a sign, end a paragraph or a cell, or change the state; ignore an unknown one."""
        if name in _FIXED:
            self._say(_FIXED[name])
        elif name in _PARAGRAPH_ENDS:
            self._end_paragraph()
        elif name in self._NUMBERS:
            self._NUMBERS[name](self, number or 0)
        elif name in self._SWITCHES:
            self._SWITCHES[name](self, number)
        elif name in self._ENDS_IN_TABLES:
            self._ENDS_IN_TABLES[name](self)
        elif name in _PAGES:
            self._set_codec(_PAGES[name])
        elif name in ("ffres", "ffdefres", "fftype") and self._fields:
            self._fields[-1].form[name] = number or 0

    def _begin_destination(self, name: str) -> bool:
        """Prepare for a group whose first word says that it is not plain text; return False for any other word."""
        if name in _SKIPPED:
            self._state.skips = True
        elif name in self._FLOWS:
            self._begin_flow(self._FLOWS[name])
        elif name in self._CAPTURED:
            self._begin_capture(self._CAPTURED[name])
        elif name in self._GROUPS:
            self._GROUPS[name](self)
        else:
            return False
        return True

    def _begin_flow(self, end: Callable[[_Reader, RtfFlow], None]) -> None:
        flow = RtfFlow()
        state = self._state
        state.flow, state.capture = flow, None
        state.hidden, state.deleted = False, 0
        state.leave_paragraph()

        def ends() -> None:
            self._end_flow(flow)
            end(self, flow)

        state.ends = ends

    def _begin_capture(self, end: Callable[[_Reader, str], None]) -> None:
        captured: list[str] = []
        self._state.capture = captured
        self._state.ends = lambda: end(self, "".join(captured)[:CAPTURED_CHARS])

    def _begin_unread(self) -> None:
        self._state.capture = []

    def _begin_fonts(self) -> None:
        self._state.in_fonts = True
        self._state.capture = []
        self._state.ends = self._end_fonts

    def _end_fonts(self) -> None:
        self._take_default_font(self._outer())

    def _begin_styles(self) -> None:
        self._state.in_styles = True
        self._state.capture = []

    def _begin_field(self) -> None:
        flow = self._state.flow
        self._fields.append(_Field(flow, len(flow.line), self._said))
        self._state.ends = self._end_field

    def _begin_picture(self) -> None:
        if not self._state.in_object:
            self._counts["picture"] += 1
        self._state.capture = []

    def _begin_object(self) -> None:
        self._state.in_object = True
        self._state.ends = self._end_object
        self._property = ""

    def _begin_unicode_form(self) -> None:
        """Begin the second form of a text, which says in Unicode what the first one says; the first is not read."""
        outer = self._stack[-2] if len(self._stack) > 1 else self._state
        self._state.flow, self._state.capture = outer.flow, outer.capture

    # -- what ends with a group -------------------------------------------------------------------------------

    def _outer(self) -> RtfState:
        return self._stack[-1]

    def _end_comment(self, flow: RtfFlow) -> None:
        text = comment_text(self._author, "\n\n".join(flow.blocks))
        self._author = ""
        self._add_note("comment", text)

    def _end_note(self, flow: RtfFlow) -> None:
        word = "endnote" if self._is_endnote else "footnote"
        self._add_note(word, "\n\n".join(flow.blocks))

    def _add_note(self, word: str, text: str) -> None:
        self._is_endnote = False
        self._notes[word].append(text)
        outer = self._outer()
        if outer.capture is None:
            mark = f"[{word} {len(self._notes[word])}]"
            outer.flow.line.append(Aside(mark) if word == "comment" else mark)

    def _end_margin(self, flow: RtfFlow) -> None:
        text = "\n\n".join(flow.blocks)
        if text:
            self._margins[text] = None

    def _end_box(self, flow: RtfFlow) -> None:
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
            self._objects[f"an embedded object{kind}"] += 1

    def _end_field(self) -> None:
        ended = self._fields.pop()
        words = ended.instruction.split()
        name = ""
        if words:
            name = words[0].upper()
        link = _LINK_FIELD.match(ended.instruction)
        if name == "FORMCHECKBOX":
            mark = "☐"
            if ended.is_checked():
                mark = "☒"
            self._state.flow.line.append(mark)
        elif name == "FORMDROPDOWN":
            self._state.flow.line.append(ended.choice())
        elif link:
            address = link[1] or link[2]
            if address:  # otherwise it leads to a place in the document
                self._say_address(address[:ADDRESS_CHARS], ended.at)
        elif self._said == ended.said:  # it has no result
            self._name_field(name)

    def _name_field(self, kind: str) -> None:
        if kind and kind not in _NOTHING_SHOWN:
            self._objects[f"the value of a field ({kind[:NAME_CHARS]})"] += 1

    def _say_address(self, address: str, start: int) -> None:
        """Add the address of a link whose words begin at `start`, unless they are the address."""
        line = self._state.flow.line
        words = "".join(line[start:]).strip()
        if words not in (address, address.removeprefix("mailto:"), address.rstrip("/")):
            if words:
                line.append(Aside(f" ({address})"))
            else:
                line.append(address)

    # -- properties -------------------------------------------------------------------------------------------

    def _set_font(self, number: int) -> None:
        self._font = number
        self._state.codec, self._state.font = self._fonts.get(self._font, (self._codec, ""))

    def _set_default_font(self, number: int) -> None:
        self._default_font = number

    def _take_default_font(self, state: RtfState) -> None:
        """Let text have the charset of the default font, as it has until a font is chosen and after `plain`."""
        codec, font_name = self._fonts.get(self._default_font, (self._codec, ""))
        if codec == SYMBOLS:  # no text begins in signs alone
            codec, font_name = self._codec, ""
        state.codec, state.font = codec, font_name

    def _set_hidden(self, number: int | None) -> None:
        self._state.hidden = number != 0

    def _set_deleted(self, number: int | None) -> None:
        self._deletions += 1
        self._state.deleted = self._deletions if number != 0 else 0

    def _set_plain(self, _number: int | None) -> None:
        state = self._state
        state.hidden, state.deleted = False, 0
        self._take_default_font(state)

    def _leave_paragraph(self, _number: int | None) -> None:
        self._state.leave_paragraph()

    def _set_in_table(self, number: int | None) -> None:
        self._state.in_table = number != 0

    def _set_depth(self, number: int) -> None:
        self._state.depth = number or 1

    def _set_style(self, number: int) -> None:
        if self._state.in_styles:
            self._style = number
        else:
            self._state.heading = self._headings.get(number, 0)

    def _set_outline_level(self, number: int | None) -> None:
        heading = 0
        if number is not None and number < 9:
            heading = min(number + 1, 6)
        if self._state.in_styles:
            self._headings[self._style] = heading
        self._state.heading = heading

    def _set_list_level(self, number: int) -> None:
        self._state.level = max(0, min(number, 8))

    def _set_fallback(self, number: int) -> None:
        self._state.fallback = max(0, min(number, 99))

    def _set_endnote(self, _number: int | None) -> None:
        self._is_endnote = True

    def _set_codec(self, codec: str) -> None:
        self._codec = self._state.codec = codec

    def _set_page(self, number: int | None) -> None:
        if number == 65001:
            self._set_codec("utf-8")
        else:
            self._set_codec(f"cp{number}")

    def _set_charset(self, number: int) -> None:
        if number == 2:
            self._set_codec_of_font(SYMBOLS)
        else:
            self._set_codec_of_font(_CHARSETS.get(number, self._codec))

    def _set_page_of_font(self, number: int | None) -> None:
        self._set_codec_of_font(f"cp{number}")

    def _set_codec_of_font(self, codec: str) -> None:
        if self._state.in_fonts:
            _, font_name = self._fonts.get(self._font, ("", ""))
            self._fonts[self._font] = (codec, font_name)

    # -- what each word does ----------------------------------------------------------------------------------

    _FLOWS: ClassVar[dict[str, Callable[[_Reader, RtfFlow], None]]] = {
        "footnote": _end_note,
        "annotation": _end_comment,
        "shptxt": _end_box,
        "dptxbxtext": _end_box,
        **dict.fromkeys(_MARGINS, _end_margin),
    }
    """Groups with text that runs on its own, and what is done with it."""
    _CAPTURED: ClassVar[dict[str, Callable[[_Reader, str], None]]] = {
        "listtext": _end_label,
        "pntext": _end_label,
        "title": _end_title,
        "atnauthor": _end_author,
        "fldinst": _end_instruction,
        "ffl": _end_choice,
        "sn": _end_property,
        "sv": _end_value,
        "objclass": _end_object_class,
    }
    """Groups whose text is not shown on the page, and what is done with it."""
    _GROUPS: ClassVar[dict[str, Callable[[_Reader], None]]] = {
        "info": _begin_unread,  # only the title in it is read
        "upr": _begin_unread,
        "ud": _begin_unicode_form,
        **dict.fromkeys(_FORM_TEXTS, _begin_unread),
        "fonttbl": _begin_fonts,
        "stylesheet": _begin_styles,
        "field": _begin_field,
        "pict": _begin_picture,
        "object": _begin_object,
    }
    _ENDS_IN_TABLES: ClassVar[dict[str, Callable[[_Reader], None]]] = {
        "cell": RtfText._end_cell,
        "row": RtfText._end_row,
        "nestcell": RtfText._end_inner_cell,
        "nestrow": RtfText._end_nested_row,
    }
    _NUMBERS: ClassVar[dict[str, Callable[[_Reader, int], None]]] = {
        "f": _set_font,
        "deff": _set_default_font,
        "itap": _set_depth,
        "s": _set_style,
        "ilvl": _set_list_level,
        "uc": _set_fallback,
        "fcharset": _set_charset,
    }
    """Words with a number that say how to read or show the following text; without one, it is 0."""
    _SWITCHES: ClassVar[dict[str, Callable[[_Reader, int | None], None]]] = {
        "v": _set_hidden,
        "deleted": _set_deleted,
        "mvf": _set_deleted,
        "plain": _set_plain,
        "pard": _leave_paragraph,
        "intbl": _set_in_table,
        "outlinelevel": _set_outline_level,
        "ftnalt": _set_endnote,
        "ansicpg": _set_page,
        "cpg": _set_page_of_font,
    }
    """Words that mean something else without a number than with 0: most of them are on without one, and off with 0."""
