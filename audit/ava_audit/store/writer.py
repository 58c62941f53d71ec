"""The writer: one thread, one transaction a batch, acknowledged after COMMIT; nobody else holds a writing connection.

It takes jobs in the order in which they were put: commands, whose outcomes are appended in order; housekeeping, which
writes what is no view of the log; checkpoints. If a command raises, nothing of it is written and the others go on; if
applying fails, the batch is rolled back and its jobs run again one by one, each in its own transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from ava_audit.entries import ENTRY_COLUMNS, GENESIS, content_of, content_sha, entry_hash
from ava_audit.errors import EntryTooLarge, SchemaNewer, StaleOwner
from ava_audit.events import Event, Fence
from ava_audit.projections import Projections
from ava_audit.reducers import Header, reduce
from ava_audit.rows import RUNNING
from ava_audit.sanitize import sanitize_json
from ava_audit.store.locks import WriteLock
from ava_audit.store.schema import BUSY_MS, SCHEMA_VERSION, connect, schema_version, translate_error
from ava_audit.view import Command, Outcome, View

MAX_ENTRY_BYTES = 2_000_000
_INSERT = f"INSERT INTO events ({ENTRY_COLUMNS}) VALUES ({', '.join('?' * 20)})"  # noqa: S608


class Appender:
    """Appends events to the log inside the writer's transaction."""

    def __init__(self, db: sqlite3.Connection, tables: Projections) -> None:
        self._db = db
        self.tables = tables
        row = db.execute("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        self.head: int = row[0] if row else 0
        self._hash: bytes = row[1] if row else GENESIS

    def check(self, events: tuple[Event, ...]) -> list[bytes]:
        """Return the content of each event, or raise before anything is written.

        Raises:
            StaleOwner: A fence is older than the run's claim, or the run has ended.
            EntryTooLarge: A content is over 2 MB.
        """
        checked: Fence | None = None
        for event in events:
            if event.fence is not None and event.fence != checked:
                checked = event.fence
                run = self.tables.runs.seen(checked.run_id)
                if run is None or run.generation != checked.generation or run.state != RUNNING:
                    raise StaleOwner(
                        f"{checked.run_id} is no longer owned by this claim (generation {checked.generation})"
                    )
        return [_content(event) for event in events]

    def outcome(self, value: Any) -> Any:
        """Return what housekeeping answers, with its events appended where it has any."""
        if not isinstance(value, Outcome):
            return value
        done = cast("Outcome[Any]", value)
        self.append(done.events, self.check(done.events))
        return done.value

    def append(self, events: tuple[Event, ...], contents: list[bytes]) -> None:
        """Insert the events and fold them into the projections."""
        for event, content in zip(events, contents, strict=True):
            self._insert(event, content)

    def _insert(self, event: Event, content: bytes) -> None:
        ts_us = time.time_ns() // 1000
        usage = event.usage
        run_id = event.fence.run_id if event.fence else event.run_id
        generation = event.fence.generation if event.fence else None
        header = (
            self.head + 1,
            ts_us,
            event.who.session_id,
            event.who.agent_id,
            event.who.user_id,
            event.fact.type,
            event.fact.version,
            run_id,
            generation,
            usage.input_tokens if usage else None,
            usage.output_tokens if usage else None,
            usage.cache_read_tokens if usage else None,
            usage.cache_write_tokens if usage else None,
            event.cost_micros,
            event.model,
            event.who.parent_agent_id,
            event.duration_ms,
        )
        sha = content_sha(content)
        self._hash = entry_hash(self._hash, header, sha)
        self._db.execute(_INSERT, (*header, content.decode(), sha, self._hash))
        self.head += 1
        reduce(
            self.tables,
            Header(
                self.head, ts_us, event.who.session_id, event.who.user_id, event.fact.type, run_id, generation, usage,
                event.cost_micros,
            ),
            event.fact,
        )  # fmt: skip


def _content(event: Event) -> bytes:
    """Return an event's content as it is stored.

    Raises:
        EntryTooLarge: It is over 2 MB.
    """
    try:
        content = content_of(event.fact)
    except ValueError:  # a lone surrogate that slipped past the border: better noted than lost
        value, _notes = sanitize_json(event.fact.model_dump(exclude_none=True))
        content = content_of(type(event.fact).model_validate(value))
    if len(content) > MAX_ENTRY_BYTES:
        raise EntryTooLarge(
            f"a {event.fact.type} of {len(content):,} bytes is over the {MAX_ENTRY_BYTES:,} that an entry may have"
        )
    return content


log = logging.getLogger("ava.store")

BATCH = 512
_PENDING, _RUNNING, _DONE, _GIVEN_UP = range(4)


class Housekeeping:
    """A job that writes what is not a view of the log (`live`, the text index, erasure) on the writer's connection."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        self.work = work


class Checkpoint:
    """A job that moves the write-ahead log into the database: outside of a transaction, with the write lock held."""


class Job:
    """A command on its way through the writer: pending until the writer takes it, or given up by its caller.

    Attributes:
        command: What is to be done.
        future: Who waits for it; None for what is only posted.
        value: What it brought.
        error: Why it failed.
    """

    __slots__ = ("command", "error", "future", "state", "value")

    def __init__(self, command: Command[Any] | Housekeeping | Checkpoint, future: asyncio.Future[Any] | None) -> None:
        self.command = command
        self.future = future
        self.state = _PENDING
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def answered(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future is None or self.future.done()


class Writer:
    """The thread that writes.

    Args:
        path: The database file.
        write_lock: The queue of writers on this data root, of all processes; closed with the thread.
        served: Told, in this thread, which jobs are done after each batch, and the newest `seq`.
    """

    def __init__(self, path: Path, write_lock: WriteLock, served: Callable[[list[Job], int], None]) -> None:
        self._path = path
        self._lock = write_lock
        self._served = served
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._live: dict[str, tuple[str, int]] = {}
        self._live_minded = False
        self._thread = threading.Thread(target=self._write, name="ava-writer", daemon=True)

    # -- what other threads call --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    def put(self, job: Job) -> None:
        """Hand over a job."""
        self._jobs.put(job)

    def give_up(self, job: Job) -> bool:
        """Take a job back from the writer; False when the writer is at it already."""
        with self._gate:
            if job.state == _PENDING:
                job.state = _GIVEN_UP
            return job.state == _GIVEN_UP

    def set_live(self, run_id: str, text: str) -> bool:
        """Note what a run is doing this second, to go with the next transaction; False when none is seen to yet."""
        with self._gate:
            minded, self._live_minded = self._live_minded, True
            self._live[run_id] = (text, time.time_ns() // 1000)
        return minded

    def flush_live(self) -> None:
        """See that what runs are doing is written, if no command has come that it went with."""
        with self._gate:
            self._live_minded = False
        if self._live:
            self._jobs.put(Job(Housekeeping(_nothing), None))

    def close(self, within_s: float) -> None:
        """Write what was put before, and end. Blocking."""
        self._jobs.put(Job(Housekeeping(_nothing), None))  # with which goes what runs were doing
        self._jobs.put(None)
        self._thread.join(timeout=within_s)
        if self._thread.is_alive():
            log.warning(
                "the log's writer did not end within %g s; what it had not acknowledged is not promised", within_s
            )

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        db = connect(self._path)
        tables = Projections(db)
        try:
            while True:
                batch, last = self._take()
                if batch:
                    self._commit(db, tables, batch)
                del batch  # with all that was in it: the next one may be long in coming
                if last:
                    return
        finally:
            db.close()
            self._lock.close()

    def _take(self) -> tuple[list[Job], bool]:
        """Wait for a job, and take all that have come with it; True when the writer shall end."""
        batch: list[Job] = []
        job = self._jobs.get()
        while True:
            if job is None:
                return batch, True
            batch.append(job)
            if len(batch) == BATCH:
                return batch, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, False

    def _commit(self, db: sqlite3.Connection, tables: Projections, batch: list[Job]) -> None:
        writes = [job for job in batch if not isinstance(job.command, Checkpoint)]
        head = 0
        try:
            with self._lock.held():
                try:
                    if writes:
                        head = self._transact(db, tables, writes, together=True)
                except _Apart:
                    for job in writes:
                        if job.state in (_PENDING, _RUNNING):  # those after the one that failed were not begun
                            job.error = None
                            head = max(head, self._transact(db, tables, [job], together=False))
                for job in batch:
                    if isinstance(job.command, Checkpoint) and self._start(job):
                        self._empty_wal(db, job)
        except Exception as error:  # a fault of ours: nobody may wait for ever, and the writer goes on
            log.exception("the writer failed")
            for job in batch:
                if job.state == _RUNNING and job.error is None:
                    job.error = error
        self._acknowledge(batch, head)

    def _transact(self, db: sqlite3.Connection, tables: Projections, batch: list[Job], *, together: bool) -> int:
        """Run jobs in one transaction and return the new head; failures are noted in the jobs.

        Raises:
            _Apart: Applying failed, everything was rolled back, and the jobs must run one by one.
        """
        if not self._begin(db, batch):
            return 0
        try:
            if schema_version(db) > SCHEMA_VERSION:
                raise SchemaNewer("a newer ava has migrated this data root: restart this server to go on")
            tables.begin()
            appender = Appender(db, tables)
            for job in batch:
                if not self._start(job, again=not together):
                    continue
                if isinstance(job.command, Housekeeping):
                    tables.write()
                    job.value = appender.outcome(job.command.work(db))
                else:
                    self._run(job, db, appender)
            tables.write()
            self._write_live(db)
            db.execute("COMMIT")
        except BaseException as error:
            tables.forget()
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            if together and len(batch) > 1 and not isinstance(error, SchemaNewer):
                raise _Apart from error
            for job in batch:
                if self._start(job, again=True):
                    job.error = translate_error(error)
            return 0
        return appender.head

    def _write_live(self, db: sqlite3.Connection) -> None:
        if self._live:
            with self._gate:
                live, self._live = self._live, {}
            rows = [(run_id, text, at_us) for run_id, (text, at_us) in live.items()]
            db.executemany("INSERT OR REPLACE INTO live (run_id, text, at_us) VALUES (?, ?, ?)", rows)

    def _empty_wal(self, db: sqlite3.Connection, job: Job) -> None:
        try:
            db.execute("PRAGMA busy_timeout = 0")
            try:
                job.value = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
            finally:
                db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        except sqlite3.Error as error:
            job.error = translate_error(error)

    def _begin(self, db: sqlite3.Connection, batch: list[Job]) -> bool:
        """Open a write transaction; False when every caller gave up or it cannot be had."""
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.DatabaseError as error:
                if not isinstance(error, sqlite3.OperationalError) or not re.search("locked|busy", str(error)):
                    for job in batch:
                        if self._start(job, again=True):
                            job.error = translate_error(error)
                    return False
                with self._gate:  # nobody waits for what is only posted: it is dropped with a word
                    waiting = any(job.state in (_PENDING, _RUNNING) and job.future is not None for job in batch)
                if not waiting:
                    log.warning("another program holds ava.db: what nobody waited for was not written (%d)", len(batch))
                    return False
            else:
                return True

    def _start(self, job: Job, *, again: bool = False) -> bool:
        """Take a job out of its caller's hands; False when the caller has given it up."""
        with self._gate:
            if job.state == _PENDING or (again and job.state == _RUNNING):
                job.state = _RUNNING
                return job.error is None
            return False

    def _run(self, job: Job, db: sqlite3.Connection, appender: Appender) -> None:
        try:
            assert not isinstance(job.command, Housekeeping | Checkpoint)
            outcome = job.command(View(db, appender.tables, appender.head), time.time_ns() // 1000)
            prepared = appender.check(outcome.events)
        except Exception as error:
            if not db.in_transaction:  # SQLite has rolled back by itself, and with it what came before
                raise
            job.error = translate_error(error)  # nothing of it was written; the rest of the batch goes on
            return
        appender.append(outcome.events, prepared)
        job.value = outcome.value

    def _acknowledge(self, batch: list[Job], head: int) -> None:
        done = [job for job in batch if job.state == _RUNNING]
        with self._gate:
            for job in done:
                job.state = _DONE
        for job in done:
            if job.future is None and job.error is not None:
                log.warning("an entry that nobody waited for was not written: %s", job.error)
        self._served(done, head)


class _Apart(Exception):
    """A batch was rolled back; its commands must run one by one."""


def _nothing(_db: sqlite3.Connection) -> None:
    """Do nothing: what goes with every transaction is written with it."""
