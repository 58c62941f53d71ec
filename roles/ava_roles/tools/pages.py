"""What a PDF, a web page and a table are to the tools, and the words of a web page; `parser_process.py` reads them.

Tables are Markdown, from CSV and from the documents of the extra, within what one file may cost.
"""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice, takewhile
from typing import Any

from ava_extras import has_extra, load
from ava_roles.errors import ToolFailed
from ava_roles.passages import split_lines
from ava_roles.tools.text_files import decode_text

PAGE_CHARS = 200_000


@dataclass(frozen=True)
class Pdf:
    """Some pages of a PDF, each with its number (from 1) and text; `total` counts all pages.

    `unread`: the time was up before the last requested page. `before`: the text of the page before the first one: a
    secret may begin there.
    """

    pages: tuple[tuple[int, str], ...]
    total: int
    title: str | None
    unread: bool = False
    before: str = ""


def is_pdf(data: bytes) -> bool:
    return b"%PDF-" in data[:1024]


def hide_pages(pages: Sequence[tuple[int, str]], hide: Callable[[str], str]) -> list[tuple[int, str]]:
    """Return pages with their secrets hidden, even one that continues on the next page."""
    texts = ["\n".join(split_lines(text)) for _, text in pages]
    lines = iter(hide("\n".join(texts)).split("\n"))
    return [(page[0], "\n".join(islice(lines, text.count("\n") + 1))) for page, text in zip(pages, texts, strict=True)]


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


_SHORT_CHARS = 200  # an article that is shorter was probably missed, so the whole page is read
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
    if html.count("<") > _MAX_TAGS:
        words, _hollow = page_words(html[:_HUGE_CHARS])
        return WebPage(words[:PAGE_CHARS], note="it is very large: this is its beginning, without headings and links")
    finds_articles = has_extra("documents")
    article: WebPage = load("documents").read_article(html, url) if finds_articles else WebPage("", note=_ONLY_WORDS)
    text, note = article.text, article.note
    if len(text) < _SHORT_CHARS:
        whole, hollow = page_words(html)
        text = whole if len(whole) > len(text) else text
        if hollow:
            note = "it seems to need JavaScript, which is not run here; look for another source"
        elif not text:
            note = "it contains no text"
    return WebPage(text[:PAGE_CHARS], article.title, article.date, note)


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
    lines = beginning[:8_192].splitlines()[:20]
    often = {sign: (sum(sign in line for line in lines), sum(line.count(sign) for line in lines)) for sign in ",;\t|"}
    delimiter = max(often, key=often.__getitem__)
    shown = render_table(csv.reader(io.StringIO(beginning, newline=""), delimiter=delimiter))
    if len(text) > _CSV_CHARS:
        shown += f"\n(only the first {_CSV_CHARS:,} characters were read)"
    return shown


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
