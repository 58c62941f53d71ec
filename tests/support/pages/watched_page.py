"""A page in Chromium that notes whatever a page of ours must not do."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from support.pages.browser import There

if TYPE_CHECKING:  # not everybody has it
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request


@dataclass
class Watched:
    """A page, errors of its scripts, console and security policy, requests to other hosts, and dialogs."""

    page: Page
    base: str
    errors: list[str] = field(default_factory=list[str])
    foreign: list[str] = field(default_factory=list[str])
    dialogs: list[str] = field(default_factory=list[str])

    def open(self, path: str) -> Page:
        self.page.goto(self.base + path)
        return self.page

    def assert_clean(self, *, but: str = "\0") -> None:
        """Nothing has happened that must not; `but` is in the errors that a test has caused itself."""
        assert not [each for each in self.errors if but not in each]
        assert not self.foreign and not self.dialogs
        assert self.page.evaluate("window.hacked") is None


@contextmanager
def watch_page(
    browser: Browser, base: str, cookie: tuple[str, str] | None = None, **options: Any
) -> Generator[Watched]:
    """A window of its own, signed in where there is a cookie (its name and its value)."""
    context = browser.new_context(**options)
    context.set_default_timeout(20_000)
    if cookie is not None:
        context.add_cookies(
            [{"name": cookie[0], "value": cookie[1], "url": base, "httpOnly": True, "sameSite": "Strict"}]
        )
    seen = Watched(context.new_page(), base)

    def console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            seen.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def request(sent: Request) -> None:
        if urlsplit(sent.url).netloc != urlsplit(base).netloc:
            seen.foreign.append(sent.url)

    def opened(dialog: Dialog) -> None:
        seen.dialogs.append(dialog.message)
        dialog.dismiss()

    seen.page.on("console", console)
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    seen.page.on("request", request)
    seen.page.on("dialog", opened)
    try:
        yield seen
    finally:
        context.close()


def open_window(browser: Browser, there: There, **options: Any) -> AbstractContextManager[Watched]:
    """Open a window of somebody who has signed in."""
    cookie = (f"ava-{there.server.port}", there.signed_in().cookie)
    return watch_page(browser, there.base, cookie, **options)
