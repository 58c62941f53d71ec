"""`offline/extractive`: not a language model, but a small reader that works with the real tools.

It searches for the words of its task with the tools on offer, ranks the passages they return, and submits quotes with
their sources. It is a pure function of the request, so an interrupted run resumes like any other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ava_roles.passages import Weighing, prose_factor, record_factor, weights_of
from ava_roles.words import Query
from ava_server.models.base import Completion, Request, ToolTurn, UserTurn
from ava_server.models.local import answers_before, complete
from ava_server.models.selection import SET_A_MODEL

QUOTE_CHARS = 800
FAR_BELOW = 1 / 8
"""A passage whose rank is below this share of the best rank is not shown."""
LEAST_COVERAGE = 0.55
"""The share of the question, by the weight of its words, that one sentence needs for its passage to be an answer."""
LEAST_TOGETHER = 0.3
"""The same where none of its words is missing: a task may list several subjects."""
FEW_PASSAGES = 20
AROUND = 0.5
"""How much the passage around a quote counts in its rank."""
SAME_WORDS = 0.8
"""Two passages with this share of their words in common are the same page in two formats or versions."""
APART_LINES = 40
"""Passages of one page that are shown are at least so far apart."""
SEARCH = "search_and_read"
_FENCED = 0.5
_CUT_MOST = 40
_QUOTE_WORDS = 60

_WRAPPED = re.compile(r"^<(tool_output_\w+)[^\n]*>\n(.*?)\n</\1>", re.DOTALL | re.MULTILINE)
_PLACE = r"(?:line|lines|page|pages) \d[\d,]*(?: to \d[\d,]*)?"
_FILE_HEAD = re.compile(rf"^## (?P<path>[^\n]+)\n\n(?={_PLACE}:\n)", re.MULTILINE)
_PASSAGE_HEAD = re.compile(rf"^(?P<place>{_PLACE}):\n", re.MULTILINE)
_FOUND_HEAD = re.compile(
    r"\s*(?P<files>\d+) files fit best \((?P<searched>[\d,]+) searched\)(?:; not searched: (?P<left>[^\n]*))?"
    r"\nOf (?P<total>[\d,]+) passages have: (?P<words>[^\n]*)"
)
_WORD_COUNT = re.compile(r"([^\s,]+) (\d[\d,]*\d|\d)(?=, |$)")
_PLAIN_PATH = re.compile(r"[\w./@+-]+")
_READ_HEAD = re.compile(rf"(?P<path>[^\n]+?) \([^\n]*\): (?P<place>{_PLACE}) of [^\n]*\n\n")
_PAGE = re.compile(r"^\[(page \d+)\]\n", re.MULTILINE)
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
_HEADING = re.compile(r"^(?:#{1,6}\s|[^\S\n]*\d+(?:\.\d+)+\.?\s+\w)[^\n]*", re.MULTILINE)
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
        fenced: It is inside a code fence.
    """

    source: str
    place: str
    text: str
    line: int | None = None
    title: str = ""
    fenced: bool = False

    @property
    def location(self) -> str:
        """The source, with its line or place if known."""
        if self.line is not None:
            return f"{self.source}:{self.line}"
        return f"{self.source}, {self.place}" if self.place else self.source


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
        if searched and searched["left"]:
            notes.append(f"Files searched: {searched['searched']}. Not searched: {searched['left']}.")
        read = _READ_HEAD.match(body) if tool == "read_file" else None
        if read and _GOES_ON.search(body):
            notes.append(f"{read['path']} was not read to its end: only {read['place']}.")
    return notes


@dataclass(frozen=True)
class Spread:
    """In how many passages of everything that was searched or read each word of the question is."""

    counts: tuple[int, ...]
    total: int

    @property
    def weights(self) -> list[float]:
        """How much each word tells; the same for all where too few passages say which are rare."""
        return weights_of(self.counts, self.total) if self.total >= FEW_PASSAGES else [1.0] * len(self.counts)


