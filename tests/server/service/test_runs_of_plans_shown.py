"""A run that a plan has queued was approved with its plan: every surface finds that, as it does for any other run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from pydantic import TypeAdapter
from support.approval.together import approve_together, propose_two
from support.model_server import Gate, Say
from support.pages.lab_pages import serve_lab_pages
from support.runs import plans
from support.runtime import PRICED, Lab, open_lab, submit, wait_for
from support.terminal import ava

from ava_audit.events import SpawnDecided
from ava_audit.units import cents, format_usd
from ava_server.approval.lookup import approval_of, proposal_of
from ava_server.approval.outcomes import closed_proposal
from ava_server.approval.proposals import spawn_limits
from ava_server.cli.show import cost_screen, decided_lines
from ava_server.cli.transport import validated
from ava_server.render.approvals import RunDecision
from ava_server.runs.record import costs
from ava_server.runs.record.costs import Cache, Costs
from ava_server.service.record_requests import last_run_in
from ava_server.service.run_records import RunRecord, run_detail, run_record

MODEL = "Model: custom:test, per million tokens input $"


async def shown(lab: Lab, *args: str) -> str:
    done = await anyio.to_thread.run_sync(lambda: ava(lab.root, *args))
    assert done.returncode == 0, done.stderr
    return done.stdout


async def decided_on_screens(lab: Lab, run_id: str) -> list[RunDecision]:
    """Return who decided about a run as `ava show` and the dashboard read it, which has to be the same."""
    run = await lab.run(run_id)
    processes = lab.runtime.instances
    limits = spawn_limits(lab.runtime.settings, run.user_id)
    record = await lab.store.read(lambda view: run_record(view, run_id, processes))
    detail = await lab.store.read(
        lambda view: run_detail(view, run, processes, limits, served=lambda: True, most_steps=3)
    )
    assert record.decided == detail.decided is not None
    return list(detail.decided)


async def test_each_run_of_a_plan_says_who_approved_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        proposal = await plans.propose(lab, name="Release notes")
        plan = await plans.approve(lab, proposal)
        [decided] = await lab.facts(plan.id, SpawnDecided)
        by_whom = "by the host's call or a script's --yes; the log has no answer of a person"
        [own] = await decided_on_screens(lab, plan.id)
        assert (own.what, own.how, own.plan_words) == ("Approved", by_whom, "")
        rows = await plans.rows(lab, plan.id)
        assert {row.step for row in rows} == {"find", "read", "write"}
        for row in rows:
            run = await lab.run(row.id)
            approval = await lab.store.read(partial(approval_of, run=run))
            assert (approval.run_id, approval.decision) == (plan.id, decided)
            proposed = await lab.store.read(partial(proposal_of, run=run))
            assert proposed.endswith(proposal.approval_line)
            [one] = await decided_on_screens(lab, row.id)
            assert (one.at_us, one.how, one.plan_words) == (own.at_us, by_whom, f"with its plan {plan.id}")
            text = await shown(lab, "show", row.id)
            assert "Not decided" not in text and f"{by_whom}\nApproved with its plan {plan.id}\n" in text
            page = (await browser.get(f"/subagents/{row.id}")).text
            assert f"<li>Approved {by_whom.replace(chr(39), '&#39;')}" in page
            assert f", with its plan {plan.id}</li>" in page and "Not decided" not in page
            assert "The proposal, as it was shown" in page and "Release notes" in page
            closed = await lab.store.read(partial(closed_proposal, run=run))
            assert "was approved already, by a call of the host at" in closed


async def test_runs_that_were_approved_together_keep_their_own_approvals(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _request: submit(), config=PRICED) as lab:
        made = await propose_two(lab)
        plan_id = await approve_together(lab, *made, last="2 subagents together, at most $1.00")
        for proposal in made:
            run = await lab.ended(proposal.subagent_id)
            [decided] = await decided_on_screens(lab, run.id)
            assert decided.plan_words == f"together with others as {plan_id}"
            text = await shown(lab, "show", run.id)
            assert f"Approved together with others as {plan_id}\n" in text


async def test_a_proposal_that_waits_or_has_ended_without_a_yes_says_so(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _request: submit(), config=PRICED) as lab:
        single, plan = await lab.propose(task="one"), await plans.propose(lab)
        for proposal in (single, plan):
            assert await decided_on_screens(lab, proposal.run_id) == []
            text = await shown(lab, "show", proposal.run_id)
            assert f"Not decided: {proposal.pending_id} waits for approval\n" in text
            await lab.call("cancel_subagent", **{key_of(proposal.run_id): proposal.run_id})
            [decided] = await decided_on_screens(lab, proposal.run_id)
            assert decided.what == "Rejected"
            assert "Not decided" not in await shown(lab, "show", proposal.run_id)


def key_of(run_id: str) -> str:
    return "group_id" if run_id.startswith("G-") else "subagent_id"


async def test_what_an_older_server_does_not_send_is_said_to_be_missing(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _request: submit(), config=PRICED) as lab:
        run = await lab.ended(await lab.start())
        record = await lab.store.read(lambda view: run_record(view, run.id, lab.runtime.instances))
    sent = TypeAdapter(RunRecord).dump_python(record, mode="json")
    del sent["decided"]
    received = validated(RunRecord, sent)
    [first, *_others] = decided_lines(received.row, received.answer.state, received.decided, utc=False)
    assert first == "Who decided: this server has an older version, which does not say it"


async def test_the_costs_of_a_plan_are_those_of_its_runs(tmp_path: Path) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        plan = await plans.finish(lab)
        rows = await plans.rows(lab, plan.id)
        calls = len(lab.server.requests)
        text = await shown(lab, "show", plan.id, "--cost")
        [first, *_others] = [
            line for line in (await shown(lab, "show", rows[0].id, "--cost")).splitlines() if MODEL in line
        ]
        found = json.loads(await shown(lab, "show", plan.id, "--cost", "--json"))
        page = (await browser.get(f"/subagents/{plan.id}/costs")).text
        link = (await browser.get(f"/subagents/{plan.id}")).text
    spent = sum(row.cost_micros for row in rows)
    assert spent > 0 and found["cost_cents"] == cents(spent) == cents(plan.cost_micros)
    assert sum(found["cost_by"].values()) == pytest.approx(found["cost_cents"])
    assert len(found["attempts"]) == calls == len(rows)
    assert {attempt["subagent_id"] for attempt in found["attempts"]} == {row.id for row in rows}
    of_steps = {row.step: 0 for row in rows}
    for row in rows:
        of_steps[row.step] += row.cost_micros
    assert {step["step"]: step["cost_cents"] for step in found["steps"]} == {
        step: cents(micros) for step, micros in of_steps.items()
    }
    assert first in text, "the price is that of the runs"
    assert "No model call" not in text and "Spent on: input $" in text
    for step in of_steps:
        [line] = [line for line in text.splitlines() if line.endswith(f" % {step}")]
        assert format_usd(of_steps[step]) in line
    for row in rows:
        assert f'<a href="/subagents/{row.id}/costs">{row.id}</a>' in page
    assert f'href="/subagents/{plan.id}/costs"' in link


async def test_a_run_of_a_plan_says_which_caps_its_step_asked_for(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _request: submit(), config=PRICED) as lab:
        plan = await plans.finish(lab, [plans.step("look", "Look around.", max_iterations=7)])
        [row] = await plans.rows(lab, plan.id)
        text = " ".join((await shown(lab, "show", row.id, "--cost")).split())
    assert "max_iterations lowered from the role's" in text and "to 7 by the proposal itself" in text
    assert f"the plan {plan.id} set at most" in text


async def test_an_older_server_does_not_say_what_a_plan_was_spent_on(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _request: submit(), config=PRICED) as lab:
        plan = await plans.finish(lab, [plans.step("look", "Look around.")])
        answer = (await lab.call("check_subagent", group_id=plan.id)).runs[0]
    lines = cost_screen(plan, answer, Costs((), (), {}, Cache(0, 0), ()), utc=False)
    [line] = [line for line in lines if "was spent" in line]
    assert line.startswith(format_usd(plan.cost_micros)) and not any("No model call" in line for line in lines)


async def test_a_page_of_costs_reads_the_last_calls_of_a_plan_whose_runs_wrote_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "WHOLE_ENTRIES", 30)
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab:
        plan = await plans.finish(lab)
        rows = await plans.rows(lab, plan.id)
        few = await lab.store.read(lambda view: costs.costs_of(view, plan, bounded=True))
        every = await lab.store.read(lambda view: costs.costs_of(view, plan))
    assert every.whole and not few.whole
    assert 0 < len(few.attempts) < len(every.attempts) == len(rows)
    assert few.attempts[-1] == every.attempts[-1], "the newest are kept"
    assert [step.micros for step in few.steps] == [step.micros for step in every.steps], "money comes from the rows"


async def test_the_last_run_is_a_plan_and_none_of_its_steps(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("", gate=gate)], config=PRICED, check=False) as lab:
        proposal = await plans.propose(lab, [plans.step("look", "Look around."), plans.step("see", "See it.")])
        await lab.approve(proposal)
        await wait_for(gate.arrived)
        assert await plans.rows(lab, proposal.group_id)
        for unended in (False, True):
            last = await lab.store.read(partial(last_run_in, user=lab.session.user, unended=unended))
            assert last is not None and last.id == proposal.group_id
        single = await lab.propose()
        later = await lab.store.read(partial(last_run_in, user=lab.session.user, unended=True))
        assert later is not None and later.id == single.subagent_id, "what was proposed after the plan"
        await lab.call("cancel_subagent", group_id=proposal.group_id)
        gate.released.set()
        await lab.call("cancel_subagent", subagent_id=single.subagent_id)
        made = await propose_two(lab)
        plan_id = await approve_together(lab, *made, last="2 subagents together, at most $1.00")
        together = await lab.store.read(partial(last_run_in, user=lab.session.user, unended=False))
        assert together is not None and together.id == plan_id
        assert (await shown(lab, "show")).splitlines()[1].startswith(f"# plan {plan_id}: ")
        await lab.call("cancel_subagent", group_id=plan_id)
