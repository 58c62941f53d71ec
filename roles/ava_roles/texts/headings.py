"""Headings at the beginning of a text file, read without a parser: they say by what chance a file has an answer."""

from __future__ import annotations

import html
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator

HEADINGS_BYTES = 4_096
"""How much of a file is looked at for its headings."""

_ELEMENT = re.compile(r"<(title|h[12])\b[^<>]{0,200}>(.{0,300}?)</\1", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^<>]{0,200}>")
_MARKED = re.compile(r"#{1,2}[ \t]+(.{1,300})")
_UNDERLINE = re.compile(r"(?:={3,}|-{3,}|~{3,})\s*")


def headings_of(head: bytes) -> list[str]:
    """Return the title and the headings of the first two levels that the first bytes of a text have.

    They are elements of HTML, which Markdown may have too, lines marked as in Markdown, underlined ones, and the first.
    """
    codec = "utf-16" if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8"
    text = head.decode(codec, "replace").lstrip("\ufeff")
    elements = [_plain(match[2]) for match in _ELEMENT.finditer(text)]
    return [*elements, *_headings_of_lines(text.splitlines())]


def _headings_of_lines(lines: list[str]) -> Iterator[str]:
    previous = ""
    is_first = True
    for line in lines:
        text = line.strip()
        marked = _MARKED.match(line)
        if marked is not None:
            yield marked[1]
        elif previous and _UNDERLINE.fullmatch(line):
            yield previous
        elif is_first and text and not text.startswith("<"):
            yield line[:300]
        if text:
            is_first = False
        previous = text[:300]


def _plain(markup: str) -> str:
    return html.unescape(_TAG.sub(" ", markup)).strip()
