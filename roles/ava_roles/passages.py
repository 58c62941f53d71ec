"""Passages of texts that match the words of a question best, ranked by BM25."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from ava_roles.words import Matches, Query, filler_words

_PASSAGE_CHARS = 1_200
HEADING_CHARS = 30
"""About how many characters the line with a passage's place takes."""
_MAX_RANKED = 1_000
_MAX_WEIGHT = 5.0
_PAIR_SHARE = 0.7
_SATURATION, _LENGTH_SHARE = 1.2, 0.5
"""BM25's k1 and b."""
_PROSE_FILLERS = 0.2
"""The share of filler words from which a text counts as prose; lists of files and code have hardly any."""
_UNSPACED_SHARE = 0.4
_SYMBOL_SHARE = 0.12
_LEAST_PROSE = 0.4
_WORD = re.compile(r"[^\W\d_]+")
_NO_SYMBOL = re.compile(r"[\w\s.,;:!?'\"()\u2010-\u2027\u3000-\u303f\uff00-\uff65-]+")
_ENTRY = re.compile(r"(?<![\w.])\d+(?:\.\d+)+\.?\s")
_ENTRY_CHARS = 150
"""A table of contents has an entry at least every so many characters."""
_RECORDS = re.compile(r"(?:^|/)(?:changelog|changes|copyright|news|todo)[^/]*$", re.IGNORECASE)
_RECORD_FACTOR = 0.6
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True)
class Passage:
    """A piece of a file, verbatim, and its place there, e.g. `lines 10 to 18` or `page 3, 9 lines`."""

    where: str
    text: str


@dataclass(frozen=True)
class FileMatch:
    """A file that matches, with its best passages, the best first."""

    path: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class _Candidate:
    path: str
    passage: Passage
    position: int
    matches: Matches
    in_path: Sequence[int]


class PassageRanking:
    """The passages that have words of a question. Texts are counted once and then forgotten, as the question is known.

    `spread`: in how many passages each word of the question is; `total`: how many passages there are.
    """

    def __init__(self, query: Query) -> None:
        self.spread = [0] * len(query.words)
        self.total = 0
        self._length = 0
        self._query = query
        self._found: list[_Candidate] = []

    def add(self, path: str, passages: Iterable[Passage]) -> None:
        """Add the passages of a file, in their order in the file."""
        in_path = self._query.matches(path).counts
        for passage in passages:
            matches = self._query.matches(passage.text)
            self.total += 1
            self._length += matches.length
            for number, count in enumerate(matches.counts):
                self.spread[number] += count > 0
            if any(matches.counts) or any(in_path):
                self._found.append(_Candidate(path, passage, self.total, matches, in_path))

    def best(self, max_files: int, max_chars: int = 18_000) -> tuple[FileMatch, ...]:
        """Return the best files, the best first, each with its best passage and those that rank next of all.

        `max_chars` bounds passages, paths and places together; the first passage is returned anyway.
        """
        weigh = Weighing(weights_of(self.spread, self.total), self._length / max(self.total, 1))
        matching = nsmallest(_MAX_RANKED, ((-self._rank(each, weigh), each.position, each) for each in self._found))
        prose = [
            (rank * _prose_factor(text := each.passage.text, filler_share(text)), position, each)
            for rank, position, each in matching
        ]
        ranked = [each for _, _, each in sorted(prose)]
        by_file: dict[str, list[Passage]] = {}
        further: list[_Candidate] = []
        room = max_chars
        for each in ranked:
            size = len(each.passage.text) + HEADING_CHARS
            if each.path in by_file:
                further.append(each)
            elif not by_file or (len(by_file) < max_files and len(each.path) + size <= room):
                by_file[each.path] = [each.passage]
                room -= len(each.path) + size
        for each in further:
            size = len(each.passage.text) + HEADING_CHARS
            if size <= room:
                by_file[each.path].append(each.passage)
                room -= size
        return tuple(FileMatch(path, tuple(found)) for path, found in by_file.items())

    def _rank(self, each: _Candidate, weigh: Weighing) -> float:
        """Return the rank of a passage; a word in the path counts as once in the text."""
        counts = [here + min(there, 1) for here, there in zip(each.matches.counts, each.in_path, strict=True)]
        return weigh(each.matches._replace(counts=counts)) * record_factor(each.path)


def weights_of(spread: Sequence[int], total: int) -> list[float]:
    """Return how much each word tells, by the number of passages that have it (BM25's idf)."""
    return [math.log(1 + (total - count + 0.5) / (count + 0.5)) for count in spread]


@dataclass(frozen=True)
class Weighing:
    """Ranks texts by BM25; those with more of the question's words, or with two of them together, rank higher."""

    weights: Sequence[float]
    average: float

    def __call__(self, matches: Matches) -> float:
        """Return the rank of a text."""
        norm = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * matches.length / max(self.average, 1))
        # A very rare word ranks no higher than a rare one: it may be only the asker's.
        weights = [min(weight, _MAX_WEIGHT) for weight in self.weights]
        rank = sum(
            w * count * (_SATURATION + 1) / (count + norm) for w, count in zip(weights, matches.counts, strict=True)
        )
        for number, count in enumerate(matches.pairs):
            if count:
                rank += _PAIR_SHARE * min(weights[number : number + 2]) * count * (_SATURATION + 1) / (count + norm)
        had = sum(weight for weight, count in zip(weights, matches.counts, strict=True) if count)
        return rank * (0.25 + 0.75 * had / max(sum(weights), 0.001))

    def coverage(self, counts: Sequence[int]) -> float:
        """Return the share of the question that a text has, from 0 to 1: rare words count more than common ones."""
        whole = sum(self.weights)
        had = sum(weight for weight, count in zip(self.weights, counts, strict=True) if count)
        return had / whole if whole else 0.0


def record_factor(path: str) -> float:
    """Return 1, and less for records of what was done or is to do, which mention everything and explain little."""
    return _RECORD_FACTOR if _RECORDS.search(path) else 1.0


def filler_share(text: str) -> float:
    """Return the share of filler words among a text's words: sentences that explain something have most of them.

    Scripts without spaces have no such words; their texts count as prose.
    """
    words = [word.lower() for word in _WORD.findall(text)]
    if not words:
        return 0.0
    if len(_WIDE.findall(text)) > len(words):
        return _UNSPACED_SHARE
    fillers = filler_words()
    return sum(word in fillers for word in words) / len(words)


def _prose_factor(text: str, fillers: float) -> float:
    """Return 1 for prose, and less the more a text looks like code or a list of names; `fillers` is its share."""
    filling = fillers / _PROSE_FILLERS
    if not filling:
        return _LEAST_PROSE
    signs = sum(map(len, _NO_SYMBOL.sub("", text))) / len(text)
    listing = _LEAST_PROSE if len(_ENTRY.findall(text)) > max(len(text) / _ENTRY_CHARS, 2) else 1.0
    return max(min(filling, 1.0) * min(_SYMBOL_SHARE / max(signs, 0.001), 1.0) * listing, _LEAST_PROSE)


def split_lines(text: str) -> list[str]:
    """Return the lines of a text as editors and `grep -n` count them: a form feed, for example, does not end a line."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def split_passages(text: str) -> Generator[Passage]:
    """Yield passages of whole lines, about 1,200 characters each, split at empty lines if possible; cut long lines."""
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
    start = 0
    while start < len(line):
        end = start + _PASSAGE_CHARS
        if end < len(line) and (blank := line.rfind(" ", start, end)) > start:
            end = blank
        if piece := line[start:end].strip():
            yield piece
        start = end


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"
