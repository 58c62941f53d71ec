"""What several tests of hosts share."""

from __future__ import annotations

import pytest
from support.hosts.elicitation import ERAS


@pytest.fixture(params=ERAS, ids=["handshake era", "modern era"])
def era(request: pytest.FixtureRequest) -> str:
    """The mode of a client in each era of the protocol."""
    return str(request.param)
