"""A document as text, and the table of the kinds of document, by which all readers tell what a file is.

A new kind is a row here and a parser of the same name in `formats`; every tool that reads files then reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, cast

from ava_roles.texts.passages import split_lines

MOST_CHARS = 6_000_000
"""The longest text of one document: its secrets have to be hidden, which takes half a second for a million."""
_MOST_RANGES = 50


OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""How a binary file of an old Office begins, and an encrypted one of a new Office."""
BIFF_MAGICS = (b"\x09\x00\x04\x00", b"\x09\x02\x06\x00", b"\x09\x04\x06\x00", b"\x09\x08\x08\x00", b"\x09\x08\x10\x00")
"""How a workbook of Excel 2 to 97 begins that is in no container: the record that begins it, and its length."""
_APPLE_DOUBLE_MAGIC = b"\x00\x05\x16\x07"
_RTF_MAGIC = b"{\\rtf"
_DOCUMENT_MAGIC = (b"PK", OLE_MAGIC, _RTF_MAGIC)
_OLD_MAGICS = (OLE_MAGIC, b"PK\x03\x04", *BIFF_MAGICS)
"""How a file with the suffix of an old Office begins, or of a new one that got that suffix; others are text."""

Tables = Literal["", "bars", "commas", "marks", "words"]
"""How a text writes the rows of its tables: in no way that is known, `| a | b |`, as a CSV file, between marks
(`page_tables`), which no reader is shown, or as lines of words, with the cells beside the text (`WordTable`)."""


@dataclass(frozen=True)
class Format:
    """A kind of document: its name, the suffixes of its files, and whether it is read page by page.

    `old`: suffixes of its files from before 2007; other programs write text in files of these names. `extra`: its
    parser needs the packages of the extra `documents`. `tables`: how its text writes them.
    """

    name: str
    suffixes: tuple[str, ...]
    by_page: bool = False
    old: tuple[str, ...] = ()
    extra: bool = True
    tables: Tables = "bars"


PDF = Format("PDF", (".pdf",), by_page=True, tables="words")
WORD = Format("Word document", (".docx", ".docm", ".dotx", ".dotm"), old=(".doc", ".dot"), extra=False)
RTF = Format("RTF file", (".rtf",), extra=False)
FORMATS = (
    PDF,
    WORD,
    Format("presentation", (".pptx", ".pptm", ".ppsx", ".ppsm", ".potx"), old=(".ppt", ".pps"), extra=False),
    Format("workbook", (".xlsx", ".xlsm", ".xltx", ".xltm", ".xlsb"), old=(".xls", ".xlt")),
    Format("OpenDocument text", (".odt", ".ott"), extra=False),
    Format("OpenDocument presentation", (".odp", ".otp", ".odg", ".otg"), extra=False),
    Format("OpenDocument spreadsheet", (".ods", ".ots"), extra=False),
    Format("EPUB book", (".epub",), extra=False),
    RTF,
    Format("email", (".eml",), extra=False),
    Format("notebook", (".ipynb",), extra=False, tables=""),
)


def format_of(name: str, data: bytes = b"") -> Format | None:
    """Return the format of a document; None if a file is not a document.

    The first bytes tell a PDF, whatever its name, and RTF in a file that is named as one of Word; the suffix of the
    name tells the others. Without `data`, only the name counts.
    """
    if is_pdf(data):
        return PDF
    if _stands_beside_document(name, data):
        return None
    suffix = PurePosixPath(name).suffix.lower()
    if data.startswith(_RTF_MAGIC) and suffix in (*WORD.suffixes, *WORD.old):
        return RTF
    is_ole = data.startswith(OLE_MAGIC)
    is_old_office = data.startswith(_OLD_MAGICS)
    for file_format in FORMATS:
        if is_old_office and suffix in file_format.old:
            return file_format
        if suffix not in file_format.suffixes:
            continue
        is_only_named_pdf = file_format is PDF and data != b"" and not is_ole
        if is_only_named_pdf:
            return None
        return file_format
    return None


