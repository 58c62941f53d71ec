"""The writer: the only thread with a connection that writes. It commits each batch in one transaction.

It processes jobs in the order they were put: commands, whose events are appended; maintenance jobs, which write
everything else; and checkpoints. If a command raises, nothing of it is written, and the others go on. If applying the
batch fails, it is rolled back, and its jobs run again one by one, each in its own transaction. Jobs are acknowledged
after the commit.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ava_audit.database import Busy, Commit, Database
from ava_audit.entries import GENESIS, content_of, content_sha, entry_hash
from ava_audit.errors import EntryTooLarge, LogMoved, OutcomeUnknown, SchemaNewer, StaleOwner, StoreUnavailable
from ava_audit.events import Event, Fence
from ava_audit.model_calls import CALL_TYPES, LoggedCall, call_of
from ava_audit.projections import Projections
from ava_audit.reducers import REDUCED_TYPES, Header, reduce
from ava_audit.rows import RUNNING
from ava_audit.sanitize import sanitize_json
from ava_audit.store.backend import Backend
from ava_audit.store.locks import NoLocks
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.units import now_us
from ava_audit.view import Command, Outcome, View

MAX_ENTRY_BYTES = 2_000_000
_NO_TOKENS = (None,) * 4
_INSERT_LIVE = (
    "INSERT INTO live (run_id, text, at_us) VALUES (?, ?, ?)"
    " ON CONFLICT (run_id) DO UPDATE SET text = excluded.text, at_us = excluded.at_us"
)


class Appender:
    """Appends events to the log inside the writer's transaction."""

    def __init__(self, db: Database, projections: Projections) -> None:
        self.projections = projections
        self.head, self._hash = db.newest_entry() or (0, GENESIS)
        self._first = self.head
        self._types: set[str] = set()
        self._calls: list[LoggedCall] = []

    @property
    def commit(self) -> Commit:
        """What was appended."""
        return Commit(self.head, self._first, frozenset(self._types), self._hash, tuple(self._calls))

    def check(self, events: tuple[Event, ...]) -> list[bytes]:
        """Return the content of each event, or raise before anything is written.

        Raises StaleOwner if a fence is older than the run's claim, or the run does not run; EntryTooLarge: over 2 MB.
        """
        checked: Fence | None = None
        for event in events:
            if event.fence is not None and event.fence != checked:
                checked = event.fence
                self._check_fence(checked)
        return [content_within(event) for event in events]

    def _check_fence(self, fence: Fence) -> None:
        """Raise StaleOwner if a claim is older than the run's, or the run does not run."""
        run = self.projections.runs.peek(fence.run_id)
        if run is None or (run.generation, run.state) != (fence.generation, RUNNING):
            raise StaleOwner.of(*fence)

    def append(self, events: tuple[Event, ...], contents: list[bytes]) -> None:
        """Add the events to the rows that the next `flush` inserts, and apply them to the projections."""
        rows = self.projections.entries
        for event, content in zip(events, contents, strict=True):
            who, fact, run_id, fence, usage, cost_micros, model, duration_ms = event
            run_id, generation = fence or (run_id, None)
            tokens: tuple[int | None, ...] = _NO_TOKENS
            if usage is not None:
                tokens = (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
            self.head += 1
            ts_us, type_name = now_us(), fact.type
            header = (
                self.head, ts_us, who.session_id, who.agent_id, who.user_id, type_name, fact.version, run_id,
                generation, *tokens, cost_micros, model, who.parent_agent_id, duration_ms,
            )  # fmt: skip
            sha = content_sha(content)
            self._hash = entry_hash(self._hash, header, sha)
            rows.append((*header, content.decode(), sha, self._hash))
            self._types.add(type_name)
            if type_name in CALL_TYPES:
                call = call_of(event, ts_us)
                if call is not None:
                    self._calls.append(LoggedCall(self.head, self._hash, call))
            if generation is not None or type_name in REDUCED_TYPES:
                session, user = who.session_id, who.user_id
                known = Header(self.head, ts_us, session, user, type_name, run_id, generation, usage, cost_micros)
                reduce(self.projections, known, fact)


def content_within(event: Event) -> bytes:
    try:
        content = content_of(event.fact)
    except ValueError:  # a lone surrogate that nobody replaced: store it replaced rather than lose the event
        value, _notes = sanitize_json(event.fact.model_dump(exclude_none=True))
        content = content_of(type(event.fact).model_validate(value))
    if len(content) > MAX_ENTRY_BYTES:
        raise EntryTooLarge(
            f"a {event.fact.type} of {len(content):,} bytes is over the {MAX_ENTRY_BYTES:,} that an entry may have"
        )
    return content


log = logging.getLogger("ava.store")

BATCH = 512
_PENDING, _RUNNING, _DONE, _WITHDRAWN = range(4)


@dataclass(slots=True, eq=False)
class MaintenanceJob:
    """Work on the writer's connection that writes no projection; an `Outcome`'s events join its transaction."""

    work: Callable[[Database], Any]


@dataclass(frozen=True)
class Checkpoint:
    """Moves the write-ahead log into the database, outside a transaction; `rewrite` runs `VACUUM` first."""

    rewrite: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """A command on its way through the writer; `about` is the run that it reads, where that is known."""

    command: Command[Any] | MaintenanceJob | Checkpoint
    future: asyncio.Future[Any] | None
    about: str | None = None
    state: int = _PENDING
    value: Any = None
    error: BaseException | None = None


class Writer:
    """The thread that writes. `on_done` gets the finished jobs of each batch and its commits, in this thread."""

    def __init__(self, backend: Backend, on_done: Callable[[list[Job], list[Commit]], None]) -> None:
        self._backend = backend
        self._on_done = on_done
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._first: list[Job | None] = []  # taken from the queue, but not for the batch that was open
        self._gate = threading.Lock()
        self._live: dict[str, tuple[str, int]] = {}
        self._flush_scheduled = False
        self._thread = threading.Thread(target=self._write, name="ava-writer", daemon=True)

    # -- what other threads call --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def withdraw(self, job: Job) -> bool:
        """Take a job back; False if the writer has started it."""
        with self._gate:
            if job.state == _PENDING:
                job.state = _WITHDRAWN
            return job.state == _WITHDRAWN

    def set_live(self, run_id: str, text: str) -> bool:
        """Note what a run is doing now, for the next transaction; False if no `flush_live` is scheduled yet."""
        with self._gate:
            scheduled, self._flush_scheduled = self._flush_scheduled, True
            self._live[run_id] = (text, now_us())
        return scheduled

    def flush_live(self) -> None:
        """Write the live activities, unless a transaction has written them meanwhile."""
        with self._gate:
            self._flush_scheduled = False
        if self._live:
            self._jobs.put(Job(MaintenanceJob(_flush_live_only), None))

    def close(self, within_s: float) -> None:
        """Write the queued jobs, and end the thread. Blocking."""
        self._jobs.put(Job(MaintenanceJob(_flush_live_only), None))  # writes the live activities
        self._jobs.put(None)
        self._thread.join(timeout=within_s)
        if self._thread.is_alive():
            log.warning(
                "the log's writer did not end within %g s; entries that it has not acknowledged may be lost", within_s
            )

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        db = self._backend.connect()
        projections = Projections(db)
        try:
            while True:
                batch, last = self._take()
                if batch:
                    self._commit(db, projections, batch)
                del batch  # frees its contents: the next batch may be a long time coming
                if last:
                    return
        finally:
            db.close()
            self._backend.close()

    def _take(self) -> tuple[list[Job], bool]:
        """Wait for a job and return it with all others in the queue; True if the writer must end."""
        batch: list[Job] = []
        job = self._first.pop() if self._first else self._jobs.get()
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

    def _take_more(self, batch: list[Job]) -> None:
        """Add the jobs that have come while others had the lock, so that they do not wait for another turn."""
        while len(batch) < BATCH:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is None or isinstance(job.command, Checkpoint):
                self._first.append(job)
                return
            batch.append(job)

    def _commit(self, db: Database, projections: Projections, batch: list[Job]) -> None:
        writes: list[Job] = []
        checkpoints: list[Job] = []
        for job in batch:
            if isinstance(job.command, Checkpoint):
                checkpoints.append(job)
            else:
                writes.append(job)
        commits: list[Commit] = []
        try:
            with self._backend.turn():
                if writes:
                    self._write_batch(db, projections, writes, commits)
                for job in checkpoints:
                    if self._start(job):
                        self._checkpoint(db, job, cast("Checkpoint", job.command))
        except NoLocks as error:
            self._fail([*writes, *checkpoints], error)
        except Exception as error:  # a bug: the callers still need an answer, and the writer goes on
            log.exception("the writer failed")
            for job in (*writes, *checkpoints):
                if job.state == _RUNNING and job.error is None:
                    job.error = error
        self._acknowledge([*writes, *checkpoints], commits)

    def _write_batch(self, db: Database, projections: Projections, batch: list[Job], commits: list[Commit]) -> None:
        """Run jobs together, or after a failure one by one; add what was written to `commits`."""
        try:
            commits += self._transact(db, projections, batch, together=True)
        except _RetryOneByOne:
            for job in batch:
                if job.state in (_PENDING, _RUNNING):  # jobs after the failed one were not started
                    job.error = None
                    commits += self._transact(db, projections, [job], together=False)

    def _transact(self, db: Database, projections: Projections, batch: list[Job], *, together: bool) -> list[Commit]:
        """Run jobs in one transaction, and return what it committed: one commit, or none.

        A job that fails by itself gets its error, and the others go on. Any other failure rolls everything back; then
        the jobs get the error, or _RetryOneByOne is raised if they came `together` and may succeed one by one.
        """
        if not self._begin(db, batch, partial(projections.ask, _runs_of(batch))):
            return []
        if together and self._backend.is_near:  # elsewhere, each row that was not asked for with the lock takes long
            self._take_more(batch)
        try:
            if db.schema_version() > SCHEMA_VERSION:
                raise SchemaNewer("a newer ava has migrated this data root: restart this server")
            projections.begin(_runs_of(batch))
            appender = Appender(db, projections)
            for job in batch:
                if self._start(job, again=not together):
                    self._run(job, db, appender)
            projections.flush()
            self._write_live(db)
            self._backend.check_location()
            db.commit(appender.commit)
        except BaseException as error:
            projections.evict()
            db.rollback()
            may_succeed_alone = len(batch) > 1 or db.lost or isinstance(error, Busy)
            is_final = isinstance(error, SchemaNewer | LogMoved | OutcomeUnknown)
            if together and may_succeed_alone and not is_final:
                raise _RetryOneByOne from error
            self._fail(batch, error)
            return []
        return [appender.commit]

    def _run(self, job: Job, db: Database, appender: Appender) -> None:
        if isinstance(job.command, MaintenanceJob):
            appender.projections.flush()
            value: object = job.command.work(db)
            job.value = value
            if isinstance(value, Outcome):
                outcome = cast("Outcome[Any]", value)
                appender.append(outcome.events, appender.check(outcome.events))
                job.value = outcome.value
            return
        try:
            assert not isinstance(job.command, Checkpoint)
            outcome = job.command(View(db, appender.projections, appender.head), now_us())
            contents = appender.check(outcome.events)
        except Exception as error:
            if not db.in_transaction:  # the database itself has rolled back, including the jobs before
                raise
            # Nothing of this job was written; the rest of the batch goes on.
            job.error = self._for_future(error)
            return
        appender.append(outcome.events, contents)
        job.value = outcome.value

    def _write_live(self, db: Database) -> None:
        if self._live:
            with self._gate:
                live, self._live = self._live, {}
            rows = [(run_id, text, at_us) for run_id, (text, at_us) in live.items()]
            db.executemany(_INSERT_LIVE, rows)

    def _checkpoint(self, db: Database, job: Job, how: Checkpoint) -> None:
        try:
            self._backend.check_location()
            job.value = db.empty_log(how.rewrite)
        except (self._backend.error, LogMoved) as error:
            job.error = self._for_future(error)

    def _begin(self, db: Database, batch: list[Job], ask: Callable[[], None]) -> bool:
        """Open a write transaction; False if that fails or every caller has gone."""
        while True:
            try:
                db.begin_write(ask)
                return True
            except Busy as error:
                why = str(error)
            except (self._backend.error, StoreUnavailable) as error:
                self._fail(batch, error)
                return False
            with self._gate:  # posted jobs have no caller: without one they are dropped, with a warning
                waiting = any(job.state in (_PENDING, _RUNNING) and job.future is not None for job in batch)
            if not waiting:
                log.warning("%s: %d entries that nobody waits for were not written", why, len(batch))
                return False

    def _fail(self, batch: list[Job], error: BaseException) -> None:
        for job in batch:
            if self._start(job, again=True):
                job.error = self._for_future(error)

    def _for_future(self, error: BaseException) -> BaseException:
        if isinstance(error, StopIteration):  # a future rejects it, which would leave a whole batch unanswered
            return RuntimeError("StopIteration in a command: next() found nothing")
        return self._backend.translate_error(error)

    def _start(self, job: Job, *, again: bool = False) -> bool:
        with self._gate:
            if job.state == _PENDING or (again and job.state == _RUNNING):
                job.state = _RUNNING
                return job.error is None
            return False

    def _acknowledge(self, batch: list[Job], commits: list[Commit]) -> None:
        done = [job for job in batch if job.state == _RUNNING]
        with self._gate:
            for job in done:
                job.state = _DONE
        for job in done:
            if job.future is None and job.error is not None:
                log.warning("an entry that nobody waits for was not written: %s", job.error)
        self._on_done(done, commits)


class _RetryOneByOne(Exception): ...


def _runs_of(batch: list[Job]) -> set[str]:
    return {job.about for job in batch if job.about is not None}


def _flush_live_only(_db: Database) -> None:
    """Do nothing: the pending live activities are written with every transaction."""
