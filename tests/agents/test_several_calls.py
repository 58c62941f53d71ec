"""Several calls of a run in flight at once: no schedule of them spends past a cap, and none leaves anything held."""

from __future__ import annotations

import random
from pathlib import Path

from support.agents.calls_in_flight import (
    ALL_CAP,
    DAYS,
    PLAN,
    PLAN_CAP,
    USER_CAP,
    AgentRun,
    end_all,
    play_schedule,
    row_of,
    write_events,
)
from support.log import plan_events
from support.sample import sample

from ava_audit.events import CostUpdate
from ava_audit.store.store import Store
from ava_server.budget.caps import CapRequest, Reservation, reserve, settle_unknown
from ava_server.budget.user_limits import installation_scope, user_scope
from ava_server.runs.record.history import History


async def test_no_schedule_of_simultaneous_calls_spends_past_a_cap(tmp_path: Path) -> None:
    """A thousand schedules with all tests, a few of them in the gate; each ends with nothing held."""
    for seed in sample(range(1_000), 6):
        chance = random.Random(seed)
        runs = [AgentRun("S-000001", "ann", PLAN), AgentRun("S-000002", "ann", PLAN), AgentRun("S-000003", "ann")]
        runs.append(AgentRun("S-000004", "bob"))
        root = tmp_path / str(seed)
        root.mkdir()
        async with Store.open(root) as store:
            await write_events(store, *plan_events(PLAN, PLAN_CAP), *(event for run in runs for event in run.begun()))
            await write_events(store, *(run.claim() for run in runs))
            beyond = sum((await play_schedule(store, runs, chance)).values())
            days = await store.do(end_all(runs))
            caps = {
                scope: cap
                for day in days
                for scope, cap in (
                    (installation_scope(day), ALL_CAP),
                    (user_scope("ann", day), USER_CAP),
                    (user_scope("bob", day), USER_CAP),
                )
            }
            sums = await store.read(lambda view, caps=caps: {scope: view.bucket(scope) for scope in (*caps, PLAN)})  # type: ignore[misc]
            for scope, bucket in sums.items():
                assert bucket.held_micros == 0, (seed, scope)
                assert bucket.spent_micros <= caps.get(scope, PLAN_CAP) + beyond, (seed, scope)
            for run in runs:
                over = await store.read(lambda view, run=run: (row_of(view, run), view.bucket(run.run_id)))  # type: ignore[misc]
                assert (over[0].in_flight, over[0].wrap_micros, over[1].held_micros) == (None, 0, 0), seed


async def test_tokens_of_calls_in_flight_count_before_they_are_known(tmp_path: Path) -> None:
    run = AgentRun("S-000001", "ann")
    chance = random.Random(1)
    async with Store.open(tmp_path) as store:
        await write_events(store, *run.begun())
        await write_events(store, run.claim())
        granted = 0
        for _call in range(30):
            asked = run.asks(chance)
            asked = CapRequest(
                asked.fact.model_copy(update={"micros": 0, "wrap_micros": 0, "prompt_tokens": 49, "max_output": 1}),
                50,
                10,
            )
            answer = await store.do(reserve(run.fence, run.who, asked, DAYS))
            granted += isinstance(answer, Reservation)
        assert granted == 7  # 7 × 50 and a last turn of 10 fit into 400, and an eighth does not


async def test_each_call_that_is_lost_tells_its_own_purpose_and_one_can_be_settled_alone(tmp_path: Path) -> None:
    """Of another agent: what it asks of its model, and a web search by a model provider beside it."""
    run = AgentRun("S-000001", "ann", runner="acp:scripted")
    asked = run.asks(random.Random(1)).fact.model_copy(update={"micros": 30, "wrap_micros": 20})
    facts = (asked, asked.model_copy(update={"attempt": 2, "tool_call": "ava-1-1", "micros": 40}))
    async with Store.open(tmp_path) as store:
        await write_events(store, *run.begun())
        await write_events(store, run.claim())
        for fact in facts:
            answer = await store.do(reserve(run.fence, run.who, CapRequest(fact, 10, 0), DAYS))
            assert isinstance(answer, Reservation)
        known = await store.read(lambda view: row_of(view, run))
        assert len(known.calls_in_flight) == 2
        for purpose in (None, "search", "retries", "plan"):
            lost = settle_unknown(known, run.who, purpose=purpose)
            assert [(event.model, *event.fact.cost_by) for event in lost if isinstance(event.fact, CostUpdate)] == [
                ("far:model", "uncosted"), ("anthropic:searcher", "search"),
            ]  # fmt: skip
        [alone] = settle_unknown(known, run.who, run.fence, only=(1, 2))
        await write_events(store, alone)
        known = await store.read(lambda view: row_of(view, run))
        assert [call["attempt"] for call in known.calls_in_flight] == [1] and known.cost_micros == 40


def test_only_its_own_settlement_ends_a_search() -> None:
    history = History("S-000001")
    chance = random.Random(1)
    asked = AgentRun("S-000001", "ann").asks(chance).fact
    history.add(1, asked)
    history.add(2, asked.model_copy(update={"attempt": 2, "tool_call": "ava-1-1"}))
    for seq, attempt in ((3, 1), (4, 2)):
        assert history.search is not None
        settled = CostUpdate(turn=1, attempt=attempt, settlement="billed", tokens=1, cost_cents=1, reserved_micros=1)
        history.add(seq, settled)
    assert history.search is None
