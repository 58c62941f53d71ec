"""The offline reader's hands: passages out of tool results, and those of them that fit some words best.

Pure functions of text. The form in which `search_and_read`, `read_file` and `read_webpages` print their
sources is known here; a failure does not have it, and brings nothing.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

QUOTE_CHARS = 300
FAR_BELOW = 1 / 3
"""Whose rank is less than this part of the best one's is not worth showing beside it."""
_WORDS_MOST = 30

_WRAPPED = re.compile(r"^<(tool_output_\w+)[^\n]*>\n(.*?)\n</\1>", re.DOTALL | re.MULTILINE)
_PLACE = r"(?:line|lines|page|pages) \d[\d,]*(?: to \d[\d,]*)?"
_FILE_HEAD = re.compile(rf"^## (?P<path>[^\n]+)\n\n(?={_PLACE}:\n)", re.MULTILINE)
_PASSAGE_HEAD = re.compile(rf"^(?P<place>{_PLACE}):\n", re.MULTILINE)
_FOUND_HEAD = re.compile(r"\s*(?P<files>\d+) files fit best \([\d,]+ searched\)(?P<note>[^\n]*)")
_PLAIN_PATH = re.compile(r"[\w./@+-]+")
_READ_HEAD = re.compile(rf"(?P<path>[^\n]+?) \([^\n]*\): (?P<place>{_PLACE}) of [^\n]*\n\n")
_PAGE = re.compile(r"^\[(page \d+)\]\n", re.MULTILINE)
_HEADING = re.compile(r"#{1,6} [^\n]*")
_GOES_ON = re.compile(r"\n\n\[goes on: [^\n]*\]\s*$")
_WEB_HEAD = re.compile(
    r"^# (?:The rest of (?P<rest>\S+)\n"
    r"|\S+\n(?P<failed>Not read: [^\n]*)(?:\n|$)"
    r"|(?P<title>[^\n]*)\nURL: (?P<url>\S+)\n(?:Redirected from: [^\n]*\n)?status \d+ · [^\n]*(?:\n|$)"
    r"(?:Note: [^\n]*(?:\n|$))?)",
    re.MULTILINE,
)
_FAILED_PAGE = re.compile(r"^# (\S+)\nNot read: ([^\n]*)$", re.MULTILINE)
_MORE_BELOW = re.compile(r"\n\n\[[\d,]+ more characters of this page follow below\]\s*$")
_PARAGRAPH = re.compile(r"\S(?:.|\n(?!\s*\n))*")
# A sentence ends at its mark, and before a line that begins a list entry, a heading, a row or code.
_SENTENCE = re.compile(
    r".+?(?:[.!?…。！？][\"'”’)\]]*(?=\s|\Z)|(?=\n[ \t]*(?:[-*+#|>`{}]|\d+[.)]\s))|\Z)\s*", re.DOTALL
)


@dataclass(frozen=True)
class Passage:
    """A piece of a source, letter for letter.

    Attributes:
        source: A path or a URL.
        place: Where in it: `line 12` or `page 3`; empty when nobody says.
        text: The words.
        line: The number of its first line, where that is known.
        title: What the source calls itself.
    """

    source: str
    place: str
    text: str
    line: int | None = None
    title: str = ""

    @property
    def location(self) -> str:
        """The source, with the line or the place where there is one."""
        if self.line is not None:
            return f"{self.source}:{self.line}"
        return f"{self.source}, {self.place}" if self.place else self.source


def salient(text: str) -> list[str]:
    """Return the words of a text that can tell one passage from another, in their order, 30 at most."""
    words = list(dict.fromkeys(word for word in re.findall(r"\w+", text.lower()) if len(word) > 1))
    return ([word for word in words if word not in stopwords()] or words)[:_WORDS_MOST]


