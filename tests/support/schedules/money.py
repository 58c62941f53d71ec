"""Random schedules of runs that share money: each reserves, settles, waits, dies, is paused and ends in any order.

The commands are the product's, on a real embedded database in memory; a schedule is one transaction that is rolled
back. The money of each scope is summed up a second time, from the entries alone (`Ledger`). What must hold:

- no call is granted that takes a scope past its cap, and usage within its reservation never does
- more than was reserved is booked in full, and its run sends nothing after it
- nobody waits while nothing is in flight and somebody fits; an older run that fits goes first
- a last turn whose money is reserved is granted at once
- runs that only wait for each other do not wait for ever
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from ava_audit.events import (
    CostReserved,
    CostUpdate,
    Event,
    Fact,
    Fence,
    MoneyAwaited,
    RunClaimed,
    RunEnded,
    RunPaused,
    Settlement,
    SpawnDecided,
    SpawnProposed,
    Usage,
    Who,
)
from ava_audit.projections import Projections
from ava_audit.reducers import Header, reduce
from ava_audit.rows import RUNNING, RunRow
from ava_audit.store.schema import open_in_memory
from ava_audit.units import day_of
from ava_audit.view import HOLDER_COLUMNS, MoneyHolder, View, holder_of, loads
from ava_server.budget.caps import (
    CapReached,
    CapRequest,
    Reservation,
    reserve_in_line,
    scopes_of,
    settle_unknown,
    settlement_event,
)
from ava_server.budget.money_line import MoneyWait, Patience
from ava_server.budget.user_limits import DayCaps
from ava_server.models.prices import Price
from ava_server.runs.record.claims import settle
from support.log import plan_events
from support.schedules.play import config

DAY_US = 86_400_000_000
START_US = 20_000 * DAY_US
PRICE = Price(input=1_000, output=2_000, cache_read=100, cache_write=1_250, source="the test")
GROUP = "G-0000001"
NEVER_BEGUN = "never"
"""A step of the plan to which money is left, and which does not begin."""

STEPS = 30
BY_SQL = 10
"""Every so manieth schedule reads by SQL, as the product does; the others take a third less time."""
LIVE = ("working", "waiting")
MOST_BESIDE = 3
"""Calls that a run of another agent has in flight at once."""


@dataclass
class Runner:
    """A run, and what it does next.

    Attributes:
        least: The worst case of the smallest useful form of its calls.
        beside: It is another agent's, which makes several calls at once.
        last: Only its last turn is left.
        leaves: What it leaves of its plan's money to later steps. Those that begin have one run, and its id.
    """

    id: str
    user: str
    group: str | None
    cap: int
    turns: int
    call: int
    least: int
    wrap: int
    beside: bool
    generation: int = 1
    state: str = "working"  # waiting, paused, dead, ended
    turn: int = 0
    small: bool = False
    last: bool = False
    held: list[Reservation] = field(default_factory=list[Reservation])
    overrun: bool = False
    leaves: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def need(self) -> tuple[int, int]:
        """Return the worst case of its next call, and of the last turn after it."""
        if self.last:
            return self.wrap, 0
        return self.least if self.small else self.call, self.wrap


@dataclass
class Ledger:
    """The money of each scope as the entries say it: what is spent, and what each run holds."""

    spent: Counter[str] = field(default_factory=Counter[str])
    held: Counter[str] = field(default_factory=Counter[str])
    over: Counter[str] = field(default_factory=Counter[str])
    calls: dict[tuple[str, int], tuple[tuple[str, ...], int]] = field(default_factory=dict[Any, Any])
    wraps: dict[str, tuple[tuple[str, ...], int]] = field(default_factory=dict[Any, Any])

    def reserve(self, run_id: str, fact: CostReserved) -> None:
        self.end(run_id)
        self.calls[run_id, fact.turn] = (fact.scopes, fact.micros)
        self.wraps[run_id] = (fact.scopes, fact.wrap_micros)
        for scope in fact.scopes:
            self.held[scope] += fact.micros + fact.wrap_micros

    def settle(self, run_id: str, turn: int, cost: int) -> int:
        """Book a call, and return by how much it cost more than was reserved."""
        scopes, micros = self.calls.pop((run_id, turn))
        over = max(cost - micros, 0)
        for scope in scopes:
            self.held[scope] -= micros
            self.spent[scope] += cost
            self.over[scope] += over
        return over

    def end(self, run_id: str) -> None:
        """Return what a run holds for its last turn."""
        scopes, micros = self.wraps.pop(run_id, ((), 0))
        for scope in scopes:
            self.held[scope] -= micros

    def kept(self, run: Runner) -> int:
        """Return what a run leaves to others of its plan, which is theirs once they spend or hold it."""
        return sum(max(micros - self.committed(later), 0) for later, micros in run.leaves.items())

    def committed(self, scope: str) -> int:
        return self.spent[scope] + self.held[scope]


class RowsInMemory(View):
    """A view that finds the holders of money without SQL, in the rows that are not written yet."""

    def is_money_awaited(self) -> bool:
        return any(row.state == RUNNING and row.money_wait is not None for row in self._rows.runs.cached)

    def money_holders(self) -> list[MoneyHolder]:
        values = attrgetter(*HOLDER_COLUMNS)
        return [holder_of(*values(row)) for row in self._rows.runs.cached if row.state == RUNNING]

    def committed_by_step(self, plan_id: str, steps: Collection[str]) -> dict[str, int]:
        rows = [row for row in self._rows.runs.cached if row.plan_id == plan_id and row.step in steps]
        begun = {str(row.step): row.cost_micros + row.held_micros for row in rows}
        return dict.fromkeys(steps, 0) | begun


@dataclass
class MoneySchedule:
    """One schedule of some runs under shared caps."""

    chance: random.Random
    runs: list[Runner] = field(default_factory=list[Runner])
    came: Counter[str] = field(default_factory=Counter[str])
    ledger: Ledger = field(default_factory=Ledger)
    seq: int = 0
    now_us: int = START_US
    day: str = day_of(START_US)

    def __post_init__(self) -> None:
        chance = self.chance
        self.days = DayCaps(chance.randint(80, 500), chance.randint(80, 700))
        self.plan_cap = chance.randint(60, 400)
        for number in range(chance.randint(2, 6)):
            grouped = chance.random() < 0.45
            call = chance.randint(5, 60)
            run = Runner(
                id=f"S-{number:06x}",
                user="ann" if grouped or chance.random() < 0.6 else "bob",
                group=GROUP if grouped else None,
                cap=chance.choice((10**6, chance.randint(30, 300))),
                turns=chance.randint(1, 5),
                call=call,
                least=chance.randint(1, call),
                wrap=chance.randint(2, 25),
                beside=chance.random() < 0.25,
            )
            self.runs.append(run)
        grouped_runs = [run for run in self.runs if run.group]
        for place, run in enumerate(grouped_runs):
            later = [each.id for each in grouped_runs[place + 1 :]]
            for step in (*later, NEVER_BEGUN):
                if chance.random() < 0.4:
                    run.leaves[step] = chance.randint(1, 60)

    # -- the log ------------------------------------------------------------------------------------------------------

    def play(self, db: Any, steps: int, *, by_sql: bool) -> Counter[str]:
        """Play some steps, and then until every run has ended or can do nothing for ever."""
        db.execute("BEGIN")
        try:
            self.projections = Projections(db)
            self.view = (View if by_sql else RowsInMemory)(db, self.projections, 0)
            for event in plan_events(GROUP, self.plan_cap, user="ann", timeout_s=DAY_US):
                self.seq += 1
                header = Header(
                    self.seq, self.now_us, "sess-1", "ann", type(event.fact).__name__, GROUP, None, None, None
                )
                reduce(self.projections, header, event.fact)
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
            self.seq, self.now_us, "sess-1", run.user, type(fact).__name__, run.id, run.generation if owned else None,
            usage, cost,
        )  # fmt: skip
        reduce(self.projections, header, fact)
        match fact:
            case CostReserved():
                self.ledger.reserve(run.id, fact)
            case CostUpdate():
                if self.ledger.settle(run.id, fact.turn, cost or 0) > 0:
                    assert fact.overrun, "more than was reserved is an overrun"
                    run.overrun = True
                    self.came["overrun"] += 1
            case RunEnded():
                self.ledger.end(run.id)
            case MoneyAwaited() if fact.returned:
                self.ledger.end(run.id)
            case _:
                pass

    def write_all(self, run: Runner, events: tuple[Event, ...]) -> None:
        for event in events:
            self.write(run, event.fact, event.cost_micros, event.usage)

    def _begin(self, run: Runner) -> None:
        pending = run.id.replace("S-", "P-00")
        made = config(run.cap, 10**6).model_dump(mode="json", exclude_none=True) | {"leaves": run.leaves}
        self.write(
            run, SpawnProposed(pending_id=pending, subagent_id=run.id, digest="d", expires_us=2**60, config=made)
        )
        step = None if run.group is None else run.id
        decided = SpawnDecided(pending_id=pending, decision="approved", digest="d", group_id=run.group, step=step)
        self.write(run, decided)
        self.write(run, RunClaimed(instance=run.id, generation=1, reason="start"))

    # -- what happens -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        going = [run for run in self.runs if run.state != "ended"]
        if not going:
            return
        run = self.chance.choice(going)
        luck = self.chance.random()
        if luck < 0.01:
            self.now_us += DAY_US - self.now_us % DAY_US
            self.day = day_of(self.now_us)
            self.came["midnight"] += 1
        elif run.state == "dead" and luck < 0.5:  # somebody waits for what it holds
            self.write_all(run, settle(run.id, frozenset({run.id}))(self.view, self.now_us).events)
            run.held = []
            self.came["settled"] += 1
        elif run.state == "dead":
            self.take_over(run)
        elif run.state == "paused":
            self.claim(run, "resumed")
        elif luck < 0.04:  # its owner is gone
            run.state = "dead"
            self.came["dead"] += 1
        elif luck < 0.07 and run.state == "working" and not run.held:
            self.write(run, RunPaused(not_before_us=2**60, why="a limit"))
            run.state = "paused"
            self.came["pause"] += 1
        else:
            self.go_on(run)
        self.check(run)

    def go_on(self, run: Runner) -> None:
        asks_beside = run.beside and len(run.held) < MOST_BESIDE and self.chance.random() < 0.5
        if run.held and not asks_beside:
            self.settle(run)
        else:
            self.ask(run)

    def take_over(self, run: Runner) -> None:
        """Another owner takes the run: its calls are settled as unknown, and it asks anew."""
        row = self.row(run)
        self.write_all(run, settle_unknown(row, self.who(run)))
        self.claim(run, "taken over")
        run.held = []

    def claim(self, run: Runner, how: str) -> None:
        run.generation += 1
        self.write(run, RunClaimed(instance=run.id, generation=run.generation, reason="resume"))
        assert self.row(run).money_wait is None, "a claim ends the wait of the owner before"
        run.state = "working"
        self.came[how] += 1

    def ask(self, run: Runner) -> str:
        """Reserve the next call, as its owner does; return what came of it."""
        if run.turn >= run.turns:
            return self.end(run) if not run.held else "has calls in flight"
        micros, wrap = run.need
        fact = CostReserved(
            turn=run.turn + 1, attempt=1, scopes=(), micros=micros, wrap_micros=wrap, prompt_tokens=1, max_output=1,
            upto_seq=0, beside=run.beside or None, request_sha="0" * 64,
        )  # fmt: skip
        gone = frozenset(each.id for each in self.runs if each.state == "dead")
        least = micros if run.last else min(run.least, micros)
        command = reserve_in_line(
            self.fence(run), self.who(run), CapRequest(fact, 2, 2), self.days, Patience(gone, least + wrap)
        )
        granted_for_sure = run.last and self.has_reserved_last_turn(run)
        outcome = command(self.view, self.now_us)
        if isinstance(outcome.value, MoneyWait):
            assert not granted_for_sure, "its last turn is reserved"
            if run.state == "waiting" and not outcome.events:
                self.came["asked again, nothing written"] += 1
            self.write_all(run, outcome.events)
            assert self.row(run).money_wait is not None
            if outcome.events:
                assert not command(self.view, self.now_us).events, "a wait is written once"
            run.state = "waiting"
            self.came["waits"] += 1
            return "waits"
        if isinstance(outcome.value, Reservation):
            assert not run.overrun, "nothing is sent after an overrun"
            first = [each for each in self.older_waiters(run) if self.fits(each)]
            self.write_all(run, outcome.events)
            self.check_grant(run, outcome.value.fact)
            assert granted_for_sure or all(map(self.fits, first)), "an older run that fits goes first"
            run.state, run.small, run.turn = "working", False, run.turn + 1
            run.held.append(outcome.value)
            self.came["granted"] += 1
            return "granted"
        assert isinstance(outcome.value, CapReached)
        assert not granted_for_sure or outcome.value.cap == "overrun", "its last turn is reserved"
        self.write_all(run, outcome.events)
        return self.refused(run, outcome.value)

    def refused(self, run: Runner, reached: CapReached) -> str:
        run.state = "working"
        if run.held:  # an agent's: what its calls hold may be more than they cost
            run.small = False
            return "has calls in flight"
        if run.last or reached.cap == "overrun":
            return self.end(run)
        if not reached.gives_way and not run.small and run.least + run.wrap <= reached.left:
            run.small = True
            self.came["smaller"] += 1
            return "smaller"
        self.came["gives way" if reached.gives_way else "refused"] += 1
        run.last, run.turns = True, run.turn + 1
        return "refused"

    def end(self, run: Runner) -> str:
        self.write(run, RunEnded(status="success", stop_reason=""))
        run.state = "ended"
        self.came["ended"] += 1
        return "ended"

    def settle(self, run: Runner) -> None:
        reserved = run.held.pop(self.chance.randrange(len(run.held)))
        held = reserved.fact
        luck = self.chance.random()
        cost = int(held.micros * self.chance.random())
        how: Settlement = "billed"
        if luck < 0.05:
            cost = held.micros + self.chance.randint(1, 40)
        elif luck < 0.12:
            how = "unknown"
        elif luck > 0.95:
            how = "not_billed"
        usage = Usage(input_tokens=1, output_tokens=0)
        event = settlement_event(
            self.fence(run), run.id, self.who(run), "far:model", PRICE, reserved.held, how, usage=usage,
            reported_micros=cost or None,
        )  # fmt: skip
        booked = {"billed": event.cost_micros if cost == 0 else cost, "unknown": held.micros, "not_billed": 0}
        assert event.cost_micros == booked[how], "a call is booked in full, a lost one with its reservation"
        self.write_all(run, (event,))

    # -- what must hold -----------------------------------------------------------------------------------------------

    def fence(self, run: Runner) -> Fence:
        return Fence(run.id, run.generation)

    def who(self, run: Runner) -> Who:
        return Who("sess-1", run.id, run.user)

    def row(self, run: Runner) -> RunRow:
        row = self.view.run(run.id)
        assert row is not None
        return row

    def caps(self, run: Runner) -> dict[str, int]:
        day = self.day
        caps = {run.id: run.cap, f"user:{run.user}:{day}": self.days.user_micros}
        caps[f"all:{day}"] = self.days.installation_micros
        if run.group:
            caps[run.group] = self.plan_cap
        return caps

    def check(self, run: Runner) -> None:
        """Check the scopes of the run that has done something."""
        for scope, cap in self.caps(run).items():
            bucket = self.view.bucket(scope)
            spent, held = self.ledger.spent[scope], self.ledger.held[scope]
            assert (bucket.spent_micros, bucket.held_micros) == (spent, held), f"{scope}: another sum"
            assert spent + held <= cap + self.ledger.over[scope], f"{scope} has passed its cap"
        if not self.ledger.calls:
            self.check_nobody_waits_in_vain()

    def check_grant(self, run: Runner, fact: CostReserved) -> None:
        """A granted call fits every cap with all that is held, also where an overrun came before."""
        assert set(fact.scopes) == set(scopes_of(self.row(run), self.now_us)) == set(self.caps(run))
        for scope, cap in self.caps(run).items():
            assert self.ledger.committed(scope) <= cap, f"{scope}: a call beyond its cap"

    def has_reserved_last_turn(self, run: Runner) -> bool:
        """Tell whether a run asks for the last turn that it has reserved, in today's scopes."""
        row = self.row(run)
        reserved = set[str](loads(row.wrap_scopes) or ()) == set(self.caps(run)) and row.wrap_micros >= run.wrap
        return reserved and all(self.ledger.committed(scope) <= cap for scope, cap in self.caps(run).items())

    def fits(self, run: Runner) -> bool:
        row = self.row(run)
        own = loads(row.wrap_scopes) or ()
        for scope, cap in self.caps(run).items():
            mine = row.wrap_micros if scope in own else 0
            if scope == run.group:
                cap -= self.ledger.kept(run)
            if sum(run.need) > cap - self.view.bucket(scope).committed + mine:
                return False
        return not run.overrun

    def older_waiters(self, run: Runner) -> list[Runner]:
        """Return the older runs that wait, and have asked since midnight."""
        older = (each for each in self.runs[: self.runs.index(run)] if each.state == "waiting")
        return [each for each in older if loads(self.row(each).money_wait)["scope"] in self.caps(each)]

    def check_nobody_waits_in_vain(self) -> None:
        """With nothing in flight, a waiter that fits goes when the waiters ask, the oldest first."""
        waiting = [run for run in self.runs if run.state == "waiting"]
        if not any(self.fits(run) for run in waiting):
            return
        assert self.someone_goes(waiting), "nothing is in flight, somebody fits, and all wait"
        self.came["went with nothing in flight"] += 1

    def someone_goes(self, waiting: list[Runner]) -> bool:
        """Let waiters ask, the oldest first, until one goes; they ask again after an entry that one of them writes."""
        while True:
            before = self.seq
            for run in waiting:
                if self.ask(run) != "waits":
                    return True
            if self.seq == before:
                return False

    def finish(self) -> None:
        """Play to the end without further mishaps; where all that live wait, one of them goes or gives way."""
        for _ in range(2_000):
            live = [run for run in self.runs if run.state in LIVE]
            if not live:
                return
            busy = [run for run in live if run.state == "working" or run.held]
            if busy:
                run = self.chance.choice(busy)
                self.go_on(run)
                self.check(run)
                continue
            assert self.someone_goes(live), f"all wait for each other: {live}"
        raise AssertionError("it does not end")


def play_schedules(first: int, count: int) -> Counter[str]:
    """Play schedules with these seeds, and return what came of them."""
    db = open_in_memory()
    came: Counter[str] = Counter()
    try:
        for number in range(first, first + count):
            try:
                came += MoneySchedule(random.Random(number)).play(db, STEPS, by_sql=number % BY_SQL == 0)
            except AssertionError as error:
                raise AssertionError(f"schedule {number}: {error}") from error
    finally:
        db.close()
    return came
