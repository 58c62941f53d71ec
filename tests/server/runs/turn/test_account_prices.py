"""Runs whose account has a tier or a place of its own: what is reserved, sent, booked and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.model_server import Fail, Say, Step
from support.models.search_formats import FORMATS
from support.models.surcharges import make_this_machine
from support.runs.provider_search import LOOK, TASK, search_config, search_provider, store_key
from support.runtime import DONE, Lab, hand_over, open_lab

from ava_audit.entries import Entry
from ava_audit.events import CostReserved, CostUpdate, ErrorOccurred
from ava_audit.rows import RunRow
from ava_server.models.base import Bound
from ava_server.models.prices import dearest_price, raised, reserve_micros
from ava_server.run_config.config import config_of

CLAUDE, GPT = "claude-opus-4-6", "gpt-6.1-sol"
PRICES = '[prices."{0}"]\ninput = 3.0\noutput = 15.0\ncache_read = 0.3\ncache_write = 3.75\n'
REFUSED = Fail(
    400,
    {
        "error": {
            "message": "Unsupported service_tier: default",
            "type": "invalid_request_error",
            "param": "service_tier",
        }
    },
)


def house(wire: str, model: str, key: str = "") -> dict[str, Any]:
    """Return the settings of a house whose model speaks this format."""
    env = {"AVA_MODEL": model}
    if key:
        env["AVA_MODEL_API_KEY"] = key
    return {"config": f'[providers.custom]\nwire = "{wire}"\n{PRICES.format(model)}', "env": env}


def claude(geo: str | None, *, calls: Any = (), tier: str = "standard") -> Say:
    usage: dict[str, Any] = {"input_tokens": 2_000, "output_tokens": 100, "service_tier": tier}
    if geo is not None:
        usage["inference_geo"] = geo
    return Say(calls=calls or [DONE], usage=usage)


READ = [("read_file", {"path": "0.md"})]


async def row_of(lab: Lab, run_id: str) -> RunRow:
    row = await lab.store.read(lambda view: view.run(run_id))
    assert row is not None
    return row


async def reserved_percents(lab: Lab, run_id: str) -> list[int]:
    """Return the percent of its price at which each call of a run was reserved."""
    price = config_of((await row_of(lab, run_id)).config).price
    found: list[int] = []
    for fact in await lab.facts(run_id, CostReserved):
        bound = Bound(fact.prompt_tokens, fact.max_output)
        of_percent = {reserve_micros(raised(price, percent), bound): percent for percent in (100, 110, 200, 600)}
        found.append(of_percent[fact.micros])
    return found


def standard_micros(entry: Entry) -> int:
    """Return what the tokens of a call cost at the model's own price, in micro-USD."""
    assert entry.usage is not None
    return entry.usage.input_tokens * 3 + entry.usage.output_tokens * 15


async def run_once(lab: Lab, **more: Any) -> str:
    (lab.workspace / "0.md").write_text("twelve cents\n")
    run_id = await lab.start(**more)
    await lab.ended(run_id)
    return run_id


