"""Where programs are looked for that run outside of a sandbox, or that say what is shown in one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def path_apart_from(path: str, project: Path | None) -> str:
    """Return the folders of a PATH but for those that a project brings, and those that depend on where one stands.

    npx and direnv put a project's own folders first, and what lies there was written by whoever made the project.
    """
    kept: list[str] = []
    for folder in path.split(os.pathsep):
        if Path(folder).is_absolute():
            with suppress(OSError, RuntimeError):  # a loop of links
                if project is None or not Path(folder).resolve().is_relative_to(project.resolve()):
                    kept.append(folder)
    return os.pathsep.join(kept)
