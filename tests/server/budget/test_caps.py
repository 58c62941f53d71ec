"""No call is sent whose worst case does not fit every cap, under any interleaving."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from support.budget.spender import PRICE, RUN_CAP, Spender, one_spender, open_log_with, spenders
from support.log import write

from ava_audit.errors import StaleOwner
from ava_audit.events import CostUpdate, Event, RunClaimed, Usage, UserMessage
from ava_audit.store.connection import SqliteDatabase
from ava_audit.store.store import Store
from ava_audit.view import View
from ava_server.budget.caps import CapReached, HeldCall, Reservation, RunStopped, messages_first
from ava_server.budget.user_limits import DayCaps
from ava_server.models.base import Bound, MoreUsage
from ava_server.models.prices import Price, cost_micros, reserve_micros


async def test_simultaneous_reservations_share_the_remaining_budget(tmp_path: Path) -> None:
    everybody = spenders()
    async with open_log_with(tmp_path, *everybody) as store:
        answers: list[Reservation | CapReached | RunStopped] = []

        async def ask(spender: Spender) -> None:
            answers.append(await store.do(spender.reserve(700, wrap=100)))

        async with anyio.create_task_group() as tasks:
            for spender in everybody:
                tasks.start_soon(ask, spender)
    # 800 each: one of the plan (1,500), two of ann (2,200), three in all (3,000).
    assert sum(isinstance(answer, Reservation) for answer in answers) == 3
    caps = {answer.cap for answer in answers if isinstance(answer, CapReached)}
    assert caps <= {"group_max_cost", "user_daily_cents", "installation_daily_cents"}


async def test_many_reservations_in_one_commit_wait_for_the_log_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[str] = []
    held, free = threading.Event(), threading.Event()
    many = [Spender(f"S-0000{number:02}", f"user-{number % 2}", None) for number in range(10)]

    def count_query(db: SqliteDatabase, sql: str, values: Sequence[object] = (), /) -> object:
        if held.is_set() and threading.current_thread().name == "ava-writer" and sql.startswith("SELECT"):
            queries.append(sql)
        return db.cursor().execute(sql, values)

    def hold(_db: object) -> None:
        held.set()
        assert free.wait(20)

    async with open_log_with(tmp_path, *many) as store, Store.open(tmp_path) as other:
        for spender in many:
            await store.do(spender.reserve(1))
            message = UserMessage(text="Go on", kind="message")
            await write(other, Event(spender.who, message, run_id=spender.run_id))  # what the first one has read is old
        seen = await store.read(View.head)
        monkeypatch.setattr(SqliteDatabase, "execute", count_query)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.maintain, hold)
            await anyio.to_thread.run_sync(held.wait)
            for spender in many:
                command = messages_first(spender.run_id, seen, spender.reserve(1))
                tasks.start_soon(store.do, command, spender.run_id)
            await anyio.lowlevel.checkpoint()
            free.set()
    assert len(queries) <= 6, [sql[-60:] for sql in queries]


async def test_a_daily_cap_of_zero_means_nothing_may_be_spent(tmp_path: Path) -> None:
    spender = one_spender()
    async with open_log_with(tmp_path, spender) as store:
        answer = await store.do(spender.reserve(1, days=DayCaps(0, 0)))
    assert isinstance(answer, CapReached) and answer.left == 0
    assert answer.status == "cost_exceeded"


async def test_reserves_nothing_more_for_a_run_after_an_overrun(tmp_path: Path) -> None:
    spender = one_spender()
    async with open_log_with(tmp_path, spender) as store:
        answer = await store.do(spender.reserve(10))
        assert isinstance(answer, Reservation)
        spender.held = answer
        await write(store, spender.settle("billed", 11))
        again = await store.do(spender.reserve(1))
        assert isinstance(again, CapReached) and again.cap == "overrun"
        assert (await store.read(lambda view: view.bucket(spender.run_id))).spent_micros == 11, "booked in full"


async def test_an_owner_that_lost_its_run_gets_that_error_instead_of_a_reached_cap(tmp_path: Path) -> None:
    spender = one_spender()
    async with open_log_with(tmp_path, spender) as store:
        await write(store, Event(spender.who, RunClaimed(instance="j", generation=2), run_id=spender.run_id))
        before = await store.read(View.head)
        for micros in (1, 10 * RUN_CAP):
            with pytest.raises(StaleOwner):
                await store.do(spender.reserve(micros))
        assert await store.read(View.head) == before


def test_an_unbilled_call_costs_nothing_and_an_unknown_one_costs_its_reservation() -> None:
    spender = one_spender()
    for settlement, cost, tokens in (("not_billed", 0, 0), ("unknown", 500, 10)):
        spender.held = Reservation(spender.request(500).fact, 10, 1)
        event = spender.settle(settlement, 7)  # type: ignore[arg-type]
        assert event.cost_micros == cost
        assert getattr(event.fact, "tokens", None) == tokens


def test_the_reported_cost_counts_and_its_parts_sum_to_it() -> None:
    usage = Usage(input_tokens=333, output_tokens=77, cache_read_tokens=1_001, thinking_tokens=50)
    event = one_spender().book(HeldCall(1, 1, 10**6, 10**6), PRICE, usage, reported_micros=12_345)
    assert event.cost_micros == 12_345
    assert sum(getattr(event.fact, "cost_by", {}).values()) == 12_345


SPLIT = Price(input=1_000, output=5_000, cache_read=100, cache_write=1_250)
OWN = Usage(input_tokens=100, cache_read_tokens=50, output_tokens=20)


@pytest.mark.parametrize(
    ("more", "usage"),
    [
        (MoreUsage(0, 30), {"output_tokens": 50}),
        (MoreUsage(40, 0), {"cache_write_tokens": 40}),  # the dearest class of the prompt
        (MoreUsage(40, 30), {"cache_write_tokens": 40, "output_tokens": 50}),
        (MoreUsage(10**9, 10**9), {"cache_write_tokens": 850, "output_tokens": 200}),  # no more than was reserved
    ],
)
def test_what_a_second_reading_has_more_is_booked_within_the_reservation(
    more: MoreUsage, usage: dict[str, int]
) -> None:
    held = HeldCall(1, 1, reserve_micros(SPLIT, Bound(1_000, 200)), 1_200, output_tokens=200)
    event = one_spender().book(held, SPLIT, OWN, more=more)
    fact = event.fact
    assert isinstance(fact, CostUpdate)
    assert event.usage == OWN.model_copy(update=usage)
    assert fact.tokens == event.usage.counted <= held.tokens
    assert event.cost_micros == cost_micros(SPLIT, event.usage)
    assert event.cost_micros <= held.micros and not fact.overrun
    assert sum(fact.cost_by.values()) == event.cost_micros


def test_a_second_reading_lowers_no_overrun() -> None:
    held = HeldCall(1, 1, 9, 9, output_tokens=4)
    events = [one_spender().book(held, SPLIT, OWN, more=more) for more in (None, MoreUsage(40, 30))]
    assert events[0].cost_micros == events[1].cost_micros == cost_micros(SPLIT, OWN)
    assert all(getattr(event.fact, "overrun", False) for event in events)
