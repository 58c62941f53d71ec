"""The embedded database, SQLite: one file in the data root, and a lock beside it for those who write.

`backend_of` returns it, or the Postgres server that has the log of a data root instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import tomllib
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import anyio

from ava_audit.database import NEWEST_ENTRY, Commit, Database
from ava_audit.entries import GENESIS, ProgressCallback
from ava_audit.errors import DataRootRefused, LogMoved, StoreUnavailable
from ava_audit.model_calls import ModelCall
from ava_audit.store.backend import LEASE_S, MARK, SETTING, VARIABLE, Backend, Instances, OlderSchema
from ava_audit.store.connection import (
    DAMAGED,
    SqliteDatabase,
    advice,
    connect,
    disk_fault,
    has_unread_entries,
    is_damaged,
    log_state,
    uri_of,
)
from ava_audit.store.locks import LockedInstances, NoLocks, WriteLock, refuse_unfit
from ava_audit.store.schema import (
    SCHEMA_VERSION,
    Changes,
    create,
    migrate,
    needs_migration,
    schema_changes,
    transaction,
)
from ava_extras import ExtraMissing, load

log = logging.getLogger("ava.store")

FILE = "ava.db"
COPIED_PAGES = 2_000
POLL_S = 0.05
"""How often the store checks for commits of other processes; a check costs 3 microseconds."""

COPY_NAME = "ava.schema-{version}.{time}.db"
"""The copy of a log from before a migration, beside it."""
PREPARE_S = 20.0
"""How long the creation or migration of a log waits for other writers."""


class SqliteBackend:
    """The file `ava.db` of a data root."""

    error: type[Exception] = sqlite3.Error
    is_near = True
    no_answer = (
        "the log did not answer in time: another program may hold ava.db, such as one that was stopped (Ctrl-Z), or the"
        " disk is stuck"
    )

    def __init__(self, root: Path, path: Path | None = None) -> None:
        self._root = root
        self.path = path or root / FILE
        self.place = str(self.path)
        self._lock: WriteLock | None = None
        self._location: LogLocation | None = None

    def prepare(self, *, fresh: bool = False, older: OlderSchema = OlderSchema.REFUSE) -> str | None:
        del fresh
        refuse_unfit(self._root)
        copy = None
        try:
            self.path.touch(mode=0o600, exist_ok=True)
            lock = WriteLock(self._root / "write.lock")
            try:
                with contextlib.closing(connect(self.path)) as db:
                    (mode,) = db.execute("PRAGMA journal_mode").fetchone()
                    if db.schema_version() != SCHEMA_VERSION or mode != "wal":
                        with lock.held(PREPARE_S):
                            copy = self._make_or_migrate(db, older)
                    self._location = LogLocation(self.path)
            except BaseException:
                lock.close()
                raise
        except (OSError, sqlite3.Error) as error:
            why = self._explain_open_failure(error)
            raise StoreUnavailable(f"the log in {self._root} cannot be opened: {why}") from error
        self._lock = lock
        return None if copy is None else str(copy)

    def _explain_open_failure(self, error: OSError | sqlite3.Error) -> str:
        if is_damaged(error):
            return f"{error}; {DAMAGED}"
        why = disk_fault(error, self.path) or f"{error}; fix that"
        return f"{why}, or choose another AVA_DATA_ROOT"

    def _make_or_migrate(self, db: SqliteDatabase, older: OlderSchema) -> Path | None:
        """Make the tables of a new log, or migrate an older one; return the copy from before a migration.

        The caller holds the write lock.
        """
        version = db.schema_version()
        migrates = needs_migration(db, self.place, older)
        db.execute("PRAGMA journal_mode = WAL")
        if version == 0:
            with transaction(db):
                create(db)
        if not migrates:
            return None
        if older is OlderSchema.MIGRATE:
            migrate(db, version)
            return None
        copy = self.path.with_name(COPY_NAME.format(version=version, time=f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"))
        copy_log(self.path, copy)
        try:
            migrate(db, version)
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
        log.warning(
            "%s had schema %d and was migrated to %d; %s is the copy from before",
            self.path,
            version,
            SCHEMA_VERSION,
            copy,
        )
        return copy

    def connect(self, *, readonly: bool = False) -> SqliteDatabase:
        return connect(self.path, readonly=readonly)

    def shared_files(self) -> None: ...

    def open_to_check(self) -> SqliteDatabase:
        path = self.path
        if not path.is_file():
            raise StoreUnavailable(f"there is no log at {path}")
        db = _open_unwritable(path)
        if db is None:
            # A URI, because otherwise SQLite would create a file that was removed meanwhile.
            db = _connect_to_check(path, "mode=rw", SqliteDatabase)
        try:
            db.execute("PRAGMA query_only = ON")
            db.execute("PRAGMA wal_autocheckpoint = 0")
            version = db.schema_version()
            if version == 0:
                no_log = sqlite3.DatabaseError("it was emptied, or its beginning is missing")
                no_log.sqlite_errorcode = sqlite3.SQLITE_NOTADB
                raise no_log
            needs_migration(db, self.place, OlderSchema.REFUSE)
        except BaseException as error:
            db.close()
            why = disk_fault(error, path)
            if why:
                raise StoreUnavailable(f"{path} cannot be read: {why}") from error
            raise
        return db

    def is_damage(self, error: Exception) -> bool:
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

    def schema_changes(self, db: Database) -> Changes:
        assert isinstance(db, SqliteDatabase)
        return schema_changes(db)

    def turn(self) -> AbstractContextManager[None]:
        assert self._lock is not None
        return self._lock.held()

    def check_location(self) -> None:
        assert self._location is not None
        self._location.check()

    def note_unlogged(self, calls: Sequence[ModelCall]) -> None:
        """A file that was moved may come back: what is paid then waits in memory to be written."""

    def instances(self, folder: Path, lease_s: float = LEASE_S) -> Instances:
        return LockedInstances(folder, self.check_location)

    def maintaining(self) -> AbstractAsyncContextManager[None]:
        """Wait for nothing: the log is on this machine alone."""
        return nullcontext()

    def translate_error(self, error: BaseException) -> BaseException:
        if isinstance(error, NoLocks):
            return StoreUnavailable(f"{error}. Nothing was written")
        if not isinstance(error, sqlite3.Error):
            return error
        text = str(error)
        if "full" in text:
            text = "the disk of the data root is full, so nothing was written: free some space and try again"
        elif "readonly" in text:
            text = "the data root is read-only, so nothing was written: make it writable and try again"
        elif is_damaged(error):
            text = f"the log could not be written ({text}), so nothing was; {DAMAGED}"
        else:
            text = f"the log could not be written ({text}), so nothing was; fix that and try again"
        return StoreUnavailable(text)

    def advice(self, error: Exception) -> str:
        return advice(error)

    def blobs(self) -> None: ...

    async def heads(self, db: Database) -> AsyncGenerator[Sequence[Commit]]:
        try:
            last_version: object = None
            while True:
                commits: list[Commit] = []
                try:
                    version = db.data_version()
                    if version != last_version:
                        (head,) = db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
                        commits = [Commit(head)]
                        last_version = version
                except sqlite3.Error as error:  # tried again at the next check; writers and readers report it
                    log.debug("cannot check for new entries: %s", error)
                yield commits
                await anyio.sleep(POLL_S)
        finally:
            db.close()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


class _FixedLog(SqliteDatabase):
    """A log that is read as one unchanging file, because the files of one in use cannot be made beside it."""

    state_at_open: tuple[bool, int, int, int] | None = None

    @property
    def lost(self) -> bool:  # type: ignore[override]
        """Whether another process has opened or changed the file, so that what was read belongs to no one state."""
        try:
            return log_state(self._path()) != self.state_at_open
        except OSError:
            return True


def _open_unwritable(path: Path) -> SqliteDatabase | None:
    """Open a log on a medium that can only be read; None where the folder can be written.

    Raises StoreUnavailable: its newest entries cannot be read there.
    """
    if os.access(path.parent, os.W_OK):
        return None
    state = log_state(path)
    if state[0]:
        return _connect_to_check(path, "mode=ro", SqliteDatabase)
    if has_unread_entries(path):
        raise StoreUnavailable(
            f"a process died while it wrote to {path}, and its last entries cannot be read in a folder that can only be"
            " read: copy the folder, and check the copy"
        )
    db = _connect_to_check(path, "mode=ro&immutable=1", _FixedLog)
    db.state_at_open = state
    return db


_D = TypeVar("_D", bound=SqliteDatabase)


def _connect_to_check(path: Path, options: str, kind: type[_D]) -> _D:
    return sqlite3.connect(
        uri_of(path, options), uri=True, timeout=5.0, isolation_level=None, check_same_thread=False, factory=kind
    )


def copy_log(path: Path, target: Path, on_progress: ProgressCallback | None = None) -> None:
    """Copy a log as it is at one moment to a new file, while other processes write to it. Blocking.

    `on_progress` gets the number of copied pages, and of all pages. Raises StoreUnavailable: the log cannot be read, or
    the copy cannot be written.
    """

    def progress(_status: int, remaining: int, total: int) -> None:
        if on_progress is not None:
            on_progress(total - remaining, total)

    try:
        target.touch(mode=0o600, exist_ok=False)
        try:
            with contextlib.closing(connect(path, readonly=True)) as db, contextlib.closing(connect(target)) as copy:
                db.execute("BEGIN")  # one snapshot, so that a commit meanwhile does not restart the copy
                db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                db.backup(copy, pages=COPIED_PAGES, progress=progress)
            fd = os.open(target, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except BaseException:
            target.unlink()  # half a copy is none
            raise
    except (OSError, sqlite3.Error) as error:
        why = disk_fault(error, path) or error
        raise StoreUnavailable(f"the log {path} cannot be copied to {target}: {why}") from error


def newest_of_older(path: Path) -> tuple[int, str]:
    """Return the newest entry's number and hash (hex) of a copy that an older version wrote, as far as SQLite reads it.

    Raises StoreUnavailable if it is damaged, or cannot be read. Blocking.
    """
    try:
        with contextlib.closing(connect(path, readonly=True)) as db:
            (fault,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if fault != "ok":
                raise StoreUnavailable(f"the log {path} is damaged: {fault}")
            seq, digest = db.execute(NEWEST_ENTRY).fetchone() or (0, GENESIS)
            return seq, digest.hex()
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"the log {path} cannot be read: {disk_fault(error, path) or error}") from error


class LogLocation:
    """Notices if the open log is removed, moved or replaced: later writes would be lost. Raises OSError: unreadable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = self._read()

    def check(self) -> None:
        """Raise LogMoved if another file, or none, is at the path; takes a few microseconds."""
        try:
            moved = self._read() != self._identity
        except OSError as error:
            raise LogMoved(
                f"the data root {self._path.parent} was removed or moved while this server was running"
                f" ({self._path.name}: {error.strerror}), so nothing is written and no model is called: put it back, or"
                " restart this server"
            ) from error
        if moved:
            raise LogMoved(
                f"the data root {self._path.parent} was replaced while this server was running, so nothing is written"
                " and no model is called: put the old one back, or restart this server"
            )

    def _read(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_dev, status.st_ino


def backend_of(root: Path, url: str | None = None) -> Backend:
    """Return the database of a data root's log: Postgres at `url`, or SQLite if that is empty.

    With `url` None, the environment and `config.toml` have the address.

    Raises DataRootRefused if the address is invalid, or the log of this data root is elsewhere.
    """
    if url is None:
        url = database_url(root)
    address = url.strip()
    if address:
        try:
            backend: Backend = load("postgres").PostgresBackend(root, address)
        except ExtraMissing as error:
            asks = (
                f"{VARIABLE} (or {SETTING} in config.toml) asks for Postgres; leave it out to have the log in ava.db."
            )
            raise DataRootRefused(f"{asks} {error}") from None
        return backend
    if (root / MARK).exists():
        raise DataRootRefused(
            f"the log of the data root {root} is in Postgres: set {VARIABLE}, or {SETTING} in config.toml. To have it"
            f" in ava.db again, run `ava export` with {VARIABLE} set, remove {root / MARK}, and run `ava import`"
        )
    return SqliteBackend(root)


def backend_at(log: Path) -> Backend:
    """Return the database of a data root's log, or of one file, e.g. of a copy. Raises DataRootRefused."""
    return backend_of(log) if log.is_dir() else SqliteBackend(log.parent, log)


def log_file(root: Path) -> Path | None:
    """Return the file that has, or will have, the log of a data root; None where a database server has it."""
    if (root / MARK).exists():
        return None
    try:
        on_server = bool(database_url(root))
    except DataRootRefused:  # reading the settings reports this
        on_server = False
    return None if on_server else root / FILE


@lru_cache(maxsize=8)
def _setting_in(path: Path, _state: tuple[int, ...]) -> object:
    return tomllib.loads(path.read_text("utf-8-sig")).get(SETTING, "")


def database_url(root: Path) -> str:
    """Return the address of the data root's Postgres database, empty for the embedded one. Raises DataRootRefused.

    An empty variable counts as unset, as for every setting.
    """
    from_variable = os.environ.get(VARIABLE, "").strip()
    if from_variable:
        return from_variable
    path = root / "config.toml"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise DataRootRefused(f"{path} is not a regular file; `ava doctor` tells more")
        url = _setting_in(path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        raise DataRootRefused(f"{path} cannot be read: {type(error).__name__}; `ava doctor` tells more") from None
    if not isinstance(url, str):
        return ""
    return url.strip()
