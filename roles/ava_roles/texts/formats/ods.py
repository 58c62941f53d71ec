"""OpenDocument spreadsheets: a table for each sheet as a person sees it, as `workbook.py` shows those of Excel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ava_roles.texts.extracted import ALL, Extracted, Part, Wanted
from ava_roles.texts.formats.number_format import with_exact
from ava_roles.texts.formats.opendocument import OpenPackage, OpenReader, count_of, rows_of
from ava_roles.texts.formats.opendocument_lists import style_elements
from ava_roles.texts.formats.package import (
    attribute_of,
    child,
    children,
    descendants,
    name_of,
    value_of,
)
from ava_roles.texts.formats.sheet_table import (
    CELL_CHARS,
    LAST_COLUMN,
    MAX_COLUMNS,
    MOST_NOTES,
    NAME_CHARS,
    SheetRoom,
    SheetTable,
    describe_hidden,
    one_line,
)
from ava_roles.texts.phrases import count_phrase
from ava_roles.texts.web_page import parsing

_MOST_REPEATS = 100
"""The most times that equal rows in succession are shown; a note says how many follow."""
_VALUES = ("string-value", "date-value", "time-value", "boolean-value", "value")
_NUMBERS = ("float", "percentage", "currency")
_SHOWN = ("text:p", "text:h", "text:list", "table:table")
_HIDDEN = ("collapse", "filter")
_COLUMN_GROUPS = frozenset(("table:table-columns", "table:table-header-columns", "table:table-column-group"))


@parsing("OpenDocument spreadsheet")
def read_ods(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return a spreadsheet, a table for each sheet: values as last shown, and formulas of cells without a value."""
    package = OpenPackage(data, "OpenDocument spreadsheet", ".ods")
    reader = _Reader(package, "office:spreadsheet")
    return reader.extracted()


@dataclass
class _Sheet:
    """A sheet that is being read."""

    title: str
    table: SheetTable = field(default_factory=SheetTable)
    merged: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])
    hidden_rows: list[int] = field(default_factory=list[int])
    hidden_columns: list[int] = field(default_factory=list[int])
    notes: list[str] = field(default_factory=list[str])


