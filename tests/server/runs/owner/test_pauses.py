"""A usage limit pauses a run: no slot, no clock, until the provider takes calls again."""

from __future__ import annotations

import re
import time
from pathlib import Path

import anyio
import pytest
from support.model_server import Fail, Gate, Say, run_model_server
from support.runtime import PRICED, check_budgets, check_requests, hand_over, open_lab, wait_for

from ava_audit.events import CostReserved, Event, Fence, RunPaused, Who
from ava_audit.units import DAY_US, now_us, parse_time
from ava_server.budget.user_limits import Slots
from ava_server.runs.record.claims import claim
from ava_server.runs.record.endings import ABANDONED_US, cancel
from ava_server.runs.record.result import RunResult
from ava_server.runs.turn import model_call

NOTE = Say(calls=[("scratchpad", {"note": "half of it"})])
LATER = Fail(429, retry_after="3600")
ONE = "[limits]\nrunning_per_user = 1\n"


@pytest.mark.slow
async def test_a_paused_run_continues_where_it_was_at_the_given_time(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [NOTE, Fail(429, retry_after="4"), hand_over()], config=PRICED) as lab:
        run_id = await lab.start(timeout=3)  # longer than what is left: waiting would be the end of it
        paused = await lab.in_state(run_id, "queued")
        await lab.logged(run_id, "RunPaused")
        paused = await lab.run(run_id)
        assert paused.waits_until_us is not None and paused.instance is None
        assert 2.5e6 < paused.waits_until_us - time.time_ns() // 1000 <= 4.3e6
        run = await lab.ended(run_id)
        assert run.state == "success" and run.generation == 2
        assert run.ended_us is not None and run.ended_us >= paused.waits_until_us
        assert run.active_us < 3e6, "the pause is no active time"
        assert await lab.settlements(run_id) == ["billed", "not_billed", "billed"]
        turns = [(fact.turn, fact.attempt) for fact in await lab.facts(run_id, CostReserved)]
        assert turns == [(1, 1), (2, 1), (2, 2)]
        assert await lab.claim_reasons(run_id) == ["start", "resume"]
        bodies = [request.body for request in lab.server.requests]
        assert bodies[1] == bodies[2]


async def test_a_paused_run_frees_its_slot_and_shows_when_it_continues(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [LATER, hand_over()], config=ONE) as lab:
        first = await lab.start(name="prices")
        await lab.logged(first, "RunPaused")
        assert (await lab.ended(await lab.start(task="another"))).state == "success", "the one slot is free"
        began = time.monotonic()
        checked = await lab.call("check_subagent", subagent_id=first, wait_seconds=40)
        assert time.monotonic() - began < 15, "nobody waits for it"
        [run] = checked.runs
        assert run.state == "queued" and run.queue_position is None
        assert run.not_before is not None and run.not_before in str(run.waits_for)
        assert "paused" in run.status_line or "queued" in run.status_line
        [fact] = await lab.facts(first, RunPaused)
        assert "custom" in fact.why and run.not_before in fact.why
        again = await lab.call("cancel_subagent", subagent_id=first, reason="enough")
        assert again.status == "cancelled"
        assert (await lab.run(first)).stop_reason == "cancelled while it was paused"


