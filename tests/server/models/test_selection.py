import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from support.model_server import Raw, Say, run_model_server

from ava_server.core.errors import AvaError, BadInput, ConfigError
from ava_server.models.base import AssistantTurn, Model, Request, ToolSchema, ToolTurn, UserTurn
from ava_server.models.errors import Endpoint
from ava_server.models.factory import model_of, parameters
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel, key_headers
from ava_server.models.listing import ask_endpoint, model_catalogs, wire_to_list
from ava_server.models.model_choice import (
    KNOWN_URLS,
    SCRIPTED,
    TIERS,
    Choice,
    ModelSettings,
    Provider,
    check_address,
    choose,
    default_tiers,
    wire_of,
)
from ava_server.models.offline import LocalModel
from ava_server.models.prices import Price, Unpriced, UserPrice
from ava_server.models.providers import PROVIDERS, RemoteWire, is_in_own_network
from ava_server.models.wires.chat import ChatWire

KEY_HEADERS = ("authorization", "api-key", "x-api-key")
KEY = "sk-or-v1-0123456789abcdef0123"
ROUTER = {"openrouter": Provider(api_key=KEY)}
BOTH = {**ROUTER, "openai": Provider(api_key=KEY)}
ANTHROPIC = {"anthropic": Provider(api_key=KEY)}
BY_CHAT = {"openai": Provider(api_key=KEY, wire="chat_completions")}
LOCAL = {"local": Provider("http://127.0.0.1:11434/v1")}
CUSTOM = ModelSettings(base_url="http://127.0.0.1:9/v1", model="qwen3:8b")


def build_model(choice: Choice, clients: ClientPool) -> Model:
    return model_of(choice.name, parameters(choice), choice.api_key, clients)


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_selects_a_current_model_of_the_provider_with_a_key(tier: str) -> None:
    choice = choose(None, tier, ModelSettings(providers=ROUTER))
    assert choice.name == f"openrouter:{default_tiers()['openrouter'][tier]}"
    assert (choice.tier, choice.base_url, choice.api_key) == (tier, KNOWN_URLS["openrouter"], KEY)
    assert KEY not in repr(choice)


def test_with_several_keys_the_first_provider_in_tiers_toml_wins() -> None:
    keys = {name: Provider(api_key=KEY) for name in sorted(KNOWN_URLS) if PROVIDERS[name].has_tiers}
    preferred = [name for name in default_tiers() if name in keys]
    assert preferred[0] == "openrouter" and len(preferred) == len(keys)
    while preferred:
        choice = choose(None, "fast", ModelSettings(providers=keys))
        assert (choice.provider, choice.base_url) == (preferred[0], KNOWN_URLS[preferred[0]])
        del keys[preferred.pop(0)]


def test_without_a_key_or_endpoint_the_offline_reader_answers() -> None:
    choice = choose(None, "balanced", ModelSettings())
    assert (choice.name, choice.wire, choice.price.free) == ("offline/extractive", "offline", True)
    assert isinstance(build_model(choice, ClientPool()), LocalModel)
    assert choose("offline/extractive", "fast", ModelSettings(providers=ROUTER)).name == choice.name


@pytest.mark.parametrize("wanted", [None, "", "fast", "deep", "qwen3:8b", "custom:qwen3:8b"])
def test_a_custom_endpoint_serves_every_tier(wanted: str | None) -> None:
    choice = choose(wanted, "balanced", CUSTOM)
    assert (choice.name, choice.price.source) == ("custom:qwen3:8b", "free (local)")
    assert choice.tier == (wanted if wanted in TIERS else "balanced")


def test_user_tiers_override_the_defaults() -> None:
    settings = ModelSettings(tiers={"fast": "local:qwen3"}, providers={**ROUTER, **LOCAL})
    assert choose(None, "fast", settings).name == "local:qwen3"
    assert choose(None, "deep", settings).provider == "openrouter"
    assert choose("fast", "deep", settings).name == "local:qwen3"


def test_selects_a_model_by_provider_and_id() -> None:
    settings = ModelSettings(providers={**BOTH, **LOCAL})
    assert choose("openai:gpt-5", "fast", settings).base_url == KNOWN_URLS["openai"]
    assert choose("local:qwen3:8b", "fast", settings).model_id == "qwen3:8b"
    assert choose("openrouter:openai/gpt-5", "fast", settings).model_id == "openai/gpt-5"


