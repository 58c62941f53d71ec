"""Several calls of a run in flight at once: no schedule of them spends past a cap, and none leaves anything held."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from support.log import plan_events
from support.sample import sample

from ava_audit.events import (
    CostReserved,
    CostUpdate,
    Event,
    Fence,
    RunClaimed,
    RunEnded,
    Settlement,
    SpawnDecided,
    SpawnProposed,
    Usage,
    Who,
)
from ava_audit.rows import RunRow
from ava_audit.store.store import Outcome, Store
from ava_audit.units import day_of
from ava_audit.view import Command, View
from ava_server.budget.caps import CapRequest, Reservation, reserve, settle_unknown, settlement_event
from ava_server.budget.user_limits import DayCaps, installation_scope, user_scope
from ava_server.core.ids import IN_PROCESS
from ava_server.models.prices import UserPrice, find_price
from ava_server.runs.history import History

PRICE = find_price("far", "model", base_url="https://far.example", overrides={"model": UserPrice(input=1, output=1)})
SEARCH = {
    "model": "anthropic:searcher", "base_url": "", "price": asdict(PRICE), "fee": 0, "prompt_tokens": 5,
    "output_tokens": 5, "results": 5,
}  # fmt: skip
GROUP = "G-0000001"
RUN_CAP, GROUP_CAP, USER_CAP, ALL_CAP, TOKENS = 1_000, 1_500, 2_200, 3_000, 400
DAYS = DayCaps(USER_CAP, ALL_CAP)
STEPS = 60


async def test_no_schedule_of_simultaneous_calls_spends_past_a_cap(tmp_path: Path) -> None:
    """A thousand schedules with all tests, a few of them in the gate; each ends with nothing held."""
    for seed in sample(range(1_000), 6):
        chance = random.Random(seed)
        runs = [Run("S-000001", "ann", GROUP), Run("S-000002", "ann", GROUP), Run("S-000003", "ann")]
        runs.append(Run("S-000004", "bob"))
        root = tmp_path / str(seed)
        root.mkdir()
        async with Store.open(root) as store:
            await write(store, *plan_events(GROUP, GROUP_CAP), *(event for run in runs for event in run.begun()))
            await write(store, *(run.claim() for run in runs))
            beyond = sum((await play(store, runs, chance)).values())
            days = await store.do(_end(runs))
            caps = {
                scope: cap
                for day in days
                for scope, cap in (
                    (installation_scope(day), ALL_CAP),
                    (user_scope("ann", day), USER_CAP),
                    (user_scope("bob", day), USER_CAP),
                )
            }
            sums = await store.read(lambda view, caps=caps: {scope: view.bucket(scope) for scope in (*caps, GROUP)})  # type: ignore[misc]
            for scope, bucket in sums.items():
                assert bucket.held_micros == 0, (seed, scope)
                assert bucket.spent_micros <= caps.get(scope, GROUP_CAP) + beyond, (seed, scope)
            for run in runs:
                over = await store.read(lambda view, run=run: (row(view, run), view.bucket(run.run_id)))  # type: ignore[misc]
                assert (over[0].in_flight, over[0].wrap_micros, over[1].held_micros) == (None, 0, 0), seed


def _end(runs: list[Run]) -> Command[set[str]]:
    """Settle what is open, and end every run; return the days on which anything was reserved."""

    def command(view: View, now_us: int) -> Outcome[set[str]]:
        events: list[Event] = []
        for run in runs:
            settled = settle_unknown(row(view, run), run.who, run.fence)
            assert len(settled) == len(run.open)
            ended = RunEnded(status="cancelled", stop_reason="over", active_us=0)
            events += [*settled, Event(run.who, ended, run_id=run.run_id, fence=run.fence)]
        first = next(iter(view.select("SELECT min(ts_us) FROM events")))[0]
        return Outcome({day_of(first), day_of(now_us)}, tuple(events))

    return command


async def test_tokens_of_calls_in_flight_count_before_they_are_known(tmp_path: Path) -> None:
    run = Run("S-000001", "ann")
    chance = random.Random(1)
    async with Store.open(tmp_path) as store:
        await write(store, *run.begun())
        await write(store, run.claim())
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
    run = Run("S-000001", "ann", runner="acp:scripted")
    asked = run.asks(random.Random(1)).fact.model_copy(update={"micros": 30, "wrap_micros": 20})
    facts = (asked, asked.model_copy(update={"attempt": 2, "tool_call": "ava-1-1", "micros": 40}))
    async with Store.open(tmp_path) as store:
        await write(store, *run.begun())
        await write(store, run.claim())
        for fact in facts:
            answer = await store.do(reserve(run.fence, run.who, CapRequest(fact, 10, 0), DAYS))
            assert isinstance(answer, Reservation)
        known = await store.read(lambda view: row(view, run))
        assert len(known.calls_in_flight) == 2
        for purpose in (None, "search", "retries", "plan"):
            lost = settle_unknown(known, run.who, purpose=purpose)
            assert [(event.model, *event.fact.cost_by) for event in lost if isinstance(event.fact, CostUpdate)] == [
                ("far:model", "uncosted"), ("anthropic:searcher", "search"),
            ]  # fmt: skip
        [alone] = settle_unknown(known, run.who, run.fence, only=(1, 2))
        await write(store, alone)
        known = await store.read(lambda view: row(view, run))
        assert [call["attempt"] for call in known.calls_in_flight] == [1] and known.cost_micros == 40


def test_only_its_own_settlement_ends_a_search() -> None:
    history = History("S-000001")
    chance = random.Random(1)
    asked = Run("S-000001", "ann").asks(chance).fact
    history.add(1, asked)
    history.add(2, asked.model_copy(update={"attempt": 2, "tool_call": "ava-1-1"}))
    for seq, attempt in ((3, 1), (4, 2)):
        assert history.search is not None
        settled = CostUpdate(turn=1, attempt=attempt, settlement="billed", tokens=1, cost_cents=1, reserved_micros=1)
        history.add(seq, settled)
    assert history.search is None


@dataclass
class Run:
    """A run whose agent calls the model as it likes."""

    run_id: str
    user: str
    group: str | None = None
    runner: str = IN_PROCESS
    generation: int = 0
    turn: int = 0
    open: list[Reservation] = field(default_factory=list[Reservation])

    @property
    def who(self) -> Who:
        return Who("sess-1", self.run_id, self.user)

    @property
    def fence(self) -> Fence:
        return Fence(self.run_id, self.generation)

    def begun(self) -> tuple[Event, ...]:
        pending = f"P-{self.run_id[2:]}00"
        config = {
            "role": "coder", "role_source": "built in", "role_text": "", "model": "far:model", "provider": "far",
            "model_id": "model", "price": asdict(PRICE), "timeout_s": 60, "max_cost_micros": RUN_CAP,
            "max_tokens": TOKENS, "max_iterations": 99, "max_tool_calls": 99, "tools": (), "reach": "nothing",
            "estimated_minutes": (1, 2), "input_bytes": 1, "runner": self.runner, "search_call": SEARCH,
        }  # fmt: skip
        facts = (
            SpawnProposed(pending_id=pending, subagent_id=self.run_id, digest="d", expires_us=2**50, config=config),
            SpawnDecided(pending_id=pending, decision="approved", group_id=self.group),
        )
        return tuple(Event(self.who, fact, run_id=self.run_id) for fact in facts)

    def claim(self) -> Event:
        self.generation += 1
        return Event(self.who, RunClaimed(instance="i", generation=self.generation), run_id=self.run_id)

    def asks(self, chance: random.Random) -> CapRequest:
        self.turn += 1
        tokens = chance.randint(2, 60)
        fact = CostReserved(
            turn=self.turn, attempt=1, scopes=(), micros=chance.choice((0, 30, 120, 400)),
            wrap_micros=chance.choice((0, 20, 90)), prompt_tokens=tokens - 1, max_output=1, upto_seq=0, beside=True,
            request_sha="0" * 64,
        )  # fmt: skip
        return CapRequest(fact, tokens=tokens, wrap_tokens=chance.randint(0, 20))

    def settles(self, chance: random.Random) -> Event:
        """Settle some call: for less than was reserved, for nothing, for all of it, or for more than was possible."""
        reserved = self.open.pop(chance.randrange(len(self.open)))
        settlement: Settlement = chance.choice(("billed", "billed", "billed", "not_billed", "unknown"))
        share = chance.choice((0.0, 0.3, 1.0, 1.0, 1.5))
        usage = Usage(input_tokens=chance.randint(0, reserved.tokens), output_tokens=0)
        return settlement_event(
            self.fence, self.run_id, self.who, "far:model", PRICE, reserved.held, settlement,
            usage=chance.choice((usage, usage, None)), reported_micros=round(reserved.fact.micros * share) or None,
        )  # fmt: skip


async def write(store: Store, *events: Event) -> None:
    await store.do(lambda _view, _now: Outcome(None, events))


def row(view: View, run: Run) -> RunRow:
    found = view.run(run.run_id)
    assert found is not None
    return found


async def play(store: Store, runs: list[Run], chance: random.Random) -> dict[str, int]:
    """Play a schedule; return what providers charged beyond their own limits, by run."""
    beyond = {run.run_id: 0 for run in runs}
    for _step in range(STEPS):
        run = chance.choice(runs)
        what = chance.random()
        command: Command[Any]
        if what < 0.55:
            command = reserve(run.fence, run.who, run.asks(chance), DAYS)
        elif what < 0.95:
            settled = run.settles(chance) if run.open else None
            command = _events(() if settled is None else (settled,))
            if settled is not None and isinstance(settled.fact, CostUpdate):
                beyond[run.run_id] += max(0, (settled.cost_micros or 0) - settled.fact.reserved_micros)
        else:  # its owner dies: another one settles what nobody knows, and goes on
            command = _taken_over(run, len(run.open), run.claim())
            run.open.clear()
        answer = await store.do(_checked(command, runs, beyond))
        if isinstance(answer, Reservation):
            run.open.append(answer)
    return beyond


def _events(events: tuple[Event, ...]) -> Command[None]:
    return lambda _view, _now: Outcome(None, events)


def _taken_over(run: Run, lost: int, claim: Event) -> Command[None]:
    def command(view: View, _now_us: int) -> Outcome[None]:
        known = row(view, run)
        assert len(known.calls_in_flight) == lost
        return Outcome(None, (*settle_unknown(known, run.who), claim))

    return command


def _checked(command: Command[Any], runs: list[Run], beyond: dict[str, int]) -> Command[Any]:
    """Before a command, nothing is committed past a cap but what a provider charged beyond its own limit."""

    def checking(view: View, now_us: int) -> Outcome[Any]:
        for run in runs:
            assert view.bucket(run.run_id).committed <= RUN_CAP + beyond[run.run_id]
            known = row(view, run)
            held = sum(int(call["micros"]) for call in known.calls_in_flight) + known.wrap_micros
            assert view.bucket(run.run_id).held_micros == held
        group = sum(beyond[run.run_id] for run in runs if run.group)
        assert view.bucket(GROUP).committed <= GROUP_CAP + group
        return command(view, now_us)

    return checking
