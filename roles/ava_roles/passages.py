"""Passages of texts that match some words best, ranked by BM25 in a full-text index in memory."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

_PASSAGE_CHARS = 1_200
_PASSAGES_PER_FILE = 3
_MAX_WORDS = 30
_COMMON_WORDS = """
    a about all also an and any are as at be been but by can could did do does find for from
    get give had has have how i if in into is it its list me my no not of on or our please
    read show so some tell than that the their them then there these they this to us was we
    were what when where which who why will with would you your
"""
_COMMON = frozenset(_COMMON_WORDS.split())


@dataclass(frozen=True)
class Passage:
    """A piece of a file, verbatim.

    Attributes:
        where: Its place, e.g. `lines 10 to 18` or `page 3`.
        text: The text there.
    """

    where: str
    text: str


@dataclass(frozen=True)
class FileMatch:
    """A file that matches, with its best passages in their order in the file."""

    path: str
    passages: tuple[Passage, ...]


class PassageIndex:
    """Passages in memory, found by their words."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute(
            "CREATE VIRTUAL TABLE passages USING fts5"
            "(path, text, place UNINDEXED, tokenize = 'porter unicode61 remove_diacritics 2')"
        )

    def close(self) -> None:
        """Free the index."""
        self._db.close()

    def add(self, path: str, passages: Iterable[Passage]) -> None:
        """Add the passages of a file, in their order in the file."""
        self._db.executemany(
            "INSERT INTO passages VALUES (?, ?, ?)",
            ((_storable(path), _storable(each.text), each.where) for each in passages),
        )

    def best(self, words: Sequence[str], max_files: int) -> tuple[FileMatch, ...]:
        """Return the best files, each ranked by its best passage; a match in the path counts three times."""
        if not words:
            return ()
        rows: list[tuple[str, str, str, int]] = self._db.execute(
            "SELECT path, place, text, rowid FROM passages WHERE passages MATCH ? "
            "ORDER BY bm25(passages, 3.0, 1.0), rowid LIMIT 2000",
            (" OR ".join(f'"{word}"' for word in words),),
        ).fetchall()
        by_file: dict[str, list[tuple[int, Passage]]] = {}
        for path, where, text, position in rows:
            if path in by_file or len(by_file) < max_files:
                by_file.setdefault(path, []).append((position, Passage(where, text)))
        return tuple(
            FileMatch(path, tuple(each for _, each in sorted(ranked[:_PASSAGES_PER_FILE], key=lambda pair: pair[0])))
            for path, ranked in by_file.items()
        )


def query_words(query: str) -> list[str]:
    """Return the words of a query that distinguish one text from another; all of its words if none does."""
    words = list(dict.fromkeys(word for word in re.findall(r"\w+", query.lower()) if len(word) > 1))
    return ([word for word in words if word not in _COMMON] or words)[:_MAX_WORDS]


def split_lines(text: str) -> list[str]:
    """Return the lines of a text as editors and `grep -n` count them: a form feed, for example, does not end a line."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def split_passages(text: str) -> Generator[Passage]:
    """Yield a text as passages of whole lines, about 1,200 characters each, split at empty lines if possible.

    A line that is much longer than a passage becomes several.
    """
    taken: list[str] = []
    length = start = 0

    def passage() -> Passage:
        return Passage(_lines(start, start + len(taken) - 1), "\n".join(taken))

    for number, line in enumerate(split_lines(text), 1):
        if len(line) > 2 * _PASSAGE_CHARS:
            if taken:
                yield passage()
                taken, length = [], 0
            for piece in _split_line(line):
                yield Passage(_lines(number, number), piece)
            continue
        blank = not line.strip()
        if taken and (length + len(line) > _PASSAGE_CHARS or (blank and length > _PASSAGE_CHARS // 2)):
            yield passage()
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
        yield passage()


def _split_line(line: str) -> Generator[str]:
    """Yield a long line in pieces, split between words where possible."""
    start = 0
    while start < len(line):
        end = start + _PASSAGE_CHARS
        if end < len(line) and (blank := line.rfind(" ", start, end)) > start:
            end = blank
        if piece := line[start:end].strip():
            yield piece
        start = end


def _storable(text: str) -> str:
    """Replace lone surrogates, which file names may contain and SQLite refuses."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"
