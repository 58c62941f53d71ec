"""The store: commands in, one transaction a batch, acknowledged after COMMIT; and reading beside it.

This is what tasks see of the log. Behind it stand the thread that writes (`writer.py`), what an event becomes there
(`appending.py`), and the threads that read (`readers.py`). SQL that writes stands in these, in `connection.py`,
`projections.py` and `migrations.py` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread

from ava_audit.errors import OutcomeUnknown, StoreUnavailable
from ava_audit.store.locks import WriteLock
from ava_audit.store.schema import DAMAGED, connect, is_damaged, prepare_database
from ava_audit.store.writer import Checkpoint, Housekeeping, Job, Writer
from ava_audit.view import Command, Outcome, Query, T, View, append

READERS = 8
"""Queries at once."""


class _Asked:
    """A query on its way through a thread: the connection that it runs on, and whether its caller has gone."""

    __slots__ = ("db", "given_up")

    def __init__(self) -> None:
        self.db: sqlite3.Connection | None = None
        self.given_up = False


class Readers:
    """What answers queries.

    Args:
        path: The database file.
        loop: Where whoever asks waits.
    """

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._loop = loop
        self._gate = threading.Lock()
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._threads = ThreadPoolExecutor(READERS, "ava-reader")
        self._closed = False

    async def read(self, query: Query[T], *, interrupt: bool) -> T:
        """Run a query; with `interrupt` a caller that is cancelled goes at once, and SQLite is broken off.

        Raises:
            StoreUnavailable: The database cannot be read.
        """
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

    def stop(self) -> None:
        """Begin no further query; what is being read closes its connection itself."""
        with self._gate:  # what was put back before is there for `close`; nothing is put back from now on
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Close the connections that nobody uses, some time after `stop`."""
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return

    def _read(self, query: Query[T], asked: _Asked) -> T:
        with self._connection() as db:
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
    def _connection(self) -> Generator[sqlite3.Connection]:
        try:
            db = self._idle.get_nowait()
        except queue.Empty:
            try:
                db = connect(self._path, readonly=True)
            except sqlite3.Error as error:
                raise StoreUnavailable(f"the log cannot be opened for reading: {error}; try again") from error
        try:
            db.execute("BEGIN")
            yield db
        except sqlite3.Error as error:
            what_to_do = DAMAGED if is_damaged(error) else "see that nothing else holds ava.db, and try again"
            raise StoreUnavailable(f"the log cannot be read: {error}; {what_to_do}") from error
        finally:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            with self._gate:
                closed = self._closed
                if not closed:
                    self._idle.put(db)
            if closed:
                db.close()


__all__ = ["Command", "Outcome", "Query", "Store", "T", "append"]

log = logging.getLogger("ava.store")

ANSWER_S = 5.0
"""A store that has not taken a command within this many seconds has refused it (DESIGN.md section 3)."""
NO_ANSWER = "the log did not answer in time: another program may hold ava.db, or the disk is stuck"
COMMIT_S = 30.0
"""How much longer a command that the writer has begun may take: a disk that hangs in fsync."""
CLOSE_S = 2.0
"""How long the end of a store waits for its writer."""
LIVE_S = 0.2
"""What runs are doing this second is written with the next command, and without one after so long."""
POLL_S = 0.05
"""How often other processes' commits are looked for; a look costs 3 microseconds."""


class Store:
    """The log of one data root, open in this process.

    Attributes:
        path: The database file.
    """

    def __init__(self, path: Path, write_lock: WriteLock, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self._loop = loop
        self._head = 0
        self._news = anyio.Event()
        self._waiting: deque[tuple[float, Job]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writer = Writer(path, write_lock, self._served)
        self._readers = Readers(path, loop)
        self._closed = False

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
        lock = await anyio.to_thread.run_sync(prepare_database, root, path)
        store = Store(path, lock, asyncio.get_running_loop())
        store._writer.start()
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
        self._writer.put(Job(command, None))

    async def keep_house(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work that is no command (text index, `live`, erasure) on the writer's connection.

        It writes no projection: of their rows the writer has some in memory.

        Raises:
            StoreUnavailable: As for `do`.
        """
        value: T = await self._submit(Housekeeping(work))
        return value

    async def amend(self, work: Callable[[sqlite3.Connection], Outcome[T]]) -> T:
        """Run such work that has to be on record (erasure): its events are appended in the same transaction.

        Raises:
            StoreUnavailable: As for `do`.
        """
        value: T = await self._submit(Housekeeping(work))
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
        return bool(await self._submit(Checkpoint()))

    def set_live(self, run_id: str, text: str) -> None:
        """Note what a run is doing this second; nobody waits for it."""
        if self._closed:
            return
        if not self._writer.set_live(run_id, text):
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
        return await self._readers.read(query, interrupt=interrupt)

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

    # -- whoever waits is answered in time ------------------------------------------------------------------------

    async def _submit(self, command: Command[T] | Housekeeping | Checkpoint) -> Any:
        if self._closed:
            raise StoreUnavailable("the log is closed: this server is shutting down")
        future: asyncio.Future[Any] = self._loop.create_future()
        job = Job(command, future)
        self._writer.put(job)
        self._mind(job)
        return await future

    def _mind(self, job: Job) -> None:
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

    def _overdue(self, job: Job) -> None:
        """Let the caller go if the writer has not taken the job; if it is at it, wait on, but not for ever."""
        if job.future is not None and not self._let_go(job, job.future):
            self._loop.call_later(COMMIT_S, _unanswered, job.future)

    def _flush_live(self) -> None:
        """See that what runs are doing is written, if no command has come that it went with."""
        if not self._closed:
            self._writer.flush_live()

    def _let_go(self, job: Job, future: asyncio.Future[Any]) -> bool:
        """Answer a caller from whom the writer has not taken the job; False when the writer is at it."""
        if future.done():
            return True
        if not self._writer.give_up(job):
            return False
        future.set_exception(StoreUnavailable(f"{NO_ANSWER}; nothing was written; try again when it is free"))
        return True

    def _served(self, done: list[Job], head: int) -> None:
        """Have whoever waits told what the writer has done; it calls this in its own thread."""
        with contextlib.suppress(RuntimeError):  # the loop is gone: its tasks were told by their cancellation
            self._loop.call_soon_threadsafe(self._resolve, done, head)

    def _resolve(self, done: list[Job], head: int) -> None:
        for job in done:
            if job.future is None or job.future.done():
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.value)
        self._drop_answered()
        self._announce(head)

    # -- news from other processes, closing ------------------------------------------------------------------------

    def _announce(self, head: int) -> None:
        if head > self._head:
            self._head = head
            news, self._news = self._news, anyio.Event()
            news.set()

    async def _watch(self) -> None:
        db = await anyio.to_thread.run_sync(partial(connect, self.path, readonly=True))
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

    def _close(self) -> None:
        self._readers.stop()
        self._writer.close(CLOSE_S)
        self._readers.close()


def _unanswered(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(
            OutcomeUnknown(f"{NO_ANSWER}; whether it was written is not known; look before you try again")
        )
