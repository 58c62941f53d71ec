"""What a reader says beside the words of a line, such as the mark of a comment, and where in the line it is put."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ava_roles.texts.passages import UNSPACED

_REST_OF_WORD = re.compile(rf"(?:[^\W{UNSPACED}]|[\u00ad\u0300-\u036f])*")


class Aside(str):
    """A piece of a line that is none of its words: the mark of a comment, or the address to which a word leads."""

    __slots__ = ()


def join_line(pieces: Iterable[str]) -> str:
    """Return the pieces of a line as one text. An aside within a word comes behind it, so that the word stays whole.

    Nothing tells where a word ends in Chinese, Japanese and Thai: there it stays where it is.
    """
    joined: list[str] = []
    asides: list[str] = []  # which wait for the end of a word
    last = ""
    for piece in pieces:
        if isinstance(piece, Aside):
            asides.append(piece)
            continue
        if not piece:
            continue
        end = 0
        if asides and _is_in_word(last):
            end = _rest_of_word(piece)
        joined.append(piece[:end])
        if end < len(piece):
            joined += asides
            asides.clear()
            joined.append(piece[end:])
        last = piece[-1]
    return "".join([*joined, *asides])


def _is_in_word(char: str) -> bool:
    return char != "" and _rest_of_word(char) == 1


def _rest_of_word(text: str) -> int:
    match = _REST_OF_WORD.match(text)
    return match.end() if match else 0
