"""What a run of a dead process holds goes back to others, also where only a person may resume the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.budget.spender import GROUP, Spender, config_with_cap
from support.log import plan_events, write, write_each

from ava_audit.events import Event, RunClaimed, SpawnDecided, SpawnProposed
from ava_audit.rows import RunRow
from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.budget.caps import Reservation
from ava_server.budget.user_limits import DayCaps
from ava_server.runs.record.claims import hold_all, interrupt_runs, settle
from ava_server.runs.record.money_holders import start_wait

DAYS = DayCaps(1_000, 1_000)
GONE = frozenset({"i"})
HELD, WRAP = 600, 100


def approved(spender: Spender, step: str | None, *, claimed: bool) -> Sequence[Event]:
    """Return the entries of a run with a cap of 1,000 micro-USD that needs 400 to begin."""
    pending = f"P-{spender.run_id[2:]}00"
    config = {**config_with_cap(1_000), "least_micros": 400}
    facts = [
        SpawnProposed(pending_id=pending, subagent_id=spender.run_id, digest="d", expires_us=2**50, config=config),
        SpawnDecided(pending_id=pending, decision="approved", group_id=GROUP if step else None, step=step),
        *([RunClaimed(instance="i", generation=1)] if claimed else []),
    ]
    return [Event(spender.who, fact, run_id=spender.run_id) for fact in facts]


@asynccontextmanager
async def log_with_a_call_in_flight(root: Path, step: str | None) -> AsyncGenerator[tuple[Store, Spender, Spender]]:
    """Open a log in which a run holds 600 for its call and 100 for its last turn, and another one has not begun."""
    spender, other = Spender("S-000001", "ann", GROUP if step else None), Spender("S-000002", "ann", None)
    async with Store.open(root) as store:
        await write(store, *plan_events(GROUP, 1_500, user="ann"))
        await write_each(store, approved(spender, step, claimed=True))
        await write_each(store, approved(other, None, claimed=False))
        reserved = await store.do(spender.reserve(HELD, wrap=WRAP, days=DAYS))
        assert isinstance(reserved, Reservation)
        yield store, spender, other


async def run_of(store: Store, run_id: str) -> RunRow:
    run = await store.read(lambda view: view.run(run_id))
    assert run is not None
    return run


async def held_and_spent(store: Store, scope: str) -> tuple[int, int]:
    bucket = await store.read(lambda view: view.bucket(scope))
    return bucket.held_micros, bucket.spent_micros


async def wait_of(store: Store, other: Spender) -> object:
    """Return what the run that has not begun waits for; None if it may begin."""
    row = await run_of(store, other.run_id)

    def look(view: View) -> object:
        return start_wait(view, row, DAYS, now_us(), GONE)

    return await store.read(look)


async def test_what_an_interrupted_run_of_a_plan_holds_goes_back(tmp_path: Path) -> None:
    async with log_with_a_call_in_flight(tmp_path, "a") as (store, spender, other):
        assert await wait_of(store, other) is not None
        assert await store.do(interrupt_runs(GROUP, GONE, {}))
        run = await run_of(store, spender.run_id)
        assert (run.state, run.waits_for, run.in_flight, run.wrap_micros) == ("queued", "owner", None, 0)
        assert (run.cost_micros, run.uncosted_micros) == (HELD, HELD)
        assert await held_and_spent(store, GROUP) == (0, HELD)
        assert await held_and_spent(store, spender.run_id) == (0, HELD)
        assert await wait_of(store, other) is None, "400 of the day are left, and it needs no more"
        assert (await run_of(store, GROUP)).cost_micros == HELD
        assert not await store.do(settle(spender.run_id, GONE)), "there is nothing left to settle"


async def test_what_was_settled_before_the_interruption_is_settled_once(tmp_path: Path) -> None:
    async with log_with_a_call_in_flight(tmp_path, "a") as (store, spender, _other):
        assert await store.do(settle(spender.run_id, GONE))
        assert await store.do(interrupt_runs(GROUP, GONE, {}))
        assert not await store.do(interrupt_runs(GROUP, GONE, {}))
        assert not await store.do(settle(spender.run_id, GONE))
        assert await held_and_spent(store, GROUP) == (0, HELD)
        entries = await store.read(lambda view: view.entries(spender.run_id, 0, ("CostUpdate", "MoneyAwaited")))
        assert [entry.type for entry in entries] == ["CostUpdate", "MoneyAwaited"]


@pytest.mark.parametrize("step", ["a", None])
async def test_what_a_run_of_a_restored_log_holds_goes_back(tmp_path: Path, step: str | None) -> None:
    async with log_with_a_call_in_flight(tmp_path, step) as (store, spender, other):
        assert spender.run_id in [row.id for row in await store.do(hold_all)]
        run = await run_of(store, spender.run_id)
        assert (run.waits_for, run.in_flight, run.wrap_micros, run.cost_micros) == ("resume", None, 0, HELD)
        assert await held_and_spent(store, spender.run_id) == (0, HELD)
        assert (await run_of(store, other.run_id)).waits_for == "resume"
