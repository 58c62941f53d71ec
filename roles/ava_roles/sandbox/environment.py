"""The environment of a process that a run starts: made from nothing, because the server's is full of keys.

A host hands its server everything that it has itself, so other programs' keys stand there too; no child of a run
gets a variable that is not named here or given by whoever starts it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

RUN_ID = "AVA_RUN_ID"
"""Under this variable `ava serve` and `ava run` refuse to start: a subagent starts no subagents."""
_NEEDED = ("SYSTEMROOT",)
"""Without it no program finds the system's own libraries on Windows; other systems have nothing of the kind."""


def child_environment(run_id: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the whole environment of a child process of a run.

    Args:
        run_id: The run's id; a child of a nameless one is marked all the same.
        given: What this child needs beyond that; nothing in it takes the mark away.
    """
    needed = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    return {**needed, **(given or {}), RUN_ID: run_id or "unnamed"}
