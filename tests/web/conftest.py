"""Chromium for the tests that need a browser; without one they are skipped."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
from support.pages.card_host import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")  # not longer: while it is open, no test of this process can run an event loop
def chromium() -> Generator[Browser]:
    """A browser without windows."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root may need it
        yield browser
        browser.close()
