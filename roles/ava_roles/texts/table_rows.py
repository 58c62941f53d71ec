"""Gives each row of a table the heads of its columns, for search: `| 12 | Zone: EUR | Sales: 9,467 |`.

A row alone says little: its heads stand in another passage, or on another page. So a passage has each row with the
name and title of its sheet and the heads of its columns. The text of the document stays as it is; a row stays one line,
and a cell stays in its column.

Heads are those that a page names (<th>, <thead>). Else they are found, not assumed in the first row: a row of words,
years or dates above a column of figures, or at the top of a wide table of words. Where that is not clear, a row stays
as it is: a wrong head is worse than none.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ava_roles.texts.extracted import Tables, WordRow, WordTable
from ava_roles.texts.page_tables import (
    CELL,
    HEAD_ROW,
    HEADS_LINE,
    NEXT_CELL,
    ROW,
    ROW_CHARS,
    TABLE,
    MarkedText,
    rows_of,
    split_marks,
)
from ava_roles.texts.web_page import delimiter_of

HEAD_CHARS = 60
"""The most characters of a head, and of a table's title, that are repeated in each row."""
_ADDED_TO_ROW = 4_000
ADDED_CHARS = 6_000_000
"""The most characters that heads add to the passages of one file."""
CELLS_LOOKED_AT = 500_000
"""The most cells of one file that are looked at for heads; it takes about three microseconds for each."""
_NUMBER_CHARS = 9
_HEADS_WITHIN = 20
_CANDIDATES = 3
_HEAD_ROWS = 4
_LOOKED_AT = 20
_TITLES = 2
_WORDY_HEAD_CHARS = 40
_FIGURES = 2 / 3
"""A column with this share of figures is one of figures."""

_FIGURE = re.compile(
    r"[(\[]?[-+\u2212]?\s?(?:[A-Z]{3}\s|[^\w\s()\[\]]{1,3}\s?)?[-+\u2212]?"
    r"\d[\d.,'\u2019\u00a0\u202f ]*(?:E[-+]?\d+)?"
    r"(?:\s?(?:%|\u2030|[A-Z]{3}|[^\w\s]{1,2}|[A-Za-z\u00b5\u00b0]{1,3}))?[)\]]?\*?",
)
_EXACT = re.compile(r" \(exactly [^()]*\)$")
_PERIOD = re.compile(
    r"(?:FY\s?)?(?:1[6-9]|2[01])\d\d(?:[-/\u2013]\d{2,4})?|\d{4}-\d\d(?:-\d\d)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}"
)
_TIME = re.compile(r"\d{1,3}:\d\d(?::\d\d)?(?:\.\d+)?(?:\s?[AP]M)?|TRUE|FALSE")
_NOTHING = re.compile(r"[-\u2013\u2014.*]*|n\.?/?a\.?|#[A-Z/0!?]+", re.IGNORECASE)
_REPEATED = re.compile(r" \(cell [A-Z]{1,3}\d+\)$")
_COMMENT = re.compile(r" ?\[comment[^\]]*\]")
_DEFAULT_NAME = re.compile(
    r"(?:sheet|table|tabelle|feuil|feuille|hoja|foglio|planilha|シート|工作表)[ _]?\d*", re.IGNORECASE
)


@dataclass
class HeadRoom:
    """How many characters the heads of one file may still add, and how many cells may be looked at for them.

    `is_short`: some rows of the file stand without all of their heads, as the room was too little.
    """

    left: int = ADDED_CHARS
    cells: int = CELLS_LOOKED_AT
    is_short: bool = False

    def look_at(self, rows: Sequence[_Row]) -> bool:
        """Count the cells of some rows; return False where they are too many."""
        self.cells -= sum(len(row.cells) for row in rows)
        if self.cells < 0:
            self.is_short = True
        return self.cells >= 0


class _Row(NamedTuple):
    """A row of a table: the index of its line, its number (one more than the last, but for empty rows), its cells.

    `is_head`: it is certain that its cells are heads of columns.
    """

    line: int
    number: int
    cells: list[str]
    is_head: bool = False

    @property
    def filled(self) -> list[int]:
        return [column for column, cell in enumerate(self.cells) if cell]


