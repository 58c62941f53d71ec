"""Labels: what a machine has that others lack, as a word that its owner chooses and roles ask for."""

from __future__ import annotations

import re

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def label(value: str) -> str:
    """Return a label.

    Raises:
        ValueError: It is not one word of at most 64 characters.
    """
    if not _LABEL.fullmatch(value):
        raise ValueError("must be labels of letters, digits, . - and _, each of at most 64 characters")
    return value
