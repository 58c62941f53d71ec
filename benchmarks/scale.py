"""The log in the embedded database beside the log on a Postgres server, both durable, on this machine.

    python benchmarks/scale.py [--entries 20000] [--repeat 3]

Each repetition writes and searches both, one after the other, in folders and databases of their own. The Postgres
server is one of this run: Debian's `postgresql`, reached over its socket, fsync on.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import anyio

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), *(str(ROOT / each) for each in ("server", "roles", "audit"))]

from support.log import run_who, said, write  # noqa: E402
from support.postgres import PostgresServer, running_server  # noqa: E402

from ava_audit.maintenance import index_new_entries  # noqa: E402
from ava_audit.search import LogQuery, search  # noqa: E402
from ava_audit.store.store import Store  # noqa: E402

KINDS = ("SQLite", "Postgres")
PRODUCERS = (1, 100)
LOOKS = 25
WORDS = [f"{a}{b}{c}" for a in ("or", "ta", "wel", "mi") for b in ("bi", "so", "ra", "nek") for c in ("n", "lo", "st")]
QUERIES = {
    "rare word": LogQuery(search="zeppelin"),
    "word in a third": LogQuery(search="otter"),
    "two adjacent words": LogQuery(search='"otter charges"'),
    "word and run": LogQuery(search="otter", agents=("S-000007",)),
    "run, newest 50": LogQuery(agents=("S-000007",)),
}

Figures = dict[str, dict[str, list[float]]]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--entries", type=int, default=20_000, help="written by 100 tasks, and searched")
    options.add_argument("--repeat", type=int, default=3)
    chosen = options.parse_args()
    server, figures = running_server(), Figures()
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    print(
        f"{platform.system()}, {os.cpu_count()} cores, {load}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, Postgres in {server.bin}; {chosen.entries:,} entries of about 1 kB"
    )
    for number in range(chosen.repeat):
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                anyio.run(measure, kind, Path(folder), server, chosen.entries, number, figures)
        server.empty_databases()
    print(f"\nMedian of {chosen.repeat} (lowest to highest)\n")
    print(f"{'':34}" + "".join(f"{kind:>34}" for kind in KINDS))
    for name, found in figures.items():
        print(f"{name:34}" + "".join(f"{shown(found[kind]):>34}" for kind in KINDS))


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):,.2f} ({min(values):,.2f} to {max(values):,.2f})"


async def measure(kind: str, root: Path, server: PostgresServer, entries: int, seed: int, figures: Figures) -> None:
    """Write and search one log, and note the figures under its kind."""

    def note(name: str, value: float) -> None:
        figures.setdefault(name, {}).setdefault(kind, []).append(value)

    async with Store.open(root, server.database(root) if kind == "Postgres" else "") as log:
        for producers in PRODUCERS:
            count = entries if producers > 1 else max(entries // 20, 200)
            began = time.perf_counter()
            took = await produce(log, producers, texts(count, seed))
            note(f"entries/s, {producers} at once", count / (time.perf_counter() - began))
            note(f"acknowledged after ms p50, {producers}", statistics.median(took) * 1_000)
            note(f"acknowledged after ms p99, {producers}", statistics.quantiles(took, n=100)[98] * 1_000)
        began = time.perf_counter()
        await index_new_entries(log)
        note("indexed entries/s", log.head / (time.perf_counter() - began))
        for name, query in QUERIES.items():
            await search(log, query)
            looks: list[float] = []
            for _ in range(LOOKS):
                began = time.perf_counter()
                await search(log, query)
                looks.append(time.perf_counter() - began)
            note(f"search ms p50, {name}", statistics.median(looks) * 1_000)


def texts(count: int, seed: int) -> list[str]:
    dice = random.Random(seed)
    made: list[str] = []
    for number in range(count):
        words = dice.choices(WORDS, k=150)
        if number % 3 == 0:
            words[40:42] = ["otter", "charges" if number % 300 == 0 else "swims"]
        if number % 5_000 == 99:
            words[7] = "zeppelin"
        made.append(" ".join(words))
    return made


async def produce(log: Store, producers: int, given: Iterable[str]) -> list[float]:
    """Write texts by some tasks, each waiting for its acknowledgement; return how long each waited in seconds."""
    left, took = iter(given), list[float]()

    async def one(name: int) -> None:
        who = run_who(f"S-{name:06d}")
        for text in left:
            began = time.perf_counter()
            await write(log, said(text, who))
            took.append(time.perf_counter() - began)

    async with anyio.create_task_group() as tasks:
        for name in range(producers):
            tasks.start_soon(one, name)
    return took


if __name__ == "__main__":
    main()
