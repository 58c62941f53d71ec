"""The files beside a log on a Postgres server: stored in one transaction each, checked whenever they are read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any, TypeVar

import psycopg

from ava_audit.errors import BlobRefused, StoreUnavailable
from ava_audit.postgres.session import LogPlace, dial, first_line, passes
from ava_audit.rows import WAITING
from ava_audit.store.backend import Blob, Use
from ava_audit.units import now_us

T = TypeVar("T")

PART_BYTES = 1_000_000
ATTEMPTS = 5
PAUSE_S = 0.2
RACES = 50
"""How often a transaction is repeated that removed a blob while another process began to use it."""
RACE_S = 0.02
REMOVAL_S = 20
"""How long a process waits for another one that removes blobs."""
SAME_S = 120
"""How long a process waits for another one that stores the same file."""
ORPHAN_US = 86_400_000_000
"""How long a blob of a proposal that was never made is kept."""
_FREE = "DELETE FROM blobs WHERE NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob_uses.sha256 = blobs.sha256)"
_SPENT = """
DELETE FROM blob_uses WHERE purpose = 'input' AND EXISTS (
    SELECT 1 FROM runs WHERE runs.id = blob_uses.run_id AND runs.ended_us IS NOT NULL
) OR added_us < %s AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = blob_uses.run_id)
  OR purpose = 'input' AND EXISTS (
    SELECT 1 FROM proposals
    WHERE proposals.run_id = blob_uses.run_id AND proposals.state = %s AND proposals.expires_us < %s
)
"""


class PostgresBlobs:
    """The files beside a log in Postgres."""

    def __init__(self, conninfo: Mapping[str, Any], place: LogPlace, name: str) -> None:
        self._conninfo, self._place, self._name = conninfo, place, name

    def put(self, path: Path, runs: Sequence[str], use: Use) -> Blob:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            blob = Blob(sha256, os.fstat(file.fileno()).st_size)

            def work(conn: psycopg.Connection[Any]) -> None:
                for name in ("lock_timeout", "statement_timeout"):
                    conn.execute("SELECT set_config(%s, %s, true)", (name, f"{SAME_S}s"))
                conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (sha256,))
                if not _lock(conn, sha256):
                    _insert(conn, blob, file)
                for run_id in dict.fromkeys(runs):
                    sql = "INSERT INTO blob_uses (run_id, sha256, purpose, added_us) VALUES (%s, %s, %s, %s)"
                    conn.execute(f"{sql} ON CONFLICT DO NOTHING", (run_id, sha256, use, now_us()))

            self._transact(work)
        return blob

    def fetch(self, blob: Blob, run_id: str, path: Path) -> None:
        """Write a run's blob to a new file, which is removed again unless it is exactly what was stored."""

        def work(conn: psycopg.Connection[Any]) -> None:
            with path.open("wb") as file:
                for part in _parts(conn, blob, run_id):
                    file.write(part)

        try:
            self._transact(work)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def read(self, blob: Blob, run_id: str) -> bytes:
        return self._transact(lambda conn: b"".join(_parts(conn, blob, run_id)))

    def has(self, run_id: str, use: Use) -> bool:
        sql = "SELECT 1 FROM blob_uses WHERE run_id = %s AND purpose = %s LIMIT 1"
        return self._transact(lambda conn: conn.execute(sql, (run_id, use)).fetchone() is not None)

    def release(self, runs: Sequence[str], use: Use | None = None) -> None:
        ids = list(runs)

        def work(conn: psycopg.Connection[Any]) -> None:
            _take_turn(conn)
            deleted = conn.execute(
                "DELETE FROM blob_uses WHERE run_id = ANY(%s) AND (%s::text IS NULL OR purpose = %s)", (ids, use, use)
            )
            if deleted.rowcount:
                conn.execute(_FREE)

        if ids:
            self._transact(work)

    def sweep(self, now_us: int) -> None:
        def work(conn: psycopg.Connection[Any]) -> None:
            _take_turn(conn)
            conn.execute(_SPENT, (now_us - ORPHAN_US, WAITING, now_us))
            conn.execute(_FREE)

        self._transact(work)

    def _transact(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Do something in one transaction of an own connection; what passes by itself is tried again."""
        failures = races = 0
        while True:
            try:
                with self._connected() as conn:
                    return work(conn)
            except psycopg.errors.ForeignKeyViolation as error:
                races += 1
                if races > RACES:
                    raise self._unavailable(error) from error
                time.sleep(RACE_S)
            except psycopg.Error as error:
                failures += 1
                if failures == ATTEMPTS or not passes(error, isinstance(error, psycopg.OperationalError)):
                    raise self._unavailable(error) from error
                time.sleep(PAUSE_S * 2**failures)

    def _unavailable(self, error: psycopg.Error) -> StoreUnavailable:
        return StoreUnavailable(
            f"the files of runs cannot be read or written in {self._name}: {first_line(error)}; try again"
        )

    @contextmanager
    def _connected(self) -> Generator[psycopg.Connection[Any]]:
        connected = contextlib.closing(dial(self._conninfo, self._place, readonly=False, channel=None))
        with connected as conn, conn.transaction():
            yield conn


def _lock(conn: psycopg.Connection[Any], sha256: str) -> bool:
    """Tell whether a blob is there, and keep it there until the end of the transaction."""
    return conn.execute("SELECT 1 FROM blobs WHERE sha256 = %s FOR KEY SHARE", (sha256,)).fetchone() is not None


def _take_turn(conn: psycopg.Connection[Any]) -> None:
    """Wait for others that remove uses: of two that remove the last ones at once, neither would see a free blob."""
    conn.execute("SELECT set_config('lock_timeout', %s, true)", (f"{REMOVAL_S}s",))
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended('ava.blob_uses', 0))")


def _insert(conn: psycopg.Connection[Any], blob: Blob, file: IO[bytes]) -> None:
    """Store the bytes of a file; raise if they are not those of its digest."""
    conn.execute("INSERT INTO blobs (sha256, bytes) VALUES (%s, %s)", blob)
    digest = hashlib.sha256()
    file.seek(0)
    for number in count():
        data = file.read(PART_BYTES)
        if not data:
            break
        digest.update(data)
        conn.execute("INSERT INTO blob_parts (sha256, part, data) VALUES (%s, %s, %b)", (blob.sha256, number, data))
    if digest.hexdigest() != blob.sha256:
        raise BlobRefused("a file changed while it was stored; try again")


def _parts(conn: psycopg.Connection[Any], blob: Blob, run_id: str) -> Iterator[bytes]:
    """Yield the parts of a blob; none counts before the last was checked. Raises BlobRefused: missing or changed."""
    used = conn.execute("SELECT 1 FROM blob_uses WHERE run_id = %s AND sha256 = %s LIMIT 1", (run_id, blob.sha256))
    if used.fetchone() is None:
        raise BlobRefused(f"the file {blob.sha256[:12]} is not in the database any more")
    digest = hashlib.sha256()
    size = number = 0
    while size < blob.size:
        sql = "SELECT data FROM blob_parts WHERE sha256 = %s AND part = %s AND length(data) BETWEEN 1 AND %s"
        row = conn.execute(sql, (blob.sha256, number, PART_BYTES), binary=True).fetchone()
        if row is None:
            raise BlobRefused(f"the file {blob.sha256[:12]} is not complete in the database")
        data = bytes(row[0])
        digest.update(data)
        size += len(data)
        number += 1
        yield data
    if size != blob.size or digest.hexdigest() != blob.sha256:
        raise BlobRefused(f"the file {blob.sha256[:12]} was changed in the database")
