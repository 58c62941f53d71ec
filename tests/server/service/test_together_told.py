"""What a host is told of proposals that were approved together: the end of their plan once, each result once."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from support.approval.together import approve_together, propose_two, save_and_ask
from support.model_server import Gate, Step
from support.runs.plan_questions import rows_that_ask
from support.runtime import PRICED, hand_over, open_lab

from ava_server.render.plan_view import GIVEN
from ava_server.service.access import Session, ignore_progress
from ava_server.service.service import Service


async def test_a_wait_ends_when_all_that_is_left_waits_for_the_person(tmp_path: Path) -> None:
    async with open_lab(tmp_path, save_and_ask, config=PRICED) as lab:
        made = await propose_two(lab)
        plan_id = await approve_together(lab, *made, last="2 subagents together, at most $1.00")
        await rows_that_ask(lab, plan_id, 2)
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
        plan_id = await approve_together(lab, *made, last="2 subagents together, at most $1.00")
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
