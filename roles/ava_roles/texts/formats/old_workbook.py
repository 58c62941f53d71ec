"""Workbooks of Excel before 2007 (BIFF2 to BIFF8, `.xls`), shown as those of today: a table for each sheet."""

from __future__ import annotations

import io
import struct
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from ava_roles.errors import ToolFailed
from ava_roles.texts.extracted import ALL, BIFF_MAGICS, OLE_MAGIC, Extracted, Part, Wanted
from ava_roles.texts.formats.addresses import without_scheme
from ava_roles.texts.formats.number_format import GENERAL, plain_number, show_exactly
from ava_roles.texts.formats.office import is_encrypted_package, save_as
from ava_roles.texts.formats.sheet_table import (
    CELL_CHARS,
    MAX_COLUMNS,
    MOST_NOTES,
    NAME_CHARS,
    SheetRoom,
    SheetTable,
    cell_name,
    describe_hidden,
    one_line,
    unread_phrase,
)
from ava_roles.texts.formats.workbook import read_xlsx
from ava_roles.texts.phrases import count_phrase
from ava_roles.texts.web_page import PARSING_S, parsing

_CANNOT = "this workbook cannot be read"
_DAMAGED = f"{_CANNOT}: it is damaged, or in another binary format; {save_as('.xlsx')}"
_ENCRYPTED = f"{_CANNOT}: it is encrypted; ask for a copy without a password"
_BIFF8 = 80
_EMPTY, _TEXT, _NUMBER, _DATE, _BOOLEAN, _ERROR, _BLANK = range(7)
"""The kinds of cell, as xlrd has them (`xlrd.biffh.XL_CELL_*`)."""
_END, _HEADER, _FOOTER, _CONTINUE, _OBJECT, _TEXT_OBJECT = 0x0A, 0x14, 0x15, 0x3C, 0x5D, 0x1B6
_BEGIN = 0x809
"""Numbers of records (MS-XLS 2.3)."""
_COMMENT_OBJECT = 0x19
_OBJECTS = {0x05: "chart", 0x08: "picture or embedded file", 0x07: "button", 0x0B: "form control", 0x0C: "form control"}
"""Kinds of object (MS-XLS 2.5.143) that are only counted; text boxes and comments are read."""


def read_workbook(data: bytes, wanted: Wanted = ALL) -> Extracted:
    """Return a workbook of any Excel: what it is, its first bytes tell, whatever its name. Raises ToolFailed."""
    if data.startswith((OLE_MAGIC, *BIFF_MAGICS)):
        return read_xls(data, wanted)
    return read_xlsx(data, wanted)


