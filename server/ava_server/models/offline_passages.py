"""The passages of the offline reader: what the tools' outputs say, and which pieces of them fit a question best."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import chain

from ava_roles.texts.extracted import row_places
from ava_roles.texts.passages import Query, Weighing, filler_share, record_factor, weights_of
from ava_roles.texts.question_words import DATE, FIGURE, NAME
from ava_roles.texts.table_rows import HeadRoom, with_heads
from ava_server.models.base import ToolTurn

SEARCH, SUBMIT = "search_and_read", "submit_result"
FEW_PASSAGES = 20
NAMED_MOST = 5
"""Most things of a kind that a result lists."""
_WRAPPED = re.compile(r"^<(tool_output_\w+)[^\n]*>\n(.*?)\n</\1>", re.DOTALL | re.MULTILINE)
_PLACE = r"(?:line|lines|page|pages) \d[\d,]*(?: to \d[\d,]*)?"
_FOUND_PLACE = re.compile(
    r"^(?:## (?P<path>[^\n]+)\n\n)?"
    r"(?P<place>lines? \d[\d,]*(?: to (?P<last>\d[\d,]*))?(?:, from column \d[\d,]*)?|[^\n]+?(?=, \d+ lines?:\n))"
    r"(?:, (?P<count>\d+) lines?)?:\n",
    re.MULTILINE,
)
_FOUND_HEAD = re.compile(
    r"\s*(?P<files>\d+) files? fits? best \((?P<searched>[\d,]+) searched\)(?:; not searched: (?P<left>[^\n]*))?"
    r"\nOf (?P<total>[\d,]+) passages? have: (?P<words>[^\n]*)"
    r"(?:\n(?P<languages>The question seems to be in [^\n]*))?"
)
_WORD_COUNT = re.compile(r"([^\s,]+) (\d[\d,]*\d|\d)(?=, |$)")
_READ_HEAD = re.compile(
    rf"(?P<path>[^\n]+?) \([^\n]*\): (?P<place>{_PLACE}) of (?:,?\d)+"
    r"(?:, from column (?P<column>[\d,]+))?(?:; cut: line (?P<cut>[^;\n]*))?[^\n]*"
    r"(?:\nNot in the text: (?P<gaps>[^\n]+))?"
)
_HEAD_CHARS = 10_000
_CUT_LINE = re.compile(r"(\d+) \(of ([\d,]+)\)")
_PAGE = re.compile(r"^\[(page \d+(?: \([\w .-]{1,20}\))?)\]\n", re.MULTILINE)
_SHEET = re.compile(r"^\[(sheet [^\n]+)\]\n", re.MULTILINE)
_WORKBOOK = re.compile(r"[^\n]* \((?:workbook|OpenDocument spreadsheet), [\d,]+ bytes?\): ")
_GOES_ON = re.compile(r"\n\n\[goes on: [^\n]*\]\s*$")
_WEB_HEAD = re.compile(
    r"^# (?:The rest of (?P<rest>\S+)\n"
    r"|\S+\n(?P<failed>Not read: [^\n]*)(?:\n|$)"
    r"|(?P<title>[^\n]*)\nURL: (?P<url>\S+)\n(?:Redirected from: [^\n]*\n)?status \d+ · [^\n]*(?:\n|$)"
    r"(?:Note: [^\n]*(?:\n|$))?)",
    re.MULTILINE,
)
_FAILED_PAGE = re.compile(r"^# (\S+)\nNot read: ([^\n]*)$", re.MULTILINE)
_MORE_BELOW = re.compile(r"\n\n\[[\d,]+ more characters? of this page follows? below\]\s*$")


@dataclass(frozen=True)
class Passage:
    """A piece of a source, as a tool has returned it."""

    source: str
    place: str  # where in it: `line 12` or `page 3`; empty if unknown
    text: str
    line: int | None = None
    title: str = ""
    fenced: bool = False  # it is inside a code fence
    file_rank: int = 0  # how many files the search found that fit better
    missing: str = ""  # what of the source was not given as text, where the tool said so above the text

    @property
    def location(self) -> str:
        if self.line is not None:
            return f"{self.source}:{self.line}"
        if self.place:
            return f"{self.source}, {self.place}"
        return self.source


def passages(tool: str, output: str) -> list[Passage]:
    """Return the passages in a tool's output; none for a failure."""
    if output.startswith("Failed."):
        return []
    readers = {SEARCH: _search_passages, "read_file": _file_passages, "read_webpages": _page_passages}
    reader = readers.get(tool)
    if reader is None:
        return []
    return list(chain.from_iterable(map(reader, _bodies(output))))


