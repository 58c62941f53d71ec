"""What is left of a secret that was cut: looked for in what a call brought that the secret was put into.

`redact.py` finds a value as a whole. A server that answers with what it was sent may be cut anywhere, by a size limit
or by itself: then pieces of the value are all that there is.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from ava_audit.redaction.redact import written_forms

LONGEST_PIECE = 8
_SHORTEST_PIECE, _SHORTEST_END = 5, 3


def hide_pieces(text: str, name: str, value: str) -> tuple[str, int]:
    """Return the text with every piece of a value replaced, and how many places were.

    A piece has 8 characters, of a value under 16 half as many as it has and at least 5; where the text ends, 3 from
    the value's beginning are enough. Looked for in the forms of `redact.py`, in HTML and in hexadecimal digits.
    """
    size = min(LONGEST_PIECE, max(_SHORTEST_PIECE, len(value) // 2))
    written = {*written_forms(value), *_further_forms(value)}
    pieces = {form[at : at + size] for form in written for at in range(len(form) - size + 1)}
    starts = [at for at in range(len(text) - size + 1) if text[at : at + size] in pieces]
    spans: list[tuple[int, int]] = []
    for start in starts:
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], start + size)
        else:
            spans.append((start, start + size))
    covered = spans[-1][1] if spans else 0
    for length in range(size - 1, _SHORTEST_END - 1, -1):
        if covered <= len(text) - length and any(text.endswith(form[:length]) for form in written):
            spans.append((len(text) - length, len(text)))
            break
    parts: list[str] = []
    done = 0
    for start, end in spans:
        parts += (text[done:start], f"[redacted:{name}]")
        done = end
    return "".join((*parts, text[done:])), len(spans)


def _further_forms(value: str) -> Iterator[str]:
    yield html.escape(value)
    digits = value.encode("utf-8", "surrogatepass").hex()
    yield from (digits, digits.upper())
