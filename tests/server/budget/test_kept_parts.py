"""Money of a plan that is kept for later steps: theirs once they spend it, and never a run's own last turn."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from support.budget.spender import GROUP, Spender, config_with_cap
from support.log import plan_events, write, write_each

from ava_audit.events import Event, RunClaimed, SpawnDecided, SpawnProposed, StepChanged
from ava_audit.store.store import Store
from ava_server.budget.caps import CapAnswer, CapReached, Reservation, reserve_in_line
from ava_server.budget.money_line import MoneyWait, Patience
from ava_server.budget.user_limits import DayCaps

PLAN_CAP = 1_000
DAYS = DayCaps(10**9, 10**9)


@asynccontextmanager
async def open_plan(root: Path, **leaves: int) -> AsyncGenerator[tuple[Store, Spender, Spender]]:
    """Open a log with a plan at work: a run over a list that leaves so much to later steps, and one of `write`."""
    reader, writer = Spender("S-000001", "ann", GROUP), Spender("S-000002", "ann", GROUP)
    async with Store.open(root) as store:
        await write(store, *plan_events(GROUP, PLAN_CAP, user="ann"))
        for spender, step, left in ((reader, "read", leaves), (writer, "write", {})):
            pending = f"P-{spender.run_id[2:]}00"
            config = {**config_with_cap(10 * PLAN_CAP), "leaves": left}
            proposed = SpawnProposed(
                pending_id=pending, subagent_id=spender.run_id, digest="d", expires_us=2**50, config=config
            )
            decided = SpawnDecided(pending_id=pending, decision="approved", group_id=GROUP, step=step)
            facts = (proposed, decided, RunClaimed(instance="i", generation=1))
            await write_each(store, [Event(spender.who, fact, run_id=spender.run_id) for fact in facts])
        yield store, reader, writer


async def reserved(store: Store, spender: Spender, micros: int, wrap: int = 0) -> Reservation | CapReached:
    answer = await store.do(spender.reserve(micros, wrap=wrap, days=DAYS))
    assert isinstance(answer, Reservation | CapReached)
    return answer


async def spend(store: Store, spender: Spender, micros: int, wrap: int = 0) -> None:
    """Reserve a call and settle it with its whole cost."""
    answer = await reserved(store, spender, micros, wrap)
    assert isinstance(answer, Reservation), answer
    spender.held = answer
    await write(store, spender.settle("billed", micros))


async def test_a_run_over_a_list_leaves_what_is_kept(tmp_path: Path) -> None:
    async with open_plan(tmp_path, write=300) as (store, reader, _writer):
        assert await reserved(store, reader, 701) == CapReached("group_max_cost", 700)
        assert isinstance(await reserved(store, reader, 700), Reservation)


async def test_what_a_later_step_has_spent_or_holds_is_not_kept_beside_that(tmp_path: Path) -> None:
    async with open_plan(tmp_path, write=300) as (store, reader, writer):
        await spend(store, writer, 100, wrap=150)  # 50 are still kept
        assert await reserved(store, reader, 701) == CapReached("group_max_cost", 700)
        assert isinstance(await reserved(store, reader, 700), Reservation)


async def test_nothing_is_kept_for_a_step_that_is_over(tmp_path: Path) -> None:
    async with open_plan(tmp_path, write=300, check=200) as (store, reader, _writer):
        assert await reserved(store, reader, 501) == CapReached("group_max_cost", 500)
        skipped = StepChanged(step="write", state="skipped", why="not started")
        await write(store, Event(reader.who, skipped, run_id=GROUP))
        assert await reserved(store, reader, 801) == CapReached("group_max_cost", 800)
        assert isinstance(await reserved(store, reader, 800), Reservation)


async def test_what_is_kept_does_not_take_the_last_turn_that_a_run_holds(tmp_path: Path) -> None:
    """`write` takes more than was kept for it, and so what is kept for `check`."""
    async with open_plan(tmp_path, write=200, check=100) as (store, reader, writer):
        await spend(store, reader, 500, wrap=100)
        await spend(store, writer, 400)
        assert await reserved(store, reader, 101) == CapReached("group_max_cost", 100)
        assert isinstance(await reserved(store, reader, 100), Reservation)


async def ask_in_line(store: Store, spender: Spender, micros: int, days: DayCaps) -> CapAnswer:
    patience = Patience(least=micros)
    return await store.do(reserve_in_line(spender.fence, spender.who, spender.request(micros), days, patience))


async def test_a_younger_run_leaves_what_an_older_one_needs_beside_what_that_keeps(tmp_path: Path) -> None:
    """The older one waits in another scope, the user's day, where there is room by now."""
    days = DayCaps(1_200, 10**9)
    async with open_plan(tmp_path, check=300) as (store, reader, writer):
        other = Spender("S-000003", "ann", None)
        await write_each(store, other.first_events())
        held = await store.do(other.reserve(800, days=days))
        assert isinstance(held, Reservation)
        other.held = held
        assert isinstance(await ask_in_line(store, reader, 500, days), MoneyWait)
        await write(store, other.settle("billed", 1))
        assert isinstance(await ask_in_line(store, writer, 450, days), MoneyWait), "1,000 without 300 has no 950"
        assert isinstance(await ask_in_line(store, writer, 200, days), Reservation)
        assert isinstance(await ask_in_line(store, reader, 500, days), Reservation)
