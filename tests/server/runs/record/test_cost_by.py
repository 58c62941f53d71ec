"""What a run's money was spent on: the parts sum to what it has cost, whatever happened on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_server import Fail, Gate, HangUp, Raw, Say, Step, events, run_model_server
from support.runtime import PRICED, hand_over, open_lab, wait_for

from ava_audit.events import CostUpdate

CUT = Raw(events(Say("some words", usage=None))[:3], chunked=True, cut=True)


@pytest.mark.parametrize(
    ("first", "paid"), [(CUT, True), (Fail(429, retry_after="0"), False), (HangUp(), True)], ids=["cut", "429", "hung"]
)
async def test_a_repeated_call_is_a_retry_only_if_the_first_attempt_may_have_been_billed(
    tmp_path: Path, first: Step, paid: bool
) -> None:
    async with open_lab(tmp_path, [first, hand_over()], config=PRICED) as lab:
        run_id = await lab.start(max_cost_cents=200)
        await lab.ended(run_id)
        before, after = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostUpdate)]
        result = await lab.result(run_id)
    assert result["status"] == "success"
    assert after.cost_micros
    if paid:
        assert result["cost_by"] == {"retries": after.cost_micros / 10_000, "uncosted": (before.cost_micros or 0) / 1e4}
        assert before.cost_micros
    else:
        assert before.cost_micros == 0
        assert set(result["cost_by"]) == {"input", "output"}


async def test_the_turn_after_a_retry_is_booked_by_its_tokens_again(tmp_path: Path) -> None:
    note = Say(calls=[("scratchpad", {"note": "so far"})])
    async with open_lab(tmp_path, [CUT, note, hand_over()], config=PRICED) as lab:
        run_id = await lab.start(max_cost_cents=200)
        await lab.ended(run_id)
        result = await lab.result(run_id)
        _lost, again, last = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostUpdate)]
    assert result["cost_by"]["retries"] == (again.cost_micros or 0) / 10_000
    assert result["cost_by"]["input"] + result["cost_by"]["output"] == pytest.approx((last.cost_micros or 0) / 10_000)


async def test_calls_repeated_because_the_first_process_died_count_as_retries(tmp_path: Path) -> None:
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            run_id = await lab.start()
            await wait_for(gate.arrived)
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            await lab.ended(run_id)
            result = await lab.result(run_id)
            [lost, paid] = await lab.facts(run_id, CostUpdate)
    assert lost.settlement == "unknown"
    assert result["cost_by"] == {"retries": paid.cost_cents, "uncosted": lost.cost_cents}
