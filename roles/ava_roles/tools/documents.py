"""PDF, DOCX, XLSX and CSV as text and tables. Everything here blocks and takes bytes from strangers."""

from __future__ import annotations

import csv
import io
import time
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from ava_roles.errors import ToolFailed
from ava_roles.tools.texts import decoded

_UNPACKED_MAX = 100_000_000  # bytes that an office file may unpack to: beyond is a bomb
_ROWS_MAX = 2_000
_ROWS_SCANNED = 200_000  # a sheet may claim a million empty rows
_CELL_MAX = 500
_PDF_SECONDS = 20.0
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Pdf:
    """Some pages of a PDF.

    Attributes:
        pages: Number (from 1) and text of each page that was read.
        total: Pages that it has.
        title: Its title, if it says one.
        unread: Time was up before the last page asked for.
    """

    pages: tuple[tuple[int, str], ...]
    total: int
    title: str | None
    unread: bool = False


def is_pdf(data: bytes) -> bool:
    """Tell a PDF by its first bytes."""
    return b"%PDF-" in data[:1024]


def read_pdf(data: bytes, first: int = 1, count: int | None = None, max_chars: int = 200_000) -> Pdf:
    """Return the text of pages, from page `first` on, until `count`, `max_chars` or the time is used up.

    Raises:
        ToolFailed: It cannot be read.
    """

    def read() -> Pdf:
        import pypdf

        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ToolFailed("this PDF needs a password; ask for a copy without one")
        total = len(reader.pages)
        last = total if count is None else min(total, first + count - 1)
        until = time.monotonic() + _PDF_SECONDS
        pages: list[tuple[int, str]] = []
        for number in range(first, last + 1):
            if time.monotonic() > until or sum(len(text) for _, text in pages) > max_chars:
                break
            pages.append((number, reader.pages[number - 1].extract_text().strip()))
        title = (reader.metadata.title if reader.metadata else None) or None
        return Pdf(tuple(pages), total, title, first + len(pages) - 1 < last)

    return _translated(read, "PDF")


def read_docx(data: bytes) -> str:
    """Return a Word document as text: headings marked, tables as rows, in their order.

    Raises:
        ToolFailed: It cannot be read.
    """

    def read() -> str:
        import docx
        from docx.table import Table

        _refuse_bomb(data)
        parts: list[str] = []
        for block in docx.Document(io.BytesIO(data)).iter_inner_content():
            if isinstance(block, Table):
                parts.append(table([cell.text for cell in row.cells] for row in block.rows))
                continue
            style = (block.style.name if block.style else None) or ""
            level = style.removeprefix("Heading ")
            mark = "# " if style == "Title" else "#" * min(int(level), 6) + " " if level.isdigit() else ""
            if block.text.strip():
                parts.append(mark + block.text.strip())
        return "\n\n".join(parts)

    return _translated(read, "Word document")


def read_xlsx(data: bytes) -> str:
    """Return a workbook as one table a sheet: values as last calculated, at most 2,000 rows each.

    Raises:
        ToolFailed: It cannot be read.
    """

    def read() -> str:
        import openpyxl

        _refuse_bomb(data)
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        try:
            parts: list[str] = []
            for sheet in book.worksheets:
                rows = (
                    ["" if value is None else str(value) for value in row] for row in sheet.iter_rows(values_only=True)
                )
                parts.append(f"## Sheet {sheet.title}\n\n{table(rows)}")
            return "\n\n".join(parts)
        finally:
            book.close()

    return _translated(read, "workbook")


def read_csv(data: bytes) -> str:
    """Return a CSV file as a table, whatever of `,` `;` tab and `|` separates its cells.

    Raises:
        ToolFailed: It is no text.
    """
    text = decoded(data)
    if text is None:
        raise ToolFailed("this file is named like a CSV but is no text; choose another file")

    def read() -> str:
        try:
            dialect: type[csv.Dialect] = csv.Sniffer().sniff(text[:8_192], delimiters=",;\t|")
        except csv.Error:
            dialect = csv.excel
        return table(csv.reader(io.StringIO(text, newline=""), dialect))

    return _translated(read, "CSV file")


def table(rows: Iterable[Iterable[str]]) -> str:
    """Return rows as a Markdown table; empty rows are left out, what is beyond 2,000 rows is counted."""
    lines: list[str] = []
    more = width = 0
    for scanned, row in enumerate(rows):
        if scanned > _ROWS_SCANNED:
            break
        cells = [" ".join(cell.split())[:_CELL_MAX].replace("|", "\\|") for cell in row]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        if len(lines) > _ROWS_MAX:
            more += 1
            continue
        if not lines:
            width = len(cells)
            lines.append("|" + "---|" * width)
        lines.append("| " + " | ".join(cells + [""] * (width - len(cells))) + " |")
    if not lines:
        return "(empty)"
    lines[:2] = [lines[1], lines[0]]
    return "\n".join(lines) + (f"\n({more:,} more rows are not shown)" if more else "")


def _refuse_bomb(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(item.file_size for item in archive.infolist()) > _UNPACKED_MAX:
            raise ToolFailed("this file unpacks to more than 100 MB; ask for a smaller one")


def _translated(read: Callable[[], _Read], what: str) -> _Read:
    """Run a parser; whatever it raises over a broken file becomes one sentence."""
    try:
        return read()
    except ToolFailed:
        raise
    except Exception as error:
        raise ToolFailed(f"this {what} cannot be read ({type(error).__name__}: {str(error)[:120]})") from error
