"""Threads for the tools' blocking work, separate from those of the store and its locks.

The whole process shares anyio's default limiter: forty slow parsers would block every read of the log.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

THREADS = 8
GIVEN_UP = 24
"""The most abandoned threads that run on without a place; any further ones keep their places."""
_Result = TypeVar("_Result")


class Places(Protocol):
    """Bounds how many threads work at the same time; each has a ticket. `anyio.CapacityLimiter` is one."""

    async def acquire_on_behalf_of(self, ticket: object, /) -> None: ...

    def release_on_behalf_of(self, ticket: object, /) -> None: ...


@dataclass
class _Threads:
    """The places of one event loop, an unlimited limiter, and the number of abandoned threads."""

    places: anyio.CapacityLimiter
    unlimited: anyio.CapacityLimiter
    given_up: int = 0


_threads: RunVar[_Threads] = RunVar("ava_tool_threads")


class _Call:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._ends: list[Callable[[], None]] = []

    def add(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._ends.append(end)
            if self._over:
                end()

    def remove(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._ends.remove(end)

    def cancel(self) -> None:
        with self._lock:
            self._over = True
            for end in self._ends:
                end()


_call: ContextVar[_Call | None] = ContextVar("ava_tool_call", default=None)


@contextmanager
def ended_with_call(end: Callable[[], None]) -> Generator[None]:
    """Call `end`, which kills the process that the thread waits for, if the caller of its `run_sync` is cancelled."""
    call = _call.get()
    if call is not None:
        call.add(end)
    try:
        yield
    finally:
        if call is not None:
            call.remove(end)


async def run_sync(
    func: Callable[..., _Result], *args: object, abandon_on_cancel: bool = True, places: Places | None = None
) -> _Result:
    """Run a blocking function in one of the tools' threads and return its result.

    It takes one of eight places for short work. What may take seconds is given other `places`.

    A thread cannot be ended from outside. When its caller is cancelled, the thread runs on and frees its place, so that
    a cancelled run does not block others. At most 24 threads do so: calls that time out cannot pile up threads. The
    function may call `anyio.from_thread.check_cancelled`. With `abandon_on_cancel`, a cancelled caller continues at
    once, and the function's result is dropped. What the function has in `ended_with_call` is ended.
    """
    threads = _of_this_loop()
    if places is None:
        places = threads.places
    loop = asyncio.get_running_loop()
    ticket = object()
    call = _Call()
    started = given_up = False

    def leave() -> None:
        if given_up:
            threads.given_up -= 1
            return
        with suppress(RuntimeError):  # its place is free already
            places.release_on_behalf_of(ticket)

    def work() -> _Result:
        nonlocal started
        started = True
        _call.set(call)  # in a copy of the caller's context
        try:
            return func(*args)
        finally:
            with suppress(RuntimeError):  # the loop is closed, and its places with it
                loop.call_soon_threadsafe(leave)

    await places.acquire_on_behalf_of(ticket)
    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=abandon_on_cancel, limiter=threads.unlimited)
    except anyio.get_cancelled_exc_class():
        call.cancel()
        if started and abandon_on_cancel and threads.given_up < GIVEN_UP:
            leave()
            given_up = True
            threads.given_up += 1
        raise
    finally:
        if not started:
            leave()


def _of_this_loop() -> _Threads:
    try:
        return _threads.get()
    except LookupError:
        threads = _Threads(anyio.CapacityLimiter(THREADS), anyio.CapacityLimiter(math.inf))
        _threads.set(threads)
        return threads
