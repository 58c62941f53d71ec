"""A server's event loop; waiting for signals and blocking reads, on every system; work that may outlive its time."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, TypeVar

import anyio
import anyio.abc

T = TypeVar("T")
K = TypeVar("K")
U = TypeVar("U")
_computing = threading.Lock()
_LOOK_EVERY_S = 0.1


async def work_until(over: Callable[[], Awaitable[object]], work: Callable[[], Awaitable[T]], otherwise: U) -> T | U:
    """Return what some work returns, or raise its error; `otherwise` where `over` returned first and ended the work."""
    result: T | U = otherwise
    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await over()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            result = await work()
        except Exception as error:  # the task group would wrap it
            failed = error
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return result


@contextmanager
def compute_alone() -> Generator[None]:
    """Compute for long in a thread, one thread at a time: each further one would slow all runs down.

    Raises the cancellation of whoever waits for the thread.
    """
    while not _computing.acquire(timeout=_LOOK_EVERY_S):
        stop_if_cancelled()
    try:
        yield
    finally:
        _computing.release()


def stop_if_cancelled() -> None:
    """Raise the cancellation of the task that waits for this thread; does nothing in other threads."""
    from anyio import from_thread  # takes 3 ms, and most commands have no such thread

    with suppress(RuntimeError):  # not a worker thread of anyio
        from_thread.check_cancelled()


def run_server(main: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run a process that stays, in uvloop's event loop where it is installed: sockets cost it less than asyncio's."""
    try:
        import_module("uvloop")  # not for short commands: it takes some milliseconds
    except ImportError:
        return anyio.run(main, *args)
    return anyio.run(main, *args, backend_options={"use_uvloop": True})


def run_async(main: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run a short command. Its event loop wakes at every signal, also at one that arrives just before it waits.

    For that the loop must have a handler, of whatever signal: then the interpreter writes each to the loop's own socket
    (`signal.set_wakeup_fd`). Without, asyncio sees only the Ctrl-C that interrupts its wait.
    """

    async def wakeful() -> T:
        import asyncio

        if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGURG, int)  # ignored, as it is by default
        return await main(*args)

    return anyio.run(wakeful)


async def each_at_once(work: Callable[[K], Awaitable[object]], items: Iterable[K]) -> None:
    """Do work with each of some items at the same time, and with all of them; then raise the first error, if any."""
    errors: list[Exception] = []

    async def work_on(item: K) -> None:
        try:
            await work(item)
        except Exception as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for item in items:
            tasks.start_soon(work_on, item)
    if errors:
        raise errors[0]


@contextmanager
def received(*numbers: signal.Signals) -> Generator[AsyncIterator[int]]:
    """Deliver signals as items of an iterator, instead of their default action."""
    if sys.platform != "win32":
        with anyio.open_signal_receiver(*numbers) as signals:
            yield signals
        return
    import asyncio

    # On Windows the event loop does not support signals; a handler of the interpreter wakes it.
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
    """Do a blocking read in a daemon thread, for which the exit does not wait. Lost after a cancellation."""
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]  # without an error, this is what was read

    def work() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = read()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="ava-read", daemon=True).start()
    return await future


GRACE_S = 1.5
"""How long cancelled work may take to stop."""


async def run_apart(tasks: anyio.abc.TaskGroup, work: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """Do work in a task of `tasks`, and wait for it at most `timeout_s`. Raises TimeoutError.

    At the deadline, or when the caller is cancelled, the work is cancelled too; if it has not stopped after `GRACE_S`,
    its result is lost.
    """
    done = anyio.Event()
    scope = anyio.CancelScope()
    has_begun = False
    results: list[T] = []
    errors: list[Exception] = []

    async def task() -> None:
        nonlocal has_begun
        has_begun = True
        try:
            with scope:
                results.append(await work())
        except Exception as error:  # raised below, for the waiting caller
            errors.append(error)
        finally:
            done.set()

    tasks.start_soon(task)
    try:
        with anyio.move_on_after(timeout_s):
            await done.wait()
        if not done.is_set():
            raise TimeoutError
    finally:
        if not done.is_set():
            scope.cancel()
            if has_begun:  # a task that never began never ends
                with anyio.CancelScope(shield=True), anyio.move_on_after(GRACE_S):
                    await done.wait()
    if errors:
        raise errors[0]
    return results[0]
