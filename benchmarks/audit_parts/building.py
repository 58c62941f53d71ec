"""A log of many entries, built by the real writer, and the same entries as JSON lines for other programs.

The clock is played, so that the entries lie evenly over days as those of a busy week do; the last one stands at the
end of a clock hour, so that "the last hour" is one that `grep` can name.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import random
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace

import anyio

from audit_parts.mix import Together, lives
from audit_parts.report import Report
from ava_audit import units
from ava_audit.database import Database
from ava_audit.entries import mirror_line
from ava_audit.maintenance import INDEX_BATCH, next_index_rows
from ava_audit.projections import Projections, index_words
from ava_audit.store.backend import Backend
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.store.sqlite import backend_of
from ava_audit.store.store import Store
from ava_audit.store.writer import Appender
from ava_audit.view import View

LAST_HOUR = "2026-01-31T23:"
END_US = 1_769_904_000_000_000
"""The end of that hour."""
STEP_US = 864_000
"""Between two entries: a million of them in 10 days."""
SIDE_BY_SIDE = 100
"""Runs that go on at once, so that the entries of one lie apart."""
AT_ONCE = 5_000
APART = multiprocessing.get_context("spawn")
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
    source = _cut(lives(0, SIDE_BY_SIDE, random.Random(1)), entries)
    took_s = write(folder, source, lambda head: END_US - (entries - head) * STEP_US)
    async with Store.open(folder) as store:
        with (folder / "all.jsonl").open("wb") as out:
            for after in range(0, entries, AT_ONCE):
                out.writelines(await store.read(partial(_lines, after=after)))
    size, lines = ((folder / name).stat().st_size / 1e6 for name in ("ava.db", "all.jsonl"))
    return (
        f"A log of {entries:,} entries: written and indexed in {took_s:.0f} s; {size:,.0f} MB with its index, "
        f"{lines:,.0f} MB as JSON lines."
    )


def _lines(view: View, after: int) -> list[bytes]:
    return [mirror_line(row) for row in view.rows("seq > ? AND seq <= ?", after, after + AT_ONCE)]


def write(root: Path, source: Iterator[Together], time_us: Callable[[int], int]) -> float:
    """Write a log and its text index as the writer and the keeper do, side by side; return the seconds it took.

    Only, transactions are larger, and none waits for the disk. What the source yields at once belongs together;
    `time_us` is then asked for its time, with the number of entries before.
    """
    began, whole = time.perf_counter(), APART.Event()
    with _opened(root) as (backend, db):
        indexer = APART.Process(target=_index, args=(root, whole))
        indexer.start()
        projections, clock = Projections(db), _Clock()
        while (first := next(source, None)) is not None:
            projections.begin(())
            appender = Appender(db, projections)
            with clock.played():
                for events in chain((first,), islice(source, AT_ONCE)):
                    clock.now_us = max(clock.now_us, time_us(appender.head))
                    appender.append(events, appender.check(events))
            with backend.turn():
                db.begin_write()
                projections.flush()
                db.commit(appender.commit)
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        whole.set()
        indexer.join()
        if indexer.exitcode != 0:
            raise SystemExit(f"the text index was not written: exit code {indexer.exitcode}")
    return time.perf_counter() - began


def _index(root: Path, whole: Event) -> None:
    with _opened(root) as (backend, db):
        while True:
            last, behind = whole.is_set(), View(db).head() - View(db).progress("words")
            if last and not behind:
                return
            if behind < AT_ONCE and not last:
                whole.wait(0.2)
                continue
            with backend.turn():
                db.begin_write()
                for _ in range(AT_ONCE // INDEX_BATCH):
                    after, erased, rows, _whole = next_index_rows(View(db))
                    index_words(db, rows, after=after, erased=erased)
                db.commit()


@contextmanager
def _opened(root: Path) -> Generator[tuple[Backend, Database]]:
    backend = backend_of(root)
    backend.prepare()
    with closing(backend), closing(backend.connect()) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -200000")
        gc.disable()  # a fifth of the time; nothing here is in a cycle
        try:
            yield backend, db
        finally:
            gc.enable()


def _cut(source: Iterator[Together], entries: int) -> Iterator[Together]:
    while entries > 0:
        events = next(source)[:entries]
        entries -= len(events)
        yield events


class _Clock:
    def __init__(self) -> None:
        self.now_us = 0

    def _time_ns(self) -> int:
        self.now_us += 1
        return self.now_us * 1_000

    @contextmanager
    def played(self) -> Generator[None]:
        real = units.time
        units.time = SimpleNamespace(time_ns=self._time_ns, gmtime=real.gmtime)  # type: ignore[assignment]
        try:
            yield
        finally:
            units.time = real
