"""What a web page and a table are to the tools, and the words of a web page; `parser_process.py` reads them.

Tables are Markdown, from CSV and from the documents of the extra, within what one file may cost.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from ava_extras import has_extra, load
from ava_roles.errors import ToolFailed
from ava_roles.texts.page_text import SHORT_CHARS, PageText, read_page_text
from ava_roles.texts.phrases import count_phrase

PAGE_CHARS = 200_000
_MAX_TAGS = 100_000  # with more, finding the article takes minutes and gigabytes
_HUGE_CHARS = 2_000_000  # how much of such a page is read
_ONLY_WORDS = "these are all its words, without headings and links, because Ava has no extra `documents` here"


@dataclass(frozen=True)
class WebPage:
    """The content of a page; of a web page at most 200,000 characters of text.

    `date`: when it was published, `YYYY-MM-DD`, if known. `note`: what a reader must know, e.g. that it needs
    JavaScript.
    """

    text: str
    title: str | None = None
    date: str | None = None
    note: str | None = None


def read_html(html: str, url: str) -> WebPage:
    """Return the text of a page: its article if that is found and long enough, else all of its text.

    Of a page with very many tags, only the beginning is read. The note says what is missing.
    """
    if html.count("<") > _MAX_TAGS:
        page = read_page_text(html[:_HUGE_CHARS], url)
        gaps = ["it is very large: this is its beginning, without headings and links", *_gaps(page)]
        return WebPage(page.text[:PAGE_CHARS], page.title or None, note="; ".join(gaps))
    page = read_page_text(html, url)
    article = WebPage("", note=_ONLY_WORDS)
    if has_extra("documents"):
        article = load("documents").read_article(page.html, url)
    text = article.text
    notes: list[str] = []
    if article.note:
        notes.append(article.note)
    if len(text) < SHORT_CHARS:
        if len(page.text) > len(text):
            text = page.text
        if page.needs_scripts:
            notes = ["it seems to need JavaScript, which is not run here; look for another source"]
        elif not text:
            notes = ["it contains no text"]
    note = "; ".join((*notes, *_gaps(page)))
    return WebPage(text[:PAGE_CHARS], article.title or page.title or None, article.date, note or None)


def _gaps(page: PageText) -> list[str]:
    return [f"not in this text: {', '.join(page.missing)}"] if page.missing else []


_MAX_ROWS = 2_000
_ROWS_SCANNED = 200_000  # a sheet may claim a million empty rows
MAX_COLUMNS = 200
_BETWEEN_CELLS = " | "
_BAR_IN_CELL = "\\|"
_CELL_CHARS = 32_767  # the most that a cell of Excel holds
_TABLE_CHARS = 1_000_000  # of all tables of a file together
_CSV_CHARS = 4_000_000
_BEHIND_CHARS = 50_000  # read too, for a secret at the end of the others
PARSING_S = 20.0


@contextmanager
def parsing(what: str) -> Generator[None]:
    """Turn an exception of a parser over a broken file into a ToolFailed with one sentence."""
    try:
        yield
    except ToolFailed:
        raise
    except Exception as error:
        why = "it is damaged, or in a form that is not known here; ask for another copy"
        raise ToolFailed(f"this {what} cannot be read: {why}") from error


@parsing("CSV file")
def read_csv(text: str, hide: Callable[[str], str] = str) -> str:
    """Return the text of a CSV file as a table; its cells are separated by `,`, `;`, tab or `|`."""
    beginning = hide(text[: _CSV_CHARS + _BEHIND_CHARS])[:_CSV_CHARS]
    reader = csv.reader(io.StringIO(beginning, newline=""), delimiter=delimiter_of(beginning))
    table = render_table(reader)
    if len(text) > _CSV_CHARS:
        table += f"\n(only the first {_CSV_CHARS:,} characters were read)"
    return table


def delimiter_of(text: str) -> str:
    """Return the sign between the cells of a CSV file: the one that most of its first lines have.

    Of several, it is the one that they have most often.
    """
    lines = text[:8_192].splitlines()[:20]
    best_sign = ","
    most = (-1, -1)
    for sign in ",;\t|":
        lines_with_it = sum(sign in line for line in lines)
        times = sum(line.count(sign) for line in lines)
        if (lines_with_it, times) > most:
            best_sign = sign
            most = (lines_with_it, times)
    return best_sign


class TableBudget:
    """What the tables of one file may cost together: time and characters. `room`: how many may still be shown."""

    def __init__(self) -> None:
        self.room = _TABLE_CHARS
        self._until = time.monotonic() + PARSING_S

    @property
    def late(self) -> bool:
        return time.monotonic() > self._until

    @property
    def spent(self) -> bool:
        return self.room <= 0 or self.late

    def clean_row(self, row: Iterable[str]) -> list[str]:
        """Return the cells of a row, without empty ones at its end; stop where characters or time are used up.

        There may be one cell more than `MAX_COLUMNS`, which shows that the row has more.
        """
        cells: list[str] = []
        chars_left = self.room
        for cell in islice(row, MAX_COLUMNS + 1):
            if chars_left <= 0 or self.late:
                break
            cells.append(_clean_cell(cell))
            chars_left -= len(cells[-1]) + len(_BETWEEN_CELLS)
        while cells and not cells[-1]:
            cells.pop()
        return cells


def _clean_cell(cell: str) -> str:
    """Return a cell on one line; the longest that a workbook can hold is shown whole."""
    line = " ".join(cell[: 2 * _CELL_CHARS].split())
    return line if len(line) <= _CELL_CHARS else f"{line[:_CELL_CHARS]} (cut here: the cell has more text)"


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
            cells_text = _BETWEEN_CELLS.join(cell.replace("|", _BAR_IN_CELL) for cell in cells)
            lines.append(f"| {cells_text} |")
            budget.room -= len(lines[-1]) + 1
        if cut:
            notes.append("(cut here: the rest is too long to read)")
            break
    if more:
        notes.append(f"({count_phrase(more, 'more row is', 'more rows are')} not shown)")
    if not lines:
        return "\n".join(["(empty)", *notes])
    lines[:2] = [lines[1], lines[0]]
    return "\n".join([*lines, *notes])
