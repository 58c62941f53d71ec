"""Parsers of PDF, DOCX, XLSX, CSV and HTML. They block, and trust no byte of a file.

`parser_process.py` runs them in a process of their own: whatever a file does to its parser ends only that process.
"""

from __future__ import annotations

import csv
import io
import re
import time
import zipfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from ava_roles.errors import ToolFailed
from ava_roles.passages import split_lines
from ava_roles.tools.text_files import decode_text

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
    """Check that an office file can be parsed safely.

    Raises:
        ToolFailed: It would take too much memory or time.
    """
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
    """Count the elements of a part, without looking at its content."""
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
    """Counts elements, in total and in one row of a sheet."""

    def __init__(self) -> None:
        self._depth = self._elements = self._in_row = 0
        self._row_depth = 0
        self._limit = _MAX_ELEMENTS

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Count an element that opens."""
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
        """Count an element that closes."""
        if self._depth == self._row_depth:
            self._row_depth = self._in_row = 0
        self._depth -= 1


def _refuse_doctype(*_declared: object) -> None:
    raise ToolFailed("this file declares its own document type, which office files do not; ask for another copy")


def _too_large(what: str) -> ToolFailed:
    return ToolFailed(f"this file has {what}, which is too much to read here; ask for a smaller one")


_MAX_ROWS = 2_000
_ROWS_SCANNED = 200_000  # a sheet may claim a million empty rows
_MAX_COLUMNS = 200
_MAX_CELL_CHARS = 500
_LONG_CELL_CHARS = 50_000  # of a cell that is cut: a secret in its beginning ends in these
_HIDDEN_CHARS = 5_000_000  # of such cells, of all tables of a file together
_TABLE_CHARS = 1_000_000  # of all tables of a file together
_CSV_CHARS = 4_000_000
_TEXT_CHARS = 5_000_000
_SECONDS = 20.0
_PAGE_CHARS = 200_000
_PDF_STREAM = 10_000_000  # bytes that one page's drawing instructions may unpack to
_PDF_INSTRUCTIONS = 500_000


@dataclass(frozen=True)
class Pdf:
    """Some pages of a PDF.

    Attributes:
        pages: The number (from 1) and text of each page that was read.
        total: The number of its pages.
        title: Its title, if it has one.
        unread: The time was up before the last requested page.
        before: The text of the page before the first one: a secret may begin there.
    """

    pages: tuple[tuple[int, str], ...]
    total: int
    title: str | None
    unread: bool = False
    before: str = ""


def is_pdf(data: bytes) -> bool:
    """Tell a PDF by its first bytes."""
    return b"%PDF-" in data[:1024]


@contextmanager
def _parsing(what: str) -> Generator[None]:
    """Turn an exception of a parser over a broken file into a ToolFailed with one sentence."""
    try:
        yield
    except ToolFailed:
        raise
    except Exception as error:
        raise ToolFailed(f"this {what} cannot be read ({type(error).__name__}: {str(error)[:120]})") from error


@_parsing("PDF")
def read_pdf(data: bytes, first: int = 1, count: int | None = None, max_chars: int = 200_000) -> Pdf:
    """Return the text of pages, from page `first` on, until `count`, `max_chars` or the time limit is reached.

    Raises:
        ToolFailed: It cannot be read.
    """
    import pypdf

    until = time.monotonic() + _SECONDS

    def in_time(*_operation: object) -> None:
        if time.monotonic() > until:
            raise ToolFailed(f"a page of this PDF takes longer than {_SECONDS:g} s to read; ask for another copy")

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
            cut = "\n(cut here: the page has more text)" if len(text) > _PAGE_CHARS else ""
            return text[:_PAGE_CHARS] + cut

        before = text_of(first - 1) if 1 < first <= total else ""
        last = total if count is None else min(total, first + count - 1)
        pages: list[tuple[int, str]] = []
        for number in range(first, last + 1):
            if time.monotonic() > until or sum(len(text) for _, text in pages) > max_chars:
                break
            pages.append((number, text_of(number)))
        title = (reader.metadata.title if reader.metadata else None) or None
        return Pdf(tuple(pages), total, title, first + len(pages) - 1 < last, before)


def hide_pages(pages: Sequence[tuple[int, str]], hide: Callable[[str], str]) -> list[tuple[int, str]]:
    """Return pages with their secrets hidden, even one that continues on the next page."""
    texts = ["\n".join(split_lines(text)) for _, text in pages]
    lines = iter(hide("\n".join(texts)).split("\n"))
    return [(page[0], "\n".join(islice(lines, text.count("\n") + 1))) for page, text in zip(pages, texts, strict=True)]


@_parsing("Word document")
def read_docx(data: bytes, hide: Callable[[str], str] = str) -> str:
    """Return a Word document as text: headings marked, tables as rows, in their order.

    Args:
        data: The file.
        hide: Replaces secrets in cells that are cut; the caller does so in the whole text.

    Raises:
        ToolFailed: It cannot be read.
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
    """Return the Markdown heading marks for a paragraph style; empty for other styles."""
    level = style.removeprefix("Heading ")
    return "# " if style == "Title" else "#" * min(int(level), 6) + " " if level.isdecimal() and level.isascii() else ""


