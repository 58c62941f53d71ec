"""Documents (extra `documents`): parsers of PDF, Word and Excel files, and of the articles of web pages.

They trust no byte. Only `tools/parser_process.py` loads them, in a process of its own for each file. Without them,
`read_file` says what is missing, and of a web page remain its words, without headings and links.
"""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from ava_roles.errors import ToolFailed
from ava_roles.tools.pages import MAX_COLUMNS, PAGE_CHARS, PARSING_S, Pdf, TableBudget, WebPage, parsing, render_table

if TYPE_CHECKING:
    from docx.table import Table


_MAX_UNPACKED_BYTES = 100_000_000
_MAX_PARTS = 10_000
_MAX_ELEMENTS = 500_000
_MAX_SHEET_ELEMENTS = 2_000_000  # a sheet is read row by row, so it may have more, but not in one row
_MAX_ROW_ELEMENTS = 50_000
_MAX_ATTRIBUTES = 200
_MAX_DEPTH = 200
_MAX_TAG_BYTES = 1_000_000
_MAX_UNPARSED_BYTES = 1_000_000  # of a part that cannot be parsed here, e.g. in a rare encoding
_CHUNK = 65_536
_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def check_office_file(data: bytes) -> None:
    """Check that an office file can be parsed safely. Raises ToolFailed: it would take too much memory or time."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = archive.infolist()
        if sum(part.file_size for part in parts) > _MAX_UNPACKED_BYTES:
            raise ToolFailed("this file unpacks to more than 100 MB; ask for a smaller one")
        if len(parts) > _MAX_PARTS:
            raise _too_large(f"more than {_MAX_PARTS:,} parts")
        for part in parts:
            with archive.open(part) as file:
                head = file.read(_CHUNK)
                if _is_markup(head):
                    _count_elements(head, file, part.file_size)


def _is_markup(head: bytes) -> bool:
    return head[:2] in (b"\xff\xfe", b"\xfe\xff") or head.lstrip(b"\xef\xbb\xbf \t\r\n\0")[:1] == b"<"


def _count_elements(head: bytes, file: Any, size: int) -> None:
    counter = _Counter()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler = counter.start
    parser.EndElementHandler = counter.end
    parser.StartDoctypeDeclHandler = _refuse_doctype
    fed = 0
    chunk = head
    try:
        while chunk:
            fed += len(chunk)
            parser.Parse(chunk, False)
            if fed - parser.CurrentByteIndex > _MAX_TAG_BYTES:
                raise _too_large("a tag of more than 1 MB")
            chunk = file.read(_CHUNK)
    except (expat.ExpatError, LookupError, ValueError):  # broken, or in an encoding that the real parser may know
        if size > _MAX_UNPARSED_BYTES:
            raise ToolFailed("this file has a large part that is not plain XML; ask for a smaller one") from None


class _Counter:
    def __init__(self) -> None:
        self._depth = self._elements = self._in_row = 0
        self._row_depth = 0
        self._limit = _MAX_ELEMENTS

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._elements += 1
        if self._depth == 1 and name == f"{_SHEET}}}worksheet":
            self._limit = _MAX_SHEET_ELEMENTS
        if self._row_depth:
            self._in_row += 1
        elif name == f"{_SHEET}}}row":
            self._row_depth, self._in_row = self._depth, 0
        if self._elements > self._limit:
            raise _too_large(f"more than {self._limit:,} elements in one part")
        if self._in_row > _MAX_ROW_ELEMENTS:
            raise _too_large(f"more than {_MAX_ROW_ELEMENTS:,} elements in one row")
        if len(attributes) > _MAX_ATTRIBUTES or self._depth > _MAX_DEPTH:
            raise _too_large("elements with too many attributes, or nested too deep")

    def end(self, _name: str) -> None:
        if self._depth == self._row_depth:
            self._row_depth = self._in_row = 0
        self._depth -= 1


def _refuse_doctype(*_declared: object) -> None:
    raise ToolFailed("this file declares its own document type, which office files do not; ask for another copy")


def _too_large(what: str) -> ToolFailed:
    return ToolFailed(f"this file has {what}, which is too much to read here; ask for a smaller one")


_TEXT_CHARS = 5_000_000
_PDF_STREAM = 10_000_000  # bytes that one page's drawing instructions may unpack to
_PDF_INSTRUCTIONS = 500_000
_META_CHARS = 2_000  # of a title or a date


@parsing("PDF")
def read_pdf(data: bytes, first: int = 1, count: int | None = None, max_chars: int = 200_000) -> Pdf:
    """Return the text of pages from `first` on, within `count`, `max_chars` and the time limit. Raises ToolFailed."""
    import pypdf

    until = time.monotonic() + PARSING_S

    def in_time(*_operation: object) -> None:
        if time.monotonic() > until:
            raise ToolFailed(f"a page of this PDF takes longer than {PARSING_S:g} s to read; ask for another copy")

    with pypdf.apply_configuration(
        maximum_declared_stream_length=2 * _PDF_STREAM,
        array_based_stream_maximum_output_length=_PDF_STREAM,
        zlib_maximum_output_length=_PDF_STREAM,
        lzw_maximum_output_length=_PDF_STREAM,
        run_length_maximum_output_length=_PDF_STREAM,
        brotli_maximum_output_length=_PDF_STREAM,
        stream_decoding_work_maximum_length=4 * _PDF_STREAM,
        stream_parsing_work_maximum_count=_PDF_INSTRUCTIONS,
    ):
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ToolFailed("this PDF needs a password; ask for a copy without one")
        total = len(reader.pages)

        def text_of(number: int) -> str:
            text = reader.pages[number - 1].extract_text(visitor_operand_before=in_time).strip()
            cut = "\n(cut here: the page has more text)" if len(text) > PAGE_CHARS else ""
            return text[:PAGE_CHARS] + cut

        before = text_of(first - 1) if 1 < first <= total else ""
        last = total if count is None else min(total, first + count - 1)
        pages: list[tuple[int, str]] = []
        for number in range(first, last + 1):
            if time.monotonic() > until or sum(len(text) for _, text in pages) > max_chars:
                break
            pages.append((number, text_of(number)))
        title = (reader.metadata.title if reader.metadata else None) or None
        return Pdf(tuple(pages), total, title, first + len(pages) - 1 < last, before)


@parsing("Word document")
def read_docx(data: bytes, hide: Callable[[str], str] = str) -> str:
    """Return a Word document as text: headings marked, tables as rows, in their order. Raises ToolFailed: unreadable.

    `hide` replaces secrets in cells that are cut; the caller does so in the whole text.
    """
    import docx
    from docx.table import Table

    check_office_file(data)
    budget = TableBudget(hide)
    parts: list[str] = []
    marks: dict[str | None, str] = {}
    size = 0
    for block in docx.Document(io.BytesIO(data)).iter_inner_content():
        if size > _TEXT_CHARS or budget.late:
            parts.append("(cut here: the rest is too long to read)")
            break
        if isinstance(block, Table):
            text = render_table(_rows(block), budget)
        else:
            style = block._p.style  # pyright: ignore[reportPrivateUsage]  # finding a style's name takes long
            if style not in marks:
                marks[style] = _mark((block.style.name if block.style else None) or "")
            text = block.text[:_TEXT_CHARS].strip()
            text = text and marks[style] + text
        if text:
            parts.append(text)
            size += len(text)
    return "\n\n".join(parts)


def _mark(style: str) -> str:
    level = style.removeprefix("Heading ")
    return "# " if style == "Title" else "#" * min(int(level), 6) + " " if level.isdecimal() and level.isascii() else ""


def _rows(of: Table) -> Iterable[Iterable[str]]:
    """Yield a table's rows. A cell that spans columns comes once; `row.cells` would repeat it as often as it claims."""
    from docx.table import _Cell  # pyright: ignore[reportPrivateUsage]

    for row in of.rows:
        cells = islice(row._tr.tc_lst, MAX_COLUMNS + 1)  # pyright: ignore[reportPrivateUsage]
        yield (_Cell(cell, of).text for cell in cells)


