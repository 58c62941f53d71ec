"""The store: commands in, acknowledged after the commit; and queries, each on one consistent state.

`Store` is what tasks use. Behind it are the thread that writes (`writer.py`) and the threads that read (`Readers`).
What is SQLite's own or Postgres' own is behind a `Backend` (`backend.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread

from ava_audit.database import Commit, Database
from ava_audit.errors import LogForked, LogMoved, OutcomeUnknown, StoreUnavailable, is_thread_shortage
from ava_audit.events import Event, build_models
from ava_audit.model_calls import call_of
from ava_audit.store.backend import LEASE_S, Backend, Instances, OlderSchema
from ava_audit.store.sqlite import backend_of
from ava_audit.store.writer import Checkpoint, Job, MaintenanceJob, Writer
from ava_audit.units import now_us
from ava_audit.view import Command, Outcome, Query, T, View, append

READERS = 8
LOOK_S, THREADS_FOR = 0.005, 100
"""Seconds that a look may take in the event loop's thread. After a longer one, looks go to reader threads for so many
times what it took: slow ones cost the loop a hundredth of its time at most."""


@dataclass(slots=True)
class _Reading:
    until: float | None = None
    db: Database | None = None
    abandoned: bool = False


class Readers:
    """Threads that answer queries."""

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop) -> None:
        self._backend = backend
        self._loop = loop
        self._gate = threading.Lock()
        self._idle: queue.LifoQueue[Database] = queue.LifoQueue()
        self._threads = ThreadPoolExecutor(READERS, "ava-reader")
        self._closed = False
        self._threads_until = 0.0 if backend.is_near else math.inf

    def is_quick(self) -> bool:
        """Tell whether the next look can be done at once: with a connection at hand, and no slow disk just before."""
        return not self._idle.empty() and time.monotonic() >= self._threads_until

    def look(self, query: Query[T], *, bounded: bool = False) -> T:
        """Run a short query in this thread. Raises StoreUnavailable; TimeoutError: it was stopped."""
        began = time.monotonic()
        try:
            return self._read(query, _Reading(began + LOOK_S if bounded else None))
        except StoreUnavailable:
            if bounded and time.monotonic() > began + LOOK_S:
                raise TimeoutError from None
            raise
        finally:
            ended = time.monotonic()
            if ended - began > LOOK_S:
                self._threads_until = ended + THREADS_FOR * (ended - began)

    async def read(self, query: Query[T], *, interrupt: bool) -> T:
        """Run a query. With `interrupt`, a cancelled caller returns at once, and the query is interrupted."""
        reading = _Reading()
        try:
            future = self._loop.run_in_executor(self._threads, self._read, query, reading)
        except RuntimeError as error:
            if not is_thread_shortage(error):
                raise
            raise StoreUnavailable("the log cannot be read: no more threads can be started; try again") from error
        value: Any = None
        try:
            with anyio.CancelScope(shield=not interrupt):
                value = await future
            return cast("T", value)
        except anyio.get_cancelled_exc_class():
            with self._gate:  # afterwards the connection may already serve another query
                reading.abandoned = True
                if reading.db is not None:
                    reading.db.interrupt()
            raise

    def stop(self) -> None:
        """Start no further query. Running queries close their connections themselves."""
        with self._gate:  # from now on, nothing is put back into `_idle`; `close` empties it
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return

    def _read(self, query: Query[T], reading: _Reading) -> T:
        with self._connection() as db:
            with self._gate:
                if reading.abandoned:
                    raise StoreUnavailable("the caller of this query has gone")
                reading.db = db
            if reading.until is not None:
                db.stop_at(reading.until)
            try:
                return query(View(db))
            finally:
                if reading.until is not None:
                    db.stop_at(None)
                with self._gate:
                    reading.db = None

    @contextmanager
    def _connection(self) -> Generator[Database]:
        try:
            db = self._idle.get_nowait()
        except queue.Empty:
            db = self._opened()
        try:
            db.begin_read()
            yield db
        except self._backend.error as error:
            reason = str(error).partition("\n")[0]
            raise StoreUnavailable(f"the log cannot be read: {reason}; {self._backend.advice(error)}") from error
        finally:
            db.rollback()
            with self._gate:
                is_reusable = not self._closed and not db.lost
                if is_reusable:
                    self._idle.put(db)
            if not is_reusable:
                db.close()

    def _opened(self) -> Database:
        """Open a connection, but never to another log that has taken the place of this one."""
        try:
            db = self._backend.connect(readonly=True)
        except self._backend.error as error:
            self._backend.check_location()
            raise StoreUnavailable(f"the log cannot be opened for reading: {error}; try again") from error
        try:
            self._backend.check_location()
        except LogMoved:
            db.close()
            raise
        return db


__all__ = ["Command", "Outcome", "Query", "Store", "T", "append"]

build_models()
log = logging.getLogger("ava.store")

ANSWER_S = 5.0
"""A command that the writer has not started within this many seconds is refused."""
COMMIT_S = 30.0
"""How much longer a command may take once the writer has started it: a disk may hang in fsync."""
CLOSE_S = 2.0
LOOKS = 16
"""So many looks at most without letting other tasks run."""
LIVE_S = 0.2
"""Seconds without a command after which live activities are written; otherwise the next command writes them."""
_CLOSED = "the log is closed: this server is shutting down"


class Store:
    """The log of one data root, open in this process."""

    def __init__(self, root: Path, backend: Backend, loop: asyncio.AbstractEventLoop) -> None:
        self.path = root / "ava.db"
        self.blobs = backend.blobs()
        self._backend = backend
        self._moved: LogMoved | None = None
        self._loop = loop
        self._head = 0
        self._new_head = anyio.Event()
        self._newest_of_type: dict[str, int] = {}  # by type, the newest commit that is known to have it
        self._untold = 0  # up to here, the types are not known
        self._waiting: dict[Job, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writer = Writer(backend, self._on_done)
        self._readers = Readers(backend, loop)
        self._looks = 0
        self._closed = False

    @staticmethod
    @asynccontextmanager
    async def open(
        root: Path, url: str | None = None, *, older: OlderSchema = OlderSchema.REFUSE
    ) -> AsyncGenerator[Store]:
        """Open the log of a data root, until the context ends, and make it if it is missing.

        `url` is as for `backend_of`. `older` says what happens to a log that an older program wrote. Raises
        SchemaOlder: it is refused; SchemaNewer: a newer program has migrated it; DataRootRefused: the folder cannot
        hold the log; StoreUnavailable: it cannot be opened.
        """
        backend = await anyio.to_thread.run_sync(backend_of, root, url)
        await anyio.to_thread.run_sync(partial(backend.prepare, older=older))
        store = Store(root, backend, asyncio.get_running_loop())
        store._writer.start()
        try:
            store._head = store._untold = await store.read(View.head)
            watched = await anyio.to_thread.run_sync(partial(backend.connect, readonly=True))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store._watch, watched)
                try:
                    yield store
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            store._closed = True
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(store._close)
            for job in store._waiting:
                store._time_out(job, grace_s=0.0)

    # -- what tasks call ----------------------------------------------------------------------------------------------

    async def do(self, command: Command[T], about: str | None = None) -> T:
        """Run a command and return its value once its events are on disk.

        `about` is the run that it reads: the rows of all runs of a batch are read together.
        If the caller is cancelled while it waits, the command may or may not have run; the log tells. Raises
        StoreUnavailable: the writer did not start it within 5 s, or nothing could be written; LogMoved: the log was
        removed, moved or replaced; LogForked: it has become another one; StaleOwner: an event's fence is older than the
        run's claim; SchemaNewer: a newer program has migrated the database.
        """
        value: T = await self._submit(command, about)
        return value

    def post(self, command: Command[Any]) -> None:
        """Run a command without waiting, for entries that may get lost. A failure is logged on stderr."""
        if not self._closed:
            self._writer.put(Job(command, None))

    async def maintain(self, work: Callable[[Database], T]) -> T:
        """Run work that is not a command (text index, `live`, progress) on the writer's connection; raises as `do`.

        The work must not write projections: the writer has some of their rows in memory.
        """
        value: T = await self._submit(MaintenanceJob(work))
        return value

    async def maintain_with_events(self, work: Callable[[Database], Outcome[T]]) -> T:
        """Run such work, and append the events of its outcome in the same transaction; raises as `do`."""
        value: T = await self._submit(MaintenanceJob(work))
        return value

    async def checkpoint(self, *, rewrite: bool = False) -> bool:
        """Move the write-ahead log into the database and empty it; False if a reader needs a part. For maintenance.

        It runs on the writer thread with the write lock held, so that no process writes meanwhile (SQLite before 3.51.3
        can lose a commit when a checkpoint and a writer meet). `rewrite` rewrites the database first, so that no page
        keeps bytes of deleted rows; writers wait meanwhile, about 0.6 s per 100 MB. Raises as `do`.
        """
        return bool(await self._submit(Checkpoint(rewrite)))

    def set_live(self, run_id: str, text: str) -> None:
        """Note what a run is doing right now, without waiting."""
        if self._closed:
            return
        if not self._writer.set_live(run_id, text):
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it all readers of the activity
                self._loop.call_soon_threadsafe(self._loop.call_later, LIVE_S, self._flush_live)

    async def read(self, query: Query[T], /, *, within_s: float | None = None, short: bool = False) -> T:
        """Run a query on one consistent state, in a thread, within `within_s` seconds. It never waits for a writer.

        With a limit, a cancelled caller returns at once, and its query is interrupted. A `short` one is tried like a
        `look` first, which saves the way to a thread; after `LOOK_S` it starts again in one. Raises LogMoved: the log
        was removed, moved or replaced; StoreUnavailable: the database cannot be read.
        """
        await self._let_others_run(looks=short)
        self._refuse_reading()
        if short and self._readers.is_quick():
            with contextlib.suppress(TimeoutError):
                return self._readers.look(query, bounded=True)
        try:
            with anyio.fail_after(within_s):
                return await self._readers.read(query, interrupt=within_s is not None)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"the log did not answer within {within_s:.0f} s; check that no other program holds ava.db,"
                " and try again"
            ) from error

    async def look(self, query: Query[T]) -> T:
        """Run a query of a few rows by their keys at once, in the event loop's thread: faster than the way to another.

        Where the database is another machine's, or the disk was slow just now, it is like `read`.
        """
        await self._let_others_run(looks=True)
        self._refuse_reading()
        if self._readers.is_quick():
            return self._readers.look(query)
        return await self._readers.read(query, interrupt=True)

    async def _let_others_run(self, *, looks: bool) -> None:
        self._looks += looks
        if looks and self._looks % LOOKS == 0:  # else a task that only looks would keep all others from running
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.lowlevel.checkpoint_if_cancelled()

    def _refuse_reading(self) -> None:
        if self._closed:
            raise StoreUnavailable(_CLOSED)
        if self._moved is not None:
            self._watch_location()  # it may be back since the last check
        if self._moved is not None:
            raise type(self._moved)(str(self._moved))

    def instances(self, folder: Path, lease_s: float = LEASE_S) -> Instances:
        return self._backend.instances(folder, lease_s)

    def maintaining(self) -> AbstractAsyncContextManager[None]:
        return self._backend.maintaining()

    def check_location(self) -> None:
        """Raise LogMoved if the log is not where it was opened any more, before a file beside it is written."""
        self._backend.check_location()

    @property
    def forked(self) -> bool:
        """Whether the log has become another one, so that this process refuses everything until it is restarted."""
        try:
            self._backend.check_location()
        except LogMoved as error:
            return isinstance(error, LogForked)
        return False

    async def note_unlogged(self, events: Sequence[Event]) -> None:
        """Write down, outside of the log, what model calls cost that this log will not have. Failures are logged."""
        calls = [call for event in events if (call := call_of(event, now_us())) is not None]
        try:
            await anyio.to_thread.run_sync(self._backend.note_unlogged, calls)
        except OSError as error:
            log.error("what these calls cost is in no log, and cannot be written down (%s): %s", error, calls)

    @property
    def wal(self) -> Path:
        return self.path.with_name(self.path.name + "-wal")

    @property
    def place(self) -> str:
        return self._backend.place

    @property
    def head(self) -> int:
        """Return the newest `seq` that this process knows."""
        return self._head

    async def wait_for_entry_after(self, seq: int) -> int:
        """Wait until any process has written an entry after `seq`, and return the newest `seq`."""
        while self._head <= seq:
            await self._new_head.wait()
        return self._head

    async def any_after(self, seq: int, types: Sequence[str]) -> bool:
        """Tell whether there is an entry after `seq` of one of these types; the log is asked where nobody told it."""
        if seq < self._untold:
            return await self.look(partial(View.any_after, seq=seq, types=types))
        return any(self._newest_of_type.get(each, 0) > seq for each in types)

    # -- every caller gets an answer in time --------------------------------------------------------------------------

    async def _submit(self, command: Command[T] | MaintenanceJob | Checkpoint, about: str | None = None) -> Any:
        if self._closed:
            raise StoreUnavailable(_CLOSED)
        future: asyncio.Future[Any] = self._loop.create_future()
        job = Job(command, future, about)
        self._waiting[job] = due = self._loop.time() + ANSWER_S
        if self._timer is None or due < self._timer.when():
            self._set_timer(due)
        self._writer.put(job)
        try:
            return await future
        finally:
            del self._waiting[job]

    def _set_timer(self, due: float) -> None:
        """Set the timer that all waiting jobs share, because one for each would cost as much as the rest of its way."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._look_at_waiting)

    def _look_at_waiting(self) -> None:
        self._timer = None
        now = self._loop.time()
        for job in [job for job, due in self._waiting.items() if due <= now]:
            self._waiting[job] = math.inf
            self._time_out(job)
        due = min(self._waiting.values(), default=math.inf)
        if due < math.inf:
            self._set_timer(due)

    def _time_out(self, job: Job, grace_s: float = COMMIT_S) -> None:
        if job.future is None or job.future.done():
            return
        if self._writer.withdraw(job):
            job.future.set_exception(
                StoreUnavailable(f"{self._backend.no_answer}; nothing was written; try again when it is free")
            )
        elif grace_s > 0:
            self._loop.call_later(grace_s, self._time_out, job, 0.0)
        else:
            job.future.set_exception(
                OutcomeUnknown(
                    f"{self._backend.no_answer}; it may or may not have been written; look before you try again"
                )
            )

    def _flush_live(self) -> None:
        if not self._closed:
            self._writer.flush_live()

    def _on_done(self, done: list[Job], commits: list[Commit]) -> None:
        """Pass the results of the writer, which calls this in its own thread, to the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: its tasks were cancelled
            self._loop.call_soon_threadsafe(self._resolve, done, commits)

    def _resolve(self, done: list[Job], commits: list[Commit]) -> None:
        for job in done:
            if job.future is None or job.future.done():
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.value)
        self._announce(commits)

    # -- commits of other processes, and the end ----------------------------------------------------------------------

    def _announce(self, commits: Sequence[Commit]) -> None:
        known = self._head
        for commit in commits:
            if commit.head > self._head:
                if commit.types is None or commit.before > self._head:  # the types of some entries are unknown
                    self._untold = commit.head
                self._newest_of_type |= dict.fromkeys(commit.types or (), commit.head)
                self._head = commit.head
        if self._head > known:
            event, self._new_head = self._new_head, anyio.Event()
            event.set()

    async def _watch(self, db: Database) -> None:
        async with aclosing(self._backend.heads(db)) as heads:
            async for commits in heads:
                self._watch_location()
                self._announce(commits)

    def _watch_location(self) -> None:
        """Notice even while nothing is written if the log was moved, or is back."""
        try:
            self._backend.check_location()
        except LogMoved as error:
            if self._moved is None:
                log.error("%s", error)
            self._moved = error
        else:
            if self._moved is not None:
                log.warning("the data root %s is back", self.path.parent)
            self._moved = None

    def _close(self) -> None:
        self._readers.stop()
        self._writer.close(CLOSE_S)
        self._readers.close()
