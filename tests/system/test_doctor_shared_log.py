"""What doctor says of a log in Postgres: who can change it, and whether there are connections for all processes."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import anyio.to_thread
import pytest
from support.engines.fleet import open_fleet
from support.engines.worker_machines import DONE

pytest.importorskip("psycopg", reason="the driver is not installed")

import psycopg
from support.postgres import PostgresServer, postgres_server

from ava_server.cli import doctor_checks
from ava_server.cli.doctor_checks import CONNECTIONS, shared_log
from ava_server.config.settings import load_settings
from ava_server.service.checks import CheckFinding, Setup

pytestmark = pytest.mark.slow


@pytest.fixture
def postgres() -> Generator[PostgresServer]:
    server = postgres_server()
    yield server
    server.empty_databases()


async def test_doctor_says_who_can_change_the_log_and_counts_the_connections(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_fleet(tmp_path, postgres, None, lambda _request: DONE) as now, now.worker("one"):
        runs = [await now.start() for _ in range(4)]
        await now.until_done(*runs)
        settings = load_settings(now.root, {})

        def found() -> list[CheckFinding]:
            return list(shared_log(Setup({}, settings.paths, settings)))

        (note,) = await anyio.to_thread.run_sync(found)
        assert note.state == "note" and "connects as the log's owner" in note.text
        assert note.text.endswith(f"takes up to {CONNECTIONS} of Postgres' 100 connections (running now: 2)")

        def taken() -> int:
            with psycopg.connect(now.url) as asked:
                (count,) = asked.execute(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name LIKE 'ava%'"
                ).fetchone() or (0,)
            return int(count)

        assert 2 * 8 <= await anyio.to_thread.run_sync(taken) <= 2 * CONNECTIONS, "as it is said"
        monkeypatch.setattr(doctor_checks, "CONNECTIONS", 48)
        (warning,) = await anyio.to_thread.run_sync(found)
        assert warning.state == "warning"
        assert warning.what_to_do == "Set max_connections of Postgres to 101 or more."
