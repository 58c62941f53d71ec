"""Web pages as text: HTML as Markdown, PDF by pages; and robots.txt. Reading blocks, and trusts no byte of a page."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from ava_roles.errors import AccessRefused, NotRequested, ToolFailed
from ava_roles.net.addresses import masked
from ava_roles.net.fetch import ROBOTS_NAME, Fetcher
from ava_roles.threads import run_sync
from ava_roles.tools import documents

if TYPE_CHECKING:
    from protego import Protego

    from ava_roles.net.fetch import Response


_CACHE_S = 3_600.0
_RETRY_S = 60.0  # an unreachable site may be back soon
_MAX_SITES = 500
_MAX_BYTES = 500_000  # RFC 9309 section 2.5: at least 500 KiB must be read
_DEADLINE_S = 10.0


@dataclass
class _Site:
    """The rules of one site, or why it is closed."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    until: float = float("-inf")
    rules: Protego | None = None
    closed: str | None = None


class Robots:
    """Asks each site once an hour which pages may be read.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sites: dict[str, _Site] = {}

    async def check(self, fetcher: Fetcher, url: str) -> None:
        """Return if a URL may be read.

        Raises:
            AccessRefused: The site's robots.txt excludes it, or could not be read.
        """
        parts = urlsplit(url)
        if parts.path == "/robots.txt":
            return
        origin = f"{parts.scheme}://{parts.netloc}".lower()
        site = self._sites.setdefault(origin, _Site())
        async with site.lock:
            if self._clock() >= site.until:
                await self._ask(fetcher, origin, site)
        self._forget()
        if site.closed is not None:
            raise AccessRefused(
                f"{masked(url)} is not read: the robots.txt of its site could not be read ({site.closed}), "
                "so none of its pages may be; try again later or another source"
            )
        if site.rules is not None and not await run_sync(site.rules.can_fetch, url, ROBOTS_NAME):
            raise AccessRefused(
                f"{masked(url)} is not read: the robots.txt of its site excludes it; choose another source"
            )

    async def _ask(self, fetcher: Fetcher, origin: str, site: _Site) -> None:
        """Fetch the rules; 4xx means no rules, and 5xx or no answer means that the site is closed."""
        from protego import Protego

        site.rules = site.closed = None
        retry_s = _RETRY_S
        try:
            got = await fetcher.get(f"{origin}/robots.txt", max_bytes=_MAX_BYTES, deadline_s=_DEADLINE_S)
        except ToolFailed as failed:
            site.closed = str(failed)
            # Another run may be allowed other hosts, and a request that was not made says nothing about the site.
            retry_s = 0.0 if isinstance(failed, AccessRefused | NotRequested) else retry_s
        else:
            if got.status >= 500:
                site.closed = f"status {got.status}"
            elif 200 <= got.status < 300:
                site.rules = await run_sync(Protego.parse, got.body.decode("utf-8", "replace"))
        site.until = self._clock() + (retry_s if site.closed else _CACHE_S)

    def _forget(self) -> None:
        """Drop old entries, so that a long-lived server does not collect sites."""
        if len(self._sites) > _MAX_SITES:
            now = self._clock()
            for origin in [name for name, site in self._sites.items() if site.until <= now and not site.lock.locked()]:
                del self._sites[origin]


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


_META_CHARS = 2_000  # of a title or a date
_SHORT_CHARS = 200  # an article that is shorter was probably missed, so the whole page is read
_MAX_TAGS = 100_000  # with more, finding the article takes minutes and gigabytes
_HUGE_CHARS = 2_000_000  # how much of such a page is read
_TEXTUAL = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml|toml|javascript|x-ndjson|x-yaml|sql)")


@dataclass(frozen=True)
class Page:
    """The content of a page.

    Attributes:
        text: Its text.
        title: Its title, if it has one.
        date: When it was published, `YYYY-MM-DD`, if known.
        note: What a reader must know, e.g. that it needs JavaScript.
    """

    text: str
    title: str | None = None
    date: str | None = None
    note: str | None = None


def read_page(got: Response) -> Page:
    """Return the content of a response.

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


def is_html(got: Response) -> bool:
    """Tell HTML by the stated type, or by the first bytes if no type is stated."""
    if got.content_type:
        return got.content_type in ("text/html", "application/xhtml+xml")
    return re.match(rb"\s*<(!doctype html|html|head|body)\b", got.body[:1024], re.IGNORECASE) is not None


def is_text(got: Response) -> bool:
    """Tell text by the stated type and the absence of zero bytes."""
    stated = not got.content_type or _TEXTUAL.fullmatch(got.content_type) is not None
    return stated and b"\0" not in got.body[:65_536]


def _pdf(got: Response) -> Page:
    if got.truncated:
        raise ToolFailed(f"it is a PDF of more than {len(got.body):,} bytes, too large to read")
    pdf = documents.read_pdf(got.body)
    text = "\n\n".join(f"[page {number}]\n{text}" for number, text in pdf.pages)
    note = f"only pages 1 to {len(pdf.pages)} of {pdf.total} were read" if pdf.unread else None
    if not any(text for _, text in pdf.pages):
        note = "its pages contain no text: they may be scanned images, which cannot be read here"
    return Page(text, pdf.title, None, note)


def _html(got: Response) -> Page:
    import trafilatura
    from trafilatura.settings import Document

    html = got.text()
    if html.count("<") > _MAX_TAGS:
        words, _hollow = page_words(html[:_HUGE_CHARS])
        return Page(words, note="it is very large: this is its beginning, without headings and links")
    found: Document | None = None
    try:
        text = trafilatura.extract(
            html, url=got.url, output_format="markdown", include_links=True, include_comments=False
        )
        found = trafilatura.extract_metadata(html, default_url=got.url)
    except Exception:  # the extractor has no list of its exceptions; the page's words remain
        text = None
    text = (text or "").strip()
    note = None
    if len(text) < _SHORT_CHARS:
        whole, hollow = page_words(html)
        text = whole if len(whole) > len(text) else text
        if hollow:
            note = "it seems to need JavaScript, which is not run here; look for another source"
        elif not text:
            note = "it contains no text"
    return Page(text, _text(found, "title"), _text(found, "date"), note)


def _text(found: object, name: str) -> str | None:
    value = getattr(found, name, None)
    return " ".join(value.split())[:_META_CHARS] if isinstance(value, str) and value.strip() else None
