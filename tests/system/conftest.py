"""What several tests of whole processes begin with; what a test has started ends with it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.processes import end_started_from


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
def _nothing_stays(tmp_path: Path) -> Generator[None]:
    """End the background processes of the test's data roots: one that serves pages waits half an hour for a browser."""
    yield
    end_started_from(tmp_path)
