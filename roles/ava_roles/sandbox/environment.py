"""The environment of child processes, and the PATH on which programs outside a sandbox are looked up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

RUN_ID = "AVA_RUN_ID"
"""`ava serve` and `ava run` refuse to start when this is set: a subagent starts no subagents."""
_REQUIRED = ("SYSTEMROOT",)
"""Programs on Windows do not find the system's libraries without it; other systems do not have it."""


def child_environment(run_id: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the whole environment of a child process of a run.

    Args:
        run_id: The run's id; without one, the child is marked as `unnamed`.
        given: More variables; they cannot override the mark.
    """
    required = {name: os.environ[name] for name in _REQUIRED if name in os.environ}
    return {**required, **(given or {}), RUN_ID: run_id or "unnamed"}


def path_outside(path: str, project: Path | None) -> str:
    """Return the absolute folders of a PATH that lie outside a project.

    npx and direnv put a project's own folders first, and whoever wrote the project wrote the programs in them.
    """
    kept: list[str] = []
    for folder in path.split(os.pathsep):
        if Path(folder).is_absolute():
            with suppress(OSError, RuntimeError):  # a loop of links
                if project is None or not Path(folder).resolve().is_relative_to(project.resolve()):
                    kept.append(folder)
    return os.pathsep.join(kept)
