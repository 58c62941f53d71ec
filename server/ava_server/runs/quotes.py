"""Quotes, checked: does each stand in what the tools of the run returned?

Pure, and bounded by construction, because both sides of the comparison are written by strangers: an exact test for
every quote, and for the first ones that fail it a look at a few passages, whose cost is windows times length.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from ava_audit.events import ToolResult
from ava_server.runs.submit import Finding

NEAR = 0.1
"""The share of a quote's characters that may have to be changed, added or left out for it to be `near`."""
NEAR_CHARS = 600
"""A longer quote is found as it stands, or not at all."""
NEAR_FINDINGS = 50
"""Findings that are looked at for `near`; the others get the exact test only."""
LEAST = 4
"""Bytes of letters and digits without which a quote is none: `a` stands everywhere, and shows nothing."""
_OPENING = re.compile(r"<(tool_output_[0-9A-Za-z]{8,64})\b")
_WINDOWS = 6  # passages that one quote is compared with
_ANCHORS = 4  # pieces of a quote by which such passages are looked for
_ANCHOR_CHARS = 24
_WORD_CHARS = 1_000
_OUTPUT_CHARS = 100_000  # one character may become 18 by NFKC
_MARKS = str.maketrans(dict.fromkeys("“”„«»‟″", '"') | dict.fromkeys("‘’‚‹›‛′´ʼ`", "'"))


def check_quotes(
    findings: Sequence[Finding], outputs: Iterable[tuple[int, ToolResult]], *, near: bool = True
) -> list[dict[str, Any]]:
    """Look each quote up in the stored tool outputs of its run. Blocks: call it in a thread.

    An output counts when it names what was read: notes, saved files and an empty search say only what the subagent
    itself put into them. Of such an output counts what the tool brought, not the words that Ava put around it. A quote
    of next to nothing is not found anywhere.

    Args:
        findings: What the subagent claims, in its order.
        outputs: The `seq` and fact of each tool result.
        near: Look for quotes that are nearly there, too; without, it is quick enough for a command of the store.

    Returns:
        For each finding with a quote its number, from 1, and a verdict: `found` (with the entry), `near` (at most
        10 % of its characters differ), `not_found`. The quote itself stands in the finding, with all other words of
        the subagent.
    """
    quotes = [(number, even(finding.quote)) for number, finding in enumerate(findings, 1) if finding.quote]
    if not quotes:
        return []
    read = [(seq, even(brought(fact.output))[:_OUTPUT_CHARS]) for seq, fact in outputs if fact.success and fact.sources]
    verdicts: list[dict[str, Any]] = []
    looked = 0
    for number, quote in quotes:
        if not _says_something(quote):
            verdicts.append({"finding": number, "verdict": "not_found"})
            continue
        seq, verdict = next((seq for seq, text in read if quote in text), None), "found"
        if seq is None and near and len(quote) <= NEAR_CHARS and looked < NEAR_FINDINGS:
            looked += 1
            seq, verdict = _near(quote, read), "near"
        verdicts.append(
            {"finding": number, "verdict": "not_found"}
            if seq is None
            else {"finding": number, "verdict": verdict, "event": seq}
        )
    return verdicts


def brought(output: str) -> str:
    """Return what a tool brought, without the wrapper and the notes that the model is shown with it.

    What was read back has two wrappers, or the end of one; they are known by the run's own word in their names.
    """
    opening = _OPENING.match(output)
    if opening is None:
        return output
    begin, end = 0, len(output)
    for tag in re.finditer(rf"(?:<|&lt;)(/?){opening[1]}\b[^>]*>", output):  # nobody else knows this name
        if not tag[1]:
            begin, end = tag.end(), len(output)
        elif end == len(output):
            end = tag.start()
    return output[begin:end].strip("\n")


def _says_something(quote: str) -> bool:
    return sum(len(char.encode("utf-8", "replace")) for char in quote if char.isalnum()) >= LEAST


def even(text: str) -> str:
    """Return text with compatible forms (NFKC), white space and quote marks made equal.

    `&lt;` is what stands in an output for a `<` that could have been taken for one of our tags.
    """
    text = text.replace("&lt;", "<")
    if not text.isascii():
        # Word by word: over one long run of combining marks normalising takes the square of its length.
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
    """Return the entry with a passage that differs from the quote in at most 10 % of its characters."""
    most = int(len(quote) * NEAR)
    windows = 0
    for anchor, offset in _anchors(quote):
        for seq, text in read:
            at = text.find(anchor)
            if at < 0:
                continue
            begin = at - offset
            window = text[max(begin - most, 0) : max(begin, 0) + len(quote) + most]
            if distance(quote, window) <= most:
                return seq
            windows += 1
            if windows >= _WINDOWS:
                return None
    return None


def _anchors(quote: str) -> list[tuple[str, int]]:
    """Return pieces of a quote, spread over it, and where they stand: one of them is likely to be as it was read."""
    length = min(_ANCHOR_CHARS, max(len(quote) // (_ANCHORS + 1), 1))
    step = max((len(quote) - length) // max(_ANCHORS - 1, 1), 1)
    starts = dict.fromkeys(min(number * step, len(quote) - length) for number in range(_ANCHORS))
    return [(quote[start : start + length], start) for start in starts]


def distance(pattern: str, text: str) -> int:
    """Return how many characters must change to make `pattern` of some piece of `text` (Myers' bit vectors).

    One step of integer arithmetic for each character of the text.
    """
    length = len(pattern)
    if not length:
        return 0
    where: dict[str, int] = {}
    for number, char in enumerate(pattern):
        where[char] = where.get(char, 0) | 1 << number
    full, last = (1 << length) - 1, 1 << (length - 1)
    more, less, score = full, 0, length
    best = score
    for char in text:
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
        best = min(best, score)
    return best
