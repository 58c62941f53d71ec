"""Small private files that all servers of a log share. They are no part of it: each is replaced as a whole.

They have a connection of their own, which one thread uses at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg

from ava_audit.errors import OutcomeUnknown, StoreUnavailable
from ava_audit.postgres.session import LogPlace, dial, first_line, passes

T = TypeVar("T")
LOCK_WAIT_S = 5
"""How long a change waits for another one of the same file."""
_LOCKED = "55P03"


class PostgresSharedFiles:
    """The shared files of one database. Every method blocks."""

    def __init__(
        self, conninfo: Mapping[str, Any], log_place: LogPlace, place: str, prepare: Callable[[], object]
    ) -> None:
        self._conninfo = conninfo
        self._log_place = log_place
        self._place = place
        self._prepare = prepare
        self._using = threading.RLock()
        self._conn: psycopg.Connection[Any] | None = None
        self._changing: dict[str, str] = {}

    def newer(self, known: Mapping[str, int]) -> dict[str, tuple[int, str]]:
        def query(conn: psycopg.Connection[Any]) -> dict[str, tuple[int, str]]:
            sql = (
                "SELECT name, version, text FROM documents WHERE NOT EXISTS"
                " (SELECT 1 FROM unnest(%s::text[], %s::bigint[]) AS known (n, v) WHERE n = name AND v = version)"
            )
            rows = conn.execute(sql, (list(known), list(known.values())))
            return {name: (version, text) for name, version, text in rows}

        return self._run(query)

    def take_over(self, texts: Mapping[str, str]) -> bool:
        def store(conn: psycopg.Connection[Any]) -> bool:
            with conn.transaction():
                conn.execute("LOCK TABLE documents IN EXCLUSIVE MODE")
                if conn.execute("SELECT 1 FROM documents LIMIT 1").fetchone() is not None:
                    return False
                for name, text in texts.items():
                    conn.execute("INSERT INTO documents (name, version, text) VALUES (%s, 1, %s)", (name, text))
                return True

        return self._run(store)

    def changed_text(self, name: str) -> str | None:
        if not self._using.acquire(blocking=False):  # another thread changes something
            return None
        try:
            return self._changing.get(name)
        finally:
            self._using.release()

    def change(self, name: str, edit: Callable[[str], str]) -> tuple[int, str]:
        def store(conn: psycopg.Connection[Any]) -> tuple[int, str]:
            conn.execute("BEGIN")
            try:
                conn.execute("SELECT set_config('lock_timeout', %s, true)", (f"{LOCK_WAIT_S}s",))
                sql = "INSERT INTO documents (name, version, text) VALUES (%s, 0, '') ON CONFLICT (name) DO NOTHING"
                conn.execute(sql, (name,))
                sql = "SELECT version, text FROM documents WHERE name = %s FOR UPDATE"
                version, text = conn.execute(sql, (name,)).fetchone() or (0, "")
                self._changing[name] = text
                text = edit(text)
                sql = "UPDATE documents SET version = %s, text = %s WHERE name = %s"
                conn.execute(sql, (version + 1, text, name))
            except BaseException:
                _roll_back(conn)
                raise
            finally:
                self._changing.pop(name, None)
            self._commit(conn)
            return version + 1, text

        return self._run(store)

    def close(self) -> None:
        with self._using:
            if self._conn is not None:
                self._conn.close()
            self._conn = None

    def _commit(self, conn: psycopg.Connection[Any]) -> None:
        try:
            conn.execute("COMMIT")
        except psycopg.Error as error:
            _roll_back(conn)
            why = f"{self._place} did not say whether it stored the change ({first_line(error)}); look, and try again"
            raise OutcomeUnknown(why) from error

    def _run(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Do something on the connection; once more on a new one, if the connection of an earlier call was lost.

        Raises StoreUnavailable if that fails, too.
        """
        with self._using:
            for is_last_try in (False, True):
                was_open = self._conn is not None
                try:
                    return work(self._open())
                except psycopg.Error as error:
                    is_lost = self._conn is None or self._conn.closed
                    if is_lost:
                        self.close()
                    was_stale = was_open and is_lost
                    if was_stale and not is_last_try and passes(error, is_lost):
                        continue
                    raise StoreUnavailable(self._explained(error)) from error
        raise AssertionError("unreachable")

    def _open(self) -> psycopg.Connection[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = conn = dial(self._conninfo, self._log_place, readonly=False, channel=None)
            if conn.execute("SELECT to_regclass('ava.documents')").fetchone() == (None,):
                self._prepare()
        return self._conn

    def _explained(self, error: psycopg.Error) -> str:
        if error.sqlstate == _LOCKED:
            return f"another process has been changing the same in {self._place} for {LOCK_WAIT_S} s; try again"
        return f"{self._place} cannot be used: {first_line(error)}; check that it runs and can be reached"


def _roll_back(conn: psycopg.Connection[Any]) -> None:
    try:
        conn.execute("ROLLBACK")
    except psycopg.Error:
        conn.close()
