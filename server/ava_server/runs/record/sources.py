"""What a run read of the source of a finding: the text in which its quote stands, and the quote's place there.

Everything is from the log: the outputs of the run's tools, as its model was shown them. What a file or a page says now
does not count.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ava_audit.events import ToolResult
from ava_roles.sandbox.paths import shown
from ava_roles.texts.extracted import cell_of, format_of
from ava_roles.tool import WEB_SEARCH
from ava_roles.wrap import one_line
from ava_server.models.offline_passages import Passage, passages, place_of, rows_with_heads
from ava_server.runs.record.quotes import (
    NormalText,
    TextSpan,
    find_near_quote,
    find_quote,
    normalize,
    unwrap_output,
)

_LOCATION_CHARS = 2_000
_NAMED_LINE = re.compile(r"(?::|\blines? )(\d{1,9})")
_NAMED_PAGE = re.compile(r"\bpages? (\d{1,9})", re.IGNORECASE)
_MARKDOWN = (".md", ".markdown")
_HEADING = re.compile(r"#{1,6} (.*\S)")
_HEADING_CHARS = 200
_HIT = re.compile(r"\n\n(?=\d+\. )")
_OPENS, _ENDS = r"(?:^|[\s(\"'`\[,;])", r"(?=$|[\s:,;)\]\"'`#]|\.(?:\s|$))"
_ABSOLUTE = r"(?:\./|(?:/|[A-Za-z]:[\\/])(?:\S*[\\/])?)?"


@dataclass(frozen=True)
class ReadText:
    """A piece of a source that a tool call returned: one passage, page, sheet or file.

    Attributes:
        event: The entry with the call's result.
        tool: The tool that was called.
        location: The source's path or address; empty where the output is of several.
        title: What the source calls itself.
        sha256: Of the file as it was read; empty where that is not known.
        place: Where in the source it stands, such as `page 3` or `sheet Plan`; empty if unknown.
        line: The number of its first line in the source; None where lines do not count.
        text: The text, as the model was shown it.
        missing: What of the source the tool said is not in the text.
    """

    event: int
    tool: str
    location: str
    title: str
    sha256: str
    place: str
    line: int | None
    text: str
    missing: str = ""

    @cached_property
    def normal(self) -> NormalText:
        return NormalText(self.text)

    def line_of(self, offset: int) -> int | None:
        return None if self.line is None else self.line + self.text.count("\n", 0, offset)

    def place_of(self, span: TextSpan) -> str:
        """Return where a piece of the text stands in the source, e.g. `lines 3 to 5` or `sheet Plan, row 7`."""
        first = self.line_of(span.start)
        last = self.line_of(max(span.end - 1, span.start))
        if first is None:
            return self._place_without_lines(span)
        if span.start == span.end:
            return self.place
        return f"line {first}" if first == last else f"lines {first} to {last}"

    def _place_without_lines(self, span: TextSpan) -> str:
        place = place_of(Passage(self.location, self.place, self.text), span.start, self.text[slice(*span)])
        begin = self.text.rfind("\n", 0, span.start) + 1
        row = self.text[begin:].partition("\n")[0]
        if span.end <= span.start:
            return place
        cell = cell_of(row, span.start - begin, span.end - begin)
        if cell is None or not place.startswith("sheet ") or span.end > begin + len(row):
            return place
        return f"{place.rpartition(', row ')[0]}, cell {cell}"

    def heading_of(self, span: TextSpan) -> str:
        """Return the heading under which a piece stands in a Word or Markdown file, where the text has that heading."""
        if self.line is None or not (format_of(self.location) or self.location.lower().endswith(_MARKDOWN)):
            return ""
        begin = self.text.rfind("\n", 0, span.start) + 1
        if _HEADING.match(self.text, begin):
            return ""
        heading, is_code = "", False
        for line in self.text[:begin].split("\n"):
            is_code ^= line.startswith("```")
            match = _HEADING.match(line)
            if match and not is_code:
                heading = match[1]
        return one_line(heading, _HEADING_CHARS)

    def located(self, span: TextSpan) -> str:
        """Return the source with the place of a piece, on one line: `notes.md:3`, `report.pdf, page 3`, an address."""
        line = self.line_of(span.start)
        if line is not None:
            return one_line(f"{self.location}:{line}", _LOCATION_CHARS)
        place = self.place_of(span)
        return one_line(f"{self.location}, {place}" if place else self.location, _LOCATION_CHARS)


@dataclass(frozen=True)
class SourcePassage:
    """The text behind a finding. `span` is its quote; empty where none was found, at the place that the finding names.

    `elsewhere`: the finding names another source than the one in which its quote stands.
    """

    read: ReadText
    span: TextSpan
    elsewhere: bool = False

    @property
    def located(self) -> str:
        return self.read.located(self.span)


# -- what a tool's output has of which source --------------------------------------------------------------------------


def _of_search(fact: ToolResult) -> Iterator[Passage]:
    """Read the output of `search_codebase`: each line begins with a path and the line's number."""
    lines = unwrap_output(fact.output).split("\n")
    for source in fact.sources:
        path = shown(str(source["location"]))
        for line in lines:
            number, colon, text = line.removeprefix(f"{path}:").partition(": ")
            if line.startswith(f"{path}:") and colon and number.isdecimal():
                yield Passage(path, f"line {number}", text, int(number))


