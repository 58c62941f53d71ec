"""Runs whose model provider searches the web: what is proposed, reserved, sent, settled, and what a person is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.logs.cutting import all_entries, go_on_from
from support.model_server import Fail, Gate, Raw, Say, Step, run_model_server
from support.models.search_formats import ANTHROPIC, FORMATS, PROSE, URLS, anthropic_error
from support.runs.provider_search import KEY, LOOK, TASK, search_config, search_provider, store_key
from support.runtime import PRICED, Lab, check_budgets, hand_over, open_lab, submit, wait_for

from ava_audit.events import CostReserved, CostUpdate, ToolCall, ToolResult
from ava_audit.units import format_usd
from ava_server.models.base import Bound
from ava_server.models.model_choice import search_terms
from ava_server.models.prices import UserPrice, find_price, reserve_micros
from ava_server.runs.record.costs import fold_costs

pytestmark = pytest.mark.usefixtures("without_keys")


@pytest.mark.requirement("S2-11")
@pytest.mark.parametrize("name", FORMATS)
async def test_a_crawler_searches_by_the_model_provider_and_counts_the_cost(tmp_path: Path, name: str) -> None:
    store_key(tmp_path, name)
    form, findings = FORMATS[name], [{"claim": "ten", "quote": PROSE, "source_url": URLS[0]}]
    with search_provider(name=name) as server:
        async with open_lab(tmp_path, [LOOK, submit(findings=findings)], config=search_config(server, name)) as lab:
            made = await lab.propose(role="web_crawler", task=TASK, workspace=None)
            title, cost = search_terms()[name].title, format_usd(worst(name), exact=True)
            line = f"Its web searches go to {title} ({name}:{form.model}), at most {cost} each, included in its caps."
            assert line in made.message
            assert "can search and read the web" in made.approval_line
            await lab.approve(made)
            row = await lab.ended(made.subagent_id)
            result = await lab.result(made.subagent_id)
            shown, *_ = await lab.facts(made.subagent_id, ToolResult)
            [held], [(settled, micros, model)] = (
                await searches(lab, made.subagent_id),
                await settlements(lab, made.subagent_id),
            )
            ours = b"".join(request.body for request in lab.server.requests)
            entries = await lab.entries(made.subagent_id)
    assert row.state == "success", row.stop_reason
    assert [request.path for request in server.requests] == [form.path]
    assert (shown.count, [source["location"] for source in shown.sources]) == (2, list(URLS))
    assert PROSE.encode() not in ours, "what the provider's model wrote reaches nobody"
    assert [quote["verdict"] for quote in result["quotes_checked"]] == ["not_found"]
    assert held.micros == worst(name) and held.tool_call is not None
    assert (settled.settlement, model) == ("billed", f"{name}:{form.model}")
    usage = form.answer["usage"]
    tokens = usage.get("input_tokens", usage.get("prompt_tokens")), usage.get("output_tokens", 256)
    assert micros == -(-(tokens[0] * 100 + tokens[1] * 500) // 1000) + form.fee_micros
    assert result["cost_by"]["search"] == micros / 10_000
    assert sum(result["cost_by"].values()) == pytest.approx(row.cost_micros / 10_000)
    costs = fold_costs(row, entries)
    assert costs.cost_by["search"] == micros and costs.micros == row.cost_micros
    assert [attempt.purpose for attempt in costs.attempts] == [None, "search", None]
    kept = b"".join(p.read_bytes() for p in (tmp_path / "data").rglob("*") if p.suffix != ".toml" and p.is_file())
    assert KEY.encode() not in ours + kept


async def test_the_key_and_the_query_go_to_nobody_else(tmp_path: Path) -> None:
    store_key(tmp_path)
    with search_provider() as server:
        async with open_lab(tmp_path, [LOOK, hand_over()], config=search_config(server)) as lab:
            await lab.outcome(role="web_crawler", task=TASK, workspace=None)
            ours = lab.server.requests
    (sent,) = server.requests
    assert sent.headers["x-api-key"] == KEY
    assert all(KEY not in str(request.headers) and KEY.encode() not in request.body for request in ours)
    assert TASK.encode() not in sent.body, "the provider that searches is told the query alone"


async def test_a_search_may_not_use_what_is_held_for_the_last_turn(tmp_path: Path) -> None:
    store_key(tmp_path)
    many = Say(calls=[("web_search", {"query": f"podcast prices {number}"}) for number in range(12)])
    with search_provider(times=12) as server:
        async with open_lab(tmp_path, [many, hand_over()], config=search_config(server, more=PRICED)) as lab:
            run_id = await lab.start(role="web_crawler", task=TASK, workspace=None, max_cost_cents=15)
            row = await lab.ended(run_id)
            first, *_ = await lab.facts(run_id, CostReserved)
            held, settled = await searches(lab, run_id), await settlements(lab, run_id)
    left = 150_000 - row.cost_micros
    assert 0 < len(server.requests) == len(held) == len(settled) < 12
    assert worst() < left < worst() + first.wrap_micros, "a further search would have fit only without the last turn"
    assert row.state == "success"


async def test_searches_of_one_answer_go_one_by_one_until_a_cap_is_reached(tmp_path: Path) -> None:
    store_key(tmp_path)
    four = Say(calls=[("web_search", {"query": f"podcast prices {number}"}) for number in range(4)])
    with search_provider(times=4) as server:
        async with open_lab(tmp_path, [four, hand_over()], config=search_config(server)) as lab:
            run_id = await lab.start(role="web_crawler", task=TASK, workspace=None, max_cost_cents=4)
            row = await lab.ended(run_id)
            held, settled = await searches(lab, run_id), await settlements(lab, run_id)
            results = [fact.success for fact in await lab.facts(run_id, ToolResult) if fact.tool == "web_search"]
            entries = await lab.entries(run_id)
    # After three searches of 1.07 cents, 4 cents have no room for the worst case of a fourth, of 1.65 cents.
    assert len(server.requests) == len(held) == len(settled) == 3
    assert sorted(results) == [False, True, True, True]
    assert row.cost_micros <= 40_000 and row.state == "success"
    money = [entry.fact for entry in entries if isinstance(entry.fact, CostReserved | CostUpdate)]
    kinds = [type(fact).__name__ for fact in money]
    assert kinds == ["CostReserved", "CostUpdate"] * (len(kinds) // 2), "one call is in flight at a time"


@pytest.mark.parametrize(
    ("usage", "cost"),
    [({"input_tokens": 500_000}, 50_047 + 10_000), ({"server_tool_use": {"web_search_requests": 2}}, 651 + 20_000)],
    ids=["tokens", "searches"],
)
async def test_what_a_search_used_beyond_its_reservation_is_booked_and_ends_the_run(
    tmp_path: Path, usage: dict[str, Any], cost: int
) -> None:
    store_key(tmp_path)
    with search_provider(Fail(200, FORMATS["anthropic"].with_usage(**usage))) as server:
        async with open_lab(tmp_path, [LOOK, hand_over()], config=search_config(server)) as lab:
            run_id = await lab.start(role="web_crawler", task=TASK, workspace=None)
            row = await lab.ended(run_id)
            [(settled, micros, _model)] = await settlements(lab, run_id)
    assert settled.overrun and micros == cost > worst()
    assert row.state == "cost_exceeded" and row.cost_micros > micros
    assert len(lab.server.requests) == 1


async def test_a_gateway_s_figure_counts_also_where_its_tokens_cannot_be_used(tmp_path: Path) -> None:
    store_key(tmp_path, "openrouter")
    answer = FORMATS["openrouter"].with_usage(prompt_tokens=-1, cost=0.25)
    with search_provider(Fail(200, answer), name="openrouter") as server:
        async with open_lab(tmp_path, [LOOK, hand_over()], config=search_config(server, "openrouter")) as lab:
            run_id = await lab.start(role="web_crawler", task=TASK, workspace=None)
            await lab.ended(run_id)
            [(settled, micros, _model)] = await settlements(lab, run_id)
    assert micros == 250_000 > worst("openrouter") and settled.overrun


@pytest.mark.parametrize(
    ("answer", "settlement", "micros", "ok"),
    [
        (Fail(200, anthropic_error("too_many_requests")), "billed", 651, False),
        (Fail(200, {**ANTHROPIC, "usage": None}), "unknown", None, True),
        (Fail(401, {"error": {"type": "authentication_error", "message": KEY}}), "not_billed", 0, False),
        (Fail(429, {"error": {"type": "rate_limit_error", "message": "slow"}}), "not_billed", 0, False),
        (Raw([b'{"id": "half'], "application/json", missing=50), "unknown", None, False),
        (Raw([b"<html></html>"], "text/html"), "unknown", None, False),
    ],
    ids=["no search, no fee", "no usage", "key", "limit", "half", "page"],
)
async def test_a_search_is_settled_by_what_the_provider_reports(
    tmp_path: Path, answer: Step, settlement: str, micros: int | None, ok: bool
) -> None:
    store_key(tmp_path)
    with search_provider(answer) as server:
        async with open_lab(tmp_path, [LOOK, hand_over()], config=search_config(server)) as lab:
            run_id = await lab.start(role="web_crawler", task=TASK, workspace=None)
            assert (await lab.ended(run_id)).state == "success"
            [(settled, cost, _model)] = await settlements(lab, run_id)
            (shown,) = [fact for fact in await lab.facts(run_id, ToolResult) if fact.tool == "web_search"]
            assert KEY.encode() not in lab.server.requests[-1].body
    assert len(server.requests) == 1, "a search is one attempt"
    assert (settled.settlement, cost, shown.success) == (settlement, worst() if micros is None else micros, ok)


async def test_a_gateways_cost_without_the_fee_of_the_search_counts_with_it(tmp_path: Path) -> None:
    store_key(tmp_path, "openrouter")
    with search_provider(Fail(200, FORMATS["openrouter"].with_usage(cost=0.000_5)), name="openrouter") as server:
        async with open_lab(tmp_path, [LOOK, hand_over()], config=search_config(server, "openrouter")) as lab:
            run_id = await lab.start(role="web_crawler", task=TASK, workspace=None)
            await lab.ended(run_id)
            [(_settled, cost, _model)] = await settlements(lab, run_id)
    assert cost == 20_000 + 539


# -- endings in the middle ------------------------------------------------------------------------------------------


async def test_a_search_that_is_cancelled_counts_with_its_worst_case(tmp_path: Path) -> None:
    store_key(tmp_path)
    gate = Gate()
    with run_model_server([Fail(200, ANTHROPIC, gate=gate)]) as server:
        async with open_lab(tmp_path, [LOOK], config=search_config(server)) as lab:
            run_id = await lab.start(role="web_crawler", task=TASK, workspace=None)
            await wait_for(gate.arrived)
            await lab.call("cancel_subagent", subagent_id=run_id)
            row = await lab.ended(run_id)
            [(settled, micros, _model)] = await settlements(lab, run_id)
            result = await lab.result(run_id)
    assert row.state == "cancelled" and row.in_flight is None
    assert (settled.settlement, micros) == ("unknown", worst())
    assert result["cost_by"]["search"] == worst() / 10_000


async def test_a_kill_around_a_search_never_loses_its_cost(tmp_path: Path) -> None:
    """The log is cut behind each entry of the search in turn: that is what a kill at that moment leaves."""
    with search_provider(times=12) as server, run_model_server([LOOK, hand_over(), *[hand_over()] * 12]) as own:
        async with open_lab(tmp_path, server=own, config=search_config(server)) as lab:
            run_id = await lab.start(role="web_crawler", task=TASK, workspace=None)
            await lab.ended(run_id)
            entries = await all_entries(lab.store)
        names = [entry.type for entry in entries]
        places = [
            number
            for number, entry in enumerate(entries, 1)
            if isinstance(entry.fact, ToolCall) and entry.fact.tool == "web_search"
        ]
        begin = places[0]
        assert names[begin : begin + 2] == ["CostReserved", "CostUpdate"]
        for count in (begin, begin + 1, begin + 2):
            folder = tmp_path / f"cut-{count}"
            before = len(server.requests)
            async with go_on_from(folder, entries[:count], own, config=search_config(server)) as lab:
                row = await lab.ended(run_id)
                settled = await settlements(lab, run_id)
                assert (row.state, row.generation) == ("success", 2), names[count - 1]
                assert len(server.requests) - before == 1, "a call that reads is made again"
                lost = names[count - 1] == "CostReserved"
                assert [fact.settlement for fact, *_ in settled].count("unknown") == lost
                assert sum(micros for _fact, micros, _model in settled) == (
                    worst() * lost + 10_651 * (len(settled) - lost)
                )
                assert {model for *_, model in settled} == {"anthropic:claude-haiku-5-5"}
                result = await lab.result(run_id)
                assert result["cost_by"]["search"] == sum(micros for _f, micros, _m in settled) / 10_000
                await lab.store.read(check_budgets)


def worst(name: str = "anthropic") -> int:
    """What one search is reserved with, in micro-USD."""
    own = {FORMATS[name].model: UserPrice(input=0.1, output=0.5)}
    price = find_price(name, FORMATS[name].model, base_url="http://127.0.0.1/v1", overrides=own)
    terms = search_terms()[name]
    return reserve_micros(price, Bound(terms.prompt_tokens, terms.output_tokens)) + FORMATS[name].fee_micros


async def searches(lab: Lab, run_id: str) -> list[CostReserved]:
    """The reservations of a run's searches."""
    return [fact for fact in await lab.facts(run_id, CostReserved) if fact.tool_call is not None]


async def settlements(lab: Lab, run_id: str) -> list[tuple[CostUpdate, int, str | None]]:
    """The settlements of a run's searches, each with its cost in micro-USD and its model."""
    held = {(fact.turn, fact.attempt) for fact in await searches(lab, run_id)}
    return [
        (entry.fact, entry.cost_micros or 0, entry.model)
        for entry in await lab.entries(run_id)
        if isinstance(entry.fact, CostUpdate) and (entry.fact.turn, entry.fact.attempt) in held
    ]
