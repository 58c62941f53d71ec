"""A subagent's file of comma-separated values as a table: the first rows and columns, each cell as text."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

MOST_ROWS, MOST_COLUMNS, CELL_CHARS = 1_000, 40, 500
_DELIMITERS = ",;\t|"


@dataclass(frozen=True)
class CsvTable:
    """The cells of a file: its first row, which names the columns, and the others; and how much was left out."""

    head: list[str]
    rows: list[list[str]]
    more_rows: int
    more_columns: int


def read_table(text: str) -> CsvTable | None:
    """Return None for a text that is no table: it has one column, or quotes that do not end."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return None
    delimiter = max(_DELIMITERS, key=lines[0].count)
    try:
        found = list(_rows(lines, delimiter))
    except csv.Error:
        return None
    columns = max(map(len, found), default=0)
    if columns < 2:
        return None
    shown = [_cells(row, min(columns, MOST_COLUMNS)) for row in found[: MOST_ROWS + 1]]
    return CsvTable(
        head=shown[0],
        rows=shown[1:],
        more_rows=max(0, len(found) - 1 - MOST_ROWS),
        more_columns=max(0, columns - MOST_COLUMNS),
    )


def _rows(lines: list[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the rows that are not empty. Raises csv.Error: the text is no such file."""
    for row in csv.reader(lines, delimiter=delimiter, strict=True):
        if row:
            yield row


def _cells(row: list[str], columns: int) -> list[str]:
    """Return as many cells as there are columns, none of them too long for a page."""
    cells = [cell if len(cell) <= CELL_CHARS else f"{cell[:CELL_CHARS]}…" for cell in row[:columns]]
    return cells + [""] * (columns - len(cells))
