"""The store: commands in, one transaction a batch, acknowledged after COMMIT.

A command is a pure function `(view, now_us) -> Outcome(value, events)`. One writer thread takes commands from all
tasks, applies their outcomes in order inside one transaction, and acknowledges them when it is on the disk. With
`projections.py` and `migrations.py` this is the only place that writes SQL.
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
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import anyio
import anyio.lowlevel
import anyio.to_thread

from ava_audit.chain import GENESIS, content_sha, entry_hash
from ava_audit.entries import ENTRY_COLUMNS, content_of
from ava_audit.errors import AuditError, EntryTooLarge, OutcomeUnknown, SchemaNewer, StaleOwner, StoreUnavailable
from ava_audit.events import Event, Fence
from ava_audit.locks import WriteLock
from ava_audit.migrations import SCHEMA_VERSION, migrate, schema_version
from ava_audit.mounts import refuse_unfit
from ava_audit.projections import Tables
from ava_audit.reducers import Header, reduce
from ava_audit.rows import RUNNING
from ava_audit.storable import storable
from ava_audit.view import View

T = TypeVar("T")
log = logging.getLogger("ava.store")

ANSWER_S = 5.0
"""A store that has not taken a command within this many seconds has refused it (DESIGN.md section 3)."""
MAX_ENTRY_BYTES = 2_000_000
BATCH = 512
NO_ANSWER = "the log did not answer in time: another program may hold ava.db, or the disk is stuck"
DAMAGED = "ava.db is damaged: put back a copy of it, or set AVA_DATA_ROOT to another folder"
COMMIT_S = 30.0
"""How much longer a command that the writer has begun may take: a disk that hangs in fsync."""
READERS = 8
"""Queries at once; their threads are their own, so that slow tools do not keep anybody from looking."""
LIVE_S = 0.2
"""What runs are doing this second is written with the next command, and without one after so long."""
POLL_S = 0.05
"""How often other processes' commits are looked for; a look costs 3 microseconds."""
BUSY_MS = 1_000


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a command answers: a value for its caller, and the events to append."""

    value: T
    events: tuple[Event, ...] = ()


Command = Callable[[View, int], Outcome[T]]
"""Pure: `(state, now in microseconds UTC) -> outcome`."""
Query = Callable[[View], T]


def append(*events: Event) -> Command[None]:
    """Return the command that appends events, whatever the state."""

    def command(_view: View, _now_us: int) -> Outcome[None]:
        return Outcome(None, events)

    return command


_PENDING, _RUNNING, _DONE, _GIVEN_UP = range(4)


class _Housekeeping:
    """A job that writes what is not a view of the log (`live`, the text index, erasure) on the writer's connection."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        self.work = work


class _Checkpoint:
    """A job that moves the write-ahead log into the database: outside of a transaction, with the write lock held."""


