"""Markdown of a subagent as HTML: with no HTML of its own, no pictures, and each link with the address it goes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from ava_roles.wrap import clean
from ava_server.render.markdown import parse
from ava_server.render.result import UntrustedText

MOST_CHARS = 200_000
MOST_MARKS, MOST_CELLS = 20_000, 10_000
"""Most characters that may begin Markdown, and most cells of tables; a text with more is shown as it was written."""
_MARKS = "[!*_`~|<&\\"
ADDRESS_CHARS = 120
REL = "noopener noreferrer nofollow"
_BLOCKS = frozenset(("p", "h1", "h2", "h3", "h4", "h5", "h6", "li", "td", "th", "blockquote", "code"))
"""The elements that have a text direction of their own."""
_FIRST_HEADING = 3
"""The page has its own headings above those of a result."""


def is_web_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def html(text: UntrustedText) -> Markup:
    """All of the subagent's own is escaped, so a template takes it as it is."""
    shown = clean(text.text)[0]
    part = shown[:MOST_CHARS]
    if _is_heavy(part):
        made = f'<pre class="words" dir="auto">{escape(part)}</pre>'
    else:
        tokens = list(_safe_blocks(parse(part)))
        made = str(_renderer().renderer.render(tokens, _renderer().options, {}))
    left = len(shown) - MOST_CHARS
    more = f'<p class="cut">{left:,} more characters are not shown here.</p>' if left > 0 else ""
    return Markup(made + more)  # noqa: S704 - made here, from escaped text


def _is_heavy(text: str) -> bool:
    """Tell whether the parser could take seconds: a subagent may write what is made for that."""
    rows = [pipes for line in text.split("\n") if (pipes := line.count("|"))]
    return sum(map(text.count, _MARKS)) > MOST_MARKS or len(rows) * max(rows, default=0) > MOST_CELLS


@cache
def _renderer() -> MarkdownIt:
    """Colours of code and HTML of the text's own are off."""
    return MarkdownIt("commonmark", {"html": False, "langPrefix": ""}).enable("strikethrough").enable("table")


def _safe_blocks(tokens: Sequence[Token]) -> Iterable[Token]:
    # The highest level of a heading comes right below the page's own.
    used = sorted({token.tag for token in tokens if token.type == "heading_open"})
    levels = {tag: f"h{min(number, 6)}" for number, tag in enumerate(used, _FIRST_HEADING)}
    for token in tokens:
        token.content = clean(token.content)[0]
        token.attrs = {"start": token.attrs["start"]} if "start" in token.attrs else {}
        token.info = ""  # the language of code is a class else
        if token.type.startswith("heading_"):
            token.tag = levels[token.tag]
        if token.tag in _BLOCKS and token.nesting >= 0:
            token.attrs["dir"] = "auto"
        if token.type == "table_open":
            yield _raw('<div class="scroll" tabindex="0">')
        if token.children:
            token.children = list(_safe_inline(token.children))
        yield token
        if token.type == "table_close":
            yield _raw("</div>")


def _safe_inline(tokens: Sequence[Token]) -> Iterable[Token]:
    address, label = "", ""
    linked = False
    for token in tokens:
        match token.type:
            case "link_open":
                address, label = clean(str(token.attrs.get("href", "")))[0], ""
                linked = is_web_address(address)
                token.attrs = {"href": address, "rel": REL}
                if linked:
                    yield token
            case "link_close":
                if linked:
                    yield token
                if address != label:
                    yield _address(address)
            case "image":
                yield Token("text", "", 0, content=clean(token.content)[0])
                yield _address(clean(str(token.attrs.get("src", "")))[0])
            case _:
                token.content = clean(token.content)[0]
                token.attrs = {}
                label += token.content
                yield token


def short(address: str) -> str:
    """The host is always whole."""
    host_ends = address.find("/", address.find("//") + 2)
    most = max(ADDRESS_CHARS, len(address) if host_ends < 0 else host_ends + 1)
    return address if len(address) <= most else f"{address[:most]}…"


def _address(address: str) -> Token:
    return Token("html_inline", "", 0, content=f' <bdi class="address">({escape(short(address))})</bdi>')


def _raw(markup: str) -> Token:
    return Token("html_block", "", 0, content=markup)
