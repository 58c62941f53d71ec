"""The log on a Postgres server: how it is made, migrated and checked, and what the server's errors mean."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
from psycopg.conninfo import conninfo_to_dict

from ava_audit.database import Busy, Commit, Database
from ava_audit.errors import DataRootRefused, LogForked, StoreUnavailable, is_thread_shortage
from ava_audit.model_calls import ModelCall
from ava_audit.postgres.blobs import PostgresBlobs
from ava_audit.postgres.leases import FAILURES, LeasedInstances, SessionConnection
from ava_audit.postgres.server import LOCK, PostgresDatabase
from ava_audit.postgres.session import LogPlace, first_line
from ava_audit.postgres.shared_files import PostgresSharedFiles
from ava_audit.store import schema
from ava_audit.store.backend import LEASE_S, MARK, VARIABLE, Instances, OlderSchema
from ava_audit.store.locks import refuse_unfit
from ava_audit.unlogged import UnloggedCalls

log = logging.getLogger("ava.store")

_OF_PROCESSES = ("leases", "activities")
"""Tables that say what lives now."""
OLDEST_SERVER = 13
CLOCK_S = 120
"""How far the clocks of this machine and of the server may differ."""
POLL_S = 1.0
"""How often the store looks for commits of other processes that it did not hear of."""
CONNECT_S = 5
OPEN_S = 30.0
"""How long a process that opens the log waits for those that write: longer than a silent one keeps the others out."""
MAINTAINER = 0x61_76_62
MAINTAIN_AFTER_S = 3.0
"""The advisory lock of the process that maintains the log, and how often others try to take it."""
NETWORK = {"keepalives_idle": 10, "keepalives_interval": 3, "keepalives_count": 3, "tcp_user_timeout": 15_000}
"""After how long a connection counts as lost whose other end is gone (seconds; the last in milliseconds)."""
_CREATED = re.compile(r"CREATE (?:UNLOGGED )?(TABLE|TRIGGER|INDEX) (?:IF NOT EXISTS )?(\w+)")
_FUNCTION = re.compile(r"CREATE FUNCTION (\w+)\(.*?\$\$(.*?)\$\$", re.DOTALL)
_ENABLED = "O"
_OBJECTS = """
SELECT 'table', relname::text, 'O' FROM pg_class WHERE relnamespace = 'ava'::regnamespace AND relkind IN ('r', 'p', 'v')
UNION ALL SELECT 'index', relname::text, CASE WHEN indisvalid THEN 'O' ELSE 'broken' END
    FROM pg_class JOIN pg_index ON indexrelid = pg_class.oid
    WHERE relnamespace = 'ava'::regnamespace AND NOT indisprimary
