"""Delivery alone by pgqueuer, a job queue in Postgres, on the same server: the handler of a job does nothing.

As a program, it is one of its workers: `python peer_pgqueuer.py URL` prints how long each job has waited, in seconds,
and when its handler was called.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psycopg
from anyio.abc import Process

if __name__ == "__main__":  # a worker: this folder is the first place where Python looks for modules
    sys.path[0] = str(Path(__file__).parents[1])
    sys.path.insert(1, str(Path(__file__).parents[2] / "tests"))

from support.processes import end

from scale_parts.figures import Figures, note_rates

if TYPE_CHECKING:
    from pgqueuer import Queries

INSTALL = "pip install pgqueuer"
READY = "ready"
ENTRY = "run"
NAME = "pgqueuer"
IDLE_S = 20.0
SETTLE_S = 6.0
WITHIN_S = 300.0
Counted = Callable[[], int]


def version() -> str:
    """Return the version of pgqueuer, empty where it is not installed."""
    try:
        return importlib.metadata.version("pgqueuer")
    except importlib.metadata.PackageNotFoundError:
        return ""


class Worker:
    """A process with a worker; what it has printed."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.ready = anyio.Event()
        self.called: list[tuple[float, float]] = []

    async def read(self) -> None:
        """Read what it prints, until it ends."""
        assert self.process.stdout is not None
        rest = b""
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for piece in self.process.stdout:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.decode() == READY:
                        self.ready.set()
                        continue
                    waited, at = line.split()
                    self.called.append((float(waited), float(at)))


@asynccontextmanager
async def worker(url: str) -> AsyncGenerator[Worker]:
    """A worker that is ready; killed at the end."""
    process = await anyio.open_process([sys.executable, __file__, url], stderr=None)
    found = Worker(process)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found.read)
            with anyio.fail_after(60):
                await found.ready.wait()
            yield found
            process.kill()
            await process.wait()
            tasks.cancel_scope.cancel()
    finally:
        await end(process)


@asynccontextmanager
async def queue(url: str) -> AsyncGenerator[Queries]:
    """The side that enqueues."""
    from pgqueuer import PsycopgDriver, Queries

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        yield Queries(PsycopgDriver(conn))


async def install(url: str) -> None:
    """Make its tables in a database."""
    async with queue(url) as queries:
        await queries.install()


async def uninstall(url: str) -> None:
    """Remove its tables."""
    async with queue(url) as queries:
        await queries.uninstall()


async def delivery(jobs: int, url: str, figures: Figures, _counted: Counted) -> None:
    """One job after the other to a worker that waits for it."""
    async with queue(url) as queries, worker(url) as one:
        for number in range(jobs):
            await queries.enqueue(ENTRY, repr(time.time()).encode())
            await _until(lambda number=number: len(one.called) > number)
            await anyio.sleep(0.2)
        figures.note_times("approval to claim", NAME, [waited for waited, _at in one.called])


async def drains(jobs_of: Mapping[int, int], url: str, figures: Figures, counted: Counted) -> None:
    """Enqueue many jobs while nobody takes them, then start the workers."""
    for workers, jobs in jobs_of.items():
        async with AsyncExitStack() as stack:
            queries = await stack.enter_async_context(queue(url))
            await queries.enqueue([ENTRY] * jobs, [repr(time.time()).encode()] * jobs, [0] * jobs)
            before = counted()
            found = [await stack.enter_async_context(worker(url)) for _ in range(workers)]
            await _until(lambda found=found, jobs=jobs: sum(len(one.called) for one in found) >= jobs)
            await anyio.sleep(1)  # it notes later that they are done
            note_rates(sorted(at for one in found for _waited, at in one.called), workers, NAME, figures)
            figures.note(f"drain, {workers} workers: statements/run", NAME, (counted() - before) / jobs)


async def idle(url: str, figures: Figures, counted: Counted) -> None:
    """Count the statements of a worker that has nothing to do."""
    async with worker(url):
        await anyio.sleep(SETTLE_S)
        before, began = counted(), time.monotonic()
        await anyio.sleep(IDLE_S)
        figures.note("idle statements/s, worker", NAME, (counted() - before) / (time.monotonic() - began))


async def _until(done: Callable[[], bool]) -> None:
    with anyio.fail_after(WITHIN_S):
        while not done():  # noqa: ASYNC110 - it happens in another process
            await anyio.sleep(0.02)


async def _work(url: str) -> None:
    from pgqueuer import Job, PgQueuer, PsycopgDriver

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        served = PgQueuer(PsycopgDriver(conn))

        @served.entrypoint(ENTRY)
        async def handle(job: Job) -> None:
            now = time.time()
            print(now - float(job.payload or b"0"), now, flush=True)

        print(READY, flush=True)
        await served.run()


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1]))
