"""Events acknowledged per second by 100 producers: the store, a bare writer thread, and one commit per event."""

from __future__ import annotations

import asyncio
import queue
import random
import sqlite3
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite

from audit_parts.mix import DISTRIBUTION, Together, lives
from audit_parts.report import Report, median, ms, quantile
from ava_audit.events import Event
from ava_audit.maintenance import run_maintenance
from ava_audit.store.store import Store, append

PRODUCERS = 100
MOST = 30_000
"""Of the events asked for, so many in each round are enough: a rate needs no more."""
MOST_EACH = 20
"""Of each producer's events, so many are enough for who commits each: it is slow, and no faster for longer."""
ROUNDS = 5
RATIO, KEPT_RATIO = 0.65, 0.35
"""Of the bare thread's events a second, without and with the keeper."""
BATCH = 512
"""As many jobs in one transaction at most as the store takes."""
INSERT = f"INSERT INTO events VALUES ({', '.join('?' * 20)})"
PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0")

Row = tuple[Any, ...]
Write = Callable[[Any], Awaitable[object]]
STORE, KEPT, BARE, EACH = "Ava's store", "Ava's store, with its keeper", "bare writer thread", "aiosqlite, commit each"


@dataclass
class Measured:
    """How many events there were in how many seconds, and how long (s) each command waited to be acknowledged."""

    events: int
    seconds: float
    cpu_s: float
    waits: list[float]


def show(report: Report, events: int) -> None:
    """Measure all of them, turn and turn about."""
    events = min(events, MOST)
    commands = scripts(events, PRODUCERS)
    rows = [[[row_of(event) for event in command] for command in script] for script in commands]
    each = [[[row] for command in script for row in command][:MOST_EACH] for script in rows]
    contenders: dict[str, tuple[Any, Any]] = {
        STORE: (_store, commands),
        BARE: (_bare, rows),
        KEPT: (partial(_store, keeper=True), commands),
        EACH: (_each, each),
    }
    took: dict[str, list[Measured]] = {name: [] for name in contenders}
    for number in range(ROUNDS + 1):
        for name in sorted(contenders, reverse=bool(number % 2)):  # nobody is always the first
            contender, script = contenders[name]
            if number == 0:  # only to fill the caches
                asyncio.run(_measure(contender, [mine[:5] for mine in script]))
            else:
                took[name].append(asyncio.run(_measure(contender, script)))
    report.say(
        f"{PRODUCERS} producers, synchronous=FULL, {events:,} events in {sum(map(len, commands)):,} commands, "
        f"{ROUNDS} rounds. Sizes of contents: {DISTRIBUTION}."
    )
    floor = _rates(took[BARE])
    shown = [
        [
            name,
            f"{median(_rates(runs)):,.0f}",
            f"{median([ours / bare for ours, bare in zip(_rates(runs), floor, strict=True)]):.2f}",
            f"{median([run.cpu_s / run.events * 1e6 for run in runs]):.0f}",
            *(ms(median([quantile(run.waits, share) for run in runs])) for share in (0.5, 0.99, 1.0)),
        ]
        for name, runs in took.items()
    ]
    columns = ("", "events/s", "× bare", "CPU µs/event", "p50 ms", "p99 ms", "max ms")
    report.table("Events acknowledged (medians of the rounds)", columns, shown)
    for name, goal in ((STORE, RATIO), (KEPT, KEPT_RATIO)):
        rate = median(_rates(took[name]))
        report.verdict(f"events a second, {name}", rate, goal, least=True, unit=" /s", floor=median(floor))
    peer = [ours / theirs for ours, theirs in zip(_rates(took[STORE]), _rates(took[EACH]), strict=True)]
    report.say(f"The store beside one commit per event: {median(peer):.1f} ×.")


def scripts(events: int, producers: int, first: int = 0) -> list[list[Together]]:
    """Return what each producer writes: run after run, in the commands that the product writes them with."""
    made: list[list[Together]] = []
    for producer in range(producers):
        source = lives(first + producer * 1_000, 1, random.Random(first + producer))
        script: list[Together] = []
        left = events // producers
        while left > 0:
            script.append(next(source)[:left])
            left -= len(script[-1])
        made.append(script)
    return made


