"""The tables of an HTML page: their rows, and the marks by which `table_rows` finds these in the page's text.

A table for the layout of a page has no marks, and no table has them where it is not certain in which column a cell
stands, or which of its rows are heads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

TABLE, HEAD_ROW, ROW, CELL, NEXT_CELL, TABLE_END = "\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4\ufdd5"
"""What begins a table, a row of heads, another row, a cell, and a cell beside another on its line; and a table's end.

They are no characters (Unicode keeps them for use within a program), and no page has them: see `without_marks`.
"""
_MARK = re.compile("([\ufdd0-\ufdd5])")
HEADS_LINE = "|:--|"
"""How the line below each row of heads begins where a table's heads are certain."""
ROW_CHARS = 2_400
"""The longest row with heads outside a sheet; a longer one would be cut, at columns that it does not have."""
_CELL_CHARS = 300
"""The longest cell of a table that names no heads; one with longer texts is for the layout of a page."""
_COLUMNS = 200
_HEAD_ROWS = 4


class MarkedText(NamedTuple):
    """What stands between two marks of a text; `mark`: the one before it, empty at the beginning."""

    mark: str
    text: str


def split_marks(text: str) -> Iterator[MarkedText]:
    """Yield the pieces of a text between its marks."""
    first, *others = _MARK.split(text)
    yield MarkedText("", first)
    for mark, piece in zip(others[::2], others[1::2], strict=True):
        yield MarkedText(mark, piece)


def without_marks(text: str) -> str:
    """Return a text that has none of the characters by which tables are marked."""
    return _MARK.sub("\ufffd", text)


class Span(NamedTuple):
    """A cell that reaches into later rows: how many rows it has from this one on, its columns, and its text."""

    rows: int
    columns: int
    text: str
    is_head: bool


@dataclass
class _Row:
    """A row: where the parts of the text have its mark, whether it is in <thead>, and how many cells it has."""

    at: int
    in_head: bool
    cells: int = 0
    head_cells: int = 0

    @property
    def has_heads(self) -> bool:
        return self.cells > 0 and (self.in_head or self.head_cells == self.cells > 1)


