"""Budgets of whole runs: a second reading of usage, the cap of a plan, and all caps that cover a call."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_server import Gate, Say
from support.runtime import DONE, PRICED, hand_over, open_lab, wait_for

from ava_audit.events import AssistantMessage, CostReserved, CostUpdate
from ava_audit.units import day_of
from ava_server.budget.user_limits import installation_scope, user_scope
from ava_server.models.usage_reader import UsageReader, usage_reader
from ava_server.models.wires.chat import ChatWire


async def test_a_second_reading_is_booked_and_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = await usage_reader("https://api.x.ai/v1/chat/completions", ChatWire.flavors)

    async def found(_url: str, _flavors: tuple[str, ...]) -> UsageReader | None:
        return reader

    monkeypatch.setattr("ava_server.models.http_model.usage_reader", found)
    usage = {"prompt_tokens": 3_000, "completion_tokens": 200, "completion_tokens_details": {"reasoning_tokens": 60}}
    async with open_lab(tmp_path, [Say(calls=[DONE], usage=usage)], config=PRICED) as lab:
        run_id = await lab.start()
        run = await lab.ended(run_id)
        notes = [note for fact in await lab.facts(run_id, AssistantMessage) for note in fact.notes]
        (settled,) = await lab.facts(run_id, CostUpdate)
    assert run.cost_micros == 3_000 * 3 + 260 * 15
    assert settled.tokens == 3_260
    assert any("60 more output tokens" in note for note in notes)


async def test_a_plan_cap_applies_to_all_its_runs_together(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 11_000, "completion_tokens": 900, "total_tokens": 11_900}
    note = Say(calls=[("scratchpad", {"note": "so far"})], usage=usage)

    def step(request: dict[str, object]) -> Say:
        messages = request["messages"]
        assert isinstance(messages, list)
        if "last turn" in str(messages[-1]["content"]):
            return hand_over()
        return Say(calls=[("scratchpad", {"note": f"note {len(messages)}"})], usage=note.usage)

    async with open_lab(tmp_path, step, config=PRICED) as lab:
        made = [await lab.propose(task=task, max_tokens=200_000) for task in ("one", "two")]
        last = "2 subagents together, at most $0.40"
        answer = await lab.approve(*made, last=last, group_max_cost_cents=40)
        assert answer.status == "approved", answer
        ended = [await lab.ended(proposal.subagent_id) for proposal in made]
        assert sum(run.cost_micros for run in ended) <= 400_000
        assert {run.state for run in ended} == {"cost_exceeded"}
        assert any("the plan's cost cap" in str(run.stop_reason) for run in ended)


async def test_every_reservation_names_all_caps_that_cover_it(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", gate=gate)], config=PRICED) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        [reserved] = await lab.facts(run_id, CostReserved)
        run = await lab.run(run_id)
        day = day_of(run.started_us or 0)
        assert set(reserved.scopes) == {run_id, user_scope(run.user_id, day), installation_scope(day)}
        for scope in reserved.scopes:
            bucket = await lab.store.read(lambda view, scope=scope: view.bucket(scope))  # type: ignore[misc]
            assert bucket.held_micros == reserved.micros + reserved.wrap_micros
        gate.released.set()
        await lab.ended(run_id)
