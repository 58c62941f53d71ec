"""A log of many entries, built through the real store, and the same entries as JSON lines for other programs.

The clock is played, so that the entries lie evenly over days as those of a busy week do; the last one stands at the
end of a clock hour, so that "the last hour" is one that `grep` can name.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import anyio

from audit_parts.mix import Together, lives
from audit_parts.report import Report
from ava_audit.entries import mirror_line
from ava_audit.maintenance import index_new_entries
from ava_audit.store import writer
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.store.store import Command, Outcome, Store
from ava_audit.view import View

LAST_HOUR = "2026-01-31T23:"
END_US = 1_769_904_000_000_000
"""The end of that hour."""
STEP_US = 864_000
"""Between two entries: a million of them in 10 days."""
SIDE_BY_SIDE = 100
"""Runs that go on at once, so that the entries of one lie apart."""
AT_ONCE = 2_000
FORM = 2
"""Of what is built; a kept log of another one is not used."""


@dataclass
class Log:
    """The log that is searched and verified: built when it is first wanted, unless it is kept from another time."""

    keep: Path
    entries: int
    report: Report

    @cached_property
    def folder(self) -> Path:
        """The data root."""
        folder = self.keep / f"audit-{self.entries}-schema{SCHEMA_VERSION}-form{FORM}"
        note = folder / "built.json"
        if not note.is_file():
            if folder.exists():
                raise SystemExit(f"{folder} was left half built: remove it")
            folder.mkdir(mode=0o700, parents=True)
            note.write_text(json.dumps({"text": anyio.run(_build, folder, self.entries)}), "utf-8")
        self.report.say(json.loads(note.read_text("utf-8"))["text"])
        return folder

    @property
    def database(self) -> Path:
        """The database file."""
        return self.folder / "ava.db"

    @property
    def lines(self) -> Path:
        """The same entries as JSON lines, in one file."""
        return self.folder / "all.jsonl"


async def _build(folder: Path, entries: int) -> str:
    print(f"building a log of {entries:,} entries in {folder}", flush=True)
    async with Store.open(folder) as store:
        began = time.perf_counter()
        with _played_clock() as clock:
            await _write(store, entries, clock)
        write_s = time.perf_counter() - began
        began = time.perf_counter()
        await index_new_entries(store)
        index_s = time.perf_counter() - began
        await store.checkpoint()
        with (folder / "all.jsonl").open("wb") as out:
            for after in range(0, entries, AT_ONCE):
                out.writelines(await store.read(partial(_lines, after=after)))
    size, lines = ((folder / name).stat().st_size / 1e6 for name in ("ava.db", "all.jsonl"))
    return (
        f"A log of {entries:,} entries: written in {write_s:.0f} s, indexed in {index_s:.0f} s "
        f"({index_s / entries * 1e6:.0f} µs an entry); {size:,.0f} MB with its index, {lines:,.0f} MB as JSON lines."
    )


def _lines(view: View, after: int) -> list[bytes]:
    return [mirror_line(row) for row in view.rows("seq > ? AND seq <= ?", after, after + AT_ONCE)]


async def _write(store: Store, entries: int, clock: _Clock) -> None:
    source = lives(0, SIDE_BY_SIDE, random.Random(1))
    head = 0
    while head < entries:
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                events = next(source)[: entries - head]
                tasks.start_soon(store.do, _at(clock, END_US - (entries - head) * STEP_US, events))
                head += len(events)
        await store.checkpoint()


class _Clock:
    def __init__(self) -> None:
        self.now_us = 0

    def time_ns(self) -> int:
        self.now_us += 1
        return self.now_us * 1_000


def _at(clock: _Clock, now_us: int, events: Together) -> Command[None]:
    def command(_view: View, _now_us: int) -> Outcome[None]:
        clock.now_us = now_us
        return Outcome(None, events)

    return command


@contextmanager
def _played_clock() -> Generator[_Clock]:
    clock = _Clock()
    real = writer.now_us
    writer.now_us = lambda: clock.time_ns() // 1_000
    try:
        yield clock
    finally:
        writer.now_us = real
