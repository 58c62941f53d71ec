"""The form of names that people choose: labels, which say what a machine has and roles ask for, and MCP servers."""

from __future__ import annotations

import re

SERVER_NAME = re.compile(r"[A-Za-z0-9](?:_?[A-Za-z0-9-]){0,31}")
"""The form of an MCP server's name; two `_` in a row would make `mcp__server__tool` ambiguous."""
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def label(value: str) -> str:
    """Return a label.

    Raises:
        ValueError: It is not one word of at most 64 characters.
    """
    if not _LABEL.fullmatch(value):
        raise ValueError("must be labels of letters, digits, . - and _, each of at most 64 characters")
    return value
