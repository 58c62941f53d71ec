"""What goes to stderr steers no terminal, whoever's words are in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STEERS = "\x1b]0;owned\x07\x1b[2J\u202e"
FAULT = """
import logging, sys
log = logging.getLogger("ava.loop")

def fail():
    try:
        raise ValueError(sys.argv[2])
    except ValueError:
        log.exception("a run failed: %s", sys.argv[2])
"""
WAYS = {
    "a server": "from ava_server.core.shutdown import log_to_stderr\nlog_to_stderr('ava: %(message)s')\nfail()",
    "a runtime that a command opened": """
import anyio
from pathlib import Path
from ava_server.runs.owner.mode import LOOKING
from ava_server.service.runtime import open_runtime
from ava_server.config.settings import load_settings

async def main():
    async with open_runtime(load_settings(Path(sys.argv[1])), LOOKING):
        fail()
anyio.run(main)
""",
    "a fault that ends a command": """
from ava_server.cli import app

def build(_args):
    raise ValueError(sys.argv[2])
app.build = build
app.main(["status"])
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_error_text_on_stderr_contains_no_terminal_escapes(tmp_path: Path, way: str) -> None:
    code = FAULT + WAYS[way]
    command = [sys.executable, "-c", code, str(tmp_path / "data"), f"{STEERS}said"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env={**os.environ})
    assert "Traceback" in done.stderr and "ValueError: " in done.stderr and "said" in done.stderr, done.stderr
    assert not set(STEERS) & set("\x1b\x07\u202e") & set(done.stderr)
