"""Workbooks: a table for each sheet as a person sees it, with the numbers of rows and the letters of columns."""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import Any, NamedTuple, cast

from ava_roles.errors import ToolFailed
from ava_roles.texts.extracted import ALL, Extracted, Part, Wanted
from ava_roles.texts.formats.addresses import without_scheme
from ava_roles.texts.formats.number_format import GENERAL, plain_number, show_exactly
from ava_roles.texts.formats.office import OfficeArchive, open_office_file, save_as
from ava_roles.texts.formats.sheet_table import (
    CELL_CHARS,
    LAST_COLUMN,
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
from ava_roles.texts.phrases import count_phrase
from ava_roles.texts.web_page import PARSING_S, parsing

_TRANSLATED_CHARS = 1_000_000  # of formulas that cells share: to translate them takes 3 s for a million
_FIRST_OWN_FORMAT = 164  # the number of the first format that a file defines itself
_RUN = "{http://schemas.openxmlformats.org/drawingml/2006/main}t"
_PARAGRAPH = "{http://schemas.openxmlformats.org/drawingml/2006/main}p"
_SHAPES = "{http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing}"


@parsing("workbook")
def read_xlsx(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return a workbook, a table for each sheet: values as last calculated, and formulas of cells without a value."""
    file = open_office_file(data, "workbook", ".xlsx")
    archive = file.archive
    if "xl/workbook.bin" in archive:
        raise ToolFailed(f"this workbook cannot be read: it is in a binary format; {save_as('.xlsx')}")
    with warnings.catch_warnings():  # openpyxl warns of what it could not write again, which nobody asks it to do
        warnings.simplefilter("ignore")
        reader = _reader(archive)
        reader.read()
        try:
            return _Book(reader, file.missing()).extracted()
        finally:
            reader.wb.close()


class _Book:
    """A workbook that is being read.

    `reader`: the `Reader` of `_reader`, whose class is made where openpyxl is imported, so that it has no name here.
    """

    def __init__(self, reader: Any, missing: Sequence[str]) -> None:
        """`missing`: phrases on what the damage of the file has taken."""
        self._book = reader.wb
        self._names = reader.parser.defined_names.definedName
        self._archive: OfficeArchive = reader.archive
        deadline_s = time.monotonic() + PARSING_S
        self._room = SheetRoom(is_late=lambda: time.monotonic() > deadline_s)
        self._formats: dict[int, str] = {}
        self._sheets: list[_Sheet] = reader.sheets
        self._strings = reader.shared_strings
        self._missing = self._room.missing  # one list for both: the room adds to it what did not fit
        self._missing += missing
        for title in reader.charts[:MOST_NOTES]:
            self._missing.append(f"sheet {title} is a chart; charts are not read")
        for title in reader.lost[:MOST_NOTES]:
            self._missing.append(f"sheet {title} is listed but missing from the file")

    def extracted(self) -> Extracted:
        sheets = self._sheets
        if not sheets and not self._missing:
            raise ToolFailed("this file has no sheets of a workbook: it is damaged, or has the name of another kind")
        parts: list[Part] = []
        unread = False
        for number, sheet in enumerate(sheets):
            if self._room.spent:
                titles = ", ".join(each.title for each in sheets[number : number + 20])
                more = count_phrase(
                    len(sheets) - number, "more sheet, which is not read", "more sheets, which are not read"
                )
                self._missing.append(f"{more}: {titles}")
                unread = True
                break
            heading = f"sheet {sheet.title}"
            if sheet.state != "visible":
                heading += " (hidden)"
            text, is_complete = self._sheet_text(sheet)
            parts.append(Part(heading, text))
            self._room.tables -= len(heading) + len("[]\n\n\n")
            if not is_complete:
                unread = True
        names = self._defined_names()
        if names:
            parts.append(Part("", names))
        if any(name.lower().endswith("vbaproject.bin") for name in self._archive.namelist()):
            self._missing.append("macros, which are neither run nor read")
        title = one_line(str(self._book.properties.title or "")) or None
        return Extracted(tuple(parts), title, total=max(len(sheets), 1), missing=tuple(self._missing), unread=unread)

    def _defined_names(self) -> str:
        lines: list[str] = []
        for each in self._names:
            name = str(each.name)
            if not name.startswith("_xl"):
                lines.append(f"[name {one_line(name)}] {one_line(str(each.attr_text))}")
        return self._room.defined_names(lines)

    # -- one sheet ----------------------------------------------------------------------------------------------------

    def _sheet_text(self, sheet: _Sheet) -> tuple[str, bool]:
        """Return a sheet as a table with notes below, and whether all of it was read."""
        title = sheet.title
        beside = self._read_beside(sheet)
        parser_class = _parser_class()
        table = SheetTable()
        is_complete = True
        with self._archive.open(sheet.path) as source:
            parser = parser_class(source, self._strings, data_only=True)
            for number, cells in parser.parse():
                if self._room.spent or not self._add_row(table, number, cells, beside.comments):
                    self._missing.append(f"what comes from row {number:,} on in sheet {title} is too long to read")
                    is_complete = False
                    break
        if is_complete:
            self._room.fill_merged(table, _ranges(parser.merged_cells), title)
        self._room.note_columns(table, title)
        lines = list(table.lines())
        hidden = describe_hidden(_hidden_rows(parser), _hidden_columns(parser))
        below = [*hidden, *_links(parser, beside.targets, table)]
        lines += self._room.fitting(below, f"links of sheet {title}")
        lines += beside.lines()
        lines += self._room.fitting(_headers(parser), f"headers and footers of sheet {title}")
        return "\n".join(lines), is_complete

    def _add_row(
        self, table: SheetTable, number: int, cells: Iterable[dict[str, Any]], comments: dict[str, str]
    ) -> bool:
        """Add the cells of a row; return False if there was no room for all of them."""
        for cell in cells:
            column = cell["column"]
            has_value = cell["value"] is not None
            if has_value and self._room.tables <= 0:
                return False
            if column > MAX_COLUMNS:
                if has_value:
                    table.is_cut = True
                continue
            text = self._show_cell(cell)
            comment = ""
            if comments:
                comment = comments.pop(cell_name(number, column), "")
            if comment:
                text = f"{text} {comment}".lstrip()
            if text:
                self._room.tables -= table.put(number, column, text)
        return True

    def _show_cell(self, cell: dict[str, Any]) -> str:
        """Return a cell's value as the workbook shows it, in one line; dates without a time as YYYY-MM-DD."""
        value = cell["value"]
        if value is None:
            return ""
        if cell["data_type"] == "n" and not isinstance(value, str):
            return self._show_number(value, cell["style_id"])
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, datetime) and value.time() == datetime.min.time():
            return str(value.date())
        text = getattr(value, "text", value)  # of a formula for an array
        return one_line(str(text), CELL_CHARS, "the cell has more text")

    def _show_number(self, value: float, style: int) -> str:
        if style not in self._formats:
            self._formats[style] = str(self._format(style))
        code = self._formats[style]
        if code == GENERAL:
            return plain_number(value)
        return show_exactly(value, code, bool(self._book.epoch.year == 1904))

    def _format(self, style: int) -> Any:
        """Return the format code of a style: one of the file's own, or one that every program knows."""
        from openpyxl.styles.numbers import BUILTIN_FORMATS

        styles = self._book._cell_styles
        number = styles[style].numFmtId if style < len(styles) else 0
        own_formats = self._book._number_formats
        own = number - _FIRST_OWN_FORMAT
        if 0 <= own < len(own_formats):
            return own_formats[own]
        return BUILTIN_FORMATS.get(number, GENERAL)

    # -- what is beside the cells -------------------------------------------------------------------------------------

    def _read_beside(self, sheet: _Sheet) -> _Beside:
        """Return a sheet's comments, links and text boxes, which other parts of the file have.

        Pictures, charts, embedded files and form controls are only counted, in a phrase of `self._missing`.
        """
        relationship: Any = import_module("openpyxl.packaging.relationship")
        path = relationship.get_rels_path(sheet.path)
        beside = _Beside()
        if path not in self._archive:
            return beside
        unread: Counter[str] = Counter()
        for each in relationship.get_dependents(self._archive, path):
            kind = each.Type.rpartition("/")[2]
            if kind == "hyperlink":
                beside.targets[each.Id] = each.Target
            elif each.Target not in self._archive:
                continue
            elif kind == "comments":
                beside.comments.update(self._comments(each.Target, sheet.title))
            elif kind == "drawing":
                self._read_drawing(each.Target, beside, unread)
            elif kind in ("oleObject", "package"):
                unread["embedded file"] += 1
            elif kind in ("control", "ctrlProp"):
                unread["form control"] += 1
        if unread:
            self._missing.append(unread_phrase(sheet.title, unread))
        return beside

    def _comments(self, part: str, title: str) -> Iterator[tuple[str, str]]:
        """Yield the cell and the text of each comment in a part of the file."""
        sheets: Any = import_module("openpyxl.comments.comment_sheet")
        parsed: Any = sheets.CommentSheet.from_tree(self._xml(part))
        for number, (cell, comment) in enumerate(parsed.comments):
            if number == MOST_NOTES * 10 or self._room.spent:
                self._missing.append(f"more than {number:,} comments in sheet {title}")
                return
            author = one_line(str(comment.author or ""))
            heading = "comment"
            if author.lower() not in ("", "none"):
                heading = f"comment by {author}"
            text = one_line(str(comment.text or "").removeprefix(f"{comment.author}:"))
            shown = f"[{heading}: {text}]"
            self._room.tables -= len(shown) + len("; at XFD1048576\n")
            yield cell, shown

    def _read_drawing(self, part: str, beside: _Beside, unread: Counter[str]) -> None:
        tree = self._xml(part)
        for shape in tree.iter(f"{_SHAPES}sp"):
            paragraphs = ["".join(run.text or "" for run in each.iter(_RUN)) for each in shape.iter(_PARAGRAPH)]
            text = one_line(" ".join(paragraphs))
            if not text:
                continue
            if len(beside.boxes) < MOST_NOTES and self._room.tables > 0:
                beside.boxes.append(text)
                self._room.tables -= len(text) + len("[text box] \n")
            else:
                unread["more text box"] += 1
        for _ in tree.iter(f"{_SHAPES}pic"):
            unread["picture"] += 1
        for _ in tree.iter(f"{_SHAPES}graphicFrame"):
            unread["chart or diagram"] += 1

    def _xml(self, part: str) -> Any:
        functions: Any = import_module("openpyxl.xml.functions")
        return functions.fromstring(self._archive.read(part))


@dataclass
class _Beside:
    """What belongs to a sheet and is in other parts of the file: comments by cell, addresses by id, text boxes."""

    comments: dict[str, str] = field(default_factory=dict[str, str])
    targets: dict[str, str] = field(default_factory=dict[str, str])
    boxes: list[str] = field(default_factory=list[str])

    def lines(self) -> Iterator[str]:
        for place, comment in self.comments.items():  # of cells without a value, which no row has
            yield f"{comment[:-1]}; at {place}]"
        for text in self.boxes:
            yield f"[text box] {text}"


class _Sheet(NamedTuple):
    title: str
    state: str
    path: str  # in the archive


def _reader(archive: OfficeArchive) -> Any:
    excel: Any = import_module("openpyxl.reader.excel")

    class Reader(excel.ExcelReader):  # type: ignore[misc]
        """Opens a workbook without its sheets, and without the files to which it links."""

        def __init__(self) -> None:
            super().__init__(archive.fp, read_only=True, data_only=True, keep_links=False)  # pyright: ignore[reportUnknownMemberType]
            self.archive = self.valid_files = archive  # which finds parts by any spelling of their names
            self.sheets: list[_Sheet] = []
            self.charts: list[str] = []
            self.lost: list[str] = []

        def read_worksheets(self) -> None:
            """Note where the sheets are; openpyxl would parse each of them here to find its size."""
            for sheet in self.parser.sheets:
                relation = self.parser.rels.get(sheet.id)
                title = one_line(str(sheet.name), NAME_CHARS)
                if relation is None or relation.target not in self.valid_files:
                    self.lost.append(title)
                elif "chartsheet" in relation.Type:
                    self.charts.append(title)
                else:
                    path = archive.getinfo(str(relation.target)).filename
                    self.sheets.append(_Sheet(title, str(sheet.state), path))

    return Reader()


def _parser_class() -> Any:
    reader: Any = import_module("openpyxl.worksheet._reader")
    translator: Any = import_module("openpyxl.formula.translate")
    formula_tag = reader.FORMULA_TAG

    class Parser(reader.WorkSheetParser):  # type: ignore[misc]
        """Reads the values of a sheet, and the formula of each cell that has no value."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)  # pyright: ignore[reportUnknownMemberType]
            self._sizes: dict[str | None, int] = {}  # of the formulas that cells share
            self._translated = 0  # characters of formulas

        def parse_cell(self, element: Any) -> dict[str, Any]:
            if element.get("s") == "":  # some programs write no style so; openpyxl takes it for one
                del element.attrib["s"]
            cell = cast("dict[str, Any]", super().parse_cell(element))  # pyright: ignore[reportUnknownMemberType]
            formula = element.find(formula_tag)
            if formula is None:
                return cell
            if cell["value"] is None:
                cell["value"], cell["data_type"] = self._formula_text(element, formula), "f"
            elif formula.get("t") == "shared" and formula.text:
                self._formula_text(element, formula)  # for the cells that share it
            return cell

        def _formula_text(self, element: Any, formula: Any) -> Any:
            """Return a formula, and note one that other cells share: for each of them it has to be translated."""
            shared_id = formula.get("si") if formula.get("t") == "shared" else None
            shared = self.shared_formulae.get(shared_id)
            if shared is None:
                self._sizes[shared_id] = len(formula.text or "")
                return self.parse_formula(element)
            self._translated += self._sizes[shared_id]
            if self._translated <= _TRANSLATED_CHARS:
                with suppress(translator.TranslatorError):
                    return self.parse_formula(element)
            return f"(the formula of cell {cell_name(shared.row, shared.col)})"

    return Parser


_RANGE = re.compile(r"([A-Z]{1,3})(\d{1,7})(?::([A-Z]{1,3})(\d{1,7}))?")


def _ranges(merged: Any) -> Iterator[tuple[int, int, int, int]]:
    """Yield the merged cells of a sheet: first column, first row, last column, last row."""
    for each in list(getattr(merged, "mergeCell", ()))[: MOST_NOTES * 10]:
        match = _RANGE.fullmatch(str(each.ref))
        if match:
            left, top, right, bottom = match.groups()
            yield _column(left), int(top), _column(right or left), int(bottom or top)


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def _hidden_rows(parser: Any) -> list[int]:
    return sorted(int(row) for row, size in parser.row_dimensions.items() if _is_hidden(size))


def _hidden_columns(parser: Any) -> list[int]:
    hidden: list[int] = []
    for size in sorted(parser.column_dimensions.values(), key=_first_column):
        if not _is_hidden(size):
            continue
        first = _first_column(size)
        if hidden:
            first = max(first, hidden[-1] + 1)
        last = min(int(size.get("max", size["min"])), LAST_COLUMN)
        hidden += range(first, last + 1)
    return hidden


def _first_column(size: Any) -> int:
    return int(size["min"])


def _is_hidden(size: Any) -> bool:
    return size.get("hidden") in ("1", "true")


def _links(parser: Any, targets: dict[str, str], table: SheetTable) -> Iterator[str]:
    links = list(getattr(parser.hyperlinks, "hyperlink", ()))
    if len(links) > MOST_NOTES:
        more = count_phrase(len(links) - MOST_NOTES, "more link, which is not read", "more links, which are not read")
        yield f"[{more}]"
    for link in links[:MOST_NOTES]:
        address = one_line(targets.get(link.id or "") or "")
        bare_address = without_scheme(address)
        text = ""
        cell = _RANGE.match(link.ref or "")
        if cell:
            text = table.get(int(cell[2]), _column(cell[1]))
        if bare_address and bare_address not in text:
            yield f"[link at {one_line(link.ref)}] {address}"


def _headers(parser: Any) -> Iterator[str]:
    margins = getattr(parser, "HeaderFooter", None)
    lines: dict[str, None] = {}
    for name in ("oddHeader", "oddFooter", "firstHeader", "firstFooter", "evenHeader", "evenFooter"):
        margin = getattr(margins, name, None)
        texts: list[str] = []
        for side in ("left", "center", "right"):
            text = getattr(getattr(margin, side, None), "text", None)
            if text:
                texts.append(str(text))
        text = one_line(" ".join(texts))
        if text:
            kind = "header" if name.endswith("Header") else "footer"
            lines[f"[{kind} of the printed page] {text}"] = None
    yield from lines