def spread_of(query: Query, results: Iterable[ToolTurn]) -> Spread:
    """Return the spread of a question's words: as a search counted them, and in the other texts that were read."""
    counts = [0] * len(query.words)
    total = 0
    for result in results:
        said = next(filter(None, map(_FOUND_HEAD.match, _bodies(result.text))), None) if result.name == SEARCH else None
        if said:
            total += _number(said["total"])
            by_word = {word: _number(count) for word, count in _WORD_COUNT.findall(said["words"])}
            counts = [count + by_word.get(word, 0) for count, word in zip(counts, query.words, strict=True)]
        for passage in passages(result.name, result.text) if result.name != SEARCH else ():
            total += 1
            counts = [
                count + (here > 0) for count, here in zip(counts, query.matches(passage.text).counts, strict=True)
            ]
    return Spread(tuple(counts), total)


def spread_in(query: Query, passages: Sequence[Passage]) -> Spread:
    """Return the spread of a question's words in some passages."""
    counted = [query.matches(passage.text).counts for passage in passages]
    return Spread(tuple(sum(count > 0 for count in counts) for counts in zip(*counted, strict=True)), len(passages))


def best_passages(found: Iterable[Passage], query: Query, spread: Spread, most: int) -> tuple[list[Passage], float]:
    """Return the pieces that answer a question best, best first, and how much of it one sentence there has.

    Each page gives one place; a further one only where too few pages fit. Pieces far below the best are left out.
    """
    weigh = Weighing(spread.weights, _QUOTE_WORDS)
    likely: list[tuple[float, int, Passage]] = []
    for number, passage in enumerate(found):
        matches = query.matches(passage.text)
        around = Weighing(spread.weights, max(matches.length, 1))(matches)
        likely.append((-around, number, passage))
    ranked: list[tuple[float, float, Passage]] = []
    for around, _, passage in nsmallest(_CUT_MOST, likely):
        for piece in _pieces(passage):
            matches = query.matches(piece.text)
            own = weigh(matches)
            together = _together(piece.text, query, weigh) if own else 0.0
            rank = (own - AROUND * around) * together * prose_factor(piece.text) * record_factor(piece.source)
            ranked.append((rank * _FENCED if piece.fenced else rank, together, piece))
    ranked = sorted((each for each in ranked if each[0] > 0), key=lambda each: -each[0])
    chosen = _spread_out([piece for rank, _, piece in ranked if rank >= ranked[0][0] * FAR_BELOW], most)
    return chosen, max((together for _, together, piece in ranked if piece in chosen), default=0.0)


def _together(text: str, query: Query, weigh: Weighing) -> float:
    """Return the share of the question that one sentence has."""
    sentences = (query.matches(sentence).counts for sentence in _SENTENCE.findall(text))
    return max(map(weigh.coverage, sentences), default=0.0)


def _spread_out(ranked: Sequence[Passage], most: int) -> list[Passage]:
    """Return one piece of each page, then more that are far apart; no text twice."""
    chosen: list[Passage] = []
    words: list[frozenset[str]] = []
    for again in (False, True):
        for piece in ranked:
            if len(chosen) == most:
                return chosen
            if any(piece.source == other.source and not (again and _apart(piece, other)) for other in chosen):
                continue
            own = frozenset(piece.text.lower().split())
            if all(len(own & other) < SAME_WORDS * min(len(own), len(other)) for other in words):
                chosen.append(piece)
                words.append(own)
    return chosen


