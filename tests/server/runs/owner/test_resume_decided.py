"""Interrupted runs that a person lets go on: by a line, in a dialog, or against a rule that stands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from support.approval.people import DialogPerson
from support.runs.owners import claim_as, open_interrupted_run, resume_at_terminal
from support.runtime import PRICED, open_lab

from ava_audit.events import AssistantMessage, CancelRequested, Event, RunResumed
from ava_server.approval.start_form import Question, Reply
from ava_server.runs.record.claims import NotResumed, resume_line
from ava_server.service.open_questions import outcomes, resumption_shown


async def test_resumes_with_the_approval_line_of_the_remaining_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_interrupted_run(tmp_path, monkeypatch) as (lab, run_id, server):
        refused = await lab.call("confirm_spawn", pending_ids=[run_id])
        assert refused.status == "refused"
        [line] = refused.approval_lines
        assert line.startswith("researcher, at most $0.50 and 10 min") and line.endswith(" left")
        run = await lab.run(run_id)
        assert ", resumed with $0.4" in line, line
        again = await lab.call("confirm_spawn", pending_ids=[run_id], approving=[line.partition(", resumed")[0]])
        assert again.status == "refused" and again.approval_lines == [line]
        by_proposal = await lab.call("confirm_spawn", pending_ids=[run.pending_id], approving=[line])
        assert by_proposal.status == "refused" and (await lab.run(run_id)).generation == 1
        answer = await lab.call("confirm_spawn", pending_ids=[run_id], approving=[line], wait_seconds=20)
        assert answer.status == "resumed", answer
        assert answer.runs[0]["state"] == "success"
        assert await lab.settlements(run_id) == ["billed", "unknown", "billed"]
        assert await lab.claim_reasons(run_id) == ["start", "resume"]
        assert [fact.turn for fact in await lab.facts(run_id, AssistantMessage) if fact.turn] == [1, 2]
        [fact] = await lab.facts(run_id, RunResumed)
        assert (fact.channel, fact.force) == ("host_call", False)
        over = await lab.call("confirm_spawn", pending_ids=[run_id], approving=[line])
        assert over.status == "refused" and len(server.requests) == 3


@pytest.mark.parametrize("action", ["accept", "decline", "cancel", "silent"])
async def test_resumes_if_the_person_agrees_in_the_dialog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Literal["accept", "decline", "cancel", "silent"]
) -> None:
    async with open_interrupted_run(tmp_path, monkeypatch) as (lab, run_id, server):
        person = DialogPerson(action)
        confirm = partial(lab.call_asking, person, "confirm_spawn", pending_ids=[run_id])
        wrong = await confirm(approving=["anything"])
        assert wrong.status == "refused" and person.questions == [], "nobody is asked about what cannot go on"
        answer = await confirm(approving=wrong.approval_lines)
        [asked] = person.questions
        assert "was interrupted" in asked.text and wrong.approval_lines[0] in asked.text and asked.fields == ()
        if action == "accept":
            assert answer.status == "resumed", answer
            assert (await lab.ended(run_id)).state == "success"
            assert [fact.channel for fact in await lab.facts(run_id, RunResumed)] == ["elicitation"]
        else:
            assert answer.status == "refused" and f"ava resume {run_id}" in answer.next
            assert await lab.facts(run_id, RunResumed) == []
            assert (await lab.run(run_id)).generation == 1 and len(server.requests) == 2


@pytest.mark.parametrize("action", ["decline", None], ids=["a no", "still open"])
@pytest.mark.parametrize(
    ("what", "status", "says"),
    [
        ("resumed", "resumed", "was resumed already, in a terminal at "),
        ("cancelled", "refused", "has ended (cancelled)"),
    ],
)
async def test_a_question_whether_to_resume_goes_on_with_what_was_decided_elsewhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: Literal["decline"] | None,
    what: str,
    status: str,
    says: str,
) -> None:
    async with open_interrupted_run(tmp_path, monkeypatch) as (lab, run_id, _server):

        class PersonElsewhere(DialogPerson):
            async def ask(self, question: Question, use: Callable[[Reply], object]) -> Reply:
                if what == "resumed":
                    done = await resume_at_terminal(lab, run_id)
                    assert not isinstance(done, NotResumed), done
                else:
                    await lab.call("cancel_subagent", subagent_id=run_id)
                if action is None:
                    await anyio.sleep_forever()
                return await super().ask(question, use)

        run = await lab.run(run_id)
        line = await lab.store.read(lambda view: resume_line(view, run))
        person = PersonElsewhere(action or "accept")
        with anyio.fail_after(20):
            answer = await lab.call_asking(person, "confirm_spawn", pending_ids=[run_id], approving=[line])
        assert answer.status == status and says in f"{answer.message} {answer.decisions[0].refused_because}", answer
        assert len(await lab.facts(run_id, RunResumed)) == (what == "resumed")
        await lab.ended(run_id)


async def test_a_run_that_is_being_cancelled_is_not_taken_for_a_resumed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever cancels it claims it first, so that for a moment it is running again."""
    async with open_interrupted_run(tmp_path, monkeypatch, runs=False) as (lab, run_id, _server):
        run = await lab.run(run_id)
        shown = [resumption_shown(run, await lab.store.read(lambda view: resume_line(view, run)))]
        limits = lab.runtime.spawn_limits_of(lab.runtime.user)
        await lab.write(Event(lab.session.who, CancelRequested(subagent_id=run_id), run_id=run_id))
        assert not isinstance(await claim_as(lab, run_id, "i-other", gone=[str(run.instance)]), str)
        claimed = await lab.run(run_id)
        assert (claimed.state, claimed.generation) == ("running", 2)
        assert await outcomes(lab.store, shown, limits) == {}, "the question waits until it has ended"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"decision": "reject"}, "cancel_subagent"),
        ({"group_max_cost_cents": 50}, "continues as it was approved"),
        ({"group_timeout": 50}, "continues as it was approved"),
        ({"changes": {"{pending_id}": {"caps": {"max_iterations": 3}}}}, "continues as it was approved"),
    ],
)
async def test_rejects_decisions_that_do_not_apply_to_a_started_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], says: str
) -> None:
    async with open_interrupted_run(tmp_path, monkeypatch, runs=False) as (lab, run_id, _server):
        answer = await lab.call("confirm_spawn", pending_ids=[run_id], **given)
        assert answer.status == "failed" and says in answer.message
        assert (await lab.run(run_id)).generation == 1


async def test_a_resume_respects_the_off_switch_policy_and_daily_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_interrupted_run(tmp_path, monkeypatch, runs=False) as (lab, run_id, server):
        line = (await lab.call("confirm_spawn", pending_ids=[run_id])).approval_lines[0]
        for config, says in (
            ("enabled = false\n", "switched off"),
            ('approval = "human"\n', f"ava resume {run_id}"),
            ("[limits]\nuser_daily_cents = 0\n", "daily budget"),
        ):
            async with open_lab(tmp_path, server=server, config=config + PRICED, runs=False, check=False) as other:
                answer = await other.call("confirm_spawn", pending_ids=[run_id], approving=[line])
                said = answer.message or answer.decisions[0].refused_because
                assert answer.status in ("failed", "refused") and says in said, (config, said)
        other_user = await lab.call_as("eve", "confirm_spawn", pending_ids=[run_id])
        assert other_user.status == "failed" and "no subagent" in str(other_user.message)
        assert (await lab.run(run_id)).generation == 1
