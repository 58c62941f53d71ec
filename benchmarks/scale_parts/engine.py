"""Delivery by pgqueuer, a job queue in Postgres, in front of Ava's log: a job wakes a worker, which claims in the log.

As a program, it is such a worker: `python engine.py URL`. It is Ava's own worker without its own looking for runs: what
a job names is claimed, prepared and driven by the same code. The engine is given less to do than in a product, where it
also has to be told of cancels, of runs whose owner is gone, and of free slots.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

if __name__ == "__main__":  # this folder is the first place where Python looks for modules
    del sys.path[0]

import anyio

from ava_server.runs.owner.manager import Manager

NAME = "pgqueuer and the log"
ENTRY = "run"
SETTINGS = {"search_path": "public"}
"""Its tables are beside the log, not among the log's own."""
AT_ONCE = 20
"""Jobs of a worker that may be running at once."""
LEASE = timedelta(seconds=3)
"""After which a job whose worker does not tell that it lives goes to another one; it tells so twice in that time."""
LOOK = timedelta(seconds=1)
"""How often a worker looks for jobs, besides when it is told of them."""


def is_installed() -> bool:
    return all(map(importlib.util.find_spec, ("pgqueuer", "asyncpg")))


@asynccontextmanager
async def enqueuing(url: str) -> AsyncGenerator[Callable[[Sequence[str]], Awaitable[None]]]:
    """Make the engine's tables in the log's database; what it yields enqueues a job for each run."""
    import asyncpg
    from pgqueuer import Queries
    from pgqueuer.db import AsyncpgPoolDriver

    async with asyncpg.create_pool(url, min_size=1, server_settings=SETTINGS) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()

        async def enqueue(runs: Sequence[str]) -> None:
            await queries.enqueue([ENTRY] * len(runs), [run.encode() for run in runs], [0] * len(runs))

        yield enqueue
        await queries.uninstall()  # the server's databases are used again


class Delivered:
    """The worker's own looking for runs, replaced by jobs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended: dict[str, anyio.Event] = {}
        self._start = Manager._start

    def install(self) -> None:
        """Replace it in this process."""
        here = self

        async def serve(manager: Manager, tasks: anyio.abc.TaskGroup) -> None:
            await here.serve(manager, tasks)

        async def start(manager: Manager, run_id: str, *more: Any) -> None:
            try:
                await here._start(manager, run_id, *more)
            finally:
                here._ended[run_id].set()

        async def nothing(_manager: Manager) -> None:
            pass

        Manager._serve = serve  # type: ignore[method-assign]
        Manager._start = start  # type: ignore[method-assign]
        Manager._hear = nothing  # type: ignore[method-assign]

    async def serve(self, manager: Manager, tasks: anyio.abc.TaskGroup) -> None:
        """Claim what jobs name; a job lasts as long as its run."""
        import asyncpg
        from pgqueuer import Job, PgQueuer
        from pgqueuer.db import AsyncpgPoolDriver

        async with asyncpg.create_pool(self._url, min_size=2, server_settings=SETTINGS) as pool:
            served = PgQueuer(AsyncpgPoolDriver(pool))

            @served.entrypoint(ENTRY)
            async def handle(job: Job) -> None:
                run_id = (job.payload or b"").decode()
                self._ended[run_id] = anyio.Event()
                row = await manager._store.read(lambda view: view.run(run_id))
                assert row is not None
                gone = frozenset({row.instance} if row.instance else set[str]())
                manager.control.gone = lambda _rows: gone  # type: ignore[method-assign]
                if await manager._try_to_take(row, gone, tasks):
                    await self._ended[run_id].wait()

            await served.run(max_concurrent_tasks=AT_ONCE, dequeue_timeout=LOOK, heartbeat_timeout=LEASE)


if __name__ == "__main__":
    from ava_server.__main__ import main

    Delivered(sys.argv.pop(1)).install()
    sys.argv[1:] = ["worker", "--stay"]
    main()
