"""Untrusted Markdown, drawn for a terminal without links or control characters.

Import it where it is needed: rich takes a fifth of a second.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from importlib.resources import files
from typing import ClassVar

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, ImageItem, Markdown, MarkdownElement
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

from ava_roles.wrap import clean
from ava_server.render.markdown import parse

_NARROWEST = 20
_STYLES = re.compile(r"\x1b\[[\d;]*m")
_BLANK = re.compile(r"\n{3,}")
_THEME = Theme.read(str(files("ava_server.cli") / "markdown.ini"))


def drawn(text: str, width: int, *, colour: bool = True) -> str:
    """Return Markdown, written by a subagent, as lines for a terminal of so many columns."""
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
    with console.capture() as capture:
        console.print(_Harmless(_Plain(clean(text)[0])))
    lines: list[str] = []
    for line in capture.get().splitlines():
        is_blank = not _STYLES.sub("", line).strip()
        lines.append("" if is_blank else line.rstrip())
    return _BLANK.sub("\n\n", "\n".join(lines)).strip("\n")


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _Code(CodeBlock):
    """Code without colours: syntax highlighting would run third-party grammars on untrusted text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Padding(Text(str(self.text).rstrip(), style="markdown.code_block"), (0, 0, 0, 2))


class _Image(ImageItem):
    """A picture as its text and its address."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{self.text.plain} ({self.destination})".strip(), end="")


class _Plain(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "image": _Image,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = parse(text)
        for token in self.parsed:
            if token.children:  # an address that stands for itself needs no second one behind it
                token.children = [each for each in token.children if each.markup != "autolink"]


class _Harmless:
    """Draws Markdown, and removes links and unseen characters from what is drawn: entities can stand for some."""

    def __init__(self, inner: Markdown) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for segment in console.render(self._inner, options):
            yield Segment(clean(segment.text)[0], segment.style.update_link(None) if segment.style else None)
