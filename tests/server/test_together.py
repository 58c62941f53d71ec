"""Proposals that are approved together: a plan without edges, looked after, counted, erased and repeated as one."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.approval.groups import SECRET, approve_group, propose_two, save_and_ask, wait_until_read
from support.log import Life, plan_events, write
from support.model_server import Gate, Step
from support.runtime import PRICED, hand_over, open_lab

from ava_audit.events import SpawnDecided
from ava_audit.retention import erase_run
from ava_audit.store.store import Store
from ava_audit.totals import Period, decision_sums, run_sums, user_sums
from ava_audit.view import View
from ava_server.approval.decisions import hourly_shortage
from ava_server.approval.proposals import NO_FREE_ID, texts_of
from ava_server.approval.together import StartedTogether, plan_of
from ava_server.budget.run_config import config_of
from ava_server.render.host_text import text_of
from ava_server.render.plan_view import GIVEN
from ava_server.runs.claims import TAKEOVER_WITHIN_US, waits_for_resume
from ava_server.service import confirm, spawn
from ava_server.service.access import Access, Session, ignore_progress
from ava_server.service.erase import quoting_entries
from ava_server.service.service import Service


async def test_what_a_run_handed_over_is_erased_with_it_in_the_plan_too(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over(output=SECRET), hand_over(output="nothing")], config=PRICED) as lab:
        made = await propose_two(lab)
        plan_id = await approve_group(lab, *made, last="2 subagents together, at most $1.00")
        await lab.ended(plan_id)
        for proposal in made:
            run = await lab.run(proposal.subagent_id)
            also = await lab.store.read(lambda view, run=run: quoting_entries(view, run))  # type: ignore[misc]
            await erase_run(lab.store, run.id, also, lab.session.who, "no longer needed")
        kept = await lab.store.read(lambda view: list(view.select("SELECT content FROM events")))
        assert not any(SECRET in str(content) for (content,) in kept)
        assert SECRET not in text_of(await lab.call("check_subagent", group_id=plan_id))


async def test_a_wait_ends_when_all_that_is_left_waits_for_the_person(tmp_path: Path) -> None:
    async with open_lab(tmp_path, save_and_ask, config=PRICED) as lab:
        made = await propose_two(lab)
        plan_id = await approve_group(lab, *made, last="2 subagents together, at most $1.00")
        await wait_until_read(lab, lambda view: len(view.asking_runs(plan_id)) == 2)
        began = time.monotonic()
        checked = await lab.call("check_subagent", group_id=plan_id, wait_seconds=20)
        assert time.monotonic() - began < 10, "the plan itself says nothing until it ends"
        assert checked.runs[0].plan["runs"] == {"waiting for a person": 2}
        await anyio.sleep(1.1)
        later = await lab.call("check_subagent", group_id=plan_id)
        assert later.runs[0].elapsed_seconds == checked.runs[0].elapsed_seconds, "its time stands still, and so it says"
        refused = await lab.call("message_subagent", subagent_id=plan_id, message="Go on.")
        assert refused.status == "failed" and "reads no messages" in refused.message

        await lab.call("cancel_subagent", group_id=plan_id)
        for proposal in made:
            result = await lab.result(proposal.subagent_id)
            assert result["status"] == "cancelled"
            assert [one["name"] for one in result["untrusted_result"]["artifacts"]] == ["notes.txt"], "work is kept"


async def test_money_and_starts_are_counted_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 3, config=PRICED) as lab:
        made = [*await propose_two(lab), await lab.propose(task="Part three", model="offline")]
        plan_id = await approve_group(lab, *made, last="3 subagents together, at most $1.50")
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


async def test_a_plan_of_proposals_is_repeated_unless_a_task_would_become_a_reference(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 4, config=PRICED) as lab:
        named = [await lab.propose(task=f"Part {name}", task_id=name) for name in ("one", "two")]
        first = await approve_group(lab, *named, last="2 subagents together, at most $1.00")
        await lab.ended(first)
        again = await lab.call("spawn_subagent", retry_of=first, again=["researcher"])
        assert again.status == "awaiting_approval", again.message

        odd = [await lab.propose(task="What does {{researcher_2}} mean?"), await lab.propose(task="Plain")]
        second = await approve_group(lab, *odd, last="2 subagents together, at most $1.00")
        await lab.ended(second)
        refused = await lab.call("spawn_subagent", retry_of=second, again=["researcher"])
        assert refused.status == "failed" and odd[0].subagent_id in refused.message, refused.message


async def test_many_large_proposals_fit_into_one_plan(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED) as lab:
        made = await lab.propose()
        run = await lab.run(made.subagent_id)
        config = config_of(run.config).model_copy(update={"role_text": "x" * 22_000})
        texts = await lab.store.read(lambda view: texts_of(view, run))
        assert texts is not None
        members = [StartedTogether(f"S-{number:06x}", run.session_id, config, texts) for number in range(200)]
        plan = plan_of(members, ("P-00000001", "G-0000001"), 1_000_000, None)
    assert len(json.dumps(plan.config.model_dump(mode="json"))) < 1_000_000, "an entry may have 2,000,000 bytes"


async def test_a_plan_that_starts_nothing_more_needs_no_person_to_end(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 2, config=PRICED) as lab:
        made = await propose_two(lab)
        plan = await lab.ended(await approve_group(lab, *made, last="2 subagents together, at most $1.00"))
        lost = replace(plan, state="running", ended_us=None)
        later_us = (plan.last_us or 0) + 2 * TAKEOVER_WITHIN_US
        assert not await lab.store.read(lambda view: waits_for_resume(view, lost, later_us))


async def test_results_that_a_confirmation_has_given_are_not_told_again(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over(output="first"), hand_over(output="second")], config=PRICED) as lab:
        made = await propose_two(lab)
        answer = await lab.approve(*made, last="2 subagents together, at most $1.00", wait_seconds=30)
        assert {run["untrusted_result"]["output"] for run in answer.runs} == {"first", "second"}
        plan = await lab.run(answer.group_id)
        assert plan.ended and plan.fetched_us is not None
        assert not answer.notices
        listed = await lab.call("check_subagent")
        assert not listed.notices
        checked = await lab.call("check_subagent", group_id=plan.id)
        output = checked.runs[0].untrusted_result.output
        assert set(output.values()) == {GIVEN.format(one.subagent_id) for one in made}
        other = Service(lab.runtime, Session(user=lab.session.user, transport="memory"))
        whole: Any = await other.call("check_subagent", {"group_id": plan.id}, ignore_progress)
        assert set(whole.runs[0].untrusted_result.output.values()) == {"first", "second"}, "it was told nothing yet"


async def test_a_plans_end_leaves_out_the_results_that_were_given_before(tmp_path: Path) -> None:
    gate = Gate()

    def work(request: dict[str, Any]) -> Step:
        if "Part two" in json.dumps(request):
            return replace(hand_over(output="long " * 6_000), gate=gate)
        return hand_over(output="first")

    async with open_lab(tmp_path, work, config=PRICED) as lab:
        made = await propose_two(lab)
        plan_id = await approve_group(lab, *made, last="2 subagents together, at most $1.00")
        await lab.ended(made[0].subagent_id)
        early = await lab.call("check_subagent", subagent_id=made[0].subagent_id)
        assert early.runs[0].untrusted_result.output == "first"
        gate.released.set()
        await lab.ended(plan_id)
        listed = await lab.call("check_subagent")
        assert not any(notice for notice in listed.notices or () if made[1].subagent_id in notice)
        shown = await lab.call("check_subagent", group_id=plan_id)
        first = shown.runs[0].untrusted_result.output
        assert GIVEN.format(made[0].subagent_id) in first and shown.runs[0].cursor is not None
        await lab.call("check_subagent", subagent_id=made[1].subagent_id)
        text, cursor = first, shown.runs[0].cursor
        while cursor is not None:
            more = (await lab.call("check_subagent", group_id=plan_id, cursor=cursor)).runs[0]
            text, cursor = text + more.untrusted_result.output, more.cursor
        assert json.loads(text)["researcher_2"] == "long " * 6_000, "the pages are of one text"


async def test_the_host_that_proposed_is_told_once_how_a_plan_ended_that_was_approved_elsewhere(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 3, config=PRICED) as lab:
        other = await lab.start(task="Something else")
        await lab.ended(other)
        made = await propose_two(lab)
        person = Service(lab.runtime, Session(user=lab.session.user, transport="terminal", channel="terminal"))
        lines = [*(each.approval_line for each in made), "2 subagents together, at most $1.00"]
        ids = [each.pending_id for each in made]
        confirmed: Any = await person.call("confirm_spawn", {"pending_ids": ids, "approving": lines}, ignore_progress)
        assert confirmed.status == "approved", confirmed
        plan = await lab.ended(confirmed.group_id)
        assert plan.session_id == lab.session.id
        told = (await lab.call("spawn_subagent", role="researcher", task="Go on")).notices
        assert [line for line in told if plan.id in line] == [line for line in told if "plan" in line]
        assert not any(one.subagent_id in line for line in told for one in made)
        await lab.call("check_subagent", group_id=plan.id)
        later = (await lab.call("spawn_subagent", role="researcher", task="And on")).notices
        assert not any(plan.id in line for line in later)


async def test_a_plan_works_where_its_steps_do(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 2, config=PRICED) as lab:
        elsewhere = Service(lab.runtime, Session(user=lab.session.user, transport="memory", roots=("/srv/other",)))
        here = Service(lab.runtime, Session(user=lab.session.user, transport="memory", roots=(lab.workspace.as_uri(),)))
        made = await propose_two(lab)
        plan = await lab.ended(await approve_group(lab, *made, last="2 subagents together, at most $1.00"))
        assert Access(lab.runtime, here.session).is_here(plan)
        assert not Access(lab.runtime, elsewhere.session).is_here(plan)


async def test_ids_that_are_taken_are_not_used_for_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_lab(tmp_path, [hand_over()] * 6, config=PRICED) as lab:
        first = await lab.ended(
            await approve_group(lab, *await propose_two(lab), last="2 subagents together, at most $1.00")
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


async def test_a_group_of_a_development_version_is_read_as_runs_of_their_own(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    decided = life.approval()
    assert isinstance(decided.fact, SpawnDecided)
    old = decided._replace(fact=decided.fact.model_copy(update={"group_id": "G-0000009"}))
    async with Store.open(tmp_path) as log:
        await write(log, *plan_events("G-0000001"), life.proposal(), life.task(), old, life.claim())
        run = await log.read(lambda view: view.run("S-aaaaaa"))
    assert run is not None and (run.state, run.plan_id, run.step) == ("running", None, None)
