"""A step over a list leaves the steps for which it was made the money that they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.runs import plans
from support.runtime import PRICED, open_lab

from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.models.surcharges import surcharges_of
from ava_server.run_config.config import config_of
from ava_server.runs.plan.plan import PlanInputs, PlanLog

COUNT = 60
USAGE = {"prompt_tokens": 3_000, "completion_tokens": 200, "total_tokens": 3_200}
"""What a run over an item uses: $0.012."""
STEPS = [
    plans.FIND,
    {**plans.READ, "at_most": COUNT},
    plans.WRITE,
    plans.step("check", "Check {{write}}."),
]
LIMITS = "\n[limits]\nspawns_per_hour = 1_000\n"
WORK = plans.hand_over_each([f"module {number}" for number in range(COUNT)], "it is new", usage=USAGE)


async def test_a_step_over_a_list_leaves_money_for_the_steps_after_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path, WORK, config=PRICED + LIMITS) as lab:
        proposal = await plans.propose(lab, STEPS, max_cost_cents=80)
        assert "keeps no money" not in proposal.message
        plan = await plans.approve(lab, proposal, state="partial")
        result = await lab.result(plan.id)
        bucket = await lab.store.read(lambda view: view.bucket(plan.id))
        reads = [row for row in await lab.store.read(lambda view: view.plan_runs(plan.id)) if row.step == "read"]
    lines = {line["step"]: line for line in result["steps"]}
    assert {name: line["state"] for name, line in lines.items()} == dict.fromkeys(lines, "done")
    assert 0 < len(reads) < COUNT and lines["read"]["not_done"] >= COUNT - len(reads)
    assert "kept for later steps, and a run takes" in lines["read"]["why"]
    assert result["untrusted_result"]["output"] == {"check": "it is new"}
    assert bucket.spent_micros <= 800_000
    assert all(sum(config_of(row.config).leaves.values()) > 0 for row in reads)


async def test_a_proposal_says_where_its_cap_keeps_no_money_for_later_steps(tmp_path: Path) -> None:
    async with open_lab(tmp_path, WORK, config=PRICED + LIMITS) as lab:
        proposal = await plans.propose(lab, STEPS, max_cost_cents=20)
        said = 'The plan\'s cap keeps no money for 2 of 2 steps after the step "read" while its runs work, so they may'
        assert said in proposal.message, proposal.message
        assert "with a cap of $0.48 it does" in proposal.message
        plan = await plans.approve(lab, proposal, state="partial")
        reads = [row for row in await lab.store.read(lambda view: view.plan_runs(plan.id)) if row.step == "read"]
        assert reads, "what is kept in vain would buy nothing"
        assert all(config_of(row.config).leaves == {} for row in reads)


async def test_what_inputs_cost_is_reckoned_at_the_dearest_place_that_the_account_may_have(tmp_path: Path) -> None:
    host = "https://api.anthropic.com/v1"
    async with open_lab(tmp_path, WORK, config=PRICED + LIMITS, runs=False) as lab:
        proposal = await plans.propose(lab, STEPS, max_cost_cents=80)

        def costs(view: View) -> tuple[int, int]:
            plan = view.run(proposal.group_id)
            assert plan is not None
            log = PlanLog(view, plan, PlanInputs(str, lab.runtime.day_caps), now_us(), str)
            config = log.steps["write"].config
            surcharges = surcharges_of(host, "claude-opus-4-6")
            assert any(each.account for each in surcharges)
            price = replace(config.price, surcharges=surcharges)
            dear = config.model_copy(update={"price": price, "base_url": host})
            return log.cost_of_inputs(config, 100_000), log.cost_of_inputs(dear, 100_000)

        standard, dearest = await lab.store.read(costs)
    assert dearest >= 1.09 * standard > 0
