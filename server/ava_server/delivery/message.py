"""One message in a worker's hands: what every engine's adapter does with it, so that rule 2 is kept in one place."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from ava_server.delivery import Body

SIGNS = 4
"""Signs of life within the time after which an engine gives a message to another worker."""
LOOK_S = 0.2
"""How often a worker that takes nothing looks whether it does again."""
_RUN_ID = re.compile(r"[SG]-[0-9A-Za-z]{1,40}")


def is_run_id(named: object) -> bool:
    """Tell whether what a message names can be a run or a plan of Ava's; anything else never reaches the log."""
    return isinstance(named, str) and _RUN_ID.fullmatch(named) is not None


async def until_it_takes(body: Body) -> None:
    """Wait until a worker may take work: the log answers it, and it is not being stopped."""
    while not body.takes_runs():  # noqa: ASYNC110 - what it depends on is read, not told
        await anyio.sleep(LOOK_S)


@asynccontextmanager
async def signs_of_life(body: Body, show_life: Callable[[], Awaitable[None]], wait_s: float) -> AsyncGenerator[None]:
    """Show the engine, as long as the block lasts and the log answers, that the worker of a message lives.

    Without `show_life` for `wait_s` the engine gives the message to another worker.
    """

    async def show() -> None:
        while True:
            await anyio.sleep(wait_s / SIGNS)
            if body.is_alive():
                await show_life()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(show)
        yield
        tasks.cancel_scope.cancel()
