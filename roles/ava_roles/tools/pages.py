"""What a web page says: HTML as Markdown, PDF by pages, text as it is. Blocks; takes bytes from strangers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ava_roles.errors import ToolFailed
from ava_roles.tools import documents
from ava_roles.tools.whole_page import whole_page

if TYPE_CHECKING:
    from ava_roles.net.fetch import Fetched

_THIN = 200  # characters below which the article is taken for missed, and the whole page is read
_TAGS_MAX = 100_000  # beyond, looking for the article takes minutes and gigabytes
_HUGE_CHARS = 2_000_000  # what is read of such a page
_TEXTUAL = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml|toml|javascript|x-ndjson|x-yaml|sql)")


@dataclass(frozen=True)
class Page:
    """A page, read.

    Attributes:
        text: What it says.
        title: Its title, if it has one.
        date: When it was published, `YYYY-MM-DD`, if that can be told.
        note: What a reader must know, e.g. that it needs JavaScript.
    """

    text: str
    title: str | None = None
    date: str | None = None
    note: str | None = None


def read_page(got: Fetched) -> Page:
    """Return what an answer says.

    Raises:
        ToolFailed: It is neither HTML, PDF nor text.
    """
    if documents.is_pdf(got.body):
        return _pdf(got)
    if is_html(got):
        return _html(got)
    if not is_text(got):
        raise ToolFailed(f"it is {got.content_type or 'of no stated type'} ({len(got.body):,} bytes), not text")
    return Page(got.text())


def is_html(got: Fetched) -> bool:
    """Tell HTML by what the site says; by its first bytes when it says nothing."""
    if got.content_type:
        return got.content_type in ("text/html", "application/xhtml+xml")
    return re.match(rb"\s*<(!doctype html|html|head|body)\b", got.body[:1024], re.IGNORECASE) is not None


def is_text(got: Fetched) -> bool:
    """Tell text by what the site says, and by the absence of zero bytes."""
    stated = not got.content_type or _TEXTUAL.fullmatch(got.content_type) is not None
    return stated and b"\0" not in got.body[:65_536]


def _pdf(got: Fetched) -> Page:
    if got.truncated:
        raise ToolFailed(f"it is a PDF of more than {len(got.body):,} bytes, too large to read")
    pdf = documents.read_pdf(got.body)
    text = "\n\n".join(f"[page {number}]\n{text}" for number, text in pdf.pages)
    note = f"only pages 1 to {len(pdf.pages)} of {pdf.total} were read" if pdf.unread else None
    if not any(text for _, text in pdf.pages):
        note = "its pages hold no text: they may be scanned images, which cannot be read here"
    return Page(text, pdf.title, None, note)


def _html(got: Fetched) -> Page:
    import trafilatura
    from trafilatura.settings import Document

    html = got.text()
    if html.count("<") > _TAGS_MAX:
        words, _hollow = whole_page(html[:_HUGE_CHARS])
        return Page(words, note="it is very large: these are the words of its beginning, without headings and links")
    found: Document | None = None
    try:
        text = trafilatura.extract(
            html, url=got.url, output_format="markdown", include_links=True, include_comments=False
        )
        found = trafilatura.extract_metadata(html, default_url=got.url)
    except Exception:  # a page may break the extractor in ways that nobody listed; its words remain
        text = None
    text = (text or "").strip()
    note = None
    if len(text) < _THIN:
        whole, hollow = whole_page(html)
        text = whole if len(whole) > len(text) else text
        if hollow:
            note = "it seems to need JavaScript, which is not run here; look for another source"
        elif not text:
            note = "it holds no text"
    return Page(text, _text(found, "title"), _text(found, "date"), note)


def _text(found: object, name: str) -> str | None:
    value = getattr(found, name, None)
    return " ".join(value.split())[:200] if isinstance(value, str) and value.strip() else None