def _stands_beside_document(name: str, data: bytes) -> bool:
    """Tell whether a file only has the name of a document that it stands beside.

    A Mac keeps what other systems have no place for in `._report.docx` (AppleDouble, RFC 1740), and Office says in
    `~$report.docx` who has the document open.
    """
    if data.startswith(_APPLE_DOUBLE_MAGIC):
        return True
    return is_name_beside_document(name) and data != b"" and not data.startswith(_DOCUMENT_MAGIC)


def is_name_beside_document(name: str) -> bool:
    """Tell whether a file may only stand beside a document, by its name; a document may be called so, too."""
    return PurePosixPath(name).name.startswith(("._", "~$"))


def is_pdf(data: bytes) -> bool:
    return b"%PDF-" in data[:1024]


@dataclass(frozen=True)
class Wanted:
    """Which pages of a document to read, of one that is read by page: from `first` (1) on, at most `count`."""

    first: int = 1
    count: int | None = None
    max_chars: int = 200_000


ALL = Wanted()


class Part(NamedTuple):
    """A page, sheet or slide: its place, e.g. `page 3`, and its text. A document without them is one part."""

    place: str
    text: str


class WordRow(NamedTuple):
    """A row of a table that a text has as words: its first and last line, from 0, and its cells by column."""

    first: int
    last: int
    cells: list[str]


class WordTable(NamedTuple):
    """The rows of one table, the heads first, in a part of a text (from 0)."""

    part: int
    rows: list[WordRow]

    @classmethod
    def of(cls, part: Any, rows: Iterable[Any]) -> WordTable:
        """Return the table that a parser's process has sent."""
        return cls(int(part), [WordRow(int(first), int(last), list(map(str, cells))) for first, last, cells in rows])


@dataclass(frozen=True)
class Extracted:
    """The text of a document, or of some of its pages.

    `total`: how many parts the document has. `missing`: sentences on what is in it and not in the text. `unread`: the
    time was up before the last page that was wanted. `before`: the page before the first one, in which a secret may
    begin. `encrypted`: its file hides it, so the text is not kept. `note`: how it was read, e.g. `read as Big5`.
    `tables`: how it writes the rows of tables, where a search is to show them with their heads; `word_tables`: those
    that it writes as lines of words.
    """

    parts: tuple[Part, ...]
    title: str | None = None
    total: int = 1
    missing: tuple[str, ...] = ()
    unread: bool = False
    before: str = ""
    encrypted: bool = False
    note: str = ""
    tables: Tables = ""
    word_tables: tuple[WordTable, ...] = ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Extracted:
        """Return the text that a parser's process has sent, from its fields."""
        return cls(
            parts=tuple(Part(str(place), str(text)) for place, text in fields["parts"]),
            title=None if fields["title"] is None else str(fields["title"]),
            total=int(fields["total"]),
            missing=tuple(map(str, fields["missing"])),
            unread=bool(fields["unread"]),
            before=str(fields["before"]),
            encrypted=bool(fields["encrypted"]),
            note=str(fields["note"]),
            tables=cast("Tables", fields["tables"]),
            word_tables=tuple(WordTable.of(*table) for table in fields["word_tables"]),
        )

    @property
    def end(self) -> str:
        """Return which parts were not read, e.g. `pages 31 to 40`; empty if all were."""
        if not self.unread:
            return ""
        if self.parts and self.parts[0].place.startswith("page "):
            first = len(self.parts) + 1
            if first == self.total:
                return f"page {first:,}"
            return f"pages {first:,} to {self.total:,}"
        return "the end"

    def of_pages(self, wanted: Wanted) -> Extracted:
        """Return some pages of a whole document, as its parser would return them, but without `word_tables`."""
        first = wanted.first - 1
        last = len(self.parts) if wanted.count is None else first + wanted.count
        pages: list[Part] = []
        for part in self.parts[first:last]:
            if size_of(pages) > wanted.max_chars:
                break
            pages.append(part)
        before = ""
        if 0 < first <= len(self.parts):
            before = self.parts[first - 1].text
        return replace(self, parts=tuple(pages), before=before, unread=False, word_tables=())

    def text(self) -> str:
        """Return all parts as one text, each below its place."""
        blocks: list[str] = []
        for part in self.parts:
            if part.place:
                blocks.append(f"[{part.place}]\n{part.text}")
            else:
                blocks.append(part.text)
        return "\n\n".join(blocks)

    def hidden(self, hide: Callable[[str], str]) -> list[Part]:
        """Return the parts with their secrets hidden, even one that continues on the next page.

        `hide` keeps the number of lines.
        """
        texts = [self.before]
        texts += [part.text for part in self.parts]
        texts = ["\n".join(split_lines(text)) for text in texts]
        hidden_lines = iter(hide("\n".join(texts)).split("\n"))
        hidden_texts: list[str] = []
        for text in texts:
            lines = islice(hidden_lines, text.count("\n") + 1)
            hidden_texts.append("\n".join(lines))
        texts_of_parts = hidden_texts[1:]
        return [Part(hide(part.place), text) for part, text in zip(self.parts, texts_of_parts, strict=True)]