def failures(tool: str, output: str) -> list[str]:
    """Return what could not be read, and why, as far as a tool's output says."""
    bodies = _bodies(output)
    pages: list[str] = []
    for body in bodies:
        pages += [f"{url}: {why}" for url, why in _FAILED_PAGE.findall(body)]
    if pages or passages(tool, output):
        return pages
    return [f"{tool} returned nothing: {_first_words(bodies)[:200]}"]


def _first_words(bodies: Iterable[str]) -> str:
    """Return the first line of an output that says something."""
    for body in bodies:
        for line in map(str.strip, body.splitlines()):
            if line and line != "Failed.":
                return line
    return "no words"


def left_out(tool: str, output: str) -> list[str]:
    notes: list[str] = []
    for body in _bodies(output):
        if tool == SEARCH:
            search = _FOUND_HEAD.match(body)
            if search and search["left"]:
                notes.append(f"Files searched: {search['searched']}. Not searched: {search['left']}.")
        elif tool == "read_file":
            file, _text = _read_head(body)
            if file and _GOES_ON.search(body):
                notes.append(f"{file['path']} was not read to its end: only {file['place']}.")
    return notes


def other_language(results: Iterable[ToolTurn]) -> str:
    """Return what a search says of a question in another language than the files; empty if it says nothing."""
    for result in results:
        if result.name == SEARCH:
            for body in _bodies(result.text):
                search = _FOUND_HEAD.match(body)
                if search and search["languages"]:
                    return search["languages"]
    return ""


@dataclass(frozen=True)
class Unread:
    """What the calls of a run were to read and did not.

    Attributes:
        sentences: How much that is, and files with their reasons; empty if everything was read.
        is_little: An answer hardly stands there: it is a small part, and no file that the question names.
    """

    sentences: tuple[str, ...] = ()
    is_little: bool = False

    @property
    def hides_answer(self) -> bool:
        """Whether it is not known if there is an answer, where none was found in what was read."""
        return bool(self.sentences) and not self.is_little


def unread_of(results: Sequence[ToolTurn]) -> Unread:
    """Return what calls were to read and did not; where every one of them failed, what they failed with."""
    reading = [result for result in results if result.name != SUBMIT]
    partly = [result for result in reading if result.unread]
    lines: list[str] = []
    if partly:
        for result in partly:
            lines += result.unread.split("\n")
    elif all(result.failed for result in reading):
        for result in reading:
            lines += failures(result.name, result.text)
        lines = lines[:NAMED_MOST]
    sentences = [line if line.endswith("…") else f"{line.rstrip('.')}." for line in dict.fromkeys(lines)]
    is_little = bool(partly) and all(result.unread_little for result in partly)
    named = tuple(f"{path}: " for path in _files_read(reading))
    if any(line.startswith(named) for line in lines):  # one that was read, but not to its end
        is_little = False
    return Unread(tuple(sentences), is_little)


def _files_read(results: Iterable[ToolTurn]) -> Iterator[str]:
    """Yield the files that were read because the question names them."""
    for result in results:
        if result.name == "read_file" and not result.failed:
            for body in _bodies(result.text):
                file, _text = _read_head(body)
                if file:
                    yield file["path"]


@dataclass(frozen=True)
class Spread:
    """How many of all passages that were searched or read have each word of the question, in the order of its words."""

    counts: tuple[int, ...]
    total: int

    @property
    def weights(self) -> list[float]:
        """How much each word tells; the same for all where too few passages say which are rare."""
        if self.total >= FEW_PASSAGES:
            return weights_of(self.counts, self.total)
        return [1.0] * len(self.counts)


def spread_of(query: Query, results: Iterable[ToolTurn]) -> Spread:
    """Return the spread of a question's words: as a search counted them, and in the other texts that were read."""
    spreads: list[Spread] = []
    for result in results:
        if result.name == SEARCH:
            spread = _spread_of_search(query, result.text)
            if spread is not None:
                spreads.append(spread)
        else:
            spreads.append(spread_in(query, passages(result.name, result.text)))
    counts = [0] * len(query.words)
    for spread in spreads:
        for number, count in enumerate(spread.counts):
            counts[number] += count
    return Spread(tuple(counts), sum(spread.total for spread in spreads))


