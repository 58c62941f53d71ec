"""Tables as Markdown, from CSV and from the documents of the extra, within what one file may cost."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import islice, takewhile

from ava_roles.errors import ToolFailed
from ava_roles.tools.text_files import decode_text

_MAX_ROWS = 2_000
_ROWS_SCANNED = 200_000  # a sheet may claim a million empty rows
MAX_COLUMNS = 200
_MAX_CELL_CHARS = 500
_LONG_CELL_CHARS = 50_000  # of a cell that is cut: a secret in its beginning ends in these
_HIDDEN_CHARS = 5_000_000  # of such cells, of all tables of a file together
_TABLE_CHARS = 1_000_000  # of all tables of a file together
_CSV_CHARS = 4_000_000
PARSING_S = 20.0


@contextmanager
def parsing(what: str) -> Generator[None]:
    """Turn an exception of a parser over a broken file into a ToolFailed with one sentence."""
    try:
        yield
    except ToolFailed:
        raise
    except Exception as error:
        raise ToolFailed(f"this {what} cannot be read ({type(error).__name__}: {str(error)[:120]})") from error


@parsing("CSV file")
def read_csv(data: bytes, hide: Callable[[str], str] = str) -> str:
    """Return a CSV file as a table; its cells are separated by `,`, `;`, tab or `|`. Raises ToolFailed: not text."""
    text = decode_text(data)
    if text is None:
        raise ToolFailed("this file is named like a CSV but is not text; choose another file")

    beginning = hide(text[: _CSV_CHARS + _LONG_CELL_CHARS])[:_CSV_CHARS]
    shown = render_table(csv.reader(io.StringIO(beginning, newline=""), delimiter=_separator(beginning)))
    if len(text) > _CSV_CHARS:
        shown += f"\n(only the first {_CSV_CHARS:,} characters were read)"
    return shown


def _separator(text: str) -> str:
    lines = text[:8_192].splitlines()[:20]
    return max(",;\t|", key=lambda sign: (sum(sign in line for line in lines), sum(line.count(sign) for line in lines)))


class TableBudget:
    """What the tables of one file may cost together: time, characters that are shown, and cells to hide secrets in.

    `hide` replaces secrets in cells that are cut; it is asked once for each different cell. `room`: how many characters
    may still be shown.
    """

    def __init__(self, hide: Callable[[str], str] = str) -> None:
        self.room = _TABLE_CHARS
        self._until = time.monotonic() + PARSING_S
        self._hide = hide
        self._hidden: dict[str, str] = {}
        self._to_hide = _HIDDEN_CHARS

    @property
    def late(self) -> bool:
        return time.monotonic() > self._until

    @property
    def spent(self) -> bool:
        return self.room <= 0 or self._to_hide <= 0 or self.late

    def clean_row(self, row: Iterable[str]) -> list[str]:
        """Return the cells of a row, without empty ones at its end; the clock is looked at for each of them."""
        in_time = takewhile(lambda _cell: not self.spent, islice(row, MAX_COLUMNS + 1))
        cells = [self._clean_cell(cell) for cell in in_time]
        while cells and not cells[-1]:
            cells.pop()
        return cells

    def _clean_cell(self, cell: str) -> str:
        if len(cell) <= _MAX_CELL_CHARS:
            return " ".join(cell.split())
        cell = cell[:_LONG_CELL_CHARS]
        if (shown := self._hidden.get(cell)) is None:
            self._to_hide -= len(cell)
            shown = " ".join(self._hide(cell)[: 4 * _MAX_CELL_CHARS].split())[:_MAX_CELL_CHARS]
            self._hidden[cell] = shown
        return shown


def render_table(rows: Iterable[Iterable[str]], budget: TableBudget | None = None) -> str:
    """Return rows as a Markdown table (at most 2,000 by 200, none padded), with notes about what is not shown."""
    budget = budget or TableBudget()
    lines: list[str] = []
    notes: list[str] = []
    more = 0
    for scanned, row in enumerate(rows):
        cells = budget.clean_row(row)
        cut = budget.spent or scanned > _ROWS_SCANNED
        if cells and len(lines) > _MAX_ROWS:
            more += 1
        elif cells:
            if len(cells) > MAX_COLUMNS:
                cells.pop()
                if not notes:
                    notes.append(f"(only the first {MAX_COLUMNS} columns are shown)")
            if not lines:
                lines.append("|" + "---|" * len(cells))
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
            budget.room -= len(lines[-1]) + 1
        if cut:
            notes.append("(cut here: the rest is too long to read)")
            break
    if more:
        notes.append(f"({more:,} more rows are not shown)")
    if not lines:
        return "\n".join(["(empty)", *notes])
    lines[:2] = [lines[1], lines[0]]
    return "\n".join([*lines, *notes])