UNION ALL SELECT 'trigger', tgname::text, tgenabled::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    WHERE relnamespace = 'ava'::regnamespace AND NOT tgisinternal
UNION ALL SELECT 'function', proname::text, prosrc FROM pg_proc WHERE pronamespace = 'ava'::regnamespace
"""


class PostgresBackend:
    """A Postgres database with the log of a data root. Raises DataRootRefused if the address is invalid."""

    error: type[Exception] = psycopg.Error
    is_near = False
    no_answer = (
        "the log did not answer in time: the Postgres server cannot be reached or is stuck, or another process writes"
    )

    def __init__(self, root: Path, url: str) -> None:
        self._root = root
        self._unlogged = UnloggedCalls(root)
        self._place = LogPlace(self._unlogged)
        try:
            parameters = conninfo_to_dict(url)
        except psycopg.Error:  # its text quotes the address, which may have a password
            raise DataRootRefused(
                f"the address of the database ({VARIABLE}, or database_url in config.toml) is invalid: give one such as"
                " postgresql://user@host:5432/ava"
            ) from None
        self._conninfo: dict[str, Any] = {
            "connect_timeout": CONNECT_S, "application_name": "ava", **NETWORK,
            **{key: value for key, value in parameters.items() if value is not None},
        }  # fmt: skip
        self.place = _describe_database(parameters)

    def __repr__(self) -> str:
        return f"PostgresBackend({self.place})"

    # -- opening ------------------------------------------------------------------------------------------------------

    def prepare(self, *, fresh: bool = False, older: OlderSchema = OlderSchema.REFUSE) -> str | None:
        refuse_unfit(self._root)
        with self._opened() as (db, conn):
            _refuse_server(conn, self.place)
            _keep_writers_out(db, conn)
            conn.execute("SET lock_timeout = '30s'")
            self._refuse_two_logs(fresh, has_schema=db.schema_version() > 0)
            conn.execute("SET statement_timeout = 0")
            copy = _make_or_migrate(db, self.place, older)
            self._claim(conn)
        if copy is None:
            return None
        return f"the schema {copy} of {self.place}"

    @contextmanager
    def _opened(self) -> Generator[tuple[PostgresDatabase, psycopg.Connection[Any]]]:
        try:
            with contextlib.closing(PostgresDatabase(self._conninfo, self._place)) as db:
                yield db, db.open()
        except (psycopg.Error, OSError) as error:
            raise StoreUnavailable(f"{self.place} cannot be opened: {_explained(error)}") from error

    def _refuse_two_logs(self, fresh: bool, *, has_schema: bool) -> None:
        if (self._root / MARK).exists():
            if has_schema:  # `_claim` compares the two
                return
            raise DataRootRefused(
                f"{self.place} is empty, but {self._root / MARK} says that this data root has its log in Postgres:"
                " give the address of that database, or restore it; to begin a new log, remove that file"
            )
        embedded = self._root / "ava.db"
        if not fresh and embedded.is_file() and embedded.stat().st_size > 0:
            raise DataRootRefused(
                f"the data root {self._root} has a log in ava.db: move it with `ava export` and `ava import`, or"
                " move ava.db away to begin a new one in Postgres"
            )

    def _claim(self, conn: psycopg.Connection[Any]) -> None:
        """Note in the data root which log it has; refuse another one, so that budgets do not start again from zero."""
        (log_id,) = conn.execute("SELECT log_id FROM meta").fetchone() or ("",)
        mark = self._root / MARK
        known = mark.read_text("utf-8").strip() if mark.exists() else None
        if known is None:
            with mark.open("w", encoding="utf-8") as file:
                file.write(log_id + "\n")
                file.flush()
                os.fsync(file.fileno())
        elif known != log_id:
            raise DataRootRefused(
                f"{self.place} has another log than the one that {self._root} has used until now: give the address of"
                f" that one, or use another data root. To use this log from now on, remove {mark}"
            )
        self._place.log_id = log_id
        self._place.meet(conn)

    def connect(self, *, readonly: bool = False) -> PostgresDatabase:
        return PostgresDatabase(self._conninfo, self._place, readonly=readonly)

    def shared_files(self) -> PostgresSharedFiles:
        return PostgresSharedFiles(self._conninfo, self._place, self.place, self.prepare)

    def open_to_check(self) -> PostgresDatabase:
        with self._opened() as (db, _conn):
            if db.schema_version() == 0:
                raise StoreUnavailable(f"there is no log in {self.place}")
            schema.needs_migration(db, self.place, OlderSchema.REFUSE)
        return PostgresDatabase(self._conninfo, LogPlace(), readonly=True)

    # -- while it is open ---------------------------------------------------------------------------------------------

    def turn(self) -> AbstractContextManager[None]:
        """Return at once: the lock that orders writers is a part of their transactions."""
        return nullcontext()

    def check_location(self) -> None:
        self._place.refuse_moved()

    def note_unlogged(self, calls: Sequence[ModelCall]) -> None:
        if self._place.moved is not None:
            self._unlogged.add(calls)

    def instances(self, folder: Path, lease_s: float = LEASE_S) -> Instances:
        return LeasedInstances(folder, self._conninfo, self._place, self.place, lease_s)

    @asynccontextmanager
    async def maintaining(self) -> AsyncGenerator[None]:
        """Hold the lock of the process that maintains the log.

        Two at once do no harm: each notes progress only where it continues what was noted last.
        """
        connection = SessionConnection(self._conninfo, self._place, CONNECT_S)
        try:
            held = False
            while not held:
                with anyio.CancelScope(shield=True):  # a process that ends at once still does what is left to do
                    held = await anyio.to_thread.run_sync(_try_lock, connection)
                if not held:
                    await anyio.sleep(MAINTAIN_AFTER_S)
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(connection.close)

    async def heads(self, db: Database) -> AsyncGenerator[Sequence[Commit]]:
        """Yield commits when the server tells of them, and the newest entry from time to time."""
        assert isinstance(db, PostgresDatabase)
        db.listen()
        try:
            while True:
                commits: list[Commit] = []
                try:
                    commits = await anyio.to_thread.run_sync(_commits, db)
                except RuntimeError as error:
                    if not is_thread_shortage(error):
                        raise
                yield commits
                socket = db.socket
                with anyio.move_on_after(POLL_S):
                    if socket is None:
                        await anyio.sleep(POLL_S)
                    else:
                        await anyio.wait_readable(socket)
        finally:
            db.close()

    def blobs(self) -> PostgresBlobs:
        return PostgresBlobs(self._conninfo, self._place, self.place)

    def close(self) -> None:
        self._unlogged.close()

    # -- errors and checks --------------------------------------------------------------------------------------------

    def translate_error(self, error: BaseException) -> BaseException:
        if isinstance(error, Busy):
            return StoreUnavailable(f"{error}, so nothing was written; try again")
        if not isinstance(error, psycopg.Error):
            return error
        return StoreUnavailable(f"{self.place} was not written: {_explained(error)}")

    def advice(self, error: Exception) -> str:
        return f"see that {self.place} runs and can be reached, and try again"

    def is_damage(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error) and (error.sqlstate or "") in ("XX001", "XX002")

    def schema_changes(self, db: Database) -> schema.Changes:
        script = "\n".join((_script(), *schema.MigrationStatements().statements))
        expected: dict[tuple[str, str], str] = {}
        for kind, name in _CREATED.findall(script):
            expected[kind.lower(), name] = _ENABLED
        for name, body in _FUNCTION.findall(script):
            expected["function", name] = body
        actual = {(kind, name): state for kind, name, state in db.execute(_OBJECTS)}
        return schema.compare_definitions(expected, actual)


def _keep_writers_out(db: PostgresDatabase, conn: psycopg.Connection[Any]) -> None:
    """Take the lock of writers until the connection is closed. Raises psycopg.Error: others had it for too long."""
    end = time.monotonic() + OPEN_S
    while True:
        try:
            conn.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() > end:
                raise
            db.end_stuck_writer()
        else:
            return


def _try_lock(connection: SessionConnection) -> bool:
    try:
        return bool(connection.run("SELECT pg_try_advisory_lock(%s)", (MAINTAINER,))[0][0])
    except FAILURES as error:  # tried again soon
        log.debug("cannot take the lock of maintenance: %s", first_line(error))
        return False


def _commits(db: PostgresDatabase) -> list[Commit]:
    try:
        return db.commits()
    except (psycopg.Error, LogForked) as error:  # tried again at the next look; writers and readers report it
        log.debug("cannot check for new entries: %s", first_line(error))
        return []


def _make_or_migrate(db: PostgresDatabase, place: str, older: OlderSchema) -> str | None:
    """Make the tables of a new log, or migrate an older one; the caller holds the lock.

    Returns the name of the schema with the copy from before a migration, None if there is no copy.
    """
    version = db.schema_version()
    if not schema.needs_migration(db, place, older) and version > 0:
        return None
    copy = None
    db.execute("BEGIN")
    try:
        if version == 0:
            db.run_script(_script())
            db.execute("INSERT INTO meta (log_id, version) VALUES (?, 0)", (secrets.token_hex(16),))
        elif older is OlderSchema.COPY_AND_MIGRATE:
            copy = _copy_schema(db, version)
        schema.apply_migrations(db, max(version, schema.FIRST_SCHEMA))
        db.execute("UPDATE meta SET version = ?", (schema.SCHEMA_VERSION,))
        db.execute("COMMIT")
    except BaseException:
        db.rollback()
        raise
    if copy is not None:
        log.warning(
            "%s had schema %d: it is migrated to %d; its schema %s is the copy from before",
            place,
            version,
            schema.SCHEMA_VERSION,
            copy,
        )
    return copy


def _copy_schema(db: PostgresDatabase, version: int) -> str:
    """Copy the rows of all tables to a schema of their own, which is a part of the caller's transaction."""
    name = f"ava_schema_{version}_{datetime.now(UTC):%Y%m%dt%H%M%S%f}"
    db.execute(f"CREATE SCHEMA {name}")
    for (table,) in db.execute("SELECT tablename::text FROM pg_tables WHERE schemaname = 'ava'").fetchall():
        if table not in _OF_PROCESSES:
            db.execute(f"CREATE TABLE {name}.{table} AS TABLE ava.{table}")
    return name


