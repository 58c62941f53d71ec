"""Backups by Postgres' own tools, while a store writes: restored, they verify, with the head that was noted."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, LiteralString

import anyio
import anyio.to_thread
import pytest
from support.log import Life, message, write, write_each
from support.stdio import until
from support.terminal import ava

from ava_audit.errors import LogMoved, StoreUnavailable
from ava_audit.store import backend
from ava_audit.store.store import Store

psycopg = pytest.importorskip("psycopg", reason="the driver is not installed")

from support.postgres import USER, PostgresServer, free_port, why_missing  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Generator[PostgresServer]:
    """A server of this test alone: it is stopped, and its settings are changed."""
    if (why := why_missing()) is not None:
        pytest.skip(why)
    made = PostgresServer.make()
    yield made
    made.remove()


async def test_a_dump_of_a_log_that_is_written_restores_to_a_log_that_verifies(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, other, dump = tmp_path / "data", tmp_path / "other", tmp_path / "ava.dump"
    root.mkdir(mode=0o700)
    url, new = server.database(root), server.database(other)
    monkeypatch.setenv(backend.VARIABLE, url)
    async with Store.open(root, url) as store:
        async with written(store):
            before = store.head
            name = url.rpartition("/")[2]
            await run(server, "pg_dump", *at(server), "-Fc", "-f", dump, name)
            await write(store, message("after the dump"))
        after = store.head
    await run(server, "pg_restore", *at(server), "--exit-on-error", "--no-owner", "-d", new.rpartition("/")[2], dump)
    seq = entries(new)
    assert before <= seq < after, "one moment of the dump"
    assert head_at(new, seq) == head_at(url, seq)
    assert head_at(new, seq) in verified(root, new)
    async with Store.open(root, new) as store:
        await write(store, message("it goes on"))
        assert store.head == seq + 1
    verified(root, new)


async def test_a_base_backup_with_its_wal_restores_any_moment_and_running_servers_refuse_it(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, base, archive = tmp_path / "data", server.folder / "base", server.folder_of_its_own("archive")
    root.mkdir(mode=0o700)
    server.configure("archive_mode = on", f"archive_command = 'cp %p {archive}/%f'")
    server.stop()
    server.start()
    url = server.database(root)
    monkeypatch.setenv(backend.VARIABLE, url)
    async with Store.open(root, url) as store:
        async with written(store):
            await run(server, "pg_basebackup", *at(server), "-D", base, "-c", "fast")
            copied = store.head
            await anyio.sleep(0.5)
        await write(store, message("the last one that is kept"))  # after those of the writers that were cancelled
        kept = entries(url)
        noted = head_at(url, kept)
        assert kept > copied, "the rest is only in the archived log"
        moment = now(server)
        await anyio.sleep(0.05)
        await write(store, message("what must not have happened"))
        await anyio.to_thread.run_sync(archive_all, server, archive)
        server.stop()
        server.data.rename(server.folder / "lost")
        base.rename(server.data)
        (server.data / "recovery.signal").touch()
        server.configure(
            "archive_mode = off",
            f"restore_command = 'cp {archive}/%f %p'",
            f"recovery_target_time = '{moment}'",
            "recovery_target_action = 'promote'",
        )
        server.folder_of_its_own("data")
        server.start()
        await until(lambda: is_primary(server), 60)
        with pytest.raises(LogMoved, match="an older copy of the log"):
            await write(store, message("by a server that runs since before"))
    assert entries(url) == kept
    assert noted in verified(root, url)
    async with Store.open(root, url) as store:
        await write(store, message("it goes on"))
    assert noted not in verified(root, url)


async def test_a_replica_is_refused_and_the_primary_is_asked_for(server: PostgresServer, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    name = server.database(root).rpartition("/")[2]
    async with Store.open(root, server.url(name)) as store:
        await write(store, message("on the primary"))
    folder = server.folder_of_its_own("replica")
    await run(server, "pg_basebackup", *at(server), "-R", "-c", "fast", "-D", folder / "data")
    replica = PostgresServer(folder, free_port(), server.password, server.bin)
    replica.configure(f"port = {replica.port}", f"unix_socket_directories = '{folder}'")
    server.folder_of_its_own("replica")  # with all that is in it
    replica.start()
    try:
        assert not is_primary(replica)
        with pytest.raises(StoreUnavailable, match=r"only reads.*address of the primary server"):
            async with Store.open(root, replica.url(name)):
                pass
    finally:
        replica.remove()


async def run(server: PostgresServer, program: str, *words: str | Path) -> None:
    """Run one of Postgres' programs, with the password in the environment."""
    env = {**os.environ, "PGPASSWORD": server.password}
    with anyio.fail_after(120):
        done = await anyio.run_process([str(server.bin / program), *map(str, words)], env=env, check=False)
    assert done.returncode == 0, (program, done.stderr)


def at(server: PostgresServer) -> tuple[str, ...]:
    return ("--host", str(server.folder), "--port", str(server.port), "--username", USER)


def entries(url: str) -> int:
    with psycopg.connect(url) as conn:
        return int(conn.execute("SELECT max(seq) FROM ava.events").fetchone()[0])


def verified(root: Path, url: str) -> str:
    """The head that `ava verify` prints for a log in which nothing is wrong."""
    done = ava(root, "verify", env={backend.VARIABLE: url})
    assert done.returncode == 0, done.stdout + done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("Head:"))


def head_at(url: str, seq: int) -> str:
    with psycopg.connect(url) as conn:
        return str(conn.execute("SELECT encode(hash, 'hex') FROM ava.events WHERE seq = %s", (seq,)).fetchone()[0])


@asynccontextmanager
async def written(store: Store) -> AsyncGenerator[None]:
    """Write entries as fast as the store takes them, until the block ends."""

    async def writer(number: int) -> None:
        count = 0
        while True:
            count += 1
            await write(store, message(f"entry {count} of writer {number}"))

    async with anyio.create_task_group() as tasks:
        await write_each(store, Life("S-aaaaaa").all_events())
        for number in range(4):
            tasks.start_soon(writer, number)
        await anyio.sleep(0.5)
        yield
        tasks.cancel_scope.cancel()


def asked(server: PostgresServer, sql: LiteralString) -> Any:
    with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
        return conn.execute(sql).fetchone()[0]


def now(server: PostgresServer) -> str:
    return str(asked(server, "SELECT clock_timestamp()::text"))


def is_primary(server: PostgresServer) -> bool:
    return not asked(server, "SELECT pg_is_in_recovery()")


def archive_all(server: PostgresServer, archive: Path) -> None:
    """Finish the segment of the write-ahead log, and wait until it is in the archive."""
    segment = asked(server, "SELECT pg_walfile_name(pg_switch_wal())")
    end = time.monotonic() + 30
    while not (archive / segment).exists() or asked(server, "SELECT last_archived_wal FROM pg_stat_archiver") < segment:
        assert time.monotonic() < end, f"{segment} did not reach the archive"
        time.sleep(0.1)