def _rows(of: Table) -> Iterable[Iterable[str]]:
    """Yield a table's rows. A cell that spans columns comes once; `row.cells` would repeat it as often as it claims."""
    from docx.table import _Cell  # pyright: ignore[reportPrivateUsage]

    for row in of.rows:
        cells = islice(row._tr.tc_lst, _MAX_COLUMNS + 1)  # pyright: ignore[reportPrivateUsage]
        yield (_Cell(cell, of).text for cell in cells)


@_parsing("workbook")
def read_xlsx(data: bytes, hide: Callable[[str], str] = str) -> str:
    """Return a workbook as one table per sheet: values as last calculated, at most 2,000 rows each.

    Args:
        data: The file.
        hide: Replaces secrets in cells that are cut; the caller does so in the whole text.

    Raises:
        ToolFailed: It cannot be read.
    """
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
                for row in sheet.iter_rows(max_col=_MAX_COLUMNS + 1, values_only=True)
            )
            parts.append(f"## Sheet {sheet.title}\n\n{render_table(rows, budget)}")
        return "\n\n".join(parts)
    finally:
        book.close()


@_parsing("CSV file")
def read_csv(data: bytes, hide: Callable[[str], str] = str) -> str:
    """Return a CSV file as a table; its cells are separated by `,`, `;`, tab or `|`.

    Args:
        data: The file.
        hide: Replaces secrets in its text.

    Raises:
        ToolFailed: It is not text.
    """
    text = decode_text(data)
    if text is None:
        raise ToolFailed("this file is named like a CSV but is not text; choose another file")

    beginning = hide(text[: _CSV_CHARS + _LONG_CELL_CHARS])[:_CSV_CHARS]
    shown = render_table(csv.reader(io.StringIO(beginning, newline=""), delimiter=_separator(beginning)))
    if len(text) > _CSV_CHARS:
        shown += f"\n(only the first {_CSV_CHARS:,} characters were read)"
    return shown


def _separator(text: str) -> str:
    """Return the cell separator: the candidate that is in most of the first lines, and there most often."""
    lines = text[:8_192].splitlines()[:20]
    return max(",;\t|", key=lambda sign: (sum(sign in line for line in lines), sum(line.count(sign) for line in lines)))


class TableBudget:
    """What the tables of one file may cost together: time, characters that are shown, and cells to hide secrets in.

    Args:
        hide: Replaces secrets in cells that are cut; it is asked once for each different cell.

    Attributes:
        room: How many characters may still be shown.
    """

    def __init__(self, hide: Callable[[str], str] = str) -> None:
        self.room = _TABLE_CHARS
        self._until = time.monotonic() + _SECONDS
        self._hide = hide
        self._hidden: dict[str, str] = {}
        self._to_hide = _HIDDEN_CHARS

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._until

    @property
    def spent(self) -> bool:
        """Whether nothing more may be read."""
        return self.room <= 0 or self._to_hide <= 0 or self.late

    def clean_row(self, row: Iterable[str]) -> list[str]:
        """Return the cells of a row, without empty ones at its end; the clock is looked at for each of them."""
        in_time = takewhile(lambda _cell: not self.spent, islice(row, _MAX_COLUMNS + 1))
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
    """Return rows as a Markdown table, with notes about what is not shown.

    Empty rows are left out. The table has at most 2,000 rows and 200 columns, and what the budget of its file allows.
    Short rows are not padded.
    """
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
            if len(cells) > _MAX_COLUMNS:
                cells.pop()
                if not notes:
                    notes.append(f"(only the first {_MAX_COLUMNS} columns are shown)")
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


