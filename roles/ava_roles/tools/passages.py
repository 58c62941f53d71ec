"""The passages of a folder that fit some words best, ranked by bm25 in a full-text index in memory."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.path_access import Entry
from ava_roles.sandbox.paths import Root
from ava_roles.tools import documents
from ava_roles.tools.text_files import WalkFilter, decoded

_FILE_MAX = 2_000_000
_DOCUMENT_MAX = 10_000_000
_DOCUMENTS_MAX = 20
_BYTES_MAX = 40_000_000
_ENTRIES_MAX = 20_000
_PASSAGE = 1_200
_PER_FILE = 3
_WORDS_MAX = 30
_COMMON_WORDS = """
    a about all also an and any are as at be been but by can could did do does find for from
    get give had has have how i if in into is it its list me my no not of on or our please
    read show so some tell than that the their them then there these they this to us was we
    were what when where which who why will with would you your
"""
_COMMON = frozenset(_COMMON_WORDS.split())


@dataclass(frozen=True)
class Passage:
    """A piece of a file, letter for letter.

    Attributes:
        where: Its place, e.g. `lines 10 to 18` or `page 3`.
        text: What stands there.
    """

    where: str
    text: str


@dataclass(frozen=True)
class File:
    """A file that fits, with its best passages in the order in which they stand."""

    path: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class Best:
    """What fits best.

    Attributes:
        files: The best first.
        words: What was looked for.
        searched: Files that were read.
        cut: Not all files were read: there are too many, or they are too large together.
    """

    files: tuple[File, ...]
    words: tuple[str, ...]
    searched: int
    cut: bool


class Index:
    """Passages in memory, found by their words."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute(
            "CREATE VIRTUAL TABLE passages USING fts5"
            "(path, text, place UNINDEXED, tokenize = 'porter unicode61 remove_diacritics 2')"
        )

    def close(self) -> None:
        """Forget them."""
        self._db.close()

    def add(self, path: str, passages: Iterable[Passage]) -> None:
        """Take up the passages of a file, in the order in which they stand."""
        self._db.executemany(
            "INSERT INTO passages VALUES (?, ?, ?)",
            ((_storable(path), _storable(each.text), each.where) for each in passages),
        )

    def best(self, words: Sequence[str], max_files: int) -> tuple[File, ...]:
        """Return the best files: by their best passage, a name that fits counting three times."""
        if not words:
            return ()
        expression = " OR ".join(f'"{word}"' for word in words)
        rows: list[tuple[str, str, str, int]] = self._db.execute(
            "SELECT path, place, text, rowid FROM passages WHERE passages MATCH ? "
            "ORDER BY bm25(passages, 3.0, 1.0), rowid LIMIT 2000",
            (expression,),
        ).fetchall()
        by_file: dict[str, list[tuple[int, Passage]]] = {}
        for name, where, text, position in rows:
            if name not in by_file and len(by_file) >= max_files:
                continue
            chosen = by_file.setdefault(name, [])
            if len(chosen) < _PER_FILE:
                chosen.append((position, Passage(where, text)))
        return tuple(
            File(name, tuple(passage for _, passage in sorted(chosen, key=lambda each: each[0])))
            for name, chosen in by_file.items()
        )


def best(root: Root, query: str, path: str = "", max_files: int = 5, check: Callable[[], None] = lambda: None) -> Best:
    """Return the files whose passages fit the query's words best. Blocks.

    Args:
        root: The workspace.
        query: Words or a question.
        path: Where to search.
        max_files: Files to return.
        check: Called on the way; raises to stop.

    Raises:
        ToolFailed: The path cannot be searched.
    """
    words = words_of(query)
    wanted = WalkFilter(root, check)
    searched = size = read_documents = 0
    cut = False
    with closing(Index()) as index:
        for entry in root.walk(path, limit=_ENTRIES_MAX, keep=wanted):
            if size > _BYTES_MAX:
                cut = True
                break
            document = PurePosixPath(entry.name).suffix.lower() in (".pdf", ".docx")
            read_documents += document
            if not words or read_documents > _DOCUMENTS_MAX:
                cut = cut or bool(words)
                continue
            found = list(_of_document(root, entry) if document else _of_text(root, entry))
            if found:
                searched += 1
                size += sum(len(passage.text) for passage in found)
                index.add(entry.name, found)
        files = index.best(words, max_files)
    return Best(files, tuple(words), searched, cut or wanted.asked >= _ENTRIES_MAX)


def words_of(query: str) -> list[str]:
    """Return the words of a query that can tell one text from another; all of them if none can."""
    words = list(dict.fromkeys(word for word in re.findall(r"\w+", query.lower()) if len(word) > 1))
    return ([word for word in words if word not in _COMMON] or words)[:_WORDS_MAX]


def cut_up(text: str) -> Generator[Passage]:
    """Yield a text in passages of whole lines, of about 1,200 characters, cut at empty lines if possible.

    A line that is much longer than a passage becomes several.
    """
    taken: list[str] = []
    length = start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > 2 * _PASSAGE:
            if taken:
                yield Passage(_lines(start, start + len(taken) - 1), "\n".join(taken))
                taken, length = [], 0
            for piece in _pieces(line):
                yield Passage(_lines(number, number), piece)
            continue
        blank = not line.strip()
        if taken and (length + len(line) > _PASSAGE or (blank and length > _PASSAGE // 2)):
            yield Passage(_lines(start, start + len(taken) - 1), "\n".join(taken))
            taken, length = [], 0
        if blank and not taken:
            continue
        if not taken:
            start = number
        taken.append(line)
        length += len(line) + 1
    while taken and not taken[-1].strip():
        taken.pop()
    if taken:
        yield Passage(_lines(start, start + len(taken) - 1), "\n".join(taken))


def _pieces(line: str) -> Generator[str]:
    """Yield a long line in pieces of about a passage, cut between words where there are any."""
    start = 0
    while start < len(line):
        end = start + _PASSAGE
        if end < len(line) and (blank := line.rfind(" ", start, end)) > start:
            end = blank
        if piece := line[start:end].strip():
            yield piece
        start = end


def _of_text(root: Root, entry: Entry) -> Generator[Passage]:
    if entry.size > _FILE_MAX:
        return
    try:
        data, more = root.read(entry.name, _FILE_MAX)
    except ToolFailed:
        return
    text = None if more else decoded(data)
    if text:
        yield from cut_up(text)


def _of_document(root: Root, entry: Entry) -> Generator[Passage]:
    """Yield the passages of a PDF or a Word document; one that cannot be read has none."""
    if entry.size > _DOCUMENT_MAX:
        return
    try:
        data, _ = root.read(entry.name, _DOCUMENT_MAX)
        if not documents.is_pdf(data):
            yield from cut_up(documents.read_docx(data))
            return
        for number, text in documents.read_pdf(data, count=100).pages:
            for passage in cut_up(text):
                yield Passage(f"page {number}", passage.text)
    except ToolFailed:
        return


def _storable(text: str) -> str:
    """SQLite takes no half characters, which file names may contain."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"
