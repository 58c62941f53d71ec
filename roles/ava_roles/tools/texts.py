"""Bytes to text, and text to pieces that fit an answer."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

_LONGEST_LINE = 4_000


def decoded(data: bytes, *, cut: bool = False) -> str | None:
    """Return the text that bytes hold, or None when they are no text.

    UTF-8 and UTF-16 with a mark are known; anything else without a zero byte is read as Windows-1252.

    Args:
        data: The bytes.
        cut: They are the beginning of something, whose last character may be cut in two.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:65_536]:
        return None
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if cut and error.start > len(data) - 4:
            return data.decode("utf-8", "ignore")
        return data.decode("cp1252", "replace")


class Window(NamedTuple):
    """A range of lines that fits an answer.

    Attributes:
        text: The lines.
        first: The number of the first one, from 1.
        last: The number of the last one; `first - 1` when there is none.
        cut: Numbers of lines that were too long and are shown in part.
    """

    text: str
    first: int
    last: int
    cut: tuple[int, ...]


def window(lines: Sequence[str], offset: int, limit: int | None, max_chars: int) -> Window:
    """Return the lines from `offset` (from 1) on that fit, at least one where there is one."""
    taken: list[str] = []
    cut: list[int] = []
    room = max_chars
    for number, line in enumerate(lines[offset - 1 :], offset):
        if limit is not None and len(taken) >= limit:
            break
        if len(line) > _LONGEST_LINE:
            line = line[:_LONGEST_LINE]
            cut.append(number)
        if taken and len(line) + 1 > room:
            break
        room -= len(line) + 1
        taken.append(line)
    return Window("\n".join(taken), offset, offset + len(taken) - 1, tuple(cut))
