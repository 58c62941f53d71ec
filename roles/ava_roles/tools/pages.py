"""Web pages as text: HTML as Markdown, PDF by pages; and robots.txt. Reading blocks, and trusts no byte of a page."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from ava_roles.errors import AccessRefused, NotRequested, ToolFailed
from ava_roles.net.addresses import masked
from ava_roles.net.fetch import ROBOTS_NAME, Fetcher
from ava_roles.threads import run_sync
from ava_roles.tools import parser_process
from ava_roles.tools.parsers import Page, is_pdf

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


_TEXTUAL = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml|toml|javascript|x-ndjson|x-yaml|sql)")


def read_page(got: Response) -> Page:
    """Return the content of a response.

    Raises:
        ToolFailed: It is neither HTML, PDF nor text.
    """
    if is_pdf(got.body):
        return _pdf(got)
    if is_html(got):
        return parser_process.read_html(got.text(), got.url)
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
    pdf = parser_process.read_pdf(got.body)
    text = "\n\n".join(f"[page {number}]\n{text}" for number, text in pdf.pages)
    note = f"only pages 1 to {len(pdf.pages)} of {pdf.total} were read" if pdf.unread else None
    if not any(text for _, text in pdf.pages):
        note = "its pages contain no text: they may be scanned images, which cannot be read here"
    return Page(text, pdf.title, None, note)
