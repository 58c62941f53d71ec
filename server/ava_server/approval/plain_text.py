"""Foreign text as one line of a proposal: nothing in it can look like another line, or close its own quotation."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from pathlib import PurePath

from ava_roles.wrap import few_marks
from ava_server.core.names import QUOTES

TASK_CHARS = 120
"""Characters of a task in an approval line, a list and a table."""
COMMAND_CHARS = 2_000
"""A command line is shown completely: this is the longest that role files and calls may give."""
ENDS_CHARS, FIRST_NAME_CHARS = 20, 8
"""Characters of a path that is shown by its ends, and of the first name in it."""
_PLAIN_PATH = re.compile(r"[\w./@+=-]{1,120}", re.ASCII)
_TYPOGRAPHY = {
    ord(char): plain
    for plain, chars in {"'": "‘’‚‛ʼ′", '"': "“”„‟", "-": "‐‑‒–—―−", "...": "…"}.items()
    for char in chars
}
"""Typographic characters that a model may replace by plain ones when it repeats a line, or the other way round."""
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Characters that are invisible, though Unicode counts them among letters, marks and symbols."""


def task_excerpt(task: str) -> str:
    """Return the first 120 characters of a task as one line, cut with `…`."""
    return one_line(task, TASK_CHARS)


def one_line(text: str, most: int) -> str:
    """Return the first `most` characters of a text as one line without invisible characters, cut with `…`."""
    plain = plain_line(text[: most * 20])  # white space and invisible characters shrink; the bound keeps it fast
    if len(plain) <= most:
        return plain
    return plain[:most].rstrip() + "…"


def plain_line(text: str) -> str:
    """Return a text as one line: a name, folder or model must not look like another line of the proposal."""
    if not (text.isascii() and text.isprintable()):
        text = "".join([" " if _is_invisible(char) else char for char in text])
    return few_marks(" ".join(text.split()))


@lru_cache(maxsize=4_096)
def _is_invisible(char: str) -> bool:
    if char.isascii():
        return not char.isprintable()
    variation = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return variation or char in _INVISIBLE or unicodedata.category(char) in ("Cf", "Cc", "Cn", "Co", "Cs")


def quoted(text: str, most: int) -> str:
    """Return foreign text as one quoted line that nothing in it can close, with the number of characters left out."""
    line = plain_line(text)
    shown = one_line(text, most)
    quotation = f'"{inner_quotes(shown)}"'
    if shown == line:
        return quotation
    left_out = len(line) - len(shown.removesuffix("…"))
    if not left_out:
        return quotation
    return f"{quotation} and {left_out:,} more characters"


def inner_quotes(text: str) -> str:
    """Return a text in which nothing closes the quotation around it."""
    return text.translate(QUOTES)


def named_path(path: str, most: int = COMMAND_CHARS) -> str:
    """Return a path as the proposal shows it: in quotes unless it is plain, and complete up to `most` characters.

    What nobody sees of it is named, as `⟨U+200B⟩` is: without it, another folder would stand there.
    """
    if _PLAIN_PATH.fullmatch(path):
        return path
    return quoted(_visible(path), most)


def path_ends(path: str, most: int = ENDS_CHARS) -> str:
    """Return a path as `named_path` does; of one that is longer than `most`, its first and its last name.

    `/home/…/notes` says where a folder is and what it is called in little room. A name that is too long ends with `…`.
    """
    if len(path) <= most:
        return named_path(path)
    anchor, *names = PurePath(path).parts
    last = _visible(names.pop()) if names else ""
    first = one_line(_visible(names[0]), FIRST_NAME_CHARS) if names else ""
    between = f"{first}/…/" if len(names) > 1 else f"{first}/" if first else ""
    beginning = f"{_visible(anchor)}{between}"
    ends = beginning + one_line(last, max(most - len(beginning), FIRST_NAME_CHARS))
    return ends if _PLAIN_PATH.fullmatch(ends.replace("…", "")) else f'"{inner_quotes(ends)}"'


def _visible(path: str) -> str:
    """Return a path in which everything can be seen."""
    return _UNSEEN_BLANK.sub(_named_char, "".join(map(_seen, path)))


_UNSEEN_BLANK = re.compile(r"(?:(?<=/)|(?<= )|\A) | (?=/|\Z)")
"""A blank at an end of a name, or beside another one."""


def _seen(char: str) -> str:
    is_unseen = char != " " and (char.isspace() or _is_invisible(char))
    return f"⟨U+{ord(char):04X}⟩" if is_unseen else char


def _named_char(match: re.Match[str]) -> str:
    return f"⟨U+{ord(match[0]):04X}⟩"


def normalize_typography(line: str) -> str:
    """Return a line with plain quotes, dashes and dots, only for comparison: never show it."""
    return line.translate(_TYPOGRAPHY)
