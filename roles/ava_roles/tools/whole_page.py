"""Every word of an HTML page, where the search for its article found too little."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

_HOLLOW = 30  # characters: a page with scripts and less than that shows nothing by itself
_ASKS_FOR_SCRIPTS = re.compile(
    r"(enable|activate|requires?|need|without)\s+javascript|javascript\s+(is\s+)?(required|disabled|must)"
    r"""|\bid=["']?(root|app|__next|__nuxt)["']?[\s>]""",
    re.IGNORECASE,
)
_SILENT = ("script", "style", "noscript", "template", "svg", "head", "iframe")
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption", "footer"),
        *(
            "form",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
            "header",
            "hr",
            "li",
            "main",
            "nav",
            "ol",
            "option",
            "p",
        ),
        *("pre", "section", "table", "td", "th", "tr", "ul"),
    }
)


def whole_page(html: str) -> tuple[str, bool]:
    """Return every word of a page, a line per block, and whether it is hollow: scripts would fill it."""
    lxml_html: Any = import_module("lxml.html")  # has no types
    etree: Any = import_module("lxml.etree")
    try:
        # Bytes, because lxml refuses a string that declares an encoding of its own.
        parser = lxml_html.HTMLParser(encoding="utf-8")
        tree = lxml_html.document_fromstring(html.encode("utf-8", "replace"), parser=parser)
    except (etree.LxmlError, ValueError):
        return "", False
    scripted = next(tree.iter("script"), None) is not None
    parts: list[str] = []
    # A walk, not a recursion: a page may be nested as deep as it likes.
    walk = etree.iterwalk(tree, events=("start", "end"))
    for event, element in walk:
        silent = not isinstance(element.tag, str) or element.tag in _SILENT
        if event == "start" and silent:
            walk.skip_subtree()
        else:
            if element.tag in _BLOCKS:
                parts.append("\n")
            parts.append((element.text if event == "start" else element.tail) or "")
    lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
    text = "\n".join(line for line in lines if line)
    return text, scripted and (len(text) < _HOLLOW or _ASKS_FOR_SCRIPTS.search(html) is not None)