def _spread_of_search(query: Query, output: str) -> Spread | None:
    """Return in how many of the passages that it searched a search found each word of the query, if its output says."""
    for body in _bodies(output):
        head = _FOUND_HEAD.match(body)
        if head:
            by_word = {word: _number(count) for word, count in _WORD_COUNT.findall(head["words"])}
            counts = [by_word.get(word, 0) for word in query.words]
            return Spread(tuple(counts), _number(head["total"]))
    return None


def spread_in(query: Query, passages: Sequence[Passage]) -> Spread:
    """Return in how many of these passages each word is; without passages no counts."""
    counts_by_passage = [query.matches(passage.text).counts for passage in passages]
    counts_by_word = zip(*counts_by_passage, strict=True)
    return Spread(tuple(len(counts) - counts.count(0) for counts in counts_by_word), len(passages))


def _search_passages(body: str) -> Iterator[Passage]:
    """Read the output of `search_and_read`; line counts keep a passage's text from being taken for the next file."""
    at = max(body.find("\n\n## "), 0)  # what is above is about the search
    path, rank = "", -1
    while head := _FOUND_PLACE.search(body, at):
        if head["path"] is not None:
            path = head["path"]
            rank += 1
        first = _line(head["place"])
        if first is None:
            count = _number(head["count"])
        else:
            count = _number(head["last"] or str(first)) - first + 1
        lines = body[head.end() :].split("\n", count)[:count]
        text = "\n".join(lines)
        yield Passage(path, head["place"], text.strip("\n"), first, file_rank=rank)
        at = head.end() + len(text)


def _read_head(body: str) -> tuple[re.Match[str] | None, str]:
    """Return what stands above the text of a file, and the text."""
    head, gap, text = body.partition("\n\n")
    if not gap:
        return None, text
    return _READ_HEAD.match(head, 0, _HEAD_CHARS), text


def _file_passages(body: str) -> Iterator[Passage]:
    head, text = _read_head(body)
    if head is None:
        return
    text = _GOES_ON.sub("", text)
    heads = _SHEET if _WORKBOOK.match(body) else _PAGE
    paged = [(found[1], words) for found, words in _headed(heads, text)]
    for place, words in paged or [(head["place"], text)]:
        shown = words.lstrip("\n")
        first = None if paged else _line(head["place"])
        if first is not None:
            first += len(words) - len(shown)
        yield Passage(head["path"], place, shown.rstrip("\n"), first, missing=_missing(head))


def _missing(head: re.Match[str]) -> str:
    """Return what the head of a file that was read says is not in the text below it."""
    said: list[str] = []
    if head["column"]:
        said.append(f"line {_line(head['place'])} before column {head['column']}")
    for number, chars in _CUT_LINE.findall(head["cut"] or ""):
        said.append(f"the end of line {number}, which has {chars} characters")
    if head["gaps"]:
        said.append(head["gaps"])
    return "; ".join(said)


def _page_passages(body: str) -> Iterator[Passage]:
    titles: dict[str, str] = {}
    for head, text in _headed(_WEB_HEAD, body):
        if head["failed"] is None:
            url = head["url"] or head["rest"]
            title = titles.setdefault(url, head["title"] or "")
            yield Passage(url, "", _MORE_BELOW.sub("", text).strip("\n"), title=title)


def _headed(head: re.Pattern[str], body: str) -> Iterator[tuple[re.Match[str], str]]:
    heads = list(head.finditer(body))
    ends = [found.start() for found in heads[1:]] + [len(body)]
    for found, end in zip(heads, ends, strict=False):
        yield found, body[found.end() : end]


def _bodies(output: str) -> list[str]:
    return [body for _, body in _WRAPPED.findall(output)] or [output]


def _line(place: str) -> int | None:
    number = re.match(r"lines? (\d[\d,]*)", place)
    if number is None:
        return None
    return _number(number[1])


def _number(digits: str) -> int:
    return int(digits.replace(",", ""))


# -- which of them fit best -------------------------------------------------------------------------------------------

