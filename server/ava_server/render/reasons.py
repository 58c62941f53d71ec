"""Why a run ended and what was capped, in people's words; the log, JSON and models keep the names of the arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ava_audit.units import format_duration


def _all_of(number: str, what: str) -> str:
    if number == "1":
        return f"it used its only {what}"
    return f"it used all of its {number} {what}s"


def _turns(found: re.Match[str]) -> str:
    return _all_of(found[1], "turn")


def _tool_calls(found: re.Match[str]) -> str:
    return _all_of(found[1], "tool call")


def _time(found: re.Match[str]) -> str:
    return f"its time of {format_duration(float(found[1]))} was over"


def _cap(found: re.Match[str]) -> str:
    return "its cost cap" if found[1] == "cost_cents" else "its token cap"


def _items(found: re.Match[str]) -> str:
    return f"the list has {found[1]} items, and the step takes at most {found[2]}"


_CAPS: Mapping[str, str] = {
    "max_cost_cents": "cost cap",
    "max_tokens": "token cap",
    "max_iterations": "limit of turns",
    "max_tool_calls": "limit of tool calls",
    "timeout": "time limit",
}


def _changed(found: re.Match[str]) -> str:
    return f"{_CAPS[found[1]]} {found[2]}"


_BEGINNINGS: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]] = (
    (re.compile(r"max_iterations of ([\d,]+)"), _turns),
    (re.compile(r"max_tool_calls of ([\d,]+)"), _tool_calls),
    (re.compile(r"timeout of (\d+(?:\.\d+)?) s\b"), _time),
    (re.compile(r"the run's max_(cost_cents|tokens)\b"), _cap),
    (re.compile(rf"({'|'.join(_CAPS)}) (raised|lowered)"), _changed),
    (re.compile(r"the list has ([\d,]+) items, and at_most is ([\d,]+)"), _items),
)
"""How Ava's own sentences begin that name an argument, and what gives the words in place of it."""


_LIMITS: Mapping[str, Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]] = {
    "iteration_limit": _BEGINNINGS[0:1],
    "tool_limit": _BEGINNINGS[1:2],
    "timeout": _BEGINNINGS[2:3],
}


def limit_words(state: str, reason: str) -> str:
    """Return which limit ended a run, out of Ava's own words alone; empty for other endings."""
    for beginning, words in _LIMITS.get(state, ()):
        found = beginning.match(reason)
        if found is not None:
            return words(found)
    return ""


def reason_words(reason: str) -> str:
    """Return a sentence of Ava's own without names of arguments: `it used all of its 5 turns`."""
    for beginning, words in _BEGINNINGS:
        found = beginning.match(reason)
        if found is not None:
            return words(found) + reason[found.end() :]
    return reason
