"""What delivers runs to workers: the log itself, NATS and Temporal side by side, on this machine.

    python benchmarks/delivery.py [--only delivery,takeover,drain,idle] [--engines none,nats,temporal] [--runs 60]
                                  [--takeovers 5] [--waiting 200]

The log is in a Postgres server of this run, fsync on; NATS has `sync_interval: always`, Temporal is its development
server with a store on disk. Each worker has a data root of its own, as on another machine. The engines take turns in
one run, so ratios to `none` count more than times: the machine may have other work.

Floor: `none`. Goals: delivery p50 at most 2 times, a takeover at most two leases (6 s), as many runs a second.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), *(str(ROOT / each) for each in ("server", "roles", "audit"))]

from scale_parts import delivering, statements  # noqa: E402
from scale_parts.figures import Figures  # noqa: E402
from support.engines.servers import KINDS, why_missing  # noqa: E402
from support.postgres import PostgresServer, postgres_server  # noqa: E402

WORKERS = 3
Part = Callable[[str, Path, PostgresServer, Figures], Awaitable[None]]


def main() -> None:
    chosen = options()
    kinds = [kind for kind in chosen.engines.split(",") if usable(kind)]
    server, figures = postgres_server(), Figures(kinds, ratio_to=kinds[0])
    statements.enable(server)
    load = os.getloadavg()[0]
    print(
        f"{platform.system()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}", flush=True
    )
    for name, part in parts(chosen).items():
        if name not in chosen.only.split(","):
            continue
        for kind in kinds:
            with tempfile.TemporaryDirectory(prefix="ava-delivery-") as folder:
                anyio.run(part, kind, Path(folder), server, figures)
            server.empty_databases()
        figures.show(name)


def options() -> argparse.Namespace:
    """Return what was given on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="delivery,takeover,drain,idle")
    parser.add_argument("--engines", default=",".join(KINDS), help="the first one is what the others are compared with")
    parser.add_argument("--runs", type=int, default=60, help="delivered one by one, and cancelled")
    parser.add_argument("--takeovers", type=int, default=5, help="of each kind of fault")
    parser.add_argument("--waiting", type=int, default=200, help=f"runs that wait for {WORKERS} workers")
    return parser.parse_args()


def usable(kind: str) -> bool:
    """Tell whether an engine is here, and say so if it is not."""
    if (why := why_missing(kind)) is not None:
        print(f"{kind} is not measured: {why}")
    return why is None


def parts(chosen: argparse.Namespace) -> dict[str, Part]:
    """Return what is measured of each engine."""

    async def drain(kind: str, folder: Path, server: PostgresServer, figures: Figures) -> None:
        await delivering.drain(kind, folder, server, chosen.waiting, WORKERS, figures)

    return {
        "delivery": partial(delivering.delivery, chosen.runs),
        "takeover": partial(delivering.takeover, times=chosen.takeovers),
        "drain": drain,
        "idle": delivering.processor,
    }


if __name__ == "__main__":
    main()
