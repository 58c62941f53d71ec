"""Workbooks: a table for each sheet as a person sees it, with the numbers of rows and the letters of columns."""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import Any, NamedTuple, cast

from ava_roles.errors import ToolFailed
from ava_roles.texts.extracted import ALL, Extracted, Part, Wanted
from ava_roles.texts.formats.addresses import without_scheme
from ava_roles.texts.formats.number_format import GENERAL, plain_number, show_exactly
from ava_roles.texts.formats.office import save_as
from ava_roles.texts.formats.package import OfficePackage, attribute_of, value_of
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
_NO_SHEETS = "this file has no sheets of a workbook: it is damaged, or has the name of another kind"
_ON = ("1", "true")
_RUN = "{http://schemas.openxmlformats.org/drawingml/2006/main}t"
_PARAGRAPH = "{http://schemas.openxmlformats.org/drawingml/2006/main}p"
_SHAPES = "{http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing}"


@parsing("workbook")
def read_xlsx(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return a workbook, a table for each sheet: values as last calculated, and formulas of cells without a value."""
    package = OfficePackage(data, "workbook", ".xlsx")
    if "xl/workbook.bin" in package.archive:
        raise ToolFailed(f"this workbook cannot be read: it is in a binary format; {save_as('.xlsx')}")
    with warnings.catch_warnings():  # openpyxl warns of what it could not write again, which nobody asks it to do
        warnings.simplefilter("ignore")
        return _Book(package).extracted()


class _Book:
    """A workbook that is being read.

    Only cells, links, merged cells, headers and comments are parsed by openpyxl, and each by itself: it refuses a whole
    workbook over a style or a view that Excel takes as it is.
    """

    def __init__(self, package: OfficePackage) -> None:
        self._package = package
        self._archive = package.archive
        self._main = _main_part(package)
        self._root = package.root(self._main)
        if self._root is None:
            raise ValueError("the list of sheets is damaged")
        deadline_s = time.monotonic() + PARSING_S
        self._room = SheetRoom(is_late=lambda: time.monotonic() > deadline_s)
        self._missing = self._room.missing  # one list for both: the room adds to it what did not fit
        self._is_from_1904 = any(value_of(each, "date1904") in _ON for each in _below(self._root, "workbookPr"))
        self._styles = _number_formats(self._part_of_kind("styles"))
        self._strings = [_string_text(each) for each in _below(self._part_of_kind("sharedStrings"), "si")]
        self._sheets: list[_Sheet] = []
        self._list_sheets()

    def _part_of_kind(self, kind: str) -> Any:
        """Return the XML of a part that belongs to the whole workbook; None if there is none."""
        for part in (*self._package.related(self._main, kind), f"xl/{kind}.xml"):
            if part in self._archive:
                return self._package.root(part)
        return None

    def _list_sheets(self) -> None:
        relations = self._package.relations(self._main)
        charts: list[str] = []
        lost: list[str] = []
        for each in _below(self._root, "sheets", "sheet"):
            title = one_line(attribute_of(each, "name"), NAME_CHARS)
            relation = relations.get(attribute_of(each, "id"))
            if relation is None or relation.target not in self._archive:
                lost.append(title)
            elif relation.kind == "chartsheet":
                charts.append(title)
            else:
                path = self._archive.getinfo(relation.target).filename
                self._sheets.append(_Sheet(title, attribute_of(each, "state") or "visible", path))
        for title in charts[:MOST_NOTES]:
            self._missing.append(f"sheet {title} is a chart; charts are not read")
        for title in lost[:MOST_NOTES]:
            self._missing.append(f"sheet {title} is listed but missing from the file")

    def extracted(self) -> Extracted:
        sheets = self._sheets
        if not sheets and not self._missing and not self._package.damage():
            raise ToolFailed(_NO_SHEETS)
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
        title = one_line(self._package.title() or "") or None
        missing = (*self._package.damage(), *self._missing)
        return Extracted(tuple(parts), title, total=max(len(sheets), 1), missing=missing, unread=unread)

    def _defined_names(self) -> str:
        lines: list[str] = []
        for each in _below(self._root, "definedNames", "definedName"):
            name = attribute_of(each, "name")
            if not name.startswith("_xl"):
                lines.append(f"[name {one_line(name)}] {one_line(each.text or '')}")
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
        if parser.lost_texts:
            self._missing.append(f"texts of cells of sheet {title} that are not in the file ({parser.lost_texts:,})")
        if parser.has_bad_parts:
            self._missing.append(f"headers, links or merged cells of sheet {title} that are damaged")
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
        code = self._styles[style] if style < len(self._styles) else GENERAL
        if code == GENERAL:
            return plain_number(value)
        return show_exactly(value, code, self._is_from_1904)

    # -- what is beside the cells -------------------------------------------------------------------------------------

    def _read_beside(self, sheet: _Sheet) -> _Beside:
        """Return a sheet's comments, links and text boxes, which other parts of the file have.

        Pictures, charts, embedded files and form controls are only counted, in a phrase of `self._missing`.
        """
        beside = _Beside()
        unread: Counter[str] = Counter()
        for relation_id, relation in self._package.relations(sheet.path).items():
            kind = relation.kind
            if kind == "hyperlink":
                beside.targets[relation_id] = relation.target
            elif relation.target not in self._archive:
                continue
            elif kind == "comments":
                self._read_comments(relation.target, sheet.title, beside)
            elif kind == "drawing":
                self._read_drawing(relation.target, beside, unread)
            elif kind in ("oleObject", "package"):
                unread["embedded file"] += 1
            elif kind in ("control", "ctrlProp"):
                unread["form control"] += 1
        if unread:
            self._missing.append(unread_phrase(sheet.title, unread))
        return beside

    def _read_comments(self, part: str, title: str, beside: _Beside) -> None:
        try:
            beside.comments.update(self._comments(part, title))
        except (TypeError, ValueError):  # what openpyxl raises over a damaged part
            self._missing.append(f"comments of sheet {title} that are damaged")

    def _comments(self, part: str, title: str) -> Iterator[tuple[str, str]]:
        """Yield the cell and the text of each comment in a part of the file."""
        sheets: Any = import_module("openpyxl.comments.comment_sheet")
        root = self._package.root(part)
        if root is None:
            return
        parsed: Any = sheets.CommentSheet.from_tree(root)
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
        tree = self._package.root(part)
        if tree is None:
            return
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


def _main_part(package: OfficePackage) -> str:
    """Return the part that lists the sheets. Raises ValueError: there is none."""
    for part in (*package.related("", "officeDocument"), "xl/workbook.xml"):
        if part in package.archive:
            return part
    raise ValueError("no list of sheets")


def _below(element: Any, *path: str) -> list[Any]:
    """Return the elements at the end of a path of names, without their namespaces; None has none."""
    found = [] if element is None else [element]
    for name in path:
        found = [each for outer in found for each in outer if str(each.tag).rpartition("}")[2] == name]
    return found


def _number_formats(root: Any) -> list[str]:
    """Return the format code of each style: one of the file's own, or one that every program knows."""
    from openpyxl.styles.numbers import BUILTIN_FORMATS

    own = {
        attribute_of(each, "numFmtId"): attribute_of(each, "formatCode") for each in _below(root, "numFmts", "numFmt")
    }
    codes: list[str] = []
    for style in _below(root, "cellXfs", "xf"):
        number = attribute_of(style, "numFmtId")
        code = own.get(number, "")
        if not code and number.isdecimal():
            code = BUILTIN_FORMATS.get(int(number[:9]), "")
        codes.append(code or GENERAL)
    return codes


def _string_text(element: Any) -> str:
    """Return the text of a string, which may be in runs; how to pronounce it is left out."""
    runs = [*_below(element, "t"), *_below(element, "r", "t")]
    return "".join(run.text or "" for run in runs).replace("x005F_", "")


def _parser_class() -> Any:
    reader: Any = import_module("openpyxl.worksheet._reader")
    translator: Any = import_module("openpyxl.formula.translate")
    formula_tag = reader.FORMULA_TAG
    unread_tags = (
        reader.CF_TAG,
        reader.EXT_TAG,
        reader.FILTER_TAG,
        reader.SCENARIOS_TAG,
        reader.TABLE_TAG,
        reader.VALIDATION_TAG,
    )

    class Parser(reader.WorkSheetParser):  # type: ignore[misc]
        """Reads the values of a sheet, and the formula of each cell that has no value."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)  # pyright: ignore[reportUnknownMemberType]
            self._sizes: dict[str | None, int] = {}  # of the formulas that cells share
            self._translated = 0  # characters of formulas
            self.lost_texts = 0
            self.has_bad_parts = False

        def parse(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
            """Yield the rows. Of what is beside them only this is read, and the rest is not looked into."""
            parts = {
                reader.HEADER_TAG: ("HeaderFooter", reader.HeaderFooter),
                reader.HYPERLINK_TAG: ("hyperlinks", reader.HyperlinkList),
                reader.MERGE_TAG: ("merged_cells", reader.MergeCells),
            }
            for _event, element in reader.iterparse(self.source):
                if element.tag == reader.ROW_TAG:
                    row = self.parse_row(element)
                    element.clear()
                    yield row
                elif element.tag == reader.COL_TAG:
                    _drop_unless_number(element, "max")
                    with suppress(KeyError, ValueError):
                        self.parse_column_dimensions(element)  # pyright: ignore[reportUnknownMemberType]
                    element.clear()
                elif element.tag in parts:
                    name, part_class = parts[element.tag]
                    try:
                        setattr(self, name, part_class.from_tree(element))
                    except (TypeError, ValueError):
                        self.has_bad_parts = True
                    element.clear()
                elif element.tag in unread_tags:
                    element.clear()

        def parse_row(self, row: Any) -> tuple[int, list[dict[str, Any]]]:
            _drop_empty_attributes(row)
            _drop_unless_number(row, "r")
            return cast("tuple[int, list[dict[str, Any]]]", super().parse_row(row))  # pyright: ignore[reportUnknownMemberType]

        def parse_cell(self, element: Any) -> dict[str, Any]:
            _drop_empty_attributes(element)
            _drop_unless_number(element, "s")
            place = element.get("r", "")
            if place and not _CELL.fullmatch(place):
                place = place.replace("$", "").upper()
                if not _CELL.fullmatch(place):
                    raise ValueError("no place of a cell")
                element.set("r", place)
            try:
                cell = cast("dict[str, Any]", super().parse_cell(element))  # pyright: ignore[reportUnknownMemberType]
            except (TypeError, ValueError, IndexError, OverflowError):
                cell = self._cell_as_written(element)
            formula = element.find(formula_tag)
            if formula is None:
                return cell
            if cell["value"] is None:
                cell["value"], cell["data_type"] = self._formula_text(element, formula), "f"
            elif formula.get("t") == "shared" and formula.text:
                self._formula_text(element, formula)  # for the cells that share it
            return cell

        def _cell_as_written(self, element: Any) -> dict[str, Any]:
            """Return a cell whose value is none of its kind with what is written there."""
            kind = element.get("t", "n")
            text = (element.findtext(reader.VALUE_TAG) or "").strip()
            if kind == "inlineStr":
                text = _string_text(element.find(reader.INLINE_STRING))
            elif kind == "s" and text:
                self.lost_texts += 1
                text = ""
            place = {"row": self.row_counter, "column": self.col_counter}
            return {**place, "value": text or None, "data_type": "s", "style_id": 0}

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


def _drop_empty_attributes(element: Any) -> None:
    """Take an empty attribute for none, as Excel does: some programs write no style as `s=""`."""
    if "" in element.attrib.values():
        for name in [name for name, value in element.attrib.items() if value == ""]:
            del element.attrib[name]


def _drop_unless_number(element: Any, name: str) -> None:
    """Take an attribute for none that is no number of a row, column or style."""
    if not _NUMBER.fullmatch(element.get(name, "1")):
        del element.attrib[name]


_NUMBER = re.compile(r"[0-9]{1,7}")
_CELL = re.compile(r"[A-Z]{1,3}[1-9]\d{0,6}")
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
