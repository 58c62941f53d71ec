"""Each query gives the same answer on both databases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.logs.on_postgres import connect_to
from support.logs.twins import make_twin_logs
from support.postgres import PostgresServer

from ava_audit.postgres.backend import PostgresBackend
from ava_audit.retention import coming_erasures
from ava_audit.rows import PastRun, RunFacts
from ava_audit.store import sqlite
from ava_audit.totals import (
    EntryCounts,
    count_new_entries,
    current_runs,
    day_endings,
    run_sums,
    spending,
    start_waits,
    user_sums,
)
from ava_audit.units import DAY_US
from ava_audit.view import RunOrder, RunPhase, View

GROUPS: tuple[RunPhase, ...] = ("waiting", "running", "ended")


def test_the_tables_are_the_same_as_in_the_embedded_database(url: str, tmp_path: Path) -> None:
    from ava_audit.store.schema import open_in_memory

    PostgresBackend(tmp_path, url).prepare()
    embedded = open_in_memory()
    tables = ("events", "proposals", "runs", "configs", "plans", "budgets", "spending", "live", "progress", "mirrored")
    with connect_to(url) as other:
        for table in tables:
            here = {row[1] for row in embedded.execute(f"PRAGMA table_info({table})")}
            sql = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'ava' AND table_name = %s"
            assert {name for (name,) in other.execute(sql, (table,))} == here, table
    embedded.close()


NOW = 2**52
ORDERS: tuple[tuple[RunOrder, int | str], ...] = (
    ("oldest", 0),
    ("cost", NOW),
    ("time", NOW),
    ("role", "a"),
    ("state", "a"),
)
"""Orders of the list, each with a value of its column that a page can end with."""
QUERIES: dict[str, Callable[[View], object]] = {
    "run": lambda view: view.run("S-aaaaaa"),
    "unended of others": lambda view: view.unended_of_others("eve", 0),
    "runs": lambda view: view.runs(user="ben", states=("success", "running"), ended_since_us=1, limit=-1),
    "newest runs": lambda view: [view.newest_runs(group, NOW, user="ben") for group in (None, *GROUPS)],
    "newest runs of a page": lambda view: view.newest_runs("ended", NOW, role="researcher", before=(NOW, "S-z")),
    "ordered runs": lambda view: [
        (
            view.newest_runs(None, NOW, replaced=False, order=order),
            view.newest_runs("failed", NOW, user="ben", order=order, before=(NOW, "S-z"), value=value),
        )
        for order, value in ORDERS
    ],
    "roles": lambda view: (view.roles(None), view.roles("ben"), view.roles("eve")),
    "running": lambda view: view.running(),
    "past runs": lambda view: [
        [replace(run, active_us=0) for run in view.past_runs("ben", "researcher", model, ("success",), 9, ("the ",))]
        for model in ("test:model", "other:model")
    ],
    "ended runs": lambda view: [
        [replace(run, active_us=0) for run in view.ended_runs(PastRun, 0, NOW)],
        list(view.ended_runs(RunFacts, 0, NOW, "ben")),
    ],
    "run facts": lambda view: (view.run_facts("S-aaaaaa"), view.run_facts("S-none")),
    "users": lambda view: view.users(),
    "changed": lambda view: sorted(view.changed_after(3, ("RunEnded", "RunClaimed"))),
    "unfetched": lambda view: view.unfetched("ben"),
    "proposal": lambda view: view.proposal("P-aaaaaa00"),
    "plan": lambda view: (view.plan_caps("G-1"), view.plan_runs("G-1")),
    "bucket": lambda view: view.bucket("run:S-aaaaaa"),
    "approved": lambda view: view.approved_over("host_call", "ben", 0),
    "task id": lambda view: view.with_task_id("ben", "task"),
    "live": lambda view: view.live("S-aaaaaa"),
    "entries": lambda view: (view.entries("S-aaaaaa"), view.entries("S-aaaaaa", 3, ("ToolCall", "ToolResult"))),
    "pages of entries": lambda view: (view.newer_entries("S-aaaaaa", 2, 3), view.older_entries("S-aaaaaa", 9, 3)),
    "count": lambda view: view.count_entries("S-aaaaaa", 4),
    "rare": lambda view: view.rare_entries("S-aaaaaa", ("RunEnded",)),
    "of a type": lambda view: (view.of_type("CostUpdate"), view.newest(("RunEnded",)), view.last_erasure()),
    "last run": lambda view: view.runs(user="ben", of_plans=False, limit=1),
    "first": lambda view: view.first_entry("S-aaaaaa", "ToolCall"),
    "last": lambda view: view.last_entry("S-aaaaaa", "ToolCall", own=True),
    "newest": lambda view: view.newest_entries("S-aaaaaa", ("ToolCall", "ToolResult"), 1),
    "times": lambda view: (view.newest_before(NOW), view.last_older(NOW, 9), view.seq_bounds(0, NOW), view.span("ava")),
    "progress": lambda view: (view.progress("words"), view.mirrored(), view.mirrored_size("none")),
    "rows": lambda view: list(view.rows("content LIKE ? AND seq < ?", "%LOOK it up%", 99, limit=5)),
    "endings of days": lambda view: (sorted(day_endings(view, 0, NOW), key=str), day_endings(view, 0, NOW, "eve")),
    "coming erasures": lambda view: (coming_erasures(view, 0, 30, 3), coming_erasures(view, 0, 30, 3, "ben")),
    "spending": lambda view: [spending(view, 0, NOW // DAY_US, user) for user in (None, "ben", "eve")],
    "sums": lambda view: (
        sorted(map(str, run_sums(view))),
        sorted(map(str, user_sums(view))),
        current_runs(view, 0),
        start_waits(view, (1, 10**9)),
    ),
    "tally": lambda view: count_new_entries(view, EntryCounts(0)),
}


@pytest.fixture
def both(server: PostgresServer, tmp_path: Path) -> tuple[Path, Path]:
    """Two data roots with the same log: one in ava.db, one in Postgres."""
    return make_twin_logs(server, tmp_path)


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_answers_the_same_on_both(server: PostgresServer, both: tuple[Path, Path], name: str) -> None:
    here, there = both

    def answer(root: Path, url: str) -> object:
        with contextlib.closing(sqlite.backend_of(root, url).connect(readonly=True)) as db:
            db.begin_read()
            return QUERIES[name](View(db))

    found = answer(there, server.database(there))
    assert found == answer(here, "")
    assert str(found) not in ("None", "[]", "()", "{}", "0") or name in ("live", "task id"), "it must find something"


def test_both_tell_their_size_on_the_disk(server: PostgresServer, both: tuple[Path, Path]) -> None:
    here, there = both

    def sizes(root: Path, url: str) -> dict[str, int]:
        with contextlib.closing(sqlite.backend_of(root, url).connect(readonly=True)) as db:
            db.begin_read()
            return View(db).sizes()

    wal = here / "ava.db-wal"
    files = {"database": (here / "ava.db").stat().st_size, "write_ahead_log": wal.stat().st_size if wal.exists() else 0}
    assert sizes(here, "") == files and files["database"] > 0
    assert list(sizes(there, server.database(there))) == ["database"]
    assert sizes(there, server.database(there))["database"] > 1_000_000, "the catalogs of a new database alone are more"