_HOLLOW_CHARS = 30  # a page with scripts and fewer characters shows nothing without them
_NEEDS_SCRIPTS = re.compile(
    r"(enable|activate|requires?|need|without)\s+javascript|javascript\s+(is\s+)?(required|disabled|must)"
    r"""|\bid=["']?(root|app|__next|__nuxt)["']?[\s>]""",
    re.IGNORECASE,
)
_INVISIBLE_TAGS = ("script", "style", "noscript", "template", "svg", "head", "iframe")
_BLOCK_TAG_NAMES = """
    address article aside blockquote br dd div dl dt figcaption footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol
    option p pre section table td th tr ul
"""
_BLOCK_TAGS = frozenset(_BLOCK_TAG_NAMES.split())


def page_words(html: str) -> tuple[str, bool]:
    """Return all words of a page, one line per block, and whether it needs scripts to show its content."""
    lxml_html: Any = import_module("lxml.html")  # has no types
    etree: Any = import_module("lxml.etree")
    try:
        # Bytes, because lxml refuses a string that declares its encoding.
        parser = lxml_html.HTMLParser(encoding="utf-8")
        tree = lxml_html.document_fromstring(html.encode("utf-8", "replace"), parser=parser)
    except (etree.LxmlError, ValueError):
        return "", False
    scripted = next(tree.iter("script"), None) is not None
    parts: list[str] = []
    # A walk, not a recursion: a page may be nested to any depth.
    walk = etree.iterwalk(tree, events=("start", "end"))
    for event, element in walk:
        silent = not isinstance(element.tag, str) or element.tag in _INVISIBLE_TAGS
        if event == "start" and silent:
            walk.skip_subtree()
        else:
            if element.tag in _BLOCK_TAGS:
                parts.append("\n")
            parts.append((element.text if event == "start" else element.tail) or "")
    lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
    text = "\n".join(line for line in lines if line)
    return text, scripted and (len(text) < _HOLLOW_CHARS or _NEEDS_SCRIPTS.search(html) is not None)


_META_CHARS = 2_000  # of a title or a date
_SHORT_CHARS = 200  # an article that is shorter was probably missed, so the whole page is read
_MAX_TAGS = 100_000  # with more, finding the article takes minutes and gigabytes
_HUGE_CHARS = 2_000_000  # how much of such a page is read


@dataclass(frozen=True)
class Page:
    """The content of a page.

    Attributes:
        text: Its text; of a web page, at most 200,000 characters.
        title: Its title, if it has one.
        date: When it was published, `YYYY-MM-DD`, if known.
        note: What a reader must know, e.g. that it needs JavaScript.
    """

    text: str
    title: str | None = None
    date: str | None = None
    note: str | None = None


def read_html(html: str, url: str) -> Page:
    """Return the content of a page: its article as Markdown, or else its words."""
    import trafilatura
    from trafilatura.settings import Document

    if html.count("<") > _MAX_TAGS:
        words, _hollow = page_words(html[:_HUGE_CHARS])
        return Page(words[:_PAGE_CHARS], note="it is very large: this is its beginning, without headings and links")
    found: Document | None = None
    try:
        text = trafilatura.extract(html, url=url, output_format="markdown", include_links=True, include_comments=False)
        found = trafilatura.extract_metadata(html, default_url=url)
    except Exception:  # the extractor has no list of its exceptions; the page's words remain
        text = None
    text = (text or "").strip()
    note = None
    if len(text) < _SHORT_CHARS:
        whole, hollow = page_words(html)
        text = whole if len(whole) > len(text) else text
        if hollow:
            note = "it seems to need JavaScript, which is not run here; look for another source"
        elif not text:
            note = "it contains no text"
    return Page(text[:_PAGE_CHARS], _text(found, "title"), _text(found, "date"), note)


def _text(found: object, name: str) -> str | None:
    value = getattr(found, name, None)
    return " ".join(value.split())[:_META_CHARS] if isinstance(value, str) and value.strip() else None
