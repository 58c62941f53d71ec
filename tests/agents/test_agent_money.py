"""Another agent's request waits at the gateway for money that other runs hold; then the agent is asked to repeat it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agents.lab import SUBMIT, agent_lab, agent_run, priced_agent
from support.model_server import Gate, Say
from support.runtime import Lab, wait_for
from support.sandboxes.attacks import needs

from ava_audit.events import CostReserved, CostUpdate, MoneyAwaited
from ava_server.agents import gateway, metering

LOOKS: list[dict[str, Any]] = [{"ask": "look", "repeats": 20}, SUBMIT]


@pytest.mark.slow
async def test_agent_repeats_what_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("bubblewrap")
    (alone := tmp_path / "1").mkdir()
    async with agent_lab(alone, [priced_agent()], [LOOKS]) as lab:
        run_id = await lab.start(**agent_run(max_cost_cents=50))
        await lab.ended(run_id)
        [fact] = await lab.facts(run_id, CostReserved)
        held = fact.micros + fact.wrap_micros
    monkeypatch.setattr(metering, "MONEY_WAIT_S", 0.4)
    monkeypatch.setattr(gateway, "BUSY_S", 1.0)
    cents, gate = held * 19 // 100_000, Gate()
    (both := tmp_path / "2").mkdir()
    first_answer = Say("Twelve.", usage=priced_agent().usage, gate=gate)
    async with agent_lab(both, [first_answer, priced_agent()], [LOOKS]) as lab:
        runs = await started_together(lab, cents)
        await wait_for(gate.arrived)
        [second] = [run_id for run_id in runs if not await lab.facts(run_id, CostReserved)]
        await lab.logged(second, "MoneyAwaited", 3)  # it waited, was told to repeat, and waits again
        assert [fact.over for fact in await lab.facts(second, MoneyAwaited)][:3] == [False, True, False]
        assert len(lab.server.requests) == 1, "nothing was sent for it"
        gate.released.set()
        rows = [await lab.ended(run_id) for run_id in runs]
        assert [row.state for row in rows] == ["success", "success"]
        assert [fact.settlement for fact in await lab.facts(second, CostUpdate)] == ["billed"]


async def started_together(lab: Lab, cents: int) -> list[str]:
    """Start two runs together with a cap: neither waits for the other before it starts."""
    proposals = [await lab.propose(**agent_run(max_cost_cents=50)) for _run in range(2)]
    answer = await lab.approve(*proposals, group_max_cost_cents=cents)
    given = [*answer.approval_lines]
    ids = [each.pending_id for each in proposals]
    await lab.call("confirm_spawn", pending_ids=ids, approving=given, group_max_cost_cents=cents)
    return [str(each.subagent_id) for each in proposals]
