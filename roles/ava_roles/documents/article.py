"""The article of a web page, with headings and links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ava_roles.tools.pages import WebPage

if TYPE_CHECKING:
    from trafilatura.settings import Document

_META_CHARS = 2_000  # of a title or a date


def read_article(html: str, url: str) -> WebPage:
    import trafilatura

    found: Document | None = None
    try:
        text = trafilatura.extract(html, url=url, output_format="markdown", include_links=True, include_comments=False)
        found = trafilatura.extract_metadata(html, default_url=url)
    except Exception:  # the extractor has no list of its exceptions; the page's words remain
        text = None
    return WebPage((text or "").strip(), _text(found, "title"), _text(found, "date"))


def _text(found: object, name: str) -> str | None:
    value = getattr(found, name, None)
    return " ".join(value.split())[:_META_CHARS] if isinstance(value, str) and value.strip() else None
