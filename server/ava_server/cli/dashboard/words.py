"""Words on the screen: whatever others wrote stands there as it is read, and neither steers nor colours anything."""

from __future__ import annotations

from rich.text import Text

from ava_roles.wrap import clean


def foreign(text: str) -> str:
    """Return text of whoever it may be as one line without what could steer a terminal."""
    return clean(text)[0].replace("\n", " ").replace("\t", " ")


def joined(*parts: str | tuple[str, str]) -> Text:
    """Return a line of parts, each a text, or a text and its style; nothing in them is read as markup."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for part in parts:
        words, style = (part, "") if isinstance(part, str) else part
        line.append(foreign(words), style or None)
    return line


def fitted(line: Text, width: int) -> Text:
    """Return a line that takes at most so many columns; where something is missing it ends with `…`."""
    short = line.copy()
    short.truncate(width, overflow="ellipsis")
    return short


def both_ends(left: Text, right: str, width: int) -> Text:
    """Return a line with something at its right end; what is left of it is cut where both do not fit."""
    short = fitted(left, max(width - len(right) - 1, 1))
    return Text.assemble(short, " " * max(width - short.cell_len - len(right), 1), (right, "dim"))
