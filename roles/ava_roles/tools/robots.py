"""What a site's robots.txt says to us (RFC 9309), kept for an hour."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.net.fetch import ROBOTS_NAME, Fetcher
from ava_roles.net.urls import masked
from ava_roles.tools.threads import run_sync

if TYPE_CHECKING:
    from protego import Protego

_KEPT_S = 3_600.0
_RETRY_S = 60.0  # an unreachable one may be back soon
_SITES_KEPT = 500
_BYTES_MAX = 500_000  # RFC 9309 section 2.5: at least 500 KiB must be read
_DEADLINE_S = 10.0


@dataclass
class _Site:
    """What is known of one site: the rules, or why there are none."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    until: float = float("-inf")
    rules: Protego | None = None
    closed: str | None = None


class Robots:
    """Asks each site once an hour what may be read.

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
                "and then nothing may be; try again later or another source"
            )
        if site.rules is not None and not await run_sync(site.rules.can_fetch, url, ROBOTS_NAME):
            raise AccessRefused(
                f"{masked(url)} is not read: the robots.txt of its site excludes it; choose another source"
            )

    async def _ask(self, fetcher: Fetcher, origin: str, site: _Site) -> None:
        """Fetch the rules; 4xx means that there are none, no answer or 5xx that everything is closed."""
        from protego import Protego

        site.rules = site.closed = None
        try:
            got = await fetcher.get(f"{origin}/robots.txt", max_bytes=_BYTES_MAX, deadline_s=_DEADLINE_S)
        except ToolFailed as failed:
            site.closed = str(failed)
        else:
            if got.status >= 500:
                site.closed = f"status {got.status}"
            elif 200 <= got.status < 300:
                site.rules = await run_sync(Protego.parse, got.body.decode("utf-8", "replace"))
        site.until = self._clock() + (_RETRY_S if site.closed else _KEPT_S)

    def _forget(self) -> None:
        """Drop what is out of date, so that a long-lived server does not collect sites."""
        if len(self._sites) > _SITES_KEPT:
            now = self._clock()
            for origin in [name for name, site in self._sites.items() if site.until <= now and not site.lock.locked()]:
                del self._sites[origin]
