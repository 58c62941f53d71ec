"""Proposals that are approved together: one line, one cap, and all of them or none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.approval.answers import why_refused
from support.model_server import Gate, Say
from support.runtime import PRICED, hand_over, open_lab

from ava_server.approval.decisions import Approval, PlanLimits, approve


async def test_two_ids_form_one_plan_capped_at_the_sum_of_their_caps(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 2, config=PRICED) as lab:
        first, second = await lab.propose(task="one"), await lab.propose(task="two", max_cost_cents=30)
        without = await lab.approve(first, second)
        line = "2 subagents together, at most $0.80"
        assert without.approval_lines == [first.approval_line, second.approval_line, line]
        answer = await lab.approve(first, second, last=line)
        assert answer.status == "approved" and answer.group_id.startswith("G-")
        caps = await lab.store.read(lambda view: view.plan_caps(answer.group_id))
        assert caps is not None and caps.cap_micros == 800_000
        checked = await lab.call("check_subagent", group_id=answer.group_id, wait_seconds=20)
        [plan] = checked.runs
        assert (checked.status, plan.state, plan.plan["steps"]) == ("success", "success", {"done": 2})
        assert plan.untrusted_result.output.keys() == {"researcher", "researcher_2"}, "each by its role"
        for proposal in (first, second):
            assert (await lab.ended(proposal.subagent_id)).state == "success"


async def test_a_plan_line_shows_the_cap_and_timeout_of_the_plan(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()] * 2, config=PRICED) as lab:
        made = [await lab.propose(task="one"), await lab.propose(task="two")]
        caps = {"group_max_cost_cents": 60, "group_timeout": 900}
        plain = await lab.approve(*made, last="2 subagents together, at most $1.00", **caps)
        assert plain.approval_lines[-1] == "2 subagents together, at most $0.60 and 15 min"
        answer = await lab.approve(*made, last=plain.approval_lines[-1], **caps)
        assert answer.status == "approved"
        for proposal in made:
            await lab.ended(proposal.subagent_id)


async def test_rejects_a_plan_cap_above_the_sum(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        made = [await lab.propose(task="one"), await lab.propose(task="two")]
        line = "2 subagents together, at most $1.01"
        answer = await lab.approve(*made, last=line, group_max_cost_cents=101)
        assert "$1.00" in why_refused(answer)
        assert await lab.states() == ["awaiting_approval"] * 2


async def test_one_member_that_cannot_start_stops_the_whole_plan(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        first, second = await lab.propose(task="one"), await lab.propose(task="two")
        await lab.call("confirm_spawn", pending_ids=[second.pending_id], decision="reject")
        answer = await lab.approve(first, second, last="2 subagents together, at most $1.00")
        assert answer.status == "refused"
        reasons = [decision.refused_because for decision in answer.decisions]
        assert "another one cannot start" in reasons[0] and "rejected" in reasons[1]
        assert await lab.states() == ["awaiting_approval", "rejected"]


async def test_one_wrong_line_starts_nothing_of_the_plan(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        first, second = await lab.propose(task="one"), await lab.propose(task="two")
        lines: Sequence[str] = [first.approval_line, second.approval_line + " ", "2 subagents together, at most $1.00"]
        ids = [first.pending_id, second.pending_id]
        answer = await lab.call("confirm_spawn", pending_ids=ids, approving=lines)
        assert answer.status == "refused" and len(answer.decisions) == 2
        swapped = [second.approval_line, first.approval_line, "2 subagents together, at most $1.00"]
        assert (await lab.call("confirm_spawn", pending_ids=ids, approving=swapped)).status == "refused"
        assert await lab.states() == ["awaiting_approval"] * 2


async def test_rejects_a_plan_cap_for_a_single_id(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        proposal = await lab.propose()
        answer = await lab.approve(proposal, group_max_cost_cents=10)
        assert answer.status == "failed" and "group_max_cost_cents" in answer.message
        answer = await lab.approve(proposal, group_timeout=10)
        assert answer.status == "failed" and "group_timeout" in answer.message
        assert await lab.states() == ["awaiting_approval"]


@pytest.mark.parametrize(
    "raised", [PlanLimits(1_000_001, None), PlanLimits(None, 901), PlanLimits(1, 901), PlanLimits(1_000_001, 1)]
)
async def test_the_decision_command_itself_rejects_a_raised_plan_limit(tmp_path: Path, raised: PlanLimits) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        made = [await lab.propose(task="one"), await lab.propose(task="two")]
        lines = (*(each.approval_line for each in made), "2 subagents together, at most $1.00 and 15 min")
        ids = tuple(each.pending_id for each in made)
        asked = Approval(ids, lines, plan_timeout_s=900, plan_ids=(("P-00000001", "G-0000001"),), plan_lowered=raised)
        who, limits = lab.session.who, lab.runtime.spawn_limits_of(lab.runtime.user)
        decided = await lab.store.do(approve(asked, who, "elicitation", limits))
        assert [each.status for each in decided.decisions] == ["refused"] * 2
        assert await lab.states() == ["awaiting_approval"] * 2


@pytest.mark.slow
async def test_the_plan_timeout_ends_its_runs_as_timeout(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Say("late", gate=Gate()) for _ in range(4)]) as lab:
        made = [await lab.propose(task="one"), await lab.propose(task="two")]
        answer = await lab.approve(*made, last="2 subagents together, free, at most 2 s", group_timeout=2)
        assert answer.status == "approved", answer
        ended = [await lab.ended(proposal.subagent_id, within_s=60) for proposal in made]
    assert [run.state for run in ended] == ["timeout", "timeout"]
    assert all("the plan's time" in str(run.stop_reason) for run in ended)
