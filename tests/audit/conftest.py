"""The tests of the store run on both databases: `-k postgres` selects one of them."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from ava_audit.store import backend, sqlite

SQLITE_ONLY = "sqlite_only"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that opens a store on both databases, unless it is about SQLite itself."""
    if {"Store", "kill_the_writer"} & vars(metafunc.module).keys():
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
    from support.postgres import running_server

    server = running_server()
    monkeypatch.setattr(sqlite, "database_url", server.database)
    monkeypatch.setenv(backend.VARIABLE, server.database(tmp_path))  # for child processes
    yield kind
    server.empty_databases()