@pytest.mark.parametrize(
    ("spawn", "role", "setting", "wins", "tier"),
    [
        (None, "fast", {}, "openrouter:anthropic/claude-haiku-5.5", "fast"),
        (None, "fast", {"fast": "local:small"}, "local:small", "fast"),
        (None, "local:own", {"fast": "local:small"}, "local:own", "balanced"),
        (None, "gpt-5", {"balanced": "local:small"}, "openai:gpt-5", "balanced"),
        ("openai:gpt-5", "local:own", {"fast": "local:small"}, "openai:gpt-5", "balanced"),
        ("openai:gpt-5", "deep", {"deep": "local:small"}, "openai:gpt-5", "deep"),
        ("fast", "local:own", {"fast": "local:small"}, "local:small", "fast"),
        ("deep", "local:own", {"fast": "local:small"}, "openrouter:anthropic/claude-opus-5.5", "deep"),
        ("offline", "local:own", {}, "offline/extractive", "balanced"),
    ],
)
def test_spawn_overrides_role_which_overrides_settings_which_override_tiers_toml(
    spawn: str | None, role: str, setting: dict[str, str], wins: str, tier: str
) -> None:
    choice = choose(spawn, role, ModelSettings(tiers=setting, providers={**BOTH, **LOCAL}))
    assert (choice.name, choice.tier) == (wins, tier)


def test_resolves_a_bare_id_to_the_only_provider_that_knows_it() -> None:
    assert choose("gpt-5", "fast", ModelSettings(providers=BOTH)).name == "openai:gpt-5"
    assert choose("openai/gpt-5", "fast", ModelSettings(providers=BOTH)).name == "openrouter:openai/gpt-5"
    assert choose("anything", "fast", ModelSettings(providers=LOCAL)).name == "local:anything"


def test_ava_model_without_an_endpoint_is_the_default_model() -> None:
    settings = ModelSettings(model="gpt-5", providers=BOTH)
    assert choose(None, "fast", settings).name == "openai:gpt-5"
    assert choose("openrouter:openai/gpt-5", "fast", settings).provider == "openrouter"


@pytest.mark.parametrize(
    ("wanted", "tier", "settings", "error", "says"),
    [
        (None, "huge", ModelSettings(providers=BOTH), BadInput, "knows 'huge' (configured: openrouter, openai)"),
        (None, "openai:gpt-5", ModelSettings(providers=ROUTER), BadInput, "needs a key for openai, and there is none"),
        ("gpt-5", "fast", ModelSettings(), BadInput, "no model is configured. Ava needs a key, or AVA_MODEL_BASE_URL"),
        ("openai:gpt-5", "fast", ModelSettings(), BadInput, "needs a key for openai"),
        (
            "openai:gpt-5",
            "fast",
            ModelSettings(providers=ROUTER),
            BadInput,
            "needs a key for openai, and there is none",
        ),
        (
            "acme:claude",
            "fast",
            ModelSettings(providers={**ROUTER, "acme": Provider(api_key=KEY)}),
            BadInput,
            "add base_url to [providers.acme]",
        ),
        ("openai:", "fast", ModelSettings(providers=BOTH), BadInput, "write openai:ID"),
        ("llama", "fast", ModelSettings(providers=BOTH), BadInput, "(configured: openrouter, openai)"),
        (
            "pirate:x",
            "fast",
            ModelSettings(providers=BOTH),
            BadInput,
            "no configured provider knows 'pirate:x'",
        ),
        ("opnai:gpt-5", "fast", ModelSettings(providers=BOTH), BadInput, "did you mean openai:gpt-5"),
        ("gpt-5-minni", "fast", ModelSettings(providers=BOTH), BadInput, "gpt-5-mini"),
        ("balancd", "fast", ModelSettings(providers=BOTH), BadInput, "did you mean balanced"),
        (
            "nosuch:thing",
            "fast",
            ModelSettings(base_url="http://127.0.0.1/v1", model="qwen3:latest"),
            BadInput,
            "if custom has such a model, write custom:nosuch:thing",
        ),
        (
            "gpt-5",
            "fast",
            ModelSettings(providers={**BOTH, **LOCAL}, prices={"local:gpt-5": UserPrice(0, 0)}),
            BadInput,
            "openai and local both know 'gpt-5'; write openai:gpt-5 or local:gpt-5",
        ),
        (
            None,
            "fast",
            ModelSettings(base_url="http://u:p@h/v1"),
            ConfigError,
            "http://h/v1, but AVA_MODEL is not",
        ),
        (None, "fast", ModelSettings(providers=LOCAL), ConfigError, '[models] fast = "local:ID"'),
        ("openrouter:nope", "fast", ModelSettings(providers=ROUTER), Unpriced, '[prices."openrouter:nope"]'),
        (
            None,
            "fast",
            ModelSettings(base_url="https://user:hidden@h.example/v1", model="m"),
            ConfigError,
            "base URL of custom (https://h.example/v1) cannot be used",
        ),
        (None, "fast", ModelSettings(base_url="ftp://h/v1", model="m"), ConfigError, "cannot be used"),
        (
            "x",
            "fast",
            ModelSettings(providers={"my:own": Provider("http://127.0.0.1/v1")}),
            ConfigError,
            "providers.my:own: a provider's name has no colon; call it my-own",
        ),
        (None, "fast", ModelSettings(base_url="http://h:x/v1", model="m"), ConfigError, "cannot be used"),
        (
            None,
            "fast",
            ModelSettings(base_url="http://api.example/v1", api_key=KEY, model="m"),
            ConfigError,
            "send its key unencrypted to api.example",
        ),
        (
            None,
            "fast",
            ModelSettings(base_url="http://127.0.0.1/v1", api_key=f"{KEY}\n", model="m"),
            ConfigError,
            "contains characters that keys never have",
        ),
    ],
)
def test_an_impossible_choice_is_reported_with_a_next_step(
    wanted: str | None, tier: str, settings: ModelSettings, error: type[AvaError], says: str
) -> None:
    with pytest.raises(error) as caught:
        choose(wanted, tier, settings)
    assert says in str(caught.value)
    assert KEY not in str(caught.value)
    assert "hidden" not in str(caught.value)


