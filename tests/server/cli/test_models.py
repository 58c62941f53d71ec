"""`ava models`: what each tier means here, what it costs and who says so; what the providers have."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.model_server import JSON, Fail, Gate, HangUp, Raw, Step, run_model_server
from support.terminal import ava, run_on_terminal

from ava_server.models import listing as endpoint_list
from ava_server.models.model_choice import KNOWN_URLS, TIERS, default_tiers, tiers_reviewed
from ava_server.models.prices import Price, look_up, usd

pytestmark = pytest.mark.slow

KEY = "sk-or-v1-0a1b2c3d4e5f60718293a4b5c6d7e8f9"
ROUTER = {"OPENROUTER_API_KEY": KEY}


# -- tiers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "env", "model", "chosen_by"),
    [
        ("", ROUTER, f"openrouter:{default_tiers()['openrouter']['fast']}", f"tiers.toml of {tiers_reviewed()}"),
        ('[models]\nfast = "openrouter:openai/gpt-5"', ROUTER, "openrouter:openai/gpt-5", "models.fast in config.toml"),
        (
            "",
            {**ROUTER, "AVA_MODELS__FAST": "openrouter:openai/gpt-5"},
            "openrouter:openai/gpt-5",
            "AVA_MODELS__FAST where Ava is given its variables",
        ),
        ("", {**ROUTER, "AVA_MODEL": "openrouter:openai/gpt-5"}, "openrouter:openai/gpt-5", "AVA_MODEL"),
        (
            "",
            {**ROUTER, "AVA_MODEL_BASE_URL": "http://127.0.0.1:9/v1", "AVA_MODEL": "m"},
            "custom:m",
            "AVA_MODEL_BASE_URL and AVA_MODEL",
        ),
        ("", {}, "offline/extractive", "nobody: no key and no endpoint is configured"),
    ],
)
def test_shows_each_tier_with_its_model_and_who_chose_it(
    root: Path, config: str, env: dict[str, str], model: str, chosen_by: str
) -> None:
    fast = told(root, config=config, **env)["tiers"][0]
    assert (fast["tier"], fast["model"], fast["chosen_by"]) == ("fast", model, chosen_by)
    assert " ".join(f"chosen by {chosen_by}".split()) in " ".join(screen(root, **env).split())


def test_shows_prices_in_dollars_per_million_with_steps_window_and_source(root: Path) -> None:
    tiers = {one["tier"]: one for one in told(root, **ROUTER)["tiers"]}
    assert list(tiers) == list(TIERS)
    fast = default_tiers()["openrouter"]["fast"]
    price = look_up("openrouter", fast, base_url=KNOWN_URLS["openrouter"])
    assert isinstance(price, Price) and len(price.steps) == 1, "choose a model that has a price step"
    [step] = price.steps
    kinds = ("input", "output", "cache_read", "cache_write")
    for shown, of in ((tiers["fast"]["price"], price), (tiers["fast"]["price"]["steps"][0], step)):
        assert {kind: shown[kind] * 1000 for kind in kinds} == {kind: getattr(of, kind) for kind in kinds}
    assert (tiers["fast"]["window"], tiers["fast"]["price"]["source"]) == (price.window, price.source)

    text = screen(root, **ROUTER)
    first, second = (
        f"in {usd(of.input)}, out {usd(of.output)}, cache read {usd(of.cache_read)}, write {usd(of.cache_write)}\n"
        for of in (price, step)
    )
    assert f"above {step.up_to:,} tokens: {first}" in text and f"up to {step.up_to:,} tokens: {second}" in text
    assert f"window {price.window:,} tokens; price: {price.source}\n" in text
    table = " ".join(text.partition("\nopenrouter: ")[2].split())
    assert f"{fast} (fast), above {step.up_to:,} tokens {usd(step.input)} {usd(step.output)}" in table


def test_without_a_key_it_shows_the_offline_reader_and_what_to_do(root: Path) -> None:
    shown = screen(root)
    assert (
        "fast, balanced, deep\n          no language model (finds passages by words)\n          costs nothing\n"
        in shown
    )
    assert "ava key set openrouter" in shown and "AVA_MODEL_BASE_URL" in shown
    assert "ava key set openrouter" in told(root)["tiers"][0]["what_to_do"]
    assert not (root / "ava.db").exists()


def test_a_tier_without_a_key_or_a_price_says_what_to_do(root: Path) -> None:
    config = '[models]\nfast = "openai:gpt-5"\ndeep = "openrouter:acme/unheard-of"\n'
    fast, balanced, deep = told(root, config=config, **ROUTER)["tiers"]
    assert fast["model"] is None and "needs a key for openai" in fast["problem"]
    assert "key set openai" in fast["what_to_do"]
    assert balanced["model"]
    assert '[prices."openrouter:acme/unheard-of"]\ninput = …\noutput = …' in deep["problem"]
    shown = screen(root, **ROUTER)
    assert "unpriced" in shown and '\n  [prices."openrouter:acme/unheard-of"]\n  input = …\n' in shown


# -- providers ----------------------------------------------------------------------------------------------------


def test_without_arguments_it_lists_the_models_of_tiers_and_those_the_user_priced(root: Path) -> None:
    config = (
        '[models]\ndeep = "groq:qwen/qwen3.8-27b"\n[prices."groq:own/tuned"]\ninput = 1\noutput = 2\n'
        '[prices."openai/gpt-5"]\ninput = 9\noutput = 9\nper_request = 0.01\n'
    )
    answer = told(root, config=config, GROQ_API_KEY=KEY, **ROUTER)
    router, groq = answer["providers"]
    assert (router["provider"], router["key"], router["problem"]) == ("openrouter", True, None)
    ids = default_tiers()["openrouter"]
    assert [model["id"] for model in router["models"]] == [ids["fast"], ids["balanced"], "openai/gpt-5"]
    assert by_id(router)["openai/gpt-5"]["price"]["input"] == 9.0
    assert [(model["model"], model["tiers"]) for model in groq["models"]] == [
        ("groq:qwen/qwen3.8-27b", ["deep"]), ("groq:own/tuned", []),
    ]  # fmt: skip
    shown = screen(root, GROQ_API_KEY=KEY, **ROUTER)
    assert "openai/gpt-5, your price, $0.01 a call" in shown and "own/tuned, your price" in shown
    assert "`ava models groq`" in shown


def test_lists_all_models_of_a_provider_with_their_tiers(root: Path) -> None:
    [router] = told(root, "openrouter", **ROUTER)["providers"]
    models = by_id(router)
    assert len(models) > 500 and models[default_tiers()["openrouter"]["deep"]]["tiers"] == ["deep"]
    [openai] = told(root, "openai", **ROUTER)["providers"]
    assert (openai["configured"], openai["key"]) == (False, False) and "gpt-5" in by_id(openai)
    assert "To use it: `ava key set openai`." in screen(root, "openai", **ROUTER)


def test_shows_models_missing_from_the_table_as_unpriced_with_the_lines_to_add(root: Path) -> None:
    [groq] = told(root, "groq")["providers"]
    assert by_id(groq)["whisper-large-v3"]["price"] is None
    assert '[prices."groq:whisper-large-v3"]' in by_id(groq)["whisper-large-v3"]["problem"]
    shown = screen(root, "groq", "--search", "WHISPER-large-v3")
    assert "2 models have no price. The first: No price is known for groq:whisper-large-v3" in " ".join(shown.split())
    assert "\n  input = …\n" in shown and "gpt-oss" not in shown


def test_a_search_covers_configured_providers_or_else_all_known_ones(root: Path) -> None:
    def found(**env: str) -> dict[str, list[str]]:
        answer = told(root, "--search", "gpt-oss-120B", **env)
        return {one["provider"]: [model["id"] for model in one["models"]] for one in answer["providers"]}

    assert found(GROQ_API_KEY=KEY) == {"groq": ["openai/gpt-oss-120b"]}
    assert found().keys() >= {"openrouter", "openai", "groq"}
    assert "No known model contains 'no-such-model'." in screen(root, "groq", "--search", "no-such-model")


def test_suggests_the_closest_name(root: Path) -> None:
    (root / "config.toml").write_text('[providers.LM-Studio]\nbase_url = "http://127.0.0.1:1234/v1"\n')
    for typed, meant in (("opnrouter", "openrouter"), ("lm_studio", "LM-Studio")):
        done = ava(root, "models", typed)
        assert done.returncode == 2 and f"Did you mean {meant}?" in done.stderr
        assert "Known: openrouter," in done.stderr


# -- endpoints that no table knows --------------------------------------------------------------------------------


def own(base_url: str) -> str:
    return f'[providers.local]\nbase_url = "{base_url}"\n[models]\nfast = "local:qwen3:8b"\n'


def test_asks_a_custom_endpoint_for_its_models(root: Path) -> None:
    with run_model_server([listing("qwen3:8b", "no id", "gemma4")]) as server:
        [local] = told(root, "local", config=own(server.base_url), AVA_KEY_LOCAL=KEY)["providers"]
        [asked] = server.requests
    assert (asked.path, asked.headers["authorization"]) == ("/v1/models", f"Bearer {KEY}")
    assert [(model["id"], model["tiers"]) for model in local["models"]] == [("qwen3:8b", ["fast"]), ("gemma4", [])]
    assert local["problem"] is None and by_id(local)["gemma4"]["price"]["source"] == "free (local)"


def test_asks_a_messages_endpoint_in_its_own_format(root: Path) -> None:
    with run_model_server([listing("claude-own")]) as server:
        address = server.base_url.removesuffix("/v1")
        config = f'[providers.proxy]\nbase_url = "{address}"\nwire = "messages"\n'
        [proxy] = told(root, "proxy", config=config, AVA_KEY_PROXY=KEY)["providers"]
        [asked] = server.requests
    assert (asked.path, asked.headers["x-api-key"]) == ("/v1/models", KEY)
    assert list(by_id(proxy)) == ["claude-own"]


def test_asks_google_for_its_list_and_shows_what_answers(root: Path) -> None:
    models = [
        {"name": "models/gemini-own", "supportedGenerationMethods": ["generateContent", "countTokens"]},
        {"name": "models/embedding-own", "supportedGenerationMethods": ["embedContent"]},
        {"name": "models/gemini-plain"},
        {"name": 7},
    ]
    with run_model_server([Raw([json.dumps({"models": models, "nextPageToken": ""}).encode()], JSON)]) as server:
        config = f'[providers.gem]\nbase_url = "{server.base_url}"\nwire = "google"\n'
        (found,) = told(root, "gem", config=config, AVA_KEY_GEM=KEY)["providers"]
        (asked,) = server.requests
    assert list(by_id(found)) == ["gemini-own", "gemini-plain"]
    assert asked.path == "/v1/models?pageSize=1000" and asked.headers["x-goog-api-key"] == KEY


def test_lists_googles_models_from_the_table_without_a_key(root: Path) -> None:
    (found,) = told(root, "google")["providers"]
    known = by_id(found)
    assert known.keys() >= {*default_tiers()["google"].values()}


def test_asks_the_models_path_beside_a_configured_responses_path(root: Path) -> None:
    with run_model_server([listing("gpt-own")]) as server:
        config = f'[providers.proxy]\nbase_url = "{server.base_url}/responses"\nwire = "responses"\n'
        [proxy] = told(root, "proxy", config=config, AVA_KEY_PROXY=KEY)["providers"]
        [asked] = server.requests
    assert (asked.path, asked.headers["authorization"]) == ("/v1/models", f"Bearer {KEY}")
    assert list(by_id(proxy)) == ["gpt-own"]


def test_a_price_by_id_alone_is_listed_with_every_provider_that_may_have_the_model(root: Path) -> None:
    config = (
        '[providers.local]\nbase_url = "https://models.example.com/v1"\n'
        '[prices."openai/gpt-5"]\ninput = 1\noutput = 1\n[prices."qwen3:8b"]\ninput = 0.2\noutput = 0.6\n'
    )
    router, local = told(root, config=config, **ROUTER)["providers"]
    assert list(by_id(local)) == ["qwen3:8b"] and by_id(local)["qwen3:8b"]["price"]["output"] == 0.6
    assert "openai/gpt-5" in by_id(router) and "qwen3:8b" not in by_id(router)


def test_asks_no_endpoint_unless_it_is_named_or_searched(root: Path) -> None:
    with run_model_server([]) as server:
        [local] = told(root, config=own(server.base_url))["providers"]
        assert server.requests == [] and list(by_id(local)) == ["qwen3:8b"]


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (Fail(401), "answered 401 with the key sk-…, not with a list of models"),
        (Fail(404, {"error": KEY}), "answered 404, not with a list of models"),
        (Raw([b"<html>"], "text/html"), "answered something other than a list of models"),
        (Raw([b'{"data": {"id": "x"}}'], JSON), "answered something other than a list of models"),
        (Raw([b"[" * 100_000], JSON), "answered something other than a list of models"),
        (HangUp(), "cannot be asked for its models"),
    ],
)
def test_an_endpoint_without_a_model_list_is_reported_in_one_sentence_and_ends_nothing(
    root: Path, step: Step, says: str
) -> None:
    with run_model_server([step]) as server:
        [local] = told(root, "local", config=own(server.base_url), AVA_KEY_LOCAL=KEY)["providers"]
    assert says in local["problem"] and "a model can be named without being listed" in local["problem"]
    assert list(by_id(local)) == ["qwen3:8b"], "what the settings name is there all the same"


def test_a_slow_endpoint_gets_three_seconds_in_total(root: Path) -> None:
    assert endpoint_list.DEADLINE_S == 3.0
    began_s = time.monotonic()
    with run_model_server([Raw([b'{"data": ['], JSON, missing=10, stall=Gate())]) as server:
        [local] = told(root, "local", config=own(server.base_url))["providers"]
    assert "did not send the whole list of its models within 3 s" in local["problem"]
    assert time.monotonic() - began_s < 20


def test_does_not_send_a_key_unencrypted_to_get_a_model_list(root: Path) -> None:
    config = '[providers.far]\nbase_url = "http://models.example.com/v1"\n'
    [far] = told(root, "far", config=config, AVA_KEY_FAR=KEY)["providers"]
    assert "would send its key unencrypted to models.example.com" in far["problem"]


def test_an_endpoint_can_neither_control_nor_widen_the_terminal(root: Path) -> None:
    long = "org/" + "x" * 120
    with run_model_server([listing("evil\x1b[2J", "nice", long)]) as server:
        (root / "config.toml").write_text(own(server.base_url))
        with run_on_terminal(root, "models", "local", columns=80) as shown:
            assert shown.ended() == 0
    assert "\x1b" not in shown.text and "evil" not in shown.text
    assert "nice" in shown.text and long in shown.text.replace("\n", "")
    _heading, *lines = shown.text.splitlines()  # the path of the data root is as long as it is
    assert [line for line in lines if len(line) > 80 and long not in line] == []


@pytest.mark.skipif(os.name == "nt", reason="needs permissions")
def test_unreadable_keys_are_a_configuration_error(root: Path) -> None:
    (root / "keys.toml").write_text('openrouter = "x"\n')
    done = ava(root, "models")
    assert done.returncode == 30 and "keys.toml" in done.stderr and done.stdout == ""


def told(root: Path, *args: str, config: str = "", **env: str) -> dict[str, Any]:
    """What the command says as JSON."""
    (root / "config.toml").write_text(config)
    done = ava(root, "models", *args, "--json", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["data_root"] == str(root)
    assert KEY not in done.stdout
    return answer


def screen(root: Path, *args: str, **env: str) -> str:
    done = ava(root, "models", *args, env={"COLUMNS": "200", **env})
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert first == f"Data root: {root}"
    assert [line for line in lines if len(line) > 80 and " " in line.strip() and "/" not in line] == []
    return "\n".join(lines)


def listing(*ids: str) -> Raw:
    """A good answer to GET /models."""
    return Raw([json.dumps({"object": "list", "data": [{"id": one} for one in ids]}).encode()], JSON)


def by_id(provider: dict[str, Any]) -> dict[str, Any]:
    return {model["id"]: model for model in provider["models"]}