class PageTable:
    """A table that is open.

    Attributes:
        column: The one in which the next cell stands, from 0.
        spans: By their columns, the cells that reach into later rows.
        is_uncertain: It is for layout, or it is not known in which columns its cells stand, or all of its text.
        takes_text: A cell is open, or a caption above the rows. Text elsewhere is in no row; a browser shows it above
            the table.
    """

    def __init__(self, parts: list[str], *, is_marked: bool) -> None:
        self.column = 0
        self.spans: dict[int, Span] = {}
        self.is_uncertain = not is_marked
        self.takes_text = False
        self._is_marked = is_marked
        self._parts = parts
        self._begin = len(parts)
        self._marks: list[int] = []
        self._rows: list[_Row] = []
        self._is_in_row = False
        self._mark(TABLE)

    def start_caption(self) -> None:
        self.takes_text = not self._rows

    def end_caption(self) -> None:
        self.takes_text = False

    def start_row(self, *, in_head: bool) -> None:
        self.column = 0
        self._is_in_row = True
        if self._is_marked:
            self._rows.append(_Row(len(self._parts), in_head))
        self._mark(ROW)

    def end_row(self) -> None:
        self._is_in_row = False
        later_spans: dict[int, Span] = {}
        for column, span in self.spans.items():
            if span.rows > 1:
                later_spans[column] = span._replace(rows=span.rows - 1)
        self.spans = later_spans

    def start_cell(self, *, is_head: bool, is_next: bool) -> None:
        """Mark a cell; `is_next`: it is beside another one on its line."""
        if is_next and not self._is_marked:
            self._parts.append(" | ")
        self._mark(NEXT_CELL if is_next else CELL)
        self.takes_text = True
        if not self._is_in_row:
            self.is_uncertain = True
        elif self._rows:
            self._rows[-1].cells += 1
            self._rows[-1].head_cells += is_head

    def end_cell(self, columns: int) -> None:
        """Go on behind a cell of so many columns."""
        self.takes_text = False
        self.column += columns
        if self.column > _COLUMNS:
            self.is_uncertain = True
        else:
            for _column in range(columns - 1):
                self._mark(CELL)

    def close(self, *, keep_lines: bool) -> None:
        """End the table: with `keep_lines` its marks stay, else its rows become those of a Markdown table."""
        if not self._is_marked:
            return
        heads = None if self.is_uncertain else self._heads()
        if heads is None or any(len(text) > ROW_CHARS for text in self._texts_of_rows()):
            self._take_marks_away()
            return
        if not heads and self._is_for_layout(keep_lines):
            self._take_marks_away()
            return
        for row in heads:
            self._parts[row.at] = HEAD_ROW
        self._mark(TABLE_END)
        if not keep_lines:
            self._parts[self._begin :] = [_markdown("".join(self._parts[self._begin :]))]

    def _mark(self, mark: str) -> None:
        if self._is_marked:
            self._marks.append(len(self._parts))
            self._parts.append(mark)

    def _heads(self) -> list[_Row] | None:
        """Return the rows of heads, those with rows below; none if the page names none; None if no row has heads.

        A page that names only the heads of rows (<th>) has no heads of columns.
        """
        rows = [row for row in self._rows if row.cells]
        if len(rows) < 2 or max(row.cells for row in rows) < 2:
            return None
        heads: list[_Row] = []
        for has_heads, group in groupby(rows, key=lambda row: row.has_heads):
            some = list(group)
            if not has_heads or some[-1] is rows[-1]:
                continue
            if len(some) > _HEAD_ROWS:
                return None
            heads += some
        is_known = heads or not any(row.head_cells or row.in_head for row in rows)
        return heads if is_known else None

    def _texts_of_rows(self) -> Iterator[str]:
        ends = [row.at for row in self._rows[1:]]
        for row, end in zip(self._rows, [*ends, len(self._parts)], strict=True):
            yield "".join(self._parts[row.at : end])

    def _is_for_layout(self, keep_lines: bool) -> bool:
        """Tell whether a cell has more than a value: a long text, or several lines, which its row would lose."""
        for mark, text in split_marks("".join(self._parts[self._begin :])):
            if mark not in (CELL, NEXT_CELL):
                continue
            if len(text) > _CELL_CHARS or (not keep_lines and "\n" in text.strip()):
                return True
        return False

    def _take_marks_away(self) -> None:
        for at in self._marks:
            self._parts[at] = " | " if self._parts[at] == NEXT_CELL else ""


def rows_of(pieces: Sequence[MarkedText]) -> Iterator[tuple[bool, list[str]]]:
    """Yield the rows of a marked table: whether each has heads, and its cells, each on one line."""
    is_head = False
    cells: list[str] | None = None
    for mark, text in pieces:
        if mark in (ROW, HEAD_ROW):
            if cells is not None:
                yield is_head, cells
            is_head = mark == HEAD_ROW
            cells = []
        elif mark in (CELL, NEXT_CELL) and cells is not None:
            cells.append(" ".join(text.split()).replace("|", "\\|"))
    if cells is not None:
        yield is_head, cells


def _markdown(marked: str) -> str:
    """Return a marked table as lines: what stands above its rows, and these; a line is below each row of heads.

    Blanks between cells become no-break spaces, which stay where others are joined.
    """
    pieces = list(split_marks(marked))
    rows = [(is_head, cells) for is_head, cells in rows_of(pieces) if any(cells)]
    has_heads = any(is_head for is_head, _cells in rows)
    lines = [text for mark, text in pieces if mark == TABLE]
    for number, (is_head, cells) in enumerate(rows):
        lines.append("|\xa0" + "\xa0|\xa0".join(cells) + "\xa0|")
        if is_head:
            lines.append(HEADS_LINE + ":--|" * (len(cells) - 1))
        elif number == 0 and not has_heads:
            lines.append("|" + "---|" * len(cells))
    return "\n".join(["", *lines, ""])
