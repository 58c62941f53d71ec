"""Which price a model of a provider has: that of its table, and no guessed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models.provider_settings import KEY, settings_with

from ava_server.config.credentials import model_settings
from ava_server.config.keys import set_key
from ava_server.config.settings import load_settings
from ava_server.core.errors import ConfigError
from ava_server.models.model_choice import UNKNOWN, ModelSettings, Provider, choose, thinking_of
from ava_server.models.prices import Price, Unpriced, look_up


def test_a_deployment_is_priced_as_its_model(tmp_path: Path) -> None:
    address = 'base_url = "https://r.openai.azure.com/openai/v1"\n'
    named = "[providers.azure]\n" + address + 'price_as = { "our-gpt" = "openai:gpt-5" }\n'
    settings = settings_with(tmp_path, named)
    price = choose("azure:our-gpt", "fast", settings).price
    openai = choose("openai:gpt-5", "fast", ModelSettings(providers={"openai": Provider(api_key=KEY)})).price
    assert (price.input, price.output) == (openai.input, openai.output) and price.input > 0
    with pytest.raises(Unpriced, match="azure:another"):
        choose("azure:another", "fast", settings)
    own = settings_with(tmp_path, named + '[prices."azure:our-gpt"]\ninput = 9.0\noutput = 9.0\n')
    assert choose("azure:our-gpt", "fast", own).price.input == 9_000
    with pytest.raises(ConfigError, match="sets prices"):
        load_settings(tmp_path, env={"AVA_PROVIDERS__AZURE__PRICE_AS": '{"our-gpt": "openai:gpt-5-nano"}'})


def test_a_model_of_bedrock_has_the_price_of_its_table() -> None:
    given = Provider(base_url="https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1", api_key=KEY)
    choice = choose("bedrock:openai.gpt-oss-120b-1:0", "fast", ModelSettings(providers={"bedrock": given}))
    assert choice.price.input > 0 and choice.price.source.startswith("genai-prices")


BEDROCK = "https://bedrock-runtime.us-east-1.amazonaws.com"
TABLE = f'[providers.bedrock]\nbase_url = "{BEDROCK}/openai/v1"\n[providers.%s]\nbase_url = "%s"\n'


@pytest.mark.parametrize("stored", [True, False])
def test_a_second_table_of_bedrock_has_the_providers_key_and_its_own_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    if stored:
        set_key("bedrock", KEY, tmp_path / "keys.toml")
    else:
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
    (tmp_path / "config.toml").write_text(TABLE % ("bedrock-claude", f"{BEDROCK}/anthropic"))
    found = model_settings(load_settings(tmp_path, env={}))
    assert [found.providers[name].api_key for name in ("bedrock", "bedrock-claude")] == [KEY, KEY]
    choice = choose("bedrock-claude:us.anthropic.claude-sonnet-4-6", "fast", found)
    assert (choice.wire, choice.api_key) == ("messages", KEY)
    set_key("bedrock-claude", "0ther-k3y-123456", tmp_path / "keys.toml")
    found = model_settings(load_settings(tmp_path, env={}))
    assert [found.providers[name].api_key for name in ("bedrock", "bedrock-claude")] == [KEY, "0ther-k3y-123456"]


PROFILES = {
    "us.anthropic.claude-haiku-4-5-20251001-v1:0": (1_100, 5_500),
    "eu.anthropic.claude-opus-4-5-20251101-v1:0": (5_500, 27_500),
    "us.anthropic.claude-sonnet-4-6": (3_300, 16_500),
    "global.anthropic.claude-opus-4-6-v1": (5_000, 25_000),
    "apac.anthropic.claude-3-5-sonnet-20241022-v2:0": (3_000, 15_000),
    "eu.amazon.nova-lite-v1:0": (60, 240),
    "anthropic.claude-sonnet-4-6": (3_300, 16_500),
}


@pytest.mark.parametrize("model", PROFILES)
def test_an_inference_profile_of_bedrock_has_the_price_of_where_it_runs(model: str) -> None:
    price = look_up("bedrock-claude", model, base_url=f"{BEDROCK}/anthropic")
    assert isinstance(price, Price) and (price.input, price.output) == PROFILES[model]


@pytest.mark.parametrize(
    "model",
    [
        "us-gov.anthropic.claude-sonnet-4-6",
        "xx.anthropic.claude-sonnet-4-6",
        "us.anthropic.claude-sonnet-4-6-turbo",
        "us.us.anthropic.claude-sonnet-4-6",
        "us.openai.gpt-5.4",
        "us.anthropic.claude-opus-99",
    ],
)
def test_no_price_is_guessed_from_a_similar_id(model: str) -> None:
    assert isinstance(look_up("bedrock", model, base_url=f"{BEDROCK}/openai/v1"), str)
    assert isinstance(look_up("openai", f"us.{'gpt-5'}", base_url=None), str)


@pytest.mark.parametrize(
    ("model_id", "same_as"),
    [
        ("us.anthropic.claude-sonnet-4-6", "claude-sonnet-4-6"),
        ("global.anthropic.claude-haiku-4-5-20251001-v1:0", "claude-haiku-4-5"),
        ("anthropic.claude-opus-5-5", "anthropic/claude-opus-5.5"),
        ("openai.gpt-oss-120b-1:0", "openai/gpt-oss-120b"),
    ],
)
def test_a_model_of_bedrock_thinks_as_it_does_elsewhere(model_id: str, same_as: str) -> None:
    assert thinking_of(model_id) == thinking_of(same_as) != UNKNOWN


@pytest.mark.parametrize("model_id", ["my.own-model", "claude", "us.anthropic.", "gemini-3.8-flash.claude-sonnet-5"])
def test_a_models_name_is_read_no_further_than_its_maker(model_id: str) -> None:
    assert thinking_of(model_id) in (UNKNOWN, thinking_of("gemini-3.8-flash"))
