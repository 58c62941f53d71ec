"""What the account's tier or place makes of a price: the table, what answers name, and what requests say."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, TieredPrices
from support.models.surcharges import raw_table

from ava_server.models.base import Request, UserTurn
from ava_server.models.errors import Endpoint, find_case, read_body
from ava_server.models.factory import account_of, model_of, parameters
from ava_server.models.http_clients import ClientPool
from ava_server.models.model_choice import Choice, WireName, default_tiers, host_of, price_over, wire_of
from ava_server.models.model_choice import Provider as Configured
from ava_server.models.prices import Price, Unpriced, account_lines, dearest_price, price_named, raised
from ava_server.models.providers import PROVIDERS
from ava_server.models.surcharges import (
    address_percent,
    most_percent,
    named_percent,
    named_words,
    pinned_at,
    surcharges_of,
    telling,
)
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.messages import MessagesWire
from ava_server.models.wires.responses import ResponsesWire
from ava_server.models.wires.wire import Wire

OPENAI, ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com/v1"
AZURE = "https://ours.openai.azure.com/openai/v1"


def test_each_row_says_where_it_was_read_and_when() -> None:
    table = raw_table()
    assert table["surcharge"]
    for row in (*table["surcharge"], *table["pinned"], *table["lapsing"]):
        assert row["source"]
        assert isinstance(row["date"], datetime.date)
        assert set(row["hosts"]) <= table["hosts"].keys()
    for row in table["surcharge"]:
        assert row["models"]
        assert ("value" in row) == (row["field"] != "address")
        assert ("prices_of" in row) == (row["field"] == "address")


# -- the table, beside that of genai-prices ---------------------------------------------------------------------------


def _base(value: Decimal | TieredPrices) -> Decimal:
    return value.base if isinstance(value, TieredPrices) else value


def _standard_now(model: ModelInfo) -> ModelPrice:
    return model.prices if isinstance(model.prices, ModelPrice) else model.prices[-1].prices


def _variants() -> list[Any]:
    """Return each price that genai-prices has for a tier or a speed: where, model, field, value, and both prices."""
    found: list[Any] = []
    for provider in get_snapshot().providers:
        if provider.id not in ("openai", "anthropic"):
            continue
        base_url = OPENAI if provider.id == "openai" else ANTHROPIC
        for model in provider.models:
            for variant in model.price_variants or ():
                ((name, value),) = variant.when.items()
                field = {"service_tier": "service_tier", "speed": "usage.speed"}.get(name)
                if field is not None and value != "default" and (field, value) != ("service_tier", "fast"):
                    found.append((base_url, model.id, field, value, _standard_now(model), variant.prices))
    return found


def test_a_tier_costs_what_the_price_table_says() -> None:
    variants = _variants()
    assert len(variants) > 40
    wrong: list[str] = []
    for base_url, model_id, field, value, standard, dearer in variants:
        percent = named_percent(surcharges_of(base_url, model_id), {field: value})
        for unit in ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok"):
            of_standard, of_tier = getattr(standard, unit), getattr(dearer, unit)
            if of_standard is None or of_tier is None:
                continue
            ours = _base(of_standard) * percent / 100
            if not _base(of_tier) <= ours <= _base(of_tier) * Decimal("1.05"):
                wrong.append(f"{model_id} {value} {unit}: {ours}, and genai-prices has {_base(of_tier)}")
    assert wrong == []


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "model", "home", "percent"),
    [
        ("https://eu.api.openai.com/v1", "gpt-6.1-sol", OPENAI, 110),
        ("https://us.api.openai.com/v1", "gpt-5.5-2026-04-23", OPENAI, 110),
        ("https://jp.api.openai.com/v1", "gpt-5.4-mini", OPENAI, 110),
        ("https://eu.api.openai.com/v1", "gpt-5-mini", OPENAI, 100),
        ("https://eu.api.openai.com/v1", "o3-2025-04-16", OPENAI, 100),
        ("https://gov.api.openai.com/v1", "gpt-5-mini", OPENAI, 110),
        ("https://mtls.api.openai.com/v1", "gpt-6.1-sol", OPENAI, 100),
        ("https://us-api.together.ai/v1", "zai-org/GLM-5.3", "https://api.together.xyz/v1", 125),
        ("https://ca-api.together.ai/v1", "zai-org/GLM-5.2", "https://api.together.xyz/v1", 125),
        ("https://api.eu.mistral.ai/v1", "mistral-large-latest", "https://api.mistral.ai/v1", 110),
    ],
)
def test_a_regional_host_multiplies_the_prices_of_its_provider(
    base_url: str, model: str, home: str, percent: int
) -> None:
    standard = price_over("chat_completions", "anything", model, home, {})
    regional = price_over("chat_completions", "anything", model, base_url, {})
    assert replace(regional, source="", surcharges=()) == replace(raised(standard, percent), source="", surcharges=())
    assert regional.source.endswith(f" × {Decimal(percent) / 100}") == (percent != 100)
    assert regional.input * 100 >= standard.input * percent
    assert regional.output * 100 >= standard.output * percent


@pytest.mark.parametrize("region", ["europe-west4-aiplatform.googleapis.com", "aiplatform.us.rep.googleapis.com"])
def test_vertex_costs_more_in_a_region_than_in_the_world(region: str) -> None:
    path = "v1/projects/p/locations/l/publishers/google"
    for model, percent in (("gemini-3.5-flash", 110), ("gemini-2.5-flash", 100)):
        world = price_over("google", "vertex", model, f"https://aiplatform.googleapis.com/{path}", {})
        there = price_over("google", "vertex", model, f"https://{region}/{path}", {})
        assert there.output == -(-world.output * percent // 100)


def test_a_host_that_only_looks_like_a_regional_one_has_no_price() -> None:
    for base_url in ("https://eu.api.openai.com.evil.example/v1", "https://evil-us-api.together.ai.example/v1"):
        assert pinned_at(base_url) == {}
        assert address_percent(base_url, "gpt-6.1-sol") == 100
        with pytest.raises(Unpriced):
            price_over("chat_completions", "anything", "gpt-6.1-sol", base_url, {})


def test_a_regional_host_of_openai_is_asked_as_its_own() -> None:
    assert wire_of(Configured(), "https://eu.api.openai.com/v1") == "responses"
    choice = _choice("openai", "gpt-6.1-sol", "https://eu.api.openai.com/v1")
    assert parameters(choice)["cache_mark"] == "prompt_cache_breakpoint"


# -- what answers name ------------------------------------------------------------------------------------------------

_PRICE = Price(1_000, 5_000, 100, 1_250, per_request=70, source="a table")


def at(base_url: str, model: str) -> Price:
    return replace(_PRICE, surcharges=surcharges_of(base_url, model))


@pytest.mark.parametrize(
    ("base_url", "model", "named", "percent"),
    [
        (ANTHROPIC, "claude-opus-4-6", {"usage.inference_geo": "us"}, 110),
        (ANTHROPIC, "claude-haiku-5-5", {"usage.inference_geo": "global"}, 100),
        (ANTHROPIC, "claude-haiku-4-5-20251001", {"usage.inference_geo": "not_available"}, 100),
        (ANTHROPIC, "claude-opus-9", {"usage.inference_geo": "mars"}, 110),
        (ANTHROPIC, "claude-opus-5-5", {"usage.inference_geo": "us", "usage.speed": "fast"}, 220),
        (ANTHROPIC, "claude-opus-5-5", {"usage.service_tier": "priority"}, 100),
        (OPENAI, "gpt-6.1-sol", {"service_tier": "default"}, 100),
        (OPENAI, "gpt-6.1-sol", {"service_tier": "priority"}, 200),
        (OPENAI, "gpt-6.1-sol", {"service_tier": "ultrafast"}, 600),
        (OPENAI, "gpt-6.1-sol", {"service_tier": "warp"}, 600),
        (OPENAI, "gpt-6.1-sol", {"service_tier": "scale"}, 100),
        (OPENAI, "gpt-5.5", {"service_tier": "priority"}, 250),
        (OPENAI, "gpt-5-2025-08-07", {"service_tier": "flex"}, 50),
        (OPENAI, "gpt-9", {"service_tier": "priority"}, 250),
        (OPENAI, "gpt-9", {"service_tier": "ultrafast"}, 600),
        ("https://gateway.example/v1", "openai/gpt-5-mini", {"service_tier": "priority"}, 180),
        ("https://gateway.example/v1", "anthropic/claude-opus-4.6", {"usage.inference_geo": "us"}, 110),
        ("https://gateway.example/v1", "llama-9", {"service_tier": "priority"}, 250),
        ("https://gateway.example/v1", "llama-9", {"service_tier": "performance"}, 100),
        ("https://gateway.example/v1", "llama-9", {"service_tier": "on_demand"}, 100),
    ],
)
def test_a_call_is_booked_at_what_its_answer_names(
    base_url: str, model: str, named: dict[str, str], percent: int
) -> None:
    booked = price_named(at(base_url, model), named)
    assert (booked.input, booked.output, booked.cache_read) == (10 * percent, 50 * percent, percent)
    assert booked.per_request == 70, "a fee for each call stays as it is"


@pytest.mark.parametrize(
    ("base_url", "model", "known", "percent"),
    [
        (ANTHROPIC, "claude-opus-4-6", {}, 110),
        (ANTHROPIC, "claude-opus-4-6", {"usage.inference_geo": {"global"}}, 100),
        (ANTHROPIC, "claude-opus-4-6", {"usage.inference_geo": {"global", "us"}}, 110),
        (ANTHROPIC, "claude-haiku-4-5", {}, 100),
        (ANTHROPIC, "claude-3-haiku", {}, 100),
        (AZURE, "gpt-5.5", {}, 250),
        (AZURE, "gpt-5.5", {"service_tier": {"default"}}, 250),
        (AZURE, "gpt-4.1", {"service_tier": {"default", "standard"}}, 175),
        (AZURE, "gpt-6.1-sol", {"service_tier": {"default", "priority"}}, 200),
        (AZURE, "gpt-5-nano", {}, 100),
        (AZURE, "gpt-5-nano", {"service_tier": {"default"}}, 100),
        (OPENAI, "gpt-6.1-sol", {}, 600),
        (OPENAI, "gpt-6.1-sol", {"service_tier": {"default"}}, 600),
        (OPENAI, "gpt-6.1-sol", {"service_tier": {"flex"}}, 100),
        ("https://gateway.example/v1", "gpt-5.5", {}, 100),
        ("https://gateway.example/v1", "gpt-5.5", {"service_tier": {"priority"}}, 250),
        ("https://us-api.together.ai/v1", "zai-org/GLM-5.3", {}, 100),
    ],
)
def test_a_call_is_reserved_at_the_dearest_until_an_answer_has_named_it(
    base_url: str, model: str, known: dict[str, set[str]], percent: int
) -> None:
    price = at(base_url, model)
    assert dearest_price(price, known).output == 50 * percent
    pinned = pinned_at(base_url)
    if pinned and known in ({}, {"service_tier": {"default"}}):
        assert dearest_price(price, known, pinned).output == 5_000, "the request says it"


def test_prices_of_ones_own_and_free_ones_are_as_the_person_wrote_them() -> None:
    own = replace(_PRICE, source='settings [prices."gpt-6.1-sol"]')
    from ava_server.models.prices import price_at

    assert price_at(own, "https://eu.api.openai.com/v1", "gpt-6.1-sol").output == own.output
    free = Price(0, 0, 0, 0, free=True)
    assert price_at(free, OPENAI, "gpt-6.1-sol") == free
    assert raised(free, 600) == free


def test_what_an_account_chooses_is_kept_and_what_is_not_standard_is_shown() -> None:
    named = {"usage.inference_geo": "global", "usage.service_tier": "standard"}
    assert telling(at(ANTHROPIC, "claude-opus-4-6").surcharges, named) == {"usage.inference_geo": "global"}
    assert named_words(named) == ""
    assert named_words({"usage.service_tier": "priority", "service_tier": "flex"}) == (
        ", service_tier priority, service_tier flex"
    )
    assert account_lines(at(ANTHROPIC, "claude-opus-4-6"), ANTHROPIC) == [
        "1.1 times that with the account's inference_geo us"
    ]
    assert account_lines(at(OPENAI, "gpt-6.1-sol"), OPENAI) == [], "requests say the tier themselves"


_MESSAGE = {"type": "message", "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}
_RESPONSE = {"output": [], "status": "completed"}
_CHOICE = {"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("wire", "events", "named"),
    [
        (ChatWire(), [{"choices": [_CHOICE], "service_tier": "priority"}], {"service_tier": "priority"}),
        (ChatWire(), [{"choices": [_CHOICE], "service_tier": ""}], {}),
        (ChatWire(), [{"choices": [_CHOICE], "service_tier": None}, {"service_tier": 7}], {}),
        (ChatWire(), [{"choices": [_CHOICE], "service_tier": "p" * 50}], {}),
        (ChatWire(), [{"choices": [_CHOICE], "service_tier": "pri\x1b[31m"}], {"service_tier": "pri [31m"}),
        (
            ResponsesWire(),
            [
                {"type": "response.created", "response": {**_RESPONSE, "service_tier": "auto"}},
                {"type": "response.completed", "response": {**_RESPONSE, "service_tier": "ultrafast"}},
            ],
            {"service_tier": "ultrafast"},
        ),
        (ResponsesWire(), [{**_RESPONSE, "service_tier": "flex"}], {"service_tier": "flex"}),
        (
            MessagesWire(),
            [
                {"type": "message_start", "message": {**_MESSAGE, "usage": {"inference_geo": "us"}}},
                {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3, "service_tier": "priority"}},
            ],
            {"usage.inference_geo": "us", "usage.service_tier": "priority"},
        ),
        (
            MessagesWire(),
            [{**_MESSAGE, "usage": {"inference_geo": "global", "speed": "fast", "service_tier": "standard"}}],
            {"usage.inference_geo": "global", "usage.speed": "fast", "usage.service_tier": "standard"},
        ),
    ],
)
def test_reads_what_an_answer_names(wire: Wire, events: list[dict[str, Any]], named: dict[str, str]) -> None:
    answer = wire.answer()
    for event in events:
        answer.add(event)
    assert answer.complete(request_id=None, sent_bytes=0).named == named


# -- what requests say ------------------------------------------------------------------------------------------------


def _choice(provider: str, model: str, base_url: str, wire: WireName | None = None) -> Choice:
    wire = wire or wire_of(Configured(), base_url)
    price = replace(_PRICE, surcharges=surcharges_of(base_url, model))
    return Choice(provider, model, f"{provider}:{model}", "fast", wire, price, base_url, "k3y-0f-n0b0dy-123456")


def _refusal(base_url: str, body: dict[str, Any]) -> str:
    """Return why the fake provider at an address refuses a body: a field that its models do not take."""
    host = host_of(base_url)
    takes_tier = host == "api.openai.com" or host.endswith(".api.openai.com")
    if "service_tier" in body and not takes_tier:
        return "Unknown parameter: 'service_tier'"
    if "inference_geo" in body:
        return "inference_geo is not supported"
    return ""


_ADDRESSES = [
    *((name, known.base_url) for name, known in PROVIDERS.items() if known.kind != "search"),
    ("gateway", "https://gateway.example/v1"),
    ("looks-alike", "https://api.openai.com.evil.example/v1"),
    ("proxy", "https://proxy.example/api.openai.com/v1"),
    ("together", "https://us-api.together.ai/v1"),
]


@pytest.mark.parametrize(("provider", "base_url"), _ADDRESSES)
@pytest.mark.parametrize("wire", ["chat_completions", "responses", "messages"])
async def test_no_provider_gets_a_field_that_it_does_not_take(provider: str, base_url: str, wire: WireName) -> None:
    models = [*default_tiers().get(provider, {}).values(), "gpt-5.5", "claude-opus-4-6"]
    async with ClientPool() as clients:
        for model_id in models:
            choice = _choice(provider, model_id, base_url, wire)
            model = model_of(choice.name, parameters(choice), None, clients)
            request = Request(model_id, "You are terse.", (), (UserTurn("Find it."),), 512)
            body = model.wire.body(request)  # type: ignore[attr-defined]
            assert _refusal(base_url, body) == ""


@pytest.mark.parametrize("base_url", [OPENAI, "https://eu.api.openai.com/v1"])
@pytest.mark.parametrize("wire", ["chat_completions", "responses"])
async def test_openai_is_told_the_tier_until_it_refuses(base_url: str, wire: WireName) -> None:
    choice = _choice("openai", "gpt-6.1-sol", base_url, wire)
    request = Request("gpt-6.1-sol", "You are terse.", (), (UserTurn("Find it."),), 512)
    async with ClientPool() as clients:
        model = model_of(choice.name, parameters(choice), None, clients)
        told = model.wire.body(request)  # type: ignore[attr-defined]
        untold = model.wire.body(replace(request, tier_refused=True))  # type: ignore[attr-defined]
    assert told["service_tier"] == "default"
    assert untold == {name: value for name, value in told.items() if name != "service_tier"}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": {"message": "Unsupported service_tier: default", "code": "invalid_request_error"}}, "tier"),
        (400, {"error": {"message": "Unknown parameter.", "param": "service_tier", "code": "unknown"}}, "tier"),
        (400, {"error": {"message": "Unknown parameter: 'temperature'.", "param": "temperature"}}, "bad_request"),
        (429, {"error": {"message": "Rate limit for service_tier flex"}}, "rate_limit"),
        (401, {"error": {"message": "no service_tier for this key"}}, "auth"),
    ],
)
def test_an_error_about_the_tier_is_told_from_others(status: int, body: dict[str, Any], kind: str) -> None:
    from ava_server.models.json_text import encode

    assert find_case(read_body(encode(body)), status).kind == kind
    assert "service_tier" in Endpoint(OPENAI, "m", None).error_in_body("Unsupported service_tier: x", {}).args[0]


def test_an_account_is_the_same_for_the_same_key_and_says_nothing_about_it() -> None:
    choice = _choice("anthropic", "claude-opus-4-6", ANTHROPIC)
    other_key = replace(choice, api_key="an0ther-k3y-0f-n0b0dy")
    assert account_of(choice) == account_of(replace(choice, model_id="claude-opus-5")) != account_of(other_key)
    assert choice.api_key is not None
    assert choice.api_key not in account_of(choice)
    assert account_of(_choice("groq", "llama-9", "https://api.groq.com/openai/v1")) == ""


def test_two_surcharges_multiply_and_round_up() -> None:
    surcharges = surcharges_of(ANTHROPIC, "claude-opus-5-5")
    assert most_percent(surcharges, {"usage.speed": {"fast"}}) == 220
    assert raised(Price(1, 3, 0, 0, source="t"), 110) == Price(2, 4, 0, 0, source="t × 1.1")
