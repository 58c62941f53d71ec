"""Where the log of a data root is: in the embedded database, or on a Postgres server.

A `Backend` is one log's database: how it is opened, what its errors mean, and how commits of other processes are
noticed. `store.py` and `writer.py` know nothing else about it.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from ava_audit.database import Database
from ava_audit.errors import DataRootRefused
from ava_audit.store.blobs import Blobs
from ava_audit.store.instances import LEASE_S, Instances
from ava_audit.store.names import MARK as MARK
from ava_audit.store.names import SETTING as SETTING
from ava_audit.store.names import VARIABLE as VARIABLE


class Documents(Protocol):
    """Small private documents that all servers of a log share. Every method blocks."""

    def newer(self, known: Mapping[str, int]) -> dict[str, tuple[int, str]]:
        """Return the version and the text of each document whose version is not the known one.

        Raises:
            StoreUnavailable: They cannot be read.
        """
        ...

    def take_over(self, texts: Mapping[str, str]) -> bool:
        """Store the first texts of all documents, if there is none yet; tell whether they were stored.

        Raises:
            StoreUnavailable: They cannot be written.
        """
        ...

    def changed_text(self, name: str) -> str | None:
        """Return the text of a document that this thread is changing; None if it is not."""

    def change(self, name: str, edit: Callable[[str], str]) -> tuple[int, str]:
        """Replace the text of a document while no other process does; return its version and text.

        Args:
            name: The document.
            edit: Returns the new text for the old one; whatever it raises leaves the document alone.

        Raises:
            StoreUnavailable: Another process changes it, or it cannot be written.
            OutcomeUnknown: It may have been written.
        """
        ...

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""


class Backend(Protocol):
    """The database of one log.

    Attributes:
        place: What a person calls it; never with a password.
        error: What its driver raises.
        no_answer: Why the writer may not answer in time.
        is_near: It is in this process: a few rows are read faster than a thread is woken.
    """

    place: str
    error: type[Exception]
    no_answer: str
    is_near: bool

    def prepare(self, *, fresh: bool = False) -> None:
        """Create or migrate the database. Blocking.

        Args:
            fresh: It is to be filled from elsewhere: the data root may have another log, which it replaces.

        Raises:
            SchemaNewer: A newer program has migrated it.
            DataRootRefused: This data root cannot have its log there.
            StoreUnavailable: It cannot be opened.
        """
        ...

    def connect(self, *, readonly: bool = False) -> Database:
        """Open a connection. Blocking."""
        ...

    def open_to_check(self) -> Database:
        """Open a connection that only reads a log, to verify it. Blocking.

        Raises:
            StoreUnavailable: There is no log, or its schema is older.
            SchemaNewer: A newer program has migrated it.
        """
        ...

    def is_damage(self, error: Exception) -> bool:
        """Tell whether an error reports wrong bytes, and not that the database is unavailable right now."""
        ...

    def schema_changes(self, db: Database) -> dict[tuple[str, str], str]:
        """Return what was `removed`, `changed` or `added`, by kind and name, since the schema was made."""
        ...

    def documents(self) -> Documents | None:
        """Return the private documents that all servers of the log share; None where they are files."""

    def turn(self) -> AbstractContextManager[None]:
        """Wait until this process may write, and hold its turn."""
        ...

    def check_location(self) -> None:
        """Check that the log still is where it was opened; takes a few microseconds.

        Raises:
            LogMoved: It was removed, moved or replaced.
        """
        ...

    def instances(self, folder: Path, lease_s: float = LEASE_S) -> Instances:
        """Return the live processes on the log.

        Args:
            folder: The folder of this machine's lock files.
            lease_s: How long this process counts as alive after it last showed that; a lock file needs no such time.
        """
        ...

    def maintaining(self) -> AbstractAsyncContextManager[None]:
        """Wait until no other machine maintains this log, and keep it so; on this machine, a lock file does that."""
        ...

    def translate_error(self, error: BaseException) -> BaseException:
        """Turn a driver's error of a write into one that says what to do, and any error into one for a future."""
        ...

    def advice(self, error: Exception) -> str:
        """Return what to do about a driver's error of a read."""
        ...

    def heads(self, db: Database) -> AsyncGenerator[int | None]:
        """Yield the newest `seq` whenever it may have changed, and None from time to time. It closes `db`."""
        ...

    def blobs(self) -> Blobs | None:
        """Return the files beside the log; None if they are in the data root alone."""
        ...

    def close(self) -> None:
        """Give back what `prepare` has taken."""
        ...


def backend_of(root: Path, url: str | None = None) -> Backend:
    """Return the database of a data root's log.

    Args:
        root: The data root.
        url: The address of a Postgres database, empty for the embedded one. None looks it up in the environment and
            in `config.toml`.

    Raises:
        DataRootRefused: The address is invalid, or the log of this data root is elsewhere.
    """
    from ava_audit.store.sqlite import SqliteBackend

    address = database_url(root) if url is None else url.strip()
    if address:
        return _postgres(root, address)
    if (root / MARK).exists():
        raise DataRootRefused(
            f"the log of the data root {root} is in Postgres: set {VARIABLE}, or {SETTING} in config.toml. To have it"
            f" in ava.db again, run `ava export` with {VARIABLE} set, remove {root / MARK}, and run `ava import`"
        )
    return SqliteBackend(root)


def _postgres(root: Path, address: str) -> Backend:
    try:
        from ava_audit.store.postgres_backend import PostgresBackend
    except ImportError as error:
        raise DataRootRefused(
            f"{VARIABLE} (or {SETTING} in config.toml) asks for Postgres, whose driver is missing ({error}): install"
            " ava-subagents[postgres], or leave it out to have the log in ava.db"
        ) from None
    return PostgresBackend(root, address)


def backend_at(log: Path) -> Backend:
    """Return the database of a data root's log, or of one file, e.g. of a copy.

    Raises:
        DataRootRefused: As for `backend_of`.
    """
    from ava_audit.store.sqlite import SqliteBackend

    return backend_of(log) if log.is_dir() else SqliteBackend(log.parent, log)


@lru_cache(maxsize=8)
def _setting_in(path: Path, _state: tuple[int, ...]) -> object:
    """Return what `config.toml` has as the address, read again when the file's state has changed."""
    return tomllib.loads(path.read_text("utf-8")).get(SETTING, "")


def database_url(root: Path) -> str:
    """Return the address of the data root's Postgres database, empty if its log is in the embedded one.

    Raises:
        DataRootRefused: `config.toml` cannot be read.
    """
    given = os.environ.get(VARIABLE)
    if given is not None:
        return given.strip()
    path = root / "config.toml"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise DataRootRefused(f"{path} is not a regular file; `ava doctor` tells more")
        found = _setting_in(path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        raise DataRootRefused(f"{path} cannot be read: {type(error).__name__}; `ava doctor` tells more") from None
    return found.strip() if isinstance(found, str) else ""
