"""Who may approve is decided in one place."""

from __future__ import annotations

import re
from pathlib import Path

SERVER = Path(__file__).parents[1] / "server" / "ava_server"
READS = re.compile(r"settings(?:\(.*?\))?\.approval\b(?!_)")
"""Code that reads the general policy, which says nothing about a user's own or about the PIN."""


def test_only_one_function_reads_the_general_policy() -> None:
    readers = {
        path.relative_to(SERVER).as_posix() for path in SERVER.rglob("*.py") if READS.search(path.read_text("utf-8"))
    }
    assert readers == {"budget/user_limits.py"}
