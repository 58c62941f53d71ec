"""What several tests of the sandbox and of documents begin with."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sandboxes.attacks import CONFINED, EVERY, needs

from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import Kind
from ava_roles.tool import ToolContext


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


@pytest.fixture
def at(tmp_path: Path) -> Iterator[ToolContext]:
    """What tools get that list, search and read files: a workspace with ignored files and a link out of it."""
    files = {
        "src/main.py": "import os\n\ndef Main():\n    return os.getcwd()\n",
        "src/util.ts": "export const main = 1\n",
        "docs/guide.md": "# Guide\n\nThe main thing is the pump.\n",
        "build/out.py": "main generated\n",
        "src/debug.log": "main log\n",
        "src/keep.log": "main kept\n",
        ".gitignore": "build/\n*.log\n",
        "src/.gitignore": "!keep.log\n",
        ".git/config": "main = git\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "src" / "blob.bin").write_bytes(b"main\0\1\2")
    (tmp_path / "outside").symlink_to("/etc")
    root = Root.open(tmp_path)
    yield ToolContext(files=root)
    root.close()
