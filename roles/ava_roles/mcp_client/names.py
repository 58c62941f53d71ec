"""Names of foreign tools, `mcp__server__tool`, and what a role's word for them covers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

PREFIX = "mcp__"
LONGEST = 64
"""Characters of a tool's name that every provider takes."""
SERVER_NAME = re.compile(r"[A-Za-z0-9](?:_?[A-Za-z0-9-]){0,31}")
"""A server's name; two `_` in a row would make `mcp__server__tool` ambiguous."""

_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_SUFFIX = 6


def server_of(name: str) -> str | None:
    """Return the server that a role's word for foreign tools names; None for a word that is none."""
    if not name.startswith(PREFIX):
        return None
    return name.removeprefix(PREFIX).split("__")[0]


def is_wildcard(name: str) -> bool:
    """Tell whether a role's word stands for several tools: `mcp__server`, `mcp__server__*`, `mcp__server__get_*`."""
    return name.startswith(PREFIX) and ("*" in name or "__" not in name.removeprefix(PREFIX))


def covers(word: str, name: str, tool: str) -> bool:
    """Tell whether a role's word stands for a tool.

    Args:
        word: What the role, or the spawn, says.
        name: The tool's full name, as models spell it.
        tool: As its server spells it.
    """
    if "*" in word:
        return fnmatchcase(name, word)
    if is_wildcard(word):
        return name.startswith(f"{word}__")
    return word == name or word == f"{PREFIX}{server_of(name)}__{tool}"


def full_names(server: str, tools: Iterable[str]) -> Mapping[str, str]:
    """Return for each tool of a server the name under which models know it: allowed characters, at most 64.

    What had to be changed so that it would not tell two tools apart any more, or was cut, ends in a few digits of its
    own hash, so that a name means the same tool in every run.
    """
    plain = {tool: f"{PREFIX}{server}__{_REFUSED.sub('_', tool)}" for tool in tools}
    taken: dict[str, int] = {}
    for name in plain.values():
        taken[name] = taken.get(name, 0) + 1
    found: dict[str, str] = {}
    for tool, name in plain.items():
        if len(name) > LONGEST or (taken[name] > 1 and _REFUSED.search(tool)):
            mark = hashlib.sha256(tool.encode("utf-8", "replace")).hexdigest()[:_SUFFIX]
            name = f"{name[: LONGEST - _SUFFIX - 1]}_{mark}"
        found[tool] = name
    return found