class _Reader(OpenReader):
    _joins_lines = True

    def __init__(self, package: OpenPackage, main: str) -> None:
        super().__init__(package, main)
        self._room = SheetRoom(is_late=lambda: self._budget.late)
        self._unread = False

    def extracted(self) -> Extracted:
        parts: list[Part] = []
        hidden = self._hidden_sheets()
        tables = children(self._body, "table:table")
        for number, each in enumerate(tables):
            title = one_line(attribute_of(each, "name"), NAME_CHARS)
            source = child(each, "table:table-source")
            if source is not None:
                address = one_line(attribute_of(source, "href"))
                self._room.missing.append(f"sheet {title} has cells of another file, which is not opened ({address})")
            if self._room.spent:
                titles = [one_line(attribute_of(other, "name")) for other in tables[number : number + 20]]
                more = count_phrase(
                    len(tables) - number, "more sheet, which is not read", "more sheets, which are not read"
                )
                self._room.missing.append(f"{more}: {', '.join(titles)}")
                self._unread = True
                break
            suffix = " (hidden)" if value_of(each, "style-name") in hidden else ""
            place = f"sheet {title}{suffix}"
            parts.append(Part(place, self._sheet_text(title, each)))
            self._room.tables -= len(place) + len("[]\n\n\n")
        names = self._defined_names()
        if names:
            parts.append(Part("", names))
        for each in children(self._body, "table:tracked-changes"):
            self._changes(each)
        missing = (*self._room.missing, *self.missing())
        return Extracted(tuple(parts), self._package.title(), max(len(tables), 1), missing, self._unread)

    def _hidden_sheets(self) -> set[str | None]:
        names: set[str | None] = set()
        for each in style_elements([self._root]):
            if value_of(child(each, "style:table-properties"), "display") == "false":
                names.add(value_of(each, "name"))
        return names

    def _defined_names(self) -> str:
        lines: list[str] = []
        for each in descendants(self._body, "table:named-range", "table:named-expression"):
            name = attribute_of(each, "name")
            meaning = value_of(each, "cell-range-address") or attribute_of(each, "expression")
            lines.append(f"[name {one_line(name)}] {one_line(meaning)}")
        return self._room.defined_names(lines)

    # -- one sheet --------------------------------------------------------------------------------------------

    def _sheet_text(self, title: str, element: Any) -> str:
        sheet = _Sheet(title)
        self._note_hidden_columns(sheet, element)
        self._read_rows(sheet, element)
        self._room.fill_merged(sheet.table, sheet.merged, title)
        self._room.note_columns(sheet.table, title)
        below = [*sheet.notes, *describe_hidden(sheet.hidden_rows, sheet.hidden_columns)]
        shapes = child(element, "table:shapes")
        boxes = [] if shapes is None else self._apart(shapes)
        below += [f"[text box] {one_line(box)}" for box in boxes[:MOST_NOTES]]
        if len(boxes) > MOST_NOTES:
            self._room.missing.append(
                f"{count_phrase(len(boxes) - MOST_NOTES, 'more text box', 'more text boxes')} of sheet {title}"
            )
        below += self._printed(element)
        return "\n".join([*sheet.table.lines(), *self._room.fitting(below, f"notes and text boxes of sheet {title}")])

    def _note_hidden_columns(self, sheet: _Sheet, element: Any) -> None:
        column = 1
        for each in _columns(element):
            count = count_of(each, "number-columns-repeated")
            if value_of(each, "visibility") in _HIDDEN:
                sheet.hidden_columns += range(column, min(column + count - 1, LAST_COLUMN) + 1)
            column += count

    def _read_rows(self, sheet: _Sheet, element: Any) -> None:
        number = 1
        for row in rows_of(element):
            count = count_of(row, "number-rows-repeated")
            cells = self._cells(sheet, number, row)
            shown = min(count, _MOST_REPEATS) if cells else 0
            for index in range(number, number + shown):
                if not self._put_row(sheet, index, cells):
                    rest = f"what comes from row {index:,} on in sheet {sheet.title}"
                    self._room.missing.append(f"{rest} is too long to read")
                    self._unread = True
                    return
            if value_of(row, "visibility") in _HIDDEN:
                sheet.hidden_rows += range(number, number + max(shown, 1))
            if cells and count > shown:
                first, last = number + shown, number + count - 1
                sheet.notes.append(f"[rows {first:,} to {last:,} are the same as row {number:,}]")
            number += count

    def _put_row(self, sheet: _Sheet, row: int, cells: list[tuple[int, str]]) -> bool:
        """Add the cells of a row; return False if there was no room for all of them."""
        for column, text in cells:
            if self._room.spent:
                return False
            self._room.tables -= sheet.table.put(row, column, text)
        return True

    def _cells(self, sheet: _Sheet, number: int, row: Any) -> list[tuple[int, str]]:
        """Return the cells of a row that have text, by their columns."""
        texts: list[tuple[int, str]] = []
        column = 1
        for cell in children(row, "table:table-cell", "table:covered-table-cell"):
            count = count_of(cell, "number-columns-repeated")
            text = self._cell_text(sheet, cell)
            if text:
                last = column + count - 1
                texts += [(index, text) for index in range(column, min(last, MAX_COLUMNS) + 1)]
                if last > MAX_COLUMNS:
                    sheet.table.is_cut = True
            rows = count_of(cell, "number-rows-spanned")
            columns = count_of(cell, "number-columns-spanned")
            if rows > 1 and len(sheet.merged) < MOST_NOTES * 10:
                sheet.merged.append((column, number, column + columns - 1, number + rows - 1))
            column += count
        return texts

    def _cell_text(self, sheet: _Sheet, cell: Any) -> str:
        blocks: list[str] = []
        comments: list[str] = []
        drawn: list[str] = []
        for each in cell:
            if name_of(each) in _SHOWN:
                blocks += self._blocks_from(each)
            elif name_of(each) in ("office:annotation", "officeooo:annotation"):
                author, text = self._read_comment(each)
                heading = f"comment by {author}" if author else "comment"
                comments.append(f"[{heading}: {one_line(text)}]")
            else:
                drawn += self._blocks_from(each)
        sheet.notes += [f"[text box] {one_line(text)}" for text in drawn]
        text = " ".join("\n".join(blocks).split())
        text = _with_exact_value(text, cell) if text else _value(cell)
        if len(text) > CELL_CHARS:
            text = f"{text[:CELL_CHARS]} (cut here: the cell has more text)"
        return " ".join(filter(None, [text, *comments]))

    def _blocks_from(self, element: Any) -> list[str]:
        outer, self._blocks = self._blocks, []
        self._element(element)
        self._end_paragraph()
        blocks, self._blocks = self._blocks, outer
        self._size = 0  # the room of sheets counts what is shown
        return blocks

    def _printed(self, element: Any) -> Iterator[str]:
        """Yield the headers and footers of the printed pages of a sheet."""
        master = self._master_of(value_of(element, "style-name"))
        lines: dict[str, None] = {}
        for page in self.master_pages():
            if value_of(page, "name") != master:
                continue
            for each in self.margins_of(page):
                is_header = name_of(each).startswith("style:header")
                margin = "header" if is_header else "footer"
                text = one_line(" ".join(self._apart(each)))
                if text:
                    lines[f"[{margin} of the printed page] {text}"] = None
        yield from lines

    def _master_of(self, style: str | None) -> str:
        for each in style_elements([self._root]):
            if value_of(each, "family") == "table" and value_of(each, "name") == style:
                return value_of(each, "master-page-name") or "Default"
        return "Default"


def _columns(element: Any) -> Iterator[Any]:
    for each in element:
        name = name_of(each)
        if name == "table:table-column":
            yield each
        elif name in _COLUMN_GROUPS:
            yield from _columns(each)


def _with_exact_value(text: str, cell: Any) -> str:
    """Return the text of a cell, with its exact number beside it where rounding hides that."""
    if value_of(cell, "value-type") not in _NUMBERS:
        return text
    try:
        return with_exact(text, float(value_of(cell, "value") or ""))
    except ValueError:
        return text


def _value(cell: Any) -> str:
    """Return the value of a cell whose text the file leaves out, or else its formula."""
    for name in _VALUES:
        value = value_of(cell, name)
        if value:
            return one_line(value, CELL_CHARS)
    formula = attribute_of(cell, "formula")
    _prefix, _colon, rest = formula.partition(":")
    return one_line(rest or formula, CELL_CHARS)
