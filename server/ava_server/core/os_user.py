"""The name of the user of the operating system, in whose name runs are approved and paid."""

from __future__ import annotations

import getpass
import os


def os_user() -> str:
    """Return the user's name, else its number: a container's user may have no name, and Windows no list of them."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):  # OSError from Python 3.13 on
        number = getattr(os, "getuid", None)
        return f"uid-{number()}" if number is not None else "user"
