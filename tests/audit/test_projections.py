"""Projections: a fold of the log, whatever the history, and with no budget held that nobody will settle."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import AVA, Life, plan_events, run_who, tampering, write, write_each

from ava_audit.errors import StaleOwner
from ava_audit.events import (
    TRANSCRIPT_TYPES,
    Activity,
    CancelRequested,
    Ending,
    Event,
    Fence,
    SpawnDecided,
    ToolCall,
    ToolResult,
)
from ava_audit.projections import PROJECTIONS, rebuild_projections
from ava_audit.rows import RunRow
from ava_audit.store.sqlite import backend_of
from ava_audit.store.store import Store
from ava_audit.verify import verify
from ava_audit.view import Outcome, View


async def run_of(log: Store, run_id: str = "S-aaaaaa") -> RunRow:
    run = await log.read(lambda view: view.run(run_id))
    assert run is not None
    return run


async def held(log: Store, life: Life) -> set[tuple[int, int]]:
    """What every scope of a run has spent and held."""
    buckets = [await log.read(partial(View.bucket, scope=scope)) for scope in life.scopes]
    assert [bucket.scope for bucket in buckets] == list(life.scopes)
    return {(bucket.spent_micros, bucket.held_micros) for bucket in buckets}


async def test_a_row_that_was_missing_is_found_once_another_process_has_added_it(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log, Store.open(tmp_path) as other:
            for number in range(3):
                life = Life(f"S-aaaaa{number}")

                def states(view: View, _now_us: int, run_id: str = life.run_id) -> Outcome[list[str | None]]:
                    found = [view.run(each) for each in (run_id, "S-bbbbbb")]
                    return Outcome([None if run is None else run.state for run in found])

                assert await log.do(states, life.run_id) == [None, None]
                await write_each(other, life.begun())
                assert await log.do(states, life.run_id) == ["running", None]


async def test_tracks_a_run_from_proposal_to_end_with_its_usage(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            states: list[str] = []
            for event in [*life.begun(), life.reserved(), life.settled(), *life.tool(), *life.ended()]:
                await write(log, event)
                states.append((await run_of(log)).state)
            run = await run_of(log)
            proposal = await log.read(lambda view: view.proposal("P-aaaaaa00"))
    assert list(dict.fromkeys(states)) == ["awaiting_approval", "queued", "running", "success"]
    assert (run.turns, run.tool_calls, run.tokens, run.cost_micros) == (1, 1, 30, 3_000)
    assert (run.input_tokens, run.output_tokens, run.generation, run.instance) == (20, 10, 1, "abc")
    assert (run.task_seq, run.result_seq, run.in_flight, run.ended) == (2, 9, None, True)
    assert proposal is not None
    assert (proposal.state, proposal.channel) == ("approved", "host_call")


async def test_a_reservation_holds_the_call_and_wrap_up_until_settlement_and_run_end(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await write_each(log, [*life.begun(), life.reserved(micros=5_000, wrap=1_000)])
            assert await held(log, life) == {(0, 6_000)}
            await write(log, life.settled(cost=3_000))
            assert await held(log, life) == {(3_000, 1_000)}
            await write(log, life.reserved(turn=2, micros=4_000, wrap=1_500))
            assert await held(log, life) == {(3_000, 5_500)}
            await write(log, life.settled(turn=2, cost=9_000, reserved=4_000))
            assert await held(log, life) == {(12_000, 1_500)}
            await write_each(log, life.ended())
            assert await held(log, life) == {(12_000, 0)}
            assert (await run_of(log)).overrun == 1


async def test_counts_a_settlement_of_unknown_cost_as_uncosted(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with Store.open(tmp_path) as log:
        await write_each(log, [*life.begun(), life.reserved(), life.settled(cost=5_000, unknown=True)])
        run = await run_of(log)
    assert (run.cost_micros, run.uncosted_micros) == (5_000, 5_000)


async def test_a_paused_run_has_no_owner_and_its_clock_stops_until_it_is_claimed(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with Store.open(tmp_path) as log:
        await write_each(log, [*life.begun(), life.reserved(), life.settled(), life.paused(2**50, active_us=7_000_000)])
        paused = await run_of(log)
        assert (paused.state, paused.instance, paused.waits_until_us) == ("queued", None, 2**50)
        assert (paused.active_us, paused.claimed_us) == (7_000_000, None)
        assert await held(log, life) == {(3_000, 1_000)}, "the wrap-up keeps its share"
        with pytest.raises(StaleOwner):
            await write(log, Event(run_who("S-aaaaaa"), Activity(activity="still here"), fence=Fence("S-aaaaaa", 1)))
        await write(log, life.claimed())
        again = await run_of(log)
    assert (again.state, again.generation, again.waits_until_us, again.active_us) == ("running", 2, None, 7_000_000)


@pytest.mark.parametrize("cap", [700_000, 600_000, None])
async def test_a_run_that_asks_for_more_waits_until_it_is_answered(tmp_path: Path, cap: int | None) -> None:
    life = Life("S-aaaaaa")
    async with Store.open(tmp_path) as log:
        await write_each(log, [*life.begun(), life.reserved(), life.settled(), life.asked(2**50, active_us=7_000_000)])
        asks = await run_of(log)
        assert (asks.state, asks.instance, asks.waits_until_us) == ("queued", None, 2**50)
        assert asks.active_us == 7_000_000 and json.loads(asks.asked or "")["proposed"] == 700_000
        assert await held(log, life) == {(3_000, 1_000)}, "the wrap-up keeps its share"
        await write(log, life.answered_request(cap))
        answered = await run_of(log)
        assert (answered.state, answered.waits_until_us, answered.asked) == ("queued", None, None)
        assert json.loads(answered.config).get("max_cost_micros") == cap


async def test_a_run_that_nobody_answered_asks_for_nothing_once_it_is_claimed(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with Store.open(tmp_path) as log:
        await write_each(log, [*life.begun(), life.asked(2**50)])
        await write(log, life.claimed())
        again = await run_of(log)
        assert (again.state, again.waits_until_us, again.asked) == ("running", None, None)


async def test_resuming_fences_out_the_previous_owner_and_queues_the_run(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    async with Store.open(tmp_path) as log:
        await write_each(log, [*life.begun(), *life.tool()])
        before = await run_of(log)
        await write(log, life.resumed())
        run = await run_of(log)
        with pytest.raises(StaleOwner):
            await write(log, Event(run_who("S-aaaaaa"), Activity(activity="still here"), fence=Fence("S-aaaaaa", 1)))
    assert (run.state, run.instance, run.generation) == ("queued", None, 2)
    assert before.last_us is not None and before.claimed_us is not None
    assert run.active_us == before.last_us - before.claimed_us
    assert run.queued_us == before.queued_us, "it is no further spawn of the hour"


async def test_the_clock_of_a_group_starts_with_its_first_run(tmp_path: Path) -> None:
    one, two = Life("S-aaaaaa"), Life("S-bbbbbb")
    async with Store.open(tmp_path) as log:
        begun = [*plan_events("G-1", 500), one.proposed(), two.proposed(), one.decided("G-1"), two.decided("G-1")]
        await write_each(log, begun)
        group = await log.read(lambda view: view.plan_caps("G-1"))
        assert group is not None and (group.cap_micros, group.started_us) == (500, None)
        await write(log, one.claimed())
        first = await log.read(lambda view: view.plan_caps("G-1"))
        await write(log, two.claimed())
        second = await log.read(lambda view: view.plan_caps("G-1"))
        members = await log.read(lambda view: view.plan_runs("G-1"))
    assert first is not None and first.started_us is not None and first == second
    assert {run.id for run in members} == {"S-aaaaaa", "S-bbbbbb"}


async def test_changes_made_on_approval_apply_to_the_run_config(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    fact = SpawnDecided(pending_id=life.pending_id, decision="approved", changes={"max_cost_micros": 5})
    async with Store.open(tmp_path) as log:
        await write_each(log, [life.proposed(max_cost_micros=10), Event(AVA, fact, run_id=life.run_id)])
        assert '"max_cost_micros":5' in (await run_of(log)).config


async def test_a_result_counts_as_fetched_only_when_ava_returned_it_after_the_run_ended(
    tmp_path: Path,
) -> None:
    life = Life("S-aaaaaa")
    answer = Event(AVA, ToolResult(tool="check_subagent", success=True), run_id=life.run_id)
    async with Store.open(tmp_path) as log:
        await write_each(log, [*life.begun(), answer, *life.tool()])
        assert (await run_of(log)).fetched_us is None
        await write_each(log, [*life.ended(), Event(AVA, ToolCall(tool="check_subagent"), run_id=life.run_id)])
        assert (await run_of(log)).fetched_us is None
        await write(log, answer)
        first = (await run_of(log)).fetched_us
        await write(log, answer)
        assert first is not None
        assert (await run_of(log)).fetched_us == first
        assert (await run_of(log)).tool_calls == 1


@dataclass
class History:
    """A random but possible history of a few runs: what a machine of states would let happen."""

    lives: list[Life]
    events: list[Event] = field(default_factory=list)
    at: dict[str, str] = field(default_factory=dict)
    plans: set[str | None] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)

    def step(self, draw: st.DrawFn) -> None:
        life = draw(st.sampled_from(self.lives))
        state = self.at.get(life.run_id, "new")
        if state == "new":
            self.go(life, "waiting", life.proposed(), life.task(draw(st.text(max_size=5))))
        elif state == "waiting":
            group = draw(st.sampled_from([None, "G-1", "G-2"]))
            plans = plan_events(group, 100) if group is not None and group not in self.plans else ()
            self.plans |= {group}
            self.go(life, "queued", *plans, life.decided(group))
        elif state == "queued":
            self.go(life, "running", life.claimed())
        elif state in ("running", "calling"):
            self.running(draw, life, state)
        else:
            self.events.append(
                Event(run_who(life.run_id), CancelRequested(subagent_id=life.run_id), run_id=life.run_id)
            )

    def running(self, draw: st.DrawFn, life: Life, state: str) -> None:
        micros = draw(st.integers(0, 10**6))
        if state == "calling":
            unknown = draw(st.booleans())
            self.go(life, "running", life.settled(cost=micros, unknown=unknown))
            if draw(st.booleans()):  # taken over by another instance
                life.generation += 1
                self.events.append(life.claimed())
            return
        what = draw(st.sampled_from(["reserve", "tool", "say", "fail", "pause", "ask", "resume", "end"]))
        if what == "reserve":
            self.go(life, "calling", life.reserved(draw(st.integers(1, 9)), micros, draw(st.integers(0, 1000))))
        elif what == "tool":
            self.events += life.tool()
        elif what == "say":
            self.events.append(life.answered())
        elif what == "fail":
            self.events.append(life.failed())
        elif what == "pause":
            self.go(life, "queued", life.paused(active_us=micros))
        elif what == "ask":
            answers = draw(st.sampled_from([[], [life.answered_request(micros)], [life.answered_request(None)]]))
            self.go(life, "queued", life.asked(active_us=micros), *answers)
        elif what == "resume":
            self.go(life, "queued", life.resumed())
        else:
            ending: Ending = draw(st.sampled_from(["success", "timeout", "cancelled", "error"]))
            self.go(life, "ended", *life.ended(ending))
            self.ended.add(life.run_id)

    def go(self, life: Life, state: str, *events: Event) -> None:
        self.at[life.run_id] = state
        self.events += events


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History([Life(f"S-{number:06x}") for number in range(3)])
    for _ in range(draw(st.integers(1, 40))):
        history.step(draw)
    return history


@settings(max_examples=40)
@given(history=histories(), batch=st.integers(1, 7))
def test_incremental_updates_equal_a_rebuild_from_the_log(
    history: History, batch: int, tmp_path_factory: pytest.TempPathFactory
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
                run = await run_of(log, run_id)
                assert (bucket.spent_micros, bucket.held_micros) == (run.cost_micros, 0)
            if history.ended == set(history.at):
                day = await log.read(lambda view: view.bucket("all:2026-01-31"))
                assert day.held_micros == 0

    anyio.run(live)
    assert verify(root).ok
    before = tables(root)
    with tampering(root) as db:
        marks = ", ".join("?" * len(TRANSCRIPT_TYPES))
        db.execute(f"UPDATE events SET content = NULL WHERE type IN ({marks})", (*TRANSCRIPT_TYPES,))
    # The rebuild is of a log without a word of its transcripts, and the same.
    assert {fault.kind for fault in verify(root).faults} <= {"erased"}
    assert tables(root) == before
    with contextlib.closing(backend_of(root).connect()) as own:
        own.begin_bulk()
        rebuild_projections(own)
        own.commit()
    assert tables(root) == before


def tables(root: Path) -> dict[str, list[object]]:
    with tampering(root) as db:
        return {table: db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in PROJECTIONS}


async def test_finds_runs_by_user_state_and_ending(tmp_path: Path) -> None:
    ben, eve = Life("S-aaaaaa"), Life("S-bbbbbb", user="eve")
    async with Store.open(tmp_path) as log:
        await write_each(log, [*ben.whole(), *eve.begun()])

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
