"""Files beside the log: stored whole or not at all, checked at each read, removed with their last run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ava_audit.errors import BlobRefused, LogForked, StoreUnavailable
from ava_audit.store.backend import Blob

psycopg = pytest.importorskip("psycopg", reason="the driver is not installed")

from support.postgres import PostgresServer  # noqa: E402

from ava_audit.postgres import blobs as postgres_blobs  # noqa: E402
from ava_audit.postgres.backend import PostgresBackend  # noqa: E402
from ava_audit.postgres.blobs import PART_BYTES, PostgresBlobs  # noqa: E402

RUN, OTHER = "S-1", "S-2"


@pytest.fixture
def backend(server: PostgresServer, tmp_path: Path) -> PostgresBackend:
    backend = PostgresBackend(tmp_path, server.database(tmp_path))
    backend.prepare()
    return backend


@pytest.fixture
def blobs(backend: PostgresBackend) -> PostgresBlobs:
    return backend.blobs()


@pytest.fixture
def asked(server: PostgresServer, tmp_path: Path, backend: PostgresBackend) -> Generator[Any]:
    """A connection of somebody who may change the tables."""
    with closing(psycopg.connect(server.database(tmp_path), autocommit=True)) as conn:
        conn.execute("SET search_path = ava")
        yield conn


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_a_file_comes_back_byte_for_byte(blobs: PostgresBlobs, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    blob = blobs.put(file_of(tmp_path, data), (RUN,), "input")
    assert blob == Blob(hashlib.sha256(data).hexdigest(), size)
    blobs.fetch(blob, RUN, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data == blobs.read(blob, RUN)


def test_the_same_bytes_are_stored_once(blobs: PostgresBlobs, tmp_path: Path, asked: Any) -> None:
    data = os.urandom(2 * PART_BYTES)
    first = blobs.put(file_of(tmp_path, data), (RUN,), "input")
    assert blobs.put(file_of(tmp_path, data, "again"), (OTHER, RUN), "input") == first
    assert (count(asked, "blobs"), count(asked, "blob_parts"), count(asked, "blob_uses")) == (1, 2, 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE blob_parts SET data = set_byte(data, 7, get_byte(data, 7) # 1) WHERE part = 1", "was changed"),
        ("UPDATE blob_parts SET part = part + 10; UPDATE blob_parts SET part = 11 - part", "was changed"),
        ("DELETE FROM blob_parts WHERE part = 1", "not complete"),
        ("UPDATE blob_parts SET data = substr(data, 2) WHERE part = 1", "not complete"),
        ("UPDATE blob_parts SET data = data || '\\x00' WHERE part = 1", "was changed"),
        ("UPDATE blob_parts SET data = '' WHERE part = 1", "not complete"),
        ("UPDATE blob_parts SET data = data || data WHERE part = 0", "not complete"),
        ("DELETE FROM blob_uses", "not in the database any more"),
    ],
)
def test_what_was_changed_in_the_database_is_not_used(
    blobs: PostgresBlobs, tmp_path: Path, asked: Any, change: str, why: str
) -> None:
    blob = blobs.put(file_of(tmp_path, os.urandom(PART_BYTES + 5_000)), (RUN,), "input")
    asked.execute(change)
    with pytest.raises(BlobRefused, match=why):
        blobs.fetch(blob, RUN, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    with pytest.raises(BlobRefused, match=why):
        blobs.read(blob, RUN)


def test_only_a_run_that_has_a_blob_can_read_it(blobs: PostgresBlobs, tmp_path: Path) -> None:
    blob = blobs.put(file_of(tmp_path, b"mine"), (RUN,), "artifact")
    with pytest.raises(BlobRefused, match="not in the database"):
        blobs.read(blob, OTHER)
    assert blobs.has(RUN, "artifact") and not blobs.has(RUN, "input") and not blobs.has(OTHER, "artifact")


def test_a_blob_goes_with_the_last_run_that_uses_it(blobs: PostgresBlobs, tmp_path: Path, asked: Any) -> None:
    blob = blobs.put(file_of(tmp_path, b"shared"), (RUN, OTHER), "input")
    blobs.put(file_of(tmp_path, b"kept", "kept"), (RUN,), "artifact")
    blobs.release((RUN,), "input")
    assert blobs.read(blob, OTHER) == b"shared" and blobs.has(RUN, "artifact")
    blobs.release((RUN, OTHER))
    assert [count(asked, table) for table in ("blobs", "blob_parts", "blob_uses")] == [0, 0, 0]


def test_a_sweep_removes_what_belongs_to_no_proposal_once_it_is_old(
    blobs: PostgresBlobs, tmp_path: Path, asked: Any
) -> None:
    blob = blobs.put(file_of(tmp_path, b"never proposed"), (RUN,), "input")
    (added,) = asked.execute("SELECT added_us FROM blob_uses").fetchone()
    blobs.sweep(added + postgres_blobs.ORPHAN_US)
    assert blobs.read(blob, RUN) == b"never proposed"
    blobs.sweep(added + postgres_blobs.ORPHAN_US + 1)
    assert [count(asked, table) for table in ("blobs", "blob_parts", "blob_uses")] == [0, 0, 0]


def test_a_file_that_changes_while_it_is_stored_is_not_stored(
    blobs: PostgresBlobs, tmp_path: Path, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, insert = file_of(tmp_path, os.urandom(PART_BYTES + 1)), postgres_blobs._insert

    def late(*given: Any) -> None:
        path.write_bytes(os.urandom(PART_BYTES + 1))
        insert(*given)

    monkeypatch.setattr(postgres_blobs, "_insert", late)
    with pytest.raises(BlobRefused, match="changed while"):
        blobs.put(path, (RUN,), "input")
    assert count(asked, "blobs") == 0


def test_several_store_and_remove_the_same_blob_at_once(blobs: PostgresBlobs, tmp_path: Path, asked: Any) -> None:
    """Whoever has stored it can read it, until it releases it itself."""
    data, failed = os.urandom(PART_BYTES + 1), []

    def user(number: int) -> None:
        path = file_of(tmp_path, data, f"file-{number}")
        try:
            for _ in range(8):
                blob = blobs.put(path, (f"S-{number}",), "input")
                assert blobs.read(blob, f"S-{number}") == data
                blobs.release((f"S-{number}",))
        except Exception as error:  # reported below: a thread's exception is not the test's
            failed.append(error)

    threads = [threading.Thread(target=user, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == [] and not any(thread.is_alive() for thread in threads)
    assert [count(asked, table) for table in ("blobs", "blob_parts", "blob_uses")] == [0, 0, 0]


def test_a_server_that_is_gone_is_one_sentence_without_the_password(
    server: PostgresServer, backend: PostgresBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_blobs, "PAUSE_S", 0.01)
    url = server.url("nowhere", tcp=True)
    lost = PostgresBackend(tmp_path, url).blobs()
    with pytest.raises(StoreUnavailable, match="cannot be read or written in the Postgres database nowhere") as caught:
        lost.read(Blob("0" * 64, 1), RUN)
    assert server.password not in str(caught.value)


def test_another_log_at_the_same_address_is_refused(
    backend: PostgresBackend, blobs: PostgresBlobs, tmp_path: Path, asked: Any
) -> None:
    asked.execute("UPDATE meta SET log_id = 'another'")
    with contextlib.closing(backend), pytest.raises(LogForked, match="has another log"):
        blobs.put(file_of(tmp_path, b"x"), (RUN,), "input")


def file_of(tmp: Path, data: bytes, name: str = "file") -> Path:
    path = tmp / name
    path.write_bytes(data)
    return path


def count(asked: Any, table: str) -> int:
    return int(asked.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
