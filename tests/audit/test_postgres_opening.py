"""Opening a log on a Postgres server: what is refused, with what to do, and without a password in the error."""

from __future__ import annotations

import socket
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.log import message, write
from support.logs.on_postgres import administer, connect_to, refuse_to_open
from support.logs.store import open_store_at, stored_texts
from support.postgres import PostgresServer

from ava_audit.errors import DataRootRefused, SchemaNewer, StoreUnavailable
from ava_audit.postgres.backend import PostgresBackend
from ava_audit.store import backend, sqlite, store
from ava_audit.view import View


async def test_a_wrong_password_is_refused_and_no_password_is_in_the_error(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    wrong = server.url(url.rpartition("/")[2], password="wr0ng-secret", tcp=True)
    text = await refuse_to_open(tmp_path, wrong, StoreUnavailable, "password authentication failed.*check the address")
    assert "wr0ng-secret" not in text
    assert "wr0ng-secret" not in repr(PostgresBackend(tmp_path, wrong))
    assert not (tmp_path / backend.MARK).exists()


async def test_a_missing_database_and_a_missing_server_are_refused(server: PostgresServer, tmp_path: Path) -> None:
    text = await refuse_to_open(tmp_path, server.url("nowhere"), StoreUnavailable, 'database "nowhere" does not exist')
    assert server.password not in text
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"postgresql://ava:s3cret@127.0.0.1:{taken.getsockname()[1]}/ava"
        text = await refuse_to_open(tmp_path, url, StoreUnavailable, "cannot be opened.*check the address")
    assert "s3cret" not in text


async def test_an_invalid_address_is_refused_without_being_repeated(tmp_path: Path) -> None:
    text = await refuse_to_open(
        tmp_path, "postgresql://ava:s3cret@[host/ava", DataRootRefused, "is invalid: give one such as"
    )
    assert "s3cret" not in text


async def test_a_newer_schema_is_refused_and_left_as_it_is(url: str, tmp_path: Path) -> None:
    async with store.Store.open(tmp_path, url) as log:
        await write(log, message("a"))
    with connect_to(url) as other:
        other.execute("UPDATE meta SET version = 99")
    await refuse_to_open(tmp_path, url, SchemaNewer, "has schema 99, this program knows")
    with connect_to(url) as other:
        assert other.execute("SELECT version, (SELECT count(*) FROM events) FROM meta").fetchone() == (99, 1)


async def test_stops_writing_after_a_newer_program_migrated_the_database(url: str, tmp_path: Path) -> None:
    async with open_store_at(tmp_path, url, within_s=40) as log:
        await write(log, message("before"))
        with connect_to(url) as other:
            other.execute("UPDATE meta SET version = 99")
        with pytest.raises(SchemaNewer, match="restart"):
            await write(log, message("a"))
        assert await stored_texts(log) == ["before"]


async def test_a_server_that_only_reads_is_refused(server: PostgresServer, url: str, tmp_path: Path) -> None:
    name = url.rpartition("/")[2]
    with administer(server) as conn:
        conn.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await refuse_to_open(tmp_path, url, StoreUnavailable, "only reads.*address of the primary server")


async def test_a_clock_that_is_minutes_off_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 600)
    await refuse_to_open(tmp_path, url, StoreUnavailable, "clock is 10 minutes behind the one of")
    monkeypatch.setattr(time, "time", lambda: real() + 300)
    await refuse_to_open(tmp_path, url, StoreUnavailable, "clock is 5 minutes ahead of the one of")


async def test_a_user_without_rights_is_refused(server: PostgresServer, url: str, tmp_path: Path) -> None:
    with administer(server) as conn:
        conn.execute("DROP ROLE IF EXISTS guest")
        conn.execute("CREATE ROLE guest LOGIN PASSWORD 'guest-word'")
    guest = server.url(url.rpartition("/")[2], user="guest", password="guest-word", tcp=True)
    await refuse_to_open(tmp_path, guest, StoreUnavailable, "needs the right to create a schema")


async def test_a_second_data_root_joins_a_log_unless_it_has_one_of_its_own(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    one, other, third = (tmp_path / name for name in ("one", "other", "third"))
    for root in (one, other, third):
        root.mkdir()
    async with store.Store.open(one, url) as log, store.Store.open(other, url) as same:
        await write(log, message("a"))
        await write(same, message("b"))
        assert await log.read(View.head) == 2
    async with store.Store.open(third, server.database(third)):
        pass
    await refuse_to_open(third, url, DataRootRefused, "has another log than the one that")


async def test_an_empty_database_is_refused_for_a_data_root_that_has_its_log_elsewhere(
    server: PostgresServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    embedded, moved = tmp_path / "embedded", tmp_path / "moved"
    embedded.mkdir()
    moved.mkdir()
    async with store.Store.open(embedded) as log:
        await write(log, message("a"))
    await refuse_to_open(embedded, url, DataRootRefused, "has a log in ava.db: move it with `ava export`")
    async with store.Store.open(moved, url):
        pass
    await refuse_to_open(
        moved, server.database(embedded), DataRootRefused, "is empty, but .* says that this data root has"
    )
    with pytest.raises(DataRootRefused, match=r"the log of the data root .* is in Postgres: set AVA_DATABASE_URL"):
        async with store.Store.open(moved):
            pass


def test_a_missing_driver_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ava_audit.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DataRootRefused, match=r"A log in Postgres needs the extra postgres; .*install .*\[postgres\]'"):
        sqlite.backend_of(tmp_path, "postgresql://ava@localhost/ava")


async def test_two_processes_that_open_an_empty_database_at_once_make_one_log(url: str, tmp_path: Path) -> None:
    backends = [PostgresBackend(tmp_path, url) for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        for each in backends:
            tasks.start_soon(partial(anyio.to_thread.run_sync, each.prepare))
    with connect_to(url) as other:
        assert other.execute("SELECT count(*) FROM meta").fetchone() == (1,)
