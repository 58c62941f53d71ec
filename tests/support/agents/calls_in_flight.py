"""Runs whose agents call the model as they like, on a log of their own, and what their budgets must show."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import Any

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
from ava_server.budget.user_limits import DayCaps
from ava_server.core.ids import IN_PROCESS
from ava_server.models.prices import UserPrice, find_price

PRICE = find_price("far", "model", base_url="https://far.example", overrides={"model": UserPrice(input=1, output=1)})
SEARCH = {
    "model": "anthropic:searcher", "base_url": "", "price": asdict(PRICE), "fee": 0, "prompt_tokens": 5,
    "output_tokens": 5, "results": 5,
}  # fmt: skip
PLAN = "G-0000001"
RUN_CAP, PLAN_CAP, USER_CAP, ALL_CAP, TOKENS = 1_000, 1_500, 2_200, 3_000, 400
DAYS = DayCaps(USER_CAP, ALL_CAP)
STEPS = 60


def end_all(runs: list[AgentRun]) -> Command[set[str]]:
    """Settle what is open, and end every run; return the days on which anything was reserved."""

    def command(view: View, now_us: int) -> Outcome[set[str]]:
        events: list[Event] = []
        for run in runs:
            settled = settle_unknown(row_of(view, run), run.who, run.fence)
            assert len(settled) == len(run.open)
            ended = RunEnded(status="cancelled", stop_reason="over", active_us=0)
            events += [*settled, Event(run.who, ended, run_id=run.run_id, fence=run.fence)]
        first = next(iter(view.select("SELECT min(ts_us) FROM events")))[0]
        return Outcome({day_of(first), day_of(now_us)}, tuple(events))

    return command


@dataclass
class AgentRun:
    """A run whose agent calls the model as it likes."""

    run_id: str
    user: str
    plan: str | None = None
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
            SpawnDecided(pending_id=pending, decision="approved", group_id=self.plan),
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


async def write_events(store: Store, *events: Event) -> None:
    """Write events as one command."""
    await store.do(lambda _view, _now: Outcome(None, events))


def row_of(view: View, run: AgentRun) -> RunRow:
    """Return the row of a run."""
    found = view.run(run.run_id)
    assert found is not None
    return found


async def play_schedule(store: Store, runs: list[AgentRun], chance: random.Random) -> dict[str, int]:
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


def _taken_over(run: AgentRun, lost: int, claim: Event) -> Command[None]:
    def command(view: View, _now_us: int) -> Outcome[None]:
        known = row_of(view, run)
        assert len(known.calls_in_flight) == lost
        return Outcome(None, (*settle_unknown(known, run.who), claim))

    return command


def _checked(command: Command[Any], runs: list[AgentRun], beyond: dict[str, int]) -> Command[Any]:
    """Before a command, nothing is committed past a cap but what a provider charged beyond its own limit."""

    def checking(view: View, now_us: int) -> Outcome[Any]:
        for run in runs:
            assert view.bucket(run.run_id).committed <= RUN_CAP + beyond[run.run_id]
            known = row_of(view, run)
            held = sum(int(call["micros"]) for call in known.calls_in_flight) + known.wrap_micros
            assert view.bucket(run.run_id).held_micros == held
        of_plan = sum(beyond[run.run_id] for run in runs if run.plan)
        assert view.bucket(PLAN).committed <= PLAN_CAP + of_plan
        return command(view, now_us)

    return checking
