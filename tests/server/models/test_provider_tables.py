"""The settings of a provider: which row a table means, which key it gets, and what a mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models.provider_settings import KEY, settings_with

from ava_server.cli.models import read_providers
from ava_server.config.credentials import model_settings
from ava_server.config.keys import find_key, set_key
from ava_server.config.settings import load_settings
from ava_server.core.errors import BadInput, ConfigError
from ava_server.models.model_choice import ModelSettings, Provider, choose, configured, default_tiers
from ava_server.models.providers import PROVIDERS, key_header, provider_at


def test_a_new_compatible_provider_is_a_row_and_its_tiers() -> None:
    for name in ("groq", "mistral", "xai", "deepseek", "together", "fireworks", "cerebras"):
        found = configured(ModelSettings(providers={name: Provider(api_key=KEY)}))
        choice = choose(None, "fast", ModelSettings(providers=found))
        assert (choice.provider, choice.model_id) == (name, default_tiers()[name]["fast"])
        assert choice.wire == "chat_completions" and not choice.price.free


def test_a_key_for_perplexity_in_a_variable_of_other_programs_is_not_used(tmp_path: Path) -> None:
    assert find_key("perplexity", tmp_path / "keys.toml", {"PERPLEXITY_API_KEY": KEY}) is None
    set_key("perplexity", KEY, tmp_path / "keys.toml")
    assert find_key("perplexity", tmp_path / "keys.toml", {}) is not None


# -- addresses of a person's own -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["azure", "bedrock", "vertex"])
def test_a_provider_at_an_address_of_ones_own_says_what_it_needs(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"base_url for the provider {name}.*such as https://"):
        settings_with(tmp_path, f"[providers.{name}]\n")
    with pytest.raises(BadInput, match=rf"needs \[providers.{name}\] in config.toml: with base_url, such as https://"):
        choose(f"{name}:some-model", "fast", ModelSettings())


def test_a_table_with_a_misspelt_name_is_told_which_is_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not known, or the provider openai, if that is meant"):
        settings_with(tmp_path, "[providers.opnai]\n")


@pytest.mark.parametrize(
    "query", ["api-version=2024-10-21&key=abcdefgh", "key=abcdefgh", "api-version=", "api-version=a/b", "sig=1"]
)
def test_an_address_has_no_other_query_than_the_version_of_its_api(tmp_path: Path, query: str) -> None:
    with pytest.raises(ConfigError, match="query"):
        settings_with(tmp_path, f'[providers.azure]\nbase_url = "https://r.openai.azure.com/openai?{query}"\n')


BEDROCK = "https://bedrock-runtime.us-east-1.amazonaws.com"
TABLE = f'[providers.bedrock]\nbase_url = "{BEDROCK}/openai/v1"\n[providers.%s]\nbase_url = "%s"\n'


@pytest.mark.parametrize(
    ("name", "address", "env"),
    [
        ("claude", f"{BEDROCK}/anthropic", {}),
        ("bedrockclaude", f"{BEDROCK}/anthropic", {}),
        ("bedrock-claude", "http://bedrock-runtime.us-east-1.amazonaws.com/anthropic", {}),
        ("bedrock-claude", "https://bedrock-runtime.us-east-1.amazonaws.com.evil.example/anthropic", {}),
        ("bedrock-claude", "https://bedrock-runtime.evil.example.amazonaws.com/anthropic", {}),
        ("bedrock-claude", "https://evil.s3.amazonaws.com/anthropic", {}),
        ("bedrock-claude", "https://own.example/anthropic", {}),
        ("openai-work", "https://api.openai.com/v1", {}),
        ("bedrock-claude", f"{BEDROCK}/x", {'AVA_PROVIDERS__"bedrock-claude"__BASE_URL': f"{BEDROCK}/anthropic"}),
    ],
)
def test_no_other_table_or_host_gets_a_providers_key(
    tmp_path: Path, name: str, address: str, env: dict[str, str]
) -> None:
    for provider in ("bedrock", "openai"):
        set_key(provider, KEY, tmp_path / "keys.toml")
    (tmp_path / "config.toml").write_text(TABLE % (name, address))
    assert model_settings(load_settings(tmp_path, env=env)).providers[name].api_key is None


def test_a_provider_is_known_by_the_end_of_its_host_alone() -> None:
    assert provider_at("https://r.openai.azure.com/openai/v1") is PROVIDERS["azure"]
    assert provider_at(f"{BEDROCK}/anthropic") is PROVIDERS["bedrock"]
    assert provider_at("https://europe-west1-aiplatform.googleapis.com/v1/projects/p") is PROVIDERS["vertex"]
    for other in ("https://openai.azure.com.example/v1", "https://example/?x=.openai.azure.com", "http://["):
        assert provider_at(other) not in PROVIDERS.values()
    assert key_header("https://openai.azure.com.example/v1", KEY) == {}


# -- servers on this machine -----------------------------------------------------------------------------------------


async def test_listing_a_provider_that_the_settings_must_name_says_so() -> None:
    for name in ("ollama", "azure"):
        with pytest.raises(BadInput, match=rf"{name} needs \[providers.{name}\] in config.toml"):
            await read_providers(ModelSettings(), [], name, None)
