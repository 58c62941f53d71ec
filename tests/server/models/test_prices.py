from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from support.tool_examples import must_list

from ava_audit.events import Usage
from ava_server.core.errors import Refused
from ava_server.models.base import Bound
from ava_server.models.model_choice import KNOWN_URLS, TIERS, default_tiers
from ava_server.models.price_units import NOT_USED, READ, TOOLS, UNBOUNDED, own_action, unbounded_units
from ava_server.models.prices import (
    Price,
    PriceStep,
    Unpriced,
    UserPrice,
    cost_by,
    cost_micros,
    find_price,
    look_up,
    nanos,
    price_words,
    reserve_micros,
)
from ava_server.models.providers import PROVIDERS, is_local

SONNET = Price(input=3000, output=15_000, cache_read=300, cache_write=3750)
counts = st.integers(0, 10**6)
rates = st.integers(0, 10**6)
prices = st.builds(Price, rates, rates, rates, rates, per_request=rates)
usages = st.builds(
    lambda fresh, read, write, output, thinking: Usage(
        input_tokens=fresh,
        cache_read_tokens=read,
        cache_write_tokens=write,
        output_tokens=output + thinking,
        thinking_tokens=thinking,
    ),
    counts,
    counts,
    counts,
    counts,
    counts,
)


def find(provider: str, model_id: str, base_url: str | None = None) -> Price:
    return find_price(provider, model_id, base_url=base_url, overrides={})


def test_the_cost_of_a_call_matches_the_manual_calculation() -> None:
    usage = Usage(input_tokens=300, cache_read_tokens=600, cache_write_tokens=100, output_tokens=50)
    assert cost_micros(SONNET, usage) == 2205


def test_a_cost_is_rounded_up_once() -> None:
    odd = Price(input=1, output=1, cache_read=1, cache_write=1)
    assert cost_micros(odd, Usage(input_tokens=1, output_tokens=1)) == 1
    assert cost_micros(odd, Usage(input_tokens=600, output_tokens=400)) == 1
    assert cost_micros(odd, Usage()) == 0


def test_a_reservation_uses_the_highest_input_price_and_extra_output() -> None:
    assert reserve_micros(SONNET, Bound(1000, 500)) == (1000 * 3750 + 516 * 15_000) // 1000
    assert reserve_micros(Price(1, 0, 0, 0, per_request=1), Bound(1, 1)) == 1


@given(prices, usages, st.integers(0, 10**12))
def test_the_parts_of_a_cost_add_up_exactly(price: Price, usage: Usage, total: int) -> None:
    parts = cost_by(price, usage, total)
    assert sum(parts.values()) == total
    assert all(part >= 0 for part in parts.values())
    assert set(parts) == {"input", "cache", "output", "thinking"}


@given(prices, usages)
def test_a_call_within_its_bound_never_exceeds_its_reservation(price: Price, usage: Usage) -> None:
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    assert cost_micros(price, usage) <= reserve_micros(price, Bound(prompt, usage.output_tokens))


def test_separates_the_cost_of_thinking_from_output() -> None:
    usage = Usage(output_tokens=100, thinking_tokens=40)
    assert cost_by(SONNET, usage, 1500) == {"input": 0, "cache": 0, "output": 900, "thinking": 600}


