"""One message in a worker's hands: what every engine's adapter does with it, so that rule 2 is kept in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from ava_server.delivery import Body

SIGNS = 4
"""Signs of life within the time after which an engine gives a message to another worker."""
LOOK_S = 0.2
"""How often a worker that takes nothing looks whether it does again."""


async def until_it_takes(body: Body) -> None:
    """Wait until a worker may take work: the log answers it, and it is not being stopped."""
    while not body.takes_runs():  # noqa: ASYNC110 - what it depends on is read, not told
        await anyio.sleep(LOOK_S)


async def handle(body: Body, run_id: str, show_life: Callable[[], Awaitable[None]], wait_s: float) -> bool:
    """Give a run to a worker, and return whether its message may be forgotten.

    `show_life` tells the engine that the worker lives, which is done only while the log answers; without it for
    `wait_s` the engine gives the message to another one.
    """

    async def show() -> None:
        while True:
            await anyio.sleep(wait_s / SIGNS)
            if body.is_alive():
                await show_life()

    forget = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(show)
        forget = await body(run_id)
        tasks.cancel_scope.cancel()
    return forget
