"""Sessions on a Postgres server: how they are opened, which log they meet, and which of their errors pass."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import psycopg
from psycopg.adapt import Loader
from psycopg.sql import SQL, Identifier
from psycopg.types.numeric import Int8Dumper

from ava_audit.database import NEWEST_ENTRY
from ava_audit.errors import LogForked
from ava_audit.model_calls import LoggedCall, ModelCall
from ava_audit.unlogged import UnloggedCalls

log = logging.getLogger("ava.store")

SESSION = """
SET search_path = ava, pg_catalog;
SET client_encoding = 'UTF8';
SET lock_timeout = '1s';
SET statement_timeout = '30s';
SET idle_in_transaction_session_timeout = '60s';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
"""
_SOON = frozenset({"40001", "40P01", "53300", "55P03", "57P01", "57P02", "57P03", "57P05", "25P03"})
"""What passes by itself: a lock held by another, a server that starts or ends, too many connections."""
_HOPELESS = re.compile(
    "authentication failed|no password supplied|does not exist|no pg_hba.conf|certificate|permission denied"
    "|SSL|not permitted|translate host name",
    re.IGNORECASE,
)
"""A refused connection that waiting does not mend; libpq gives it no code."""
_DISK_FULL = re.compile("could not write init file|No space left on device")
"""Refused for want of space: a database whose file with its catalog is missing takes nobody before that is written.

Source: `write_relcache_init_file` in PostgreSQL's relcache.c, which gives the code of an internal error.
"""


class _BoolDumper(Int8Dumper):
    """Stores true and false as 1 and 0, as the embedded database does."""

    def dump(self, obj: Any) -> bytes:
        return b"1" if obj else b"0"


class _WholeLoader(Loader):
    """Reads a sum, which Postgres returns as a decimal number, as a whole one."""

    def load(self, data: Any) -> int:
        return int(bytes(data))


STATE = f"""
SELECT log_id, version, seq, hash, (SELECT hash FROM events WHERE seq = %s) FROM meta
LEFT JOIN ({NEWEST_ENTRY}) AS newest ON true
"""  # noqa: S608
"""The log's id and schema, its newest entry, and the hash that it has for the newest entry that is known."""
_MEETS = f"SELECT pg_is_in_recovery(), state.* FROM ({STATE}) AS state"  # noqa: S608
_KEPT = "SELECT seq FROM events JOIN unnest(%s::bigint[], %s::bytea[]) AS known (n, sha) ON seq = n AND hash = sha"
KNOWN_CALLS = 5_000
"""How many reservations and settlements of its own a process remembers, to tell which of them a log has lost."""


class LogState(NamedTuple):
    """A row of `STATE`."""

    log_id: str
    version: int
    seq: int | None
    hash: bytes | None
    hash_of_known: bytes | None


