"""What the log adds up to: counting on is counting at once, and nothing is walked that was counted before."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.log import Life, run_who
from support.logs.totals import CountedLog, count_up, eventful_run

from ava_audit.events import Event, ToolResult
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


@pytest.fixture
def log() -> Generator[CountedLog]:
    with closing(CountedLog()) as made:
        yield made


@given(st.lists(st.integers(min_value=1, max_value=12), max_size=8))
def test_incremental_counting_equals_counting_everything_at_once(steps: list[int]) -> None:
    events = [event for number in range(3) for event in eventful_run(f"S-aaaaa{number}")]
    on = EntryCounts(since=0)
    with closing(CountedLog()) as log:
        for step in steps:
            log.add(*events[:step])
            del events[:step]
            count_up(log, on)
        log.add(*events)
        assert count_up(log, on) == count_up(log, EntryCounts(since=0))
    assert on.of("ToolResult") == {
        ("test:model", "read_file", 1, None): Counted(3, 120), ("test:model", "read_file", 0, None): Counted(3, 120)
    }  # fmt: skip
    assert on.of("ErrorOccurred") == {("test:model", "timeout"): Counted(3, 0)}
    assert on.of("SessionStart") == {(None, "stdio"): Counted(3, 0)}
    assert sum(counted.entries for counted in on.of("CostUpdate").values()) == 3


def test_does_not_count_the_same_entries_twice(log: CountedLog) -> None:
    entry_counts = EntryCounts(since=0)
    log.add(*eventful_run("S-aaaaaa"))
    news = count_new_entries(log.view, entry_counts)
    entry_counts.add(news)
    before = dict(entry_counts.counts)
    entry_counts.add(news)
    assert entry_counts.counts == before


def test_erasable_entries_count_from_the_tally_start_and_others_from_the_log_start(log: CountedLog) -> None:
    log.add(*eventful_run("S-aaaaaa"))
    entry_counts = count_up(log, EntryCounts(since=log.head))
    assert not any(entry_counts.of(name) for name in ERASABLE)
    assert entry_counts.of("GuardrailTripped") and entry_counts.of("SessionStart")


def test_counts_a_call_whose_content_was_erased_before_counting(log: CountedLog) -> None:
    log.add(*eventful_run("S-aaaaaa"))
    log.erase("ToolResult")
    assert count_up(log, EntryCounts(since=0)).of("ToolResult") == {
        ("test:model", None, None, None): Counted(2, 80)
    }  # fmt: skip


def test_actions_on_a_run_do_not_count_as_its_tool_calls(log: CountedLog) -> None:
    life = Life("S-aaaaaa")
    log.add(*eventful_run("S-aaaaaa"))
    before = count_up(log, EntryCounts(since=0))
    log.add(Event(run_who(life.run_id), ToolResult(tool="check_subagent", success=True), run_id=life.run_id))
    assert count_up(log, EntryCounts(since=0)).of("ToolResult") == before.of("ToolResult")


def test_groups_runs_by_state_with_count_and_cost(log: CountedLog) -> None:
    for number in range(3):
        log.add(*eventful_run(f"S-aaaaa{number}"))
    waits = Life("S-bbbbbb")
    log.add(waits.proposal(), waits.task(), Life("S-aaaaa0").reservation(2))
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


def test_reads_no_entry_that_was_already_counted(log: CountedLog) -> None:
    entry_counts = EntryCounts(since=0)
    log.add(*eventful_run("S-aaaaaa"))
    count_up(log, entry_counts)
    asked: list[str] = []
    log.db.set_trace_callback(asked.append)
    count_new_entries(log.view, entry_counts)
    log.db.set_trace_callback(None)
    of_events = [sql for sql in asked if "FROM events" in sql and "GROUP BY" in sql]
    assert len(of_events) == 7
    for sql in of_events:
        plan = [str(row[3]) for row in log.db.execute(f"EXPLAIN QUERY PLAN {sql}")]
        assert any("INDEX events_type (type=? AND rowid>? AND rowid<?)" in step for step in plan), plan


def test_counts_waits_from_the_approval_to_the_first_claim_by_their_bounds(log: CountedLog) -> None:
    quick, slow, queued = Life("S-aaaaaa"), Life("S-bbbbbb"), Life("S-cccccc")
    log.add(quick.proposal(), quick.task(), slow.proposal(), slow.task(), queued.proposal(), queued.task())
    log.add(slow.approval(), quick.approval(), quick.claim(), queued.approval(), slow.claim())  # an entry takes 1 us
    assert start_waits(log.view, (1, 2)) == StartWaits((1, 0, 1), 5)
    assert start_waits(log.view, (4, 9)) == StartWaits((2, 0, 0), 5)
    quick.generation = 2
    log.add(quick.claim())
    assert start_waits(log.view, (1, 2)).total_us == 5, "a later claim is no start"