@dataclass
class _Table:
    """What is known of the table at a row: its heads by column, and what stands above it."""

    titles: list[str] = field(default_factory=list[str])
    heads: dict[int, str] = field(default_factory=dict[int, str])
    figures: frozenset[int] = frozenset()


def with_heads(text: str, tables: Tables, place: str, room: HeadRoom) -> str:
    """Return a text with the heads of its tables in their rows. It has as many lines as before.

    Args:
        text: The text of a file, or of a sheet or slide of it.
        tables: How it writes rows.
        place: Where in the file it is; of a sheet, e.g. `sheet Plan (hidden)`, which names its rows too.
        room: What the heads of the whole file may add; it is used up.
    """
    if tables == "marks":
        return _with_heads_for_marks(text, room)
    if not tables or not ("|" in text or tables == "commas"):
        return text
    lines = text.split("\n")
    is_sheet = place.startswith("sheet ")
    title = _sheet_title(place) if is_sheet else ""
    for rows in _tables_of(lines, tables, is_sheet):
        _give_heads(lines, rows, title, is_sheet, room)
    return "\n".join(lines)


def _sheet_title(place: str) -> str:
    name = place.removeprefix("sheet ").removesuffix(" (hidden)")
    return "" if _DEFAULT_NAME.fullmatch(name) else _short(name)


# -- the rows of a text -----------------------------------------------------------------------------------------------


def _tables_of(lines: Sequence[str], tables: Tables, is_sheet: bool) -> Iterator[list[_Row]]:
    if tables == "commas":
        yield list(_rows_of_csv(lines))
    elif is_sheet:
        yield list(_rows_of_sheet(lines))
    else:
        yield from _tables_with_bars(lines)


def _rows_of_sheet(lines: Sequence[str]) -> Iterator[_Row]:
    """Yield the rows of a sheet's table, each with the number that it has there."""
    for index, line in enumerate(lines):
        if not line.startswith("| ") or not line.endswith(" |"):
            continue
        number, *cells = line[2:-2].split(" | ")
        if number.isdecimal() and len(number) <= _NUMBER_CHARS:
            yield _Row(index, int(number), cells)


def _tables_with_bars(lines: Sequence[str]) -> Iterator[list[_Row]]:
    """Yield the tables that `render_table` has written, and those of a page: a line is below the first row of each."""
    rows: list[_Row] = []
    for index, line in enumerate(lines):
        is_row = line.startswith("| ") and line.endswith(" |")
        is_head = is_row and _is_line_of_heads(lines, index + 1)
        begins = is_head or (is_row and _is_line(lines, index + 1))
        if begins and rows and not (is_head and rows[-1].is_head):
            yield rows
            rows = []
        if is_row and (rows or begins):
            rows.append(_Row(index, len(rows), line[2:-2].split(" | "), is_head))
        elif rows and not (rows[-1].line == index - 1 and (_is_line(lines, index) or _is_line_of_heads(lines, index))):
            yield rows
            rows = []
    if rows:
        yield rows


def _is_line(lines: Sequence[str], index: int) -> bool:
    return index < len(lines) and lines[index].startswith("|---|") and not lines[index].strip("|-")


def _is_line_of_heads(lines: Sequence[str], index: int) -> bool:
    return index < len(lines) and lines[index].startswith(HEADS_LINE) and not lines[index].strip("|:-")


def _rows_of_csv(lines: Sequence[str]) -> Iterator[_Row]:
    """Yield the records of a CSV file that stand on one line; the lines of others stay as they are."""
    sign = delimiter_of("\n".join(lines[:20]))
    is_open = False
    number = 0
    for index, line in enumerate(lines):
        has_odd_quote = line.count('"') % 2 == 1
        if is_open or has_odd_quote:
            is_open ^= has_odd_quote
            continue
        if len(line) > ROW_CHARS:
            continue
        number += 1
        cells = next(csv.reader([line], delimiter=sign), list[str]())
        yield _Row(index, number, [" ".join(cell.split()) for cell in cells])


# -- the rows of a page -----------------------------------------------------------------------------------------------


