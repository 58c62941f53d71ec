"""What it costs to run `true` in a sandbox, supervised, watched and reaped: beside a bare fork and bubblewrap alone.

    python benchmarks/confinement.py [--rounds 25] [--json FILE]

Everything is started from one process, in turns. Goals: 15 times a bare fork, and 35 times for the first command, which
starts a supervisor too. What cannot run on this machine is left out, and said.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path, PurePosixPath

import anyio
import anyio.to_thread
from figures import Figure, write_json

from ava_roles.sandbox import linux, selection
from ava_roles.sandbox.sandbox import Bind, Command, Kind
from ava_roles.sandbox.selection import probe_sandbox
from ava_roles.sandbox.supervised import Machine, SupervisedSandbox

GOAL, FIRST_GOAL = 15.0, 35.0
FIRST = ", first command"
KINDS: tuple[Kind, ...] = ("bubblewrap", "landlock", "none")
FLOOR, TRUE, HERE = "bare fork", "/usr/bin/true", PurePosixPath("/workspace")
ALONE = (
    "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib",
    "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--", TRUE,
)  # fmt: skip

Run = Callable[[], Awaitable[object]]


def ways(folder: Path) -> dict[str, Run]:
    """Each way to run `true` that works here, by its name."""
    uid = (selection.pick_uid(folder) or 0) if linux.is_root() else 0
    bwrap = shutil.which("bwrap")
    found: dict[str, Run] = {FLOOR: lambda: anyio.run_process([TRUE])}
    if bwrap is not None:
        drop = ["/usr/bin/setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        alone = [*drop, bwrap, *ALONE]
        if subprocess.run(alone, capture_output=True, check=False).returncode == 0:
            found["bubblewrap alone"] = lambda: anyio.run_process(alone)
    here = folder / "here"
    here.mkdir()
    command = Command((TRUE,), HERE, (Bind(here, HERE, writable=True),), {}, 10.0)
    for kind in KINDS:
        machine = Machine(uid if kind != "none" else 0, bwrap or "", linux.landlock_abi())
        sandbox = SupervisedSandbox(kind, machine, folder)
        fault = probe_sandbox(sandbox, folder) if kind != "none" else None
        if fault is None:
            found[f"sandbox: {kind}"] = partial(sandbox.run, command)
            found[f"sandbox: {kind}{FIRST}"] = partial(run_first, kind, machine, folder, command)
        else:
            print(f"{kind} is left out: {fault}")
    return found


async def run_first(kind: Kind, machine: Machine, folder: Path, command: Command) -> None:
    """Run a command in a new sandbox, which has no supervisor yet."""
    await SupervisedSandbox(kind, machine, folder).run(command)


async def measure(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Milliseconds that each way takes."""
    took: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name in sorted(runs, reverse=bool(number % 2)):  # none is always the first
            began = time.perf_counter()
            await runs[name]()
            if number:  # the first round only fills the caches
                took[name].append((time.perf_counter() - began) * 1000)
    return took


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=25)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        took = anyio.run(measure, ways(Path(name)), chosen.rounds)
    floor = statistics.median(took[FLOOR])
    figures: list[Figure] = []
    for name, times in took.items():
        median = statistics.median(times)
        verdict = ""
        if name.startswith("sandbox"):
            goal = FIRST_GOAL if name.endswith(FIRST) else GOAL
            figures.append(Figure(f"`true`, {name}", median, "ms", goal, floor))
            verdict = f"; goal {goal:g}: {'reached' if figures[-1].reached else 'MISSED'}"
        print(
            f"{name:<34} median {median:6.1f} ms   min {min(times):6.1f}   max {max(times):6.1f}   "
            f"{median / floor:5.1f} x a bare fork{verdict}"
        )
    if chosen.json:
        write_json(chosen.json, figures)


if __name__ == "__main__":
    main()
