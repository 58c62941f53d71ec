"""Waiting for what one event loop can wait for and that of another system cannot: signals, and blocking reads."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

import anyio

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
