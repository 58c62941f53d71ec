"""What a host and its server leave running on purpose ends with the test."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.processes import end_started_from


@pytest.fixture(autouse=True)
def _nothing_stays(tmp_path: Path) -> Generator[None]:
    """End the pages, which wait half an hour for a browser, and the host's own daemons."""
    yield
    end_started_from(tmp_path)
