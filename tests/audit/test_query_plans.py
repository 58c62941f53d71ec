"""How SQLite goes about it: nothing about one run walks the entries or the runs of all."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from support.log import Life
from support.logs.query_plans import QueryPlans

from ava_audit import units
from ava_audit.maintenance import next_index_rows
from ava_audit.projections import Projections, index_words
from ava_audit.reducers import Header, reduce
from ava_audit.rows import UNENDED, WAITING, PastRun
from ava_audit.search import LogQuery, search
from ava_audit.store.connection import SqliteDatabase
from ava_audit.store.schema import open_in_memory
from ava_audit.store.writer import Appender
from ava_audit.totals import Period, current_runs, day_endings, decision_page, decision_sums, plan_sum, spending
from ava_audit.units import DAY_US, HOUR_US
from ava_audit.view import Query, RunPhase, T, View

GROUPS: tuple[RunPhase | None, ...] = (None, "waiting", "running", "ended")


@pytest.fixture
def db() -> Iterator[SqliteDatabase]:
    log = open_in_memory()
    yield log
    log.close()


def test_reading_one_run_reads_only_its_own_entries(db: SqliteDatabase) -> None:
    plans = QueryPlans(db)
    view = View(db)
    view.run("S-aaaaaa")
    view.entries("S-aaaaaa")
    view.entries("S-aaaaaa", 7, ("UserMessage", "ToolResult"))
    view.last_entry("S-aaaaaa", "ToolCall", own=True)
    view.last_entry("S-aaaaaa", "CancelRequested")
    view.first_entry("S-aaaaaa", "SpawnDecided")
    view.newer_entries("S-aaaaaa", 7, 200)
    view.older_entries("S-aaaaaa", None, 200)
    view.older_entries("S-aaaaaa", 7, 200)
    assert not [plan for plan in plans.all() if "SCAN" in plan or "events_type" in plan or "events_ts" in plan]


def test_pages_of_a_run_come_sorted_from_the_index(db: SqliteDatabase) -> None:
    plans = QueryPlans(db)
    view = View(db)
    view.newer_entries("S-aaaaaa", 7, 200)
    view.older_entries("S-aaaaaa", 7, 200)
    view.older_entries("S-aaaaaa", None, 200)
    looks = plans.all()
    assert len(looks) == 3 and all("USING INDEX events_run" in look for look in looks)


def test_the_entries_of_a_run_are_counted_in_the_index_alone(db: SqliteDatabase) -> None:
    plans = QueryPlans(db)
    assert View(db).count_entries("S-aaaaaa", 10) == 0
    assert [look for look in plans.all() if "USING COVERING INDEX events_run" in look]


def test_the_list_of_runs_walks_them_by_time_or_by_a_rare_state(db: SqliteDatabase) -> None:
    plans = QueryPlans(db)
    view = View(db)
    view.newest_runs(None, 9, user="ben", role="coder", before=(5, "S-aaaaaa"))
    view.newest_runs("ended", 9, user="ben")
    walked = plans.all()
    assert not [look for look in walked if "TEMP B-TREE FOR ORDER" in look], walked
    plans = QueryPlans(db)
    view.newest_runs("waiting", 9)
    view.newest_runs("running", 9)
    assert [look for look in plans.all() if "runs_state" in look]


def test_a_long_history_makes_no_call_slower(db: SqliteDatabase) -> None:
    found_by: dict[str, list[Callable[[View], object]]] = {
        "INDEX runs_ended (ended_us>?)": [
            lambda view: view.runs(user="ben", ended_since_us=5),
            lambda view: view.runs(ended_since_us=5),
        ],
        "INDEX runs_owners (user_id=? AND instance>?)": [lambda view: view.owners("ben")],
        "INDEX runs_plan (plan_id=?)": [lambda view: view.plan_runs("G-4e1b2c3")],
        "INDEX runs_unfetched (user_id=?)": [lambda view: view.unfetched("ben")],
    }
    for index, look in ((index, look) for index, looks in found_by.items() for look in looks):
        plans = QueryPlans(db)
        look(View(db))
        walked = [plan.partition(" for ")[0] for plan in plans.all()]
        assert [walk for walk in walked if walk.endswith(index)] and not [walk for walk in walked if "SCAN" in walk], (
            walked
        )


def test_an_estimate_reads_a_users_last_runs_of_a_role_from_their_index(db: SqliteDatabase) -> None:
    plans = QueryPlans(db)
    View(db).past_runs("ben", "coder", "a:b", ("success", "timeout"), 29, ("the plan's ",))
    walked = [plan.partition(" for ")[0] for plan in plans.all()]
    assert "SEARCH runs USING INDEX runs_own (user_id=? AND role=? AND ended_us>?)" in walked
    assert [walk for walk in walked if re.match(r"SEARCH configs USING INDEX .*\(id=\?\)", walk)], walked
    assert {walk for walk in walked if "SCAN" in walk} == {"SCAN newest", "SCAN wanted"}, "at most 100 rows and 29"
    plans = QueryPlans(db)
    list(View(db).ended_runs(PastRun, 5, 9, "ben"))
    assert [plan for plan in plans.all() if "INDEX runs_ended (ended_us>? AND ended_us<?)" in plan]


def test_rare_entries_of_a_run_are_found_by_their_type(db: SqliteDatabase) -> None:
    plans = QueryPlans(db)
    View(db).rare_entries("S-aaaaaa", ("Answered",))
    assert [look for look in plans.all() if "USING INDEX events_type" in look]


def test_applying_an_event_of_a_run_reads_no_other_runs(db: SqliteDatabase) -> None:
    plans = QueryPlans(db)
    tables = Projections(db)
    for seq, event in enumerate(Life("S-aaaaaa").all_events(), 1):
        header = Header(
            seq=seq,
            ts_us=seq,
            session_id=event.who.session_id,
            user_id=event.who.user_id,
            type=event.fact.type,
            run_id=event.fence.run_id if event.fence else event.run_id,
            generation=event.fence.generation if event.fence else None,
            usage=event.usage,
            cost_micros=event.cost_micros,
        )
        reduce(tables, header, event.fact)
        tables.flush()
        tables.evict()
    run = View(db).run("S-aaaaaa")
    assert run is not None and run.state == "success"
    assert not [plan for plan in plans.all() if "SCAN" in plan]


def test_a_report_reads_only_the_days_of_its_period(db: SqliteDatabase) -> None:
    plans = QueryPlans(db)
    spending(_NotEmpty(db), 5, 9, "ben")
    plan_sum(View(db), "G-4e1b2c3")
    assert [plan for plan in plans.all() if "spending USING INDEX spending_days (day>? AND day<?)" in plan]
    asked = [plan for plan in plans.all() if "events" in plan.partition(" for ")[2]]
    looks = [plan.partition(" for ")[0] for plan in asked]
    assert not [look for look in looks if look.startswith("SCAN") and not re.search("runs|found$", look)], looks
    assert "SEARCH events USING INDEX events_errors (ts_us>? AND ts_us<?)" in looks


@pytest.mark.parametrize(("user", "index"), [(None, "events_decided"), ("ben", "events_decided_by")])
def test_decisions_come_sorted_from_their_own_index(db: SqliteDatabase, user: str | None, index: str) -> None:
    plans = QueryPlans(db)
    view, period = View(db), Period(5, 9, user)
    decision_page(view, period, None, 50)
    decision_page(view, period, (7, 3), 50)
    decision_sums(view, period)
    view.session_start("sess-1")
    looks = plans.all()
    assert not [look for look in looks if look.startswith("SCAN")], looks
    of_user = "user_id=? AND " if user else ""
    assert (
        sum(look.startswith(f"SEARCH events USING INDEX {index} ({of_user}ts_us>? AND ts_us<?)") for look in looks) == 3
    )
    sorting = [look for look in looks if "TEMP B-TREE FOR ORDER" in look and "type = 'RunResumed'" not in look]
    assert not sorting and [look for look in looks if "INDEX events_session (session_id=?)" in look]


NOW_US = 1_769_904_000_000_000
DAY_AGO_US = NOW_US - DAY_US


@pytest.fixture(scope="module")
def histories() -> Iterator[tuple[SqliteDatabase, SqliteDatabase]]:
    """Two logs, of 120 runs and of ten times as many: one an hour until now, each with an error, a fourth expired."""
    with (
        contextlib.closing(open_in_memory()) as short,
        contextlib.closing(open_in_memory()) as long,
        pytest.MonkeyPatch.context() as patch,
    ):
        _grow(short, 120, patch)
        _grow(long, 1_200, patch)
        yield short, long


def _grow(log: SqliteDatabase, runs: int, patch: pytest.MonkeyPatch) -> None:
    projections = Projections(log)
    appender = Appender(log, projections)
    for number in range(runs):
        at_ns = (NOW_US - (runs - number) * HOUR_US) * 1_000
        patch.setattr(units, "time", SimpleNamespace(time_ns=lambda at_ns=at_ns: at_ns))
        life = Life(f"S-{number:06x}")
        whole = [*life.beginning(), life.reservation(), life.settlement(), life.error(), *life.ending()]
        for event in whole if number % 4 else (life.proposal(), life.task()):
            appender.append((event,), appender.check((event,)))
    projections.flush()
    patch.undo()
    after, erased, rows, _whole = next_index_rows(View(log))
    while index_words(log, rows, after=after, erased=erased):
        after, erased, rows, _whole = next_index_rows(View(log))


class _Here:
    """A log in this thread."""

    def __init__(self, db: SqliteDatabase) -> None:
        self._db = db

    async def read(self, query: Query[T], /, *, within_s: float | None = None, short: bool = False) -> T:
        del within_s, short
        return query(View(self._db))


def found(db: SqliteDatabase, **asked: Any) -> int:
    return len(anyio.run(search, _Here(db), LogQuery(**asked)).entries)


LOOKS: dict[str, Callable[[SqliteDatabase], object]] = {
    "what waits and runs": lambda db: View(db).runs(user="ben", states=UNENDED, expired_before_us=NOW_US, limit=-1),
    "what waits and runs, of everybody": lambda db: View(db).runs(states=UNENDED, expired_before_us=NOW_US, limit=-1),
    "what waits for an approval": lambda db: View(db).runs(states=(WAITING,), expired_before_us=NOW_US, limit=-1),
    "runs of others": lambda db: View(db).unended_of_others("eve", NOW_US),
    "the last run": lambda db: View(db).runs(user="ben", limit=1),
    "the list of runs": lambda db: [View(db).newest_runs(group, NOW_US, user="ben", limit=5) for group in GROUPS],
    "the list of a role without runs": lambda db: View(db).newest_runs(None, NOW_US, user="ben", role="coder"),
    "the list of another user": lambda db: View(db).newest_runs(None, NOW_US, user="eve"),
    "roles": lambda db: (View(db).roles(None), View(db).roles("ben")),
    "users": lambda db: View(db).users(),
    "runs of a suite": lambda db: View(db).with_task_prefix("ben", "suite:"),
    "what was not fetched": lambda db: View(db).unfetched("ben", 5),
    "an estimate": lambda db: View(db).past_runs("ben", "researcher", "test:model", ("success",), 5),
    "current runs": lambda db: current_runs(View(db), NOW_US),
    "a day's report": lambda db: spending(View(db), DAY_AGO_US // DAY_US, DAY_AGO_US // DAY_US, "ben"),
    "a day's endings": lambda db: day_endings(View(db), DAY_AGO_US, NOW_US, "ben"),
    "a day's errors, fewer than a page": lambda db: found(db, types=("ErrorOccurred",), since_us=DAY_AGO_US),
    "an hour long ago": lambda db: found(db, since_us=DAY_AGO_US, until_us=DAY_AGO_US + HOUR_US),
    "a word": lambda db: found(db, search="look", limit=5),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_history_ten_times_as_long_takes_as_many_steps_of_the_database(
    histories: tuple[SqliteDatabase, SqliteDatabase], look: str
) -> None:
    def steps(db: SqliteDatabase) -> int:
        taken = 0

        def step() -> int:
            nonlocal taken
            taken += 1
            return 0

        db.set_progress_handler(step, 1)
        LOOKS[look](db)
        db.set_progress_handler(None, 0)
        return taken

    short, long = map(steps, histories)
    assert long <= 1.2 * short + 200, (short, long)


class _NotEmpty(View):
    """A log that says it begins somewhere, so that all is asked of it that is asked of one with entries."""

    def head(self) -> int:
        return 1

    def select(self, sql: str, *values: object, **named: object) -> Iterator[tuple[object, ...]]:
        rows = super().select(sql, *values, **named)
        return iter([(0,)]) if sql.startswith("SELECT ts_us") else rows
