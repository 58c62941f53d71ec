"""The gateway and the account's tier or place: what it sends, books and repeats for another agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agents.gateway import agent_request, open_gateway
from support.agents.lab import SUBMIT, USAGE, agent_lab, run_agent
from support.model_server import Fail, Say, Step
from support.models.surcharges import make_this_machine
from support.sandboxes.attacks import needs

from ava_audit.events import CostReserved, CostUpdate
from ava_server.models.base import Bound
from ava_server.models.prices import raised, reserve_micros
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.messages import MessagesWire
from ava_server.models.wires.responses import ResponsesWire
from ava_server.models.wires.wire import Wire
from ava_server.run_config.config import config_of

REFUSED = Fail(400, {"error": {"message": "Unsupported service_tier: default", "param": "service_tier"}})
PINNED: list[tuple[str, Wire]] = [
    ("responses", ResponsesWire(service_tier="default")),
    ("chat_completions", ChatWire(service_tier="default")),
]


@pytest.mark.parametrize(("wire", "endpoint"), PINNED)
async def test_an_agents_own_tier_is_replaced_by_the_standard_one(tmp_path: Path, wire: str, endpoint: Wire) -> None:
    async with open_gateway(tmp_path, [Say("ok", tier="default")], wire, endpoint=endpoint) as at:
        at.meter.asks_tier = True
        answer = await at.ask(agent_request(wire, service_tier="priority"))
        assert answer.status_code == 200, answer.text
        assert at.far.requests[0].json["service_tier"] == "default"


@pytest.mark.parametrize(("wire", "endpoint"), PINNED)
async def test_a_refused_tier_is_tried_once_without_it_and_the_agent_does_not_notice(
    tmp_path: Path, wire: str, endpoint: Wire
) -> None:
    async with open_gateway(tmp_path, [REFUSED, Say("ok", tier="priority")], wire, endpoint=endpoint) as at:
        at.meter.asks_tier = True
        answer = await at.ask(agent_request(wire))
        assert answer.status_code == 200, answer.text
        assert ["service_tier" in request.json for request in at.far.requests] == [True, False]
        assert at.settled() == ["not_billed", "billed"]
        assert at.meter.settled[-1][2].named == {"service_tier": "priority"}


@pytest.mark.parametrize("answers", [[REFUSED, REFUSED], [REFUSED, Fail(400)]])
async def test_a_second_refusal_is_the_agents(tmp_path: Path, answers: list[Any]) -> None:
    async with open_gateway(tmp_path, answers, *PINNED[0][:1], endpoint=PINNED[0][1]) as at:
        at.meter.asks_tier = True
        answer = await at.ask(agent_request("responses"))
        assert answer.status_code == 400
        assert len(at.far.requests) == 2
        assert at.settled() == ["not_billed", "not_billed"]


async def test_where_nothing_was_asked_for_nothing_is_repeated(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, [REFUSED], "responses") as at:
        assert (await at.ask(agent_request("responses", service_tier="priority"))).status_code == 400
        assert "service_tier" not in at.far.requests[0].json
        assert at.settled() == ["not_billed"]


async def test_an_agents_calls_are_reserved_and_booked_at_the_place_of_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("bubblewrap")
    make_this_machine(monkeypatch, "anthropic")
    monkeypatch.setattr("support.agents.lab.MODEL", "far:claude-opus-4-6")

    def answer(_request: dict[str, Any]) -> Say:
        usage = {"input_tokens": USAGE["prompt_tokens"], "output_tokens": 50, "inference_geo": "us"}
        return Say("ok", usage=usage)

    async with agent_lab(tmp_path, answer, [[{"ask": "look"}, SUBMIT]]) as lab:
        run_id, result = await run_agent(lab, model="far:claude-opus-4-6")
        assert result["status"] == "success", result
        price = config_of((await lab.run(run_id)).config).price
        [held] = await lab.facts(run_id, CostReserved)
        assert held.micros == reserve_micros(raised(price, 110), Bound(held.prompt_tokens, held.max_output))
        [entry] = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostUpdate)]
        assert entry.cost_micros == -(-(900 * 3 + 50 * 15) * 110 // 100)
        assert not any("inference_geo" in request.json for request in lab.server.requests)


async def test_an_agents_refused_tier_is_reserved_again_at_the_dearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("bubblewrap")
    make_this_machine(monkeypatch, "openai")

    def tier(_wire: MessagesWire, *, refused: bool) -> dict[str, str]:
        return {} if refused else {"service_tier": "default"}

    monkeypatch.setattr(MessagesWire, "tier", tier)  # the scripted agent speaks this format alone
    monkeypatch.setattr("support.agents.lab.MODEL", "far:gpt-5.5")

    def answer(request: dict[str, Any]) -> Step:
        if "service_tier" in request:
            return REFUSED
        return Say("ok", usage={"input_tokens": USAGE["prompt_tokens"], "output_tokens": 50})

    async with agent_lab(tmp_path, answer, [[{"ask": "look"}, {"ask": "look again"}, SUBMIT]]) as lab:
        run_id, result = await run_agent(lab, model="far:gpt-5.5", max_cost_cents=500)
        assert result["status"] == "success", result
        price = config_of((await lab.run(run_id)).config).price
        held = await lab.facts(run_id, CostReserved)
        bounds = [Bound(fact.prompt_tokens, fact.max_output) for fact in held]
        assert [fact.micros for fact in held] == [
            reserve_micros(raised(price, percent), bound)
            for percent, bound in zip((100, 250, 250), bounds, strict=True)
        ]
        assert [fact.settlement for fact in await lab.facts(run_id, CostUpdate)] == ["not_billed", "billed", "billed"]
        assert ["service_tier" in request.json for request in lab.server.requests] == [True, False, False]
