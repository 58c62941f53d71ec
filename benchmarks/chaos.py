"""Everything that can fail fails at random, while hosts start runs on three workers and two servers.

    python benchmarks/chaos.py SECONDS [--engine none|nats|temporal] [--seed 1] [--day-cents 100000]
    python benchmarks/chaos.py SECONDS --takeovers sqlite|postgres [--seed 1]

The log is in a Postgres server of its own, and so is the engine that delivers runs, which fails too: it is killed,
loses its store, and machines lose their way to it. With `--takeovers`, only this happens: two processes that run
subagents are stopped and woken, so that they take runs from each other. It prints what was done and what was wrong, and
exits with 1 if anything was. It is the code of `tests/system/test_chaos.py` and `test_takeovers.py`, for as long as you
like.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import anyio

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), *(str(ROOT / each) for each in ("server", "roles", "audit"))]

from support.chaos.play import Chaos, Plan  # noqa: E402
from support.chaos.run import play_and_check  # noqa: E402
from support.chaos.takeovers import Takeovers  # noqa: E402
from support.engines.servers import KINDS, run_engine  # noqa: E402
from support.postgres import postgres_server  # noqa: E402


def main() -> int:
    """Play, and print what was seen."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("seconds", type=float)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--day-cents", type=int, default=100_000, help="the cap of the installation's day")
    options.add_argument("--engine", choices=KINDS, default="none", help="what delivers runs; none: the log itself")
    options.add_argument("--takeovers", choices=["sqlite", "postgres"], help="only stop and wake two processes")
    chosen = options.parse_args()
    print(f"{platform.system()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ava-chaos-") as folder:
        chaos: Chaos | Takeovers
        if chosen.takeovers:
            url = postgres_server().address(Path(folder)) if chosen.takeovers == "postgres" else ""
            chaos = Takeovers(chosen.seconds, chosen.seed, url)
            anyio.run(chaos.play, Path(folder))
        else:
            plan = Plan(chosen.seconds, chosen.seed, day_cents=chosen.day_cents)
            with run_engine(chosen.engine, Path(folder) / "engine") as engine:
                chaos = anyio.run(play_and_check, plan, Path(folder), postgres_server(), engine)
        for name, number in sorted(chaos.counts.items()):
            print(f"{number:8,} {name}")
        print(f"{len(chaos.faults):8,} faults")
        for fault in chaos.faults[:50]:
            print(f"FAULT {fault}")
    return 1 if chaos.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
