"""A run that reserves and settles without a model, and the caps of everybody."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ava_audit.events import CostReserved, Event, Fence, RunClaimed, Settlement, SpawnDecided, SpawnProposed, Usage, Who
from ava_audit.store.store import Command, Store
from ava_server.budget.caps import CapReached, CapRequest, HeldCall, Reservation, RunStopped, reserve, settlement_event
from ava_server.budget.user_limits import DayCaps
from ava_server.models.prices import Price, UserPrice, find_price
from support.log import plan_events, write, write_each

PRICE = find_price("far", "model", base_url="https://far.example", overrides={"model": UserPrice(input=1, output=1)})
GROUP = "G-0000001"
RUN_CAP, GROUP_CAP, USER_CAP, ALL_CAP = 1_000, 1_500, 2_200, 3_000
DAYS = DayCaps(USER_CAP, ALL_CAP)
MODEL = "far:model"


def config_with_cap(cap: int, price: Price = PRICE) -> dict[str, object]:
    """Return the stored configuration of a run with a cap in micro-USD."""
    return {
        "role": "researcher", "role_source": "built in", "role_text": "", "model": MODEL, "provider": "far",
        "model_id": "model", "price": asdict(price), "timeout_s": 60, "max_cost_micros": cap, "max_tokens": 10**6,
        "max_iterations": 20, "max_tool_calls": 20, "tools": (),
        "reach": "can reach nothing", "estimated_minutes": (1, 2), "input_bytes": 1,
    }  # fmt: skip


@dataclass
class Spender:
    """A run that reserves and settles calls without a model."""

    run_id: str
    user: str
    group: str | None
    turn: int = 0
    held: Reservation | None = None

    @property
    def who(self) -> Who:
        """Who writes for the run."""
        return Who("sess-1", self.run_id, self.user)

    @property
    def fence(self) -> Fence:
        """The fence of the run's first owner."""
        return Fence(self.run_id, 1)

    def first_events(self) -> Sequence[Event]:
        """Return the entries up to the claim of the run."""
        pending = "P-" + self.run_id[2:] + "00"
        proposed = SpawnProposed(
            pending_id=pending, subagent_id=self.run_id, digest="d", expires_us=2**50, config=config_with_cap(RUN_CAP)
        )
        decided = SpawnDecided(pending_id=pending, decision="approved", group_id=self.group)
        claimed = RunClaimed(instance="i", generation=1)
        return [Event(self.who, fact, run_id=self.run_id) for fact in (proposed, decided, claimed)]

    def request(self, micros: int, wrap: int = 0) -> CapRequest:
        """Return what the run asks for its next turn, in micro-USD; `wrap` is for the last turn after it."""
        self.turn += 1
        fact = CostReserved(
            turn=self.turn, attempt=1, scopes=(), micros=micros, wrap_micros=wrap, prompt_tokens=5, max_output=5,
            upto_seq=0, request_sha="0" * 64,
        )  # fmt: skip
        return CapRequest(fact, tokens=10, wrap_tokens=10)

    def reserve(
        self, micros: int, wrap: int = 0, days: DayCaps = DAYS
    ) -> Command[Reservation | CapReached | RunStopped]:
        """Return the command that holds the worst case of the run's next turn in every cap."""
        return reserve(self.fence, self.who, self.request(micros, wrap), days)

    def settle(self, settlement: Settlement, reported_micros: int) -> Event:
        """Return the entry that books the call in flight with the cost that a provider reported."""
        assert self.held is not None
        event = self.book(
            self.held.held, PRICE, Usage(input_tokens=1, output_tokens=1), settlement, reported_micros=reported_micros
        )
        self.held = None
        return event

    def book(self, held: HeldCall, price: Price, usage: Usage, settlement: Settlement = "billed", **more: Any) -> Event:
        """Return the entry that books a call that held so much, by its usage and price."""
        return settlement_event(self.fence, self.run_id, self.who, MODEL, price, held, settlement, usage=usage, **more)


def one_spender() -> Spender:
    """Return a run outside every group, of a user who has no other."""
    return Spender("S-000004", "bob", None)


def spenders() -> list[Spender]:
    """Return two runs of a group and one more of ann, and two of bob."""
    return [
        Spender("S-000001", "ann", GROUP),
        Spender("S-000002", "ann", GROUP),
        Spender("S-000003", "ann", None),
        one_spender(),
        Spender("S-000005", "bob", None),
    ]


@asynccontextmanager
async def open_log_with(root: Path, *spenders: Spender) -> AsyncGenerator[Store]:
    """Open a new log in which these runs, and the group of some, have been approved and claimed."""
    async with Store.open(root) as store:
        if any(spender.group == GROUP for spender in spenders):
            await write(store, *plan_events(GROUP, GROUP_CAP, user="ann"))
        for spender in spenders:
            await write_each(store, spender.first_events())
        yield store
