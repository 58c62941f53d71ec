"""What a host of these tests has started ends with its test."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.processes import end_started_from


@pytest.fixture(autouse=True)
def _nothing_stays(tmp_path: Path) -> Generator[None]:
    """End the background processes of the test's data roots: one that serves pages waits half an hour for a browser."""
    yield
    end_started_from(tmp_path)
