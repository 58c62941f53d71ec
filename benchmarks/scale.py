"""The log in the embedded database beside the log on a Postgres server, both durable, on this machine.

    python benchmarks/scale.py [--only writing,delivery,…] [--entries 20000] [--repeat 3] [--many 100000]
                               [--runs 60] [--waiting 1000]

Servers and workers are processes of their own; with Postgres, each worker has a data root of its own, as on another
machine. The Postgres server is one of this run: Debian's `postgresql`, reached over its socket, fsync on. Delivery is
also measured with pgqueuer, a job queue on the same Postgres server, alone and in front of Ava's log, if it is there
(`pip install pgqueuer asyncpg`).

Statements are counted by pg_stat_statements, without BEGIN, COMMIT and ROLLBACK.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), *(str(ROOT / each) for each in ("server", "roles", "audit"))]

from scale_parts import chains, delivering, engine, logs, many, peer_pgqueuer, statements  # noqa: E402
from scale_parts.figures import Figures  # noqa: E402
from support.postgres import PostgresServer, postgres_server  # noqa: E402

KINDS = ("SQLite", "Postgres")
WORKERS = 3
Part = Callable[[str, Path, PostgresServer, Figures], Awaitable[None]]


def main() -> None:
    chosen = options()
    server, figures = postgres_server(), Figures()
    statements.enable(server)
    print(
        f"{platform.system()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python"
        f" {platform.python_version()}, SQLite {sqlite3.sqlite_version}, Postgres in {server.bin};"
        f" {chosen.entries:,} entries of about 1 kB, medians of {chosen.repeat}",
        flush=True,
    )
    for name, part in parts(chosen).items():
        if name not in chosen.only.split(","):
            continue
        for _ in range(chosen.repeat if name in ("writing", "drain") else 1):
            for kind in (*KINDS, *engines(name)):
                with tempfile.TemporaryDirectory() as folder:
                    anyio.run(part, kind, Path(folder), server, figures)
            server.empty_databases()
        if name in peers(chosen):
            with_pgqueuer(server, peers(chosen)[name], figures)
        figures.show(name)


def options() -> argparse.Namespace:
    """Return what was given on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="delivery,takeover,drain,idle,writing,many,chains")
    parser.add_argument("--entries", type=int, default=20_000, help="written by 100 tasks, and searched")
    parser.add_argument("--repeat", type=int, default=3, help="of writing and searching, and of waiting runs")
    parser.add_argument("--many", type=int, default=100_000, help="entries that are generated and searched")
    parser.add_argument("--runs", type=int, default=60, help="delivered one by one, and cancelled")
    parser.add_argument("--waiting", type=int, default=1_000, help=f"runs that wait for {WORKERS} workers")
    return parser.parse_args()


def parts(chosen: argparse.Namespace) -> dict[str, Part]:
    """Return what is measured with each log."""

    async def drain(kind: str, folder: Path, server: PostgresServer, figures: Figures) -> None:
        for runs, workers in ((chosen.waiting // 5, 1), (chosen.waiting, WORKERS)):
            root = folder / str(workers)
            root.mkdir()
            await delivering.drain(kind, root, server, runs, workers, figures)

    async def idle(kind: str, folder: Path, server: PostgresServer, figures: Figures) -> None:
        if kind == "Postgres":
            await delivering.idle(folder, server, figures)

    return {
        "delivery": partial(_with, delivering.delivery, chosen.runs),
        "takeover": delivering.takeover,
        "drain": drain,
        "idle": idle,
        "writing": partial(_with, logs.measure, chosen.entries),
        "many": partial(_with, many.searches, chosen.many),
        "chains": chains.simulate,
    }


async def _with(part: Callable[..., Awaitable[None]], size: int, *given: object) -> None:
    await part(size, *given)


def peers(chosen: argparse.Namespace) -> dict[str, Callable[[str, Figures, Callable[[], int]], Awaitable[None]]]:
    """Return what is measured with pgqueuer."""
    return {
        "delivery": partial(peer_pgqueuer.delivery, chosen.runs),
        "drain": partial(peer_pgqueuer.drains, {1: chosen.waiting // 5, WORKERS: chosen.waiting}),
        "idle": peer_pgqueuer.idle,
    }


def engines(part: str) -> tuple[str, ...]:
    """Return the kinds of log in front of which an engine delivers."""
    return (engine.NAME,) if part in ("delivery", "takeover", "drain") and engine.is_installed() else ()


def with_pgqueuer(
    server: PostgresServer, part: Callable[[str, Figures, Callable[[], int]], Awaitable[None]], figures: Figures
) -> None:
    """Measure pgqueuer in a database of its own, if it is installed."""
    if not peer_pgqueuer.version():
        print(f"pgqueuer is not measured, because it is not installed: {peer_pgqueuer.INSTALL}")
        return
    with tempfile.TemporaryDirectory() as folder:
        url = server.database(Path(folder))
        anyio.run(peer_pgqueuer.install, url)
        name = url.rpartition("/")[2]
        anyio.run(part, url, figures, partial(statements.counted, server, name))
        anyio.run(peer_pgqueuer.uninstall, url)
    server.empty_databases()


if __name__ == "__main__":
    main()