def _apart(piece: Passage, other: Passage) -> bool:
    if piece.line is not None and other.line is not None:
        return abs(piece.line - other.line) >= APART_LINES
    return piece.place != other.place or not piece.place


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
    """Yield what can be quoted: from each paragraph, and each sentence of a long one, as much as fits a quote.

    So pieces overlap; a heading or a short line comes with what follows it, and the next section with its own pieces.
    """
    starts: list[int] = []
    ends: list[int] = []
    sections = list(_sections(passage.text))
    for paragraph in _PARAGRAPH.finditer(passage.text):
        sentences = [found.span() for found in _SENTENCE.finditer(passage.text, *paragraph.span())]
        is_long = paragraph.end() - paragraph.start() > QUOTE_CHARS
        starts += [start for start, _ in (sentences if is_long else sentences[:1])]
        ends += [end for _, end in sentences]
    for start in starts:
        limit = next((section for section in sections if section > start), len(passage.text))
        fitting = [end for end in ends if start < end <= min(start + QUOTE_CHARS, limit)]
        end = fitting[-1] if fitting else _cut_at(passage.text, start)
        yield from _piece(passage, start, end)
        while not fitting and end < min(each for each in ends if each > start):  # a sentence that is longer
            start, end = end, _cut_at(passage.text, end)
            yield from _piece(passage, start, end)


def _sections(text: str) -> Iterator[int]:
    """Yield where sections begin: at each heading, but for one directly below another."""
    before = 0
    for heading in _HEADING.finditer(text):
        if text[before : heading.start()].strip():
            yield heading.start()
        before = heading.end()


def _cut_at(text: str, start: int) -> int:
    """Return where to cut a sentence that is too long: after a line or a word, else anywhere."""
    reach = text[start : start + QUOTE_CHARS]
    if start + QUOTE_CHARS >= len(text):
        return len(text)
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
        fenced = passage.text.count("\n```", 0, start) % 2 == 1 or text.startswith("```")
        yield Passage(passage.source, place, text, line, passage.title, fenced)


def _line(place: str) -> int | None:
    number = re.match(r"lines? (\d[\d,]*)", place)
    return _number(number[1]) if number else None


def _number(digits: str) -> int:
    return int(digits.replace(",", ""))


SUBMIT = "submit_result"
QUOTES_MOST = 5
_NAMED_MOST = 5
_FILES_MOST = 8
_QUERY_CHARS = 1_000
NO_CONFIDENCE = 0.1

_URL = re.compile(r"https?://[^\s<>\"'`|]+")
_FILE = re.compile(r"(?<![\w/:.@-])(?:[\w.-]+/)*[\w-][\w.-]*\.[A-Za-z][A-Za-z0-9]{0,7}(?![\w/])")
_NO_FILE = re.compile(r"\w\.\w|[^/]+\.(?:com|org|net|io|ai|eu|de|app)")  # e.g., i.e., a site's name
_MATERIAL = re.compile(r"\b(?:these|this|those) (?:files?|folders?|documents?|texts?|pages?|docs)\b", re.IGNORECASE)
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
        words = ", ".join(_query(task).words[:8]) or "what the task names"
        return complete(f"Looking for {words}.", calls, request)
    result = _result(task, [turn for turn in request.turns if isinstance(turn, ToolTurn)])
    return complete(result["summary"], [(SUBMIT, result)], request)


def _query(task: str) -> Query:
    """Return the words of a task, without the pages and files that it names."""
    return Query(_MATERIAL.sub(" ", _FILE.sub(_unnamed, _URL.sub(" ", task))))


def _unnamed(path: re.Match[str]) -> str:
    return path[0] if _NO_FILE.fullmatch(path[0]) else " "


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
    if SEARCH in offered:
        words = " ".join(
            _MATERIAL.sub(" ", _FILE.sub(_unnamed, _URL.sub(" ", task))).split()
        )  # with filler words, which tell the language
        if len(words) > _QUERY_CHARS or not Query(words).telling:
            texts = (words, _URL.sub(" ", task), named)
            words = " ".join(next((query.words for query in map(Query, texts) if query.telling), ()))
        calls.append((SEARCH, {"query": words[:_QUERY_CHARS] or "readme", "max_files": _FILES_MOST}))
    return calls


