"""Readers: queries in threads and on connections of their own, each in one consistent state, none waiting for a writer.

Slow tools do not keep anybody from looking: the threads serve queries alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import anyio

from ava_audit.commands import Query, T
from ava_audit.errors import StoreUnavailable
from ava_audit.store.connection import DAMAGED, connect, is_damaged
from ava_audit.view import View

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
            if self._closed:
                db.close()
            else:
                self._idle.put(db)
