"""A simulation: would chains of their own, one for each user, let several workers append faster than one chain does?

Three processes have twenty runs each in flight; each has an entry written, and as soon as that is committed, the next.
A process commits what waits together, as `store/writer.py` does: it takes the lock of a chain, reads the chain's newest
hash and the rows of the runs, inserts the entries, updates the rows and commits. With a chain for each user, a process
has up to four such writers, a user always the same one; a commit takes the locks of all its users, in order.

What a real change would cost besides (caps of the installation over several chains, verifying, search) is left out, so
that the simulation can only flatter it.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
import psycopg
from support.postgres import PostgresServer

from scale_parts.figures import Figures

PROCESSES, RUNS, WRITERS = 3, 20, 4
USERS = (1, 10, 100)
WARM_S, COUNTED_S = 1.0, 5.0
TEXT = "words of a run " * 50
LOCK = 0x61_76_61
TABLES = """
CREATE TABLE entries (chain int, seq bigint, run int, content text, hash bytea, PRIMARY KEY (chain, seq));
CREATE TABLE states (run int PRIMARY KEY, turns int);
INSERT INTO states SELECT run, 0 FROM generate_series(0, 999) AS run;
"""
NEWEST = "SELECT DISTINCT ON (chain) chain, seq, hash FROM entries WHERE chain = ANY(%s) ORDER BY chain, seq DESC"


async def simulate(kind: str, folder: Path, server: PostgresServer, figures: Figures) -> None:
    """Note the entries a second with one chain and with one for each user; the log in Postgres only."""
    if kind != "Postgres":
        return
    for users in USERS:
        for chains in (1, users) if users > 1 else (1,):
            url = server.database(folder / f"{users}-{chains}")
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute(TABLES)
            name = f"simulated: {users} users, {chains} chains"
            figures.note(f"{name}, entries/s", kind, await anyio.to_thread.run_sync(_rate, url, users, chains))


def _rate(url: str, users: int, chains: int) -> float:
    """Return how many entries are committed a second."""
    spawn = multiprocessing.get_context("spawn")
    counts: Any = spawn.Queue()
    begin = spawn.Barrier(PROCESSES)
    found = [
        spawn.Process(target=_process, args=(number, url, users, chains, begin, counts)) for number in range(PROCESSES)
    ]
    for process in found:
        process.start()
    total = sum(counts.get(timeout=120) for _ in found)
    for process in found:
        process.join(timeout=30)
    return total / COUNTED_S


def _process(number: int, url: str, users: int, chains: int, begin: Any, counts: Any) -> None:
    writers = min(chains, WRITERS)
    jobs: list[queue.SimpleQueue[tuple[int, int] | None]] = [queue.SimpleQueue() for _ in range(writers)]
    done = [0] * writers
    threads = [threading.Thread(target=_write, args=(url, jobs[each], done, each)) for each in range(writers)]
    for thread in threads:
        thread.start()
    begin.wait(60)
    for run in range(number * RUNS, (number + 1) * RUNS):
        chain = run % users if chains > 1 else 0
        jobs[chain % writers].put((chain, run))
    time.sleep(WARM_S)
    before = sum(done)
    time.sleep(COUNTED_S)
    counts.put(sum(done) - before)
    for each in jobs:
        each.put(None)
    for thread in threads:
        thread.join(timeout=30)


def _write(url: str, jobs: queue.SimpleQueue[tuple[int, int] | None], done: list[int], own: int) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        while True:
            batch, last = _waiting(jobs)
            if last:
                return
            _commit(conn, batch)
            done[own] += len(batch)
            for job in batch:  # the run goes on
                jobs.put(job)


def _waiting(jobs: queue.SimpleQueue[tuple[int, int] | None]) -> tuple[list[tuple[int, int]], bool]:
    batch, job = [], jobs.get()
    while job is not None:
        batch.append(job)
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            return batch, False
    return batch, True


def _commit(conn: psycopg.Connection[Any], batch: Sequence[tuple[int, int]]) -> None:
    """Append an entry for each run, in one transaction."""
    chains, runs = sorted({chain for chain, _run in batch}), [run for _chain, run in batch]
    with conn.pipeline():
        conn.execute("BEGIN")
        for chain in chains:
            conn.execute("SELECT pg_advisory_xact_lock(%s, %s)", (LOCK, chain))
        newest = conn.execute(NEWEST, (chains,))
        states = conn.execute("SELECT run, turns FROM states WHERE run = ANY(%s)", (runs,))
        heads = {chain: (seq, bytes(sha)) for chain, seq, sha in newest.fetchall()}
        turns = dict(states.fetchall())
        rows: list[object] = []
        for chain, run in batch:
            seq, sha = heads.get(chain, (0, b""))
            sha = hashlib.sha256(sha + TEXT.encode()).digest()
            heads[chain] = (seq + 1, sha)
            rows += (chain, seq + 1, run, TEXT, sha)
        places = ", ".join(["(%s, %s, %s, %s, %s)"] * len(batch))
        conn.execute(f"INSERT INTO entries VALUES {places}", rows)  # type: ignore[call-overload]
        conn.cursor().executemany(
            "UPDATE states SET turns = %s WHERE run = %s", [(turns[run] + 1, run) for run in runs]
        )
        conn.execute("SELECT pg_notify('entries', '')")
        conn.execute("COMMIT")
