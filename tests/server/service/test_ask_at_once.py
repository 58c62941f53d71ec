"""`spawn_subagent` with `ask`: the person decides in the same call, and `confirm_spawn` is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitResult, ErrorData, InputRequiredResult
from support.hosts.ask_at_once import proposal_states, question_state, spawn_and_ask, spawn_arguments, spawn_by_hand
from support.hosts.elicitation import (
    Answering,
    Host,
    Person,
    accept,
    cancel,
    decline,
    decline_at_once,
    host,
    structured,
)
from support.model_server import Gate, Say
from support.runtime import PRICED, connect, hand_over

from ava_audit.events import SpawnDecided, SpawnProposed, UserMessage
from ava_audit.rows import WAITING
from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.approval.proposals import proposal_in, spawn_limits
from ava_server.config.settings import Settings
from ava_server.mcp_server import elicitation
from ava_server.service.spawn import Spawns

# -- the person answers -----------------------------------------------------------------------------------------------


async def test_a_yes_starts_the_run_with_one_question_and_one_proposal(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept()) as at:
        answer = await spawn_and_ask(at, name="prices")
        assert answer["status"] == "approved" and "approval_line" not in answer and "expires_at" not in answer
        assert answer["message"] == "The person has seen the proposal and approved it."
        assert f'check_subagent with subagent_id "{answer["subagent_id"]}"' in answer["next"]
        [asked] = at.person.asked
        assert "What does it cost?" in asked.message and "costs at most $0.50" in asked.message
        decided = await at.started_once(answer)
        assert (decided.channel, decided.decision, decided.changes) == ("elicitation", "approved", {})
        [said] = [fact for fact in await at.facts(answer, UserMessage) if fact.kind == "decision"]
        assert said.text.startswith(f"approved {answer['pending_id']}: ")
        assert len(await proposal_states(at)) == 1


async def test_limits_lowered_in_the_form_are_those_of_the_run_and_of_the_answer(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(max_cost_dollars=0.2, max_minutes=1.5)) as at:
        answer = await spawn_and_ask(at)
        assert "The person lowered the cost cap from $0.50 to $0.20." in answer["message"]
        assert (answer["max_cost_cents"], answer["limits"]["max_cost_cents"], answer["limits"]["timeout"]) == (
            20,
            20,
            90,
        )
        assert (await at.started_once(answer)).changes == {"max_cost_micros": 200_000, "timeout_s": 90.0}


async def test_a_no_rejects_the_proposal(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, decline) as at:
        answer = await spawn_and_ask(at)
        assert answer["status"] == "rejected" and "approval_line" not in answer and "expires_at" not in answer
        assert answer["message"] == "The person has seen the proposal and rejected it."
        assert answer["next"] == "Nothing was started. Ask the person what they want instead."
        [decided] = await at.facts(answer, SpawnDecided)
        assert (decided.decision, decided.channel) == ("rejected", "elicitation")
        assert await proposal_states(at) == ["rejected"] and at.models.requests == []


@pytest.mark.parametrize("answers", [decline_at_once, cancel], ids=["no person", "closed"])
async def test_without_an_answer_the_proposal_waits_and_can_be_confirmed_later(
    tmp_path: Path, era: str, answers: Answering
) -> None:
    async with host(tmp_path, era, answers) as at:
        answer = await spawn_and_ask(at)
        assert answer["status"] == WAITING and "closed the question, or nobody saw it" in answer["message"]
        assert f"ava approve {answer['pending_id']}" in answer["next"]
        await at.nothing_started()
        at.person.answers = accept()
        assert (await at.confirm(answer))["status"] == "approved"
        await at.started_once(answer)


async def test_an_invalid_limit_in_the_form_starts_nothing_and_the_proposal_waits(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(max_cost_dollars=9)) as at:
        answer = await spawn_and_ask(at)
        assert answer["status"] == WAITING and "Not started: max_cost_dollars: " in answer["message"]
        await at.nothing_started()


async def test_where_only_the_pin_approves_nothing_starts_and_the_answer_says_how(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(), config=f'approval = "human"\n{PRICED}') as at:
        answer = await spawn_and_ask(at)
        assert answer["status"] == WAITING and at.person.asked == []
        assert f"ava approve {answer['pending_id']}" in answer["next"]
        await at.nothing_started()


async def test_a_run_that_the_policy_auto_starts_is_not_asked_about(tmp_path: Path, era: str) -> None:
    auto = f'approval = "auto"\nauto_approve_cents = 50\nauto_approve_daily_cents = 120\n{PRICED}'
    async with host(tmp_path, era, decline, config=auto) as at:
        answer = await spawn_and_ask(
            at, role="code_reviewer", blocked_tools=["run_bash", "python_exec"], max_cost_cents=40
        )
        assert answer["status"] == "approved" and at.person.asked == []


# -- nobody is asked --------------------------------------------------------------------------------------------------


async def test_a_client_that_cannot_ask_gets_the_usual_proposal(tmp_path: Path, era: str) -> None:
    async with connect(tmp_path, [hand_over()], config=PRICED, mode=era) as (client, models):
        at = Host(client, Person(decline), models, tmp_path / "data", tmp_path / "workspace")
        answer = await spawn_and_ask(at)
        assert answer["status"] == WAITING and "call confirm_spawn" in answer["next"]
        await at.nothing_started()


async def test_without_ask_nobody_is_asked(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept()) as at:
        assert (await spawn_and_ask(at, ask=False))["status"] == WAITING
        assert at.person.asked == []
        await at.nothing_started()


async def test_ask_is_no_part_of_what_is_approved_or_repeated(tmp_path: Path, era: str) -> None:
    """The same task_id is the same proposal with and without it, and a retry does not ask by itself."""
    async with host(tmp_path, era, cancel) as at:
        first = await spawn_and_ask(at, task_id="prices", ask=False)
        second = await spawn_and_ask(at, task_id="prices")
        assert second["pending_id"] == first["pending_id"] and len(at.person.asked) == 1
        [proposed] = await at.facts(first, SpawnProposed)
        assert "ask" not in proposed.config["asked"]
        at.person.answers = accept()
        run = await spawn_and_ask(at)
        await at.started_once(run)
        again = await at.call("spawn_subagent", retry_of=run["subagent_id"])
        assert again["status"] == WAITING and len(at.person.asked) == 2


# -- what a client keeps with the question ----------------------------------------------------------------------------


async def test_an_answer_counts_once_and_a_replay_proposes_nothing(tmp_path: Path) -> None:
    async with host(tmp_path, "auto", accept()) as at:
        given = spawn_arguments(at)
        state = await question_state(at, given)
        yes = ElicitResult(action="accept", content={})
        first = await spawn_by_hand(at, given, state, yes)
        assert isinstance(first, CallToolResult) and structured(first)["status"] == "approved"
        await at.started_once(structured(first))
        again = await spawn_by_hand(at, given, state, yes)
        assert isinstance(again, CallToolResult)
        assert "Nothing new was proposed." in structured(again)["next"]
        assert await proposal_states(at) == ["success"] and len(at.models.requests) == 1


@pytest.mark.parametrize("how", ["other arguments", "a changed state", "no state", "the state of another tool"])
async def test_a_yes_that_does_not_belong_to_the_question_starts_nothing(tmp_path: Path, how: str) -> None:
    async with host(tmp_path, "auto", accept()) as at:
        given = spawn_arguments(at)
        state = await question_state(at, given)
        other, kept = given, state
        if how == "other arguments":
            other = spawn_arguments(at, task="Something else", max_cost_cents=400)
        elif how == "a changed state":
            kept = state[:-4] + ("AAAA" if state[-4:] != "AAAA" else "BBBB")
        elif how == "the state of another tool":
            made = await at.propose(task="Something cheap")
            kept = await at.question({"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]})
        answered = await spawn_by_hand(
            at, other, None if how == "no state" else kept, ElicitResult(action="accept", content={})
        )
        assert isinstance(answered, InputRequiredResult), "the person is asked again"
        states = await proposal_states(at)
        assert set(states) == {WAITING} and at.models.requests == []


async def test_an_answer_to_a_proposal_that_was_decided_meanwhile_changes_nothing(tmp_path: Path) -> None:
    async with host(tmp_path, "auto", accept()) as at:
        given = spawn_arguments(at)
        state = await question_state(at, given)
        async with Store.open(at.root) as store:
            [run] = await store.read(View.runs)
        await at.call("confirm_spawn", pending_ids=[run.pending_id], decision="reject")
        late = await spawn_by_hand(at, given, state, ElicitResult(action="accept", content={}))
        assert isinstance(late, CallToolResult)
        assert structured(late)["status"] == "rejected" and "already" in structured(late)["message"]
        assert await proposal_states(at) == ["rejected"] and at.models.requests == []


# -- what happens while the question is open --------------------------------------------------------------------------


def decides_elsewhere(at: Host, decision: str, then: Answering) -> Answering:
    """Return an answer before which somebody else decides."""

    async def answers(shown: ElicitRequestFormParams) -> ElicitResult:
        at.person.answers = accept()  # to the question of the other call
        limits = spawn_limits(Settings(data_root=at.root), "")
        async with Store.open(at.root) as store:
            [run] = await store.read(View.runs)
            made = await store.read(lambda view: proposal_in(view, run.pending_id, run.user_id, limits, now_us()))
        assert made is not None
        approving = {"approving": [made.line]} if decision == "approve" else {}
        await at.client.call_tool("confirm_spawn", {"pending_ids": [run.pending_id], "decision": decision, **approving})
        answer = then(shown)
        if isinstance(answer, ElicitResult):
            return answer
        assert not isinstance(answer, ErrorData), "no host answers so here"
        return await answer

    return answers


@pytest.mark.parametrize("then", [accept(), decline, cancel])
@pytest.mark.parametrize(("decision", "state"), [("approve", "running"), ("reject", "rejected")])
async def test_a_decision_made_elsewhere_meanwhile_is_the_one_that_the_answer_tells(
    tmp_path: Path, decision: str, state: str, then: Answering
) -> None:
    gate = Gate()
    async with host(tmp_path, "legacy", then, [Say("x", gate=gate), hand_over()]) as at:
        at.person.answers = decides_elsewhere(at, decision, then)
        answer = await spawn_and_ask(at)
        assert answer["status"] in (state, "queued"), answer
        assert "already" in answer["message"] and "approval_line" not in answer
        gate.released.set()


@pytest.mark.parametrize("then", [accept(), decline, cancel])
@pytest.mark.parametrize(("decision", "says"), [("approve", "was approved already"), ("reject", "rejected")])
async def test_a_decision_made_elsewhere_during_the_question_of_confirm_spawn_is_told_too(
    tmp_path: Path, decision: str, says: str, then: Answering
) -> None:
    gate = Gate()
    async with host(tmp_path, "legacy", then, [Say("x", gate=gate), hand_over()]) as at:
        pending = await at.propose()
        at.person.answers = decides_elsewhere(at, decision, then)
        answer = await at.confirm(pending)
        assert answer["status"] != "refused" and says in str(answer), "it goes on with what was decided"
        gate.released.set()


async def test_a_proposal_that_expires_meanwhile_is_not_started(tmp_path: Path, era: str) -> None:
    async def late(_shown: ElicitRequestFormParams) -> ElicitResult:
        await anyio.sleep(1.1)  # the time that it has to live
        return ElicitResult(action="accept", content={})

    async with host(tmp_path, era, late, config=f"proposal_ttl_s = 1\n{PRICED}") as at:
        answer = await spawn_and_ask(at)
        assert answer["status"] == "expired" and answer["next"].startswith("Propose it again")
        assert "approval_line" not in answer and "expires_at" not in answer
        assert at.models.requests == [] and len(await proposal_states(at)) == 1


async def test_a_slow_proposal_leaves_less_time_for_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host ends the whole call after a minute."""
    proposing_s = 60.0
    monkeypatch.setattr(elicitation, "ASK_S", proposing_s + 1)
    monkeypatch.setattr(elicitation, "LEAST_ASK_S", 0.1)
    propose, later_s = Spawns._propose, 0.0

    async def proposes(self: Spawns, *args: Any, **more: Any) -> Any:
        nonlocal later_s
        later_s = proposing_s
        return await propose(self, *args, **more)

    async def never(_shown: ElicitRequestFormParams) -> ElicitResult:
        await anyio.sleep_forever()
        raise AssertionError

    class Clock:
        """As if proposing had taken so long."""

        current_time = staticmethod(lambda: anyio.current_time() + later_s)

        def __getattr__(self, name: str) -> Any:
            return getattr(anyio, name)

    monkeypatch.setattr(Spawns, "_propose", proposes)
    monkeypatch.setattr(elicitation, "anyio", Clock())
    async with host(tmp_path, "legacy", never) as at:
        began = anyio.current_time()
        answer = await spawn_and_ask(at)
        assert anyio.current_time() - began < proposing_s / 2, "the question had the time that was left"
        assert answer["status"] == WAITING and "has not answered in time" in answer["message"]
