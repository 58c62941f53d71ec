"""Projections: a fold of the log, whatever the history, and with no budget held that nobody will settle."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import AVA, Life, plan_events, run_who, tamper_with, write, write_each
from support.logs.histories import (
    RunHistory,
    money_in_scopes,
    projection_rows,
    run_histories,
    run_row,
    spending_in_log,
)
from support.logs.store import open_store

from ava_audit.errors import StaleOwner
from ava_audit.events import TRANSCRIPT_TYPES, Activity, Event, Fence, SpawnDecided, ToolCall, ToolResult
from ava_audit.projections import rebuild_projections
from ava_audit.store.sqlite import backend_of
from ava_audit.store.store import Store
from ava_audit.totals import spending
from ava_audit.units import DAY_US, now_us
from ava_audit.verify import verify
from ava_audit.view import Outcome, View


async def test_a_row_that_was_missing_is_found_once_another_process_has_added_it(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log, Store.open(tmp_path) as other:
            for number in range(3):
                life = Life(f"S-aaaaa{number}")

                def states(view: View, _now_us: int, run_id: str = life.run_id) -> Outcome[list[str | None]]:
                    found = [view.run(each) for each in (run_id, "S-bbbbbb")]
                    return Outcome([None if run is None else run.state for run in found])

                assert await log.do(states, life.run_id) == [None, None]
                await write_each(other, life.beginning())
                assert await log.do(states, life.run_id) == ["running", None]


async def test_tracks_a_run_from_proposal_to_end_with_its_usage(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with open_store(tmp_path) as log:
        states: list[str] = []
        for event in [*life.beginning(), life.reservation(), life.settlement(), *life.tool(), *life.ending()]:
            await write(log, event)
            states.append((await run_row(log)).state)
        run = await run_row(log)
        proposal = await log.read(lambda view: view.proposal("P-aaaaaa00"))
    assert list(dict.fromkeys(states)) == ["awaiting_approval", "queued", "running", "success"]
    assert (run.turns, run.tool_calls, run.tokens, run.cost_micros) == (1, 1, 30, 3_000)
    assert (run.input_tokens, run.output_tokens, run.generation, run.instance) == (20, 10, 1, "abc")
    assert (run.task_seq, run.result_seq, run.in_flight, run.ended) == (2, 9, None, True)
    assert proposal is not None
    assert (proposal.state, proposal.channel) == ("approved", "host_call")


async def test_a_reservation_holds_the_call_and_wrap_up_until_settlement_and_run_end(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with open_store(tmp_path) as log:
        await write_each(log, [*life.beginning(), life.reservation(micros=5_000, wrap=1_000)])
        assert await money_in_scopes(log, life) == {(0, 6_000)}
        await write(log, life.settlement(cost=3_000))
        assert await money_in_scopes(log, life) == {(3_000, 1_000)}
        await write(log, life.reservation(turn=2, micros=4_000, wrap=1_500))
        assert await money_in_scopes(log, life) == {(3_000, 5_500)}
        await write(log, life.settlement(turn=2, cost=9_000, reserved=4_000))
        assert await money_in_scopes(log, life) == {(12_000, 1_500)}
        await write_each(log, life.ending())
        assert await money_in_scopes(log, life) == {(12_000, 0)}
        assert (await run_row(log)).overrun == 1


async def test_calls_side_by_side_are_spending_of_their_day_whichever_is_settled_first(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    held = [life.reservation(turn=turn, micros=4_000) for turn in (1, 2)]
    beside = [each._replace(fact=each.fact.model_copy(update={"beside": True})) for each in held]
    async with open_store(tmp_path) as log:
        await write_each(log, [*life.beginning(), *beside])
        await write_each(log, [life.settlement(turn=turn, cost=3_000, reserved=4_000) for turn in (1, 2, 2)])
        last = now_us() // DAY_US
        found, expected = await log.read(lambda view: (spending(view, 0, last), spending_in_log(view)))
    assert {(each.run_id, each.day): each for each in found.spent} == expected
    assert sum(each.cost_micros for each in found.spent) == 6_000, "a call that is not in flight costs nothing"


async def test_counts_a_settlement_of_unknown_cost_as_uncosted(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with Store.open(tmp_path) as log:
        await write_each(log, [*life.beginning(), life.reservation(), life.settlement(cost=5_000, unknown=True)])
        run = await run_row(log)
    assert (run.cost_micros, run.uncosted_micros) == (5_000, 5_000)


async def test_a_paused_run_has_no_owner_and_its_clock_stops_until_it_is_claimed(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with Store.open(tmp_path) as log:
        await write_each(
            log, [*life.beginning(), life.reservation(), life.settlement(), life.pause(2**50, active_us=7_000_000)]
        )
        paused = await run_row(log)
        assert (paused.state, paused.instance, paused.waits_until_us) == ("queued", None, 2**50)
        assert (paused.active_us, paused.claimed_us) == (7_000_000, None)
        assert await money_in_scopes(log, life) == {(3_000, 1_000)}, "the wrap-up keeps its share"
        with pytest.raises(StaleOwner):
            await write(log, Event(run_who("S-aaaaaa"), Activity(activity="still here"), fence=Fence("S-aaaaaa", 1)))
        await write(log, life.claim())
        again = await run_row(log)
    assert (again.state, again.generation, again.waits_until_us, again.active_us) == ("running", 2, None, 7_000_000)


@pytest.mark.parametrize("cap", [700_000, 600_000, None])
async def test_a_run_that_asks_for_more_waits_until_it_is_answered(tmp_path: Path, cap: int | None) -> None:
    life = Life("S-aaaaaa")
    async with Store.open(tmp_path) as log:
        await write_each(
            log, [*life.beginning(), life.reservation(), life.settlement(), life.request(2**50, active_us=7_000_000)]
        )
        asks = await run_row(log)
        assert (asks.state, asks.instance, asks.waits_until_us) == ("queued", None, 2**50)
        assert asks.active_us == 7_000_000 and json.loads(asks.asked or "")["proposed"] == 700_000
        assert await money_in_scopes(log, life) == {(3_000, 1_000)}, "the wrap-up keeps its share"
        await write(log, life.request_answer(cap))
        answered = await run_row(log)
        assert (answered.state, answered.waits_until_us, answered.asked) == ("queued", None, None)
        assert json.loads(answered.config).get("max_cost_micros") == cap


async def test_a_run_that_nobody_answered_asks_for_nothing_once_it_is_claimed(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with Store.open(tmp_path) as log:
        await write_each(log, [*life.beginning(), life.request(2**50)])
        await write(log, life.claim())
        again = await run_row(log)
        assert (again.state, again.waits_until_us, again.asked) == ("running", None, None)


async def test_resuming_fences_out_the_previous_owner_and_queues_the_run(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with Store.open(tmp_path) as log:
        await write_each(log, [*life.beginning(), *life.tool()])
        before = await run_row(log)
        await write(log, life.resume())
        run = await run_row(log)
        with pytest.raises(StaleOwner):
            await write(log, Event(run_who("S-aaaaaa"), Activity(activity="still here"), fence=Fence("S-aaaaaa", 1)))
    assert (run.state, run.instance, run.generation) == ("queued", None, 2)
    assert before.last_us is not None and before.claimed_us is not None
    assert run.active_us == before.last_us - before.claimed_us
    assert run.queued_us == before.queued_us, "it is no further spawn of the hour"


async def test_the_clock_of_a_plan_starts_with_its_first_run(tmp_path: Path) -> None:
    one, two = Life("S-aaaaaa"), Life("S-bbbbbb")
    async with Store.open(tmp_path) as log:
        begun = [*plan_events("G-1", 500), one.proposal(), two.proposal(), one.approval("G-1"), two.approval("G-1")]
        await write_each(log, begun)
        caps = await log.read(lambda view: view.plan_caps("G-1"))
        assert caps is not None and (caps.cap_micros, caps.started_us) == (500, None)
        await write(log, one.claim())
        first = await log.read(lambda view: view.plan_caps("G-1"))
        await write(log, two.claim())
        second = await log.read(lambda view: view.plan_caps("G-1"))
        members = await log.read(lambda view: view.plan_runs("G-1"))
    assert first is not None and first.started_us is not None and first == second
    assert {run.id for run in members} == {"S-aaaaaa", "S-bbbbbb"}


async def test_changes_made_on_approval_apply_to_the_run_config(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    fact = SpawnDecided(pending_id=life.pending_id, decision="approved", changes={"max_cost_micros": 5})
    async with Store.open(tmp_path) as log:
        await write_each(log, [life.proposal(max_cost_micros=10), Event(AVA, fact, run_id=life.run_id)])
        assert '"max_cost_micros":5' in (await run_row(log)).config


async def test_a_result_counts_as_fetched_only_when_ava_returned_it_after_the_run_ended(
    tmp_path: Path,
) -> None:
    life = Life("S-aaaaaa")
    answer = Event(AVA, ToolResult(tool="check_subagent", success=True), run_id=life.run_id)
    async with Store.open(tmp_path) as log:
        await write_each(log, [*life.beginning(), answer, *life.tool()])
        assert (await run_row(log)).fetched_us is None
        await write_each(log, [*life.ending(), Event(AVA, ToolCall(tool="check_subagent"), run_id=life.run_id)])
        assert (await run_row(log)).fetched_us is None
        await write(log, answer)
        first = (await run_row(log)).fetched_us
        await write(log, answer)
        assert first is not None
        assert (await run_row(log)).fetched_us == first
        assert (await run_row(log)).tool_calls == 1


@settings(max_examples=40)
@given(history=run_histories(), batch=st.integers(1, 7))
def test_incremental_updates_equal_a_rebuild_from_the_log(
    history: RunHistory, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root")

    async def live() -> None:
        async with Store.open(root) as log:
            for start in range(0, len(history.events), batch):
                async with anyio.create_task_group() as tasks:  # tasks start in order: one batch of the writer
                    for event in history.events[start : start + batch]:
                        tasks.start_soon(write, log, event)
            for run_id in history.ended:
                bucket = await log.read(partial(View.bucket, scope=f"run:{run_id}"))
                run = await run_row(log, run_id)
                assert (bucket.spent_micros, bucket.held_micros) == (run.cost_micros, 0)
            if history.ended == set(history.at):
                day = await log.read(lambda view: view.bucket("all:2026-01-31"))
                assert day.held_micros == 0

    anyio.run(live)
    assert verify(root).ok
    before = projection_rows(root)
    with tamper_with(root) as db:
        marks = ", ".join("?" * len(TRANSCRIPT_TYPES))
        db.execute(f"UPDATE events SET content = NULL WHERE type IN ({marks})", (*TRANSCRIPT_TYPES,))
    # The rebuild is of a log without a word of its transcripts, and the same.
    assert {fault.kind for fault in verify(root).faults} <= {"erased"}
    assert projection_rows(root) == before
    backend = backend_of(root)
    backend.prepare()
    with contextlib.closing(backend), contextlib.closing(backend.connect()) as own:
        own.begin_bulk()
        rebuild_projections(own)
        own.commit()
    assert projection_rows(root) == before


async def test_finds_runs_by_user_state_and_ending(tmp_path: Path) -> None:
    ben, eve = Life("S-aaaaaa"), Life("S-bbbbbb", user="eve")
    async with Store.open(tmp_path) as log:
        await write_each(log, [*ben.all_events(), *eve.beginning()])

        def ids(view: View) -> list[list[str]]:
            return [
                [run.id for run in view.runs()],
                [run.id for run in view.runs(user="eve")],
                [run.id for run in view.runs(states=["running"])],
                [run.id for run in view.runs(ended_since_us=0)],
                [run.id for run in view.runs(ended_since_us=2**60)],
                [run.id for run in view.runs(limit=1)],
            ]

        assert await log.read(ids) == [
            ["S-aaaaaa", "S-bbbbbb"], ["S-bbbbbb"], ["S-bbbbbb"], ["S-aaaaaa"], [], ["S-bbbbbb"],
        ]  # fmt: skip
