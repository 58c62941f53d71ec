"""Which model provider searches for a run, and what a search may cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.models.search_formats import (
    FORMATS,
    KEY,
)

from ava_server.config.search_engine import provider_engine
from ava_server.config.settings import SearchSettings
from ava_server.models.base import Bound
from ava_server.models.model_choice import (
    ModelSettings,
    Provider,
    choose,
    default_tiers,
    engine_at,
    provider_search,
    search_terms,
)
from ava_server.models.prices import UserPrice, dearest_price, reserve_micros
from ava_server.models.surcharges import pinned_at

# -- which provider, and at what price ------------------------------------------------------------------------------


def test_the_terms_name_known_providers_and_bound_the_published_examples() -> None:
    assert set(search_terms()) == {"anthropic", "openai", "openrouter"} <= set(default_tiers())
    for name, form in FORMATS.items():
        terms, usage = search_terms()[name], form.answer["usage"]
        assert terms.fee == form.fee_micros * 1000
        used = usage.get("input_tokens", usage.get("prompt_tokens"))
        assert used * 4 <= terms.prompt_tokens and terms.output_tokens <= 2_048


@pytest.mark.parametrize("name", FORMATS)
def test_the_price_of_a_search_is_its_fee_and_the_worst_case_of_its_tokens(name: str) -> None:
    models = ModelSettings(providers={name: Provider(api_key=KEY)})
    found = provider_search(name, name, models)
    assert found is not None and found.choice.name == f"{name}:{default_tiers()[name]['fast']}"
    dearest = dearest_price(found.choice.price, {}, pinned_at(found.choice.base_url))
    tokens = reserve_micros(dearest, Bound(found.terms.prompt_tokens, found.terms.output_tokens))
    assert found.cost_micros == tokens + FORMATS[name].fee_micros
    assert FORMATS[name].fee_micros < found.cost_micros < 50_000


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://api.anthropic.com/v1", "anthropic"),
        ("https://api.openai.com/v1", "openai"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("http://api.anthropic.com/v1", None),
        ("https://api.anthropic.com.evil.example/v1", None),
        ("https://proxy.example/api.openai.com/v1", None),
        ("http://127.0.0.1:11434/v1", None),
        ("https://api.groq.com/openai/v1", None),
        (None, None),
    ],
)
def test_only_a_provider_at_its_own_address_is_taken_to_search(address: str | None, name: str | None) -> None:
    assert engine_at(address) == name


def chosen(engine: str, models: ModelSettings, wanted: str | None = None) -> str | None:
    searching = SearchSettings.model_validate({"engine": engine})
    found = provider_engine(searching, models, lambda: choose(wanted, "balanced", models))
    return found.choice.name if found else None


def test_the_provider_of_the_runs_model_searches_unless_the_settings_name_one() -> None:
    keyed = {name: Provider(api_key=KEY) for name in ("anthropic", "openai", "groq")}
    models = ModelSettings(providers=keyed)
    assert chosen("auto", models) == "anthropic:claude-haiku-5-5"
    assert chosen("auto", models, "openai:gpt-6.1-terra") == "openai:gpt-6-luna"
    assert chosen("auto", models, "groq:openai/gpt-oss-20b") is None
    assert chosen("auto", models, "offline") is None
    assert chosen("openai", models, "groq:openai/gpt-oss-20b") == "openai:gpt-6-luna"
    assert chosen("openrouter", models) is None, "it has no key"
    assert chosen("none", models) is None and chosen("brave", models) is None
    assert chosen("auto", models, "no such model") is None


def test_an_endpoint_that_only_speaks_a_providers_format_searches_only_where_it_is_named() -> None:
    local = {"anthropic": Provider(base_url="http://127.0.0.1:8080/v1")}
    models = ModelSettings(providers=local, tiers={"balanced": "anthropic:claude-sonnet-5-5"})
    assert chosen("auto", models) is None
    assert chosen("anthropic", models) == "anthropic:claude-haiku-5-5"
    custom = ModelSettings(base_url="https://openrouter.ai/api/v1", api_key=KEY, model="openai/gpt-6-luna")
    assert chosen("auto", custom) == "custom:anthropic/claude-haiku-5.5", "it is OpenRouter itself"


def test_a_search_whose_model_has_no_price_is_not_offered() -> None:
    remote = {"anthropic": Provider(base_url="https://gateway.example/v1", api_key=KEY)}
    models = ModelSettings(providers=remote)
    assert chosen("anthropic", models) is None
    priced = replace(models, prices={"anthropic:claude-haiku-5-5": UserPrice(input=1, output=5)})
    assert chosen("anthropic", priced) == "anthropic:claude-haiku-5-5"
