"""Sessions on a Postgres server: how they are opened, which log they meet, and which of their errors pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.adapt import Loader
from psycopg.sql import SQL, Identifier
from psycopg.types.numeric import Int8Dumper

from ava_audit.errors import LogMoved

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


class _BoolDumper(Int8Dumper):
    """Stores true and false as 1 and 0, as the embedded database does."""

    def dump(self, obj: Any) -> bytes:
        return b"1" if obj else b"0"


class _WholeLoader(Loader):
    """Reads a sum, which Postgres returns as a decimal number, as a whole one."""

    def load(self, data: Any) -> int:
        return int(bytes(data))


class LogPlace:
    """Which log this process's connections belong to (`log_id`: None before the first), and whether they still meet it.

    `moved`: why the database is another one now. `head`: the newest `seq` that this process has committed or seen.
    """

    def __init__(self) -> None:
        self.log_id: str | None = None
        self.moved: str | None = None
        self.head = 0

    def check(self, log_id: str, head: int, known: int) -> None:
        """Raise LogMoved if a connection with this id and newest `seq` meets another log, or an older state of it.

        `known` is `head` of this process, before the database was asked.
        """
        if self.log_id is None:
            self.log_id = log_id
        if log_id != self.log_id:
            content = "another log"
        elif head < known:
            content = "an older copy of the log"
        else:
            self.moved = None
            return
        self.moved = (
            f"the Postgres database has {content} than when this server started, so nothing is written and no model is"
            " called: put the right one back, or restart this server"
        )
        raise LogMoved(self.moved)


def dial(conninfo: Mapping[str, Any], *, readonly: bool, channel: str | None) -> psycopg.Connection[Any]:
    """Connect: explicit transactions, durable commits, no wait without an end. Raises psycopg.Error: it fails."""
    conn: psycopg.Connection[Any] = psycopg.connect(**conninfo, autocommit=True)
    try:
        conn.adapters.register_dumper(int, Int8Dumper)
        conn.adapters.register_dumper(bool, _BoolDumper)
        conn.adapters.register_loader("numeric", _WholeLoader)
        conn.execute(SESSION)
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