async def test_a_workspace_in_the_us_is_reserved_and_booked_at_its_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_this_machine(monkeypatch, "anthropic")
    script = [claude("us", calls=READ), claude("us")]
    async with open_lab(tmp_path, script, **house("messages", CLAUDE)) as lab:
        run_id = await run_once(lab)
        assert await reserved_percents(lab, run_id) == [110, 110]
        entries = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostUpdate)]
        assert [entry.cost_micros for entry in entries] == [(2_000 * 33 + 100 * 165) // 10] * 2
        assert not any("inference_geo" in request.json for request in lab.server.requests)
        fact = entries[0].fact
        assert isinstance(fact, CostUpdate)
        assert fact.named == {"usage.inference_geo": "us"}
        assert fact.price_source is not None
        assert fact.price_source.endswith(" × 1.1")
        assert not fact.overrun


async def test_the_dearer_place_is_reserved_until_an_answer_of_this_key_and_model_has_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_this_machine(monkeypatch, "anthropic")
    script = [claude("global", calls=READ), claude("global"), claude("global"), claude(None), claude("us")]
    async with open_lab(tmp_path, script, **house("messages", CLAUDE, "first-key-0123456789")) as lab:
        assert await reserved_percents(lab, await run_once(lab)) == [110, 100]
        assert await reserved_percents(lab, await run_once(lab)) == [100], "a later run knows it too"
        server = lab.server
        async with open_lab(
            tmp_path, server=server, check=False, **house("messages", CLAUDE, "other-key-0123456789")
        ) as other:
            assert await reserved_percents(other, await run_once(other)) == [110], "another key, another workspace"
            run_id = await run_once(other)
            assert await reserved_percents(other, run_id) == [110], "that answer has not named it"
            assert [fact.overrun for fact in await other.facts(run_id, CostUpdate)] == [False]


async def test_capacity_that_was_bought_before_is_shown_and_not_dearer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_this_machine(monkeypatch, "anthropic")
    script = [claude("global", tier="priority")]
    async with open_lab(tmp_path, script, **house("messages", CLAUDE)) as lab:
        run_id = await run_once(lab)
        assert "service_tier" not in lab.server.requests[0].json
        [entry] = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostUpdate)]
        assert entry.cost_micros == 2_000 * 3 + 100 * 15
        from ava_server.render.entry_lines import what_happened

        assert ", service_tier priority" in what_happened(entry, {})


async def test_openai_is_asked_for_the_standard_tier_and_reserved_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_this_machine(monkeypatch, "openai")
    async with open_lab(tmp_path, [Say(calls=READ, tier="default"), hand_over()], **house("responses", GPT)) as lab:
        run_id = await run_once(lab)
        assert [request.json["service_tier"] for request in lab.server.requests] == ["default"] * 2
        assert await reserved_percents(lab, run_id) == [100, 100]


@pytest.mark.parametrize("wire", ["responses", "chat_completions"])
async def test_a_refused_tier_is_tried_once_without_it_at_the_dearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    make_this_machine(monkeypatch, "openai")

    def answers(body: dict[str, Any]) -> Step:
        if "service_tier" in body:
            return REFUSED
        if len(body.get("input", body.get("messages", ()))) < 3:
            return Say(calls=READ, tier="priority")
        return Say(calls=[DONE], tier="priority")

    async with open_lab(tmp_path, answers, **house(wire, GPT)) as lab:
        run_id = await run_once(lab, max_cost_cents=900)
        assert (await row_of(lab, run_id)).state == "success"
        assert ["service_tier" in request.json for request in lab.server.requests] == [True, False, False]
        assert await reserved_percents(lab, run_id) == [100, 600, 200]
        updates = await lab.facts(run_id, CostUpdate)
        assert [fact.settlement for fact in updates] == ["not_billed", "billed", "billed"]
        assert [fact.named for fact in updates[1:]] == [{"service_tier": "priority"}] * 2
        entries = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostUpdate)]
        assert [entry.cost_micros for entry in entries] == [0, *(2 * standard_micros(entry) for entry in entries[1:])]


async def test_a_tier_that_is_refused_after_an_answer_that_named_it_is_reserved_at_the_dearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_this_machine(monkeypatch, "openai")
    script: list[Step] = [Say(calls=READ, tier="default"), REFUSED, Say(calls=[DONE], tier="ultrafast")]
    async with open_lab(tmp_path, script, **house("responses", GPT)) as lab:
        run_id = await run_once(lab, max_cost_cents=900)
        assert ["service_tier" in request.json for request in lab.server.requests] == [True, True, False]
        assert await reserved_percents(lab, run_id) == [100, 100, 600]
        assert not any(fact.overrun for fact in await lab.facts(run_id, CostUpdate))