def passages(tool: str, output: str) -> list[Passage]:
    """Return what a tool's output holds, as it was shown to the model; nothing for a failure."""
    if output.startswith("Failed."):
        return []
    bodies = _bodies(output)
    reader = {"search_and_read": _found, "read_file": _read, "read_webpages": _pages}.get(tool)
    return [passage for body in bodies for passage in reader(body)] if reader else []


def failures(tool: str, output: str) -> list[str]:
    """Return what could not be read, and why, as far as a tool's output says."""
    pages = [f"{url}: {why}" for body in _bodies(output) for url, why in _FAILED_PAGE.findall(body)]
    if pages or passages(tool, output):
        return pages
    lines = [line.strip() for body in _bodies(output) for line in body.splitlines()]
    said = next((line for line in lines if line and line != "Failed."), "no words")
    return [f"{tool} brought nothing: {said[:200]}"]


def left_out(tool: str, output: str) -> list[str]:
    """Return what a tool says that it passed over of what it was asked to read."""
    notes: list[str] = []
    for body in _bodies(output):
        searched = _FOUND_HEAD.match(body) if tool == "search_and_read" else None
        if searched and "not all files were searched" in searched["note"]:
            notes.append("Not all files were searched, there are too many: give a smaller folder as workspace.")
        read = _READ_HEAD.match(body) if tool == "read_file" else None
        if read and _GOES_ON.search(body):
            notes.append(f"{read['path']} was not read to its end: only {read['place']}.")
    return notes


def quotes(found: Iterable[Passage]) -> list[Passage]:
    """Cut passages into pieces of at most 300 characters: whole sentences of one paragraph where they fit."""
    return list(dict.fromkeys(piece for passage in found for piece in _pieces(passage)))


def best(pieces: Sequence[Passage], words: Sequence[str], most: int, per_source: int) -> list[Passage]:
    """Return the pieces that fit the words best, best first, not too many of one source. Blocks.

    None that is far below the best; and no bare headings, unless there is nothing else.
    """
    pieces = [piece for piece in pieces if not _HEADING.fullmatch(piece.text)] or pieces
    if not pieces or not words:
        return []
    with closing(sqlite3.connect(":memory:")) as index:
        index.execute("CREATE VIRTUAL TABLE pieces USING fts5(text, tokenize = 'porter unicode61 remove_diacritics 2')")
        index.executemany(
            "INSERT INTO pieces (rowid, text) VALUES (?, ?)",
            ((number, piece.text.encode("utf-8", "replace").decode()) for number, piece in enumerate(pieces)),
        )
        rows: list[tuple[int, float]] = index.execute(  # bm25 is the lower the better, and below 0
            "SELECT rowid, bm25(pieces) FROM pieces WHERE pieces MATCH ? ORDER BY bm25(pieces), rowid",
            (" OR ".join(f'"{word}"' for word in words),),
        ).fetchall()
    return _spread((pieces[row] for row, rank in rows if rank <= rows[0][1] * FAR_BELOW), most, per_source)


def openings(pieces: Sequence[Passage], most: int, per_source: int) -> list[Passage]:
    """Return how each source begins: for a task whose words stand nowhere in what it names."""
    return _spread(pieces, most, per_source)


def _spread(ranked: Iterable[Passage], most: int, per_source: int) -> list[Passage]:
    chosen: list[Passage] = []
    for piece in ranked:
        if any(piece.text == other.text for other in chosen):
            continue
        if sum(piece.source == other.source for other in chosen) < per_source:
            chosen.append(piece)
        if len(chosen) == most:
            break
    return chosen


def _found(body: str) -> Iterator[Passage]:
    """Read the output of `search_and_read`.

    A passage that ends with a heading, before the place of the next one, looks as if a file began there. The first
    line says how many files there are; of more heads than that, those count that look like paths.
    """
    heads = list(_FILE_HEAD.finditer(body))
    said = _FOUND_HEAD.match(body)
    if said and len(heads) > int(said["files"]):
        likely = sorted(heads, key=lambda head: (not _PLAIN_PATH.fullmatch(head["path"]), "." not in head["path"]))
        heads = sorted(likely[: int(said["files"])], key=lambda head: head.start())
    for path, text in ((head["path"], text) for head, text in _between(heads, body)):
        for place, words in _sections(_PASSAGE_HEAD, text, "place"):
            yield Passage(path, place, words.strip("\n"), _line(place))


