"""Random but possible histories of runs, and the projections that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hypothesis import strategies as st

from ava_audit.events import CancelRequested, CostReserved, CostUpdate, Ending, Event
from ava_audit.projections import PROJECTIONS
from ava_audit.rows import DaySpending, RunRow, day_key
from ava_audit.store.store import Store
from ava_audit.units import DAY_US
from ava_audit.view import View
from support.log import Life, plan_events, run_who, tamper_with


async def run_row(log: Store, run_id: str = "S-aaaaaa") -> RunRow:
    """Return a run's row."""
    run = await log.read(lambda view: view.run(run_id))
    assert run is not None
    return run


async def money_in_scopes(log: Store, life: Life) -> set[tuple[int, int]]:
    """Return what each scope of a run has spent and held, in micro-USD."""
    buckets = [await log.read(partial(View.bucket, scope=scope)) for scope in life.scopes]
    assert [bucket.scope for bucket in buckets] == list(life.scopes)
    return {(bucket.spent_micros, bucket.held_micros) for bucket in buckets}


@dataclass
class RunHistory:
    """A random but possible history of a few runs: what a machine of states would let happen."""

    lives: list[Life]
    events: list[Event] = field(default_factory=list)
    at: dict[str, str] = field(default_factory=dict)
    plans: set[str | None] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)

    def step(self, draw: st.DrawFn) -> None:
        """Let the next thing happen to one of the runs."""
        life = draw(st.sampled_from(self.lives))
        state = self.at.get(life.run_id, "new")
        if state == "new":
            self.go(life, "waiting", life.proposal(), life.task(draw(st.text(max_size=5))))
        elif state == "waiting":
            plan = draw(st.sampled_from([None, "G-1", "G-2"]))
            plans = plan_events(plan, 100) if plan is not None and plan not in self.plans else ()
            self.plans |= {plan}
            self.go(life, "queued", *plans, life.approval(plan))
        elif state == "queued":
            self.go(life, "running", life.claim())
        elif state in ("running", "calling"):
            self.running(draw, life, state)
        else:
            self.events.append(
                Event(run_who(life.run_id), CancelRequested(subagent_id=life.run_id), run_id=life.run_id)
            )

    def running(self, draw: st.DrawFn, life: Life, state: str) -> None:
        """Let something happen to a run that runs."""
        micros = draw(st.integers(0, 10**6))
        if state == "calling":
            unknown = draw(st.booleans())
            self.go(life, "running", life.settlement(cost=micros, unknown=unknown))
            if draw(st.booleans()):  # taken over by another instance
                life.generation += 1
                self.events.append(life.claim())
            return
        what = draw(st.sampled_from(["reserve", "tool", "say", "fail", "pause", "ask", "resume", "end"]))
        if what == "reserve":
            self.go(life, "calling", life.reservation(draw(st.integers(1, 9)), micros, draw(st.integers(0, 1000))))
        elif what == "tool":
            self.events += life.tool()
        elif what == "say":
            self.events.append(life.answer())
        elif what == "fail":
            self.events.append(life.error())
        elif what == "pause":
            self.go(life, "queued", life.pause(active_us=micros))
        elif what == "ask":
            answers = draw(st.sampled_from([[], [life.request_answer(micros)], [life.request_answer(None)]]))
            self.go(life, "queued", life.request(active_us=micros), *answers)
        elif what == "resume":
            self.go(life, "queued", life.resume())
        else:
            ending: Ending = draw(st.sampled_from(["success", "timeout", "cancelled", "error"]))
            self.go(life, "ended", *life.ending(ending))
            self.ended.add(life.run_id)

    def go(self, life: Life, state: str, *events: Event) -> None:
        """Write events that bring a run into a state."""
        self.at[life.run_id] = state
        self.events += events


@st.composite
def run_histories(draw: st.DrawFn) -> RunHistory:
    """Return a history of three runs with at most forty steps."""
    history = RunHistory([Life(f"S-{number:06x}") for number in range(3)])
    for _ in range(draw(st.integers(1, 40))):
        history.step(draw)
    return history


def projection_rows(root: Path) -> dict[str, list[object]]:
    """Return all rows of each projection."""
    with tamper_with(root) as db:
        return {table: db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in PROJECTIONS}


def spending_in_log(view: View) -> dict[tuple[str, int], DaySpending]:
    """Return what each run has spent on each day, from the reservations and settlements alone."""
    found: dict[tuple[str, int], DaySpending] = {}
    held: dict[str, dict[tuple[int, int], int]] = {}
    entries = [*view.of_type("CostReserved"), *view.of_type("CostUpdate")]
    for entry in sorted(entries, key=lambda each: each.seq):
        assert entry.run_id is not None
        calls, fact = held.setdefault(entry.run_id, {}), entry.fact
        if isinstance(fact, CostReserved):
            if not fact.beside:  # whatever was in flight has been given up
                calls.clear()
            calls[fact.turn, fact.attempt] = entry.ts_us // DAY_US
            continue
        assert isinstance(fact, CostUpdate)
        day = calls.pop((fact.turn, fact.attempt), None)
        if day is None:
            continue
        cost = entry.cost_micros or 0
        key = day_key(entry.run_id, day)
        spent = found.setdefault((entry.run_id, day), DaySpending(key, entry.run_id, entry.user_id, day))
        spent.calls += 1
        spent.cost_micros += cost
        spent.retries_micros += fact.cost_by.get("retries", 0)
        spent.plan_micros += fact.cost_by.get("plan", 0)
        spent.uncosted_micros += cost * (fact.settlement == "unknown")
        spent.overruns += fact.overrun
        spent.over_micros += max(0, cost - fact.reserved_micros) * fact.overrun
    return found