@parsing("workbook")
def read_xlsx(data: bytes, hide: Callable[[str], str] = str) -> str:
    """Return a workbook, a table per sheet: values as last calculated, at most 2,000 rows. `hide`: see `read_docx`."""
    import openpyxl

    check_office_file(data)
    budget = TableBudget(hide)
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    try:
        parts: list[str] = []
        for number, sheet in enumerate(book.worksheets):
            if budget.spent:
                parts.append(f"({len(book.worksheets) - number:,} more sheets are not shown)")
                break
            sheet.reset_dimensions()  # otherwise the claimed size is filled with empty cells
            rows = (
                # Empty rows are dropped early: a row far down comes with as many empty rows as there are above it.
                () if row.count(None) == len(row) else ("" if value is None else str(value) for value in row)
                for row in sheet.iter_rows(max_col=MAX_COLUMNS + 1, values_only=True)
            )
            parts.append(f"## Sheet {sheet.title}\n\n{render_table(rows, budget)}")
        return "\n\n".join(parts)
    finally:
        book.close()


def read_article(html: str, url: str) -> WebPage:
    import trafilatura
    from trafilatura.settings import Document

    found: Document | None = None
    try:
        text = trafilatura.extract(html, url=url, output_format="markdown", include_links=True, include_comments=False)
        found = trafilatura.extract_metadata(html, default_url=url)
    except Exception:  # the extractor has no list of its exceptions; the page's words remain
        text = None
    return WebPage((text or "").strip(), _text(found, "title"), _text(found, "date"))


def _text(found: object, name: str) -> str | None:
    value = getattr(found, name, None)
    return " ".join(value.split())[:_META_CHARS] if isinstance(value, str) and value.strip() else None