def _describe_database(parameters: Mapping[str, Any]) -> str:
    """Return a database's name and host for messages, by the parts of its address; without a user or a password."""
    host = parameters.get("host") or parameters.get("hostaddr") or "this machine"
    port = parameters.get("port")
    if port:
        host = f"{host}:{port}"
    name = parameters.get("dbname") or parameters.get("user") or ""
    return f"the Postgres database {name} on {host}"


def _refuse_server(conn: psycopg.Connection[Any], place: str) -> None:
    """Raise StoreUnavailable: the server is too old, a replica that only reads, or its clock differs."""
    if conn.info.server_version < OLDEST_SERVER * 10_000:
        raise StoreUnavailable(
            f"{place} is Postgres {conn.info.server_version // 10_000}: use {OLDEST_SERVER} or newer"
        )
    sql = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), current_setting('fsync'), "
    replica, readonly, fsync, now_us = conn.execute(
        f"{sql} CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
    ).fetchone() or (True, "on", "on", 0)
    if replica or readonly == "on":
        raise StoreUnavailable(f"{place} only reads (a replica, or read-only): give the address of the primary server")
    off_s = time.time() - now_us / 1_000_000
    if abs(off_s) > CLOCK_S:
        where = "ahead of" if off_s > 0 else "behind"
        raise StoreUnavailable(
            f"this machine's clock is {abs(off_s) / 60:.0f} minutes {where} the one of {place}: correct the wrong one,"
            " because entries carry this machine's time"
        )
    if fsync == "off":
        log.warning("%s runs with fsync = off: a power failure there can lose or damage the log", place)


def _explained(error: BaseException) -> str:
    text = first_line(error)
    match getattr(error, "sqlstate", None):
        case "53100":
            return f"the disk of the Postgres server is full ({text}); free some space and try again"
        case "25006":
            return f"the server only reads ({text}); give the address of the primary server"
        case "42501":
            return f"{text}; the user needs the right to create a schema in this database, and to own it"
        case None:
            return f"{text}; check the address, the user and that the server runs"
        case _:
            return f"{text}; fix that and try again"


def _script() -> str:
    return resources.files("ava_audit.postgres").joinpath("schema.sql").read_text("utf-8")
