"""A sheet as a table with the numbers of its rows and the letters of its columns, as workbooks of each kind show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ava_roles.texts.extracted import MOST_CHARS, column_letters
from ava_roles.texts.phrases import count_phrase

MAX_COLUMNS = 1_000
LAST_COLUMN = 16_384  # that a workbook can have
CELL_CHARS = 32_767  # the most that a cell of Excel holds
MARGIN_CHARS = 200_000  # for what is said below the tables
SLACK_CHARS = 100_000  # for the cell that is longer than what is left, and for the names of the sheets
NAME_CHARS = 200
MOST_NOTES = 500
_NOTE_CHARS = 2_000


class SheetTable:
    """The cells of a sheet, by row and column."""

    def __init__(self) -> None:
        self.is_cut = False
        self._rows: dict[int, dict[int, str]] = {}
        self._last_column = 0
        self._widths: dict[int, int] = {}

    def put(self, row: int, column: int, text: str) -> int:
        """Add a cell; return how many characters that takes."""
        chars = len(text) + text.count("|")
        if row not in self._rows:
            self._rows[row], self._widths[row] = {}, 0
            chars += len(f"| {row} |\n")
        new_columns = max(column - self._widths[row], 0)
        chars += new_columns * len(" | ")
        if column > self._last_column:
            chars += (column - self._last_column) * len(" XFD |---|")
            self._last_column = column
        self._widths[row] += new_columns
        self._rows[row][column] = text
        return chars

    def get(self, row: int, column: int) -> str:
        return self._rows.get(row, {}).get(column, "")

    def fill_merged(self, merged: tuple[int, int, int, int], room: int) -> int | None:
        """Repeat the text of a merged cell in each row that it spans and that has other cells.

        Returns how many characters that adds; None, and changes nothing, if they are more than `room`.
        """
        column, top, _, bottom = merged
        text = self.get(top, column)
        if not text or top == bottom or len(text) > _NOTE_CHARS:
            return 0
        text = f"{text} (cell {cell_name(top, column)})"
        spanned: Iterable[int] = range(top + 1, bottom + 1)
        if bottom - top > len(self._rows):
            spanned = self._rows
        rows: list[int] = []
        chars = 0
        for row in spanned:
            is_spanned = top < row <= bottom and row in self._rows
            if is_spanned and not self.get(row, column):
                rows.append(row)
                chars += len(text) + text.count("|") + len(" | ") * max(column - self._widths[row], 0)
        if chars > room:
            return None
        return sum(self.put(row, column, text) for row in rows)

    def lines(self) -> Iterator[str]:
        if not self._rows:
            yield "(empty)"
            return
        letters = [column_letters(column) for column in range(1, self._last_column + 1)]
        yield f"|  | {' | '.join(letters)} |"
        yield "|" + "---|" * (len(letters) + 1)
        for number in sorted(self._rows):
            cells = self._rows[number]
            columns = range(1, max(cells) + 1)
            texts = [cells.get(column, "").replace("|", "\\|") for column in columns]
            yield f"| {number} | {' | '.join(texts)} |"


class SheetRoom:
    """The room that the sheets of one file have, and sentences on what did not fit.

    Attributes:
        tables: Characters that the tables may still have, with the comments and text boxes.
        missing: What is in the file and not in its text.
    """

    def __init__(self, *, is_late: Callable[[], bool]) -> None:
        self.tables = MOST_CHARS - MARGIN_CHARS - SLACK_CHARS
        self.missing: list[str] = []
        self._below = MARGIN_CHARS
        self._is_late = is_late

    @property
    def spent(self) -> bool:
        return self.tables <= 0 or self._is_late()

    def fitting(self, lines: Iterable[str], what: str) -> Iterator[str]:
        """Yield the lines for which there is room below the tables."""
        for line in lines:
            if len(line) >= self._below:
                self.missing.append(f"more {what}")
                return
            self._below -= len(line) + 1
            yield line

    def defined_names(self, lines: Sequence[str]) -> str:
        if len(lines) > MOST_NOTES:
            self.missing.append(count_phrase(len(lines) - MOST_NOTES, "more defined name"))
        return "\n".join(self.fitting(lines[:MOST_NOTES], "defined names"))

    def fill_merged(self, table: SheetTable, ranges: Iterable[tuple[int, int, int, int]], title: str) -> None:
        """Show the text of a cell that spans rows in each of them, as far as there is room for it."""
        for merged in ranges:
            chars = None if self.spent else table.fill_merged(merged, self.tables)
            if chars is None:
                cells = f"merged cells of sheet {title}"
                self.missing.append(f"the text of {cells} in each of their rows; their first has it")
                return
            self.tables -= chars

    def note_columns(self, table: SheetTable, title: str) -> None:
        if table.is_cut:
            self.missing.append(f"columns after the first {MAX_COLUMNS:,} of sheet {title}")


def one_line(text: str, most: int = _NOTE_CHARS, cut: str = "it is longer") -> str:
    line = " ".join(text[: 2 * most].split())
    return line if len(line) <= most else f"{line[:most]} (cut here: {cut})"


def unread_phrase(title: str, unread: Mapping[str, int]) -> str:
    """Return what a sheet has beside its cells that is not read; `unread`: how many there are of each noun."""
    phrases: list[str] = []
    for noun, count in unread.items():
        plural = "more text boxes" if noun == "more text box" else ""
        phrases.append(count_phrase(count, noun, plural))
    verb = "is" if sum(unread.values()) == 1 else "are"
    return f"sheet {title} has {' and '.join(phrases)}, which {verb} not read"


def cell_name(row: int, column: int) -> str:
    return f"{column_letters(column)}{row}"


def describe_hidden(rows: Sequence[int], columns: Sequence[int]) -> Iterator[str]:
    """Yield a line on the hidden rows of a sheet, and one on its hidden columns, by their numbers, which ascend."""
    if rows:
        yield f"[hidden rows: {', '.join(_spans_of(rows, str))}]"
    if columns:
        yield f"[hidden columns: {', '.join(_spans_of(columns, column_letters))}]"


def _spans_of(numbers: Iterable[int], name: Callable[[int], str]) -> list[str]:
    """Return the spans of numbers that ascend, e.g. `3` or `5 to 9`, each end as `name` writes it."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown: list[str] = []
    for first, last in spans[:MOST_NOTES]:
        if first == last:
            shown.append(name(first))
        else:
            shown.append(f"{name(first)} to {name(last)}")
    if len(spans) > MOST_NOTES:
        shown.append("and more")
    return shown
