"""Tables of figures on a page of a PDF: which of its lines are rows, and their cells.

A PDF has no tables, only words at places. Here columns are found by what no word of any row covers: a table is at least
three lines, one close below the other, that end in figures, and between whose words the same stripes stay free. A head
stands close above and covers one column. Where anything is in doubt (words that do not stand from left to right on
their line, a head across columns, a column of figures without a head), there is no table: a wrong head is worse than
none. What a head is, `table_rows` decides.

All lengths are in heights of a line, which is about 1.2 times the size of the font.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from ava_roles.texts.extracted import WordRow
from ava_roles.texts.table_rows import is_figure, is_head

_LEAST_ROWS = 3
_COLUMNS = 40
_WORDS = 5_000
"""The most words of a page whose places are asked for; on the rest of it, no table is found."""
_LINE_CHARS = 1_000
_HEAD_LINES = 6
_LINES_BETWEEN = 2
"""The most lines of one cell, such as names of groups, between two rows."""
_ROW_PITCH = 3.0
_HEAD_PITCH = 2.6
_LINES_OF_HEAD_PITCH = 1.6
"""How far the middle of a line is from that of the next at most: of rows, of heads and rows, of two lines of heads."""
_BLANK = 0.45
"""A wider gap parts the heads of a line."""
_STRIPE_BEFORE_FIGURES = 0.35
_STRIPE = 0.9
"""The narrowest free stripe beside a column of figures, and between two of words."""
_GAP_IN_CELL = 0.8
_SAME_HEIGHT = 0.15

_WORD = re.compile(r"\S+")
_FIGURES = 2 / 3
_FIGURE = re.compile(
    r"[^\w\s]{0,3}\d[\d.,'\u2019:/()%*-]*[^\w\s]{0,3}[A-Za-z%]{0,2}\)?|[-\u2013\u2014.*]+|n\.?/?a\.?|[%\u20ac$\u00a3]",
    re.IGNORECASE,
)


class _Word(NamedTuple):
    """A word and its box, in points."""

    text: str
    left: float
    right: float
    bottom: float
    top: float

    @property
    def height(self) -> float:
        return self.top - self.bottom

    @property
    def middle(self) -> float:
        return (self.bottom + self.top) / 2


@dataclass
class _Columns:
    """The columns of a table, from left to right, and the cells of its rows: the words by row and column.

    `known`: by column, whether it has figures, once that was asked for.
    """

    lefts: list[float]
    rights: list[float]
    rows: list[list[list[_Word]]]
    known: dict[int, bool] = field(default_factory=dict[int, bool])

    def at(self, left: float, right: float) -> list[int]:
        """Return the columns that a stretch of a line covers in part."""
        return [
            column
            for column, (begin, end) in enumerate(zip(self.lefts, self.rights, strict=True))
            if left < end and right > begin
        ]

    def cells(self, row: int) -> list[str]:
        return [_text(words) for words in self.rows[row]]

    def has_figures(self, column: int) -> bool:
        if column not in self.known:
            cells = [row[column] for row in self.rows if row[column]]
            self.known[column] = sum(map(_are_figures, cells)) >= _FIGURES * len(cells)
        return self.known[column]

    def is_mixed(self, column: int) -> bool:
        """Tell whether most cells have a figure beside words: there may be two columns too close to be told apart."""
        cells = [row[column] for row in self.rows if row[column]]
        mixed = 0
        for cell in cells:
            has_figure = _FIGURE.fullmatch(cell[0].text) or _FIGURE.fullmatch(cell[-1].text)
            mixed += bool(has_figure) and not _are_figures(cell)
        return 2 * mixed > len(cells)

    def join(self, column: int) -> None:
        """Make one column of this one and the next."""
        self.rights[column] = self.rights[column + 1]
        del self.lefts[column + 1], self.rights[column + 1]
        for row in self.rows:
            row[column] += row.pop(column + 1)
        self.known = {known: has_figures for known, has_figures in self.known.items() if known < column}


def find_tables(raw: Any, text_page: Any, text: str) -> list[list[WordRow]]:
    """Return the tables of a page, each with the row of its heads first, whose lines are those of `text`.

    Args:
        raw: The functions of PDFium.
        text_page: The page's characters.
        text: What PDFium returns for the text of the page from its first character on.
    """
    lines = text.split("\r\n")
    is_row = [_may_be_row(line) for line in lines]
    if sum(is_row) < _LEAST_ROWS or not _may_have_table(lines, is_row) or max(text) > "\uffff":
        return []
    return list(_Page(raw, text_page, lines).tables(is_row))


def _may_be_row(line: str) -> bool:
    end = line[-3:].rstrip()[-2:]
    if not end or end.isalpha():  # so do most lines of prose, which are told at once
        return False
    *before, last = line.rsplit(None, 1) or [""]
    return bool(before) and not last[-2:].isalpha() and _FIGURE.fullmatch(last) is not None


def _may_have_table(lines: Sequence[str], is_row: Sequence[bool]) -> bool:
    """Tell whether enough lines that may be rows follow each other, so that places are worth to be asked for."""
    rows = between = 0
    for number, line in enumerate(lines):
        if is_row[number]:
            rows += 1
            between = 0
            if rows == _LEAST_ROWS:
                return True
        elif rows and line.strip():
            between += 1
            if between > _LINES_BETWEEN:
                rows = 0
    return False


class _Page:
    """The lines of a page, and the places of their words, which are asked for when they are needed."""

    def __init__(self, raw: Any, text_page: Any, lines: Sequence[str]) -> None:
        self._raw = raw
        self._text_page = text_page
        self._lines = lines
        self._begins = [0]
        for line in lines:
            self._begins.append(self._begins[-1] + len(line) + len("\r\n"))
        self._words: dict[int, list[_Word]] = {}
        self._room = _WORDS

    def tables(self, is_row: Sequence[bool]) -> Iterator[list[WordRow]]:
        line = 0
        while line < len(self._lines):
            rows = self._rows_from(line, is_row)
            table = self._table(rows)
            if self._room < 0:
                return
            if table is not None:
                yield table
            line = max([line, *rows]) + 1

    # -- the places of words ------------------------------------------------------------------------------------------

    def words(self, line: int) -> list[_Word]:
        """Return the words of a line; none if they do not stand from left to right beside each other."""
        if line not in self._words:
            words = self._place_words(line)
            self._words[line] = words if _are_on_one_line(words) else []
        return self._words[line]

    def _place_words(self, line: int) -> list[_Word]:
        text = self._lines[line]
        found = list(_WORD.finditer(text[:_LINE_CHARS]))
        self._room -= len(found)
        if not found or self._room < 0 or len(text) > _LINE_CHARS:
            return []
        begin = self._begins[line]
        # PDFium counts some characters that are not in the text; none of them may stand within the line.
        first = self._raw.FPDFText_GetCharIndexFromTextIndex(self._text_page, begin)
        last = self._raw.FPDFText_GetCharIndexFromTextIndex(self._text_page, begin + len(text) - 1)
        if first < 0 or last - first != len(text) - 1:
            return []
        box_of = self._raw.FPDFText_GetLooseCharBox
        words: list[_Word] = []
        begin_box, end_box = self._raw.FS_RECTF(), self._raw.FS_RECTF()
        for word in found:
            begins = box_of(self._text_page, first + word.start(), begin_box)
            ends = box_of(self._text_page, first + word.end() - 1, end_box)
            if not begins or not ends:
                return []
            bottom, top = begin_box.bottom, begin_box.top
            if abs(end_box.bottom - bottom) > 0.5 * (top - bottom):
                return []  # it is turned
            words.append(_Word(word[0], begin_box.left, end_box.right, bottom, top))
        return words

    # -- the rows of a table ------------------------------------------------------------------------------------------

    def _rows_from(self, line: int, is_row: Sequence[bool]) -> list[int]:
        """Return the lines of the rows of one table that begins in a line; none if it is no row."""
        reach = (_LEAST_ROWS - 1) * (_LINES_BETWEEN + 1)
        if not is_row[line] or sum(is_row[line : line + reach + 1]) < _LEAST_ROWS or not self.words(line):
            return []
        rows = [line]
        above = self.words(line)
        between = 0
        for number in range(line + 1, len(self._lines)):
            if not self._lines[number].strip():
                continue
            words = self.words(number)
            if not words or not _follows(words, above, _ROW_PITCH):
                break
            if is_row[number]:
                rows.append(number)
                between = 0
            else:
                between += 1
                if between > _LINES_BETWEEN or len(_pieces(words)) > 1:
                    break
            above = words
        return rows

    def _table(self, lines: Sequence[int]) -> list[WordRow] | None:
        columns = _find_columns([self.words(line) for line in lines])
        if columns is None:
            lines = lines[:-1]  # the last one may be a note, such as of the source
            columns = _find_columns([self.words(line) for line in lines])
        if columns is None:
            return None
        rows = [WordRow(line, line, columns.cells(number)) for number, line in enumerate(lines)]
        first = 0
        while first < len(rows) and all(is_head(cell) for cell in rows[first].cells if cell):
            first += 1
        end = first
        while end < len(rows) and sum(map(bool, rows[end].cells)) > 1:
            end += 1
        if end - first < _LEAST_ROWS:
            return None
        figures = [column for column in range(1, len(columns.lefts)) if columns.has_figures(column)]
        heads = self._heads_above(lines[first], columns, figures)
        if heads is None:
            return None
        return [heads, *rows[first:end]]

    # -- the heads of a table -----------------------------------------------------------------------------------------

    def _heads_above(self, line: int, columns: _Columns, figures: Sequence[int]) -> WordRow | None:
        """Return the lines of heads above a row as one row; None unless each column of figures has its own head."""
        heads: dict[int, list[str]] = {}
        first = last = -1
        has_name_below = False
        below = self.words(line)
        for number in range(line - 1, -1, -1):
            if not self._lines[number].strip():
                continue
            words = self.words(number)
            pitch = _LINES_OF_HEAD_PITCH if heads else _HEAD_PITCH
            if not words or not _follows(below, words, pitch):
                break
            if heads and abs(_height(words) / _height(below) - 1) > _SAME_HEIGHT:
                break
            is_complete = all(column in heads for column in figures)
            placed = _place(words, columns)
            if placed is None and len(_pieces(words)) == 1:
                break  # a title, or a line of text
            if placed is None:
                return None
            if list(placed) == [0] and heads:
                break  # a title
            if list(placed) == [0]:  # the name of a group of rows, or the end of the first column's head
                has_name_below = True
                below = words
                continue
            if is_complete and not all(column in placed for column in figures):
                return None  # it stands above some columns, and it is not known above which
            for column, text in placed.items():
                heads.setdefault(column, []).insert(0, text)
            first = number
            last = max(last, number)
            below = words
        if has_name_below:
            heads.pop(0, None)
        cells = [" ".join(heads.get(column, ())) for column in range(len(columns.lefts))]
        texts = [cells[column] for column in figures]
        if not all(map(is_head, texts)) or len(set(texts)) < len(texts):
            return None
        return WordRow(first, last, cells)


def _find_columns(lines: Sequence[Sequence[_Word]]) -> _Columns | None:
    """Return the columns of some rows; None if they are not certain, or none but the first has figures."""
    if len(lines) < _LEAST_ROWS:
        return None
    height = sorted(map(_height, lines))[len(lines) // 2]
    lefts: list[float] = []
    rights: list[float] = []
    for left, right in sorted((word.left, word.right) for words in lines for word in words):
        if rights and left < rights[-1] + _STRIPE_BEFORE_FIGURES * height:
            rights[-1] = max(rights[-1], right)
        else:
            lefts.append(left)
            rights.append(right)
    if not 1 < len(lefts) <= _COLUMNS:
        return None
    rows: list[list[list[_Word]]] = []
    for words in lines:
        row: list[list[_Word]] = [[] for _column in lefts]
        for word in words:
            row[bisect_right(lefts, word.left) - 1].append(word)
        rows.append(row)
    columns = _Columns(lefts, rights, rows)
    column = 0
    while column + 1 < len(columns.lefts):
        stripe = columns.lefts[column + 1] - columns.rights[column]
        if stripe >= _STRIPE * height or columns.has_figures(column) or columns.has_figures(column + 1):
            column += 1
        else:
            columns.join(column)
    values = range(1, len(columns.lefts))
    if not any(map(columns.has_figures, values)) or any(map(columns.is_mixed, values)):
        return None
    for row in columns.rows:
        for cell in row:
            if any(after.left - before.right > _GAP_IN_CELL * height for before, after in pairwise(cell)):
                return None
    return columns


def _place(words: Sequence[_Word], columns: _Columns) -> dict[int, str] | None:
    """Return the heads in a line by their columns; None if one is not above one column alone."""
    placed: dict[int, str] = {}
    for piece in _pieces(words):
        covered = columns.at(piece[0].left, piece[-1].right)
        if len(covered) != 1 or covered[0] in placed:
            return None
        placed[covered[0]] = _text(piece)
    return placed


def _pieces(words: Sequence[_Word]) -> list[list[_Word]]:
    """Return the words of a line, those together between which there is only a blank."""
    pieces = [[words[0]]]
    for before, after in pairwise(words):
        if after.left - before.right > _BLANK * before.height:
            pieces.append([])
        pieces[-1].append(after)
    return pieces


def _are_on_one_line(words: Sequence[_Word]) -> bool:
    if any(word.height <= 0 or word.right <= word.left for word in words):
        return False
    for before, after in pairwise(words):
        height = max(before.height, after.height)
        if after.left < before.right - 0.3 * height or abs(after.middle - before.middle) > 0.5 * height:
            return False
    return True


def _follows(words: Sequence[_Word], above: Sequence[_Word], pitch: float) -> bool:
    """Tell whether a line stands below another, not further than `pitch` of their heights."""
    distance = above[0].middle - words[0].middle
    return 0.5 * _height(above) < distance <= pitch * max(_height(above), _height(words))


def _are_figures(cell: Sequence[_Word]) -> bool:
    return all(_FIGURE.fullmatch(word.text) for word in cell) or is_figure(_text(cell))


def _height(words: Sequence[_Word]) -> float:
    return max(word.height for word in words)


def _text(words: Sequence[_Word]) -> str:
    return " ".join(word.text for word in words)
