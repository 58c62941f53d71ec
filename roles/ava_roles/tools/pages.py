"""Pages: what a PDF and a web page are to the tools, and the words of a web page; `parser_process.py` reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any

from ava_extras import has_extra, load
from ava_roles.passages import split_lines

PAGE_CHARS = 200_000


@dataclass(frozen=True)
class Pdf:
    """Some pages of a PDF, each with its number (from 1) and text; `total` counts all pages.

    `unread`: the time was up before the last requested page. `before`: the text of the page before the first one: a
    secret may begin there.
    """

    pages: tuple[tuple[int, str], ...]
    total: int
    title: str | None
    unread: bool = False
    before: str = ""


def is_pdf(data: bytes) -> bool:
    return b"%PDF-" in data[:1024]


def hide_pages(pages: Sequence[tuple[int, str]], hide: Callable[[str], str]) -> list[tuple[int, str]]:
    """Return pages with their secrets hidden, even one that continues on the next page."""
    texts = ["\n".join(split_lines(text)) for _, text in pages]
    lines = iter(hide("\n".join(texts)).split("\n"))
    return [(page[0], "\n".join(islice(lines, text.count("\n") + 1))) for page, text in zip(pages, texts, strict=True)]


_HOLLOW_CHARS = 30  # a page with scripts and fewer characters shows nothing without them
_NEEDS_SCRIPTS = re.compile(
    r"(enable|activate|requires?|need|without)\s+javascript|javascript\s+(is\s+)?(required|disabled|must)"
    r"""|\bid=["']?(root|app|__next|__nuxt)["']?[\s>]""",
    re.IGNORECASE,
)
_INVISIBLE_TAGS = ("script", "style", "noscript", "template", "svg", "head", "iframe")
_BLOCK_TAG_NAMES = """
    address article aside blockquote br dd div dl dt figcaption footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol
    option p pre section table td th tr ul
"""
_BLOCK_TAGS = frozenset(_BLOCK_TAG_NAMES.split())


def page_words(html: str) -> tuple[str, bool]:
    """Return all words of a page, one line per block, and whether it needs scripts to show its content."""
    lxml_html: Any = import_module("lxml.html")  # has no types
    etree: Any = import_module("lxml.etree")
    try:
        # Bytes, because lxml refuses a string that declares its encoding.
        parser = lxml_html.HTMLParser(encoding="utf-8")
        tree = lxml_html.document_fromstring(html.encode("utf-8", "replace"), parser=parser)
    except (etree.LxmlError, ValueError):
        return "", False
    scripted = next(tree.iter("script"), None) is not None
    parts: list[str] = []
    # A walk, not a recursion: a page may be nested to any depth.
    walk = etree.iterwalk(tree, events=("start", "end"))
    for event, element in walk:
        silent = not isinstance(element.tag, str) or element.tag in _INVISIBLE_TAGS
        if event == "start" and silent:
            walk.skip_subtree()
        else:
            if element.tag in _BLOCK_TAGS:
                parts.append("\n")
            parts.append((element.text if event == "start" else element.tail) or "")
    lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
    text = "\n".join(line for line in lines if line)
    return text, scripted and (len(text) < _HOLLOW_CHARS or _NEEDS_SCRIPTS.search(html) is not None)


_SHORT_CHARS = 200  # an article that is shorter was probably missed, so the whole page is read
_MAX_TAGS = 100_000  # with more, finding the article takes minutes and gigabytes
_HUGE_CHARS = 2_000_000  # how much of such a page is read
_ONLY_WORDS = "these are all its words, without headings and links, because Ava has no extra `documents` here"


@dataclass(frozen=True)
class WebPage:
    """The content of a page; of a web page at most 200,000 characters of text.

    `date`: when it was published, `YYYY-MM-DD`, if known. `note`: what a reader must know, e.g. that it needs
    JavaScript.
    """

    text: str
    title: str | None = None
    date: str | None = None
    note: str | None = None


def read_html(html: str, url: str) -> WebPage:
    if html.count("<") > _MAX_TAGS:
        words, _hollow = page_words(html[:_HUGE_CHARS])
        return WebPage(words[:PAGE_CHARS], note="it is very large: this is its beginning, without headings and links")
    finds_articles = has_extra("documents")
    article: WebPage = load("documents").read_article(html, url) if finds_articles else WebPage("", note=_ONLY_WORDS)
    text, note = article.text, article.note
    if len(text) < _SHORT_CHARS:
        whole, hollow = page_words(html)
        text = whole if len(whole) > len(text) else text
        if hollow:
            note = "it seems to need JavaScript, which is not run here; look for another source"
        elif not text:
            note = "it contains no text"
    return WebPage(text[:PAGE_CHARS], article.title, article.date, note)
