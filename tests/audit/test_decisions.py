"""Decisions on money are found by time, page by page, and their sums are those of the raw entries."""

from __future__ import annotations

import random
from pathlib import Path

from support.log import Life, run_who, write

from ava_audit.entries import Entry
from ava_audit.events import Answered, CostUpdate, Event, RunResumed, SessionStart, SpawnDecided, Usage, Who
from ava_audit.store.store import Store
from ava_audit.totals import FoundDecision, Period, decision_page, decision_sums
from ava_audit.view import View

DECIDED = ("SpawnDecided", "Answered", "RunResumed")
USERS = (None, "ben", "ana", "nobody")


def decided(life: Life, decision: str, session: str) -> Event:
    fact = SpawnDecided.model_validate({"pending_id": life.pending_id, "decision": decision, "channel": "terminal"})
    return Event(Who(session, "ava", life.user), fact, run_id=life.run_id)


def some_life(number: int, chance: random.Random) -> list[Event]:
    """A run that is rejected, expires, or is approved, pays, and may get more, ask a question, and be resumed."""
    life = Life(f"S-{number:06}", user=chance.choice(("ben", "ana")))
    session = f"sess-{chance.randrange(3)}"
    begun = [life.proposed(max_cost_micros=number), life.task()]
    decision = chance.choice(("rejected", "expired", "superseded", "approved", "approved", "approved"))
    if decision != "approved":
        return [*begun, decided(life, decision, session)]
    events = [*begun, decided(life, "approved", session), life.claimed()]
    for turn in range(chance.randrange(3)):
        life.turn = turn + 1
        cost = chance.randrange(90_000)
        fact = CostUpdate(
            turn=life.turn, attempt=1, settlement="billed", tokens=3, cost_cents=cost / 10_000, reserved_micros=90_000
        )
        events += [life.reserved(life.turn, 90_000), life.wrote(fact, usage=Usage(input_tokens=3), cost_micros=cost)]
    if chance.random() < 0.4:
        events += [life.asked(), life.answered_request(chance.choice((None, 700_000))), life.claimed()]
    if chance.random() < 0.4:
        events += [life.question(), life.answered_question(), life.claimed()]
    if chance.random() < 0.3:
        who = Who(session, "ava", chance.choice(("ben", "ana", "owner")))
        events.append(Event(who, RunResumed(channel="terminal"), run_id=life.run_id))
    return events


def is_decision(entry: Entry) -> bool:
    fact = entry.fact
    made = isinstance(fact, SpawnDecided) and fact.decision in ("approved", "rejected")
    return made or isinstance(fact, RunResumed) or (isinstance(fact, Answered) and fact.for_more)


def pages(view: View, period: Period, limit: int) -> list[FoundDecision]:
    found: list[FoundDecision] = []
    while True:
        last = found[-1].entry if found else None
        page = decision_page(view, period, None if last is None else (last.ts_us, last.seq), limit)
        found += page
        if len(page) < limit:
            return found


async def test_pages_and_sums_are_those_of_the_raw_entries(tmp_path: Path) -> None:
    chance = random.Random(46)
    async with Store.open(tmp_path) as store:
        await write(store, Event(Who("sess-1", "ava", "ben"), SessionStart(client="host", transport="stdio")))
        for number in range(0, 60, 4):
            lives = [some_life(number + each, chance) for each in range(4)]
            await write(store, *(event for life in lives for event in life[:3]))  # of one command: at one time
            for event in (event for life in lives for event in life[3:]):
                await write(store, event)
        await write(store, Event(run_who("S-000001"), SessionStart(transport="stdio"), run_id="S-000001"))

        def compare(view: View) -> None:
            entries = [entry for kind in DECIDED for entry in view.of_type(kind) if is_decision(entry)]
            entries.sort(key=lambda entry: (entry.ts_us, entry.seq), reverse=True)
            times = sorted({entry.ts_us for entry in entries})
            owners = {run.id: run.user_id for run in view.runs(limit=-1)}
            paid = [(entry.run_id, entry.cost_micros or 0) for entry in view.of_type("CostUpdate")]
            questions = [entry.fact for entry in view.of_type("Answered") if not is_decision(entry)]
            assert questions, "answers to questions stand between them and are none"
            for user in USERS:
                for since_us, until_us in ((0, 2**60), (times[3], times[-4]), (times[5], times[5])):
                    period = Period(since_us, until_us, user)
                    wanted = [
                        entry
                        for entry in entries
                        if since_us <= entry.ts_us < until_us and user in (None, owners[entry.run_id or ""])
                    ]
                    for limit in (1, 7, 1_000):
                        assert [each.entry.seq for each in pages(view, period, limit)] == [each.seq for each in wanted]
                    sums = decision_sums(view, period)
                    approved = {
                        entry.run_id
                        for entry in wanted
                        if isinstance(entry.fact, SpawnDecided) and entry.fact.decision == "approved"
                    }
                    assert sums.cost_micros == sum(cost for run_id, cost in paid if run_id in approved)
                    assert sum(sums.counts.values()) == len(wanted) and sums.counts.get("approved", 0) == len(approved)
            first = decision_page(view, Period(0, 2**60), None, 1_000)[-1]
            assert first.proposed.type == "SpawnProposed" and first.run.id == first.entry.run_id
            began = {each.entry.session_id: each.began for each in pages(view, Period(0, 2**60), 1_000)}
            assert began["sess-1"] is not None and began["sess-1"].client == "host" and began["sess-0"] is None

        await store.read(compare)