def row_of(event: Event) -> Row:
    """Return an event as a row that somebody without a chain would insert."""
    who, usage = event.who, event.usage
    tokens = (usage.input_tokens, usage.output_tokens, 0, 0) if usage else (None,) * 4
    fence = (event.fence.run_id, event.fence.generation) if event.fence else (event.run_id, None)
    return (
        None, time.time_ns() // 1000, who.session_id, who.agent_id, who.user_id, event.fact.type, 1, *fence, *tokens,
        event.cost_micros, event.model, who.parent_agent_id, event.duration_ms,
        event.fact.model_dump_json(exclude_none=True), bytes(32), bytes(32),
    )  # fmt: skip


async def timed(scripts: Sequence[Sequence[Sequence[Any]]], write: Write) -> Measured:
    """Let each producer write its script: one command when the one before was acknowledged."""
    waits: list[float] = []
    clock = time.perf_counter

    async def produce(script: Sequence[Sequence[Any]]) -> None:
        for command in script:
            asked = clock()
            await write(command)
            waits.append(clock() - asked)

    began, cpu = clock(), time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for script in scripts:
            tasks.create_task(produce(script))
    took, cpu_s = clock() - began, time.process_time() - cpu
    return Measured(sum(len(command) for script in scripts for command in script), took, cpu_s, waits)


async def _measure(contender: Any, scripts: Sequence[Sequence[Sequence[Any]]]) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        async with contender(Path(folder)) as write:
            return await timed(scripts, write)


@asynccontextmanager
async def _store(folder: Path, keeper: bool = False) -> AsyncGenerator[Write]:
    async with Store.open(folder) as store, asyncio.TaskGroup() as tasks:

        async def write(events: Together) -> None:
            await store.do(append(*events))

        keeping = tasks.create_task(run_maintenance(store, folder, mirror=True)) if keeper else None
        yield write
        if keeping is not None:
            keeping.cancel()


@asynccontextmanager
async def _bare(folder: Path) -> AsyncGenerator[Write]:
    """The floor: a thread that takes whatever rows have come and inserts them in one transaction, and no more."""
    path = await _table(folder)
    loop = asyncio.get_running_loop()
    jobs: queue.SimpleQueue[tuple[list[Row], asyncio.Future[None]] | None] = queue.SimpleQueue()

    def resolve(done: list[tuple[list[Row], asyncio.Future[None]]]) -> None:
        for _rows, future in done:
            future.set_result(None)

    def work() -> None:
        db = sqlite3.connect(path, isolation_level=None)
        for pragma in PRAGMAS:
            db.execute(f"PRAGMA {pragma}")
        job = jobs.get()
        while job is not None:
            batch = [job]
            while len(batch) < BATCH and not jobs.empty() and (job := jobs.get()) is not None:
                batch.append(job)
            db.execute("BEGIN IMMEDIATE")
            for rows, _future in batch:
                for row in rows:
                    db.execute(INSERT, row)
            db.execute("COMMIT")
            loop.call_soon_threadsafe(resolve, batch)
            job = job and jobs.get()
        db.close()

    async def write(rows: list[Row]) -> None:
        future: asyncio.Future[None] = loop.create_future()
        jobs.put((rows, future))
        await future

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield write
    finally:
        jobs.put(None)
        await asyncio.to_thread(thread.join)


@asynccontextmanager
async def _each(folder: Path) -> AsyncGenerator[Write]:
    path = await _table(folder)
    async with aiosqlite.connect(path, isolation_level=None) as db:
        for pragma in PRAGMAS:
            await db.execute(f"PRAGMA {pragma}")

        async def write(rows: list[Row]) -> None:
            for row in rows:
                await db.execute(INSERT, row)

        yield write


async def _table(folder: Path) -> Path:
    """Make the very table that the store writes to, with its indexes."""
    async with Store.open(folder) as store:
        return store.path


def _rates(runs: Sequence[Measured]) -> list[float]:
    return [run.events / run.seconds for run in runs]
