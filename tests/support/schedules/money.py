"""Random schedules of runs that share money: each reserves, settles, waits, dies, is paused and ends in any order.

The commands are the product's, on a real embedded database in memory; a schedule is one transaction that is rolled
back. What must hold after each step is kept as plain sums.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ava_audit.events import (
    CostReserved,
    Event,
    Fact,
    Fence,
    RunClaimed,
    RunEnded,
    RunPaused,
    SpawnDecided,
    SpawnProposed,
    Usage,
    Who,
)
from ava_audit.projections import Projections
from ava_audit.reducers import Header, reduce
from ava_audit.store.schema import open_in_memory
from ava_audit.units import day_of
from ava_audit.view import View, loads
from ava_server.budget.caps import (
    CapReached,
    CapRequest,
    Reservation,
    reserve_in_line,
    settlement_event,
)
from ava_server.budget.money_line import MoneyWait, Patience
from ava_server.budget.user_limits import DayCaps
from ava_server.models.prices import Price
from support.schedules.play import config

DAY_US = 86_400_000_000
START_US = 20_000 * DAY_US
PRICE = Price(input=1_000, output=2_000, cache_read=100, cache_write=1_250, source="the test")
GROUP = "G-0000001"


@dataclass
class Runner:
    """A run, and what it does next."""

    id: str
    user: str
    group: str | None
    turns: int
    call: int
    wrap: int
    state: str = "working"  # in flight, waiting, paused, dead, ended
    turn: int = 0
    last: bool = False
    held: Reservation | None = None
    overrun: bool = False

    @property
    def need(self) -> tuple[int, int]:
        return (self.wrap, 0) if self.last else (self.call, self.wrap)


@dataclass
class MoneySchedule:
    """One schedule of some runs under shared caps."""

    chance: random.Random
    runs: list[Runner] = field(default_factory=list[Runner])
    came: Counter[str] = field(default_factory=Counter[str])
    overrun: int = 0
    seq: int = 0
    now_us: int = START_US

    def __post_init__(self) -> None:
        chance = self.chance
        self.days = DayCaps(chance.randint(80, 500), chance.randint(80, 700))
        self.group_cap = chance.randint(60, 400)
        for number in range(chance.randint(2, 6)):
            grouped = chance.random() < 0.3
            user = "ann" if grouped or chance.random() < 0.6 else "bob"
            run = Runner(
                f"S-{number:06x}", user, GROUP if grouped else None, chance.randint(1, 5), chance.randint(5, 60),
                chance.randint(2, 25),
            )  # fmt: skip
            self.runs.append(run)

    # -- the log ------------------------------------------------------------------------------------------------------

    def play(self, db: Any, steps: int) -> Counter[str]:
        """Play some steps, and then until every run has ended or can do nothing for ever."""
        db.execute("BEGIN")
        try:
            self.projections = Projections(db)
            self.view = View(db, self.projections, 0)
            for run in self.runs:
                self._begin(run)
            for _ in range(steps):
                self.step()
            self.finish()
        finally:
            db.execute("ROLLBACK")
        return self.came

    def write(self, run: Runner, fact: Fact, cost: int | None = None, usage: Usage | None = None) -> None:
        self.seq += 1
        self.now_us += 1_000
        owned = not isinstance(fact, SpawnProposed | SpawnDecided | RunClaimed)
        header = Header(
            self.seq, self.now_us, "sess-1", run.user, type(fact).__name__, run.id, 1 if owned else None, usage, cost
        )
        reduce(self.projections, header, fact)

    def write_all(self, run: Runner, events: tuple[Event, ...]) -> None:
        for event in events:
            self.write(run, event.fact, event.cost_micros, event.usage)

    def _begin(self, run: Runner) -> None:
        pending = run.id.replace("S-", "P-00")
        made = config(10**6, 10**6).model_dump(mode="json", exclude_none=True)
        self.write(
            run, SpawnProposed(pending_id=pending, subagent_id=run.id, digest="d", expires_us=2**60, config=made)
        )
        decided = SpawnDecided(
            pending_id=pending, decision="approved", digest="d", group_id=run.group,
            group_max_cost_micros=self.group_cap if run.group else None,
        )  # fmt: skip
        self.write(run, decided)
        self.write(run, RunClaimed(instance=run.id, generation=1, reason="start"))

    # -- what happens -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        alive = [run for run in self.runs if run.state in ("working", "in flight", "waiting")]
        if not alive:
            return
        run = self.chance.choice(alive)
        luck = self.chance.random()
        if luck < 0.03:
            self.dies(run)
        elif luck < 0.06 and run.state == "working":
            self.write(run, RunPaused(not_before_us=2**60, why="a limit"))
            run.state = "paused"
            self.came["pause"] += 1
        elif luck < 0.07:
            self.now_us += DAY_US - self.now_us % DAY_US
            self.came["midnight"] += 1
        elif run.state == "in flight":
            self.settles(run)
        else:
            self.asks(run)
        self.check()

    def dies(self, run: Runner) -> None:
        """Its owner is gone, and nobody has taken it over yet."""
        run.state = "dead"
        self.came["dead"] += 1

    def asks(self, run: Runner) -> str:
        """Reserve the next call, as its owner does; return what came of it."""
        if run.turn >= run.turns:
            return self.ends(run)
        micros, wrap = run.need
        fact = CostReserved(
            turn=run.turn + 1, attempt=1, scopes=(), micros=micros, wrap_micros=wrap, prompt_tokens=1, max_output=1,
            upto_seq=0, request_sha="0" * 64,
        )  # fmt: skip
        gone = frozenset(each.id for each in self.runs if each.state == "dead")
        patience = Patience(gone, micros + wrap)
        command = reserve_in_line(
            Fence(run.id, 1), Who("sess-1", run.id, run.user), CapRequest(fact, 2, 2), self.days, patience
        )
        outcome = command(self.view, self.now_us)
        noted = self.view.run(run.id)
        assert noted is not None
        if isinstance(outcome.value, MoneyWait):
            before = run.state == "waiting" and noted.money_wait is not None
            self.write_all(run, outcome.events)
            if before and not outcome.events:
                self.came["asked again, nothing written"] += 1
            again = command(self.view, self.now_us)
            assert not again.events, "a wait is written once"
            run.state = "waiting"
            self.came["waits"] += 1
            return "waits"
        if isinstance(outcome.value, Reservation):
            assert not run.overrun, "nothing is sent after an overrun"
            self.write_all(run, outcome.events)
            run.state, run.held, run.turn = "in flight", outcome.value, run.turn + 1
            self.came["granted"] += 1
            return "granted"
        assert isinstance(outcome.value, CapReached)
        self.write_all(run, outcome.events)
        if run.last or outcome.value.cap == "overrun":
            return self.ends(run)
        self.came["gives way" if outcome.value.gives_way else "refused"] += 1
        run.state, run.last, run.turns = "working", True, run.turn + 1
        return "refused"

    def ends(self, run: Runner) -> str:
        self.write(run, RunEnded(status="success", stop_reason=""))
        run.state = "ended"
        self.came["ended"] += 1
        return "ended"

    def settles(self, run: Runner) -> None:
        assert run.held is not None
        held = run.held.fact
        luck = self.chance.random()
        cost = int(held.micros * self.chance.random())
        if luck < 0.05:
            cost = held.micros + self.chance.randint(1, 40)
            self.overrun += cost - held.micros
            run.overrun = True
            self.came["overrun"] += 1
        how: Any = "unknown" if 0.05 <= luck < 0.12 else "not_billed" if luck > 0.95 else "billed"
        usage = Usage(input_tokens=1, output_tokens=0)
        event = settlement_event(
            Fence(run.id, 1), run.id, Who("sess-1", run.id, run.user), "far:model", PRICE, run.held.held, how,
            usage=usage, reported_micros=cost or None,
        )  # fmt: skip
        if event.cost_micros and event.cost_micros > held.micros and not run.overrun:  # the price table's figure
            self.overrun += event.cost_micros - held.micros
            run.overrun = True
        self.write_all(run, (event,))
        run.held, run.state = None, "working"

    # -- what must hold -----------------------------------------------------------------------------------------------

    def caps(self, run: Runner) -> dict[str, int]:
        day = day_of(self.now_us)
        found = {f"user:{run.user}:{day}": self.days.user_micros, f"all:{day}": self.days.installation_micros}
        return {**found, **({run.group: self.group_cap} if run.group else {})}

    def check(self) -> None:
        for run in self.runs:
            for scope, cap in self.caps(run).items():
                assert self.view.bucket(scope).committed <= cap + self.overrun, f"{scope} has passed its cap"
        if not any(run.state == "in flight" for run in self.runs):
            self.check_nobody_waits_in_vain()

    def fits(self, run: Runner) -> bool:
        row = self.view.run(run.id)
        assert row is not None
        own = loads(row.wrap_scopes) or ()
        for scope, cap in self.caps(run).items():
            mine = row.wrap_micros if scope in own else 0
            if sum(run.need) > cap - self.view.bucket(scope).committed + mine:
                return False
        return not run.overrun

    def check_nobody_waits_in_vain(self) -> None:
        """With nothing in flight, a waiter that fits goes when the waiters ask, the oldest first."""
        waiting = [run for run in self.runs if run.state == "waiting"]
        if not any(self.fits(run) for run in waiting):
            return
        for run in waiting:
            if self.asks(run) != "waits":
                self.came["went with nothing in flight"] += 1
                return
        raise AssertionError("nothing is in flight, somebody fits, and all wait")

    def finish(self) -> None:
        """Play to the end without further mishaps; where all that live wait, one of them goes or gives way."""
        for _ in range(2_000):
            live = [run for run in self.runs if run.state in ("working", "in flight", "waiting")]
            if not live:
                return
            busy = [run for run in live if run.state != "waiting"]
            if busy:
                run = self.chance.choice(busy)
                self.settles(run) if run.state == "in flight" else self.asks(run)
                self.check()
                continue
            for run in live:
                if self.asks(run) != "waits":
                    break
            else:
                raise AssertionError(f"all wait for each other: {live}")
        raise AssertionError("it does not end")


def play_schedules(first: int, count: int) -> Counter[str]:
    """Play schedules with these seeds, and return what came of them."""
    db = open_in_memory()
    came: Counter[str] = Counter()
    try:
        for number in range(first, first + count):
            try:
                came += MoneySchedule(random.Random(number)).play(db, 40)
            except AssertionError as error:
                raise AssertionError(f"schedule {number}: {error}") from error
    finally:
        db.close()
    return came
