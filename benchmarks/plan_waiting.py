"""What a plan costs whose steps wait: 199 steps behind one whose model does not answer, beside a single such run.

    python benchmarks/plan_waiting.py [--rounds 3] [--seconds 60] [--steps 200]

Each is proposed and approved over stdio, in turns, in a data root of its own with pages of its own. Shown are the PSS
of all processes of the data root (MiB), their processor time while nothing happens, how long the proposal and the
approval take, three pages, and `ava status --once`. Linux only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from memory_hosts import processes_of, pss_kib  # sets the path for `support`
from support.model_server import Gate, Say
from support.pages.browser import There, open_pages
from support.runtime import PRICED
from support.terminal import COMMAND, environment

T = TypeVar("T")
SETTLES_S = 4.0
"""Seconds without work before the measurement."""
LOOKS = 5
"""Times that each page is asked for; the median counts."""
ROLE = {"role": "custom", "system_prompt": "You wait."}


def cpu_s(processes: list[int]) -> float:
    """Return the user and system time that these processes have used, in seconds."""
    ticks = 0
    for pid in processes:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return how many seconds some work took, and what it returned."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def start(there: There, spawn: dict[str, Any], found: dict[str, float]) -> str:
    """Propose and approve, and return the id of the run or plan."""
    found["propose, s"], proposal = timed(lambda: there.host.tool("spawn_subagent", **spawn))
    given = {"pending_ids": [proposal["pending_id"]], "approving": [proposal["approval_line"]]}
    found["approve, s"], approved = timed(lambda: there.host.tool("confirm_spawn", **given))
    assert approved["status"] == "approved", approved
    return str(proposal.get("group_id") or proposal["subagent_id"])


def look(there: There, run_id: str, found: dict[str, float]) -> None:
    """Time the pages and the status."""
    visitor = there.signed_in()
    for name, path in {"overview": "/", "list": "/subagents", "its page": f"/subagents/{run_id}"}.items():
        visitor.get(path)  # the first look loads the page's code
        took = [timed(lambda path=path: visitor.get(path))[0] for _ in range(LOOKS)]  # type: ignore[misc]
        found[f"{name}, s"] = statistics.median(took)
    status = [*COMMAND, "status", "--once"]
    env = environment(there.root)
    found["ava status --once, s"], _done = timed(
        lambda: subprocess.run(status, env=env, check=True, capture_output=True)
    )


def measure(spawn: dict[str, Any], seconds: float) -> dict[str, float]:
    gate = Gate(within_s=600)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ava-plan-") as folder:
        root = Path(folder) / "data"
        settings = f"{PRICED}[limits]\nspawns_per_hour = 1000\n"
        with open_pages(root, settings, lambda _request: Say("done", gate=gate), forked=False) as there:
            run_id = start(there, spawn, found)
            assert gate.arrived.wait(60), "the first run has begun"
            time.sleep(SETTLES_S)
            processes = processes_of(root)
            before = cpu_s(processes)
            time.sleep(seconds)
            found[f"processor time in {seconds:g} s, s"] = cpu_s(processes) - before
            found["PSS, MiB"] = sum(pss_kib(processes)) / 1024
            look(there, run_id, found)
            gate.released.set()
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--steps", type=int, default=200)
    given = options.parse_args()
    steps: list[dict[str, Any]] = [{**ROLE, "id": "first", "task": "Wait."}]
    for number in range(1, given.steps):
        steps.append({**ROLE, "id": f"s{number}", "task": f"Do {number}.", "after": ["first"]})
    kinds: dict[str, dict[str, Any]] = {"one run": {**ROLE, "task": "Wait."}, f"{given.steps} steps": {"steps": steps}}
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for _ in range(given.rounds):
        for name, spawn in kinds.items():
            seen[name].append(measure(spawn, given.seconds))
    print(f"{given.rounds} rounds, load {os.getloadavg()[0]:.1f}; medians")
    print(f"{'':<30}" + "".join(f"{name:>12}" for name in kinds))
    for what in seen["one run"][0]:
        medians = [statistics.median(one[what] for one in seen[name]) for name in kinds]
        print(f"{what:<30}" + "".join(f"{median:>12.3f}" for median in medians))


if __name__ == "__main__":
    main()