def test_reserves_and_settles_at_the_price_step_of_the_prompt() -> None:
    price = Price(20, 40, 20, 20, steps=(PriceStep(100, 10, 30, 10, 10),))
    assert cost_micros(price, Usage(input_tokens=100_000 // 1000, output_tokens=0)) == 1
    assert cost_micros(price, Usage(input_tokens=60, cache_read_tokens=41)) == -(-101 * 20 // 1000)
    assert reserve_micros(price, Bound(100, 0)) == -(-(100 * 10 + 16 * 30) // 1000)
    assert reserve_micros(price, Bound(101, 0)) == -(-(101 * 20 + 16 * 40) // 1000)


def test_a_configured_price_overrides_all_others() -> None:
    own = UserPrice(input=1.5, output=2.0)
    exact = find_price("openai", "gpt-5", base_url=None, overrides={"openai:gpt-5": own, "gpt-5": UserPrice(9, 9)})
    assert exact == Price(1500, 2000, 1500, 1500, source='settings [prices."openai:gpt-5"]')
    by_id = find_price("x", "gpt-5", base_url="http://127.0.0.1/v1", overrides={"gpt-5": UserPrice(9, 9, 1, 2, 0.01)})
    assert (by_id.cache_read, by_id.cache_write, by_id.per_request, by_id.free) == (
        1000,
        2000,
        10_000_000,
        False,
    )
    nothing = find_price("x", "y", base_url="https://x.example/v1", overrides={"y": UserPrice(0, 0)})
    assert nothing.free


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:11434/v1", True),
        ("http://127.0.0.1/v1", True),
        ("http://127.8.9.1:80/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://10.1.2.3/v1", True),
        ("http://192.168.0.9:1234/v1", True),
        ("http://[fd00::1]/v1", True),
        ("http://100.64.0.1/v1", True),
        ("http://[::ffff:10.0.0.1]/v1", True),
        ("http://[::ffff:8.8.8.8]/v1", False),
        ("https://8.8.8.8/v1", False),
        ("https://localhost.example.com/v1", False),
        ("https://127.0.0.1.example.com/v1", False),
        ("https://openrouter.ai/api/v1", False),
        ("http://[bad/v1", False),
        ("", False),
    ],
)
def test_only_local_and_private_addresses_are_free(url: str, local: bool) -> None:
    assert is_local(url) is local


def test_a_local_endpoint_and_a_free_model_id_cost_nothing() -> None:
    local = find("custom", "qwen3", "http://127.0.0.1:11434/v1")
    assert (local.free, local.source) == (True, "free (local)")
    assert find("openrouter", "some/model:free", KNOWN_URLS["openrouter"]).free


@pytest.mark.parametrize(
    ("provider", "model_id", "url", "why"),
    [
        ("openrouter", "acme/unheard-of", KNOWN_URLS["openrouter"], "sells none"),
        (
            "openrouter",
            "google/lyria-3-pro-preview",
            KNOWN_URLS["openrouter"],
            "lacks an input or output price",
        ),
        ("anthropic", "claude-sonnet-4-5-hypothetical-max", None, "only the similar claude-sonnet-4-5"),
        ("openrouter", "anthropic/claude-sonnet-4.5:floor", KNOWN_URLS["openrouter"], "sells none"),
        ("openrouter", "anthropic/claude-sonnet-4.5", "https://else.example/v1", "knows no provider"),
        ("mine", "m", "https://mine.example/v1", "knows no provider"),
    ],
)
def test_rejects_a_model_without_a_known_price_and_shows_the_settings_to_add(
    provider: str, model_id: str, url: str | None, why: str
) -> None:
    with pytest.raises(Unpriced, match="No price is known") as refused:
        find(provider, model_id, url)
    assert isinstance(refused.value, Refused)
    assert f'[prices."{provider}:{model_id}"]\ninput = …\noutput = …' in str(refused.value)
    assert why in str(refused.value)


def test_reads_the_fee_for_each_call_from_the_table() -> None:
    url = "https://api.perplexity.ai"
    sonar, pro = find("perplexity", "sonar", url), find("perplexity", "sonar-pro", url)
    assert (sonar.per_request, pro.per_request) == (12_000_000, 14_000_000)
    assert reserve_micros(pro, Bound(1000, 100)) == 14_000 + (1000 * 3000 + 116 * 15_000) // 1000
    assert cost_micros(pro, Usage(input_tokens=10, output_tokens=1)) == 14_000 + 45
    assert "$0.014 a call" in price_words(pro)


ACT_ALONE = [
    ("openai", "gpt-4o-search-preview"),
    ("openai", "gpt-4o-mini-search-preview-2025-03-11"),
    ("openai", "gpt-5-search-api"),
    ("openai", "o3-deep-research"),
    ("openrouter", "perplexity/sonar"),
    ("openrouter", "perplexity/sonar-pro-search"),
    ("openrouter", "perplexity/sonar-deep-research"),
    ("openrouter", "x-ai/grok-4.20-multi-agent"),
    ("openrouter", "openai/gpt-5:online"),
    ("openrouter", "meta-llama/llama-3.3-70b-instruct:free:online"),
    ("openrouter", "meta-llama/llama-3.3-70b-instruct:online:free"),
    ("openrouter", "openrouter/auto"),
    ("openrouter", "openai/gpt-5@preset/web"),
    ("openrouter", "openrouter/openrouter/auto"),  # as a gateway in between names it
    ("openrouter", "openrouter:perplexity/sonar"),
    ("groq", "groq:compound"),
    ("groq", "groq/compound"),
    ("groq", "compound-beta-mini"),
    ("groq", "Groq/Compound-Mini"),
]


@pytest.mark.parametrize(("provider", "model_id"), ACT_ALONE)
def test_a_model_that_acts_by_itself_needs_a_fee_for_each_call(provider: str, model_id: str) -> None:
    url, name = KNOWN_URLS[provider], f"{provider}:{model_id}"
    with pytest.raises(Unpriced, match="cannot be capped by its tokens, because it ") as refused:
        find(provider, model_id, url)
    assert f'[prices."{name}"]\ninput = …\noutput = …\nper_request = …' in str(refused.value)
    without_fee = (UserPrice(1, 1), UserPrice(1, 1, per_request=0), UserPrice(0, 0), UserPrice(0, 1, per_request=0))
    for key in (name, model_id):
        for price in without_fee:
            with pytest.raises(Unpriced, match="cannot be capped by its tokens"):
                find_price(provider, model_id, base_url=url, overrides={key: price})
        bounded = find_price(provider, model_id, base_url=url, overrides={key: UserPrice(1, 2, per_request=0.03)})
        assert (bounded.input, bounded.output, bounded.per_request) == (1000, 2000, 30_000_000)
        free = find_price(provider, model_id, base_url=url, overrides={key: UserPrice(0, 0, per_request=0)})
        assert free.free


def test_no_default_model_and_no_ordinary_one_counts_as_acting_by_itself() -> None:
    for ids in default_tiers().values():
        assert [own_action(model_id) for model_id in ids.values()] == [None] * len(ids)
    for model_id in ("nousresearch/hermes-4-70b", "perplexity/r1-1776", "relace/relace-search", "compounder", "qwen3"):
        assert own_action(model_id) is None


def test_each_unit_of_the_price_table_is_read_or_decided() -> None:
    from genai_prices.data_snapshot import get_snapshot
    from genai_prices.data_units import unit_data
    from genai_prices.types import ModelPrice

    units = {unit["price_key"] for unit in unit_data.values()}
    for provider in get_snapshot().providers:
        for model in provider.models:
            entries = [model.prices] if isinstance(model.prices, ModelPrice) else [one.prices for one in model.prices]
            for entry in entries:
                units |= set(vars(entry))
    read = [unit for names in READ.values() for unit in names]
    decided = [*read, *NOT_USED, *TOOLS, *UNBOUNDED]
    assert len(decided) == len(set(decided)), "each unit has one meaning"
    assert units - set(decided) == set(), "say in price_units.py what these units of the price table mean for a call"
    assert set(decided) - units == set(), "the price table no longer has these units of price_units.py"


def test_a_model_billed_by_a_unit_that_no_limit_holds_has_no_price() -> None:
    url = "https://generativelanguage.googleapis.com/v1beta/openai"
    with pytest.raises(Unpriced, match="also bills images in its answers, which no limit of a call bounds"):
        find("google", "gemini-2.5-flash-image", url)
    assert find("google", "gemini-2.5-flash", url).per_request == 0  # its searches are a tool that nobody asks for
    assert unbounded_units({"input_mtok", "web_searches_kcount"}, acts_alone=False) == []
    assert unbounded_units({"input_mtok", "web_searches_kcount"}, acts_alone=True) == ["web searches"]
    unknown = unbounded_units({"input_mtok", "moons_kcount"}, acts_alone=False)
    assert unknown == ["moons_kcount, a unit that Ava does not know"]


def test_a_model_id_with_a_date_suffix_matches_the_table() -> None:
    dated = find("anthropic", "claude-sonnet-4-5-20250929")
    assert dated == find("anthropic", "claude-sonnet-4-5")


def test_each_provider_has_a_model_for_each_tier_in_order_of_preference() -> None:
    providers = [name for name, known in PROVIDERS.items() if known.kind == "models" and known.has_tiers]
    must_list("server/ava_server/models/tiers.toml", default_tiers(), providers, "provider")
    assert list(default_tiers()) == providers
    assert {tuple(ids) for ids in default_tiers().values()} == {TIERS}


@pytest.mark.parametrize(("provider", "tier"), [(name, tier) for name, ids in default_tiers().items() for tier in ids])
def test_each_default_model_has_a_price(provider: str, tier: str) -> None:
    price = find(provider, default_tiers()[provider][tier], PROVIDERS[provider].base_url)
    assert price.input > 0
    assert price.output > 0
    assert not price.free
    assert price.source.startswith("genai-prices ")
    assert price.window


def test_the_price_table_agrees_with_its_source_library() -> None:
    from genai_prices import Usage as TheirUsage
    from genai_prices import calc_price

    now = datetime(2026, 11, 20, tzinfo=UTC)
    for provider, ids in default_tiers().items():
        for model_id in ids.values():
            price = look_up(provider, model_id, base_url=PROVIDERS[provider].base_url, now=now)
            assert isinstance(price, Price)
            for prompt in (1000, 400_000):
                theirs = max(
                    calc_price(
                        TheirUsage(input_tokens=prompt, output_tokens=700),
                        model_id,
                        provider_id=PROVIDERS[provider].price_name or provider,
                        genai_request_timestamp=now + timedelta(hours=hour),  # DeepSeek is cheaper at some hours
                    ).total_price
                    for hour in range(24)
                )
                ours = cost_micros(price, Usage(input_tokens=prompt, output_tokens=700))
                assert Decimal(ours - 1) < theirs * 1_000_000 <= ours


def test_a_price_round_trips_through_its_dictionary() -> None:
    price = find("openai", default_tiers()["openai"]["deep"], KNOWN_URLS["openai"])
    assert price.steps
    assert TypeAdapter(Price).validate_python(asdict(price)) == price


def test_a_price_is_rounded_up_to_whole_nano_dollars() -> None:
    assert (nanos(3.0), nanos(0.0833333), nanos(Decimal("0.0001")), nanos(0)) == (3000, 84, 1, 0)