@pytest.mark.slow
async def test_another_process_resumes_a_paused_run_and_delivers_its_messages(
    tmp_path: Path,
) -> None:
    with run_model_server([NOTE, Fail(429, retry_after="3"), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            run_id = await lab.start(timeout=2.5)
            await lab.logged(run_id, "RunPaused")
            assert (await lab.call("message_subagent", subagent_id=run_id, message="and Otter too")).status != "failed"
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            assert (await lab.ended(run_id)).state == "success"
            assert "and Otter too" in server.requests[-1].body.decode()
            await lab.store.read(check_budgets)
        await check_requests(tmp_path / "data", server.requests)


async def test_a_limit_longer_than_a_day_ends_the_run_and_names_the_time(tmp_path: Path) -> None:
    began_us = now_us()
    async with open_lab(tmp_path, [Fail(429, retry_after=str(7 * 24 * 3600))]) as lab:
        result = await lab.outcome(within_s=60)
        assert len(lab.server.requests) == 1
    assert result["status"] == "error" and result["error"]["kind"] == "rate_limit"
    [until] = re.findall(r"for 7 d, until (\S+Z)", result["untrusted_result"]["error_text"])
    assert 0 <= parse_time(until, 0) - began_us - 7 * DAY_US < 10e6
    assert f"custom takes no more calls until {until[:-4]}" in result["stop_reason"]


@pytest.mark.slow
async def test_a_permanent_limit_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_call, "PAUSED_ATTEMPTS", 3)
    monkeypatch.setattr(model_call, "PAUSE_FROM_S", 0.1)
    async with open_lab(tmp_path, [Fail(429, retry_after="1")] * 9) as lab:
        result = await lab.outcome(within_s=60)
        assert len(lab.server.requests) == 3
    assert result["status"] == "error" and result["stop_reason"] == "the model failed 3 times"


@pytest.mark.slow
async def test_the_plan_timeout_continues_during_a_pause_and_ends_it(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [LATER, LATER, Say("late", gate=gate)], config=ONE) as lab:
        made = [await lab.propose(task=str(number)) for number in range(3)]
        answer = await lab.approve(*made, last="3 subagents together, free, at most 4 s", group_timeout=4)
        assert answer.status == "approved", answer
        await wait_for(gate.arrived)
        ended = [await lab.ended(proposal.subagent_id, within_s=60) for proposal in made]
        results = [await lab.result(run.id) for run in ended]
    assert [run.state for run in ended] == ["timeout"] * 3
    assert {result["stop_reason"] for result in results} == {"the plan's time is over"}


@pytest.mark.slow
async def test_the_plan_timeout_ends_a_run_that_waits_for_a_slot(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("late", gate=gate)], config=ONE) as lab:
        made = [await lab.propose(task=str(number)) for number in range(2)]
        other = await lab.start(task="has the slot")
        await wait_for(gate.arrived)
        answer = await lab.approve(*made, last="2 subagents together, free, at most 1 s", group_timeout=1)
        assert answer.status == "approved"
        await anyio.sleep(1.5)
        states = [(await lab.run(proposal.subagent_id)).state for proposal in made]
        assert states == ["queued", "queued"], "a plan's clock begins with its first run"
        gate.released.set()
        await lab.ended(other)
        for proposal in made:
            await lab.ended(proposal.subagent_id)


async def test_abandons_a_run_interrupted_for_a_day_and_keeps_its_output(tmp_path: Path) -> None:
    gate = Gate()
    with run_model_server([NOTE, Say("lost", gate=gate)]) as server:
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            run_id = await lab.start()
            await wait_for(gate.arrived)
        async with open_lab(tmp_path, server=server, config=PRICED, runs=False) as lab:
            row = await lab.run(run_id)
            gone = frozenset({str(row.instance)})
            assert not await lab.runtime.manager.control.end_overdue(run_id, gone), "it is fresh"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("ava_server.runs.record.endings.ABANDONED_US", 0)
                assert ABANDONED_US == 24 * 3600 * 10**6
                assert not await lab.runtime.manager.control.end_overdue(run_id, frozenset()), "its owner lives"
                assert await lab.runtime.manager.control.end_overdue(run_id, gone)
            run, result = await lab.run(run_id), await lab.result(run_id)
            assert run.state == "abandoned" and run.in_flight is None
            assert result["uncosted"] is True and result["untrusted_result"]["output"] == "half of it"


async def test_a_cancel_ends_a_paused_run(tmp_path: Path) -> None:
    """It stands in the log before the pause: nobody would look at a paused run for an hour."""
    gate = Gate()
    later = Fail(429, retry_after="3600", gate=gate)
    with run_model_server([NOTE, later]) as server:
        async with (
            open_lab(tmp_path, server=server, check=False) as owner,
            open_lab(tmp_path, server=server, runs=False, check=False) as other,
        ):
            run_id = await owner.start()
            await wait_for(gate.arrived)
            owner.runtime.manager.wake = lambda: None  # type: ignore[method-assign]
            await other.store.do(cancel(run_id, other.session.who, "enough", "model"))
            gate.released.set()
            run = await owner.ended(run_id, within_s=60)
            assert run.state == "cancelled"
            result = await owner.result(run_id)
            assert result["untrusted_result"]["output"] == "half of it"


async def test_ends_a_run_that_was_cancelled_just_before_its_pause(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [NOTE, LATER], runs=False, check=False) as lab:
        run_id = await lab.start()
        who, slots = lab.session.who, Slots(9, 9)
        await lab.store.do(claim(run_id, "one", who, frozenset(), slots))
        await lab.store.do(cancel(run_id, who, "enough", "model"))
        agent, fence = Who("sess-x", run_id, lab.runtime.user), Fence(run_id, 1)
        paused = RunPaused(not_before_us=2**50, why="the provider's limit")
        await lab.write(Event(agent, paused, fence=fence))
        assert (await lab.run(run_id)).state == "queued"
        assert await lab.runtime.manager.control.end(run_id, RunResult("cancelled", "cancelled on request"))
        assert (await lab.run(run_id)).state == "cancelled"
