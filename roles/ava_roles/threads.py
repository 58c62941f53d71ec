"""Threads for the tools' blocking work, apart from those of the store and its locks.

Anyio's default limiter is shared by the whole process: forty slow parsers would keep every read of the log waiting.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

THREADS = 8
GIVEN_UP = 24
"""Threads whose call was given up and that run on without a place: more of them keep the places that they have."""
_Result = TypeVar("_Result")


@dataclass
class _Threads:
    """The places of one event loop, a limiter without limit, and how many threads run on unheard."""

    places: anyio.CapacityLimiter
    unlimited: anyio.CapacityLimiter
    given_up: int = 0


_threads: RunVar[_Threads] = RunVar("ava_tool_threads")


async def run_sync(func: Callable[..., _Result], *args: object, abandon_on_cancel: bool = True) -> _Result:
    """Run a blocking function in one of the tools' threads and return what it returns.

    A thread cannot be ended from outside. One whose call was given up runs on, and gives its place to others, so that
    a run that was cancelled keeps no other waiting; but only 24 of them do: calls that time out cannot pile up threads.

    Args:
        func: What to run; it may call `anyio.from_thread.check_cancelled`.
        *args: Its arguments.
        abandon_on_cancel: A cancelled caller goes on at once, and the function runs to its end unheard.
    """
    threads = _of_this_loop()
    loop = asyncio.get_running_loop()
    ticket = object()
    started = given_up = False

    def leave() -> None:
        if given_up:
            threads.given_up -= 1
            return
        with suppress(RuntimeError):  # it was given back already
            threads.places.release_on_behalf_of(ticket)

    def work() -> _Result:
        nonlocal started
        started = True
        try:
            return func(*args)
        finally:
            with suppress(RuntimeError):  # the loop is closed, and its places are gone with it
                loop.call_soon_threadsafe(leave)

    await threads.places.acquire_on_behalf_of(ticket)
    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=abandon_on_cancel, limiter=threads.unlimited)
    except anyio.get_cancelled_exc_class():
        if started and abandon_on_cancel and threads.given_up < GIVEN_UP:
            leave()
            given_up = True
            threads.given_up += 1
        raise
    finally:
        if not started:
            leave()


def _of_this_loop() -> _Threads:
    """Return what belongs to this event loop; its first caller makes it."""
    try:
        return _threads.get()
    except LookupError:
        threads = _Threads(anyio.CapacityLimiter(THREADS), anyio.CapacityLimiter(math.inf))
        _threads.set(threads)
        return threads
