"""Work that is waited for only so long: what ignores its cancellation is left behind, and holds up nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import anyio.abc

T = TypeVar("T")
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
