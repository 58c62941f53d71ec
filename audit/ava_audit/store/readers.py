"""Threads that answer queries, and short queries in the thread of the event loop."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import anyio

from ava_audit.database import Database
from ava_audit.errors import LogMoved, StoreUnavailable, is_thread_shortage
from ava_audit.store.backend import Backend
from ava_audit.view import Query, T, View

READERS = 8
"""Queries that run at once."""
LOOK_S, THREADS_FOR = 0.005, 100
"""Seconds that a look may take in the event loop's thread. After a longer one, looks go to reader threads for so many
times what it took: slow ones cost the loop a hundredth of its time at most."""


@dataclass(slots=True)
class _Reading:
    """A running query: when it is stopped, its connection, and whether its caller has gone."""

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
        """Run a short query in this thread.

        Raises StoreUnavailable: the database cannot be read; TimeoutError: it was stopped.
        """
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
        """Run a query. With `interrupt`, a cancelled caller returns at once, and the query is interrupted.

        Raises StoreUnavailable: the database cannot be read.
        """
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
        """Close the unused connections, some time after `stop`."""
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
            what = str(error).partition("\n")[0]
            raise StoreUnavailable(f"the log cannot be read: {what}; {self._backend.advice(error)}") from error
        finally:
            db.rollback()
            with self._gate:
                closed = self._closed or db.lost
                if not closed:
                    self._idle.put(db)
            if closed:
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
