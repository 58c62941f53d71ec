"""Looks quotes up in what the tools returned, and finds the place of each in the text."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from ava_audit.events import ToolResult
from ava_server.models.offline_passages import passages, rows_with_heads
from ava_server.runs.record.submit import Finding

NEAR = 0.1
"""The share of a `near` quote's characters that may differ from the source."""
NEAR_CHARS = 600
"""A longer quote has to be found exactly."""
NEAR_FINDINGS = 50
"""Findings that are tested for `near`; the others get the exact test only."""
QUOTE_BYTES = 4
"""Bytes of letters and digits that a quote needs: `a` is found everywhere and proves nothing."""
_OPENING = re.compile(r"<(tool_output_[0-9A-Za-z]{8,64})\b")
_WINDOWS = 6  # passages with which one quote is compared
_ANCHORS = 4  # pieces of a quote by which such passages are found
_ANCHOR_CHARS = 24
_WORD_CHARS = 1_000
_WORD = re.compile(r"\S+")
_PIECE = re.compile("&lt;|.", re.DOTALL)
PLACES_MOST = 100
_OUTPUT_CHARS = 100_000  # one character may become 18 by NFKC
_MARKS = str.maketrans(dict.fromkeys("“”„«»‟″", '"') | dict.fromkeys("‘’‚‹›‛′´ʼ`", "'"))


def check_quotes(
    findings: Sequence[Finding], outputs: Iterable[tuple[int, ToolResult]], *, near: bool = True
) -> list[dict[str, Any]]:
    """Look each quote up in the stored tool outputs of its run. Blocks: call it in a thread.

    Only outputs that name a source count: notes, saved files and an empty search hold only what the subagent put into
    them. Only what the tool returned counts, not the text that Ava put around it; a row of a sheet also counts with
    the heads of its columns, as the offline reader quotes it. A quote of too few letters is never found.

    `near`: also find quotes that differ a little; without that, it is fast enough for a command of the store.

    Returns:
        For each finding with a quote, its number, from 1, and a verdict: `found` (with the entry), `near` (at most 10 %
        of its characters differ), `not_found`. The quote itself is in the finding.
    """
    quotes = [(number, normalize(finding.quote)) for number, finding in enumerate(findings, 1) if finding.quote]
    if not quotes:
        return []
    read = _read_from_sources(outputs)
    verdicts: list[dict[str, Any]] = []
    looked = 0
    for number, quote in quotes:
        seq: int | None = None
        verdict = "found"
        if sum(len(char.encode("utf-8", "replace")) for char in quote if char.isalnum()) >= QUOTE_BYTES:
            seq = next((seq for seq, text in read if quote in text), None)
            if seq is None and near and len(quote) <= NEAR_CHARS and looked < NEAR_FINDINGS:
                looked += 1
                seq, verdict = _near(quote, read), "near"
        if seq is None:
            verdicts.append({"finding": number, "verdict": "not_found"})
        else:
            verdicts.append({"finding": number, "verdict": verdict, "event": seq})
    return verdicts


def _read_from_sources(outputs: Iterable[tuple[int, ToolResult]]) -> list[tuple[int, str]]:
    texts: list[tuple[int, str]] = []
    for seq, fact in outputs:
        if fact.success and fact.sources:
            texts.append((seq, normalize(unwrap_output(fact.output))[:_OUTPUT_CHARS]))
            rows = normalize(_rows_with_heads(fact))[:_OUTPUT_CHARS]
            if rows:
                texts.append((seq, rows))
    return texts


def _rows_with_heads(fact: ToolResult) -> str:
    """Return the sheets of a workbook that was read, with the heads of columns in each row; else an empty text."""
    if fact.tool != "read_file" or "[sheet " not in fact.output:
        return ""
    shown: list[str] = []
    for passage in passages(fact.tool, fact.output):
        with_heads = rows_with_heads(passage).text
        if with_heads != passage.text:
            shown.append(with_heads)
    return "\n".join(shown)


def unwrap_output(output: str) -> str:
    """Return what a tool returned, without the wrapper and the notes that the model is shown with it.

    An output that was read back has two wrappers, or the end of one; the run's own word in their names tells them.
    """
    opening = _OPENING.match(output)
    if opening is None:
        return output
    begin, end = 0, len(output)
    for tag in re.finditer(rf"(?:<|&lt;)(/?){opening[1]}\b[^>]*>", output):  # only this run has tags of this name
        if not tag[1]:
            begin, end = tag.end(), len(output)
        elif end == len(output):
            end = tag.start()
    return output[begin:end].strip("\n")


def normalize(text: str) -> str:
    """Return text with compatible forms (NFKC), white space and quote marks normalized.

    An output has `&lt;` in place of a `<` that could be taken for one of Ava's tags.
    """
    text = text.replace("&lt;", "<")
    if not text.isascii():
        # Word by word: normalizing one long run of combining marks takes quadratic time.
        text = " ".join(_normal(word) for word in text.translate(_MARKS).split()).translate(_MARKS)
    else:
        text = text.replace("`", "'")
    return " ".join(text.split())


def _normal(word: str) -> str:
    if word.isascii():
        return word
    pieces = (word[start : start + _WORD_CHARS] for start in range(0, len(word), _WORD_CHARS))
    return "".join(unicodedata.normalize("NFKC", piece) for piece in pieces)