QUOTE_CHARS = 800
_FAR_BELOW = 1 / 8
"""A passage whose rank is below this share of the best rank is not shown."""
_AROUND = 0.3
"""The weight of the rank of the passage around a quote, as an exponent."""
_SAME_WORDS = 0.8
"""Two passages with this share of their words in common are the same page in two formats or versions."""
_APART_LINES = 10
"""Passages of one page that are shown are at least so far apart."""
_SAME_PAGE = 0.9
"""What each further place of a page counts, as a share of the one before."""
_NEXT_FILE = 0.94
"""What a file counts that the search ranked next, as a share of the one before."""
_TOGETHER = 0.8
"""The weight of how much of the question one sentence has, as an exponent."""
_EXPLAINING, _LEAST_FILLERS, _MOST_FILLERS = 1.2, 0.05, 0.4
"""The weight of the share of filler words, as an exponent; and the least and most that count."""
_PARAGRAPHS = 0.1
"""The weight of the number of paragraphs, as an exponent."""
_LATER = 0.4
"""How much less a piece counts at the end of its passage than at the beginning."""
_WORD, _WORDS_MOST = 0.1, 6
"""What each word of the question that one piece has adds to the fit, and for how many words at most."""
_LEAST_FIT = 1.3
"""The least fit of an answer, chosen on questions with and without one (`benchmarks/HISTORY.md`)."""
_LEAST_WHOLE, _LISTS_WORDS = 0.95, 8
"""Or how much of a list of subjects all pieces need together; so many words of a question may be such a list, too."""
_FENCED = 0.5
_CUT_MOST = 40
_QUOTE_WORDS = 60

_PARAGRAPH = re.compile(r"\S(?:.|\n(?!\s*\n))*")
_HEADING = re.compile(r"^(?:#{1,6}\s|[^\S\n]*\d+(?:\.\d+)+\.?\s+\w)[^\n]*", re.MULTILINE)
_TITLE = re.compile(r"[^\n]{0,79}[^\n.:;,…。]")
"""A short line that does not end like a sentence; a question may be a title."""
# A sentence ends at its mark, and before a line that begins a list entry, a heading, a row or code.
_SENTENCE = re.compile(
    r".+?(?:[.!?…][\"'”’)\]]*(?=\s|\Z)|[。！？][\"'”’)\]」』）]*|(?=\n[ \t]*(?:[-*+#|>`{}]|\d+[.)]\s))|\Z)\s*",
    re.DOTALL,
)
_ROWS = re.compile(r", rows? (?P<first>\d+)(?: to (?P<last>\d+))?\Z")
_ABOVE_ROWS = re.compile(r"\|(?:---\||  \| A \|)")
"""A line above a table's rows: the letters of a sheet's columns, or the line below heads."""
_WHOLE_ROW = re.compile(r"\|.*\|")
_BAR = re.compile(r"(?<!\\)\|")
_CONTINUES = re.compile(r"\d+(?:[^\d.)]|[.)]\S)")
_SENTENCE_END = re.compile(r".*[.!?…。！？][\"'”’)\]」』）]*", re.DOTALL)
_INITIAL = re.compile(r".*\s[A-ZÀ-ÖØ-Þ]\.", re.DOTALL)
_YEAR = re.compile(r"(?<!\d)(?:1\d|20)\d\d(?!\d|[.,:]\d)")
_CLOCK = re.compile(r"\d{1,2}(?:[:.h/]\d{2}|\s*[月日时時点])")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*|[一二两三四五六七八九十百千]+(?=[个個人年次回岁歳米元円名天日倍分])")
_LATER_NAME = re.compile(r"(?<=[\w,;] )[A-ZÀ-ÖØ-ÞΑ-ΩА-Я]\w+")
"""A word with a capital that does not begin a sentence."""
_AS_MUCH = 0.75
"""A sentence with this share of the most that one has of a question is as good: other things decide between them."""


@dataclass(frozen=True)
class BestPassages:
    """The pieces that answer a question best, and how much of it they have, weighed by how rare its words are."""

    pieces: Sequence[Passage] = ()  # the best first
    sentence: float = 0.0  # the most of the question that one sentence has, from 0 to 1
    likeness: float = 0.0  # what the best piece has, parts of words counted too
    nearness: float = 0.0  # `Query.nearness` of the best piece
    words: float = 0.0  # `Query.number_of` the words in the piece with most
    whole: float = 0.0  # what the pieces have together
    may_list: bool = False  # the question may list subjects

    @property
    def fits(self) -> bool:
        """Whether they are likely to be an answer. A task may list subjects that only the pieces together have."""
        fit = self.sentence + self.likeness + self.nearness + _WORD * min(self.words, _WORDS_MOST)
        return fit >= _LEAST_FIT or (self.may_list and self.whole >= _LEAST_WHOLE)


