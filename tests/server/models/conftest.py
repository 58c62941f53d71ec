"""What several tests of models begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ava_server.models.http_clients import ClientPool


@pytest.fixture
async def clients() -> AsyncIterator[ClientPool]:
    """The HTTP clients of a model, closed with the test."""
    async with ClientPool() as clients:
        yield clients
