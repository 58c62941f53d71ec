"""The answer to a call that was booked as unknown meanwhile: each call is booked once, and all figures agree."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from support.budget.spender import GROUP, PRICE, Spender, config_with_cap
from support.log import plan_events, write, write_each

from ava_audit.errors import StaleOwner
from ava_audit.events import (
    AssistantMessage,
    CostReserved,
    CostUpdate,
    Event,
    RunClaimed,
    RunResumed,
    Settlement,
    SpawnDecided,
    SpawnProposed,
    ToolCall,
    Usage,
)
from ava_audit.rows import QUEUED, RUNNING, RunRow
from ava_audit.store.store import Store
from ava_audit.totals import spending
from ava_audit.units import DAY_US, now_us
from ava_audit.verify import verify
from ava_audit.view import View
from ava_server.budget.caps import CapReached, CapRequest, Purpose, Reservation, in_flight_purpose, reserve
from ava_server.budget.user_limits import DayCaps, Slots
from ava_server.models.base import Completion
from ava_server.render.entry_lines import entry_words
from ava_server.render.turns import turns_of
from ava_server.runs.asking.extension import Shortage, _per_turn
from ava_server.runs.journal.log import RunLog
from ava_server.runs.record.claims import claim, interrupt_runs, settle
from ava_server.runs.record.costs import fold_costs
from ava_server.runs.record.endings import cancel, end_for_owner
from ava_server.runs.record.history import History
from ava_server.runs.record.result import RunResult
from ava_server.web import timeline

DAYS = DayCaps(10**9, 10**9)
FIRST, SECOND = "first", "second"
GONE = frozenset({FIRST, SECOND})
SLOTS = Slots(100, 100)
STEP_RUN = Spender("S-000001", "ann", GROUP)
LONE_RUN = Spender("S-000004", "bob", None)
RESERVED_TOKENS, USED_TOKENS = 10, 2

SPENDERS = (STEP_RUN, Spender("S-000002", "ann", GROUP), LONE_RUN)
SCHEDULES, STEPS = 25, 60
HAPPENINGS = (
    "in time", "late", "stale", "stale overrun", "settled by others", "interrupted", "taken over", "cancelled",
)  # fmt: skip
"""What has to happen in these schedules, five times at least."""

Key = tuple[str, int, int]
"""A call: its run, turn and attempt."""


@dataclass
class Owner:
    """A process that works on a run: its log, and its calls in flight."""

    spender: Spender
    log: RunLog
    held: list[Reservation] = field(default_factory=list[Reservation])

    async def reserve(
        self, micros: int, *, wrap: int = 0, beside: bool = False, search: bool = False, days: DayCaps = DAYS
    ) -> Reservation | CapReached:
        history = self.log.history
        turn, attempt = history.turn + 1, 1
        if search:
            turn, attempt = history.turn, history.attempt + 1
        fact = CostReserved(
            turn=turn, attempt=attempt, scopes=(), micros=micros, wrap_micros=wrap, prompt_tokens=5, max_output=5,
            upto_seq=0, request_sha="0" * 64, beside=beside or None, tool_call="call-1" if search else None,
        )  # fmt: skip

        def fold(answer: object) -> None:
            if isinstance(answer, Reservation):
                history.add(answer.seq, answer.fact)

        request = CapRequest(fact, tokens=RESERVED_TOKENS, wrap_tokens=0)
        answer = await self.log.do(reserve(self.log.fence, self.log.who, request, days), fold)
        assert isinstance(answer, Reservation | CapReached)
        if isinstance(answer, Reservation):
            self.held.append(answer)
        return answer

    async def answer(self, cost: int, settlement: Settlement = "billed", *, call: int = 0) -> None:
        """Settle one of its calls. Raises StaleOwner: it has lost the run."""
        reserved = self.held.pop(call)
        completion = None
        if settlement == "billed":
            completion = Completion("so", (), {}, Usage(input_tokens=1, output_tokens=1), cost_micros=cost)
        purpose: Purpose | None = None if reserved.fact.tool_call is None else "search"
        event = self.log.settlement(reserved.held, settlement, 1, completion, "far:model", PRICE, purpose)
        events = [event]
        if completion is not None and purpose is None:
            said = AssistantMessage(text="so", turn=reserved.fact.turn, attempt=reserved.fact.attempt)
            events.append(self.log.event(said))
        await self.log.append(events)


async def owner_of(store: Store, spender: Spender) -> Owner:
    """Return the owner that a run has now, with the history as it reads it."""
    run = await run_of(store, spender.run_id)
    history = History(run.id)
    history.add_all(await store.read(lambda view: view.entries(run.id)))
    return Owner(spender, RunLog(store, run, spender.who, history))


async def run_of(store: Store, run_id: str) -> RunRow:
    run = await store.read(lambda view: view.run(run_id))
    assert run is not None
    return run


@asynccontextmanager
async def open_log(root: Path, *spenders: Spender, cap: int = 1_000) -> AsyncGenerator[Store]:
    """Open a log with a plan of 1,500 micro-USD, and with these runs, claimed by the first process."""
    async with Store.open(root) as store:
        await write(store, *plan_events(GROUP, 1_500, user="ann"))
        for spender in spenders:
            pending = f"P-{spender.run_id[2:]}00"
            config = config_with_cap(cap)
            step = None if spender.group is None else f"step-{spender.run_id[2:]}"
            facts = (
                SpawnProposed(
                    pending_id=pending, subagent_id=spender.run_id, digest="d", expires_us=2**50, config=config
                ),
                SpawnDecided(pending_id=pending, decision="approved", group_id=spender.group, step=step),
                RunClaimed(instance=FIRST, generation=1),
            )
            await write_each(store, [Event(spender.who, fact, run_id=spender.run_id) for fact in facts])
        yield store


async def take_over(store: Store, spender: Spender) -> Owner:
    """Have the second process take a run over from the first one, and return it."""
    answer = await store.do(claim(spender.run_id, SECOND, spender.who, frozenset({FIRST}), SLOTS))
    assert isinstance(answer, RunRow), answer
    return await owner_of(store, spender)


async def cancel_for_owner(store: Store, spender: Spender) -> None:
    """Cancel a run, and end it in place of its owner."""
    await store.do(cancel(spender.run_id, spender.who, "enough", "person"))
    ended = RunResult("cancelled", "its owner did not answer", reason="enough")
    assert await store.do(end_for_owner(spender.run_id, SECOND, ended, "cancel unanswered"))


async def check_books(store: Store, costs: dict[Key, int], unknown: set[Key], in_flight: Collection[Key] = ()) -> None:
    """Assert that every figure of the log is the sum of what the calls cost, which are not in flight."""
    runs = [row for row in await store.read(lambda view: view.runs(limit=-1)) if not row.is_plan]
    scopes: Counter[str] = Counter()
    for run in runs:
        cost = sum(micros for key, micros in costs.items() if key[0] == run.id)
        uncosted = sum(micros for key, micros in costs.items() if key[0] == run.id and key in unknown)
        assert len(run.calls_in_flight) == sum(key[0] == run.id for key in in_flight)
        assert (run.cost_micros, run.uncosted_micros) == (cost, uncosted), run.id
        entries = await store.read(partial(View.entries, run_id=run.id))
        explained = fold_costs(run, entries)
        assert explained.micros == sum(explained.cost_by.values()) == cost
        history = History(run.id)
        history.add_all(entries)
        assert sum(history.cost_by.values()) == cost
        assert all(micros >= 0 for micros in history.cost_by.values())
        assert history.cost_by.get("uncosted", 0) == explained.cost_by.get("uncosted", 0) <= uncosted
        assert sum(turn.cost_micros for turn in turns_of(entries)) == cost
        calls = [entry.fact for entry in entries if isinstance(entry.fact, CostReserved)]
        for call in calls:
            for scope in call.scopes:
                scopes[scope] += costs.get((run.id, call.turn, call.attempt), 0)
    for scope, micros in scopes.items():
        bucket = await store.read(partial(View.bucket, scope=scope))
        assert bucket.spent_micros == micros, scope
    plan = await run_of(store, GROUP)
    steps = [row for row in runs if row.plan_id == GROUP]
    assert plan.cost_micros == sum(row.cost_micros for row in steps)
    assert plan.uncosted_micros == sum(row.uncosted_micros for row in steps)
    assert plan.tokens == sum(row.tokens for row in steps)
    day = now_us() // DAY_US
    spent = (await store.read(lambda view: spending(view, day - 1, day))).spent
    assert sum(each.cost_micros for each in spent) == sum(costs.values())
    assert sum(each.uncosted_micros for each in spent) == sum(costs[key] for key in unknown)
    assert sum(each.calls for each in spent) == len(costs)


@pytest.mark.parametrize("spender", [STEP_RUN, LONE_RUN], ids=["of a plan", "alone"])
@pytest.mark.parametrize(
    ("settlement", "cost"), [("billed", 300), ("billed", 400), ("not_billed", 0), ("unknown", 400)]
)
async def test_what_an_answer_costs_takes_the_place_of_what_was_booked_as_unknown(
    tmp_path: Path, spender: Spender, settlement: Settlement, cost: int
) -> None:
    async with open_log(tmp_path, spender) as store:
        owner = await owner_of(store, spender)
        assert isinstance(await owner.reserve(400, wrap=100), Reservation)
        assert await store.do(settle(spender.run_id, GONE))
        key = (spender.run_id, 1, 1)
        await check_books(store, {key: 400}, {key})
        await owner.answer(cost, settlement)
        await check_books(store, {key: cost}, {key} if settlement == "unknown" else set())
        run = await run_of(store, spender.run_id)
        assert (run.state, run.overrun, run.wrap_micros) == (RUNNING, 0, 0)
        entry = await store.read(lambda view: view.last_entry(spender.run_id, "CostUpdate"))
        assert entry is not None and "in place of $0.0004 that was booked as unknown" in entry_words(entry)
        assert run.tokens == {"billed": USED_TOKENS, "not_billed": 0, "unknown": RESERVED_TOKENS}[settlement]
        assert sum(owner.log.history.cost_by.values()) == cost, "its own history never had the unknown cost"
        again = await owner.reserve(1_000 - cost)
        assert isinstance(again, Reservation), "what it did not cost is free again"
    assert not verify(tmp_path).faults


@pytest.mark.parametrize("spender", [STEP_RUN, LONE_RUN], ids=["of a plan", "alone"])
async def test_a_late_answer_that_cost_more_than_it_held_is_booked_in_full(tmp_path: Path, spender: Spender) -> None:
    async with open_log(tmp_path, spender) as store:
        owner = await owner_of(store, spender)
        assert isinstance(await owner.reserve(400), Reservation)
        assert await store.do(settle(spender.run_id, GONE))
        await owner.answer(900)
        await check_books(store, {(spender.run_id, 1, 1): 900}, set())
        assert (await run_of(store, spender.run_id)).overrun == 1
        assert await owner.reserve(50) == CapReached("overrun", 0)


async def test_a_late_answer_may_take_a_plan_past_its_cap_by_one_call_and_nothing_follows(tmp_path: Path) -> None:
    """Another run of the plan has taken the money of the last turn that was returned."""
    other = Spender("S-000002", "ann", GROUP)
    async with open_log(tmp_path, STEP_RUN, other) as store:
        owner, second = await owner_of(store, STEP_RUN), await owner_of(store, other)
        assert isinstance(await owner.reserve(600, wrap=300), Reservation)
        assert await second.reserve(900) == CapReached("group_max_cost", 600)
        assert await store.do(settle(STEP_RUN.run_id, GONE))
        assert isinstance(await second.reserve(900), Reservation)
        await second.answer(800)
        await owner.answer(750)
        await check_books(store, {(STEP_RUN.run_id, 1, 1): 750, (other.run_id, 1, 1): 800}, set())
        assert await second.reserve(1) == CapReached("group_max_cost", 0)
        assert await owner.reserve(1) == CapReached("overrun", 0)


@pytest.mark.parametrize("cost", [300, 900])
async def test_calls_of_another_agent_that_end_late_are_booked_one_by_one(tmp_path: Path, cost: int) -> None:
    async with open_log(tmp_path, LONE_RUN, cap=2_000) as store:
        owner = await owner_of(store, LONE_RUN)
        for _number in range(3):
            assert isinstance(await owner.reserve(400, beside=True), Reservation)
        assert await store.do(settle(LONE_RUN.run_id, GONE))
        assert isinstance(await owner.reserve(50, beside=True), Reservation)
        await owner.answer(cost, call=1)
        await owner.answer(40, call=2)
        costs = {(LONE_RUN.run_id, turn, 1): micros for turn, micros in ((1, 400), (2, cost), (3, 400), (4, 40))}
        await check_books(store, costs, {(LONE_RUN.run_id, 1, 1), (LONE_RUN.run_id, 3, 1)})


async def test_a_search_that_was_given_up_is_booked_at_what_its_answer_cost(tmp_path: Path) -> None:
    async with open_log(tmp_path, LONE_RUN) as store:
        owner = await owner_of(store, LONE_RUN)
        assert isinstance(await owner.reserve(200), Reservation)
        await owner.answer(150)
        assert isinstance(await owner.reserve(100, search=True), Reservation)
        await owner.log.settle_lost((1, 2))
        await check_books(
            store, {(LONE_RUN.run_id, 1, 1): 150, (LONE_RUN.run_id, 1, 2): 100}, {(LONE_RUN.run_id, 1, 2)}
        )
        await owner.answer(70)
        await check_books(store, {(LONE_RUN.run_id, 1, 1): 150, (LONE_RUN.run_id, 1, 2): 70}, set())
        assert owner.log.history.cost_by["search"] == 70


async def test_a_call_is_booked_once_however_often_it_is_settled(tmp_path: Path) -> None:
    async with open_log(tmp_path, LONE_RUN) as store:
        owner = await owner_of(store, LONE_RUN)
        assert isinstance(await owner.reserve(400), Reservation)
        owner.held *= 2
        await owner.answer(300)
        await owner.answer(350)
        await check_books(store, {(LONE_RUN.run_id, 1, 1): 300}, set())
        assert await settlements(store, LONE_RUN) == ["billed"]


async def settlements(store: Store, spender: Spender) -> list[str]:
    entries = await store.read(lambda view: view.entries(spender.run_id, 0, ("CostUpdate",)))
    return [entry.fact.settlement for entry in entries if isinstance(entry.fact, CostUpdate)]


@pytest.mark.parametrize("lost_by", ["a take-over", "a cancel", "an interruption"])
@pytest.mark.parametrize(("cost", "booked"), [(300, 400), (900, 900)])
async def test_an_answer_to_a_process_that_has_lost_its_run_is_booked_if_it_cost_more(
    tmp_path: Path, lost_by: str, cost: int, booked: int
) -> None:
    """What was said since then stays, as long as it is the most that it can be."""
    async with open_log(tmp_path, STEP_RUN, cap=700) as store:
        owner = await owner_of(store, STEP_RUN)
        assert isinstance(await owner.reserve(400, wrap=100), Reservation)
        new_owner: Owner | None = None
        if lost_by == "a take-over":
            new_owner = await take_over(store, STEP_RUN)
            assert isinstance(await new_owner.reserve(50), Reservation)
        elif lost_by == "a cancel":
            await cancel_for_owner(store, STEP_RUN)
        else:
            assert await store.do(interrupt_runs(GROUP, GONE, {}))
        before = await run_of(store, STEP_RUN.run_id)
        with pytest.raises(StaleOwner):
            await owner.answer(cost)
        key = (STEP_RUN.run_id, 1, 1)
        costs, unknown = {key: booked}, {key} if booked == 400 else set[Key]()
        if new_owner is not None:
            await new_owner.answer(30)
            costs[STEP_RUN.run_id, 2, 1] = 30
            after = await new_owner.reserve(10)
            assert isinstance(after, Reservation) if booked == 400 else after == CapReached("overrun", 0)
            if isinstance(after, Reservation):
                await new_owner.answer(10)
                costs[STEP_RUN.run_id, 3, 1] = 10
        await check_books(store, costs, unknown)
        now = await run_of(store, STEP_RUN.run_id)
        assert (now.state, now.waits_for, now.generation) == (before.state, before.waits_for, before.generation)
        assert bool(now.overrun) is (booked == 900)
    assert not verify(tmp_path).faults


# -- in any order -----------------------------------------------------------------------------------------------------


@dataclass
class Schedule:
    """Runs whose calls are reserved, settled by others, answered late and continued in any order.

    Attributes:
        costs: What each call cost, as far as anybody knows: as unknown, what it held.
        open: What the calls in flight hold.
    """

    store: Store
    chance: random.Random
    owners: dict[str, Owner]
    stale: list[Owner] = field(default_factory=list[Owner])
    costs: dict[Key, int] = field(default_factory=dict[Key, int])
    unknown: set[Key] = field(default_factory=set[Key])
    open: dict[Key, int] = field(default_factory=dict[Key, int])
    came: Counter[str] = field(default_factory=Counter[str])

    async def step(self, owner: Owner) -> None:
        """Let one thing happen to a run."""
        run = await run_of(self.store, owner.spender.run_id)
        happening = self.chance.choice(("reserve", "reserve", "answer", "answer", "settle", "lose", "stale answer"))
        if happening == "reserve" and run.state == RUNNING:
            beside = owner.spender is LONE_RUN
            if beside or run.in_flight is None:
                await self._reserve(owner, beside=beside)
        elif happening == "answer" and owner.held:
            await self._answer(owner, stale=run.state != RUNNING)
        elif happening == "settle":
            if await self.store.do(settle(run.id, await self.gone())):
                self._give_up(run.id)
                self.came["settled by others"] += 1
        elif happening == "stale answer":
            awake = [each for each in self.stale if each.held]
            if awake:
                await self._answer(self.chance.choice(awake), stale=True)
        elif happening == "lose":
            await self._lose(owner, run)

    async def _reserve(self, owner: Owner, *, beside: bool) -> None:
        micros = self.chance.randint(20, 300)
        answer = await owner.reserve(micros, wrap=self.chance.choice((0, 50)), beside=beside)
        if isinstance(answer, Reservation):
            self.open[owner.spender.run_id, answer.fact.turn, answer.fact.attempt] = micros

    async def _answer(self, owner: Owner, *, stale: bool) -> None:
        call = self.chance.randrange(len(owner.held))
        fact = owner.held[call].fact
        key = (owner.spender.run_id, fact.turn, fact.attempt)
        settlement: Settlement = self.chance.choice(("billed", "billed", "billed", "not_billed", "unknown"))
        cost = {"billed": self.chance.randint(10, fact.micros), "not_billed": 0, "unknown": fact.micros}[settlement]
        if settlement == "billed" and self.chance.random() < 0.2:
            cost = fact.micros + self.chance.randint(1, 500)
        if stale:
            with pytest.raises(StaleOwner):
                await owner.answer(cost, settlement, call=call)
            assert key not in self.open, "whoever took the run has settled its calls"
            self.came["stale"] += 1
            if cost > self.costs[key]:
                self.costs[key] = cost
                self.unknown.discard(key)
                self.came["stale overrun"] += 1
            return
        self.came["late" if key in self.costs else "in time"] += 1
        await owner.answer(cost, settlement, call=call)
        self.open.pop(key, None)
        self.costs[key] = cost
        self.unknown.discard(key)
        if settlement == "unknown":
            self.unknown.add(key)

    def _give_up(self, run_id: str) -> None:
        for key in [key for key in self.open if key[0] == run_id]:
            self.costs[key] = self.open.pop(key)
            self.unknown.add(key)

    async def _lose(self, owner: Owner, run: RunRow) -> None:
        """Have another process interrupt, take over or cancel a run."""
        spender = owner.spender
        if run.ended:
            return
        if run.state == QUEUED:  # it was interrupted: a person resumes it
            resumed = RunResumed(channel="terminal")
            await write(self.store, Event(spender.who, resumed, run_id=run.id))
        elif self.chance.random() < 0.05:
            await cancel_for_owner(self.store, spender)
            self._give_up(run.id)
            self.came["cancelled"] += 1
            return
        elif spender.group is not None and self.chance.random() < 0.5:
            if await self.store.do(interrupt_runs(GROUP, await self.gone(), {})):
                for each in self.owners.values():
                    if (await run_of(self.store, each.spender.run_id)).state == QUEUED:
                        self._give_up(each.spender.run_id)
                self.came["interrupted"] += 1
            return
        instance = f"instance {len(self.stale)}"
        claimed = await self.store.do(claim(run.id, instance, spender.who, await self.gone(), SLOTS))
        assert isinstance(claimed, RunRow), claimed
        self._give_up(run.id)
        self.stale.append(owner)
        self.owners[run.id] = await owner_of(self.store, spender)
        self.came["taken over"] += 1

    async def gone(self) -> frozenset[str]:
        """Return the instances that have a run: to the others, each is silent."""
        rows = await self.store.read(lambda view: view.runs(limit=-1))
        return frozenset(row.instance for row in rows if row.instance is not None)


async def test_a_stale_answer_that_used_more_tokens_is_booked_too(tmp_path: Path) -> None:
    async with open_log(tmp_path, LONE_RUN) as store:
        owner = await owner_of(store, LONE_RUN)
        await owner.reserve(400)
        await take_over(store, LONE_RUN)
        held = owner.held.pop().held
        usage = Usage(input_tokens=RESERVED_TOKENS, output_tokens=RESERVED_TOKENS)
        answer = Completion("so", (), {}, usage, cost_micros=400)
        with pytest.raises(StaleOwner):
            await owner.log.append([owner.log.settlement(held, "billed", 1, answer, "far:model", PRICE, None)])
        run = await run_of(store, LONE_RUN.run_id)
    assert (run.tokens, run.cost_micros, run.overrun) == (2 * RESERVED_TOKENS, 400, 1)


async def test_what_late_answers_of_other_turns_cost_makes_no_turn_cost_less_than_nothing(tmp_path: Path) -> None:
    """What a run asks for more by: its last calls, each at what it cost in the end."""
    async with open_log(tmp_path, LONE_RUN, cap=5_000) as store:
        owner = await owner_of(store, LONE_RUN)
        await owner.reserve(4_000, beside=True)
        assert await store.do(settle(LONE_RUN.run_id, GONE))
        for _turn in range(4):
            await owner.reserve(20, beside=True)
            await owner.answer(10, call=1)
        await owner.answer(300)
        run = await run_of(store, LONE_RUN.run_id)
        short = Shortage("max_cost_cents", step=1, active_s=1)
        assert await store.read(lambda view: _per_turn(view, run, short)) == (300 + 4 * 10) / 5


async def test_a_retry_after_a_call_that_turned_out_to_be_free_is_no_extra_cost(tmp_path: Path) -> None:
    async with open_log(tmp_path, LONE_RUN) as store:
        owner = await owner_of(store, LONE_RUN)
        await owner.reserve(400)
        assert await store.do(settle(LONE_RUN.run_id, GONE))
        await owner.answer(0, "not_billed")
        again = CostReserved(
            turn=1, attempt=2, scopes=(), micros=100, wrap_micros=0, prompt_tokens=5, max_output=5, upto_seq=0,
            request_sha="0" * 64,
        )  # fmt: skip
        request = CapRequest(again, tokens=RESERVED_TOKENS, wrap_tokens=0)
        answer = await owner.log.do(reserve(owner.log.fence, owner.log.who, request, DAYS))
        assert isinstance(answer, Reservation)
        run = await run_of(store, LONE_RUN.run_id)
        assert await store.read(lambda view: in_flight_purpose(view, run)) is None


async def test_the_page_of_a_run_has_what_it_cost_once(tmp_path: Path) -> None:
    async with open_log(tmp_path, LONE_RUN) as store:
        owner = await owner_of(store, LONE_RUN)
        notes = [ToolCall(tool="read_file", args={"path": str(n)}, call_id=f"c{n}", turn=1) for n in range(300)]
        await owner.log.append([owner.log.event(note) for note in notes])
        await owner.reserve(400)
        assert await store.do(settle(LONE_RUN.run_id, GONE))
        await owner.answer(300)
        run = await run_of(store, LONE_RUN.run_id)
        newest = timeline.Place("newest")
        page = await store.read(lambda view: timeline.read_page(view, run.id, newest, run.cost_micros))
        assert page.next is not None and page.next.spent == 0
        assert timeline.rows(await store.read(lambda view: view.entries(run.id)), 0)[-1].total == run.cost_micros == 300


async def test_in_any_order_all_figures_are_the_sum_of_what_the_calls_cost(tmp_path: Path) -> None:
    came: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        chance = random.Random(seed)
        root = tmp_path / str(seed)
        root.mkdir()
        async with open_log(root, *SPENDERS, cap=600) as store:
            owners = {spender.run_id: await owner_of(store, spender) for spender in SPENDERS}
            schedule = Schedule(store, chance, owners)
            for _step in range(STEPS):
                await schedule.step(owners[chance.choice(SPENDERS).run_id])
            await check_books(store, schedule.costs, schedule.unknown, schedule.open)
            came += schedule.came
        assert not verify(root).faults, seed
    assert {name for name in HAPPENINGS if came[name] < 5} == set(), came