def best_passages(found: Iterable[Passage], query: Query, spread: Spread, most: int) -> BestPassages:
    """Return the pieces that answer a question best, several of a page if they fit better; not those far below."""
    weigh = Weighing(spread.weights, _QUOTE_WORDS)
    ranked = sorted(_ranked_pieces(found, query, weigh), key=lambda each: -each[0])
    if not ranked:
        return BestPassages()
    least = ranked[0][0] * _FAR_BELOW
    chosen = spread_out([(rank, piece) for rank, _, piece in ranked if rank >= least], most)
    counts = [query.matches(piece.text).counts for piece in chosen]
    counts_together = [sum(by_piece) for by_piece in zip(*counts, strict=True)]
    return BestPassages(
        pieces=chosen,
        sentence=max(together for _, together, piece in ranked if piece in chosen),
        likeness=query.likeness(chosen[0].text, weigh.weights),
        nearness=query.nearness(chosen[0].text),
        words=max(map(query.number_of, counts)),
        whole=weigh.coverage(counts_together),
        may_list=query.is_list or len(query.words) >= _LISTS_WORDS,
    )


def _ranked_pieces(found: Iterable[Passage], query: Query, weigh: Weighing) -> Iterator[tuple[float, float, Passage]]:
    """Yield the pieces of the likely passages with a rank, and the most of the question that one sentence has."""
    likely: list[tuple[float, int, Passage]] = []
    for number, passage in enumerate(found):
        matches = query.matches(passage.text)
        around = Weighing(weigh.weights, max(matches.length, 1))(matches)
        likely.append((-around, number, passage))
    for around, _, passage in nsmallest(_CUT_MOST, likely):
        for piece in pieces(passage):
            own = weigh(query.matches(piece.text))
            if own:
                sentences = (query.matches(sentence).counts for sentence in _SENTENCE.findall(piece.text))
                together = max(map(weigh.coverage, sentences), default=0.0)
                rank = own * (-around) ** _AROUND * together**_TOGETHER * record_factor(piece.source)
                rank *= _form(piece.text) * _NEXT_FILE**passage.file_rank
                rank *= math.exp(-_LATER * passage.text.find(piece.text) / len(passage.text))
                if rank > 0:
                    yield (rank * _FENCED if piece.fenced else rank), together, piece


def _form(text: str) -> float:
    """Return how much a text looks like an explanation: whole paragraphs of prose with many filler words, or rows."""
    fillers = _MOST_FILLERS if text.startswith("|") else filler_share(text)
    explains = math.pow(min(max(fillers, _LEAST_FILLERS), _MOST_FILLERS), _EXPLAINING)
    return explains * math.pow(1 + text.count("\n\n"), _PARAGRAPHS)


def best_sentences(text: str, query: Query, spread: Spread, few: int, most: int) -> str:
    """Return on one line a text's sentence with most of a question, and those after it within `few` characters.

    Of sentences that have about as much, it is the one with the kind of answer that the question asks for, and then the
    one with more of its words beside each other. If it has no such figure or date, sentences follow up to the next that
    has, within `most` characters. A row of a table stands for itself, as `Zone EUR · Sales: 9,467`. Empty if no
    sentence of at most `most` characters ends like one.
    """
    weigh = Weighing(spread.weights, _QUOTE_WORDS)
    sentences = whole_sentences(text)
    shares: dict[int, float] = {}
    for number, sentence in enumerate(sentences):
        is_whole = _SENTENCE_END.fullmatch(sentence) or _WHOLE_ROW.fullmatch(sentence)
        if is_whole and len(sentence) <= most:
            shares[number] = weigh.coverage(query.matches(sentence).counts)
    if not shares:
        return ""
    least = max(shares.values()) * _AS_MUCH
    good = [number for number, share in shares.items() if share >= least]

    def fit(number: int) -> tuple[int, float, float]:
        sentence = sentences[number]
        return _has_kind(sentence, query), query.nearness(sentence), shares[number]

    best = max(good, key=fit)
    shown = sentences[best]
    if _WHOLE_ROW.fullmatch(shown):
        return " · ".join(filter(None, map(str.strip, _BAR.split(shown))))
    wants_more = query.kind in (FIGURE, DATE) and not _has_kind(shown, query)
    for number in range(best + 1, len(sentences)):
        longer = f"{shown} {sentences[number]}"
        if number not in shares or len(longer) > (most if wants_more else few):
            break
        shown = longer
        wants_more = wants_more and not _has_kind(sentences[number], query)
    return shown