def _result(task: str, results: list[ToolTurn]) -> dict[str, Any]:
    """Return the arguments of `submit_result`."""
    query = _query(task)
    read: dict[str, list[Passage]] = {}
    for result in results:
        read.setdefault(result.name, []).extend(passages(result.name, result.text))
    spread = spread_of(query, results)
    found = [passage for each in read.values() for passage in each]
    chosen, coverage = best_passages(found, query, spread, QUOTES_MOST) if query.telling else ([], 0.0)
    least = LEAST_COVERAGE if _missing(query, spread) else LEAST_TOGETHER
    if chosen and coverage >= least:
        return _found_answer(chosen, query, spread, results)
    named = [piece for tool, each in read.items() if tool != SEARCH for passage in each for piece in _pieces(passage)]
    if named and not query.telling:  # how each of them begins
        return _found_answer(_spread_out(named, QUOTES_MOST), query, spread, results)
    return _nothing(chosen, query, spread, results)


def _found_answer(chosen: list[Passage], query: Query, spread: Spread, results: list[ToolTurn]) -> dict[str, Any]:
    sources = dict.fromkeys(piece.source for piece in chosen)
    counts = f"{len(chosen)} passage{_s(chosen)} in {len(sources)} source{_s(sources)}"
    had = [word for word, count in zip(query.words, spread.counts, strict=True) if count]
    why = f"about {', '.join(had[:8])}" if query.telling else "from the beginning of what the task names"
    best = " ".join(chosen[0].text.split())
    missing = _missing(query, spread) if query.telling else []
    lacks = f" Found nowhere: {', '.join(missing[:8])}." if missing else ""
    summary = f"{counts} {why}, found without a language model.{lacks} The best, from {chosen[0].location}: {best}"
    return {
        "summary": summary[:500],
        "output": _listed(chosen),
        "confidence": None,
        "caveats": [f"{NOT_READ} {FOR_A_MODEL}", *_lacking(missing), *_failures(results)],
        "findings": [_finding(piece, query) for piece in chosen],
    }


def _nothing(chosen: list[Passage], query: Query, spread: Spread, results: list[ToolTurn]) -> dict[str, Any]:
    missing = _missing(query, spread)
    if not results:
        why = "the offline reader had no tool to read with"
    elif missing:
        why = f"none of the searched text has {', '.join(missing[:8])}"
    elif query.words:
        why = f"no passage has enough of {', '.join(query.words[:8])} together"
    else:
        why = "the task has no words to look for"
    near = f"No answer was found in these passages; they only come closest.\n\n{_listed(chosen)}" if chosen else None
    return {
        "summary": f"No answer found: {why}. No language model read this. {FOR_A_MODEL}"[:500],
        "output": near,
        "confidence": NO_CONFIDENCE,
        "caveats": [
            f"No answer found; this does not mean that there is none. No language model read this. {FOR_A_MODEL}",
            "The offline reader can only look for the task's words, in the files of a workspace and on pages "
            "whose URLs stand in the task, and quote them. Name a workspace, a file or a URL, or use words "
            "that stand there.",
            *_lacking(missing),
            *_failures(results),
        ],
        "findings": [],
    }


def _missing(query: Query, spread: Spread) -> list[str]:
    """Return the words that nothing has, where something was searched."""
    return [word for word, count in zip(query.words, spread.counts, strict=True) if spread.total and not count]


def _lacking(missing: list[str]) -> list[str]:
    return [f"Found nowhere: {', '.join(missing)}."] if missing else []


def _listed(chosen: list[Passage]) -> str:
    by_source: dict[str, list[Passage]] = {}
    for piece in chosen:
        by_source.setdefault(piece.source, []).append(piece)
    return "\n\n".join(f"**{source}**\n\n" + "\n\n".join(map(_shown, found)) for source, found in by_source.items())


def _finding(piece: Passage, query: Query) -> dict[str, Any]:
    """Return a finding; its claim only says which words the quote contains."""
    seen = [word for word, count in zip(query.words, query.matches(piece.text).counts, strict=True) if count]
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


def _s(things: Collection[object]) -> str:
    return "" if len(things) == 1 else "s"