@parsing("workbook")
def read_xls(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return a workbook, a table for each sheet, with values as last calculated. Raises ToolFailed."""
    if is_encrypted_package(data):
        raise ToolFailed(_ENCRYPTED)
    book, missing = _open(data)
    return _OldBook(book, missing).extracted()


def _open(data: bytes) -> tuple[Any, list[str]]:
    """Open a workbook, one with a damaged directory as far as it goes; return it, and what is missing from it.

    Raises ToolFailed: it is encrypted, damaged or none.
    """
    biff: Any = import_module("xlrd.biffh")
    container: Any = import_module("xlrd.compdoc")
    try:
        return _load(data, is_damaged=False), []
    except (MemoryError, ToolFailed):
        raise
    except container.CompDocError:
        pass
    except biff.XLRDError as error:
        raise ToolFailed(_ENCRYPTED if "encrypted" in str(error) else _DAMAGED) from error
    except Exception as error:  # xlrd raises what it meets: struct.error, IndexError, AssertionError
        raise ToolFailed(_DAMAGED) from error
    try:
        book = _load(data, is_damaged=True)
    except (MemoryError, ToolFailed):
        raise
    except Exception as error:
        raise ToolFailed(_DAMAGED) from error
    return book, ["what was in damaged parts of this file"]


def _load(data: bytes, *, is_damaged: bool) -> Any:
    """Return an open book of xlrd, whose sheets are loaded one by one. Raises any Exception over a broken file."""
    excel: Any = import_module("xlrd.book")
    formulas: Any = import_module("xlrd.formula")

    class Book(excel.Book):  # type: ignore[misc]
        """A book whose names may have formulas that xlrd does not know: they are left out."""

        lacks_names = False

        def names_epilogue(self) -> None:
            try:
                super().names_epilogue()  # pyright: ignore[reportUnknownMemberType]
            except formulas.FormulaError:
                self.lacks_names = True

    book = Book()
    book.biff2_8_load(
        file_contents=data,
        logfile=io.StringIO(),
        formatting_info=True,
        on_demand=True,
        ragged_rows=True,
        ignore_workbook_corruption=is_damaged,
    )
    version = book.getbof(excel.XL_WORKBOOK_GLOBALS)
    if version not in excel.SUPPORTED_VERSIONS:
        raise ToolFailed(_DAMAGED)
    book.biff_version = version
    if version <= 45:  # the sheets are read with the book: there is one, or they are in its own stream
        book.on_demand = False
    if version <= 40:
        book.fake_globals_get_sheet()
    else:
        book.parse_globals()
    if version > 45:
        book._sheet_list = [None] * len(book._sheet_names)
    book.nsheets = len(book._sheet_list)
    return book


class _OldBook:
    """A workbook that is being read. `missing`: what is known to be missing from it."""

    def __init__(self, book: Any, missing: list[str]) -> None:
        self._book = book
        deadline_s = time.monotonic() + PARSING_S
        self._room = SheetRoom(is_late=lambda: time.monotonic() > deadline_s)
        self._missing = self._room.missing
        self._missing += missing

    def extracted(self) -> Extracted:
        titles = [one_line(str(name), NAME_CHARS) for name in self._book.sheet_names()]
        others = self._book._all_sheets_map.count(-1)
        if others:
            self._missing.append(f"charts, dialogs or macros that are sheets of their own ({others:,} not read)")
        if not titles and not self._missing:
            raise ToolFailed(_DAMAGED)
        parts: list[Part] = []
        unread = False
        for number, title in enumerate(titles):
            if self._room.spent:
                rest = ", ".join(titles[number : number + 20])
                more = count_phrase(
                    len(titles) - number, "more sheet, which is not read", "more sheets, which are not read"
                )
                self._missing.append(f"{more}: {rest}")
                unread = True
                break
            sheet = self._sheet(number, title)
            if sheet is None:
                continue
            heading = f"sheet {title}"
            if sheet.visibility:
                heading += " (hidden)"
            text, is_complete = self._sheet_text(sheet, number, title)
            parts.append(Part(heading, text))
            self._room.tables -= len(heading) + len("[]\n\n\n")
            unread = unread or not is_complete
            self._unload(number)
        if not parts and not unread:
            raise ToolFailed(_DAMAGED)
        names = self._room.defined_names(list(self._defined_names()))
        if names:
            parts.append(Part("", names))
        if self._book.lacks_names:
            self._missing.append("values of defined names, whose formulas are not understood")
        return Extracted(tuple(parts), total=max(len(titles), 1), missing=tuple(self._missing), unread=unread)

    def _sheet(self, number: int, title: str) -> Any:
        """Return a sheet of the book; None, and note that, if it is damaged."""
        try:
            return self._book.sheet_by_index(number)
        except MemoryError:
            raise
        except Exception:  # as in `_open`
            self._missing.append(f"sheet {title} is damaged and not read")
            return None

    def _unload(self, number: int) -> None:
        if self._book.on_demand:
            self._book.unload_sheet(number)

    def _defined_names(self) -> Iterator[str]:
        for name in self._book.name_obj_list:
            formula = getattr(name.result, "text", None)
            if formula and not name.hidden and not name.builtin:
                yield f"[name {one_line(str(name.name))}] {one_line(str(formula))}"

    # -- one sheet ----------------------------------------------------------------------------------------------------

    def _sheet_text(self, sheet: Any, number: int, title: str) -> tuple[str, bool]:
        """Return a sheet as a table with notes below, and whether all of it was read."""
        table = SheetTable()
        comments = self._comments(sheet, title)
        is_complete = True
        for row in range(sheet.nrows):
            if self._room.spent or not self._add_row(table, sheet, row, comments):
                self._missing.append(f"what comes from row {row + 1:,} on in sheet {title} is too long to read")
                is_complete = False
                break
        if is_complete:
            merged = [(left + 1, top + 1, right, bottom) for top, bottom, left, right in sheet.merged_cells]
            self._room.fill_merged(table, merged[: MOST_NOTES * 10], title)
        self._room.note_columns(table, title)
        lines = list(table.lines())
        hidden_rows = sorted(row + 1 for row, about in sheet.rowinfo_map.items() if about.hidden)
        hidden_columns = sorted(column + 1 for column, about in sheet.colinfo_map.items() if about.hidden)
        below = [*describe_hidden(hidden_rows, hidden_columns), *_links(sheet, table)]
        lines += self._room.fitting(below, f"links of sheet {title}")
        for place, comment in comments.items():  # of cells without a value, which no row has
            lines.append(f"{comment[:-1]}; at {place}]")
        lines += self._room.fitting(self._beside(number, title), f"headers and text boxes of sheet {title}")
        return "\n".join(lines), is_complete

    def _add_row(self, table: SheetTable, sheet: Any, row: int, comments: dict[str, str]) -> bool:
        """Add the cells of a row; return False if there was no room for all of them."""
        for column, cell in enumerate(sheet.row(row), 1):
            has_value = cell.ctype not in (_EMPTY, _BLANK)
            if has_value and self._room.tables <= 0:
                return False
            if column > MAX_COLUMNS:
                table.is_cut = table.is_cut or has_value
                continue
            text = self._show_cell(cell) if has_value else ""
            if comments:
                text = f"{text} {comments.pop(cell_name(row + 1, column), '')}".strip()
            if text:
                self._room.tables -= table.put(row + 1, column, text)
        return True

    def _show_cell(self, cell: Any) -> str:
        """Return a cell's value as the workbook shows it, in one line."""
        if cell.ctype in (_NUMBER, _DATE):
            code = self._format(cell.xf_index)
            if code == GENERAL:
                return plain_number(cell.value)
            return show_exactly(cell.value, code, bool(self._book.datemode))
        if cell.ctype == _BOOLEAN:
            return "TRUE" if cell.value else "FALSE"
        if cell.ctype == _ERROR:
            biff: Any = import_module("xlrd.biffh")
            return str(biff.error_text_from_code.get(cell.value, "#ERROR"))
        return one_line(str(cell.value), CELL_CHARS, "the cell has more text")

    def _format(self, style: int | None) -> str:
        """Return the format code of a style."""
        styles = self._book.xf_list
        if style is None or style >= len(styles):
            return GENERAL
        found = self._book.format_map.get(styles[style].format_key)
        return GENERAL if found is None else str(found.format_str)

    def _comments(self, sheet: Any, title: str) -> dict[str, str]:
        """Return the comments of a sheet, by cell."""
        comments: dict[str, str] = {}
        for (row, column), note in sheet.cell_note_map.items():
            if len(comments) == MOST_NOTES * 10 or self._room.spent:
                self._missing.append(f"more than {len(comments):,} comments in sheet {title}")
                break
            author = one_line(str(note.author or ""))
            heading = f"comment by {author}" if author else "comment"
            text = one_line(str(note.text or "").removeprefix(f"{note.author}:"))
            shown = f"[{heading}: {text}]"
            self._room.tables -= len(shown) + len("; at XFD1048576\n")
            comments[cell_name(row + 1, column + 1)] = shown
        return comments

    def _beside(self, number: int, title: str) -> Iterator[str]:
        """Yield a sheet's headers, footers and text boxes; what else is beside its cells is counted as missing."""
        unread: Counter[str] = Counter()
        yield from self._notes_of_records(number, unread)
        if unread:
            self._missing.append(unread_phrase(title, unread))

    def _notes_of_records(self, number: int, unread: Counter[str]) -> Iterator[str]:
        kind = 0  # of the last object
        boxes = 0
        has_text = False  # the next record is the text of a text box
        for record, content in self._records(number):
            if has_text:
                has_text = False
                if record == _CONTINUE:
                    text = one_line(_text_of(content))
                    if text:
                        yield f"[text box] {text}"
                        continue
            if record == _OBJECT:
                kind = self._object_kind(content)
                if kind in _OBJECTS:
                    unread[_OBJECTS[kind]] += 1
            elif record == _TEXT_OBJECT and kind != _COMMENT_OBJECT:
                boxes += 1
                has_text = boxes <= MOST_NOTES
                if not has_text:
                    unread["more text box"] += 1
            elif record in (_HEADER, _FOOTER) and len(content) > 1:
                text = one_line(self._header_text(content))
                if text:
                    name = "header" if record == _HEADER else "footer"
                    yield f"[{name} of the printed page] {text}"

    def _object_kind(self, content: bytes) -> int:
        """Return what an object is; before BIFF8, a chart of each that is not a comment, as its text is in it."""
        if self._book.biff_version < _BIFF8 or len(content) < 6:
            return 0x05
        return int.from_bytes(content[4:6], "little")

    def _header_text(self, content: bytes) -> str:
        """Return a header without its codes: `&L`, `&C` and `&R` begin its parts, and others are formats."""
        if self._book.biff_version < _BIFF8:
            text = content[1 : 1 + content[0]].decode(self._book.encoding or "latin-1", "replace")
        else:
            text = _text_of(content[2:])
        return _without_codes(text)

    def _records(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the records of a sheet itself, without those of charts in it."""
        data = self._book.mem
        position = self._book._sh_abs_posn[number] if number < len(self._book._sh_abs_posn) else -1
        depth = 0
        while 0 <= position <= self._book.base + self._book.stream_len - 4 and not self._room.spent:
            record, length = struct.unpack_from("<HH", data, position)
            content = bytes(data[position + 4 : position + 4 + length])
            position += 4 + length
            if record == _BEGIN:
                depth += 1
            elif record == _END:
                depth -= 1
                if depth <= 0:
                    return
            elif depth == 1:
                yield record, content


def _text_of(content: bytes) -> str:
    """Return the characters of a string of BIFF8, which begins with a byte that tells how they are stored."""
    if not content:
        return ""
    if content[0] & 1:
        return content[1:].decode("utf-16-le", "replace")
    return content[1:].decode("latin-1")


def _without_codes(text: str) -> str:
    shown: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "&":
            shown.append(char)
            continue
        code = text[position : position + 1]
        position += 1
        if code == "&":
            shown.append("&")
        elif code in ("L", "C", "R"):
            shown.append(" ")
        elif code == '"':  # a font
            end = text.find('"', position)
            position = len(text) if end < 0 else end + 1
        elif code.isdigit():  # its size
            while text[position : position + 1].isdigit():
                position += 1
    return "".join(shown)


def _links(sheet: Any, table: SheetTable) -> Iterator[str]:
    links = sheet.hyperlink_list
    if len(links) > MOST_NOTES:
        more = count_phrase(len(links) - MOST_NOTES, "more link, which is not read", "more links, which are not read")
        yield f"[{more}]"
    for link in links[:MOST_NOTES]:
        address = one_line(str(link.url_or_path or ""))
        place = cell_name(link.frowx + 1, link.fcolx + 1)
        if address and without_scheme(address) not in table.get(link.frowx + 1, link.fcolx + 1):
            yield f"[link at {place}] {address}"