def _has_kind(sentence: str, query: Query) -> int:
    """Return how well a sentence has the kind of answer that a question asks for: 0, 1, or 2 for a likelier form."""
    if query.kind == NAME:
        return any(name.lower() not in query.text for name in _LATER_NAME.findall(sentence))
    if query.kind == DATE:
        is_date = _YEAR.search(sentence) or _CLOCK.search(sentence)
        return 2 if is_date else int(_NUMBER.search(sentence) is not None)
    if query.kind == FIGURE:
        has_other_number = _NUMBER.search(_YEAR.sub(" ", sentence)) is not None
        return 2 if has_other_number else int(_NUMBER.search(sentence) is not None)
    return 0


def reason_for(piece: Passage, query: Query) -> str:
    """Return on one line why a passage was chosen: which of the question's words it has, and where most are together.

    Where the passage has lines, the place is the line on which that sentence begins.
    """
    words = query.found_in(piece.text)
    if not words:
        return f"{piece.location} was chosen as the beginning of what the task names."
    sentences = list(_SENTENCE.finditer(piece.text))
    best = max(sentences, key=lambda found: sum(count > 0 for count in query.matches(found[0]).counts))
    together = query.found_in(best[0])
    if len(together) == len(words):
        reason = f"{piece.location} was chosen because one sentence has {', '.join(together)}"
    else:
        reason = f"{piece.location} was chosen because it has {', '.join(words)}"
        if len(together) > 1:
            reason += f"; one sentence has {', '.join(together)}"
    if piece.line is None:
        return f"{reason}."
    return f"{reason} (line {piece.line + piece.text.count(chr(10), 0, best.start())})."


def whole_sentences(text: str) -> list[str]:
    """Return the sentences, headings and list entries of a text, each on one line.

    What goes on with a small letter or a number belongs to the sentence before: that ended with an abbreviation. So
    does what follows the initial of a name.
    """
    sentences: list[str] = []
    for paragraph in _PARAGRAPH.finditer(text):
        begun = len(sentences)
        for found in _SENTENCE.finditer(text, *paragraph.span()):
            sentence = " ".join(found[0].split())
            if sentence:
                is_first = len(sentences) == begun
                goes_on = sentence[0].islower() or _CONTINUES.match(sentence)
                if not is_first and (goes_on or _INITIAL.fullmatch(sentences[-1])):
                    sentences[-1] += f" {sentence}"
                else:
                    sentences.append(sentence)
    return sentences


def spread_out(ranked: Iterable[tuple[float, Passage]], most: int) -> list[Passage]:
    """Return the best pieces. Each further one of a page counts less; those of a page are far apart; no text twice."""
    left: list[tuple[float, Passage, frozenset[str]]]
    left = [(rank, piece, frozenset(piece.text.lower().split())) for rank, piece in ranked]
    chosen: list[Passage] = []
    while left and len(chosen) < most:
        taken = Counter(piece.source for piece in chosen)
        _, best, words = max(left, key=lambda each: each[0] * _SAME_PAGE ** taken[each[1].source])
        chosen.append(best)
        still_left: list[tuple[float, Passage, frozenset[str]]] = []
        for rank, piece, own in left:
            is_near = piece.source == best.source and not _apart(piece, best)
            is_same_text = len(own & words) >= _SAME_WORDS * min(len(own), len(words))
            if not (is_near or is_same_text):
                still_left.append((rank, piece, own))
        left = still_left
    return chosen


def _apart(piece: Passage, other: Passage) -> bool:
    """Tell whether two passages of one source are far apart: other rows, distant lines, or other places.

    Where neither says its place, they count as apart.
    """
    rows = _ROWS.search(piece.place)
    others = _ROWS.search(other.place)
    if rows and others:
        sheet = piece.place[: rows.start()]
        other_sheet = other.place[: others.start()]
        if sheet == other_sheet:
            first, last = _span(rows)
            other_first, other_last = _span(others)
            return last < other_first or other_last < first
    if piece.line is not None and other.line is not None:
        return abs(piece.line - other.line) >= _APART_LINES
    return piece.place != other.place or not piece.place


