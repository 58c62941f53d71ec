"""How many columns a text takes on a screen."""

from __future__ import annotations

import unicodedata
from functools import lru_cache


def cells(text: str) -> int:
    """Return the most columns that a text takes: wide characters take two, combining ones none.

    Terminals differ on some characters; the wider counts, because what is measured too narrow would be continued at the
    start of the next row, where it can pass for a line of Ava's.
    """
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


@lru_cache(maxsize=4_096)
def _cells_of(char: str) -> int:
    from rich.cells import cell_len  # not needed to read the command line

    if unicodedata.combining(char):
        return 0
    if unicodedata.east_asian_width(char) in "WF":
        return 2
    return max(cell_len(char), 1)