class _Job:
    """A command on its way through the writer: pending until the writer takes it, or given up by its caller."""

    __slots__ = ("command", "error", "future", "state", "value")

    def __init__(self, command: Command[Any] | _Housekeeping | _Checkpoint, future: asyncio.Future[Any] | None) -> None:
        self.command = command
        self.future = future
        self.state = _PENDING
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def answered(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future is None or self.future.done()


class _Asked:
    """A query on its way through a thread: the connection that it runs on, and whether its caller has gone."""

    __slots__ = ("db", "given_up")

    def __init__(self) -> None:
        self.db: sqlite3.Connection | None = None
        self.given_up = False


class Store:
    """The log of one data root, open in this process.

    Attributes:
        path: The database file.
    """

    def __init__(self, path: Path, write_lock: WriteLock, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self._lock = write_lock
        self._loop = loop
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._head = 0
        self._news = anyio.Event()
        self._live: dict[str, tuple[str, int]] = {}
        self._live_minded = False
        self._waiting: deque[tuple[float, _Job]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._threads = ThreadPoolExecutor(READERS, "ava-reader")
        self._closed = False
        self._thread = threading.Thread(target=self._write, name="ava-writer", daemon=True)

    @staticmethod
    @asynccontextmanager
    async def open(root: Path) -> AsyncGenerator[Store]:
        """Open (and create or migrate) the log in a data root, until the context ends.

        Raises:
            SchemaNewer: A newer program has migrated it.
            DataRootRefused: The folder cannot hold it.
            StoreUnavailable: It could not be opened.
        """
        path = root / "ava.db"
        lock = await anyio.to_thread.run_sync(_prepare, root, path)
        store = Store(path, lock, asyncio.get_running_loop())
        store._thread.start()
        try:
            store._head = await store.read(View.head)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store._watch)
                try:
                    yield store
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            store._closed = True
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(store._close)
            store._answer_the_rest()

    # -- what tasks call ------------------------------------------------------------------------------------------

    async def do(self, command: Command[T]) -> T:
        """Run a command and return its value once its events are on the disk.

        A caller that is cancelled while it waits may or may not have been served: the log tells.

        Raises:
            StoreUnavailable: It was not taken within 5 s, or could not be written; nothing of it was.
            StaleOwner: An event's fence is older than the run's claim.
            SchemaNewer: A newer program has migrated the database.
        """
        value: T = await self._submit(command)
        return value

    def post(self, command: Command[Any]) -> None:
        """Run a command without waiting; for entries whose loss costs nothing. A failure is logged on stderr."""
        if self._closed:
            return
        self._jobs.put(_Job(command, None))

    async def keep_house(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work that is no command (text index, `live`, erasure) on the writer's connection.

        It writes no projection: of their rows the writer has some in memory.

        Raises:
            StoreUnavailable: As for `do`.
        """
        value: T = await self._submit(_Housekeeping(work))
        return value

    async def amend(self, work: Callable[[sqlite3.Connection], Outcome[T]]) -> T:
        """Run such work that has to be on record (erasure): its events are appended in the same transaction.

        Raises:
            StoreUnavailable: As for `do`.
        """
        value: T = await self._submit(_Housekeeping(work))
        return value

    async def checkpoint(self) -> bool:
        """Move the write-ahead log into the database and empty it; only the keeper calls this.

        It runs on the writer thread with the write lock held, so that no process writes meanwhile (SQLite before
        3.51.3 can lose a commit when a checkpoint and a writer meet), and does not wait for readers.

        Returns:
            True when the log was emptied, False when a reader still needs some of it: try again later.

        Raises:
            StoreUnavailable: As for `do`.
        """
        return bool(await self._submit(_Checkpoint()))

    def set_live(self, run_id: str, text: str) -> None:
        """Note what a run is doing this second; nobody waits for it."""
        if self._closed:
            return
        with self._gate:
            minded, self._live_minded = self._live_minded, True
            self._live[run_id] = (text, time.time_ns() // 1000)
        if not minded:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it who would look
                self._loop.call_soon_threadsafe(self._loop.call_later, LIVE_S, self._flush_live)

    async def read(self, query: Query[T], *, interrupt: bool = False) -> T:
        """Run a query against one consistent state, in a thread; it never waits for a writer.

        Args:
            query: What to read.
            interrupt: A caller that is cancelled goes at once, and what SQLite is at for it is broken off.

        Raises:
            StoreUnavailable: The database cannot be read.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise StoreUnavailable("the log is closed: this server is shutting down")
        asked = _Asked()
        reading = self._loop.run_in_executor(self._threads, self._read, query, asked)
        value: Any = None
        try:
            with anyio.CancelScope(shield=not interrupt):
                value = await reading
            return cast("T", value)
        except anyio.get_cancelled_exc_class():
            with self._gate:  # as soon as this is over, the connection may go back and serve another query
                asked.given_up = True
                if asked.db is not None:
                    asked.db.interrupt()
            raise

    @property
    def wal(self) -> Path:
        """The write-ahead log, which stands beside the database."""
        return self.path.with_name(self.path.name + "-wal")

    @property
    def head(self) -> int:
        """The newest `seq` that this process knows of."""
        return self._head

    async def newer_than(self, seq: int) -> int:
        """Wait until the log has an entry after `seq`, written by any process, and return the newest `seq`."""
        while self._head <= seq:
            await self._news.wait()
        return self._head

    # -- the writer thread ----------------------------------------------------------------------------------------

    async def _submit(self, command: Command[T] | _Housekeeping | _Checkpoint) -> Any:
        if self._closed:
            raise StoreUnavailable("the log is closed: this server is shutting down")
        future: asyncio.Future[Any] = self._loop.create_future()
        job = _Job(command, future)
        self._jobs.put(job)
        self._mind(job)
        return await future

    def _mind(self, job: _Job) -> None:
        """See that a job's caller is answered in time; one timer for all of them, because most are at once."""
        deadline = self._loop.time() + ANSWER_S
        self._waiting.append((deadline, job))
        if self._timer is None or deadline < self._timer.when():
            self._set_timer(deadline)

    def _drop_answered(self) -> None:
        while self._waiting and self._waiting[0][1].answered:
            self._waiting.popleft()

    def _look(self) -> None:
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            self._overdue(self._waiting.popleft()[1])
        self._drop_answered()
        self._timer = None
        if self._waiting:
            self._set_timer(self._waiting[0][0])

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._look)

    def _answer_the_rest(self) -> None:
        """Let go of whoever still waits when the store is closed."""
        if self._timer is not None:
            self._timer.cancel()
        for _deadline, job in self._waiting:
            if job.future is not None and not self._let_go(job, job.future):
                _unanswered(job.future)
        self._waiting.clear()

    def _overdue(self, job: _Job) -> None:
        """Let the caller go if the writer has not taken the job; if it is at it, wait on, but not for ever."""
        if job.future is not None and not self._let_go(job, job.future):
            self._loop.call_later(COMMIT_S, _unanswered, job.future)

    def _flush_live(self) -> None:
        """See that what runs are doing is written, if no command has come that it went with."""
        with self._gate:
            self._live_minded = False
        if self._live and not self._closed:
            self._jobs.put(_Job(_Housekeeping(lambda _db: None), None))

    def _let_go(self, job: _Job, future: asyncio.Future[Any]) -> bool:
        """Answer a caller from whom the writer has not taken the job; False when the writer is at it."""
        if future.done():
            return True
        if not self._give_up(job):
            return False
        future.set_exception(StoreUnavailable(f"{NO_ANSWER}; nothing was written; try again when it is free"))
        return True

    def _give_up(self, job: _Job) -> bool:
        """Take a job back from the writer; False when the writer is at it already."""
        with self._gate:
            if job.state == _PENDING:
                job.state = _GIVEN_UP
            return job.state == _GIVEN_UP

    def _write(self) -> None:
        db = _connect(self.path)
        tables = Tables(db)
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

    def _take(self) -> tuple[list[_Job], bool]:
        """Wait for a job, and take all that have come with it; True when the writer shall end."""
        batch: list[_Job] = []
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

    def _commit(self, db: sqlite3.Connection, tables: Tables, batch: list[_Job]) -> None:
        writes = [job for job in batch if not isinstance(job.command, _Checkpoint)]
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
                    if isinstance(job.command, _Checkpoint) and self._start(job):
                        self._empty_wal(db, job)
        except Exception as error:  # a fault of ours: nobody may wait for ever, and the writer goes on
            log.exception("the writer failed")
            for job in batch:
                if job.state == _RUNNING and job.error is None:
                    job.error = error
        self._acknowledge(batch, head)

    def _transact(self, db: sqlite3.Connection, tables: Tables, batch: list[_Job], *, together: bool) -> int:
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
            appender = _Appender(db, tables)
            for job in batch:
                if not self._start(job, again=not together):
                    continue
                if isinstance(job.command, _Housekeeping):
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
                    job.error = _translated(error)
            return 0
        return appender.head

    def _write_live(self, db: sqlite3.Connection) -> None:
        if self._live:
            with self._gate:
                live, self._live = self._live, {}
            rows = [(run_id, text, at_us) for run_id, (text, at_us) in live.items()]
            db.executemany("INSERT OR REPLACE INTO live (run_id, text, at_us) VALUES (?, ?, ?)", rows)

    def _empty_wal(self, db: sqlite3.Connection, job: _Job) -> None:
        try:
            db.execute("PRAGMA busy_timeout = 0")
            try:
                job.value = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
            finally:
                db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        except sqlite3.Error as error:
            job.error = _translated(error)

    def _begin(self, db: sqlite3.Connection, batch: list[_Job]) -> bool:
        """Open a write transaction; False when every caller gave up or it cannot be had."""
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.DatabaseError as error:
                if not isinstance(error, sqlite3.OperationalError) or not re.search("locked|busy", str(error)):
                    for job in batch:
                        if self._start(job, again=True):
                            job.error = _translated(error)
                    return False
                with self._gate:  # nobody waits for what is only posted: it is dropped with a word
                    waiting = any(job.state in (_PENDING, _RUNNING) and job.future is not None for job in batch)
                if not waiting:
                    log.warning("another program holds ava.db: what nobody waited for was not written (%d)", len(batch))
                    return False
            else:
                return True

    def _start(self, job: _Job, *, again: bool = False) -> bool:
        """Take a job out of its caller's hands; False when the caller has given it up."""
        with self._gate:
            if job.state == _PENDING or (again and job.state == _RUNNING):
                job.state = _RUNNING
                return job.error is None
            return False

    def _run(self, job: _Job, db: sqlite3.Connection, appender: _Appender) -> None:
        try:
            assert not isinstance(job.command, _Housekeeping | _Checkpoint)
            outcome = job.command(View(db, appender.tables, appender.head), time.time_ns() // 1000)
            prepared = appender.check(outcome.events)
        except Exception as error:
            if not db.in_transaction:  # SQLite has rolled back by itself, and with it what came before
                raise
            job.error = _translated(error)  # nothing of it was written; the rest of the batch goes on
            return
        appender.append(outcome.events, prepared)
        job.value = outcome.value

    def _acknowledge(self, batch: list[_Job], head: int) -> None:
        done = [job for job in batch if job.state == _RUNNING]
        with self._gate:
            for job in done:
                job.state = _DONE
        for job in done:
            if job.future is None and job.error is not None:
                log.warning("an entry that nobody waited for was not written: %s", job.error)
        with contextlib.suppress(RuntimeError):  # the loop is gone: its tasks were told by their cancellation
            self._loop.call_soon_threadsafe(self._resolve, done, head)

    def _resolve(self, done: list[_Job], head: int) -> None:
        for job in done:
            if job.future is None or job.future.done():
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.value)
        self._drop_answered()
        self._announce(head)

    # -- news from other processes, reading, closing --------------------------------------------------------------

    def _announce(self, head: int) -> None:
        if head > self._head:
            self._head = head
            news, self._news = self._news, anyio.Event()
            news.set()

    async def _watch(self) -> None:
        db = await anyio.to_thread.run_sync(partial(_connect, self.path, readonly=True))
        try:
            seen = -1
            while True:
                try:
                    version = db.execute("PRAGMA data_version").fetchone()[0]
                    if version != seen:
                        seen = version
                        self._announce(View(db).head())
                except sqlite3.Error as error:  # seen again at the next look; writers and readers report it
                    log.debug("looking for news: %s", error)
                await anyio.sleep(POLL_S)
        finally:
            db.close()

    def _read(self, query: Query[T], asked: _Asked) -> T:
        with self._reader() as db:
            with self._gate:
                if asked.given_up:
                    raise StoreUnavailable("nobody waits for this answer any more")
                asked.db = db
            try:
                return query(View(db))
            finally:
                with self._gate:
                    asked.db = None

    @contextmanager
    def _reader(self) -> Generator[sqlite3.Connection]:
        try:
            db = self._readers.get_nowait()
        except queue.Empty:
            try:
                db = _connect(self.path, readonly=True)
            except sqlite3.Error as error:
                raise StoreUnavailable(f"the log cannot be opened for reading: {error}; try again") from error
        try:
            db.execute("BEGIN")
            yield db
        except sqlite3.Error as error:
            what_to_do = DAMAGED if _is_damaged(error) else "see that nothing else holds ava.db, and try again"
            raise StoreUnavailable(f"the log cannot be read: {error}; {what_to_do}") from error
        finally:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            if self._closed:
                db.close()
            else:
                self._readers.put(db)

    def _close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._jobs.put(_Job(_Housekeeping(lambda _db: None), None))  # with which goes what runs were doing
        self._jobs.put(None)
        self._thread.join(timeout=2.0)
        if self._thread.is_alive():
            log.warning("the log's writer did not end within 2 s; what it had not acknowledged is not promised")
        while True:
            try:
                self._readers.get_nowait().close()
            except queue.Empty:
                return


class _Apart(Exception):
    """A batch was rolled back; its commands must run one by one."""


class _Appender:
    """Appends events to the log inside the writer's transaction."""

    def __init__(self, db: sqlite3.Connection, tables: Tables) -> None:
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


_INSERT = f"INSERT INTO events ({ENTRY_COLUMNS}) VALUES ({', '.join('?' * 20)})"  # noqa: S608


def _content(event: Event) -> bytes:
    """Return an event's content as it is stored.

    Raises:
        EntryTooLarge: It is over 2 MB.
    """
    try:
        content = content_of(event.fact)
    except ValueError:  # a lone surrogate that slipped past the border: better noted than lost
        value, _notes = storable(event.fact.model_dump(exclude_none=True))
        content = content_of(type(event.fact).model_validate(value))
    if len(content) > MAX_ENTRY_BYTES:
        raise EntryTooLarge(
            f"a {event.fact.type} of {len(content):,} bytes is over the {MAX_ENTRY_BYTES:,} that an entry may have"
        )
    return content


def _unanswered(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(
            OutcomeUnknown(f"{NO_ANSWER}; whether it was written is not known; look before you try again")
        )


def _translated(error: BaseException) -> BaseException:
    """Turn what SQLite says into what a person can act on."""
    if isinstance(error, AuditError):
        return error
    if isinstance(error, sqlite3.Error):
        text = str(error)
        if "full" in text:
            return StoreUnavailable(
                "the disk of the data root is full, so nothing was written: free some space and try again"
            )
        if "readonly" in text:
            return StoreUnavailable(
                "the data root is read-only, so nothing was written: make it writable and try again"
            )
        if _is_damaged(error):
            return StoreUnavailable(f"the log could not be written ({text}), so nothing was; {DAMAGED}")
        return StoreUnavailable(f"the log could not be written ({text}), so nothing was; mend that and try again")
    return error


def _is_damaged(error: sqlite3.Error) -> bool:
    return any(words in str(error) for words in ("malformed", "not a database", "no such table", "no such column"))


def _connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open a connection as this module uses it: our own transactions, durable commits, no checkpoints by chance."""
    db = sqlite3.connect(
        path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("PRAGMA secure_delete = ON")
    if readonly:
        db.execute("PRAGMA query_only = ON")
    return db


def _prepare(root: Path, path: Path) -> WriteLock:
    """Create or migrate the database under the write lock, and return the lock.

    Raises:
        DataRootRefused: It is not a folder, or lies on a network file system.
        SchemaNewer: A newer program has migrated it.
        StoreUnavailable: It could not be opened.
    """
    refuse_unfit(root)
    try:
        path.touch(mode=0o600, exist_ok=True)
        lock = WriteLock(root / "write.lock")
        try:
            with lock.held(), contextlib.closing(_connect(path)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                migrate(db)
        except BaseException:
            lock.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(
            f"the log in {root} cannot be opened: {error}; choose another AVA_DATA_ROOT or mend it"
        ) from error
    return lock
