"""What a host of these tests has started ends with its test."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _all_ends(nothing_stays: None) -> None:
    """What any of these tests has started ends with it."""
