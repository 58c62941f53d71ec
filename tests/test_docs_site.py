"""The pages of the docs site: every page is in its navigation, and every link leads where it is on the site."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.repository import REPOSITORY, script

SITE = script("docs_site")


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(SITE, "PAGES", tmp_path / "pages")
    SITE.gather()
    return tmp_path / "pages"


def test_every_page_is_in_the_navigation_once(pages: Path) -> None:
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "zensical.toml").read_text("utf-8"))["project"]
    named: list[str] = []
    left = list(project["nav"])
    while left:
        for place in left.pop().values():
            if isinstance(place, str):
                named.append(place)
            else:
                left.extend(place)
    assert sorted(named) == sorted(path.relative_to(pages).as_posix() for path in pages.rglob("*.md"))


def test_every_link_stays_among_the_pages_or_has_an_address(pages: Path) -> None:
    for page in pages.rglob("*.md"):
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text("utf-8")):
            if not re.match(r"[a-z]+:", target):
                place = (page.parent / target).resolve()
                assert place.is_relative_to(pages) and place.exists(), f"{page.name} points to {target}"
    assert f"]({SITE.ADDRESS}/benchmarks/agentdojo/README.md)" in (pages / "security.md").read_text("utf-8")
    assert "](changelog.md)" in (pages / "comparison.md").read_text("utf-8")
    assert "](pictures/overview-light-800.webp)" in (pages / "browser.md").read_text("utf-8")