async def test_an_answer_at_the_standard_tier_does_not_lower_what_a_deployment_at_azure_reserves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_this_machine(monkeypatch, "azure")
    script = [Say(calls=READ, tier="default"), Say(calls=[DONE], tier="priority"), hand_over()]
    async with open_lab(tmp_path, script, **house("responses", GPT)) as lab:
        run_id = await run_once(lab)
        assert await reserved_percents(lab, run_id) == [200, 200]
        assert not any(fact.overrun for fact in await lab.facts(run_id, CostUpdate))
        assert await reserved_percents(lab, await run_once(lab)) == [200], "a later run, too"


async def test_a_second_refusal_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_this_machine(monkeypatch, "openai")
    async with open_lab(tmp_path, [REFUSED, REFUSED], **house("responses", GPT)) as lab:
        run_id = await run_once(lab)
        assert (await row_of(lab, run_id)).state == "error"
        assert len(lab.server.requests) == 2
        assert [fact.kind for fact in await lab.facts(run_id, ErrorOccurred)] == ["tier", "tier"]


async def test_an_address_that_was_asked_for_no_tier_is_not_asked_again(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [REFUSED], **house("responses", GPT)) as lab:
        run_id = await run_once(lab)
        assert (await row_of(lab, run_id)).state == "error"
        assert len(lab.server.requests) == 1


async def test_where_the_dearest_tier_does_not_fit_a_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_this_machine(monkeypatch, "openai")
    async with open_lab(tmp_path, [REFUSED], **house("responses", GPT)) as lab:
        made = await lab.propose()
        least = config_of((await row_of(lab, made.subagent_id)).config).least_micros
        run_id = await run_once(lab, max_cost_cents=-(-least // 10_000))
        row = await row_of(lab, run_id)
        assert row.state == "cost_exceeded"
        assert " at 6 times the model's price, which the account can have (service_tier)" in (row.stop_reason or "")
        assert len(lab.server.requests) == 1, "nothing is sent that does not fit"


@pytest.mark.usefixtures("without_keys")
async def test_a_search_that_was_refused_its_tier_is_made_once_more_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_this_machine(monkeypatch, "openai")
    store_key(tmp_path, "openai")
    answer = Fail(200, {**FORMATS["openai"].answer, "service_tier": "priority"})
    with search_provider(REFUSED, answer, name="openai") as server:
        config = search_config(server, "openai") + '[providers.custom]\nwire = "chat_completions"\n'
        async with open_lab(tmp_path, [LOOK, hand_over()], config=config, check=False) as lab:
            run_id = await lab.start(role="web_crawler", task=TASK, workspace=None)
            assert (await lab.ended(run_id)).state == "success"
            held = [fact for fact in await lab.facts(run_id, CostReserved) if fact.tool_call is not None]
            settled = [fact for fact in await lab.facts(run_id, CostUpdate) if "service_tier" in fact.named]
            call = config_of((await row_of(lab, run_id)).config).search_call
    assert ["service_tier" in request.json for request in server.requests] == [True, False]
    assert call is not None
    bound = Bound(call.prompt_tokens, call.output_tokens)
    assert [fact.no_tier for fact in held] == [None, True]
    assert [fact.micros for fact in held] == [
        reserve_micros(call.price, bound),
        reserve_micros(dearest_price(call.price, {}), bound),
    ]
    assert held[1].micros > held[0].micros
    assert [fact.named for fact in settled] == [{"service_tier": "priority"}]


async def test_an_unknown_address_gets_nothing_and_what_it_names_is_booked(tmp_path: Path) -> None:
    script = [Say(calls=READ, tier="priority"), Say(calls=[DONE], tier="priority")]
    async with open_lab(tmp_path, script, **house("chat_completions", GPT)) as lab:
        run_id = await run_once(lab)
        assert not any("service_tier" in request.json for request in lab.server.requests)
        assert await reserved_percents(lab, run_id) == [100, 200], (
            "it is not known to have a choice, until it names one"
        )
        entries = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostUpdate)]
        assert [entry.cost_micros for entry in entries] == [2 * standard_micros(entry) for entry in entries]
