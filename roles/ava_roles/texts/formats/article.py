"""The article of a web page, with headings and links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ava_roles.texts.web_page import WebPage

if TYPE_CHECKING:
    from trafilatura.settings import Document

_META_CHARS = 2_000  # of a title or a date


def read_article(html: str, url: str) -> WebPage:
    import trafilatura

    metadata: Document | None = None
    try:
        text = trafilatura.extract(html, url=url, output_format="markdown", include_links=True, include_comments=False)
        metadata = trafilatura.extract_metadata(html, default_url=url)
    except Exception:  # the extractor has no list of its exceptions; the page's words remain
        text = None
    return WebPage((text or "").strip(), _text(metadata, "title"), _text(metadata, "date"))


def _text(metadata: object, name: str) -> str | None:
    value = getattr(metadata, name, None)
    if not isinstance(value, str):
        return None
    return " ".join(value.split())[:_META_CHARS] or None
