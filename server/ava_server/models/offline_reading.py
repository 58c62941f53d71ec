"""What the tools' outputs tell the offline reader: passages with their places, failures, and how common words are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ava_roles.passages import weights_of
from ava_roles.words import Query
from ava_server.models.base import ToolTurn

SEARCH = "search_and_read"
FEW_PASSAGES = 20
_WRAPPED = re.compile(r"^<(tool_output_\w+)[^\n]*>\n(.*?)\n</\1>", re.DOTALL | re.MULTILINE)
_PLACE = r"(?:line|lines|page|pages) \d[\d,]*(?: to \d[\d,]*)?"
_FOUND_PLACE = re.compile(
    r"^(?:## (?P<path>[^\n]+)\n\n)?"
    r"(?P<place>lines? \d[\d,]*(?: to (?P<last>\d[\d,]*))?|page \d[\d,]*(?=, \d))(?:, (?P<count>\d+) lines?)?:\n",
    re.MULTILINE,
)
_FOUND_HEAD = re.compile(
    r"\s*(?P<files>\d+) files fit best \((?P<searched>[\d,]+) searched\)(?:; not searched: (?P<left>[^\n]*))?"
    r"\nOf (?P<total>[\d,]+) passages have: (?P<words>[^\n]*)"
)
_WORD_COUNT = re.compile(r"([^\s,]+) (\d[\d,]*\d|\d)(?=, |$)")
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
        file_rank: How many files the search found that fit better.
    """

    source: str
    place: str
    text: str
    line: int | None = None
    title: str = ""
    fenced: bool = False
    file_rank: int = 0

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


def _found(body: str) -> Iterator[Passage]:
    """Read the output of `search_and_read`.

    A place says how many lines follow, so that nothing in a passage is taken for the next file or passage.
    """
    at, path, rank = 0, "", -1
    while head := _FOUND_PLACE.search(body, at):
        if head["path"] is not None:
            path, rank = head["path"], rank + 1
        first = _line(head["place"])
        count = _number(head["count"]) if first is None else _number(head["last"] or str(first)) - first + 1
        lines = body[head.end() :].split("\n", count)[:count]
        text = "\n".join(lines)
        yield Passage(path, head["place"], text.strip("\n"), first, file_rank=rank)
        at = head.end() + len(text)


def _read(body: str) -> Iterator[Passage]:
    head = _READ_HEAD.match(body)
    if head is None:
        return
    text = _GOES_ON.sub("", body[head.end() :])
    paged = [(found[1], words) for found, words in _headed(_PAGE, text)]
    for place, words in paged or [(head["place"], text)]:
        yield Passage(head["path"], place, words.strip("\n"), None if paged else _line(head["place"]))


def _pages(body: str) -> Iterator[Passage]:
    titles: dict[str, str] = {}
    for head, text in _headed(_WEB_HEAD, body):
        if head["failed"] is None:
            url = head["url"] or head["rest"]
            title = titles.setdefault(url, head["title"] or "")
            yield Passage(url, "", _MORE_BELOW.sub("", text).strip("\n"), title=title)


def _headed(head: re.Pattern[str], body: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each heading, and the text below it."""
    heads = list(head.finditer(body))
    ends = [found.start() for found in heads[1:]] + [len(body)]
    for found, end in zip(heads, ends, strict=False):
        yield found, body[found.end() : end]


def _bodies(output: str) -> list[str]:
    """Return the texts between the marks of untrusted text, or the whole output without such marks."""
    return [body for _, body in _WRAPPED.findall(output)] or [output]


def _line(place: str) -> int | None:
    number = re.match(r"lines? (\d[\d,]*)", place)
    return _number(number[1]) if number else None


def _number(digits: str) -> int:
    return int(digits.replace(",", ""))
