"""What every contender's process does: begin runs, let them go together, and measure what their turns took.

It imports nothing but the standard library, so that it runs in the peers' environment too.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from loop_parts.endpoint import many_files

SYSTEM = "You are a subagent that works on its own for somebody who is not there. " * 50
"""About as long as what Ava's own subagents are told."""
TASK = "What does it cost?"
DESCRIPTION = "Keep a note, or read your notes back. Notes survive when older tool results are left out."
TIMEOUT_S = 240
WARM = 10
"""Runs that wait already when memory is looked at first."""


def noted(notes: list[str], note: str) -> str:
    """The tool that everybody has: keep a note, return all of them."""
    notes.append(note)
    return "\n".join(f"{number}. {text}" for number, text in enumerate(notes, 1))


class Contender(Protocol):
    """Something that runs agents."""

    async def begin(self, number: int) -> None:
        """Start a run; it goes on by itself."""
        ...

    async def settle(self) -> None:
        """Finish what has to be done for the turns so far, beside the runs."""
        ...

    async def ended(self) -> None:
        """Wait for the end of every run that was begun."""
        ...


class Tasks:
    """A contender whose runs are plain tasks."""

    def __init__(self, run: Callable[[], Awaitable[object]]) -> None:
        self._run = run
        self._tasks: list[asyncio.Task[object]] = []

    async def begin(self, number: int) -> None:
        self._tasks.append(asyncio.ensure_future(self._run()))

    async def settle(self) -> None:
        pass

    async def ended(self) -> None:
        await asyncio.gather(*self._tasks)
        self._tasks.clear()


class Gate:
    """The endpoint's gates."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Gate:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, what: str) -> None:
        self._writer.write(f"GET /{what} HTTP/1.1\r\n\r\n".encode())
        await self._reader.readuntil(b"{}")


Open = Callable[[str], AbstractAsyncContextManager[Contender]]
"""Opens a contender on an endpoint's address."""


def serve(open_contender: Open, run: Callable[..., object] | None = None) -> None:
    """Measure what is asked for on stdin, line by line, until it ends; `run` runs it in another loop than asyncio's."""
    many_files()
    port = int(sys.argv[1])
    if run is None:
        asyncio.run(_serve(open_contender, port))  # one loop for all: some clients are kept for good
    else:
        run(_serve, open_contender, port)


async def _serve(open_contender: Open, port: int) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        what = _turns if asked["what"] == "turns" else _waiting
        print(json.dumps(await what(open_contender, port, asked["runs"], asked["times"], asked["turns"])), flush=True)


async def _turns(open_contender: Open, port: int, runs: int, times: int, turns: int) -> dict[str, Any]:
    """Let so many runs do their turns at once, several times; return milliseconds of CPU and of time for a turn.

    What is before a run's first answer and after its last turn does not count here; it is told apart, for one run.
    """
    turn_s = wall_s = settled_s = 0.0
    async with asyncio.timeout(TIMEOUT_S), Gate(port) as gate, open_contender(f"http://127.0.0.1:{port}/v1") as ours:
        whole = time.process_time()
        for _ in range(times):
            await gate.ask(f"hold/{runs}")
            for number in range(runs):
                await ours.begin(number)
            await gate.ask("first")
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            await gate.ask("go")
            cpu_then, wall_then = time.process_time(), time.perf_counter()
            await ours.settle()
            settled_s += time.process_time() - cpu_then
            turn_s += cpu_then - cpu
            wall_s += wall_then - wall
            await gate.ask("end")
            await ours.ended()
        around_s = time.process_time() - whole - turn_s - settled_s
        await gate.ask("hold/0")
    count = runs * times * turns
    return {
        "cpu_ms": turn_s / count * 1000,
        "wall_ms": wall_s / count * 1000,
        "settled_ms": settled_s / count * 1000,
        "around_ms": around_s / (runs * times) * 1000,
    }


async def _waiting(open_contender: Open, port: int, runs: int, _times: int, _turns: int) -> dict[str, Any]:
    """Return how much a process grows for each run that waits for its first answer."""
    async with asyncio.timeout(TIMEOUT_S), Gate(port) as gate, open_contender(f"http://127.0.0.1:{port}/v1") as ours:
        await gate.ask(f"hold/{WARM}")
        for number in range(WARM):
            await ours.begin(number)
        await gate.ask("first")
        before = _resident()
        await gate.ask(f"hold/{runs}")
        for number in range(WARM, runs):
            await ours.begin(number)
        await gate.ask("first")
        after = _resident()
        await gate.ask("go")
        await gate.ask("end")
        await ours.ended()
        await gate.ask("hold/0")
    return {"kib": (after - before) / 1024 / (runs - WARM), "base_mib": before / 1024 / 1024}


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
