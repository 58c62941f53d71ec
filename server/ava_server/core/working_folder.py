"""Where this process is: its working folder and its user's home, also where there is none (any more)."""

from __future__ import annotations

import os
from pathlib import Path

NOWHERE = Path(os.path.abspath(os.sep))  # noqa: PTH100 - what is asked for is the root, whatever the working folder is
"""What stands for a folder that is not there: nothing works in the root."""


def working_folder() -> Path | None:
    """Return the working folder, None where somebody has removed it."""
    try:
        return Path.cwd()
    except OSError:
        return None


def home_folder() -> Path:
    """Return the user's home; the root for a user whom this system does not know."""
    try:
        return Path.home()
    except RuntimeError:
        return NOWHERE
