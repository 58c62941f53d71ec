"""The policy under which something was proposed counts wherever it is decided on: to start, extend and resume it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.approval.together import approve_together
from support.commands.dashboard import decision_question
from support.hosts.extensions import CAP, keep_noting
from support.model_server import Gate, Say, run_model_server
from support.runs import plans
from support.runtime import PRICED, Lab, connect, hand_over, open_lab, wait_for
from support.stdio import read_answer

from ava_audit.events import Answered, RunResumed, SpawnDecided
from ava_audit.rows import WAITING
from ava_server.approval.decide import Shown, approval_needs
from ava_server.approval.proposals import agreement, pending_proposals
from ava_server.core import background
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import Refused
from ava_server.runs.record import claims
from ava_server.service import access
from ava_server.service.access import Session
from ava_server.service.service import Service, decide

HUMAN = {"AVA_APPROVAL": "human"}
"""What one server of the data root is started with, and the other is not."""
ASK, BY_HOST = f'approval = "ask"\n{PRICED}', f'approval = "by_host"\n{PRICED}'
ASKS_NOBODY = "opencode"
SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up", "task_id": "T-1", "max_cost_cents": 20}


def terminal(lab: Lab, *, pin_given: bool = False) -> Service:
    session = Session(user=lab.session.user, transport="terminal", channel="terminal", pin_given=pin_given)
    return Service(lab.runtime, session)


async def start_under_human(lab: Lab, **more: Any) -> str:
    """Start a run as a person with the PIN does."""
    made = await lab.propose(**more)
    lab.session.channel, lab.session.pin_given = "terminal", True
    answer = await lab.approve(made)
    assert answer.status == "approved", answer
    return str(made.subagent_id)


@pytest.mark.parametrize("config", [ASK, BY_HOST], ids=["ask", "by_host"])
async def test_no_door_starts_what_another_server_proposed_under_human(tmp_path: Path, config: str) -> None:
    with run_model_server([hand_over()]) as models:
        async with open_lab(tmp_path, server=models, config=config, env=HUMAN, runs=False) as strict:
            made = await strict.propose()
        async with open_lab(tmp_path, server=models, config=config) as lab:
            for_host = await lab.approve(made)
            assert for_host.status == "failed" and f"ava approve {made.pending_id}" in for_host.message
            checked = await lab.call("check_subagent", subagent_id=made.subagent_id)
            assert "confirm_spawn" not in checked.runs[0].waits_for, "the host is not told to try"
            limits = lab.runtime.spawn_limits_of(lab.session.user)
            [waiting] = await lab.store.read(lambda view: pending_proposals(view, lab.session.user, limits, 0))
            with pytest.raises(Refused, match="only the approval PIN approves"):
                await decide(terminal(lab), [waiting.shown], agreement([waiting], {}))
            policy = await lab.runtime.policy_on([made.pending_id], lab.session.user)
            assert approval_needs("browser", policy, from_terminal=True).new_pin, "the pages ask for it"
            with pytest.raises(Refused, match="no approval PIN"):
                await decision_question(lab, "approve", made.subagent_id)
            assert await lab.facts(made.subagent_id, SpawnDecided) == []
            answer = await decide(terminal(lab, pin_given=True), [waiting.shown], agreement([waiting], {}))
            assert answer.status == "approved"
            assert (await lab.ended(made.subagent_id)).state == "success"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_host_with_prompts_does_not_confirm_for_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(access, "WAIT_LIMIT_S", 0.2)
    monkeypatch.setattr(background, "start_pages", lambda _root: "http://localhost:8643")
    with run_model_server([]) as models:
        async with connect(tmp_path, config=BY_HOST, mode=mode, server=models, name=ASKS_NOBODY) as (host, _models):
            made = read_answer(await host.call_tool("spawn_subagent", SPAWN))[0]
        async with connect(tmp_path, config=BY_HOST, mode=mode, server=models, name="ava-command-line") as (other, _):
            again = read_answer(await other.call_tool("spawn_subagent", SPAWN))[0]
            assert again["pending_id"] == made["pending_id"] and "no tool can" in " ".join(again["next"].split())
            given = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
            answer = read_answer(await other.call_tool("confirm_spawn", given))[0]
            assert answer["status"] == "refused" and answer["decisions"][0]["status"] == "refused", answer
        assert models.requests == []


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_answer_to_a_proposal_does_not_wait_for_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    started = threading.Event()

    def start_pages(_root: DataRoot) -> str:
        assert started.wait(60)
        return "http://localhost:8643"

    monkeypatch.setattr(background, "start_pages", start_pages)
    with run_model_server([]) as models:
        async with connect(tmp_path, config=BY_HOST, mode=mode, server=models, name=ASKS_NOBODY) as (host, _models):
            made = read_answer(await host.call_tool("spawn_subagent", SPAWN))[0]
            assert f"ava approve {made['pending_id']}" in made["next"] and "/enter?code=" not in made["next"]
            assert f'check_subagent with subagent_id "{made["subagent_id"]}" gives a link' in made["next"]
            started.set()
            checked = read_answer(await host.call_tool("check_subagent", {"subagent_id": made["subagent_id"]}))[0]
            assert "/enter?code=" in checked["message"]


async def test_auto_starts_nothing_that_was_proposed_under_a_stricter_policy(tmp_path: Path) -> None:
    with run_model_server([hand_over()]) as models:
        async with open_lab(tmp_path, server=models, config=ASK, runs=False) as asks:
            made = await asks.call("spawn_subagent", **SPAWN)
        async with open_lab(tmp_path, server=models, config=f'approval = "auto"\n{PRICED}') as lab:
            again = await lab.call("spawn_subagent", **SPAWN)
            assert again.pending_id == made.pending_id and 'approval = "ask" held' in again.message
            assert (await lab.run(made.subagent_id)).state == WAITING


async def test_no_door_extends_what_was_proposed_under_human(tmp_path: Path) -> None:
    async with open_lab(tmp_path, keep_noting, config=ASK) as lab:
        strict = lab.runtime.settings.model_copy(update={"approval": "human"})
        loose, lab.runtime.settings = lab.runtime.settings, strict
        run_id = await start_under_human(lab, **CAP)
        lab.runtime.settings = loose
        lab.session.channel, lab.session.pin_given = "host_call", False
        await lab.logged(run_id, "Asked")
        [asked] = await lab.service.questions.waiting()
        for service in (lab.service, terminal(lab)):
            with pytest.raises(Refused, match="only the approval PIN allows a run more"):
                await decide(service, [Shown("extend", run_id, asked.digest)], agreement([], {}))
        assert await lab.facts(run_id, Answered) == []
        checked = await lab.call("check_subagent", subagent_id=run_id)
        assert "ava approve" in checked.runs[0].waits_for
        await lab.call("cancel_subagent", subagent_id=run_id)
        await lab.ended(run_id)


async def test_a_host_does_not_resume_a_run_of_a_plan_that_was_proposed_under_human(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), hand_over()]) as models:
        async with open_lab(tmp_path, server=models, config=ASK, env=HUMAN, check=False) as strict:
            made = await plans.propose(strict, [plans.step("look", "Look around.")])
            strict.session.channel, strict.session.pin_given = "terminal", True
            assert (await strict.approve(made)).status == "approved"
            await wait_for(gate.arrived)
            run_id = await plans.run_of_step(strict, made.group_id, "look")
        monkeypatch.setattr(claims, "TAKEOVER_WITHIN_US", 0)
        async with open_lab(tmp_path, server=models, config=ASK, check=False) as lab:
            for id in (run_id, made.group_id):
                assert await lab.runtime.policy_on([id], lab.session.user) == "human"
                answer = await lab.call("confirm_spawn", pending_ids=[id])
                assert answer.status == "failed" and f"ava resume {id}" in answer.message
            assert await lab.facts(run_id, RunResumed) == []


async def test_what_was_approved_together_keeps_the_strictest_policy(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _request: hand_over(), config=ASK) as lab:
        loose = lab.runtime.settings
        first = await lab.propose(task="Part one")
        lab.runtime.settings = loose.model_copy(update={"approval": "human"})
        second = await lab.propose(task="Part two")
        lab.session.channel, lab.session.pin_given = "terminal", True
        plan_id = await approve_together(lab, first, second, last="2 subagents together, at most $1.00")
        lab.runtime.settings = loose
        of_each = [first.subagent_id, second.subagent_id, plan_id]
        policies = [await lab.runtime.policy_on([id], lab.session.user) for id in of_each]
        await lab.ended(plan_id)
    assert policies == ["ask", "human", "human"]


async def test_a_host_does_not_resume_what_was_proposed_under_human(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), hand_over()]) as models:
        async with open_lab(tmp_path, server=models, config=ASK, env=HUMAN, check=False) as strict:
            run_id = await start_under_human(strict)
            await wait_for(gate.arrived)
        monkeypatch.setattr(claims, "TAKEOVER_WITHIN_US", 0)
        async with open_lab(tmp_path, server=models, config=ASK, check=False) as lab:
            answer = await lab.call("confirm_spawn", pending_ids=[run_id])
            assert answer.status == "failed" and f"ava resume {run_id}" in answer.message
            assert await lab.facts(run_id, RunResumed) == []