class LogPlace:
    """Which log this process works on, and the newest entry of it that the process has written or seen.

    A number alone would not tell: after a failover to a server that was behind, other processes write other entries
    with the same numbers. So each new connection and each write compares number and hash. Once they differ, nothing
    counts any more until the process is restarted: what it has in memory follows from entries that are gone. What it
    knows of model calls that the log has lost goes into `unlogged`.

    Attributes:
        log_id: None before the first connection.
        moved: Why the database is another one now.
    """

    def __init__(self, unlogged: UnloggedCalls | None = None) -> None:
        self.log_id: str | None = None
        self.moved: str | None = None
        self._unlogged = unlogged
        self._newest = (0, b"")
        self._calls: deque[LoggedCall] = deque(maxlen=KNOWN_CALLS)
        self._using = threading.Lock()

    @property
    def newest(self) -> tuple[int, bytes]:
        """The number and hash of the newest entry that is known; 0 before the first."""
        return self._newest

    def know(self, seq: int, sha: bytes, calls: Sequence[LoggedCall] = ()) -> None:
        """Remember an entry that the log has, and what this process wrote of model calls."""
        with self._using:
            if seq > self._newest[0]:
                self._newest = seq, sha
            self._calls.extend(calls)

    def refuse_moved(self) -> None:
        """Raise LogForked if the log was found to be another."""
        if self.moved is not None:
            raise LogForked(self.moved)

    def has(self, state: LogState, known: tuple[int, bytes]) -> bool:
        """Tell whether a log has this process's id, and an entry that was known before it was asked."""
        seq, sha = known
        return state.log_id == self.log_id and (seq == 0 or state.hash_of_known == sha)

    def meet(self, conn: psycopg.Connection[Any]) -> None:
        """Compare the log of a connection, outside of a transaction, with the one that is known.

        Raises LogForked if it is another; UndefinedTable if there is none; ReadOnlySqlTransaction if the server is a
        replica, which may be behind; psycopg.Error.
        """
        if self.log_id is None:
            return
        self.refuse_moved()
        known = self.newest
        row = conn.execute(_MEETS, known[:1]).fetchone()
        if row is None:  # somebody may be restoring it
            raise psycopg.errors.UndefinedTable("there is no log in the Postgres database")
        is_replica, *found = row
        if is_replica:
            raise psycopg.errors.ReadOnlySqlTransaction("the Postgres server is a replica")
        state = LogState(*found)
        if not self.has(state, known):
            self._refuse(conn, state, known[0])
        if state.seq is not None and state.hash is not None:
            self.know(state.seq, state.hash)

    def _refuse(self, conn: psycopg.Connection[Any], state: LogState, seq: int) -> NoReturn:
        """Raise LogForked from now on, and write down which model calls this process alone knows."""
        is_same = state.log_id == self.log_id
        if is_same:
            what = "another one" if state.hash_of_known is not None else "missing"
            found = (
                f"has lost entries that this server knows (number {seq:,} is {what}), as after a failover to a server"
                " that was behind, or in an older copy of the log"
            )
        else:
            found = "has another log than when this server started"
        why = f"the Postgres database {found}, so nothing is written and no model is called: restart this server"
        with self._using:
            calls = self._lost_calls(conn) if is_same else []
            if self.moved is None and self._unlogged is not None:
                try:
                    self._unlogged.begin(why)
                    self._unlogged.add(calls)
                except OSError as error:
                    log.error("what the log has lost is not written down: %s: %s", error, calls)
            self.moved = why
        raise LogForked(why)

    def _lost_calls(self, conn: psycopg.Connection[Any]) -> list[ModelCall]:
        seqs, hashes = [one.seq for one in self._calls], [one.hash for one in self._calls]
        kept = {seq for (seq,) in conn.execute(_KEPT, (seqs, hashes))}
        return [one.call for one in self._calls if one.seq not in kept]


def dial(
    conninfo: Mapping[str, Any], place: LogPlace, *, readonly: bool, channel: str | None
) -> psycopg.Connection[Any]:
    """Connect: explicit transactions, durable commits, no wait without an end.

    Raises psycopg.Error if it fails, DiskFull if the server's disk is full; LogForked if it meets another log than this
    process has worked on.
    """
    place.refuse_moved()
    try:
        conn: psycopg.Connection[Any] = psycopg.connect(**conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        if _DISK_FULL.search(str(error)):
            raise psycopg.errors.DiskFull(str(error)) from error
        raise
    try:
        conn.adapters.register_dumper(int, Int8Dumper)
        conn.adapters.register_dumper(bool, _BoolDumper)
        conn.adapters.register_loader("numeric", _WholeLoader)
        conn.execute(SESSION)
        place.meet(conn)
        if readonly:
            # A plan that was made without the words of a search reads the whole table.
            conn.execute("SET default_transaction_read_only = on; SET plan_cache_mode = force_custom_plan")
        if channel is not None:
            conn.execute(SQL("LISTEN {}").format(Identifier(channel)))
    except BaseException:
        conn.close()
        raise
    return conn


def passes(error: psycopg.Error, lost: bool) -> bool:
    """Tell whether an error may pass by itself soon."""
    if error.sqlstate is not None:
        return error.sqlstate in _SOON or error.sqlstate.startswith("08")
    return lost and isinstance(error, psycopg.OperationalError) and not _HOPELESS.search(str(error))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, which has no password: it is never a part of the connection's text."""
    return str(error).partition("\n")[0]
