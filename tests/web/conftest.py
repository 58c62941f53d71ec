"""Chromium for the tests that need a browser; without one they are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")  # not longer: while it is open, no test of this process can run an event loop
def chromium() -> Generator[Browser]:
    """A browser without windows."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    program = os.environ.get("AVA_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium is installed: `apt install chromium`, or give its path in AVA_CHROMIUM")
    with playwright.sync_playwright() as started:
        browser: Browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
