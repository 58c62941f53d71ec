"""The ways to rank that `reader.py --compare` sets side by side, over the same extracted texts.

Each returns passages, the best first, of at most `PIECE_CHARS` characters. The parameters were written down before the
first run, and nobody tunes them.
"""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import snowballstemmer

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.texts.kept import KeptTexts
from ava_roles.texts.passages import Query
from ava_roles.texts.reading import FolderReader, text_of
from ava_roles.texts.store import TextStore
from ava_roles.tool import ToolContext
from ava_roles.tools.files import ReadFile, ReadFileArgs, SearchAndRead, SearchAndReadArgs
from ava_server.models import offline
from ava_server.models.base import AssistantTurn, Request, ToolSchema, ToolTurn, ToolUse, Turn, UserTurn
from ava_server.models.offline_passages import SEARCH, SUBMIT, best_passages, passages, spread_of

PIECE_CHARS = 800
"""A passage has at most so many characters: the longest quote of the reader."""
STEP_CHARS = 400
"""Pieces for BM25 and FTS5 begin so many characters apart, so that an answer at an end stands whole in the next."""
SHOWN_CHARS = 4_000
"""The room of each way: five passages of the longest length. Shorter ones may be more."""
PIECES_MOST = 40
"""So many passages are asked for; after `SHOWN_CHARS` characters the rest is not shown."""
BM25_K1, BM25_B = 1.5, 0.75
"""What `bm25s` takes if it is told nothing (its method is Lucene's)."""
SECONDS = 3_600.0
"""What a run has left, so that nothing ends for want of time on a busy machine."""

STEMMERS = {
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fr": "french",
    "it": "italian",
    "pt": "portuguese",
    "ru": "russian",
    "tr": "turkish",
    "ro": "romanian",
    "el": "greek",
    "ar": "arabic",
    "hi": "hindi",
}
"""Snowball's stemmer of each language that has one; others are not stemmed."""
UNSPACED = ("ja", "th", "zh")
"""Languages without spaces: BM25 has each two neighbouring characters, FTS5 its trigrams."""
_WORD = re.compile(r"\w+")
_UNSPACED_RUN = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3005]+")

BEFORE, SHIPPED, BM25, FTS5 = "before the bound", "as shipped", "BM25", "FTS5"
WAYS = (BEFORE, SHIPPED, BM25, FTS5)


class Shown(NamedTuple):
    """A passage that a way shows: the path of its file below the folder, and its text."""

    path: str
    text: str


def tokens(text: str, language: str) -> list[str]:
    """Return what BM25 counts: stems in the language, and each two neighbours where a script has no spaces."""
    text = unicodedata.normalize("NFKC", text).lower()
    stem = _stemmer(language)
    found: list[str] = []
    for word in _WORD.findall(text):
        if language not in UNSPACED:
            found.append(stem(word))
            continue
        for run in _UNSPACED_RUN.findall(word):
            found += [run[at : at + 2] for at in range(max(len(run) - 1, 1))]
        found += map(stem, _UNSPACED_RUN.sub(" ", word).split())
    return found


_STEMMERS: dict[str, Callable[[str], str]] = {}


def _stemmer(language: str) -> Callable[[str], str]:
    if language not in _STEMMERS:
        name = STEMMERS.get(language)
        _STEMMERS[language] = str if name is None else snowballstemmer.stemmer(name).stemWord
    return _STEMMERS[language]


def overlapping(texts: Mapping[str, str]) -> list[Shown]:
    """Return the pieces of texts, by path, that overlap by half; the last one of each ends with the text."""
    pieces: list[Shown] = []
    for path in sorted(texts):
        text = texts[path]
        for start in range(0, max(len(text) - STEP_CHARS, 1), STEP_CHARS):
            piece = text[start : start + PIECE_CHARS]
            if piece.strip():
                pieces.append(Shown(path, piece))
    return pieces


class Bm25:
    """BM25 by `bm25s` over pieces of texts, for questions in one language."""

    def __init__(self, pieces: Sequence[Shown], language: str) -> None:
        self._pieces, self._language = pieces, language
        self._index = import_module("bm25s").BM25(k1=BM25_K1, b=BM25_B)
        self._index.index([tokens(piece.text, language) for piece in pieces], show_progress=False)

    def best(self, question: str) -> list[Shown]:
        """Return the pieces that have a token of the question, the best first."""
        known = [token for token in tokens(question, self._language) if token in self._index.vocab_dict]
        if not known:
            return []
        scores = self._index.get_scores(known)
        best = sorted(range(len(self._pieces)), key=lambda number: (-float(scores[number]), number))
        return [self._pieces[number] for number in best[:PIECES_MOST] if scores[number] > 0]


