"""A whole log moved by `ava export` and `ava import`: to Postgres and back, every byte and hash as it was."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.log import AVA, Life, message, tamper_with, write_each
from support.terminal import ava

from ava_audit.entries import ENTRY_COLUMNS
from ava_audit.retention import erase_run
from ava_audit.store import backend
from ava_audit.store.store import Store
from ava_audit.verify import verify

pytest.importorskip("psycopg", reason="the driver is not installed")

from support.postgres import PostgresServer, postgres_server


@pytest.fixture
def server() -> Generator[PostgresServer]:
    server = postgres_server()
    yield server
    server.empty_databases()


def fill(root: Path) -> None:
    """A log with an erased run, text of all kinds, and a run that has not ended."""

    async def live() -> None:
        async with Store.open(root) as log:
            await write_each(log, [*Life("S-aaaaaa").all_events(), message('Grüße, "quotes" \\ 你好 \x00 🦦')])
            await erase_run(log, "S-aaaaaa", (), AVA, "a test")
            await write_each(log, [*Life("S-bbbbbb").beginning(), Life("S-bbbbbb").reservation()])

    root.mkdir(mode=0o700)
    anyio.run(live)


def stored(root: Path) -> tuple[list[Any], ...]:
    """The entries, and what follows from them, as the database has them."""
    with tamper_with(root) as db:
        return tuple(
            [tuple(row) for row in db.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall()]
            for table, columns in (("events", ENTRY_COLUMNS), ("runs", "id, state, cost_micros"), ("budgets", "*"))
        )


def test_a_log_moves_to_postgres_and_back_with_every_hash(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    here, there, back = tmp_path / "here", tmp_path / "there", tmp_path / "back"
    fill(here)
    meant, file, again = stored(here), tmp_path / "log.jsonl", tmp_path / "again.jsonl"
    assert ava(here, "export", str(file)).returncode == 0
    url = {backend.VARIABLE: server.database(there)}
    there.mkdir(mode=0o700)
    done = ava(there, "import", "--continue", str(file), env=url)
    assert done.returncode == 0 and "imported into the Postgres database" in done.stdout, done.stderr
    head = verify(here).head
    assert f"Head: {head}" in done.stdout
    assert f"Head: {head}" in ava(there, "verify", env=url).stdout
    assert ava(there, "export", str(again), env=url).returncode == 0
    assert again.read_bytes() == file.read_bytes()
    back.mkdir(mode=0o700)
    assert ava(back, "import", "--continue", str(again)).returncode == 0
    assert stored(back) == meant
    monkeypatch.setenv(backend.VARIABLE, url[backend.VARIABLE])
    assert stored(there) == meant


@pytest.mark.parametrize("postgres", [False, True], ids=["sqlite", "postgres"])
def test_an_import_refuses_a_log_with_entries_and_a_file_that_is_no_whole_log(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: bool
) -> None:
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "log.jsonl"
    fill(here)
    assert ava(here, "export", str(file)).returncode == 0
    lines = file.read_bytes().splitlines(keepends=True)
    there.mkdir(mode=0o700)
    env = {backend.VARIABLE: server.database(there)} if postgres else {}
    broken = {
        "line 2 is not the entry after entry 1": [lines[0], *lines[2:]],
        "line 1 is not the entry after entry 0": lines[1:],
        "its content was changed": [line.replace(b"Look it up", b"Took it up") for line in lines],
        "it is not a line of the log": [*lines[:3], b"{}\n"],
    }
    for why, bad in broken.items():
        file.write_bytes(b"".join(bad))
        refused = ava(there, "import", str(file), env=env)
        assert refused.returncode != 0 and why in refused.stderr, (why, refused.stderr)
    file.write_bytes(b"".join(lines))
    assert ava(there, "import", str(file), env=env).returncode == 0, "nothing was left of the refused ones"
    refused = ava(there, "import", str(file), env=env)
    assert refused.returncode != 0 and "the target already has entries" in refused.stderr
