"""A question that is decided elsewhere withdraws itself, and every surface tells what became of it, never a "no".

Each case is a question at a surface, and what happens elsewhere while it is open. What the person sees must be what the
log has. Terminals as people use them are in `tests/system/test_decided_elsewhere.py`, pages in `tests/web/`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio
import pytest
from support.hosts.elicitation import Answering, accept, cancel, decline, host
from support.hosts.elsewhere import (
    LIMITS,
    PERSON,
    Happening,
    answer_after,
    answer_question_elsewhere,
    decide_elsewhere,
    decide_request_elsewhere,
    never_answer,
)
from support.hosts.extensions import CAP, keep_noting
from support.model_server import Gate, Say
from support.runtime import PRICED, hand_over

from ava_audit.events import Answered, Channel, SpawnDecided
from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_server.approval.channels import WAYS
from ava_server.approval.decide import Shown
from ava_server.approval.decisions import reject
from ava_server.cli import demo
from ava_server.service.open_questions import outcome_of


@pytest.mark.parametrize("then", [never_answer, decline, accept()], ids=["still open", "no", "yes"])
@pytest.mark.parametrize(
    ("what", "status", "says"),
    [
        ("approved", "approved", "was approved already, in the browser at"),
        ("rejected", "rejected", "was rejected already, in the browser at"),
        ("withdrawn", "rejected", "was withdrawn already, at"),
        ("ended", "approved", "and researcher S-"),
    ],
)
async def test_a_form_of_the_host_goes_on_with_what_was_decided_elsewhere(
    tmp_path: Path, what: Happening, status: str, says: str, then: Answering
) -> None:
    gate = Gate()
    if what == "ended":
        gate.released.set()
    async with host(tmp_path, "legacy", then, [Say("x", gate=gate), hand_over()]) as at:
        made = await at.propose()

        at.person.answers = answer_after(partial(decide_elsewhere, at.root, made, what), then)
        with anyio.fail_after(20):
            answer = await at.confirm(made)
        gate.released.set()
        assert says in json.dumps(answer), answer
        if what in ("rejected", "withdrawn"):
            assert answer["status"] == "rejected" and "Nothing was started." in answer["next"]
        else:
            assert answer["status"] == "approved" and "othing was started" not in json.dumps(answer), answer
            assert (await at.started_once(made)).channel == "browser"


async def test_a_form_that_stays_open_when_its_proposal_expires_is_withdrawn(tmp_path: Path) -> None:
    async with host(tmp_path, "legacy", never_answer, config=f"proposal_ttl_s = 1\n{PRICED}") as at:
        made = await at.propose()
        with anyio.fail_after(20):
            answer = await at.confirm(made)
        assert "expired before it was approved" in json.dumps(answer) and at.models.requests == []


@pytest.mark.parametrize("then", [never_answer, cancel, decline], ids=["still open", "closed", "no"])
@pytest.mark.parametrize(
    ("allows", "says"),
    [(True, "was approved already, in the browser at"), (False, "was declined already, in the browser at")],
)
async def test_a_request_for_more_asked_by_check_subagent_tells_what_was_decided_elsewhere(
    tmp_path: Path, then: Answering, allows: bool, says: str
) -> None:
    async with host(tmp_path, "legacy", accept(), keep_noting) as at:
        made = await at.propose(**CAP)
        await at.confirm(made)
        act = partial(decide_request_elsewhere, at.root, made["subagent_id"], allow=allows)
        at.person.answers = answer_after(act, then)
        with anyio.fail_after(30):
            answer = await at.call("check_subagent", subagent_id=made["subagent_id"], wait_seconds=20)
        assert says in str(answer.get("message")) and "still waits" not in str(answer), answer


@pytest.mark.parametrize("then", [never_answer, cancel, decline], ids=["still open", "closed", "no"])
async def test_a_question_of_a_run_asked_by_check_subagent_tells_who_has_answered(
    tmp_path: Path, then: Answering
) -> None:
    script = [Say(calls=[("ask", {"question": "In which currency?"})]), hand_over()]
    async with host(tmp_path, "legacy", accept(), script) as at:
        made = await at.propose()
        await at.confirm(made)
        act = partial(answer_question_elsewhere, at.root, made["subagent_id"], "EUR")
        at.person.answers = answer_after(act, then)
        with anyio.fail_after(30):
            answer = await at.call("check_subagent", subagent_id=made["subagent_id"], wait_seconds=20)
        assert "was answered already, in the browser at" in str(answer.get("message")), answer
        assert [fact.channel for fact in await at.facts(made, Answered)] == ["browser"]


async def test_a_run_that_ended_before_it_was_cancelled_was_not_cancelled(tmp_path: Path) -> None:
    async with host(tmp_path, "legacy", accept()) as at:
        made = await at.propose()
        await at.confirm(made)
        await at.started_once(made)
        answer = await at.call("cancel_subagent", subagent_id=made["subagent_id"])
        assert answer["status"] == "success" and answer["message"].startswith("Not cancelled: researcher ")
        assert "has ended (success)." in answer["message"]


@pytest.mark.parametrize(("what", "goes_on"), [("approved", True), ("rejected", False), ("withdrawn", False)])
async def test_the_demo_tells_and_follows_what_was_decided_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: Happening, goes_on: bool
) -> None:
    async with host(tmp_path, "legacy", decline) as at:
        made = await at.propose()

        async def declines(_host: demo._DemoHost, _run_id: str) -> bool:
            await decide_elsewhere(at.root, made, what, "terminal")
            return False

        monkeypatch.setattr(demo._DemoHost, "_ask", declines)
        shown = demo.Demo(None, tmp_path, "", scripted=True, keep=False)  # type: ignore[arg-type]
        assert await demo._DemoHost(at.client, shown)._approve(made) is goes_on
        seen = capsys.readouterr().out
        assert ("nothing was started" in seen) is False and "already" in seen
        assert bool(shown.run_id) is goes_on


@pytest.mark.parametrize("channel", WAYS)
async def test_every_channel_has_its_words(tmp_path: Path, channel: Channel) -> None:
    async with host(tmp_path, "legacy", decline) as at:
        made = await at.propose()
        shown = Shown("start", made["pending_id"])
        async with Store.open(at.root) as store:
            assert await store.read(lambda view: outcome_of(view, shown, LIMITS, now_us())) is None
            await store.do(reject((made["pending_id"],), PERSON, channel))
            said = await store.read(lambda view: outcome_of(view, shown, LIMITS, now_us()))
        assert said is not None and f"was rejected already, {WAYS[channel].where} at " in said
        assert said.endswith("it did not start.")
        assert [fact.channel for fact in await at.facts(made, SpawnDecided)] == [channel]
