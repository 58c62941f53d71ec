"""Where the log of a data root is: in the embedded database, or on a Postgres server."""

from __future__ import annotations

import os
import stat
import tomllib
from functools import lru_cache
from pathlib import Path

from ava_audit.errors import DataRootRefused
from ava_audit.store.backend import MARK, SETTING, VARIABLE, Backend
from ava_extras import ExtraMissing, load


def backend_of(root: Path, url: str | None = None) -> Backend:
    """Return the database of a data root's log. `url` None looks in environment and `config.toml`; empty: embedded.

    Raises DataRootRefused: the address is invalid, or the log of this data root is elsewhere.
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
        backend: Backend = load("postgres").PostgresBackend(root, address)
    except ExtraMissing as error:
        asks = f"{VARIABLE} (or {SETTING} in config.toml) asks for Postgres; leave it out to have the log in ava.db."
        raise DataRootRefused(f"{asks} {error}") from None
    return backend


def backend_at(log: Path) -> Backend:
    """Return the database of a data root's log, or of one file, e.g. of a copy. Raises DataRootRefused."""
    from ava_audit.store.sqlite import SqliteBackend

    return backend_of(log) if log.is_dir() else SqliteBackend(log.parent, log)


@lru_cache(maxsize=8)
def _setting_in(path: Path, _state: tuple[int, ...]) -> object:
    return tomllib.loads(path.read_text("utf-8")).get(SETTING, "")


def database_url(root: Path) -> str:
    """Return the address of the data root's Postgres database, empty for the embedded one. Raises DataRootRefused."""
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