def _span(rows: re.Match[str]) -> tuple[int, int]:
    return int(rows["first"]), int(rows["last"] or rows["first"])


def pieces(passage: Passage) -> Iterator[Passage]:
    """Yield what can be quoted: from each paragraph, and each sentence of a long one, as much as fits a quote.

    So pieces overlap. A heading or a short line comes with what follows it, which begins no piece of its own if both
    fit into one; the next section has its own pieces. Each row of a table begins a piece, and has its heads.
    """
    passage = rows_with_heads(passage)
    starts, ends = _bounds(passage.text)
    sections = list(_sections(passage.text))
    for start in starts:
        next_section = next((section for section in sections if section > start), len(passage.text))
        limit = min(start + QUOTE_CHARS, next_section)
        quotable = [end for end in ends if start < end <= limit]
        if quotable:
            yield from _piece(passage, start, quotable[-1])
            continue
        # A sentence longer than a quote is cut into several pieces.
        sentence_end = min(each for each in ends if each > start)
        end = _cut_at(passage.text, start)
        yield from _piece(passage, start, end)
        while end < sentence_end:
            start, end = end, _cut_at(passage.text, end)
            yield from _piece(passage, start, end)


def rows_with_heads(passage: Passage) -> Passage:
    """Return a passage of a sheet that was read with the heads of columns in its rows; a search gives them itself."""
    if not passage.place.startswith("sheet ") or _ROWS.search(passage.place):
        return passage
    return replace(passage, text=with_heads(passage.text, "bars", passage.place, HeadRoom()))


def _is_in_row(text: str, at: int) -> bool:
    return text.startswith("|", text.rfind("\n", 0, at) + 1)


def _bounds(text: str) -> tuple[list[int], list[int]]:
    starts: list[int] = []
    ends: list[int] = []
    below_title = False
    for paragraph in _PARAGRAPH.finditer(text):
        sentences = list(_sentences_and_rows(text, *paragraph.span()))
        is_long = paragraph.end() - paragraph.start() > QUOTE_CHARS
        is_title = _TITLE.fullmatch(paragraph[0]) is not None
        begins: list[int] = []
        for number, (start, _) in enumerate(sentences):
            begins_piece = number == 0 or is_long or _is_in_row(text, start)
            if begins_piece and not _ABOVE_ROWS.match(text, start):
                begins.append(start)
        if below_title and not is_title and paragraph.end() <= starts[-1] + QUOTE_CHARS:
            begins = begins[1:]  # it is quoted with its title
        starts += begins
        below_title = is_title
        ends += [end for _, end in sentences]
    return starts, ends


def _sentences_and_rows(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where the sentences of a paragraph begin and end; a row of a table is not cut at the points in it."""
    start, stop = begin, begin
    for found in _SENTENCE.finditer(text, begin, end):
        is_inside_row = found.start() > text.rfind("\n", 0, found.start()) + 1 and _is_in_row(text, found.start())
        if stop > start and not is_inside_row:
            yield start, stop
            start = found.start()
        stop = found.end()
    if stop > start:
        yield start, stop


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
    if not at:
        return start + QUOTE_CHARS
    return start + at + 1


def place_of(passage: Passage, start: int, text: str) -> str:
    """Return the place of a piece of a passage: in a sheet, with the rows that it has."""
    place = _ROWS.sub("", passage.place)
    if not place.startswith("sheet "):
        return passage.place
    begun = passage.text.rfind("\n", 0, start) + 1
    line_end = passage.text.find("\n", start)
    if line_end < 0:
        line_end = len(passage.text)
    end = start + len(text) if "\n" in text else line_end
    return next(row_places(place, [passage.text[begun:end]]))


def _piece(passage: Passage, start: int, end: int) -> Iterator[Passage]:
    text = passage.text[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    if any(char.isalnum() for char in text):
        line = None if passage.line is None else passage.line + passage.text.count("\n", 0, start)
        place = place_of(passage, start, text) if line is None else f"line {line}"
        fenced = passage.text.count("\n```", 0, start) % 2 == 1 or text.startswith("```")
        yield Passage(passage.source, place, text, line, passage.title, fenced)
