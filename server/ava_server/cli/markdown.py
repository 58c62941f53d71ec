"""Markdown that others wrote, drawn for a terminal: without links, and without anything that steers it.

Imported where it is needed, because rich takes its time.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

from ava_roles.wrap import clean

_NARROWEST = 20
_STYLES = re.compile(r"\x1b\[[\d;]*m")
_BLANK = re.compile(r"\n{3,}")
_SCHEME = re.compile(r"\Amailto:")
_THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.code_block": "cyan",
        "markdown.block_quote": "italic",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
        "markdown.hr": "dim",
        "markdown.item.bullet": "none",
        "markdown.item.number": "none",
        **{f"markdown.h{level}": "bold" for level in range(1, 8)},
    }
)


def drawn(text: str, width: int, *, colour: bool = True) -> str:
    """Return Markdown as lines for a terminal of so many columns.

    Args:
        text: What a subagent wrote.
        width: Columns.
        colour: Colours may be used; without them there is no styling at all.
    """
    console = Console(
        file=io.StringIO(),
        width=max(_NARROWEST, width),
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        theme=_THEME,
    )
    with console.capture() as made:
        console.print(_Harmless(_Plain(clean(text)[0])))
    lines = (line if _STYLES.sub("", line).strip() else "" for line in made.get().splitlines())
    return _BLANK.sub("\n\n", "\n".join(line.rstrip() for line in lines)).strip("\n")


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _Code(CodeBlock):
    """Code as it is: colours for it would mean one of hundreds of foreign grammars on words of a model."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Padding(Text(str(self.text).rstrip(), style="markdown.code_block"), (0, 0, 0, 2))


class _Plain(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        # What looks like HTML is shown as it stands: left out, words would be missing.
        parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
        self.parsed = parser.parse(text)
        for token in self.parsed:
            if token.children:
                token.children = _without_links(token.children)


class _Harmless:
    """Draws something, and lets no link and no character through that is not seen; entities can stand for some."""

    def __init__(self, inner: Markdown) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for segment in console.render(self._inner, options):
            style = (
                segment.style.update_link(None) if segment.style is not None and segment.style.link else segment.style
            )
            yield Segment(clean(segment.text)[0], style)


def _without_links(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens of a line with each link and picture as its words and its address behind them."""
    found: list[Token] = []
    begun: list[tuple[str, int]] = []
    for token in tokens:
        if token.type == "link_open":
            begun.append((str(token.attrs.get("href", "")), len(found)))
        elif token.type == "link_close" and begun:
            address, start = begun.pop()
            words = "".join(each.content for each in found[start:])
            if address and words not in (address, _SCHEME.sub("", address)):
                found.append(_words(f" ({address})"))
        elif token.type == "image":
            found.append(_words(f"{token.content} ({token.attrs.get('src', '')})".strip()))
        else:
            found.append(token)
    return found


def _words(text: str) -> Token:
    return Token("text", "", 0, content=text)
