"""Untrusted Markdown, parsed. What shows it decides how: a terminal draws it, a page makes HTML of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it.token import Token

_FENCE = re.compile(r"`{3,}")


def as_markdown(output: object) -> str:
    """Return text as it is, anything else as JSON in a fence longer than any inside."""
    if isinstance(output, str):
        return output
    text = json.dumps(output, ensure_ascii=False, indent=2)
    fence = max((found[0] for found in _FENCE.finditer(text)), key=len, default="``") + "`"
    return f"{fence}json\n{text}\n{fence}"


def parse(text: str) -> list[Token]:
    """Return the tokens of a text that a subagent wrote, with names as written: `__init__.py` has no emphasis.

    What looks like HTML is text, because words would be missing without it.
    """
    from markdown_it import MarkdownIt  # not needed for a result that is not drawn, as in a pipe

    tokens = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table").parse(text)
    for token in tokens:
        token.children = [_as_written(each) for each in token.children] if token.children else token.children
    return tokens


def _as_written(token: Token) -> Token:
    from markdown_it.token import Token

    if token.type == "softbreak":
        return Token("hardbreak", "br", 0)
    if token.markup.startswith("_"):
        return Token("text", "", 0, content=token.markup)
    return token