def _with_heads_for_marks(text: str, room: HeadRoom) -> str:
    """Return the text of a page without marks; a row that gets heads stands in the line in which it begins.

    A row of a table with a title, its caption or a single cell above its heads, has that, too.
    """
    if TABLE not in text:
        return text
    shown: list[str] = []
    caption = ""
    tables: list[list[_Row]] = []
    titles: list[str] = []
    for number, piece in enumerate(_rows_and_others(split_marks(text))):
        mark = piece[0].mark
        shown.append("".join(" | " * (mark == NEXT_CELL) + text for mark, text in piece))
        if mark == TABLE:
            caption = piece[0].text
            tables.append([])
            titles.append(_title("", [caption]))
        elif mark == HEAD_ROW and not (tables[-1] and tables[-1][-1].is_head):
            above = _only_cells(tables[-1])
            tables.append([])
            titles.append(_title("", [caption, *above]))
        if mark in (ROW, HEAD_ROW):
            [(is_head, cells)] = rows_of(piece)
            if any(cells):
                tables[-1].append(_Row(number, len(tables[-1]), cells, is_head))
    with_heads = list(shown)
    for rows, title in zip(tables, titles, strict=True):
        _give_heads(with_heads, rows, title, False, room)
    for number, (old, new) in enumerate(zip(shown, with_heads, strict=True)):
        if old is not new:
            with_heads[number] = _on_lines_of(old, new)
            before = with_heads[number - 1].rstrip(" ")  # the text above the table, or another row
            with_heads[number - 1] = before if before.endswith("\n") or not before else f"{before} "
    return "\n".join(line.rstrip() for line in "".join(with_heads).split("\n"))


def _rows_and_others(pieces: Iterable[MarkedText]) -> Iterator[list[MarkedText]]:
    """Yield the pieces of each row together, and those of what is between."""
    some: list[MarkedText] = []
    for piece in pieces:
        if some and piece.mark not in (CELL, NEXT_CELL):
            yield some
            some = []
        some.append(piece)
    yield some


def _only_cells(rows: Sequence[_Row]) -> list[str]:
    """Return the cells of rows that have one each, which are a title; nothing if one has more."""
    if any(len(row.filled) > 1 for row in rows):
        return []
    return [cell for row in rows for cell in row.cells if cell]


def _on_lines_of(old: str, row: str) -> str:
    """Return a row in the line in which an old text begins, with as many lines as that has."""
    begins = len(old) - len(old.lstrip())
    above = old[:begins].count("\n")
    below = old[begins:].count("\n")
    return "\n" * above + row + "\n" * below


# -- the rows of a PDF ------------------------------------------------------------------------------------------------


def with_heads_for_words(text: str, tables: Iterable[WordTable], room: HeadRoom) -> str:
    """Return a page's text with the heads of its tables in their rows. It has as many lines as before.

    A table whose words are not all in its lines stays as it is: a secret in it was hidden, which its cells still have.
    """
    lines = text.split("\n")
    for table in tables:
        heads, *others = table.rows
        if not _words_in(lines, heads) >= Counter(_words(heads.cells)):
            continue
        if any(_words_in(lines, row) != Counter(_words(row.cells)) for row in others):
            continue
        rows = [_Row(row.last, number, row.cells) for number, row in enumerate(table.rows)]
        _give_heads(lines, rows, "", False, room)
    return "\n".join(lines)


def _words_in(lines: Sequence[str], row: WordRow) -> Counter[str]:
    return Counter(_words(lines[row.first : row.last + 1]))


def _words(texts: Sequence[str]) -> list[str]:
    return " ".join(texts).split()


# -- the heads of a table ---------------------------------------------------------------------------------------------


def _give_heads(lines: list[str], rows: list[_Row], title: str, is_sheet: bool, room: HeadRoom) -> None:
    """Write the rows of one table anew, each with its heads."""
    if rows and rows[0].is_head:
        _give_known_heads(lines, rows, title, room)
        return
    table = _Table()
    pending: list[str] = []
    for block in _blocks(rows):
        if all(len(row.filled) < 2 for row in block):
            pending += [cell for row in block for cell in row.cells if cell]
            continue
        found = _find_heads(block, is_sheet, room)
        if found is not None:
            table, first = found
            table.titles = [*pending, *table.titles]
        else:
            first = 0
            if not _goes_on(table, block):
                table = _Table(titles=pending)
        pending = []
        above = _title(title, table.titles)
        for row in block[first:]:
            if len(row.filled) < 2 and not table.heads:
                continue
            line = _with_heads(row, table.heads, above, is_sheet, room)
            if line is not None:
                lines[row.line] = line


