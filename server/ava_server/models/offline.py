"""`offline/extractive`: not a language model, but a small reader that works with the real tools.

It searches for the words of its task with the tools on offer, ranks the passages they return, and submits quotes with
their sources. It is a pure function of the request, so an interrupted run resumes like any other.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ava_server.models.base import Completion, Request, ToolTurn, UserTurn
from ava_server.models.local import answers_before, complete
from ava_server.models.selection import SET_A_MODEL

QUOTE_CHARS = 300
FAR_BELOW = 1 / 3
"""A passage whose rank is below this share of the best rank is not shown."""
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
    """A verbatim piece of a source.

    Attributes:
        source: A path or a URL.
        place: Where in it: `line 12` or `page 3`; empty if unknown.
        text: The words.
        line: The number of its first line, if known.
        title: The source's own title.
    """

    source: str
    place: str
    text: str
    line: int | None = None
    title: str = ""

    @property
    def location(self) -> str:
        """The source, with its line or place if known."""
        if self.line is not None:
            return f"{self.source}:{self.line}"
        return f"{self.source}, {self.place}" if self.place else self.source


def salient(text: str) -> list[str]:
    """Return the words of a text that are worth searching for, in order, 30 at most."""
    words = list(dict.fromkeys(word for word in re.findall(r"\w+", text.lower()) if len(word) > 1))
    return ([word for word in words if word not in stopwords()] or words)[:_WORDS_MOST]


def passages(tool: str, output: str) -> list[Passage]:
    """Return the passages in a tool's output, as the model was shown it; none for a failure."""
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
    return [f"{tool} returned nothing: {said[:200]}"]


def left_out(tool: str, output: str) -> list[str]:
    """Return what a tool says it left out of what it was asked to read."""
    notes: list[str] = []
    for body in _bodies(output):
        searched = _FOUND_HEAD.match(body) if tool == "search_and_read" else None
        if searched and "not all files were searched" in searched["note"]:
            notes.append("Not all files were searched because there are too many: give a smaller folder as workspace.")
        read = _READ_HEAD.match(body) if tool == "read_file" else None
        if read and _GOES_ON.search(body):
            notes.append(f"{read['path']} was not read to its end: only {read['place']}.")
    return notes


def quotes(found: Iterable[Passage]) -> list[Passage]:
    """Cut passages into pieces of at most 300 characters: whole sentences of one paragraph where possible."""
    return list(dict.fromkeys(piece for passage in found for piece in _pieces(passage)))


def best_passages(pieces: Sequence[Passage], words: Sequence[str], most: int, per_source: int) -> list[Passage]:
    """Return the pieces that match the words best, best first, and at most `per_source` of one source. Blocks.

    Pieces far below the best are left out, and so are bare headings, unless there is nothing else.
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
        rows: list[tuple[int, float]] = index.execute(  # a lower bm25 is better; all are negative
            "SELECT rowid, bm25(pieces) FROM pieces WHERE pieces MATCH ? ORDER BY bm25(pieces), rowid",
            (" OR ".join(f'"{word}"' for word in words),),
        ).fetchall()
    return _spread((pieces[row] for row, rank in rows if rank <= rows[0][1] * FAR_BELOW), most, per_source)


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

    A heading at the end of a passage looks like the beginning of a file. The first line says how many files there are;
    if there are more headings, those that look most like paths count.
    """
    heads = list(_FILE_HEAD.finditer(body))
    said = _FOUND_HEAD.match(body)
    if said and len(heads) > int(said["files"]):
        likely = sorted(heads, key=lambda head: (not _PLAIN_PATH.fullmatch(head["path"]), "." not in head["path"]))
        heads = sorted(likely[: int(said["files"])], key=lambda head: head.start())
    for head, text in _between(heads, body):
        for found, words in _headed(_PASSAGE_HEAD, text):
            yield Passage(head["path"], found["place"], words.strip("\n"), _line(found["place"]))


def _read(body: str) -> Iterator[Passage]:
    """Read the output of `read_file`."""
    head = _READ_HEAD.match(body)
    if head is None:
        return
    text = _GOES_ON.sub("", body[head.end() :])
    paged = [(found[1], words) for found, words in _headed(_PAGE, text)]
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


