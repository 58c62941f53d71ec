"""Visitors of a team's pages, and Chromium for the tests that need a browser; without one they are skipped."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
from support.http_server import token
from support.pages.browser import There, Visitor
from support.pages.card_host import CHROMIUM, open_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")  # not longer: while it is open, no test of this process can run an event loop
def chromium() -> Generator[Browser]:
    """A browser without windows."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def ana(team: There) -> Visitor:
    """Somebody who may read what is her own."""
    return team.with_token(token(team.root, "ana", "read", name="reads"))


@pytest.fixture(scope="module")
def auditor(team: There) -> Visitor:
    """Somebody who may read what is everybody's."""
    return team.with_token(token(team.root, "carol", "audit", name="audits"))
