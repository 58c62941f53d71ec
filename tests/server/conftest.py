"""What several tests of the server begin with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.hosts.elicitation import ERAS
from support.sandboxes.attacks import needs_confinement

from ava_server.config.keys import key_variables


@pytest.fixture(params=ERAS, ids=["handshake era", "modern era"])
def era(request: pytest.FixtureRequest) -> str:
    """The mode of a client in each era of the protocol."""
    return str(request.param)


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A machine that can confine commands; elsewhere the test is skipped."""
    needs_confinement(tmp_path_factory.mktemp("state"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty data root."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without keys of model providers and search engines."""
    for name in key_variables(os.environ):
        monkeypatch.delenv(name)