def _headed(head: re.Pattern[str], body: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each heading, and the text below it."""
    return _between(list(head.finditer(body)), body)


def _between(heads: Sequence[re.Match[str]], body: str) -> Iterator[tuple[re.Match[str], str]]:
    ends = [found.start() for found in heads[1:]] + [len(body)]
    for found, end in zip(heads, ends, strict=False):
        yield found, body[found.end() : end]


def _bodies(output: str) -> list[str]:
    """Return the texts between the marks of untrusted text, or the whole output without such marks."""
    return [body for _, body in _WRAPPED.findall(output)] or [output]


def _pieces(passage: Passage) -> Iterator[Passage]:
    """Yield a passage's paragraphs: long ones in groups of sentences, long sentences cut after a line or word."""
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
    """Return where to cut a sentence that is too long: after a line or a word, else anywhere."""
    reach = text[start : start + QUOTE_CHARS]
    at = max(reach.rfind("\n"), 0) or max(reach.rfind(" "), 0)
    return start + (at + 1 if at else QUOTE_CHARS)


def _piece(passage: Passage, start: int, end: int) -> Iterator[Passage]:
    """Yield one piece, if it contains a word."""
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
    """Return the words that are too common to search for."""
    return frozenset(files("ava_server.models").joinpath("stopwords.txt").read_text(encoding="utf-8").split())


SUBMIT = "submit_result"
QUOTES_MOST = 5
PER_SOURCE = 3
_NAMED_MOST = 5

_URL = re.compile(r"https?://[^\s<>\"'`|]+")
_FILE = re.compile(r"(?<![\w/:.@-])(?:[\w.-]+/)*[\w-][\w.-]*\.[A-Za-z][A-Za-z0-9]{0,7}(?![\w/])")
_NO_FILE = re.compile(r"\w\.\w|[^/]+\.(?:com|org|net|io|ai|eu|de|app)")  # e.g., i.e., a site's name
_CONTEXT = re.compile(r"^## Task context\n\n(.*)^## Capabilities$", re.DOTALL | re.MULTILINE)
_LAST_TURN = re.compile(r"\bonly submit_result\b", re.IGNORECASE)

NOT_READ = "No language model read this: the passages were chosen because they contain words of the task."
# A run may be given the offline reader by name though a model is configured.
FOR_A_MODEL = (
    f"To have one read it, leave `model` out if one is configured; else {SET_A_MODEL[0].lower()}{SET_A_MODEL[1:]}"
)


def answer(request: Request) -> Completion:
    """Return the next answer: first tool calls, then the result. Blocks for a moment."""
    task = next((turn.text for turn in request.turns if isinstance(turn, UserTurn)), "")
    last = request.turns[-1] if request.turns else None
    ends = isinstance(last, UserTurn) and _LAST_TURN.search(last.text) is not None
    calls = [] if answers_before(request) or ends else _first_calls(task, request)
    if calls:
        words = ", ".join(salient(task)[:8]) or "what the task names"
        return complete(f"Looking for {words}.", calls, request)
    result = _result(task, [turn for turn in request.turns if isinstance(turn, ToolTurn)])
    return complete(result["summary"], [(SUBMIT, result)], request)


def _first_calls(task: str, request: Request) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tool calls that the task suggests, using the tools on offer."""
    offered = {tool.name for tool in request.tools}
    context = _CONTEXT.search(request.system)
    named = f"{task}\n{context[1] if context else ''}"
    urls = list(dict.fromkeys(url.rstrip(".,;:!?)]}*_") for url in _URL.findall(named)))[:_NAMED_MOST]
    paths = [path for path in dict.fromkeys(_FILE.findall(_URL.sub(" ", named))) if not _NO_FILE.fullmatch(path)]
    calls: list[tuple[str, Mapping[str, Any]]] = []
    if urls and "read_webpages" in offered:
        calls.append(("read_webpages", {"urls": urls}))
    if "read_file" in offered:
        calls += [("read_file", {"path": path}) for path in paths[:_NAMED_MOST]]
    if "search_and_read" in offered:
        words = salient(_URL.sub(" ", task)) or salient(named)
        calls.append(("search_and_read", {"query": " ".join(words)[:1000] or task[:1000].strip() or "readme"}))
    return calls


def _result(task: str, results: list[ToolTurn]) -> dict[str, Any]:
    """Return the arguments of `submit_result`."""
    read = {result: quotes(passages(result.name, result.text)) for result in results}
    words = salient(_URL.sub(" ", task))
    pieces = list(dict.fromkeys(piece for found in read.values() for piece in found))
    chosen = best_passages(pieces, words, QUOTES_MOST, PER_SOURCE)
    fits = bool(chosen)
    if not fits:
        # A source that the task names is worth showing even without a matching word.
        named = [piece for result, found in read.items() if result.name != "search_and_read" for piece in found]
        chosen = _spread(named, QUOTES_MOST, 2)  # how each of them begins
    return _found_answer(chosen, words, results, fits=fits) if chosen else _nothing(words, results)


def _found_answer(chosen: list[Passage], words: list[str], results: list[ToolTurn], *, fits: bool) -> dict[str, Any]:
    by_source: dict[str, list[Passage]] = {}
    for piece in chosen:
        by_source.setdefault(piece.source, []).append(piece)
    counts = f"{len(chosen)} passage{_s(chosen)} in {len(by_source)} source{_s(by_source)}"
    why = f"about {', '.join(words[:8])}" if fits else "from the beginning of what the task names"
    best = " ".join(chosen[0].text.split())
    summary = f"{counts} {why}, found without a language model. The best, from {chosen[0].location}: {best}"
    parts = [f"**{source}**\n\n" + "\n\n".join(map(_shown, found)) for source, found in by_source.items()]
    return {
        "summary": summary[:500],
        "output": "\n\n".join(parts),
        "confidence": None,
        "caveats": [f"{NOT_READ} {FOR_A_MODEL}", *_failures(results)],
        "findings": [_finding(piece, words) for piece in chosen],
    }


def _nothing(words: list[str], results: list[ToolTurn]) -> dict[str, Any]:
    sought = f" for {', '.join(words[:8])}" if words else ""
    looked = f"looked{sought} with {_tools(results)}" if results else "had no tool to read with"
    summary = f"No language model read this; the offline reader {looked} and found nothing."
    return {
        "summary": f"{summary} {FOR_A_MODEL}"[:500],
        "output": None,
        "confidence": None,
        "caveats": [
            f"No language model read this. {FOR_A_MODEL}",
            "The offline reader can only look for the task's words, in the files of a workspace and on pages "
            "whose URLs stand in the task, and quote them. Name a workspace, a file or a URL, or use words "
            "that stand there.",
            *_failures(results),
        ],
        "findings": [],
    }


def _finding(piece: Passage, words: list[str]) -> dict[str, Any]:
    """Return a finding; its claim only says which words the quote contains."""
    text = piece.text.lower()
    seen = [word for word in words if word in text]
    name = piece.title or piece.source
    if not piece.title and urlsplit(piece.source).scheme not in ("http", "https"):
        name = PurePosixPath(piece.source).name or piece.source
    finding = {
        "claim": f"{name} speaks of {', '.join(seen[:8])}" if seen else f"{name} says this",
        "source_url": piece.location,
        "quote": piece.text,
    }
    # A page has a title besides its URL; a file has only its path, which is given already.
    return {**finding, "source_name": piece.title} if piece.title else finding


def _shown(piece: Passage) -> str:
    quoted = "\n".join(f"> {line}" for line in piece.text.splitlines())
    return f"{quoted}\n\n({piece.place})" if piece.place else quoted


def _failures(results: list[ToolTurn]) -> list[str]:
    """Return what could not be read or was read in part, in the tools' own words."""
    said = (failures(result.name, result.text) for result in results if result.name != SUBMIT)
    partly = (note for result in results for note in left_out(result.name, result.text))
    return [*partly, *[line for lines in said for line in lines][:_NAMED_MOST]]


def _tools(results: list[ToolTurn]) -> str:
    return " and ".join(dict.fromkeys(result.name for result in results))


def _s(things: list[Passage] | dict[str, list[Passage]]) -> str:
    return "" if len(things) == 1 else "s"
