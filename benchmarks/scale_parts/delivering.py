"""From the approval of a run to a worker in another process: how long it takes, and what it costs."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import anyio
from support.postgres import PostgresServer
from support.stdio import until

from scale_parts.figures import Figures, note_rates
from scale_parts.fleet import LEASE_S, Fleet, fleet
from scale_parts.statements import counted

IDLE_S = 20.0
SETTLE_S = 2.0
DRAIN_S = 900.0
AT_ONCE = 20
"""Runs of a worker that may be running at once."""
HOLDS = 20
"""Runs that wait for their model at once while they are cancelled."""
TAKEOVERS = 8


async def delivery(runs: int, kind: str, folder: Path, server: PostgresServer, figures: Figures) -> None:
    """One run after the other to a worker that waits for it; then cancels from another process.

    The first run is not counted: with it an engine makes what it needs.
    """
    async with fleet(kind, folder, server, running=100) as now, now.worker():
        await now.approve(1)
        await now.until_ended(60)
        ids: dict[int, str] = {}
        for _ in range(runs):
            ids |= await now.approve(1)
            await now.until_ended(30)
            await anyio.sleep(0.2)
        decided, claimed = by_run(now, ids) | now.enqueued_s, now.times_s("RunClaimed")
        waits = [claimed[run][0] - decided[run] for run in ids.values()]
        asked = [now.models.asked_s[number] - decided[run] for number, run in ids.items()]
        figures.note_times("approval to claim", kind, waits)
        figures.note_times("approval to first model request", kind, asked)
        if not now.enqueued_s:  # no job tells of a cancel
            figures.note_times("cancel from another process", kind, await cancels(now, runs))


async def cancels(now: Fleet, runs: int) -> list[float]:
    """Cancel runs that wait for their model; return how long each answer took."""
    took: list[float] = []
    while len(took) < runs:
        held = await now.approve(min(HOLDS, runs - len(took)), "hold")
        await until(lambda held=held: held.keys() <= now.models.asked_s.keys(), within_s=60)
        for run in held.values():
            began = time.perf_counter()
            await now.host.tool("cancel_subagent", subagent_id=run)
            took.append(time.perf_counter() - began)
            assert now.state(run) == "cancelled"
    return took


def by_run(now: Fleet, ids: dict[int, str]) -> dict[str, float]:
    """Return when each run was approved."""
    found = now.times_s("SpawnDecided")
    return {run: found[run][0] for run in ids.values()}


async def takeover(kind: str, folder: Path, server: PostgresServer, figures: Figures, times: int = TAKEOVERS) -> None:
    """Kill or stop the worker that has a run, and wait for the claim of another one."""
    hows = {"kill -9": signal.SIGKILL, "stopped": signal.SIGSTOP}
    if kind == "SQLite":  # a stopped process keeps its lock, so nobody takes its runs over
        del hows["stopped"]
    async with fleet(kind, folder, server, running=100) as now:
        for name, how in hows.items():
            for _ in range(times):
                async with now.worker() as first:
                    held = await now.approve(1, "hold")
                    ((number, run),) = held.items()
                    await until(lambda number=number: number in now.models.asked_s, within_s=60)
                    async with now.worker():
                        await anyio.sleep(SETTLE_S + random.random())  # at any moment of a lease
                        began = time.time()
                        first.send_signal(how)
                        await until(lambda run=run: len(now.times_s("RunClaimed")[run]) > 1, within_s=LEASE_S + 30)
                        figures.note(f"takeover, {name}, s", kind, now.times_s("RunClaimed")[run][1] - began)
                        if not now.enqueued_s:  # no job tells of a cancel
                            await now.host.tool("cancel_subagent", subagent_id=run)


async def drain(kind: str, folder: Path, server: PostgresServer, runs: int, workers: int, figures: Figures) -> None:
    """Approve many runs while nobody takes them, then start the workers; each run ends with its first answer."""
    name = f"drain, {workers} workers"
    async with fleet(kind, folder, server, running=AT_ONCE * workers) as now:
        began = time.monotonic()
        await now.approve(runs)
        figures.note(f"{name}: approvals/s", kind, runs / (time.monotonic() - began))
        before = counted(server, now.database)
        async with now.workers(workers):
            await now.until_ended(DRAIN_S)
        ended = sorted(times[-1] for times in now.times_s("RunEnded").values())
        claims = sorted(times[0] for times in now.times_s("RunClaimed").values())
        assert len(claims) == len(ended) == runs
        note_rates(claims, workers, kind, figures)
        figures.note(f"{name}: runs ended/s", kind, runs / (ended[-1] - claims[0]))
        if now.database:
            figures.note(f"{name}: statements/run", kind, (counted(server, now.database) - before) / runs)


async def idle(folder: Path, server: PostgresServer, figures: Figures) -> None:
    """Count the statements of a server, and of a worker beside it, that have nothing to do."""
    async with fleet("Postgres", folder, server, running=100, lease_s=15) as now:

        async def a_second() -> float:
            await anyio.sleep(3 * SETTLE_S)
            before, began = counted(server, now.database), time.monotonic()
            await anyio.sleep(IDLE_S)
            return (counted(server, now.database) - before) / (time.monotonic() - began)

        async with now.worker():
            await now.approve(1)
            await now.until_ended(60)
            both = await a_second()
        await anyio.sleep(SETTLE_S)
        alone = await a_second()
        figures.note("idle statements/s, server", "Postgres", alone)
        figures.note("idle statements/s, worker", "Postgres", both - alone)


async def processor(kind: str, folder: Path, server: PostgresServer, figures: Figures) -> None:
    """Note the processor time of a server, a worker, the database and the engine that have nothing to do."""
    async with fleet(kind, folder, server, running=100, lease_s=15) as now, now.worker() as worker:
        await now.approve(1)
        await now.until_ended(60)
        await anyio.sleep(3 * SETTLE_S)
        pids = {"server": now.host.pid, "worker": worker.pid, "Postgres": server.pid}
        if now.delivers is not None:
            pids["engine"] = now.delivers.pid
        before, began = {name: processor_s(pid) for name, pid in pids.items()}, time.monotonic()
        await anyio.sleep(IDLE_S)
        took_s = time.monotonic() - began
        percents = {name: 100 * (processor_s(pid) - before[name]) / took_s for name, pid in pids.items()}
        for name, percent in percents.items():
            figures.note(f"idle, {name}, % of a processor", kind, percent)
        figures.note("idle, all, % of a processor", kind, sum(percents.values()))


def processor_s(pid: int) -> float:
    """Return the processor time of a process and its children, also of those that have ended."""
    own: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            own[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def of(parent: int) -> float:
        return own[parent][1] + sum(of(child) for child, (above, _s) in own.items() if above == parent)

    return of(pid)
