"""How much memory all processes of one data root take: ten hosts, three running subagents, a page and a local client.

    python benchmarks/memory_hosts.py [--rounds 5] [--hosts 10] [--runs 3] [--beside PYTHON]

Each host has its own `ava serve` over stdio, as hosts start it. The subagents run in the background process and wait
for an answer of the model while it is measured. `PSS` is the proportional set size of every process of the data root
(the field `Pss` of /proc/PID/smaps_rollup; a page that N processes share counts as 1/N in each), summed: before and
after `ava ui` and `ava connect`. `--beside` is the Python of another version of Ava, measured in turns; the ratio of
the medians is printed. Linux only.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import anyio

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), *(str(ROOT / each) for each in ("server", "roles", "audit"))]

from support.model_server import Gate, ModelServer, Say, run_model_server  # noqa: E402
from support.postgres import free_port  # noqa: E402
from support.processes import environment_of  # noqa: E402
from support.stdio import environment, make_root, model_env, serve_stdio, until  # noqa: E402

SETTLES_S = 3.0
"""Seconds without work before each measurement."""
PLACES = "hosts and subagents", "with a page and a local client"


def processes_of(root: Path) -> list[int]:
    """Return the processes that have this data root in their environment."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # another user's, or gone meanwhile
                if environment_of(int(entry.name)).get("AVA_DATA_ROOT") == str(root):
                    found.append(int(entry.name))
    return found


def pss_kib(processes: Sequence[int]) -> list[int]:
    """Return the PSS of each process that still lives."""
    found: list[int] = []
    for pid in processes:
        with suppress(OSError):  # it has ended meanwhile
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            found += [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return found


async def measure(python: str, hosts: int, runs: int, models: ModelServer, gates: list[Gate]) -> list[tuple[int, int]]:
    """Return PSS in KiB and the number of processes, at each of `PLACES`."""
    seen: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory(prefix="ava-memory-") as folder:
        root = make_root(Path(folder) / "data")
        more = {**model_env(models.base_url), "AVA_BACKGROUND": ""}
        env = environment(root, **more)

        async def look() -> None:
            await anyio.sleep(SETTLES_S)
            found = pss_kib(processes_of(root))
            seen.append((sum(found), len(found)))

        command = (python, "-P", "-m", "ava_server")
        try:
            async with AsyncExitStack() as stack:
                open_host = partial(serve_stdio, root, env=more, command=(*command, "serve"))
                wires = [await stack.enter_async_context(open_host()) for _ in range(hosts)]
                for wire in wires[:runs]:
                    await wire.start_run()
                await until(lambda: len(gates) == runs and all(gate.arrived.is_set() for gate in gates))
                await look()
                for words in (("ui", "--no-browser"), ("connect", "--port", str(free_port()))):
                    await anyio.run_process([*command, *words], env=env)
                await look()
        finally:
            for gate in gates:
                gate.released.set()
            end_all(root)
    return seen


def end_all(root: Path) -> None:
    """End the processes of a data root, the programs that start others again first."""
    end = time.monotonic() + 20
    while there := processes_of(root):
        number = signal.SIGTERM if time.monotonic() < end else signal.SIGKILL
        for pid in there:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(0.2)


async def measure_all(pythons: Sequence[str], rounds: int, hosts: int, runs: int) -> None:
    found: dict[str, list[list[tuple[int, int]]]] = {python: [] for python in pythons}
    for number in range(rounds + 1):
        for python in pythons if number % 2 == 0 else pythons[::-1]:  # neither is always the first
            gates: list[Gate] = []

            def script(_request: object, gates: list[Gate] = gates) -> Say:
                gates.append(Gate(within_s=600))
                return Say(calls=[("submit_result", {"summary": "done", "output": "x"})], gate=gates[-1])

            with run_model_server(script) as models:
                seen = await measure(python, hosts, runs, models, gates)
            if number:  # the first round only fills the caches
                found[python].append(seen)
    print(f"{hosts} hosts, {runs} running subagents; {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for place, what in enumerate(PLACES):
        medians = []
        for python in pythons:
            sums = [one[place][0] / 1024 for one in found[python]]
            medians.append(statistics.median(sums))
            processes = statistics.median(one[place][1] for one in found[python])
            print(
                f"{what:<32} PSS median {medians[-1]:6.1f} MiB   {min(sums):6.1f} to {max(sums):6.1f}  "
                f" {processes:g} processes   {python}"
            )
        if len(medians) > 1:
            print(f"{what:<32} ratio {medians[0] / medians[1]:.2f}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--hosts", type=int, default=10)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--beside", metavar="PYTHON", help="the Python of another version of Ava")
    given = options.parse_args()
    pythons = [sys.executable, *([given.beside] if given.beside else [])]
    anyio.run(measure_all, pythons, given.rounds, given.hosts, given.runs)


if __name__ == "__main__":
    main()