def _give_known_heads(lines: list[str], rows: Sequence[_Row], title: str, room: HeadRoom) -> None:
    """Write the rows below those that are known to be heads anew, but for one with a single cell, a title."""
    head_rows = [row for row in rows if row.is_head]
    heads = _heads_of(head_rows, may_be_shifted=False)
    for row in rows[len(head_rows) :]:
        if len(row.filled) < 2:
            continue
        line = _with_heads(row, heads, title, False, room)
        if line is not None:
            lines[row.line] = line


def _blocks(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Yield the rows that follow one another without an empty row between."""
    block: list[_Row] = []
    for row in rows:
        if not any(row.cells):
            continue
        if block and row.number != block[-1].number + 1:
            yield block
            block = []
        block.append(row)
    if block:
        yield block


def _find_heads(block: Sequence[_Row], is_sheet: bool, room: HeadRoom) -> tuple[_Table, int] | None:
    """Return the table that begins in a block, and the index of its first row below the heads; None without heads."""
    titles: list[str] = []
    widest = 0
    candidates = 0
    if not room.look_at(block[:_HEADS_WITHIN]):
        return None
    for start, row in enumerate(block[:_HEADS_WITHIN]):
        filled = row.filled
        if len(filled) == 1:
            titles.append(row.cells[filled[0]])
            continue
        is_wider = len(filled) > max(widest, 2) or not widest
        if is_wider and candidates < _CANDIDATES and all(is_head(row.cells[column]) for column in filled):
            candidates += 1
            for end in sorted({_last_head(block, start), start}, reverse=True):
                if not room.look_at(block[end + 1 : end + 1 + _LOOKED_AT]):
                    return None
                heads = _heads_of(block[start : end + 1], may_be_shifted=not is_sheet)
                figures = _figure_columns(heads, block[end + 1 :], is_sheet)
                is_wordy = not figures and not widest and _is_wordy(heads, block[end + 1 :])
                if figures or is_wordy:
                    return _Table(titles, heads, figures), end + 1
        widest = max(widest, len(filled))
    return None


def _goes_on(table: _Table, block: Sequence[_Row]) -> bool:
    """Tell whether a block below an empty row belongs to the table above, by where it has figures."""
    has = {column for row in block[:_LOOKED_AT] for column in row.filled if is_figure(row.cells[column])}
    if not table.figures:
        return not has
    return bool(has) and has <= set(table.heads) and not has.isdisjoint(table.figures)


def _last_head(block: Sequence[_Row], start: int) -> int:
    """Return the index of the last row that may be one of heads, if the row at `start` is.

    A further row of heads fills gaps of the one above, whose cells span columns, or it names nothing, as units do.
    """
    first_column = min(min(row.filled) for row in block[start : start + _LOOKED_AT])
    end = start
    while end + 2 < len(block) and end - start + 1 < _HEAD_ROWS:
        upper, lower = block[end], block[end + 1]
        filled = lower.filled
        if len(filled) < 2 or not all(is_head(lower.cells[column]) for column in filled):
            break
        spanned = [column for column in upper.filled if column > first_column]
        has_gap = any(column not in upper.filled and min(spanned, default=column) < column for column in filled)
        has_name = first_column in filled and not _REPEATED.search(lower.cells[first_column])
        if has_name and not has_gap:
            break
        end += 1
    return end


def _heads_of(rows: Sequence[_Row], *, may_be_shifted: bool) -> dict[int, str]:
    """Return the heads by column; a cell above others spans the columns up to the next one."""
    lowest = rows[-1]
    parts: dict[int, list[str]] = {column: [] for row in rows for column in row.filled}
    first_column = min(parts)
    for row in rows:
        if may_be_shifted and _may_be_shifted(row, lowest):
            continue
        over = ""
        for column in sorted(parts):
            own = row.cells[column] if column < len(row.cells) else ""
            if own and column > first_column:
                over = own
            part = _short(own if own or row is lowest else over)
            if part and part not in parts[column]:
                parts[column].append(part)
    return {column: " / ".join(texts) for column, texts in parts.items() if texts}


def _may_be_shifted(upper: _Row, lower: _Row) -> bool:
    """Tell whether the cells of an upper row of heads may stand above other columns than they span in the document.

    RTF and some other texts have a cell once, however many columns it spans, so that the row is shorter.
    """
    return all(upper.cells[1:]) and len(upper.cells) < len(lower.cells)


def _figure_columns(heads: dict[int, str], data: Sequence[_Row], is_sheet: bool) -> frozenset[int]:
    """Return the columns of figures below heads; none where so few rows do not tell a table from a list of facts."""
    columns: set[int] = set()
    all_columns = {*heads, *(column for row in data[:_LOOKED_AT] for column in row.filled)}
    for column, head in heads.items():
        values = _values(data, column)
        figures = [value for value in values if is_figure(value)]
        if not figures or len(figures) < _FIGURES * len(values):
            continue
        if _PERIOD.fullmatch(head) and all(map(_PERIOD.fullmatch, values)):
            continue
        if len(values) > 1 or len(all_columns) > 2 or not is_sheet:
            columns.add(column)
    return frozenset(columns)


def _is_wordy(heads: dict[int, str], data: Sequence[_Row]) -> bool:
    """Tell whether the first row of a table of words has heads: they are short, all different, and above most cells."""
    some = data[:_LOOKED_AT]
    if len(heads) < 3 or len(some) < 2 or len(set(heads.values())) < len(heads):
        return False
    if any(len(head) > _WORDY_HEAD_CHARS for head in heads.values()):
        return False
    return sum(len(row.filled) for row in some) * 2 > len(heads) * len(some)


def _values(rows: Sequence[_Row], column: int) -> list[str]:
    values: list[str] = []
    for row in rows[:_LOOKED_AT]:
        if column < len(row.cells) and not _NOTHING.fullmatch(row.cells[column]):
            values.append(row.cells[column])
    return values


def is_figure(cell: str) -> bool:
    cell = _COMMENT.sub("", _EXACT.sub("", cell[:200]))
    return bool(_FIGURE.fullmatch(cell) or _PERIOD.fullmatch(cell) or _TIME.fullmatch(cell))


def is_head(cell: str) -> bool:
    """Tell whether a cell may be a head: words, a year or a date."""
    if _PERIOD.fullmatch(cell[:200]):
        return True
    return not is_figure(cell) and not _NOTHING.fullmatch(cell)


# -- a row with its heads ---------------------------------------------------------------------------------------------


def _title(sheet: str, titles: Sequence[str]) -> str:
    """Return what stands above a table: the name of the sheet, and the titles that say more."""
    parts = [sheet] if sheet else []
    for each in titles[:_TITLES]:
        part = _short(each)
        if part and all(part.lower() not in other.lower() for other in parts):
            parts.append(part)
    return " · ".join(parts)


def _short(text: str) -> str:
    """Return a head or a title on one line, without comments and at most 60 characters long."""
    text = _COMMENT.sub("", _REPEATED.sub("", " ".join(text[: 4 * HEAD_CHARS].split()))).rstrip(": ")
    return text if len(text) <= HEAD_CHARS else f"{text[: HEAD_CHARS - 1].rstrip()}…"


def _with_heads(row: _Row, heads: dict[int, str], title: str, is_sheet: bool, room: HeadRoom) -> str | None:
    """Return the line of a row with its heads and title; None where there is no room for them."""
    cells: list[str] = []
    added = 0
    for column, cell in enumerate(row.cells):
        before = ""
        head = heads.get(column, "")
        if cell and head and head.lower() != cell.lower():
            before = f"{head}: "
        if column == 0 and title:
            before = f"{title} · {before}" if cell else title
        if added + len(before) > min(_ADDED_TO_ROW, room.left):
            room.is_short = True
            before = ""
        added += len(before)
        cells.append((before + cell).replace("\\|", "|").replace("|", "\\|"))
    number = f"{row.number} | " if is_sheet else ""
    line = f"| {number}{' | '.join(cells)} |"
    if not added or (not is_sheet and len(line) > ROW_CHARS):
        return None
    room.left -= added
    return line
