"""The log on a Postgres server, as somebody with its password, its disk and its connections sees it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

psycopg = pytest.importorskip("psycopg", reason="the driver is not installed")

from ava_audit.errors import OutcomeUnknown, StoreUnavailable  # noqa: E402
from ava_audit.postgres import server as postgres  # noqa: E402
from ava_audit.store import backend, store  # noqa: E402
from ava_audit.verify import verify  # noqa: E402
from support.log import message, write  # noqa: E402
from support.postgres import PostgresServer  # noqa: E402


@contextmanager
def connect_to(url: str) -> Iterator[Any]:
    """Connect to a database as somebody else who knows the password."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("SET search_path = ava")
        yield conn


@contextmanager
def administer(server: PostgresServer) -> Iterator[Any]:
    """A connection of the server's administrator, to no database of Ava's."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
        yield conn


def verify_on(root: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Verify the log of a data root whose database is at this address."""
    monkeypatch.setenv(backend.VARIABLE, url)
    return verify(root)


async def refuse_to_open(root: Path, url: str, kind: type[Exception], match: str) -> str:
    """Open a log, which fails with this error; return all that the error says."""
    with anyio.fail_after(20), pytest.raises(kind, match=match) as caught:
        async with store.Store.open(root, url):
            pass
    return f"{caught.value}{caught.value.__cause__}"


def cut_connections(url: str) -> None:
    """End all connections to a database, as a restart of the server does."""
    with connect_to(url) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def lose_entries(url: str, after: int) -> None:
    """Take the newest entries out of a log, as a failover does to a server that was behind."""
    with connect_to(url) as other:
        other.execute("ALTER TABLE events DISABLE TRIGGER ALL")
        other.execute("DELETE FROM events WHERE seq > %s", (after,))
        other.execute("ALTER TABLE events ENABLE TRIGGER ALL")


def append_copy(conn: Any) -> None:
    """Append a copy of the newest entry with another hash, as an entry that no process has been told of."""
    columns = [
        name
        for (name,) in conn.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'events'::regclass AND attnum > 0 ORDER BY attnum"
        )
    ]
    copied = ", ".join({"seq": "seq + 1", "hash": "sha256(hash)"}.get(name, name) for name in columns)
    conn.execute(f"INSERT INTO events SELECT {copied} FROM events ORDER BY seq DESC LIMIT 1")


def lose_answer(monkeypatch: pytest.MonkeyPatch, url: str, *, done: bool) -> None:
    """Cut the connection once, where a commit is sent: before it arrives, or before its answer does."""
    leave: Callable[[postgres.PostgresDatabase], None] = postgres.PostgresDatabase._leave
    monkeypatch.setattr(postgres, "COMMIT", "COMMIT" if done else "ROLLBACK")
    lost: list[int] = []

    def losing(db: postgres.PostgresDatabase) -> None:
        sent = db._pipeline is not None and not lost
        leave(db)
        if sent:
            lost.append(1)
            monkeypatch.setattr(postgres, "COMMIT", "COMMIT")
            cut_connections(url)
            assert db._conn is not None
            db._conn.close()
            raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(postgres.PostgresDatabase, "_leave", losing)


@contextmanager
def small_disk(server: PostgresServer) -> Iterator[tuple[str, Path]]:
    """A database on a disk of a few megabytes; yields its address and where the disk is."""
    folder = server.folder_of_its_own("small")
    try:
        mount("-t", "tmpfs", "-o", "size=14m", "none", str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        place = server.folder_of_its_own("small/space")
        with administer(server) as conn:
            conn.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
            conn.execute("CREATE DATABASE small TABLESPACE small")
            yield server.url("small"), folder
            conn.execute("DROP DATABASE small WITH (FORCE)")
            conn.execute("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "-l", folder], check=True, capture_output=True, timeout=20)


def mount(*args: str) -> None:
    """Mount a file system; fail if this may not be done here."""
    subprocess.run(["mount", *args], check=True, capture_output=True, timeout=20)


def table_files(server: PostgresServer, url: str) -> list[Path]:
    """Return the files of the tables with text, as they are on the disk."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CHECKPOINT")
        sql = "SELECT pg_relation_filepath(name::regclass) FROM unnest(%s::text[]) AS name"
        return [server.data / path for (path,) in conn.execute(sql, (["ava.events", "ava.words"],))]


@dataclass
class WriteLoad:
    """Tasks that write texts until they are stopped.

    Attributes:
        acknowledged: The texts whose write was acknowledged.
        unknown: Those of which nobody could tell whether they were written.
    """

    acknowledged: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])
    stop: anyio.Event = field(default_factory=anyio.Event)

    async def write_texts(self, log: store.Store, name: int) -> None:
        """Write one text after the other, each once."""
        for number in count(1):
            if self.stop.is_set():
                return
            text = f"{name} {number}"
            try:
                await write(log, message(text))
            except OutcomeUnknown:
                self.unknown.append(text)
            except StoreUnavailable as error:
                assert "written" in str(error)
            else:
                self.acknowledged.append(text)
            await anyio.sleep(0.001)
