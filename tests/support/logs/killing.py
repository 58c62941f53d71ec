"""A writer that is killed under load, again and again, and what the log then has of what was acknowledged.

killed = kill_the_writer(root, rounds=20)
killed.acknowledged, killed.lost     # the second is to be empty
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from ava_audit.maintenance import run_maintenance
from ava_audit.store import backend, sqlite
from ava_audit.store.store import Store
from ava_audit.verify import verify, verify_lines
from ava_audit.view import View
from support.log import child, look_at

TASKS = 50
TESTS = Path(__file__).parents[2]

WRITER = """
import os, sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ava_audit.maintenance import run_maintenance
from ava_audit.store.store import Outcome, Store
from support.log import message

def next_one(text):
    return lambda view, _now: Outcome(view.head() + 1, (message(text),))

async def main(root, life, tasks):
    async with Store.open(root) as log, anyio.create_task_group() as group:
        async def produce(task):
            number = 0
            while True:
                number += 1
                text = f"{life}-{task}-{number}"
                seq = await log.do(next_one(text))
                os.write(1, f"{seq} {text}\\n".encode())
        group.start_soon(lambda: run_maintenance(log, root, mirror=True))
        for task in range(tasks):
            group.start_soon(produce, task)

anyio.run(main, Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
"""


@dataclass
class KilledWriter:
    """What is known after a writer was killed again and again."""

    rounds: int = 0  # how often the writer was killed
    acknowledged: int = 0  # how many entries it was told of, over all rounds
    lost: list[str] = field(default_factory=list[str])  # those that the log did not have afterwards, as `seq text`
    faults: list[str] = field(default_factory=list[str])  # what verification found, of the log and of its mirror
    seconds: float = 0.0  # how long it all took


def kill_the_writer(root: Path, *, rounds: int, tasks: int = TASKS, seed: int = 4) -> KilledWriter:
    """Start a writer on a data root, kill it at a random moment, look; as many times, on one growing log."""
    chance = random.Random(seed)
    killed = KilledWriter()
    began = time.monotonic()
    for number in range(rounds):
        heard = _one_life(root, str(number), tasks, chance.uniform(0.0, 0.4))
        killed.rounds += 1
        killed.acknowledged += len(heard)
        anyio.run(_reopened, root)
        written = _texts(root)
        killed.lost += [f"{seq} {text}" for seq, text in heard if written.get(seq) != text]
        killed.faults += [fault.text for fault in verify(root).faults]
        killed.faults += list(_mirror_faults(root, len(written)))
    killed.seconds = time.monotonic() - began
    return killed


def _one_life(root: Path, name: str, tasks: int, after_s: float) -> list[tuple[int, str]]:
    """Let a writer write, and kill it some time after its first entry; return what it was told of."""
    told = root.parent / f"{root.name}-told-{name}"
    env = {**os.environ, backend.VARIABLE: sqlite.database_url(root)}
    with (
        told.open("wb") as out,
        subprocess.Popen(child(WRITER, TESTS, root, name, str(tasks)), stdout=out, env=env) as process,
    ):
        try:
            deadline = time.monotonic() + 20
            while told.stat().st_size == 0:
                assert process.poll() is None and time.monotonic() < deadline, "the writer wrote nothing"
                time.sleep(0.005)
            time.sleep(after_s)
        finally:
            process.kill()
    whole = told.read_text().rpartition("\n")[0].splitlines()  # the last line may be torn
    told.unlink()
    return [(int(seq), text) for seq, _, text in (line.partition(" ") for line in whole)]


async def _reopened(root: Path) -> None:
    """Open the log as the next server does, and let its keeper finish what the killed one had begun."""
    async with Store.open(root) as log, anyio.create_task_group() as group:
        group.start_soon(lambda: run_maintenance(log, root, mirror=True))
        with anyio.fail_after(20):
            while await log.read(_behind):  # noqa: ASYNC110 - nothing tells how far a keeper is
                await anyio.sleep(0.02)
        group.cancel_scope.cancel()


def _behind(view: View) -> bool:
    return min(view.progress("words"), view.progress("mirror")) < view.head()


def _texts(root: Path) -> dict[int, str]:
    with look_at(root) as db:
        return {seq: json.loads(content)["text"] for seq, content in db.execute("SELECT seq, content FROM events")}


def _mirror_faults(root: Path, entries: int) -> Iterator[str]:
    """Yield what is wrong with the mirror: a line, or one that is missing."""
    lines = 0
    for path in sorted((root / "logs" / "ava").glob("*.jsonl")):
        report = verify_lines(path)
        lines += report.entries
        yield from (f"{path.name}: {fault.text}" for fault in report.faults)
    if lines != entries:
        yield f"the mirror has {lines} lines, the log {entries} entries"
