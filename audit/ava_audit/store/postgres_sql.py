"""SQL of this package as Postgres reads it."""

from __future__ import annotations

import re
from functools import lru_cache

_COMMENT = re.compile(r"--[^\n]*")
_TEXT = re.compile(r"('(?:[^']|'')*')")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\?"), "%s"),
    (re.compile(r"(?<!:):([a-z_]+)"), r"%(\1)s"),
    (re.compile(r"(?<![\w)])(\s*)\+(?=[a-z_])"), r"\1"),  # hints for SQLite's planner
    (re.compile(r"\bCROSS JOIN (\w+(?: AS \w+)?) ON\b"), r"JOIN \1 ON"),
    (re.compile(r"\bLIKE\b"), "ILIKE"),  # SQLite's LIKE ignores case
)


@lru_cache(maxsize=2_000)
def translate(sql: str) -> str:
    """Return a statement with psycopg's placeholders, and without hints for SQLite's planner."""
    parts = _TEXT.split(_COMMENT.sub("", sql).replace("%", "%%"))
    for place in range(0, len(parts), 2):  # the others are texts in quotes
        for pattern, by in _RULES:
            parts[place] = pattern.sub(by, parts[place])
    return "".join(parts)