def router(price: Price) -> Choice:
    return Choice(
        "openrouter",
        "a/b:free",
        "openrouter:a/b:free",
        "fast",
        "chat_completions",
        price,
        KNOWN_URLS["openrouter"],
        KEY,
    )


ASK = Request("a/b:free", "", (), (UserTurn("x"),), 16)


@pytest.mark.parametrize(
    ("price", "most"),
    [
        (Price(3000, 15_000, 300, 3750), {"prompt": 3, "completion": 15, "request": 0}),
        (Price(3000, 15_000, 300, 3750, per_request=5_000_000), {"prompt": 3, "completion": 15, "request": 0.005}),
        (Price(0, 0, 0, 0, free=True), {"prompt": 0, "completion": 0, "request": 0}),
    ],
)
def test_caps_the_price_at_which_a_gateway_may_route_a_call(price: Price, most: dict[str, float]) -> None:
    body = json.loads(build_model(router(price), ClientPool()).encode(ASK))
    assert body["provider"] == {"max_price": most}


def test_a_gateway_may_route_a_free_model_only_to_free_providers() -> None:
    choice = choose("openrouter:some/model:free", "fast", ModelSettings(providers=ROUTER))
    body = json.loads(build_model(choice, ClientPool()).encode(ASK))
    assert set(body["provider"]["max_price"].values()) == {0}


CHOICES = {
    "gateway": router(Price(3000, 15_000, 300, 3750)),
    "free": router(Price(0, 0, 0, 0, free=True)),
    "openai": choose("openai:gpt-5", "fast", ModelSettings(providers=BOTH)),
    "openai by chat": choose("gpt-6-luna", "fast", ModelSettings(providers=BY_CHAT)),
    "anthropic": choose("anthropic:claude-sonnet-5-5", "fast", ModelSettings(providers=ANTHROPIC)),
    "old anthropic": choose("claude-haiku-4-5", "fast", ModelSettings(providers=ANTHROPIC)),
    "local": choose(None, "fast", CUSTOM),
    "no stream": choose(
        "local:m", "fast", ModelSettings(providers={"local": replace(LOCAL["local"], streaming=False)})
    ),
    "offline": choose(None, "fast", ModelSettings()),
    "scripted": choose(None, "fast", ModelSettings(model=SCRIPTED)),
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("sort_keys", [False, True])
def test_a_model_rebuilt_from_stored_parameters_sends_the_same_bytes(name: str, sort_keys: bool) -> None:
    choice = CHOICES[name]
    stored = json.loads(json.dumps(parameters(choice), sort_keys=sort_keys, allow_nan=False))
    assert stored == parameters(choice)
    chosen, again = build_model(choice, ClientPool()), model_of(choice.name, stored, choice.api_key, ClientPool())
    tool = ToolSchema("search", "Finds.", {"type": "object", "properties": {"b": {}, "a": {}}})
    raw = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "search"}}]}
    turns = (UserTurn("ü"), AssistantTurn(raw), ToolTurn("c", "search", "found"))
    request = Request(choice.model_id, "Be brief.", (tool,), turns, 512)
    assert type(again) is type(chosen)
    assert again.name == chosen.name == choice.name
    assert again.encode(request) == chosen.encode(request)
    assert again.bound(request, None) == chosen.bound(request, None)


