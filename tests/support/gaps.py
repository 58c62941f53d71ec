"""How long the event loop waits for its turn, in processor time: that of a busy machine does not count."""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

MOST_GAP_S = 0.1


@asynccontextmanager
async def most_gap(gaps: list[float]) -> AsyncGenerator[None]:
    """Note the processor time that the whole process spends between two turns of the event loop."""
    over = False

    async def turn() -> None:
        while not over:
            began = time.process_time()
            await anyio.sleep(0.001)
            gaps.append(time.process_time() - began)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn)
        await anyio.lowlevel.checkpoint()
        gc.freeze()  # else the collector goes through all that other tests have left
        try:
            yield
        finally:
            over = True
            gc.unfreeze()
