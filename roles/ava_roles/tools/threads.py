"""Threads for the tools' blocking work, apart from those of the store and its locks.

Anyio's default limiter is shared by the whole process: forty slow parsers would keep every read of the log waiting.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

THREADS = 8
_Result = TypeVar("_Result")
_limiters: RunVar[tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]] = RunVar("ava_tool_threads")


async def run_sync(func: Callable[..., _Result], *args: object, abandon_on_cancel: bool = True) -> _Result:
    """Run a blocking function in one of the tools' threads and return what it returns.

    A thread cannot be ended from outside. So one whose call was given up keeps its place until it is done: calls that
    time out cannot pile up more threads than there are places.

    Args:
        func: What to run; it may call `anyio.from_thread.check_cancelled`.
        *args: Its arguments.
        abandon_on_cancel: A cancelled caller goes on at once, and the function runs to its end unheard.
    """
    places, unlimited = _of_this_loop()
    loop = asyncio.get_running_loop()
    ticket = object()
    started = False

    def leave() -> None:
        with suppress(RuntimeError):  # it was given back already
            places.release_on_behalf_of(ticket)

    def work() -> _Result:
        nonlocal started
        started = True
        try:
            return func(*args)
        finally:
            with suppress(RuntimeError):  # the loop is closed, and its places are gone with it
                loop.call_soon_threadsafe(leave)

    await places.acquire_on_behalf_of(ticket)
    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=abandon_on_cancel, limiter=unlimited)
    finally:
        if not started:
            leave()


def _of_this_loop() -> tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]:
    """Return the places of this event loop and a limiter without limit; both belong to the loop that made them."""
    try:
        return _limiters.get()
    except LookupError:
        limiters = anyio.CapacityLimiter(THREADS), anyio.CapacityLimiter(math.inf)
        _limiters.set(limiters)
        return limiters
