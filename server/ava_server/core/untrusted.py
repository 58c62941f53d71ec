"""The door for text that others send: who may send it and how long it is come first; then its secrets are hidden.

The search for secrets computes, and Python computes in one thread at a time. So a long text is searched in a thread, in
pieces between which the event loop has its turn, by few threads at once, and only until a deadline or its caller's end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

T = TypeVar("T")
SHORT_CHARS = 8_192
"""A shorter text is searched at once: that takes a few milliseconds at most."""
HIDE_WITHIN_S = 20.0
_AT_ONCE = 2
_limiter = RunVar[anyio.CapacityLimiter]("hiding")
_SHOWN_CHARS, _SHOWN_ITEMS = 200, 20


async def hide_apart(work: Callable[[], T], chars: int, within_s: float = HIDE_WITHIN_S, *, waits: bool = True) -> T:
    """Do work that searches so many characters for secrets, without stopping others.

    It `waits` until few others search, unless it has to be done at once. Raises TimeoutError if it was not done within
    `within_s` seconds.
    """
    if chars <= SHORT_CHARS:
        return work()
    if not waits:
        with anyio.fail_after(within_s):
            return await anyio.to_thread.run_sync(work)
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_AT_ONCE)
        _limiter.set(limiter)
    with anyio.fail_after(within_s):
        return await anyio.to_thread.run_sync(work, limiter=limiter)


def count_chars(value: Any) -> int:
    """Return the characters of the texts in JSON, of its names too; everything else counts as one."""
    chars, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            chars += len(each)
            continue
        chars += 1
        if isinstance(each, Mapping):
            members = cast("Mapping[Any, Any]", each)
            left += [*members.keys(), *members.values()]
        elif isinstance(each, list | tuple):
            left += cast("list[Any]", each)
    return chars


def shorten(value: Any) -> Any:
    """Return JSON with the beginnings of its texts and its first members: what is told of a call that is refused."""
    if isinstance(value, str):
        return value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "…"
    if isinstance(value, Mapping):
        members = list(cast("Mapping[Any, Any]", value).items())[:_SHOWN_ITEMS]
        return {shorten(str(name)): shorten(each) for name, each in members}
    if isinstance(value, list | tuple):
        return [shorten(each) for each in cast("list[Any]", value)[:_SHOWN_ITEMS]]
    return value
