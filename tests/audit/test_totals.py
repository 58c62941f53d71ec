"""What the log adds up to: counting on is counting at once, and nothing is walked that was counted before."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.log import Life, run_who

from ava_audit.entries import content_of, content_sha
from ava_audit.events import ErrorOccurred, Event, GuardrailTripped, SessionStart, ToolResult
from ava_audit.projections import Projections
from ava_audit.reducers import Header, reduce
from ava_audit.store.schema import open_in_memory
from ava_audit.totals import (
    ERASABLE,
    Counted,
    EntryCounts,
    StartWaits,
    count_new_entries,
    current_runs,
    run_sums,
    start_waits,
)
from ava_audit.view import View


class Log:
    """A log in memory that events are put into, projections and all."""

    def __init__(self) -> None:
        self.db = open_in_memory()
        self._tables = Projections(self.db)
        self.head = 0

    def close(self) -> None:
        self.db.close()

    def add(self, *events: Event) -> None:
        for event in events:
            self.head += 1
            run_id = event.fence.run_id if event.fence else event.run_id
            generation = event.fence.generation if event.fence else None
            content = content_of(event.fact)
            self.db.execute(
                "INSERT INTO events (seq, ts_us, session_id, agent_id, user_id, type, v, run_id, generation, model,"
                " duration_ms, content, content_sha, hash) VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, x'00')",
                (
                    self.head, self.head, *event.who[:3], event.fact.type, run_id, generation, event.model,
                    event.duration_ms, content.decode(), content_sha(content),
                ),
            )  # fmt: skip
            header = Header(
                self.head, self.head, event.who.session_id, event.who.user_id, event.fact.type, run_id, generation,
                event.usage, event.cost_micros,
            )  # fmt: skip
            reduce(self._tables, header, event.fact)
        self._tables.flush()

    def erase(self, type_name: str) -> None:
        self.db.execute("UPDATE events SET content = NULL WHERE type = ?", (type_name,))

    @property
    def view(self) -> View:
        return View(self.db)


@pytest.fixture
def log() -> Generator[Log]:
    with closing(Log()) as made:
        yield made


def called(life: Life, tool: str = "read_file", *, success: bool = True) -> Event:
    return life.wrote(ToolResult(tool=tool, success=success, output="what it brought"))._replace(duration_ms=40)


def lived(run_id: str) -> list[Event]:
    """A run that is going on, in which tools were called, a guardrail spoke and a call failed."""
    life = Life(run_id)
    return [
        Event(life.proposed().who, SessionStart(transport="stdio")),
        life.proposed(), life.task(), life.decided(), life.claimed(),
        life.reserved(), life.settled(), called(life), called(life, success=False),
        life.wrote(GuardrailTripped(guardrail="same_call", action="told")),
        life.wrote(ErrorOccurred(error="what went wrong", kind="timeout")),
    ]  # fmt: skip


def brought_up_to_date(log: Log, entry_counts: EntryCounts) -> EntryCounts:
    entry_counts.add(count_new_entries(log.view, entry_counts))
    return entry_counts


@given(st.lists(st.integers(min_value=1, max_value=12), max_size=8))
def test_incremental_counting_equals_counting_everything_at_once(steps: list[int]) -> None:
    events = [event for number in range(3) for event in lived(f"S-aaaaa{number}")]
    on = EntryCounts(since=0)
    with closing(Log()) as log:
        for step in steps:
            log.add(*events[:step])
            del events[:step]
            brought_up_to_date(log, on)
        log.add(*events)
        assert brought_up_to_date(log, on) == brought_up_to_date(log, EntryCounts(since=0))
    assert on.of("ToolResult") == {
        ("test:model", "read_file", 1, None): Counted(3, 120), ("test:model", "read_file", 0, None): Counted(3, 120)
    }  # fmt: skip
    assert on.of("ErrorOccurred") == {("test:model", "timeout"): Counted(3, 0)}
    assert on.of("SessionStart") == {(None, "stdio"): Counted(3, 0)}
    assert sum(counted.entries for counted in on.of("CostUpdate").values()) == 3


def test_does_not_count_the_same_entries_twice(log: Log) -> None:
    entry_counts = EntryCounts(since=0)
    log.add(*lived("S-aaaaaa"))
    news = count_new_entries(log.view, entry_counts)
    entry_counts.add(news)
    before = dict(entry_counts.counts)
    entry_counts.add(news)
    assert entry_counts.counts == before


def test_erasable_entries_count_from_the_tally_start_and_others_from_the_log_start(log: Log) -> None:
    log.add(*lived("S-aaaaaa"))
    entry_counts = brought_up_to_date(log, EntryCounts(since=log.head))
    assert not any(entry_counts.of(name) for name in ERASABLE)
    assert entry_counts.of("GuardrailTripped") and entry_counts.of("SessionStart")


def test_counts_a_call_whose_content_was_erased_before_counting(log: Log) -> None:
    log.add(*lived("S-aaaaaa"))
    log.erase("ToolResult")
    assert brought_up_to_date(log, EntryCounts(since=0)).of("ToolResult") == {
        ("test:model", None, None, None): Counted(2, 80)
    }  # fmt: skip


def test_actions_on_a_run_do_not_count_as_its_tool_calls(log: Log) -> None:
    life = Life("S-aaaaaa")
    log.add(*lived("S-aaaaaa"))
    before = brought_up_to_date(log, EntryCounts(since=0))
    log.add(Event(run_who(life.run_id), ToolResult(tool="check_subagent", success=True), run_id=life.run_id))
    assert brought_up_to_date(log, EntryCounts(since=0)).of("ToolResult") == before.of("ToolResult")


def test_groups_runs_by_state_with_count_and_cost(log: Log) -> None:
    for number in range(3):
        log.add(*lived(f"S-aaaaa{number}"))
    waits = Life("S-bbbbbb")
    log.add(waits.proposed(), waits.task(), Life("S-aaaaa0").reserved(2))
    (waiting, running) = sorted(run_sums(log.view), key=lambda group: group.state)
    assert (waiting.state, waiting.runs, waiting.cost_micros) == ("awaiting_approval", 1, 0)
    rows = log.view.runs(states=("running",))
    assert (running.runs, running.role, running.model) == (3, "researcher", "test:model")
    assert running.cost_micros == sum(row.cost_micros for row in rows) > 0
    assert running.input_tokens == sum(row.input_tokens for row in rows) > 0
    now = current_runs(log.view, now_us=100)
    assert now.waiting.runs == 1 and now.waiting.since_us is not None
    assert now.running == {"abc": 3} and now.in_flight == 1
    late = current_runs(log.view, now_us=2**50 + 1)
    assert late.waiting.runs == 0, "nobody can approve what has expired"


def test_reads_no_entry_that_was_already_counted(log: Log) -> None:
    entry_counts = EntryCounts(since=0)
    log.add(*lived("S-aaaaaa"))
    brought_up_to_date(log, entry_counts)
    asked: list[str] = []
    log.db.set_trace_callback(asked.append)
    count_new_entries(log.view, entry_counts)
    log.db.set_trace_callback(None)
    of_events = [sql for sql in asked if "FROM events" in sql and "GROUP BY" in sql]
    assert len(of_events) == 7
    for sql in of_events:
        plan = [str(row[3]) for row in log.db.execute(f"EXPLAIN QUERY PLAN {sql}")]
        assert any("INDEX events_type (type=? AND rowid>? AND rowid<?)" in step for step in plan), plan


def test_counts_waits_from_the_approval_to_the_first_claim_by_their_bounds(log: Log) -> None:
    quick, slow, queued = Life("S-aaaaaa"), Life("S-bbbbbb"), Life("S-cccccc")
    log.add(quick.proposed(), quick.task(), slow.proposed(), slow.task(), queued.proposed(), queued.task())
    log.add(slow.decided(), quick.decided(), quick.claimed(), queued.decided(), slow.claimed())  # an entry takes 1 us
    assert start_waits(log.view, (1, 2)) == StartWaits((1, 0, 1), 5)
    assert start_waits(log.view, (4, 9)) == StartWaits((2, 0, 0), 5)
    quick.generation = 2
    log.add(quick.claimed())
    assert start_waits(log.view, (1, 2)).total_us == 5, "a later claim is no start"
