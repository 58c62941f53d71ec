"""A log whose days pass as a test says, and what is left of its words."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from ava_audit.events import LogErased
from ava_audit.maintenance import index_new_entries
from ava_audit.mirror import Mirror
from ava_audit.retention import erase_expired, finish_erasures
from ava_audit.store.store import Store
from ava_audit.verify import verify, verify_lines
from support.log import Life, child, write_each, write_texts

DAY_S = 86_400
NOON = 1_800_014_400
"""Noon of a day, UTC, in seconds."""


class LogClock:
    """The clock of this process, as the test sets it; it goes on by a microsecond a look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns = NOON * 10**9
        monkeypatch.setattr(time, "time_ns", self._look)

    def _look(self) -> int:
        self.ns += 1_000
        return self.ns

    def days(self, days: float) -> None:
        """Let days pass."""
        self.ns += int(days * DAY_S * 10**9)


async def write_run_about(log: Store, run_id: str, word: str, *, ends: bool = True) -> Life:
    """Write a run with a word in its task, its tool's output and its answer."""
    life = Life(run_id)
    await write_each(log, [life.proposal(), life.task(f"look for {word}"), life.approval(), life.claim()])
    await write_each(log, [*life.tool(f"found {word}"), life.answer(f"it is {word}")])
    if ends:
        await write_each(log, life.ending())
    return life


async def words_in_files(root: Path, *words: str) -> set[str]:
    """Which words stand in any byte of a data root; the index stores a word without what it shares with another.

    Read by another process: closing a file that SQLite has open here would let go of its locks.
    """
    code = (
        "import sys, json; from pathlib import Path\n"
        "data = b'|'.join(path.read_bytes().lower() for path in Path(sys.argv[1]).rglob('*') if path.is_file())\n"
        "print(json.dumps([word for word in sys.argv[2:] if word[3:].encode() in data]))"
    )
    found = await anyio.run_process(child(code, root, *words))
    return set(json.loads(found.stdout))


def make_run_folders(root: Path, *run_ids: str) -> tuple[Path, ...]:
    """Make the artifact and scratch folders of runs, with a word in a file; return both roots."""
    for kind in ("artifacts", "scratch"):
        for run_id in run_ids:
            (root / kind / run_id / "below").mkdir(parents=True)
            (root / kind / run_id / "below" / "file.txt").write_text(f"{run_id} zorillafile")
    return root / "artifacts", root / "scratch"


async def keep_once(log: Store, root: Path, *, days: int = 90, own: Iterable[Path] = ()) -> None:
    """Do one whole round of the keeper."""
    await index_new_entries(log)
    mirror = Mirror(log, root / "logs")
    await mirror.repair_all()
    await mirror.catch_up()
    while not await erase_expired(log, days, batches=3):
        pass
    await finish_erasures(log, mirror, own, mirrored=True)
    await mirror.catch_up()


async def erasures(log: Store) -> list[tuple[str | None, int]]:
    """Return what was erased so far: each run, and how many entries."""
    rows = await log.read(lambda view: list(view.rows("type = 'LogErased'")))
    facts = [LogErased.model_validate_json(row[17]) for row in rows]
    return [(fact.run_id, fact.entries) for fact in facts]


async def assert_intact(root: Path) -> None:
    """Assert that the log and each file of its mirror verify."""
    report = await anyio.to_thread.run_sync(verify, root)
    assert report.ok and report.projections, report
    for path in (root / "logs").rglob("*.jsonl"):
        lines = await anyio.to_thread.run_sync(verify_lines, path)
        assert lines.ok and lines.entries, (path, lines)


async def pass_days(log: Store, clock: LogClock, days: int, every: int = 10) -> None:
    """Let so many days pass in which the log is used now and then."""
    for _ in range(days // every):
        clock.days(every)
        await write_texts(log, ["a day of use"])
