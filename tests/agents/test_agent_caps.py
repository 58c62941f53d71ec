"""The caps of an agent's run hold, whatever it does at once."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.agents.lab import SUBMIT, agent_lab, agent_run, priced_agent, run_agent
from support.model_server import Fail, Gate, HangUp, Say, Step, run_model_server
from support.models.search_formats import FORMATS
from support.runtime import check_budgets, wait_for
from support.sandboxes.attacks import needs

from ava_audit.events import AgentNote, AssistantMessage, CostReserved, CostUpdate, ToolCall, ToolResult
from ava_server.config.keys import key_variables, set_key
from ava_server.models.base import MoreUsage, ToolUse
from ava_server.runs.asking.questions import Doubt
from ava_server.runs.turn.tool_calls import ToolCalls


async def test_at_a_cap_the_agent_hands_over_what_it_has_and_nothing_is_spent_past_it(tmp_path: Path) -> None:
    needs("bubblewrap")
    asks: list[dict[str, Any]] = [{"ask": f"step {number}"} for number in range(60)]
    last = [{"ask": "the last one"}, SUBMIT]
    async with agent_lab(tmp_path, lambda _request: priced_agent(output=700), [asks, last]) as lab:
        run_id, result = await run_agent(lab, max_cost_cents=20)
        run = await lab.run(run_id)
        assert result["status"] == "cost_exceeded", result
        assert result["untrusted_result"]["output"] == "twelve cents"
        assert 0 < run.cost_micros <= 200_000 and run.wrap_micros == 0
        held = await lab.facts(run_id, CostReserved)
        settled = await lab.facts(run_id, CostUpdate)
        assert len(held) == len(settled) == len(lab.server.requests) > 2
        assert held[-1].last is not None and "max_cost_cents" in held[-1].last.reason
        assert any("was not sent" in note.text for note in await lab.facts(run_id, AgentNote))


async def test_turns_and_tool_calls_are_capped_by_what_passes(tmp_path: Path) -> None:
    needs("bubblewrap")
    asks: list[dict[str, Any]] = [{"ask": f"step {number}"} for number in range(9)]
    async with agent_lab(tmp_path, lambda _request: priced_agent(), [asks, [SUBMIT]]) as lab:
        _run, result = await run_agent(lab, max_iterations=4)
        assert result["status"] == "iteration_limit" and len(lab.server.requests) == 4
    calls = [("Bash", {"command": "ls"})] * 3
    steps: list[dict[str, Any]] = [{"ask": "look"}]
    for number in range(5):
        results = {f"toolu_{number}_{each}": "nothing" for each in range(3)}
        steps.append({"ask": "", "results": results})
    async with agent_lab(tmp_path / "b", lambda _request: priced_agent(calls=calls), [steps, [SUBMIT]]) as lab:
        _run, result = await run_agent(lab, max_tool_calls=7)
        assert result["status"] == "tool_limit", result
        assert len(lab.server.requests) == 3


async def test_what_a_provider_says_of_a_failed_call_and_a_second_reading_are_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("bubblewrap")

    class Reader:
        def more(self, _reported: Any, _own: Any) -> MoreUsage:
            return MoreUsage(0, 60)

    async def found(_url: str, _speaks: str) -> Reader:
        return Reader()

    monkeypatch.setattr("ava_server.models.http_model.usage_reader", found)
    error = {"type": "error", "error": {"type": "api_error", "message": "no"}}
    refusal = Fail(529, {**error, "usage": {"input_tokens": 800, "output_tokens": 40}})
    steps: list[dict[str, Any]] = [{"ask": "look", "survives": True}, {"ask": "again"}, SUBMIT]
    async with agent_lab(tmp_path, [refusal, priced_agent()], [steps]) as lab:
        run_id, _result = await run_agent(lab)
        settled = await lab.facts(run_id, CostUpdate)
        assert [(fact.settlement, fact.tokens) for fact in settled] == [("billed", 840), ("billed", 1_010)]
        (said,) = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.notes]
        assert "60 more output tokens" in said.notes[0]


async def test_many_calls_at_once_never_pass_the_cap(tmp_path: Path) -> None:
    """Twelve at once, again and again, of a provider that lies, says nothing, fails or hangs up."""
    needs("bubblewrap")
    chance = random.Random(7)

    def answer(_request: dict[str, Any]) -> Step:
        kind = chance.randrange(8)
        if kind == 0:
            return Say("no usage", usage=None)
        if kind == 1:
            return Fail(529)
        if kind == 2:
            return HangUp()
        return priced_agent(prompt=chance.randint(50, 900), output=chance.randint(1, 400))

    bursts: list[dict[str, Any]] = [
        {"burst": 12, "aside": True, "survives": True, "max_tokens": 400, "text": f"burst {number}"}
        for number in range(12)
    ]
    async with agent_lab(tmp_path, answer, [bursts, [SUBMIT]]) as lab:
        run_id, result = await run_agent(lab, max_cost_cents=40, max_iterations=100)
        run = await lab.run(run_id)
        assert result["status"] in ("cost_exceeded", "iteration_limit"), result
        settled = await lab.facts(run_id, CostUpdate)
        held = await lab.facts(run_id, CostReserved)
        assert len(settled) == len(held) and not any(each.overrun for each in settled)
        assert run.cost_micros <= 400_000 and run.in_flight is None
        assert max(each.turn for each in held) <= 100


async def test_tool_calls_at_once_never_pass_their_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("bubblewrap")
    doubts = ToolCalls._doubts

    async def later(self: ToolCalls, call: ToolUse) -> tuple[Doubt, ...]:
        await anyio.sleep(0.5)  # so that they are all at the same point before one is on the record
        return await doubts(self, call)

    monkeypatch.setattr(ToolCalls, "_doubts", later)
    notes = [[{"ava": "scratchpad", "args": {"note": f"note {number}"}}] for number in range(30)]
    async with agent_lab(
        tmp_path, lambda _request: priced_agent(), [[{"ask": "look"}, {"at_once": notes}, SUBMIT]]
    ) as lab:
        run_id, result = await run_agent(lab, max_tool_calls=3)
        assert result["status"] == "success"
        made = [call for call in await lab.facts(run_id, ToolCall) if call.tool == "scratchpad"]
        assert len(made) == 3
        refused = [each for each in await lab.facts(run_id, ToolResult) if "the cap of 3 tool calls" in each.output]
        assert len(refused) == 27


async def test_web_searches_beside_model_calls_are_held_and_booked_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search by a model provider is paid for too, while the agent waits for its own model."""
    needs("bubblewrap")
    for name in key_variables(os.environ):
        monkeypatch.delenv(name)
    (tmp_path / "data").mkdir(mode=0o700)
    set_key("anthropic", "sk-search-0123456789abcdef", tmp_path / "data" / "keys.toml")
    gate, form = Gate(), FORMATS["anthropic"]
    looks = [{"ava": "web_search", "args": {"query": f"podcast prices {number}"}} for number in range(2)]
    steps: list[dict[str, Any]] = [{"at_once": [[{"ask": "look"}], [{"sleep": 1}, *looks]]}, {"ask": "more"}, SUBMIT]
    with run_model_server([Fail(200, form.answer)] * 2) as searches:
        more = (
            f'[search]\nengine = "anthropic"\n[providers.anthropic]\nbase_url = "{searches.base_url}"\n'
            f'[prices."anthropic:{form.model}"]\ninput = 0.1\noutput = 0.5\n'
        )
        said = replace(priced_agent(output=1_900), gate=gate)
        async with agent_lab(tmp_path, [said, priced_agent(), priced_agent()], [steps], more) as lab:
            run_id = await lab.start(**agent_run(role="web_crawler", workspace=None))
            await wait_for(gate.arrived)
            await lab.logged(run_id, "CostUpdate", 2)
            run = await lab.run(run_id)
            assert len(run.calls_in_flight) == 1, "what the agent asks for stays held beside the searches"
            gate.released.set()
            run = await lab.ended(run_id)
            settled = [entry for entry in await lab.entries(run_id) if entry.type == "CostUpdate"]
            assert len(searches.requests) == 2 and run.state == "success"
            assert len(settled) == 4 == len(await lab.facts(run_id, CostReserved))
            assert run.cost_micros == sum(entry.cost_micros or 0 for entry in settled) > 1_900 * 15
            await lab.store.read(check_budgets)


async def test_the_time_is_over(tmp_path: Path) -> None:
    needs("bubblewrap")
    async with agent_lab(tmp_path, [priced_agent()], [[{"ask": "look"}, {"sleep": 60}], [SUBMIT]]) as lab:
        _run, result = await run_agent(lab, timeout=6)
        assert (result["status"], result["untrusted_result"]["output"]) == ("timeout", "twelve cents"), result
