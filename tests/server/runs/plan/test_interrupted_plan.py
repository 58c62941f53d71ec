"""A plan whose remaining runs were interrupted waits for a person, as a single run does: state, clock and resume."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Gate, ModelServer, Say, run_model_server
from support.runs import plans
from support.runs.faults import wait_until
from support.runs.owners import claim_as, resume_at_terminal
from support.runtime import PRICED, Lab, check_budgets, hand_over, open_lab, wait_for

from ava_audit.rows import RunRow
from ava_audit.units import now_us
from ava_server.runs.record import claims
from ava_server.runs.record.claims import NotResumed

STEP = plans.step("look", "Look around.", max_cost_cents=36)


async def leave_plan(tmp: Path, server: ModelServer, gate: Gate, **more: Any) -> str:
    """Start a plan of one step, and end its process during the first call."""
    async with open_lab(tmp, server=server, config=PRICED, check=False) as lab:
        proposal = await plans.propose(lab, [STEP], **more)
        assert (await lab.approve(proposal)).status == "approved"
        await wait_for(gate.arrived)
        return str(proposal.group_id)


async def leave_again(tmp: Path, server: ModelServer, gate: Gate) -> None:
    """Let another process take the plan over, and end during the next call."""
    async with open_lab(tmp, server=server, config=PRICED, check=False):
        await wait_for(gate.arrived)


async def passed_s(lab: Lab, plan_id: str) -> float:
    caps = await lab.store.read(lambda view: view.plan_caps(plan_id))
    assert caps is not None
    return caps.passed_us(now_us()) / 1e6


async def interrupted_run(lab: Lab, plan_id: str) -> RunRow:
    """Wait until the log says that the plan's run continues only when a person resumes it."""
    run_id = await plans.run_of_step(lab, plan_id, "look")
    await lab.logged(run_id, "RunPaused")
    return await lab.run(run_id)


async def test_a_plan_whose_run_lost_too_much_money_waits_for_a_person(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    with run_model_server([*(Say("lost", gate=gate) for gate in gates), hand_over(), hand_over()]) as server:
        plan_id = await leave_plan(tmp_path, server, gates[0])
        await leave_again(tmp_path, server, gates[1])
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            run = await interrupted_run(lab, plan_id)
            stood_s = await passed_s(lab, plan_id)
            await lab.ended(await lab.start(task="another"))
            assert await passed_s(lab, plan_id) == stood_s, "its clock stands still"

            checked = await lab.call("check_subagent", group_id=plan_id)
            shown = checked.runs[0]
            assert checked.status == "interrupted", checked
            assert f"ava resume {plan_id}" in shown.waits_for, shown.waits_for
            assert shown.plan["runs"] == {"interrupted": 1}, shown.plan
            assert run.id in shown.plan["lines"][0] and "interrupted" in shown.plan["lines"][0]
            listed = await lab.call("read_ava_logs", last_n=1)
            interrupted = [line for line in listed.notices if "was interrupted" in line]
            assert len(interrupted) == 1 and plan_id in interrupted[0], "its runs are resumed with it"

            refused = await lab.call("confirm_spawn", pending_ids=[plan_id])
            given = {"pending_ids": [plan_id], "approving": refused.approval_lines, "wait_seconds": 20}
            answer = await lab.call("confirm_spawn", **given)
            assert answer.status == "resumed" and answer.runs[0]["state"] == "success", answer
            await lab.store.read(check_budgets)


async def test_the_time_without_a_process_does_not_count_once_a_person_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), hand_over()]) as server:
        plan_id = await leave_plan(tmp_path, server, gate, timeout=4)
        await wait_until(time.time() + 4.5)
        monkeypatch.setattr(claims, "TAKEOVER_WITHIN_US", 0)
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            await interrupted_run(lab, plan_id)
            checked = await lab.call("check_subagent", group_id=plan_id)
            assert checked.status == "interrupted" and checked.runs[0].elapsed_seconds < 4, checked
            assert not isinstance(await resume_at_terminal(lab, plan_id), NotResumed)
            lab.runtime.manager.adopted.add(plan_id)
            plan = await lab.ended(plan_id)
            assert plan.state == "success", plan.stop_reason
            assert await passed_s(lab, plan_id) < 4