def test_stored_parameters_hold_what_shapes_the_request_but_no_key() -> None:
    assert parameters(CHOICES["no stream"]) == {
        "wire": "chat_completions",
        "base_url": "http://127.0.0.1:11434/v1",
        "stream": False,
        "thinking": {"on": "none", "off": "default", "bound": False},
        "thinking_field": "reasoning_effort",
        "output_field": "max_tokens",
        "extra": {},
    }
    assert all(KEY not in json.dumps(parameters(choice)) for choice in CHOICES.values())


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"wire": "telepathy"},
        {"wire": "chat_completions"},
        {**parameters(CHOICES["local"]), "wire": "smoke signals"},
        {**parameters(CHOICES["local"]), "thinking": {"on": "hard"}},
        {**parameters(CHOICES["local"]), "stream": "yes"},
        {**parameters(CHOICES["local"]), "output_field": "n"},
        {**parameters(CHOICES["local"]), "extra": None},
        {**parameters(CHOICES["local"]), "like": "nobody"},
    ],
)
def test_rejects_parameters_of_another_version(stored: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot call custom:m as its run began"):
        model_of("custom:m", stored, None, ClientPool())


@pytest.mark.parametrize("streaming", [True, False])
def test_does_not_stream_from_an_endpoint_that_cannot(streaming: bool) -> None:
    own = ModelSettings(
        base_url="http://127.0.0.1:9/v1", model="m", providers={"custom": Provider(streaming=streaming)}
    )
    for settings in (own, ModelSettings(providers={"local": replace(LOCAL["local"], streaming=streaming)})):
        choice = choose("m", "fast", settings)
        assert choice.streaming is streaming
        body = json.loads(build_model(choice, ClientPool()).encode(ASK))
        assert body["stream"] is streaming
        assert ("stream_options" in body) is streaming


@pytest.mark.parametrize(
    ("like", "header", "limit"),
    [
        ("", "authorization", "max_tokens"),
        ("azure", "api-key", "max_completion_tokens"),
        ("openai", "authorization", "max_completion_tokens"),
        ("mistral", "authorization", "max_tokens"),
    ],
)
async def test_an_own_address_is_called_like_the_provider_that_the_settings_name(
    like: str, header: str, limit: str
) -> None:
    """As LiteLLM and Azure API Management need it."""
    models = Raw([b'{"data": [{"id": "m"}]}'], "application/json")
    with run_model_server([Say("hello"), models]) as server:
        own = Provider(server.base_url, KEY, "chat_completions", like=like)
        settings = ModelSettings(providers={"gateway": own})
        async with ClientPool() as clients:
            model = build_model(choose("gateway:m", "fast", settings), clients)
            async with model.stream(Request("m", "", (), (UserTurn("x"),), 16)) as stream:
                async for _ in stream:
                    pass
            await ask_endpoint(model_catalogs(settings)["gateway"], clients)
        asked, listed = server.requests
    value = KEY if header == "api-key" else f"Bearer {KEY}"
    for request in (asked, listed):
        assert {name: request.headers[name] for name in KEY_HEADERS if name in request.headers} == {header: value}
    assert asked.json[limit] == 16 and len({"max_tokens", "max_completion_tokens"} & asked.json.keys()) == 1
    assert ("stream_options" in asked.json) == (like != "mistral")


@pytest.mark.parametrize(
    ("key", "header"),
    [("of-a-subscription", {"api-key": "of-a-subscription"}), ("eyJ.entra", {"authorization": "Bearer eyJ.entra"})],
)
def test_what_a_command_prints_is_sent_as_the_likened_provider_takes_it(key: str, header: dict[str, str]) -> None:
    endpoint = Endpoint("https://apim.example.org/v1/chat/completions", "m", key, minted=True, like="azure")
    assert key_headers(ChatWire(), endpoint) == header


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("localhost", True), ("127.0.0.1", True), ("192.168.1.5", True), ("[fd00::7]", True), ("[::1]", True),
        ("ollama", True), ("gpu-2", True), ("3f2a9c", True), ("my_box", True),
        ("[2606:4700::1]", False), ("[::ffff:8.8.8.8]", False), ("[2001:0:808:808::1]", False),
        ("134744072", False), ("0x8080808", False), ("01002004010", False), ("8.526344", False), ("8.8.8.8", False),
        ("api.example", False), ("api.example.", False), ("１３４７４４０７２", False), ("%31%33", False),
    ],
)  # fmt: skip
def test_no_key_goes_in_the_clear_beyond_ones_own_network(host: str, private: bool) -> None:
    address = f"http://{host}/v1"
    assert is_in_own_network(address) is private
    check_address("ours", address, None)
    check_address("ours", f"https://{host}/v1", KEY)
    if private:
        check_address("ours", address, KEY)
        return
    for has_key, key in ((False, KEY), (True, None)):
        with pytest.raises(ConfigError, match="would send its key unencrypted"):
            check_address("ours", address, key, has_key=has_key)


