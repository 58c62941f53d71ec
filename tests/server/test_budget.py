"""No call is sent whose worst case does not fit every cap, under any interleaving."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from support.log import plan_events
from support.model_server import Gate, Say
from support.runtime import DONE, PRICED, arrived, hand_over, open_lab

from ava_audit.errors import StaleOwner
from ava_audit.events import (
    AssistantMessage,
    CostReserved,
    CostUpdate,
    Event,
    Fence,
    RunClaimed,
    Settlement,
    SpawnDecided,
    SpawnProposed,
    Usage,
    UserMessage,
    Who,
)
from ava_audit.store.connection import SqliteDatabase
from ava_audit.store.store import Outcome, Store
from ava_audit.units import day_of
from ava_audit.view import View
from ava_server.budget.caps import (
    CapReached,
    CapRequest,
    HeldCall,
    Reservation,
    messages_first,
    reserve,
    settlement_event,
)
from ava_server.budget.user_limits import DayCaps, installation_scope, user_scope
from ava_server.models.base import Bound, MoreUsage
from ava_server.models.prices import Price, UserPrice, cost_micros, find_price, reserve_micros
from ava_server.models.usage_reader import UsageReader, usage_reader
from ava_server.models.wires.chat import ChatWire

PRICE = find_price("far", "model", base_url="https://far.example", overrides={"model": UserPrice(input=1, output=1)})
GROUP = "G-0000001"
RUN_CAP, GROUP_CAP, USER_CAP, ALL_CAP = 1_000, 1_500, 2_200, 3_000
DAYS = DayCaps(USER_CAP, ALL_CAP)
MODEL = "far:model"


def config(cap: int, price: Price = PRICE) -> dict[str, object]:
    return {
        "role": "researcher", "role_source": "built in", "role_text": "", "model": MODEL, "provider": "far",
        "model_id": "model", "price": asdict(price), "timeout_s": 60, "max_cost_micros": cap, "max_tokens": 10**6,
        "max_iterations": 20, "max_tool_calls": 20, "tools": (),
        "reach": "can reach nothing", "estimated_minutes": (1, 2), "input_bytes": 1,
    }  # fmt: skip


@dataclass
class Player:
    """A run that reserves and settles."""

    run_id: str
    user: str
    group: str | None
    turn: int = 0
    held: Reservation | None = None

    @property
    def who(self) -> Who:
        return Who("sess-1", self.run_id, self.user)

    @property
    def fence(self) -> Fence:
        return Fence(self.run_id, 1)

    def begun(self) -> Sequence[Event]:
        pending = "P-" + self.run_id[2:] + "00"
        proposed = SpawnProposed(
            pending_id=pending, subagent_id=self.run_id, digest="d", expires_us=2**50, config=config(RUN_CAP)
        )
        decided = SpawnDecided(pending_id=pending, decision="approved", group_id=self.group)
        claimed = RunClaimed(instance="i", generation=1)
        return [Event(self.who, fact, run_id=self.run_id) for fact in (proposed, decided, claimed)]

    def asked(self, micros: int, wrap: int) -> CapRequest:
        self.turn += 1
        fact = CostReserved(
            turn=self.turn, attempt=1, scopes=(), micros=micros, wrap_micros=wrap, prompt_tokens=5, max_output=5,
            upto_seq=0, request_sha="0" * 64,
        )  # fmt: skip
        return CapRequest(fact, tokens=10, wrap_tokens=10)

    def settled(self, settlement: Settlement, reported: int) -> Event:
        assert self.held is not None
        event = settlement_event(
            self.fence, self.run_id, self.who, MODEL, PRICE, self.held.held, settlement,
            usage=Usage(input_tokens=1, output_tokens=1), reported_micros=reported,
        )  # fmt: skip
        self.held = None
        return event


def players() -> list[Player]:
    return [
        Player("S-000001", "ann", GROUP),
        Player("S-000002", "ann", GROUP),
        Player("S-000003", "ann", None),
        Player("S-000004", "bob", None),
        Player("S-000005", "bob", None),
    ]


async def put(store: Store, *events: Event) -> None:
    await store.do(lambda _view, _now: Outcome(None, events))


async def test_simultaneous_reservations_share_the_remaining_budget(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        everybody = players()
        await put(store, *plan_events(GROUP, GROUP_CAP, user="ann"))
        for player in everybody:
            for event in player.begun():
                await put(store, event)
        answers: list[Reservation | CapReached] = []

        async def ask(player: Player) -> None:
            answers.append(await store.do(reserve(player.fence, player.who, player.asked(700, 100), DAYS)))

        async with anyio.create_task_group() as tasks:
            for player in everybody:
                tasks.start_soon(ask, player)
        # 800 each: one of the group (1,500), two of ann (2,200), three in all (3,000).
        assert sum(isinstance(answer, Reservation) for answer in answers) == 3
        assert {answer.cap for answer in answers if isinstance(answer, CapReached)} <= {
            "group_max_cost",
            "user_daily_cents",
            "installation_daily_cents",
        }


async def test_many_reservations_in_one_commit_wait_for_the_log_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    held, free = threading.Event(), threading.Event()
    many = [Player(f"S-0000{number:02}", f"user-{number % 2}", None) for number in range(10)]

    def counted(db: SqliteDatabase, sql: str, values: Sequence[object] = (), /) -> object:
        if held.is_set() and threading.current_thread().name == "ava-writer" and sql.startswith("SELECT"):
            asked.append(sql)
        return db.cursor().execute(sql, values)

    def hold(_db: object) -> None:
        held.set()
        assert free.wait(20)

    async with Store.open(tmp_path) as store, Store.open(tmp_path) as other:
        for player in many:
            await put(store, *player.begun())
            await store.do(reserve(player.fence, player.who, player.asked(1, 0), DAYS))
            message = UserMessage(text="Go on", kind="message")
            await put(other, Event(player.who, message, run_id=player.run_id))  # what the first one has read is old
        seen = await store.read(View.head)
        monkeypatch.setattr(SqliteDatabase, "execute", counted)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.maintain, hold)
            await anyio.to_thread.run_sync(held.wait)
            for player in many:
                command = reserve(player.fence, player.who, player.asked(1, 0), DAYS)
                tasks.start_soon(store.do, messages_first(player.run_id, seen, command), player.run_id)
            await anyio.lowlevel.checkpoint()
            free.set()
    assert len(asked) <= 6, [sql[-60:] for sql in asked]


async def test_a_daily_cap_of_zero_means_nothing_may_be_spent(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        player = players()[3]
        for event in player.begun():
            await put(store, event)
        answer = await store.do(reserve(player.fence, player.who, player.asked(1, 0), DayCaps(0, 0)))
        assert isinstance(answer, CapReached) and answer.left == 0
        assert answer.status == "cost_exceeded"


async def test_reserves_nothing_more_for_a_run_after_an_overrun(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        player = players()[3]
        for event in player.begun():
            await put(store, event)
        answer = await store.do(reserve(player.fence, player.who, player.asked(10, 0), DAYS))
        assert isinstance(answer, Reservation)
        player.held = answer
        await put(store, player.settled("billed", 11))
        again = await store.do(reserve(player.fence, player.who, player.asked(1, 0), DAYS))
        assert isinstance(again, CapReached) and again.cap == "overrun"
        assert (await store.read(lambda view: view.bucket(player.run_id))).spent_micros == 11, "booked in full"


async def test_an_owner_that_lost_its_run_gets_that_error_instead_of_a_reached_cap(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        player = players()[3]
        for event in player.begun():
            await put(store, event)
        await put(store, Event(player.who, RunClaimed(instance="j", generation=2), run_id=player.run_id))
        before = await store.read(View.head)
        for micros in (1, 10 * RUN_CAP):
            with pytest.raises(StaleOwner):
                await store.do(reserve(player.fence, player.who, player.asked(micros, 0), DAYS))
        assert await store.read(View.head) == before


def test_an_unbilled_call_costs_nothing_and_an_unknown_one_costs_its_reservation() -> None:
    player = players()[3]
    for settlement, cost, tokens in (("not_billed", 0, 0), ("unknown", 500, 10)):
        player.held = Reservation(player.asked(500, 0).fact, 10, 1)
        event = player.settled(settlement, 7)  # type: ignore[arg-type]
        assert event.cost_micros == cost
        assert getattr(event.fact, "tokens", None) == tokens


def test_the_reported_cost_counts_and_its_parts_sum_to_it() -> None:
    usage = Usage(input_tokens=333, output_tokens=77, cache_read_tokens=1_001, thinking_tokens=50)
    player = players()[3]
    event = settlement_event(
        player.fence, player.run_id, player.who, MODEL, PRICE, HeldCall(1, 1, 10**6, 10**6), "billed",
        usage=usage, reported_micros=12_345,
    )  # fmt: skip
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
    bound = Bound(1_000, 200)
    held = HeldCall(1, 1, reserve_micros(SPLIT, bound), 1_200, output_tokens=200)
    player = players()[3]
    event = settlement_event(
        player.fence, player.run_id, player.who, MODEL, SPLIT, held, "billed", usage=OWN, more=more
    )
    fact = event.fact
    assert isinstance(fact, CostUpdate)
    assert event.usage == OWN.model_copy(update=usage)
    assert fact.tokens == event.usage.counted <= held.tokens
    assert event.cost_micros == cost_micros(SPLIT, event.usage)
    assert event.cost_micros <= held.micros and not fact.overrun
    assert sum(fact.cost_by.values()) == event.cost_micros


def test_a_second_reading_lowers_no_overrun() -> None:
    player = players()[3]
    events = [
        settlement_event(
            player.fence, player.run_id, player.who, MODEL, SPLIT, HeldCall(1, 1, 9, 9, output_tokens=4), "billed",
            usage=OWN, more=more,
        )
        for more in (None, MoreUsage(40, 30))
    ]  # fmt: skip
    assert events[0].cost_micros == events[1].cost_micros == cost_micros(SPLIT, OWN)
    assert all(getattr(event.fact, "overrun", False) for event in events)


async def test_a_second_reading_is_booked_and_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = await usage_reader("https://api.x.ai/v1/chat/completions", ChatWire.flavors)

    async def found(_url: str, _flavors: tuple[str, ...]) -> UsageReader | None:
        return reader

    monkeypatch.setattr("ava_server.models.http_model.usage_reader", found)
    usage = {"prompt_tokens": 3_000, "completion_tokens": 200, "completion_tokens_details": {"reasoning_tokens": 60}}
    async with open_lab(tmp_path, [Say(calls=[DONE], usage=usage)], config=PRICED) as lab:
        run_id = await lab.start()
        run = await lab.ended(run_id)
        notes = [note for fact in await lab.facts(run_id, AssistantMessage) for note in fact.notes]
        (settled,) = await lab.facts(run_id, CostUpdate)
    assert run.cost_micros == 3_000 * 3 + 260 * 15
    assert settled.tokens == 3_260
    assert any("60 more output tokens" in note for note in notes)


async def test_a_group_cap_applies_to_all_its_runs_together(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 11_000, "completion_tokens": 900, "total_tokens": 11_900}
    note = Say(calls=[("scratchpad", {"note": "so far"})], usage=usage)

    def step(request: dict[str, object]) -> Say:
        messages = request["messages"]
        assert isinstance(messages, list)
        if "last turn" in str(messages[-1]["content"]):
            return hand_over()
        return Say(calls=[("scratchpad", {"note": f"note {len(messages)}"})], usage=note.usage)

    async with open_lab(tmp_path, step, config=PRICED) as lab:
        made = [await lab.propose(task=task, max_tokens=200_000) for task in ("one", "two")]
        last = "2 subagents together, at most $0.40"
        answer = await lab.approve(*made, last=last, group_max_cost_cents=40)
        assert answer.status == "approved", answer
        ended = [await lab.ended(proposal.subagent_id) for proposal in made]
        assert sum(run.cost_micros for run in ended) <= 400_000
        assert {run.state for run in ended} == {"cost_exceeded"}
        assert any("the plan's cost cap" in str(run.stop_reason) for run in ended)


async def test_every_reservation_names_all_caps_that_cover_it(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", gate=gate)], config=PRICED) as lab:
        run_id = await lab.start()
        await arrived(gate.arrived)
        [reserved] = await lab.facts(run_id, CostReserved)
        run = await lab.run(run_id)
        day = day_of(run.started_us or 0)
        assert set(reserved.scopes) == {run_id, user_scope(run.user_id, day), installation_scope(day)}
        for scope in reserved.scopes:
            bucket = await lab.store.read(lambda view, scope=scope: view.bucket(scope))  # type: ignore[misc]
            assert bucket.held_micros == reserved.micros + reserved.wrap_micros
        gate.released.set()
        await lab.ended(run_id)
