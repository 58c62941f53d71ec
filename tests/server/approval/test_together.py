"""Proposals that are approved together: a plan without edges, looked after, counted, erased and repeated as one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.approval.together import SECRET, approve_together, propose_two
from support.log import Life, plan_events, write
from support.runs import plans
from support.runtime import PRICED, hand_over, open_lab

from ava_audit.events import SpawnDecided, UserMessage
from ava_audit.retention import erase_run
from ava_audit.store.store import Store
from ava_audit.totals import Period, decision_sums, run_sums, user_sums
from ava_audit.view import View
from ava_server.approval.decisions import hourly_shortage
from ava_server.approval.proposals import NO_FREE_ID, brief_of
from ava_server.approval.together import StartedTogether, plan_of
from ava_server.render.host_text import text_of
from ava_server.run_config.config import config_of
from ava_server.runs.record.claims import TAKEOVER_WITHIN_US, waits_for_resume
from ava_server.service import confirm, spawn
from ava_server.service.access import Access, Session
from ava_server.service.erase import quoting_entries
from ava_server.service.service import Service


async def test_what_a_run_handed_over_is_erased_with_it_in_the_plan_too(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over(output=SECRET), hand_over(output="nothing")], config=PRICED) as lab:
        made = await propose_two(lab)
        plan_id = await approve_together(lab, *made, last="2 subagents together, at most $1.00")
        await lab.ended(plan_id)
        for proposal in made:
            run = await lab.run(proposal.subagent_id)
            also = await lab.store.read(lambda view, run=run: quoting_entries(view, run))  # type: ignore[misc]
            await erase_run(lab.store, run.id, also, lab.session.who, "no longer needed")
        kept = await lab.store.read(lambda view: list(view.select("SELECT content FROM events")))
        assert not any(SECRET in str(content) for (content,) in kept)
        assert SECRET not in text_of(await lab.call("check_subagent", group_id=plan_id))


async def test_money_and_starts_are_counted_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 3, config=PRICED) as lab:
        made = [*await propose_two(lab), await lab.propose(task="Part three", model="offline")]
        plan_id = await approve_together(lab, *made, last="3 subagents together, at most $1.50")
        await lab.ended(plan_id)
        limits = lab.runtime.spawn_limits_of(lab.runtime.user)
        user = lab.session.user

        def counted(view: View) -> tuple[int, int, int, int, int]:
            own = sum(row.cost_micros for row in view.step_runs(plan_id))
            period = Period(0, 2**60)
            return (
                own,
                sum(one.cost_micros for one in run_sums(view)),
                sum(one.cost_micros for one in user_sums(view)),
                decision_sums(view, period).cost_micros,
                decision_sums(view, period).counts["approved"],
            )

        own, of_runs, of_users, approved_cost, approvals = await lab.store.read(counted)
        assert own == of_runs == of_users == approved_cost > 0
        assert approvals == 3

        now_us = (await lab.run(plan_id)).queued_us or 0
        short = await lab.store.read(
            lambda view: hourly_shortage(view, user, 1, replace(limits, spawns_per_hour=2), now_us)
        )
        assert short is not None and short.left == 0, "two paid starts, and the free one does not count"


async def test_a_plan_of_proposals_is_repeated_and_the_braces_of_a_task_are_no_reference(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 4, config=PRICED) as lab:
        named = [await lab.propose(task=f"Part {name}", task_id=name) for name in ("one", "two")]
        first = await approve_together(lab, *named, last="2 subagents together, at most $1.00")
        await lab.ended(first)
        again = await lab.call("spawn_subagent", retry_of=first, again=["researcher"])
        assert again.status == "awaiting_approval", again.message

        odd = [await lab.propose(task="What does {{researcher_2}} mean?"), await lab.propose(task="Plain")]
        second = await approve_together(lab, *odd, last="2 subagents together, at most $1.00")
        await lab.ended(second)
        third = await lab.call("spawn_subagent", retry_of=second, again=["researcher"])
        await lab.approve(third)
        await lab.ended(third.group_id)
        [task] = await lab.facts(await plans.run_of_step(lab, third.group_id, "researcher"), UserMessage)
    assert task.text == "What does {{researcher_2}} mean?" and not task.inputs


async def test_many_large_proposals_fit_into_one_plan(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED) as lab:
        made = await lab.propose()
        run = await lab.run(made.subagent_id)
        config = config_of(run.config).model_copy(update={"role_text": "x" * 22_000})
        brief = await lab.store.read(lambda view: brief_of(view, run))
        assert brief is not None
        members = [StartedTogether(f"S-{number:06x}", run.session_id, config, brief) for number in range(200)]
        plan = plan_of(members, ("P-00000001", "G-0000001"), 1_000_000, None)
    assert len(json.dumps(plan.config.model_dump(mode="json"))) < 1_000_000, "an entry may have 2,000,000 bytes"


async def test_a_plan_that_starts_nothing_more_needs_no_person_to_end(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 2, config=PRICED) as lab:
        made = await propose_two(lab)
        plan = await lab.ended(await approve_together(lab, *made, last="2 subagents together, at most $1.00"))
        lost = replace(plan, state="running", ended_us=None)
        later_us = (plan.last_us or 0) + 2 * TAKEOVER_WITHIN_US
        assert not await lab.store.read(lambda view: waits_for_resume(view, lost, later_us))


async def test_a_plan_works_where_its_steps_do(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 2, config=PRICED) as lab:
        elsewhere = Service(lab.runtime, Session(user=lab.session.user, transport="memory", roots=("/srv/other",)))
        here = Service(lab.runtime, Session(user=lab.session.user, transport="memory", roots=(lab.workspace.as_uri(),)))
        made = await propose_two(lab)
        plan = await lab.ended(await approve_together(lab, *made, last="2 subagents together, at most $1.00"))
        assert Access(lab.runtime, here.session).is_here(plan)
        assert not Access(lab.runtime, elsewhere.session).is_here(plan)


async def test_ids_that_are_taken_are_not_used_for_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_lab(tmp_path, [hand_over()] * 6, config=PRICED) as lab:
        first = await lab.ended(
            await approve_together(lab, *await propose_two(lab), last="2 subagents together, at most $1.00")
        )
        taken = (first.pending_id, first.id)
        made = await propose_two(lab)
        monkeypatch.setattr(confirm, "new_pairs", lambda _field: (taken,) * 4)
        refused = await lab.approve(*made, last="2 subagents together, at most $1.00")
        assert refused.status == "refused" and NO_FREE_ID in refused.decisions[0].refused_because
        assert await lab.run(first.id) == first
        free = ("P-00000009", "G-0000009")
        monkeypatch.setattr(confirm, "new_pairs", lambda _field: (taken, (taken[0], free[1]), free))
        again = await lab.approve(*made, last="2 subagents together, at most $1.00")
        assert again.group_id == "G-0000009", again
        await lab.ended(again.group_id)

        monkeypatch.setattr(spawn, "new_pairs", lambda _field: (taken,) * 4)
        none = await lab.call("spawn_subagent", role="researcher", task="One more")
        assert none.status == "failed" and NO_FREE_ID in none.message


async def test_a_plan_of_a_development_version_is_read_as_runs_of_their_own(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    decided = life.approval()
    assert isinstance(decided.fact, SpawnDecided)
    old = decided._replace(fact=decided.fact.model_copy(update={"group_id": "G-0000009"}))
    async with Store.open(tmp_path) as log:
        await write(log, *plan_events("G-0000001"), life.proposal(), life.task(), old, life.claim())
        run = await log.read(lambda view: view.run("S-aaaaaa"))
    assert run is not None and (run.state, run.plan_id, run.step) == ("running", None, None)