@pytest.mark.parametrize("address", ["https://h.example/v1?key=sk-0123456789", "https://h.example/v1#k=sk-0123456789"])
def test_a_refused_address_is_named_without_its_query(address: str) -> None:
    with pytest.raises(ConfigError, match=r"\(https://h.example/v1\) cannot be used") as refused:
        check_address("ours", address, None)
    assert "sk-0" not in str(refused.value)
    with pytest.raises(ConfigError, match="AVA_MODEL is not") as unset:
        choose(None, "fast", ModelSettings(base_url=address))
    assert "sk-0" not in str(unset.value)


@pytest.mark.parametrize("cloud", ["com", "us", "cn"])
def test_each_cloud_of_azure_is_called_as_azure(cloud: str) -> None:
    own = Provider(f"https://ours.openai.azure.{cloud}/openai/v1", KEY, price_as={"our-gpt": "openai:gpt-5"})
    model = build_model(choose("azure:our-gpt", "fast", ModelSettings(providers={"azure": own})), ClientPool())
    assert isinstance(model, HttpModel)
    endpoint = Endpoint(model.wire.url(model.base_url, "our-gpt"), "our-gpt", KEY)
    assert key_headers(model.wire, endpoint) == {"api-key": KEY}
    body = json.loads(model.encode(Request("our-gpt", "", (), (UserTurn("x"),), 16)))
    assert body["max_completion_tokens"] == 16


async def test_the_chosen_model_answers() -> None:
    with run_model_server([Say("hello")]) as server:
        choice = choose(None, "fast", ModelSettings(base_url=server.base_url, api_key=KEY, model="m"))
        async with ClientPool() as clients:
            model = build_model(choice, clients)
            async with model.stream(Request(choice.model_id, "", (), (UserTurn("x"),), 16)) as stream:
                async for _ in stream:
                    pass
            assert stream.completion.text == "hello"
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("tier", TIERS)
def test_calls_openai_over_responses_where_its_models_need_it_for_tools(tier: str) -> None:
    choice = choose(None, tier, ModelSettings(providers={"openai": Provider(api_key=KEY)}))
    model = build_model(choice, ClientPool())
    assert isinstance(model, HttpModel)
    assert model.wire.url(model.base_url, model.model_id) == "https://api.openai.com/v1/responses"
    body = json.loads(model.encode(Request(choice.model_id, "", (), (UserTurn("x"),), 16)))
    assert body["max_output_tokens"] == 16
    assert body["reasoning"]["effort"] == ("low" if choice.model_id == "gpt-6.1-sol" else "none")