def _of_web_search(fact: ToolResult) -> Iterator[Passage]:
    """Read the output of `web_search`: numbered results, each with its address on the second line."""
    for hit in _HIT.split(unwrap_output(fact.output))[1:]:
        title, _, rest = hit.partition("\n")
        address, _, _words = rest.strip().partition("\n")
        yield Passage(address, "", hit, title=title.partition(". ")[2])


def _of_http_get(fact: ToolResult) -> Iterator[Passage]:
    _head, _, body = unwrap_output(fact.output).partition("\n\n")
    yield Passage(str(fact.sources[0]["location"]), "", body)


def _as_passages(fact: ToolResult) -> Iterator[Passage]:
    yield from passages(fact.tool, fact.output)


_READERS: Mapping[str, Callable[[ToolResult], Iterator[Passage]]] = {
    "search_and_read": _as_passages,
    "read_file": _as_passages,
    "read_webpages": _as_passages,
    "search_codebase": _of_search,
    WEB_SEARCH: _of_web_search,
    "http_get": _of_http_get,
}
"""How the outputs of tools are read that name the place of what they return. Any other output is one text."""


def texts_of(event: int, fact: ToolResult) -> list[ReadText]:
    """Return what a tool's output has by source and place, and last the whole output as one text without a place.

    A sheet comes as it was shown, and with the heads of its columns in each row, as the offline reader quotes it.
    """
    if not (fact.success and fact.sources):
        return []
    texts: list[ReadText] = []
    reader = _READERS.get(fact.tool)
    if reader is not None:
        for passage in reader(fact):
            source = _source(fact, passage.source) or {"location": passage.source}
            texts.append(_read_text(event, fact, source, passage))
            with_heads = rows_with_heads(passage)
            if with_heads.text != passage.text:
                texts.append(_read_text(event, fact, source, with_heads))
    only_source = fact.sources[0] if len(fact.sources) == 1 else {"location": ""}
    output = Passage("", "", unwrap_output(fact.output))
    texts.append(_read_text(event, fact, only_source, output))
    return texts


def _read_text(event: int, fact: ToolResult, source: Mapping[str, str | None], passage: Passage) -> ReadText:
    return ReadText(
        event=event,
        tool=fact.tool,
        location=str(source["location"]),
        title=source.get("title") or passage.title,
        sha256=source.get("sha256") or "",
        place=passage.place,
        line=passage.line,
        text=passage.text,
        missing=passage.missing,
    )


def _source(fact: ToolResult, name: str) -> Mapping[str, str | None] | None:
    """Return the source that an output names: as it is, or as `shown`."""
    for source in fact.sources:
        if name in (source["location"], shown(str(source["location"]))):
            return source
    if len(fact.sources) == 1:
        return fact.sources[0]
    return None


# -- the passage of a finding -----------------------------------------------------------------------------------------


