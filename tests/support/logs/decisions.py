"""Runs on which people decided, and the decisions that stand in the raw entries."""

from __future__ import annotations

import random
from collections.abc import Iterable

from ava_audit.entries import Entry
from ava_audit.events import Answered, CostUpdate, Event, RunResumed, SpawnDecided, Usage, Who
from ava_audit.totals import FoundDecision, Period, decision_page
from ava_audit.view import View
from support.log import Life

DECIDED = ("SpawnDecided", "Answered", "RunResumed")


def decision_event(life: Life, decision: str, session: str) -> Event:
    """Return a person's decision on a proposal, in a session."""
    fact = SpawnDecided.model_validate({"pending_id": life.pending_id, "decision": decision, "channel": "terminal"})
    return Event(Who(session, "ava", life.user), fact, run_id=life.run_id)


def life_with_decisions(number: int, chance: random.Random) -> list[Event]:
    """Return the events of a run that is rejected, expires, or is approved, pays, and may ask and be resumed."""
    life = Life(f"S-{number:06}", user=chance.choice(("ben", "ana")))
    session = f"sess-{chance.randrange(3)}"
    begun = [life.proposal(max_cost_micros=number), life.task()]
    decision = chance.choice(("rejected", "expired", "superseded", "approved", "approved", "approved"))
    if decision != "approved":
        return [*begun, decision_event(life, decision, session)]
    events = [*begun, decision_event(life, "approved", session), life.claim()]
    for turn in range(chance.randrange(3)):
        life.turn = turn + 1
        cost = chance.randrange(90_000)
        fact = CostUpdate(
            turn=life.turn, attempt=1, settlement="billed", tokens=3, cost_cents=cost / 10_000, reserved_micros=90_000
        )
        events += [life.reservation(life.turn, 90_000), life.entry(fact, usage=Usage(input_tokens=3), cost_micros=cost)]
    if chance.random() < 0.4:
        events += [life.request(), life.request_answer(chance.choice((None, 700_000))), life.claim()]
    if chance.random() < 0.4:
        events += [life.question(), life.question_answer(), life.claim()]
    if chance.random() < 0.3:
        who = Who(session, "ava", chance.choice(("ben", "ana", "owner")))
        events.append(Event(who, RunResumed(channel="terminal"), run_id=life.run_id))
    return events


def is_decision(entry: Entry) -> bool:
    """Return whether an entry decides on money."""
    fact = entry.fact
    made = isinstance(fact, SpawnDecided) and fact.decision in ("approved", "rejected")
    return made or isinstance(fact, RunResumed) or (isinstance(fact, Answered) and fact.for_more)


def all_pages(view: View, period: Period, limit: int) -> list[FoundDecision]:
    """Return the decisions on all pages of a period."""
    found: list[FoundDecision] = []
    while True:
        last = found[-1].entry if found else None
        page = decision_page(view, period, None if last is None else (last.ts_us, last.seq), limit)
        found += page
        if len(page) < limit:
            return found


def decisions_in(view: View, period: Period) -> list[Entry]:
    """Return the entries of a period that decide on money, the newest first, as the raw log has them."""
    owners = {run.id: run.user_id for run in view.runs(limit=-1)}
    entries = [entry for kind in DECIDED for entry in view.of_type(kind) if is_decision(entry)]
    entries.sort(key=lambda entry: (entry.ts_us, entry.seq), reverse=True)
    return [
        entry
        for entry in entries
        if period.since_us <= entry.ts_us < period.until_us and period.user in (None, owners[entry.run_id or ""])
    ]


def approved_runs(entries: Iterable[Entry]) -> set[str | None]:
    """Return the runs that these entries approve."""
    return {
        entry.run_id for entry in entries if isinstance(entry.fact, SpawnDecided) and entry.fact.decision == "approved"
    }


def cost_of(view: View, runs: set[str | None]) -> int:
    """Return what the calls of these runs have cost, in micro-USD, as the raw log has it."""
    return sum(entry.cost_micros or 0 for entry in view.of_type("CostUpdate") if entry.run_id in runs)
