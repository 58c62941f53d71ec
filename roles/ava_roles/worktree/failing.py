"""The part of a test run's output that says what failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PYTEST = re.compile(r"^=+ (FAILURES|ERRORS) =+$")
_PYTEST_SUMMARY = re.compile(r"^=+ short test summary info =+$")
_UNITTEST = re.compile(r"^(FAIL|ERROR): .+ \(.+\)")
_CARGO = re.compile(r"^(failures:|error(\[E\d+\])?: .+)$")
_GO = re.compile(r"^(\s*--- FAIL: |# \S+|panic: |.+\.go:\d+:\d+: )")
_NODE = re.compile(r"^(.{0,6}failing tests:|not ok \d+ |\s+not ok \d+ )")
_JEST = re.compile(r"^\s*(FAIL\s+\S+|●\s.+)$")
_CUT = "[…]"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BEGINNINGS = (_PYTEST, _UNITTEST, _JEST, _NODE, _CARGO, _GO)


def failing_part(output: str, limit: int) -> str:
    """Return the part of an output that says what failed, at most so many characters; else its end.

    That is, from where a known test runner begins to tell of failures: the beginning of it, and the end, where it sums
    up. pytest names every failure in a few lines of its own; they come first.
    """
    text = _COLOUR.sub("", output).replace("\r\n", "\n").rstrip()
    if len(text) <= limit:
        return text
    lines = text.split("\n")
    summary = _last(lines, (_PYTEST_SUMMARY,))
    if summary is not None:
        listed = "\n".join(lines[summary:])
        first = _first(lines[:summary], (_PYTEST,))
        if first is None or len(listed) > limit * 2 // 3:
            return _both_ends(listed, limit)
        rest = limit - len(listed) - 1
        return f"{_both_ends(chr(10).join(lines[first:summary]), rest)}\n{listed}" if rest > 200 else listed
    first = _first(lines, _BEGINNINGS)
    if first is None:
        return _end(text, limit)
    return _both_ends("\n".join(lines[first:]), limit)


def _first(lines: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> int | None:
    return next((n for n, line in enumerate(lines) if any(pattern.match(line) for pattern in patterns)), None)


def _last(lines: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> int | None:
    found = _first(lines[::-1], patterns)
    return None if found is None else len(lines) - 1 - found


def _both_ends(text: str, limit: int) -> str:
    """Return a text cut in the middle, at the ends of lines where there are some."""
    if len(text) <= limit:
        return text
    room = max(0, limit - len(_CUT) - 2)
    head, tail = text[: room * 2 // 3], text[len(text) - (room - room * 2 // 3) :]
    if "\n" in head:
        head = head[: head.rindex("\n")]
    if "\n" in tail:
        tail = tail[tail.index("\n") + 1 :]
    return f"{head}\n{_CUT}\n{tail}"[:limit]


def _end(text: str, limit: int) -> str:
    """Return the end of a text."""
    if len(text) <= limit:
        return text
    tail = text[len(text) - max(0, limit - len(_CUT) - 1) :]
    if "\n" in tail[:-1]:
        tail = tail[tail.index("\n") + 1 :]
    return f"{_CUT}\n{tail}"[:limit]
