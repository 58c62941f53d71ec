"""A log of days gone by: what runs left in it, written through the real store by a played clock.

past = Past(monkeypatch)
async with Store.open(root) as store:
    await past.write_run(store, BookedLife("S-0a0a0a", role="coder"), 20_450 * DAY_S + 3_600)
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ava_audit.events import CostReserved, CostUpdate, Ending, Event, Usage
from ava_audit.store.store import Store
from ava_audit.units import day_of
from ava_server.budget.user_limits import installation_scope, user_scope
from ava_server.core.data_root import os_user
from support.log import Life, write

DAY_S = 86_400


@dataclass
class BookedLife(Life):
    """A run whose calls are booked where the budgets book them: its own, its plan's, its user's day, the day."""

    role: str = "researcher"
    model: str = "anthropic:claude-sonnet-5"
    plan: str | None = None
    max_cost: int = 2_000_000

    @property
    def scopes(self) -> tuple[str, ...]:
        day = day_of(time.time_ns() // 1000)
        plan = (self.plan,) if self.plan else ()
        return (self.run_id, *plan, user_scope(self.user, day), installation_scope(day))

    def beginning(self) -> list[Event]:
        return [
            self.proposal(role=self.role, model=self.model, max_cost_micros=self.max_cost),
            self.task(),
            self.approval(self.plan),
            self.claim(),
        ]

    def call(self, turn: int, attempt: int = 1, micros: int = 50_000) -> Event:
        self.turn = turn
        held = self.reservation(turn, micros)
        assert isinstance(held.fact, CostReserved)
        return held._replace(fact=held.fact.model_copy(update={"attempt": attempt}))

    def payment(self, cost: int, *, attempt: int = 1, reserved: int = 50_000, **more: Any) -> Event:
        unknown = more.get("settlement") == "unknown"
        fact = CostUpdate(
            turn=self.turn,
            attempt=attempt,
            settlement=more.pop("settlement", "billed"),
            tokens=300,
            cost_cents=cost / 10_000,
            reserved_micros=reserved,
            overrun=cost > reserved,
            **more,
        )
        usage = None if unknown else Usage(input_tokens=200, output_tokens=100)
        return self.entry(fact, usage=usage, cost_micros=cost, model=self.model)

    def final_events(self, status: Ending, reason: str, kind: str | None = None) -> list[Event]:
        return [*self.ending(status, reason, error_kind=kind, active_us=90_000_000)]


class Past:
    """The clock that the store reads while the past is written: seconds since 1970, UTC."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.at_s = 0.0
        patch.setattr(time, "time_ns", lambda: int(self.at_s * 1e9))

    async def at(self, store: Store, at_s: float, *events: Event | Callable[[], Event]) -> None:
        """Write events at a time; a reservation is made then, because its scopes have the day."""
        self.at_s = at_s
        for event in events:
            await write(store, event() if callable(event) else event)

    async def write_run(
        self,
        store: Store,
        life: BookedLife,
        at_s: float,
        *,
        costs: tuple[int, ...] = (3_000,),
        ending: Ending | None = "success",
        reason: str = "it is done",
        kind: str | None = None,
    ) -> None:
        """Write a whole run that begins at a time, with a call of each of these costs, a second each; None: no end."""
        self.at_s = at_s
        for event in life.beginning():
            await write(store, event)
        for turn, cost in enumerate(costs, 1):
            await self.at(store, at_s + turn, partial(life.call, turn))
            await write(store, life.payment(cost))
        if ending is not None:
            await self.at(
                store, at_s + len(costs) + 1, *life.ending(ending, reason, error_kind=kind, active_us=90_000_000)
            )


async def write_past(root: Path, write_runs: Callable[[Store, Past], Awaitable[None]]) -> None:
    """Write what a function writes to a log, at the times that it says."""
    with pytest.MonkeyPatch.context() as patch:
        async with Store.open(root) as store:
            await write_runs(store, Past(patch))


def own_user() -> str:
    return os_user()