class Fts5:
    """SQLite's FTS5 over pieces of texts, with its default tokenizer; trigrams where a script has no spaces."""

    def __init__(self, pieces: Sequence[Shown], language: str) -> None:
        self._pieces, self._language = pieces, language
        self._db = sqlite3.connect(":memory:")
        tokenizer = "trigram" if language in UNSPACED else "unicode61"
        self._db.execute(f"CREATE VIRTUAL TABLE pieces USING fts5(text, tokenize='{tokenizer}')")
        rows = enumerate((piece.text for piece in pieces), 1)
        self._db.executemany("INSERT INTO pieces(rowid, text) VALUES (?, ?)", rows)

    def best(self, question: str) -> list[Shown]:
        """Return the pieces that have a word or trigram of the question, the best first."""
        words = _WORD.findall(question.lower())
        if self._language in UNSPACED:
            words = [word[at : at + 3] for word in words for at in range(len(word) - 2)]
        if not words:
            return []
        wanted = " OR ".join(f'"{word}"' for word in dict.fromkeys(words))
        rows = self._db.execute(
            "SELECT rowid FROM pieces WHERE pieces MATCH ? ORDER BY rank LIMIT ?", (wanted, PIECES_MOST)
        )
        return [self._pieces[number - 1] for (number,) in rows]

    def close(self) -> None:
        self._db.close()


@dataclass
class Answer:
    """What the offline reader makes of a question.

    `before`: its passages before the bound. `shipped`: the findings of its result. `claims`: whether there are any.
    `summary`: what a person reads first.
    """

    before: list[Shown]
    shipped: list[Shown]
    claims: bool
    summary: str


@dataclass
class Reader:
    """The offline reader with its real tools, in this process, over texts that `store` keeps."""

    store: Path
    kept: KeptTexts = field(init=False)

    def __post_init__(self) -> None:
        self.kept = KeptTexts(self.store, 4_000_000_000)

    def texts(self, folder: Path) -> dict[str, str]:
        """Return the text of each file of a folder, as the reader extracts it, by path."""

        async def read(store: TextStore) -> dict[str, str]:
            found = await FolderReader(Root.open(folder), store).read("", Query("text"), SECONDS)
            texts = {path: text.text() for path, text in found.loose.items()}
            for path, kept in found.kept.items():
                texts[path] = text_of(store, kept).text()
            return texts

        return anyio.run(self.kept.use, read)

    def answer(self, question: str, folder: Path) -> Answer:
        """Ask the offline reader as a run does: its own calls of the tools, then its result."""
        at = ToolContext(files=Root.open(folder), texts=self.kept, run_id="S-1", seconds_left=lambda: SECONDS)
        turns: list[Turn] = [UserTurn(question)]
        asked = offline.answer(_request(turns))
        results: list[ToolTurn] = []
        words = question
        for call in asked.calls:
            if call.name == SEARCH and call.args is not None:
                words = str(call.args["query"])  # what the reader leaves of the question
        if not any(call.name == SUBMIT for call in asked.calls):
            results = [anyio.run(_carry_out, call, at) for call in asked.calls]
            turns += [AssistantTurn(asked.raw), *results]
            asked = offline.answer(_request(turns))
        result = json.loads(asked.calls[0].raw_args)
        findings = result["findings"]
        query = Query(words)
        found = [each for turn in results for each in passages(turn.name, turn.text)]
        paths = {each.source for each in found}
        best = best_passages(found, query, spread_of(query, results), PIECES_MOST)
        return Answer(
            before=[Shown(piece.source, piece.text) for piece in best.pieces],
            shipped=[Shown(path_of(str(each["source_url"]), paths), str(each["quote"])) for each in findings],
            claims=bool(findings),
            summary=str(result["summary"]),
        )


def path_of(location: str, paths: Iterable[str]) -> str:
    """Return which of some paths a finding's place begins with, as `a/b.md:12` or `a.xlsx, sheet Sales, row 3` do."""
    fitting = [path for path in paths if location == path or location.startswith((f"{path}:", f"{path}, "))]
    return max(fitting, key=len, default=location)


_TOOLS = {
    tool.spec.name: (tool, args) for tool, args in ((SearchAndRead(), SearchAndReadArgs), (ReadFile(), ReadFileArgs))
}
_SCHEMAS = tuple(ToolSchema(name, tool.spec.description, {}) for name, (tool, _) in _TOOLS.items())


def _request(turns: Sequence[Turn]) -> Request:
    return Request("extractive", "", _SCHEMAS, tuple(turns), 10_000)


async def _carry_out(call: ToolUse, at: ToolContext) -> ToolTurn:
    tool: Any
    tool, args = _TOOLS[call.name]
    try:
        output = await tool(args.model_validate(call.args), at)
    except ToolFailed as failure:
        return ToolTurn(call.call_id, call.name, f"Failed.\n\n{failure}", failed=True)
    return ToolTurn(call.call_id, call.name, output.text, failed=not output.success, unread=output.unread)


def within(shown: Sequence[Shown], most: int = SHOWN_CHARS) -> list[Shown]:
    """Return the first passages up to a number of characters; the last one is cut there."""
    left = most
    first: list[Shown] = []
    for each in shown:
        if left <= 0:
            break
        first.append(Shown(each.path, each.text[:left]))
        left -= len(each.text)
    return first
