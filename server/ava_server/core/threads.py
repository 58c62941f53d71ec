"""Waiting for what one event loop can wait for and that of another system cannot: signals, and blocking reads."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

import anyio
import anyio.abc

T = TypeVar("T")


@contextmanager
def received(*numbers: signal.Signals) -> Generator[AsyncIterator[int]]:
    """Deliver signals as items to iterate over, in place of what they do by themselves."""
    if sys.platform != "win32":
        with anyio.open_signal_receiver(*numbers) as signals:
            yield signals
        return
    # The event loop of Windows knows no signals; a handler of the interpreter's wakes it.
    loop = asyncio.get_running_loop()
    send, receive = anyio.create_memory_object_stream[int](math.inf)
    before = {
        number: signal.signal(number, lambda number, _frame: loop.call_soon_threadsafe(send.send_nowait, number))
        for number in numbers
    }
    try:
        with send, receive:
            yield receive
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def read_apart(read: Callable[[], T]) -> T:
    """Do a blocking read in a thread for which nothing waits at the end: a read cannot be broken off.

    A caller that is cancelled goes on at once, and what is read then is lost.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(value)  # type: ignore[arg-type]  # there is no error, so this is what was read

    def work() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = read()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="ava-read", daemon=True).start()
    return await found


GRACE_S = 1.5
"""How long work that was told to stop may take to do so."""


async def run_apart(tasks: anyio.abc.TaskGroup, work: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """Do work in a task of `tasks`, and wait for it `timeout_s` at most.

    When the time is over, or the caller is cancelled, the work is cancelled too; if it has not stopped after
    `GRACE_S` it is left to `tasks`, and whatever it brings is lost.

    Raises:
        TimeoutError: The time is over.
    """
    done = anyio.Event()
    scope = anyio.CancelScope()
    begun = False
    brought: list[T] = []
    failed: list[Exception] = []

    async def apart() -> None:
        nonlocal begun
        begun = True
        try:
            with scope:
                brought.append(await work())
        except Exception as error:  # it is raised where the work is waited for
            failed.append(error)
        finally:
            done.set()

    tasks.start_soon(apart)
    try:
        with anyio.move_on_after(timeout_s):
            await done.wait()
        if not done.is_set():
            raise TimeoutError
    finally:
        if not done.is_set():
            scope.cancel()
            if begun:  # a task that never began never ends
                with anyio.CancelScope(shield=True), anyio.move_on_after(GRACE_S):
                    await done.wait()
    if failed:
        raise failed[0]
    return brought[0]