def _near(quote: str, read: list[tuple[int, str]]) -> int | None:
    """Return the entry with a passage that differs from the quote in at most 10 % of the characters."""
    windows = 0
    for anchor, offset in _anchors(quote):
        for seq, text in read:
            window = _window(quote, text, anchor, offset)
            if window is None:
                continue
            if edit_distance(quote, window[1]) <= int(len(quote) * NEAR):
                return seq
            windows += 1
            if windows >= _WINDOWS:
                return None
    return None


def _window(quote: str, text: str, anchor: str, offset: int) -> tuple[int, str] | None:
    """Return where in a text a quote may nearly stand, by a piece of it: the beginning, and the text from there."""
    at = text.find(anchor)
    if at < 0:
        return None
    most, begin = int(len(quote) * NEAR), at - offset
    start = max(begin - most, 0)
    return start, text[start : max(begin, 0) + len(quote) + most]


def _anchors(quote: str) -> list[tuple[str, int]]:
    """Return pieces of a quote, spread over it, with their offsets: one of them is likely to be exact."""
    length = min(_ANCHOR_CHARS, max(len(quote) // (_ANCHORS + 1), 1))
    step = max((len(quote) - length) // max(_ANCHORS - 1, 1), 1)
    starts = dict.fromkeys(min(number * step, len(quote) - length) for number in range(_ANCHORS))
    return [(quote[start : start + length], start) for start in starts]


def edit_distance(pattern: str, text: str) -> int:
    """Return the smallest edit distance between `pattern` and a piece of `text`."""
    return _closest_end(pattern, text)[0]


def _closest_end(pattern: str, text: str) -> tuple[int, int]:
    """Return the distance to the piece of `text` that is closest to `pattern`, and its end (Myers' bit vectors)."""
    length = len(pattern)
    if not length:
        return 0, 0
    where: dict[str, int] = {}
    for number, char in enumerate(pattern):
        where[char] = where.get(char, 0) | 1 << number
    full, last = (1 << length) - 1, 1 << (length - 1)
    more, less, score = full, 0, length
    best, end = score, 0
    for at, char in enumerate(text, 1):
        equal = where.get(char, 0)
        vertical = equal | less
        diagonal = (((equal & more) + more) ^ more) | equal
        up = less | (full & ~(diagonal | more))
        down = more & diagonal
        if up & last:
            score += 1
        elif down & last:
            score -= 1
        up = up << 1 & full  # a match may begin anywhere: no cost to the left of the pattern
        down = down << 1 & full
        more = down | (full & ~(vertical | up))
        less = up & vertical
        if score < best:
            best, end = score, at
    return best, end


# -- the place of a quote in a text -----------------------------------------------------------------------------------


class TextSpan(NamedTuple):
    """A piece of a text, by its offsets."""

    start: int
    end: int


class NormalText:
    """A text as quotes are compared with it (`normalize`), and the way back to the text as it is."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.text = normalize(text)

    @cached_property
    def _words(self) -> list[tuple[int, str, TextSpan]]:
        """Each word of the normalized text: its offset there, itself, and where it stands in the text."""
        words: list[tuple[int, str, TextSpan]] = []
        length = 0
        for match in _WORD.finditer(self._text):
            for word in normalize(match[0]).split():
                words.append((length, word, TextSpan(*match.span())))
                length += len(word) + 1
        return words

    def original(self, start: int, end: int) -> TextSpan:
        """Return where a piece of the normalized text, which is not empty, stands in the text itself."""
        return TextSpan(self._offset(start).start, self._offset(end - 1).end)

    def _offset(self, at: int) -> TextSpan:
        """Return where a normalized character stands in the text; its whole word where that is not known."""
        start, word, span = self._words[bisect_right(self._words, at, key=itemgetter(0)) - 1]
        pieces = list(_PIECE.finditer(self._text, span.start, span.end))
        normalized = [normalize(piece[0]) for piece in pieces]
        if "".join(normalized) != word:
            return span
        left = at - start
        for piece, normal in zip(pieces, normalized, strict=True):
            if left < len(normal):
                return TextSpan(*piece.span())
            left -= len(normal)
        return span


def find_quote(quote: str, text: NormalText) -> list[TextSpan]:
    """Return where a normalized quote stands in a text, at most `PLACES_MOST` times."""
    spans: list[TextSpan] = []
    at = text.text.find(quote)
    while at >= 0 and len(spans) < PLACES_MOST:
        spans.append(text.original(at, at + len(quote)))
        at = text.text.find(quote, at + len(quote))
    return spans


def find_near_quote(quote: str, text: NormalText) -> TextSpan | None:
    """Return the place of the piece that differs from a normalized quote in at most 10 % of the characters."""
    most = int(len(quote) * NEAR)
    for anchor, offset in _anchors(quote):
        place = _window(quote, text.text, anchor, offset)
        if place is None:
            continue
        begin, window = place
        distance, end = _closest_end(quote, window)
        if distance <= most and end:
            _distance, back = _closest_end(quote[::-1], window[:end][::-1])
            return text.original(begin + end - max(back, 1), begin + end)
    return None
