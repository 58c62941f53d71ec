"""The tests of the store run on both databases: `-k postgres` selects one of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ava_audit.store import backend, sqlite
from ava_audit.store.store import Store

if TYPE_CHECKING:
    from support.postgres import PostgresServer

SQLITE_ONLY = "sqlite_only"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that opens a store on both databases, unless it is about SQLite itself."""
    if {"Store", "open_store", "kill_the_writer"} & vars(metafunc.module).keys():
        only = metafunc.definition.get_closest_marker(SQLITE_ONLY)
        metafunc.parametrize("database", ["sqlite"] if only else ["sqlite", "postgres"], indirect=True)


@pytest.fixture(autouse=True)
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[str]:
    """The database of this test: each data root that it opens has its log there."""
    kind = str(getattr(request, "param", "sqlite"))
    if kind == "sqlite":
        monkeypatch.delenv(backend.VARIABLE, raising=False)
        yield kind
        return
    pytest.importorskip("psycopg", reason="the driver is not installed")
    from support.postgres import postgres_server

    server = postgres_server()
    monkeypatch.setattr(sqlite, "database_url", server.database)
    monkeypatch.setenv(backend.VARIABLE, server.database(tmp_path))  # for child processes
    yield kind
    server.empty_databases()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncGenerator[Store]:
    """An empty log in the database of the test."""
    async with Store.open(tmp_path) as store:
        yield store


@pytest.fixture
def server() -> Generator[PostgresServer]:
    """The Postgres server of the tests, and no database of another test on it."""
    from support.postgres import postgres_server

    server = postgres_server()
    yield server
    server.empty_databases()


@pytest.fixture
def url(server: PostgresServer, tmp_path: Path) -> str:
    """The address of an empty database on that server."""
    return server.database(tmp_path)
