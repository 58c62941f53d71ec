"""Decisions on money are found by time, page by page, and their sums are those of the raw entries."""

from __future__ import annotations

import random
from pathlib import Path

from support.log import run_who, write
from support.logs.decisions import all_pages, approved_runs, cost_of, decisions_in, is_decision, life_with_decisions

from ava_audit.events import Event, SessionStart, Who
from ava_audit.store.store import Store
from ava_audit.totals import Period, decision_page, decision_sums
from ava_audit.view import View

USERS = (None, "ben", "ana", "nobody")


async def test_pages_and_sums_are_those_of_the_raw_entries(tmp_path: Path) -> None:
    chance = random.Random(46)
    async with Store.open(tmp_path) as store:
        await write(store, Event(Who("sess-1", "ava", "ben"), SessionStart(client="host", transport="stdio")))
        for number in range(0, 60, 4):
            lives = [life_with_decisions(number + each, chance) for each in range(4)]
            await write(store, *(event for life in lives for event in life[:3]))  # of one command: at one time
            for event in (event for life in lives for event in life[3:]):
                await write(store, event)
        await write(store, Event(run_who("S-000001"), SessionStart(transport="stdio"), run_id="S-000001"))

        await store.read(check_pages_and_sums)


def check_pages_and_sums(view: View) -> None:
    everything = Period(0, 2**60)
    times = sorted({entry.ts_us for entry in decisions_in(view, everything)})
    questions = [entry for entry in view.of_type("Answered") if not is_decision(entry)]
    assert questions, "answers to questions stand between them and are none"
    for user in USERS:
        for since_us, until_us in ((0, 2**60), (times[3], times[-4]), (times[5], times[5])):
            check_period(view, Period(since_us, until_us, user))
    first = decision_page(view, everything, None, 1_000)[-1]
    assert first.proposed.type == "SpawnProposed" and first.run.id == first.entry.run_id
    began = {each.entry.session_id: each.began for each in all_pages(view, everything, 1_000)}
    assert began["sess-1"] is not None and began["sess-1"].client == "host" and began["sess-0"] is None


def check_period(view: View, period: Period) -> None:
    wanted = decisions_in(view, period)
    for limit in (1, 7, 1_000):
        assert [each.entry.seq for each in all_pages(view, period, limit)] == [each.seq for each in wanted]
    approved, sums = approved_runs(wanted), decision_sums(view, period)
    assert sums.cost_micros == cost_of(view, approved)
    assert sum(sums.counts.values()) == len(wanted) and sums.counts.get("approved", 0) == len(approved)