class ReadSources:
    """What a run read, to find the passages of its findings in. Blocks: call it in a thread.

    Args:
        outputs: The run's tool results, each with the number of its entry.
    """

    def __init__(self, outputs: Iterable[tuple[int, ToolResult]]) -> None:
        self._texts: list[ReadText] = []
        self._outputs: list[ReadText] = []
        """Each output as one text; only a quote across pages stands in none of its pieces."""
        for event, fact in outputs:
            texts = texts_of(event, fact)
            if texts:
                *pieces, output = texts
                self._texts += pieces or [output]
                self._outputs.append(output)

    @property
    def nothing(self) -> bool:
        return not self._outputs

    def passage(self, finding: Mapping[str, Any], verdict: str, event: int | None = None) -> SourcePassage | None:
        """Return the passage of a finding of a result; None where nothing that was read is known for it.

        Of several that have the quote, it is one of the source and at the place that the finding names, and the one
        with the most text around the quote. `verdict` and `event` are those of `check_quotes`.
        """
        source = _NamedSource(finding)
        if verdict in ("found", "near"):
            quote = normalize(str(finding.get("quote") or ""))
            passage = None
            for texts in (self._texts, self._outputs):
                if passage is None:
                    passage = self._with_quote(texts, quote, source)
                if passage is None and verdict == "near":
                    passage = self._nearly(texts, quote, event)
            if passage is not None:
                is_of_source = not source.text or source.names(passage.read)
                return SourcePassage(passage.read, passage.span, elsewhere=not is_of_source)
        return self._text_of_source(source)

    @staticmethod
    def _with_quote(texts: Sequence[ReadText], quote: str, source: _NamedSource) -> SourcePassage | None:
        best: SourcePassage | None = None
        best_rank: tuple[float, ...] = ()
        for read in texts:
            for span in find_quote(quote, read.normal):
                rank = (
                    bool(read.location),
                    source.names(read),
                    read.tool != WEB_SEARCH,
                    bool(read.place or read.line),
                    -source.distance(read, span),
                    len(read.text),
                )
                if best is None or rank > best_rank:
                    best, best_rank = SourcePassage(read, span), rank
        return best

    @staticmethod
    def _nearly(texts: Sequence[ReadText], quote: str, event: int | None) -> SourcePassage | None:
        """Return the passage that nearly has a quote, from the output in which it was found."""
        for read in texts:
            if read.event != event:
                continue
            span = find_near_quote(quote, read.normal)
            if span is not None:
                return SourcePassage(read, span)
        return None

    def _text_of_source(self, named: _NamedSource) -> SourcePassage | None:
        """Return what was read of the source that a finding names, without a quote: at its place, else the first."""
        texts = [read for read in self._texts if read.location and named.names(read)]
        if not texts:
            return None
        read = min(texts, key=lambda each: (each.tool == WEB_SEARCH, not each.place, named.distance_to(each)))
        start = named.offset(read)
        return SourcePassage(read, TextSpan(start, start))


class _NamedSource:
    """The source that a finding names, in the subagent's own words."""

    def __init__(self, finding: Mapping[str, Any]) -> None:
        names: list[str] = []
        for key in ("source_url", "source_name"):
            name = one_line(str(finding.get(key) or ""))
            if name:
                names.append(name)
        self.text = unicodedata.normalize("NFC", " ; ".join(names))
        line = _NAMED_LINE.search(self.text)
        page = _NAMED_PAGE.search(self.text)
        self._line = int(line[1]) if line else None
        self._page = f"page {page[1]}" if page else None

    def names(self, read: ReadText) -> bool:
        """Tell whether it is the source of a text, by its path, address or title."""
        if not read.location:
            return False
        title = one_line(read.title)
        if title and title in self.text:
            return True
        location = unicodedata.normalize("NFC", one_line(read.location))
        if "://" in location:
            location = location.partition("#")[0].rstrip("/")
            return re.search(rf"{_OPENS}{re.escape(location)}/?(?:#\S*)?{_ENDS}", self.text) is not None
        return re.search(f"{_OPENS}{_ABSOLUTE}{re.escape(location)}{_ENDS}", self.text) is not None

    def distance(self, read: ReadText, span: TextSpan) -> int:
        """Return how far a piece of a text is from the place that is named: in lines, or 1 for another page."""
        line = read.line_of(span.start)
        if self._line is not None and line is not None:
            return abs(line - self._line)
        return int(self._page is not None and not f"{read.place} ".startswith(f"{self._page} "))

    def distance_to(self, read: ReadText) -> int:
        if self._line is not None and read.line is not None:
            last = read.line + read.text.count("\n")
            return max(read.line - self._line, self._line - last, 0)
        return self.distance(read, TextSpan(0, 0))

    def offset(self, read: ReadText) -> int:
        """Return where in a text the named line begins; 0 where none is named."""
        if self._line is None or read.line is None or self.distance_to(read):
            return 0
        before = read.text.split("\n")[: self._line - read.line]
        return sum(len(line) + 1 for line in before)