async def test_a_plan_that_nobody_looked_after_is_resumed_with_the_time_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that resumes it is the first one that sees it."""
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), hand_over()]) as server:
        plan_id = await leave_plan(tmp_path, server, gate, timeout=4)
        await wait_until(time.time() + 4.5)
        monkeypatch.setattr(claims, "TAKEOVER_WITHIN_US", 0)
        async with open_lab(tmp_path, server=server, config=PRICED, check=False, runs=False) as lab:
            checked = await lab.call("check_subagent", group_id=plan_id)
            assert checked.status == "interrupted" and checked.runs[0].elapsed_seconds < 4, checked
            assert checked.runs[0].plan["runs"] == {"interrupted": 1}, checked
            assert not isinstance(await resume_at_terminal(lab, plan_id), NotResumed)
            assert await passed_s(lab, plan_id) < 4
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            plan = await lab.ended(plan_id)
            assert plan.state == "success", plan.stop_reason


async def test_a_plan_that_a_living_process_has_is_resumed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the process of its run is gone."""
    gate = Gate()
    config = f"{PRICED}\n[limits]\nrunning_per_user = 1\n"
    async with open_lab(tmp_path, [Say("held", gate=gate), hand_over(), hand_over()], config=config) as lab:
        other = await lab.start(task="takes the only slot")
        await wait_for(gate.arrived)
        proposal = await plans.propose(lab, [STEP])
        assert (await lab.approve(proposal)).status == "approved"
        plan_id = proposal.group_id
        run_id = await plans.run_of_step(lab, plan_id, "look")
        monkeypatch.setattr(claims, "TAKEOVER_WITHIN_US", 0)
        assert not isinstance(await claim_as(lab, run_id, "dead"), str)
        await interrupted_run(lab, plan_id)
        assert lab.runtime.manager.owns(plan_id)

        checked = await lab.call("check_subagent", group_id=plan_id)
        assert checked.status == "interrupted" and f"ava resume {plan_id}" in checked.runs[0].waits_for, checked
        refused = await lab.call("confirm_spawn", pending_ids=[plan_id])
        resumed = await lab.call("confirm_spawn", pending_ids=[plan_id], approving=refused.approval_lines)
        assert resumed.status == "resumed", resumed
        assert (await lab.call("check_subagent", group_id=plan_id)).status == "running"
        gate.released.set()
        assert (await lab.ended(plan_id)).state == "success"
        await lab.ended(other)


async def test_one_run_of_an_interrupted_plan_is_resumed_alone(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    with run_model_server([*(Say("lost", gate=gate) for gate in gates), hand_over(), hand_over()]) as server:
        plan_id = await leave_plan(tmp_path, server, gates[0])
        await leave_again(tmp_path, server, gates[1])
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            run = await interrupted_run(lab, plan_id)
            assert not isinstance(await resume_at_terminal(lab, run.id), NotResumed)
            lab.runtime.manager.adopted.add(run.id)
            assert (await lab.ended(plan_id)).state == "success"


async def test_cancelling_the_last_interrupted_run_ends_its_plan(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    with run_model_server([*(Say("lost", gate=gate) for gate in gates), hand_over()]) as server:
        plan_id = await leave_plan(tmp_path, server, gates[0])
        await leave_again(tmp_path, server, gates[1])
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            run = await interrupted_run(lab, plan_id)
            await lab.call("cancel_subagent", subagent_id=run.id)
            assert (await lab.ended(plan_id)).state == "error"
            await lab.store.read(check_budgets)
