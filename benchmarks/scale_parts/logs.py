"""Entries written by one task and by many, and searches in a log of one run of the benchmark."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import anyio
from support.log import message, run_who, write
from support.postgres import PostgresServer

from ava_audit.maintenance import index_new_entries
from ava_audit.search import LogQuery, search
from ava_audit.store.store import Store
from scale_parts.figures import Figures

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


async def measure(entries: int, kind: str, root: Path, server: PostgresServer, figures: Figures) -> None:
    """Write and search one log, and note the figures under its kind."""
    async with Store.open(root, server.database(root) if kind == "Postgres" else "") as log:
        for producers in PRODUCERS:
            count = entries if producers > 1 else max(entries // 20, 200)
            began = time.perf_counter()
            took = await produce(log, producers, texts(count, producers))
            figures.note(f"entries/s, {producers} at once", kind, count / (time.perf_counter() - began))
            figures.note_times(f"acknowledged, {producers} at once", kind, took)
        began = time.perf_counter()
        await index_new_entries(log)
        figures.note("indexed entries/s", kind, log.head / (time.perf_counter() - began))
        await search_all(log, kind, figures)


async def search_all(log: Store, kind: str, figures: Figures) -> None:
    """Search a log, and note how long each query takes."""
    many = f"{log.head:,} entries"
    for name, query in QUERIES.items():
        await search(log, query)
        looks: list[float] = []
        for _ in range(LOOKS):
            began = time.perf_counter()
            await search(log, query)
            looks.append(time.perf_counter() - began)
        figures.note(f"search {many}, {name}, p50 ms", kind, statistics.median(looks) * 1_000)


def texts(count: int, seed: int, length: int = 150) -> list[str]:
    """Return texts of so many words, some of which have the words that are searched for."""
    dice = random.Random(seed)
    made: list[str] = []
    for number in range(count):
        words = dice.choices(WORDS, k=length)
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
            await write(log, message(text, who))
            took.append(time.perf_counter() - began)

    async with anyio.create_task_group() as tasks:
        for name in range(producers):
            tasks.start_soon(one, name)
    return took
