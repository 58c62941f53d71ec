"""What several tests of whole processes begin with; what a test has started ends with it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The place of a data root, which nothing has made yet."""
    return tmp_path / "data"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty folder that runs may be given."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _all_ends(nothing_stays: None) -> None:
    """What any of these tests has started ends with it."""
