"""What several tests of the sandbox and of documents begin with."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sandboxes.attacks import CONFINED, EVERY, needs

from ava_roles.sandbox.sandbox import Kind


@pytest.fixture(params=EVERY)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each sandbox, and none; skipped where it does not work here."""
    kind: Kind = request.param
    needs(kind)
    return kind


@pytest.fixture(params=CONFINED)
def confined(request: pytest.FixtureRequest) -> Kind:
    """Each sandbox; skipped where it does not work here."""
    kind: Kind = request.param
    needs(kind)
    return kind


@pytest.fixture
def for_all() -> Iterator[Path]:
    """A folder that every user may write to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder that a command may write to."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    """A port at which nobody may ask for anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server