def test_chat_completions_on_openai_uses_its_own_parameter_names() -> None:
    model = build_model(choose("gpt-6-luna", "fast", ModelSettings(providers=BY_CHAT)), ClientPool())
    body = json.loads(model.encode(Request("gpt-6-luna", "", (), (UserTurn("x"),), 16)))
    assert (body["max_completion_tokens"], body["reasoning_effort"]) == (16, "none"), "with tools it takes no other"
    assert "max_price" not in str(body)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("api.anthropic.com", "messages"),
        ("api.openai.com", "responses"),
        ("generativelanguage.googleapis.com", "google"),
        ("example.com", "chat_completions"),
    ],
)
def test_an_address_gets_its_known_wire_unless_the_settings_override_it(host: str, known: str) -> None:
    price = {"m": UserPrice(input=1, output=1)}
    for wire in (None, "responses"):
        own = ModelSettings(
            base_url=f"https://{host}/v1", model="m", prices=price, providers={"custom": Provider(wire=wire)}
        )
        assert choose(None, "fast", own).wire == (wire or known)


def test_google_speaks_its_own_wire_and_chat_completions_under_openai() -> None:
    choice = choose("balanced", "fast", ModelSettings(providers={"google": Provider(api_key=KEY)}))
    model = build_model(choice, ClientPool())
    assert isinstance(model, HttpModel)
    assert choice.price.source and not choice.price.free
    base = "https://generativelanguage.googleapis.com/v1beta"
    assert model.wire.url(model.base_url, "m") == f"{base}/models/m:streamGenerateContent?alt=sse"
    assert wire_of(Provider(), f"{base}/openai/") == "chat_completions"
    assert wire_of(Provider(wire="google"), "https://gateway.example/openai") == "google"


@pytest.mark.parametrize(
    ("base_url", "fits"),
    [
        ("https://h.example/openai/deployments/{model}?api-version=2024-10-21", True),
        ("https://h.example/v1?key=sk-1", False),
        ("https://h.example/v1?api-version=1&api-key=sk-1", False),
        ("https://h.example/v1?sk-1", False),
    ],
)
def test_an_address_may_have_the_model_and_an_allowed_query(base_url: str, fits: bool) -> None:
    if fits:
        check_address("azure", base_url, KEY)
        url = "https://h.example/openai/deployments/a%2Fb/chat/completions?api-version=2024-10-21"
        assert ChatWire().url(base_url, "a/b") == url
    else:
        with pytest.raises(ConfigError, match="without user, password or query"):
            check_address("azure", base_url, KEY)


@pytest.mark.parametrize("name", get_args(RemoteWire))
def test_each_wire_is_built_and_lists_models(name: RemoteWire) -> None:
    own = ModelSettings(base_url="http://127.0.0.1:1/v1", model="m", providers={"custom": Provider(wire=name)})
    model = build_model(choose(None, "fast", own), ClientPool())
    assert isinstance(model, HttpModel)
    catalog = model_catalogs(own)["custom"]
    assert type(wire_to_list(catalog)) is type(model.wire)
    assert model.wire.models_url("http://127.0.0.1:1/v1/").startswith("http://127.0.0.1:1/v1/models")


@pytest.mark.parametrize(
    ("wanted", "providers", "provider"), [("gpt-5", {}, "openrouter"), ("openai:gpt-5", ROUTER, "openai")]
)
def test_names_the_provider_whose_key_would_fix_the_error(
    wanted: str, providers: dict[str, Provider], provider: str
) -> None:
    with pytest.raises(BadInput) as caught:
        choose(wanted, "fast", ModelSettings(providers=providers))
    assert caught.value.needs_key == provider


@pytest.mark.parametrize(
    ("price", "wanted", "read", "written"),
    [
        (UserPrice(3, 15), "anthropic:claude-next", 3000, 3750),
        (UserPrice(3, 15), "openrouter:anthropic/next", 3000, 3750),
        (UserPrice(3, 15), "openrouter:acme/next", 3000, 3000),
        (UserPrice(3, 15, 0.1, 6), "anthropic:claude-next", 100, 6000),
        (UserPrice(0, 0), "anthropic:claude-next", 0, 0),
    ],
)
def test_a_cache_write_costs_more_than_input_unless_a_price_says_otherwise(
    price: UserPrice, wanted: str, read: int, written: int
) -> None:
    settings = ModelSettings(providers={**ROUTER, **ANTHROPIC}, prices={wanted: price})
    found = choose(wanted, "fast", settings).price
    assert (found.cache_read, found.cache_write) == (read, written)


def test_reserves_old_gateway_models_at_the_cache_write_price_missing_from_the_table() -> None:
    price = choose("openrouter:anthropic/claude-3.7-sonnet", "fast", ModelSettings(providers=ROUTER)).price
    assert (price.input, price.cache_write) == (3000, 3750)