def size_of(parts: Sequence[Part]) -> int:
    return sum(len(part.text) for part in parts)


_ROW = re.compile(r"^\| (\d+) \|", re.MULTILINE)
_SEPARATOR = re.compile(r"(?<!\\)\|")


def row_places(place: str, pieces: Iterable[str]) -> Iterator[str]:
    """Yield where each piece of a part's text is; for a sheet with its rows, e.g. `sheet Plan, rows 12 to 18`.

    Rows have the numbers that the table shows. A piece without a number goes on with the last row of the piece before.
    """
    is_sheet = place.startswith("sheet ")
    last = ""
    for piece in pieces:
        rows: list[str] = []
        if is_sheet:
            rows = _ROW.findall(piece)
        first = last
        if rows:
            first = rows[0]
            last = rows[-1]
        elif piece.lstrip().startswith(("[", "(")):  # a note, which belongs to no row
            first = last = ""
        if not first:
            yield place
        elif first == last:
            yield f"{place}, row {first}"
        else:
            yield f"{place}, rows {first} to {last}"


def column_letters(column: int) -> str:
    """Return the letters of a sheet's column by its number, from 1."""
    letters = ""
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def cell_of(row: str, start: int, end: int) -> str | None:
    """Return in which cell of a row of a sheet's table a piece of it stands, such as `C58`; None: in no one cell."""
    number = _ROW.match(row)
    if number is None:
        return None
    column = -1  # column 0 has the row's number
    for separator in _SEPARATOR.finditer(row):
        at = separator.start()
        if at < start:
            column += 1
        elif at < end:  # the piece reaches into the next cell
            return None
    if column < 1:
        return None
    return f"{column_letters(column)}{number[1]}"


def page_ranges(numbers: Sequence[int]) -> str:
    """Return pages by their numbers, which ascend: `page 3`, or `pages 1 to 4, 7`."""
    starts: list[int] = []
    ends: list[int] = []
    for number in numbers:
        if ends and number <= ends[-1] + 1:
            ends[-1] = number
        else:
            starts.append(number)
            ends.append(number)
    ranges: list[str] = []
    for start, end in zip(starts, ends, strict=True):
        if start == end:
            ranges.append(str(start))
        else:
            ranges.append(f"{start} to {end}")
    if len(ranges) > _MOST_RANGES:
        more = len(ranges) - _MOST_RANGES
        ranges[_MOST_RANGES:] = [f"and {more:,} more"]
    noun = "pages" if len(numbers) > 1 else "page"
    return f"{noun} {', '.join(ranges)}"