def _read(body: str) -> Iterator[Passage]:
    """Read the output of `read_file`."""
    head = _READ_HEAD.match(body)
    if head is None:
        return
    text = _GOES_ON.sub("", body[head.end() :])
    paged = list(_sections(_PAGE, text, 1))
    for place, words in paged or [(head["place"], text)]:
        yield Passage(head["path"], place, words.strip("\n"), None if paged else _line(head["place"]))


def _pages(body: str) -> Iterator[Passage]:
    """Read the output of `read_webpages`."""
    titles: dict[str, str] = {}
    for head, text in _headed(_WEB_HEAD, body):
        if head["failed"] is None:
            url = head["url"] or head["rest"]
            title = titles.setdefault(url, head["title"] or "")
            yield Passage(url, "", _MORE_BELOW.sub("", text).strip("\n"), title=title)


def _sections(head: re.Pattern[str], body: str, name: str | int) -> Iterator[tuple[str, str]]:
    """Yield what each heading says, and what stands under it."""
    return ((found[name], text) for found, text in _headed(head, body))


def _headed(head: re.Pattern[str], body: str) -> Iterator[tuple[re.Match[str], str]]:
    return _between(list(head.finditer(body)), body)


def _between(heads: Sequence[re.Match[str]], body: str) -> Iterator[tuple[re.Match[str], str]]:
    ends = [found.start() for found in heads[1:]] + [len(body)]
    for found, end in zip(heads, ends, strict=False):
        yield found, body[found.end() : end]


def _bodies(output: str) -> list[str]:
    """Return what stands inside the marks of untrusted text, or all when there are none."""
    return [body for _, body in _WRAPPED.findall(output)] or [output]


def _pieces(passage: Passage) -> Iterator[Passage]:
    """Yield a passage's paragraphs, long ones in runs of sentences, long sentences cut at a line or word."""
    text = passage.text
    for paragraph in _PARAGRAPH.finditer(text):
        start = paragraph.start()
        end = start
        for sentence in _SENTENCE.finditer(text, start, paragraph.end()):
            if sentence.end() - start > QUOTE_CHARS and end > start:
                yield from _piece(passage, start, end)
                start = end
            end = sentence.end()
            while end - start > QUOTE_CHARS:
                cut = _cut_at(text, start)
                yield from _piece(passage, start, cut)
                start = cut
        yield from _piece(passage, start, end)


def _cut_at(text: str, start: int) -> int:
    """Return where a text without a sentence's end in reach is cut: after a line or a word, or anywhere."""
    reach = text[start : start + QUOTE_CHARS]
    at = max(reach.rfind("\n"), 0) or max(reach.rfind(" "), 0)
    return start + (at + 1 if at else QUOTE_CHARS)


def _piece(passage: Passage, start: int, end: int) -> Iterator[Passage]:
    """Yield one piece, if there is a word in it."""
    text = passage.text[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    if any(char.isalnum() for char in text):
        line = None if passage.line is None else passage.line + passage.text.count("\n", 0, start)
        place = passage.place if line is None else f"line {line}"
        yield Passage(passage.source, place, text, line, passage.title)


def _line(place: str) -> int | None:
    number = re.match(r"lines? (\d[\d,]*)", place)
    return int(number[1].replace(",", "")) if number else None


@cache
def stopwords() -> frozenset[str]:
    """Return the words that are in every text and say nothing about one."""
    return frozenset(files("ava_server.models").joinpath("stopwords.txt").read_text(encoding="utf-8").split())
