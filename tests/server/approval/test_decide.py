"""One decision for all surfaces: about exactly what was shown, and by who may approve there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hosts.extensions import CAP, keep_noting
from support.model_server import Say
from support.runtime import PRICED, Lab, hand_over, open_lab

from ava_audit.events import Answered, Asked, SpawnDecided
from ava_server.approval.decide import (
    NO_MEANS,
    NO_SCOPE,
    NOT_FROM_TERMINAL,
    ONLY_IN_BROWSER,
    OTHER_REFUSED,
    Decided,
    Kind,
    Needs,
    PersonAnswer,
    Shown,
    approval_needs,
    tool_call,
)
from ava_server.approval.proposals import pending_proposals
from ava_server.core.errors import Refused
from ava_server.service.access import Session
from ava_server.service.service import Service, decide

NOTHING, PIN, EITHER, KEY = Needs(), Needs(pin=True), Needs(pin=True, passkey=True), Needs(passkey=True)
ASKED = ("ask", {"question": "Which currency is meant?"})


def person(lab: Lab, user: str | None = None) -> Service:
    """A person at a channel of their own."""
    return Service(lab.runtime, Session(user=user or lab.session.user, transport="memory", channel="terminal"))


@pytest.mark.parametrize(
    ("where", "policy", "has", "needs"),
    [
        ("host", "ask", {}, NOTHING),
        ("host", "auto", {}, NOTHING),
        ("host", "human", {}, Needs(refusal=NO_MEANS)),
        ("terminal", "ask", {}, NOTHING),
        ("terminal", "human", {}, PIN),
        ("terminal", "human", {"pin": True}, PIN),
        ("browser", "ask", {}, Needs(refusal=NOT_FROM_TERMINAL)),
        ("browser", "ask", {"from_terminal": True}, NOTHING),
        ("browser", "auto", {"from_terminal": True}, NOTHING),
        ("browser", "human", {"from_terminal": True}, Needs(new_pin=True)),
        ("browser", "human", {}, Needs(new_pin=True)),
        ("browser", "human", {"pin": True}, PIN),
        ("browser", "ask", {"passkey": True, "from_terminal": True}, KEY),
        ("browser", "human", {"pin": True, "passkey": True}, EITHER),
        ("browser", "ask", {"scope": False, "from_terminal": True}, Needs(refusal=NO_SCOPE)),
        ("browser", "human", {"scope": False, "pin": True}, Needs(refusal=NO_SCOPE)),
        ("browser", "ask", {"scope": True}, NOTHING),
        ("browser", "human", {"scope": True}, NOTHING),
        ("browser", "human", {"scope": True, "pin": True}, PIN),
        ("browser", "ask", {"scope": True, "passkey": True}, KEY),
        ("token", "ask", {"scope": True}, NOTHING),
        ("token", "human", {"scope": True, "pin": True}, NOTHING),
        ("token", "ask", {"scope": False}, Needs(refusal=NO_SCOPE)),
        ("token", "human", {"scope": True, "passkey": True}, Needs(refusal=ONLY_IN_BROWSER)),
    ],
)
def test_what_an_approval_takes_on_each_surface(where: Any, policy: Any, has: dict[str, bool], needs: Needs) -> None:
    assert approval_needs(where, policy, **has) == needs
    assert needs.nothing == (needs == NOTHING)


@pytest.mark.parametrize(
    ("kind", "answer", "call"),
    [
        ("start", PersonAnswer(True, lines=["a", "b"], limits={"group_timeout": 60}), (
            "confirm_spawn",
            {"pending_ids": ["X-1", "X-2"], "decision": "approve", "approving": ["a", "b"], "group_timeout": 60},
        )),
        ("start", PersonAnswer(True), ("confirm_spawn", {"pending_ids": ["X-1", "X-2"], "decision": "approve"})),
        ("start", PersonAnswer(False), ("confirm_spawn", {"pending_ids": ["X-1", "X-2"], "decision": "reject"})),
        ("resume", PersonAnswer(True), ("confirm_spawn", {"pending_ids": ["X-1"], "approving": ["its line"]})),
        ("cancel", PersonAnswer(True), ("cancel_subagent", {"subagent_id": "X-1"})),
        ("cancel", PersonAnswer(True, ""), ("cancel_subagent", {"subagent_id": "X-1", "reason": ""})),
        ("send", PersonAnswer(True, "quick"), ("message_subagent", {"subagent_id": "X-1", "message": "quick"})),
    ],
)  # fmt: skip
def test_each_kind_is_one_call_of_the_service(kind: Kind, answer: PersonAnswer, call: tuple[str, Any]) -> None:
    assert tool_call([Shown(kind, "X-1", "d", "its line"), Shown(kind, "X-2", "d", "another")], answer) == call


@pytest.mark.parametrize("kind", ["extend", "answer"])
def test_no_tool_decides_what_a_run_asks(kind: Kind) -> None:
    with pytest.raises(ValueError, match="not by a tool"):
        tool_call([Shown(kind, "X-1", "d")], PersonAnswer(True, "EUR"))


def test_a_refusal_names_each_reason_once_and_another_of_the_plan_only_alone() -> None:
    def refused(*reasons: str) -> Decided:
        return Decided({"status": "refused", "decisions": [{"refused_because": why} for why in reasons]})

    for reasons, text in (
        (("late", OTHER_REFUSED, "late"), "Not approved: late."),
        ((OTHER_REFUSED, OTHER_REFUSED), f"Not approved: {OTHER_REFUSED}."),
        ((), "Not approved: refused."),
    ):
        with pytest.raises(Refused) as raised:
            refused(*reasons).expect("approved", "Not approved")
        assert str(raised.value) == text
    Decided({"status": "approved"}).expect("approved", "Not approved")


async def test_a_proposal_starts_only_as_it_was_shown(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=PRICED) as lab:
        proposal = await lab.propose()
        user, limits = lab.session.user, lab.runtime.spawn_limits_of(lab.session.user)
        [one] = await lab.store.read(lambda view: pending_proposals(view, user, limits, 0))
        yes = PersonAnswer(True, lines=[one.approval_line])
        with pytest.raises(Refused, match="digest differs"):
            await decide(person(lab), [replace(one.shown, digest="0" * 64)], yes)
        with pytest.raises(Refused, match="digest differs"):
            await decide(person(lab), [Shown("start", one.pending_id)], yes)
        for lines in (None, ["free"]):
            decided = await decide(person(lab), [one.shown], PersonAnswer(True, lines=lines))
            assert decided.status == "refused" and decided.fields["approval_lines"] == [one.approval_line]
        assert await lab.facts(proposal.subagent_id, SpawnDecided) == []
        decided = await decide(person(lab), [one.shown], yes)
        assert decided.status == "approved" and not decided.reasons
        await lab.ended(proposal.subagent_id)


async def test_a_run_near_a_cap_gets_more_only_as_it_was_shown(tmp_path: Path) -> None:
    async with open_lab(tmp_path, keep_noting, config=PRICED, check=False) as lab:
        lab.session.channel = "terminal"
        run_id = await lab.start(**CAP)
        lab.session.channel = "host_call"
        await lab.logged(run_id, "Asked", within_s=60)
        [one] = await person(lab).questions.waiting()
        for service, shown in (
            (person(lab), replace(one.shown, digest="0" * 64)),
            (lab.service, one.shown),  # a host's call is not a person's
        ):
            with pytest.raises(Refused):
                await decide(service, [shown], PersonAnswer(True))
        assert await lab.facts(run_id, Answered) == []
        assert (await decide(person(lab), [one.shown], PersonAnswer(False))).status == "declined"
        await lab.ended(run_id)


async def test_an_answer_goes_only_to_the_question_that_was_shown(tmp_path: Path) -> None:
    def asks(request: dict[str, Any]) -> Say:
        told = [each["content"] for each in request["messages"] if each["role"] == "tool"]
        return hand_over(output=" | ".join(told)) if told else Say(calls=[ASKED])

    async with open_lab(tmp_path, asks, config=PRICED) as lab:
        run_id = await lab.start()
        await lab.logged(run_id, "Asked")
        [asked] = await lab.facts(run_id, Asked)
        with pytest.raises(Refused, match="has changed since it was shown"):
            await decide(person(lab), [Shown("answer", run_id, "Q-00000000")], PersonAnswer(True, "USD"))
        assert await lab.facts(run_id, Answered) == []
        decided = await decide(person(lab), [Shown("answer", run_id, asked.ask_id)], PersonAnswer(True, "EUR"))
        assert "has the answer to its question and continues" in decided.text
        await lab.ended(run_id)


async def test_resuming_never_starts_a_proposal(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED) as lab:
        proposal = await lab.propose()
        shown = Shown("resume", proposal.subagent_id, line=proposal.approval_line)
        with pytest.raises(Refused, match="does not wait to be resumed"):
            await decide(person(lab), [shown], PersonAnswer(True))
        assert await lab.facts(proposal.subagent_id, SpawnDecided) == []


async def test_another_users_runs_do_not_exist(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED) as lab:
        proposal = await lab.propose()
        for kind in ("answer", "send", "cancel", "extend"):
            with pytest.raises(Exception, match=f"no subagent {proposal.subagent_id} of yours is known"):
                await decide(person(lab, "another"), [Shown(kind, proposal.subagent_id, "x")], PersonAnswer(True, "x"))
