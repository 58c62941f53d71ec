"""The choice of a run's model: from what was asked for, what is configured, and what it costs.

Also web search by model providers: which of them search, with which model, and what one search can cost.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import parse_qsl, urlsplit

from ava_server.core.errors import BadInput, ConfigError
from ava_server.core.ids import nearest
from ava_server.models.prices import (
    Price,
    Unpriced,
    UserPrice,
    dearest_price,
    find_price,
    known_ids,
    look_up,
    marked_price,
    nanos,
    price_at,
    reserve_micros,
)
from ava_server.models.providers import PROVIDERS, RemoteWire, habits_at, is_in_own_network, is_local
from ava_server.models.surcharges import pinned_at

if TYPE_CHECKING:
    from ava_server.models.key_command import KeyCommand

On = Literal["budget", "adaptive", "effort", "none"]
Off = Literal["default", "disabled", "between_tools", "low"]
EFFORT = "medium"
"""The effort that a model is told; at OpenRouter, for models with a budget, half of an answer's tokens."""
LOW = "low"


@dataclass(frozen=True)
class Thinking:
    """How a model is told to think, and not to think; `thinking.toml` explains the values."""

    on: On = "none"
    off: Off = "default"
    bound: bool = False

    @property
    def possible(self) -> bool:
        return self.on != "none"

    @property
    def always(self) -> bool:
        return self.off in ("between_tools", "low")


UNKNOWN = Thinking()


def thinking_of(model_id: str, otherwise: Thinking = UNKNOWN) -> Thinking:
    """Return how a model is told to think; `otherwise` is for ids that are not in the table."""
    name = _MAKER.sub("", model_id.rpartition("/")[2].lower()).replace(".", "-")
    known = _table()
    found = max((begins for begins in known if name.startswith(begins)), key=len, default=None)
    return otherwise if found is None else known[found]


_MAKER = re.compile(r"\A(?:[a-z-]+\.)+(?=[a-z])")
"""What Bedrock's ids begin with: where a model runs and who made it, as in `us.anthropic.claude-sonnet-4-6`."""


@cache
def _table() -> Mapping[str, Thinking]:
    table = tomllib.loads(files("ava_server.models").joinpath("thinking.toml").read_text(encoding="utf-8"))
    return {
        begins: Thinking(entry["on"], entry["off"], entry.get("bound", False))
        for entry in table["models"]
        for begins in entry["begins"]
    }


Tier = Literal["fast", "balanced", "deep"]
WireName = RemoteWire | Literal["offline", "scripted"]
SaidBy = Literal["AVA_MODEL_BASE_URL", "AVA_MODEL", "settings", "tiers.toml", "nobody"]
TIERS: tuple[str, ...] = get_args(Tier)
UNNAMED: Tier = "balanced"
"""The tier of a run whose role names a model instead of a tier."""
OFFLINE = "offline/extractive"
SCRIPTED = "scripted:demo"
"""The script of `ava demo --scripted`. It exists only where AVA_MODEL names it and no endpoint is set."""
CUSTOM = "custom"
KNOWN_URLS: Mapping[str, str] = {
    name: known.base_url for name, known in PROVIDERS.items() if known.models and known.is_fixed
}
ALLOWED_QUERY = frozenset(("api-version",))
"""What an address may have in its query: nothing that could be a key."""
SET_A_MODEL = (
    "Store a key with `ava key set openrouter`, or set AVA_MODEL_BASE_URL and AVA_MODEL to any "
    "OpenAI-compatible endpoint."
)


@dataclass(frozen=True)
class Provider:
    """A configured provider."""

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    # The format that it speaks; None is the one known for its address, else chat completions.
    wire: WireName | None = None
    streaming: bool = True  # it can stream
    unused_key: str | None = None  # why the key in the provider's usual variable is not used
    key_command: KeyCommand | None = field(default=None, repr=False)  # what prints its key, in place of `api_key`
    # The model as which each name of its own is priced: `openai:gpt-5`, or an id at its own address.
    price_as: Mapping[str, str] = field(default_factory=dict[str, str])
    like: str = ""  # the known provider as which its address is called; empty where its host tells

    @property
    def has_key(self) -> bool:
        return bool(self.api_key) or self.key_command is not None


@dataclass(frozen=True)
class ModelSettings:
    """What the settings say about models."""

    base_url: str | None = None  # AVA_MODEL_BASE_URL: one endpoint for everything, called `custom`
    api_key: str | None = field(default=None, repr=False)  # AVA_MODEL_API_KEY, for that endpoint
    model: str | None = None  # AVA_MODEL: that endpoint's model or, without an endpoint, the default model
    tiers: Mapping[str, str] = field(default_factory=dict[str, str])  # `[models]`: tier to `provider:id`
    providers: Mapping[str, Provider] = field(default_factory=dict[str, Provider])  # those with a key or an address
    # The user's own prices, by `provider:id` or by id alone.
    prices: Mapping[str, UserPrice] = field(default_factory=dict[str, UserPrice])


@dataclass(frozen=True)
class Choice:
    """A chosen model: all that is needed to show it, price it and call it."""

    provider: str
    model_id: str
    name: str  # `provider:id`, as proposals and the log have it
    tier: str  # the tier that it was chosen for
    wire: WireName
    price: Price
    base_url: str | None = None  # its address; None for a model in this process
    api_key: str | None = field(default=None, repr=False)
    streaming: bool = True  # answers are asked for as a stream
    key_command: KeyCommand | None = field(default=None, repr=False)  # what prints its key, in place of `api_key`
    like: str = ""  # the known provider as which its address is called; empty where its host tells

    @property
    def has_key(self) -> bool:
        return self.api_key is not None or self.key_command is not None


def choose(wanted: str | None, tier: str, settings: ModelSettings) -> Choice:
    """Return the model for a run: `wanted` (a tier, `provider:id`, an id), or else `tier`, the role's `model`.

    Raises BadInput if there is no such model or tier, or several providers have it; ConfigError if the settings name a
    provider or an address that cannot be used; Unpriced: its price is not known.
    """
    wanted = (wanted or "").strip()
    if wanted in TIERS:
        wanted, tier = "", wanted
    if tier not in TIERS:
        wanted, tier = wanted or tier.strip(), UNNAMED
    if wanted in ("offline", OFFLINE):
        return _free_choice("offline", "extractive", OFFLINE, tier)
    if settings.model == SCRIPTED and not settings.base_url and wanted in ("", SCRIPTED):
        return _free_choice("scripted", "demo", SCRIPTED, tier)
    if not wanted.isprintable() or " " in wanted:  # the person who approves sees it, so it may not be a sentence
        raise BadInput(
            f"model: {wanted[:80]!r} contains white space or invisible characters, which no model id has; remove them"
        )
    providers = configured(settings)
    if not wanted:
        wanted, said_by = meant_by(tier, settings, providers)
        if said_by == "nobody":
            return _free_choice("offline", "extractive", OFFLINE, tier)
    name, model_id = _split_name(wanted, settings, providers)
    provider = providers[name]
    base_url = provider.base_url or KNOWN_URLS[name]
    check_address(name, base_url, provider.api_key, has_key=provider.has_key)
    wire = wire_of(provider, base_url)
    price = price_over(wire, name, model_id, base_url, settings.prices, provider.price_as)
    return Choice(
        provider=name,
        model_id=model_id,
        name=f"{name}:{model_id}",
        tier=tier,
        wire=wire,
        price=price,
        base_url=base_url,
        api_key=provider.api_key,
        like=provider.like,
        streaming=provider.streaming,
        key_command=provider.key_command,
    )


def wire_of(provider: Provider, base_url: str) -> WireName:
    """Return the format that a provider speaks: the one in the settings, else the one known for its address or `like`.

    Google has chat completions under /openai and /openapi; Bedrock and others have Anthropic's format under /anthropic.
    """
    if provider.wire is not None:
        return provider.wire
    path = urlsplit(base_url).path.rstrip("/").removesuffix("/v1")
    if path.endswith("/anthropic"):
        return "messages"
    wire = habits_at(base_url, provider.like).wire
    if wire == "google" and path.endswith(("/openai", "/openapi")):
        return "chat_completions"
    return wire


def is_vertex(base_url: str) -> bool:
    """Tell whether an address is of Google Cloud, where what a command prints is a token."""
    return host_of(base_url).endswith("aiplatform.googleapis.com")


def marks_cache(wire: WireName, base_url: str, model_id: str) -> bool:
    """Tell whether requests mark what to cache: Anthropic's models need that, also behind OpenRouter."""
    if wire == "messages":
        return True
    at_openrouter = host_of(base_url) == host_of(KNOWN_URLS["openrouter"])
    return at_openrouter and model_id.removeprefix("~").startswith("anthropic/")


NO_OTHER_NAMES: Mapping[str, str] = {}


def price_over(
    wire: WireName,
    provider: str,
    model_id: str,
    base_url: str,
    overrides: Mapping[str, UserPrice],
    price_as: Mapping[str, str] = NO_OTHER_NAMES,
) -> Price:
    """Return what a model costs when it is called in this format. Raises Unpriced if its price is not known.

    `price_as`: the models as which names are priced, where the settings have no price of their own for them.
    """
    has_own_price = model_id in overrides or f"{provider}:{model_id}" in overrides
    priced_id = model_id
    if model_id in price_as:
        priced_id = _split_price_as(price_as[model_id])[1]
    if model_id in price_as and not has_own_price:
        price = _price_as(price_as[model_id], provider, base_url, overrides)
        if price.free and not is_local(base_url):
            raise Unpriced(
                f"price_as prices {provider}:{model_id} as {price_as[model_id]}, which is free, and its endpoint is not"
                " on this machine. Name a model that costs what this one does."
            )
    else:
        price = find_price(provider, model_id, base_url=base_url, overrides=overrides)
    if marks_cache(wire, base_url, model_id):
        price = marked_price(price)
    return price_at(price, base_url, priced_id)


def _price_as(name: str, provider: str, base_url: str, overrides: Mapping[str, UserPrice]) -> Price:
    """Return the price of a model of the table: `provider:id`, or the id of one that this provider sells."""
    seller, model_id = _split_price_as(name)
    if seller:
        table = PROVIDERS[seller].price_name or seller
        return find_price(table, model_id, base_url=None, overrides=overrides)
    return find_price(provider, name, base_url=base_url, overrides=overrides)


def _split_price_as(name: str) -> tuple[str, str]:
    """Return the provider, empty where none is named, and the id of a model as which another one is priced."""
    seller, colon, model_id = name.partition(":")
    if colon and seller in PROVIDERS:
        return seller, model_id
    return "", name


@lru_cache(maxsize=64)
def host_of(base_url: str | None) -> str:
    return urlsplit(base_url or "").hostname or ""


def configured(settings: ModelSettings) -> dict[str, Provider]:
    usable: dict[str, Provider] = {}
    if settings.base_url:
        own = settings.providers.get(CUSTOM, Provider())  # `providers.custom` is about this endpoint
        usable[CUSTOM] = Provider(settings.base_url, settings.api_key, own.wire, own.streaming, like=own.like)
    for name, provider in settings.providers.items():
        if ":" in name:  # in a model's name, the first colon ends the provider
            raise ConfigError(f"providers.{name}: a provider's name has no colon; call it {name.replace(':', '-')}.")
        if provider.base_url or (name in KNOWN_URLS and provider.has_key):
            usable.setdefault(name, provider)
    return usable


def is_configured(settings: ModelSettings) -> bool:
    return bool(configured(settings)) or settings.model == SCRIPTED


def default_tiers() -> Mapping[str, Mapping[str, str]]:
    return _shipped_tiers()[1]


def tiers_reviewed() -> date:
    return _shipped_tiers()[0]


@cache
def _shipped_tiers() -> tuple[date, Mapping[str, Mapping[str, str]]]:
    read = tomllib.loads(files("ava_server.models").joinpath("tiers.toml").read_text(encoding="utf-8"))
    return read.pop("reviewed"), read


def _free_choice(wire: Literal["offline", "scripted"], model_id: str, name: str, tier: str) -> Choice:
    return Choice(wire, model_id, name, tier, wire, Price(0, 0, 0, 0, source=f"free ({wire})", free=True))


def meant_by(tier: str, settings: ModelSettings, providers: Mapping[str, Provider]) -> tuple[str, SaidBy]:
    """Return which model a tier means and what says so; `nobody` without any provider. Raises ConfigError: no model."""
    if settings.base_url:
        if not settings.model:
            raise ConfigError(
                f"AVA_MODEL_BASE_URL is set to {_without_login(settings.base_url)}, but AVA_MODEL is not; set it to "
                "the id of a model there."
            )
        return f"{CUSTOM}:{settings.model}", "AVA_MODEL_BASE_URL"
    if settings.model:
        return settings.model, "AVA_MODEL"
    if tier in settings.tiers:
        return settings.tiers[tier], "settings"
    for name, ids in default_tiers().items():
        if name in providers:
            return f"{name}:{ids[tier]}", "tiers.toml"
    if providers:
        names = " and ".join(providers)
        have = "has" if len(providers) == 1 else "have"
        raise ConfigError(
            f"No model is set for tier {tier!r}, and {names} {have} no default. Add it to config.toml: "
            f'[models] {tier} = "{next(iter(providers))}:ID"'
        )
    return "", "nobody"


def _split_name(wanted: str, settings: ModelSettings, providers: Mapping[str, Provider]) -> tuple[str, str]:
    """Return provider and id: split `provider:id`, or find the one provider that knows an id."""
    prefix, colon, rest = wanted.partition(":")
    if colon:
        if prefix in providers:
            if rest.strip():
                return prefix, rest.strip()
            raise BadInput(f"model: {wanted!r} names a provider without a model; write {prefix}:ID")
        _check_is_set_up(wanted, prefix, settings)
    if not providers:
        raise BadInput(
            f"model: {wanted!r} cannot be used, because no model is configured. Ava needs a key, or AVA_MODEL_BASE_URL"
            " and AVA_MODEL of any OpenAI-compatible endpoint.",
            needs_key="openrouter",
        )
    return _knowing(wanted, settings, providers), wanted


def _check_is_set_up(wanted: str, prefix: str, settings: ModelSettings) -> None:
    """Raise BadInput if a model's prefix is a provider that lacks something: it says what to add."""
    own = settings.providers.get(prefix)
    if prefix in KNOWN_URLS:
        why = ""
        if own is not None and own.unused_key:
            why = f" ({own.unused_key})"
        raise BadInput(f"model: {wanted!r} needs a key for {prefix}, and there is none{why}.", needs_key=prefix)
    if own is not None:
        raise BadInput(
            f"model: {wanted!r} needs the address of {prefix}; add base_url to [providers.{prefix}] in config.toml"
        )
    known = PROVIDERS.get(prefix)
    if known is None or not known.models:
        return
    needs = f"with base_url, such as {known.base_url}"
    if known.kind == "this_machine":
        needs = "an empty table is enough"
    raise BadInput(f"model: {wanted!r} needs [providers.{prefix}] in config.toml: {needs}")


def _knowing(wanted: str, settings: ModelSettings, providers: Mapping[str, Provider]) -> str:
    knowing = [name for name, provider in providers.items() if _knows(name, provider, wanted, settings)]
    if len(knowing) > 1:
        choices = " or ".join(f"{name}:{wanted}" for name in knowing)
        raise BadInput(f"model: {' and '.join(knowing)} both know {wanted!r}; write {choices}")
    if knowing:
        return knowing[0]
    open_ended = [name for name in providers if name not in KNOWN_URLS]
    if len(providers) == 1 and open_ended and _may_be_id(wanted):
        return open_ended[0]
    error = (
        f"model: no configured provider knows {wanted!r} (configured: {', '.join(providers)})"
        f"{_similar(wanted, settings, providers)}; write provider:ID, or a tier: {', '.join(TIERS)}"
    )
    if open_ended:
        error += f"; if {open_ended[0]} has such a model, write {open_ended[0]}:{wanted}"
    raise BadInput(error)


def _may_be_id(wanted: str) -> bool:
    """Tell whether a name can be an id without its provider: it has no colon, or one before a version."""
    _, colon, rest = wanted.partition(":")
    return not colon or _VERSION.search(rest) is not None


_VERSION = re.compile("[0-9]|latest")
"""What a version after the colon contains, as in `qwen3:8b`; anything else is the model of a provider."""


def _similar(wanted: str, settings: ModelSettings, providers: Mapping[str, Provider]) -> str:
    prefix, colon, rest = wanted.partition(":")
    names = {*settings.tiers.values(), settings.model or ""}
    for name, provider in providers.items():
        names |= {f"{name}:{model}" for model in known_ids(name, provider.base_url or KNOWN_URLS.get(name))}
    ids = {name.partition(":")[2] for name in names}
    similar = get_close_matches(wanted, sorted({*names, *ids, *TIERS} - {""}), 3)
    if colon:
        meant = nearest(prefix, {*providers, *KNOWN_URLS}, 0.7)
        if meant is not None:
            similar.insert(0, f"{meant}:{rest}")
    if not similar:
        return ""
    return f"; did you mean {' or '.join(dict.fromkeys(similar))}?"


def _knows(name: str, provider: Provider, model_id: str, settings: ModelSettings) -> bool:
    """Tell whether a provider is known to have a model: by the settings, or by the price table."""
    if name == CUSTOM and settings.model == model_id:
        return True
    own = f"{name}:{model_id}"
    if own in settings.prices or own in settings.tiers.values():
        return True
    address = provider.base_url or KNOWN_URLS.get(name)
    priced = isinstance(look_up(name, model_id, base_url=address), Price)
    return priced or model_id.lower() in known_ids(name, address)


def unknown_prices(settings: ModelSettings, named: Iterable[str]) -> dict[str, str]:
    """Return the user's prices of models that no table, setting, role or call names, with the most similar name."""
    providers = configured(settings)
    own = settings.model or ""
    if settings.base_url:
        own = f"{CUSTOM}:{settings.model}"
    names = {own, *named, *settings.tiers.values()} - {*TIERS, ""}
    addresses = dict(KNOWN_URLS)
    for name, provider in providers.items():
        if provider.base_url:
            addresses[name] = provider.base_url
    known = set(names)
    for name in names:
        prefix, colon, model_id = name.partition(":")
        if colon and prefix in addresses:
            known.add(model_id)
        else:
            known.update(f"{provider}:{name}" for provider in providers)
    unknown: dict[str, str] = {}
    for key in settings.prices:
        if key not in known and not _is_in_table(key, addresses):
            unknown[key] = nearest(key, names) or ""
    return unknown


def _is_in_table(model: str, addresses: Mapping[str, str]) -> bool:
    """Tell whether the price table has a model, named as `provider:id` or by its id alone."""
    prefix, colon, model_id = model.partition(":")
    if colon and prefix in addresses:
        return isinstance(look_up(prefix, model_id, base_url=addresses[prefix]), Price)
    return any(isinstance(look_up(name, model, base_url=address), Price) for name, address in addresses.items())


def check_address(name: str, base_url: str, api_key: str | None, *, has_key: bool = False) -> None:
    """Raise ConfigError for an address that cannot be used, or that would send a key unencrypted."""
    if not _is_usable_address(base_url):
        raise ConfigError(
            f"The base URL of {name} ({_without_login(base_url)}) cannot be used; write it like https://host/v1, "
            "without user, password or query."
        )
    if re.search("[^!-~]", api_key or ""):
        raise ConfigError(
            f"The key of {name} contains characters that keys never have; store it again: `ava key set {name}`"
        )
    sends_key = bool(api_key) or has_key
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if sends_key and parts.scheme == "http" and not is_in_own_network(base_url):
        raise ConfigError(f"The base URL of {name} would send its key unencrypted to {host}; use https.")


def _is_usable_address(base_url: str) -> bool:
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return False
    if parts.username or parts.fragment:
        return False
    return all(name in ALLOWED_QUERY for name, _ in parse_qsl(parts.query, keep_blank_values=True))


def _without_login(base_url: str) -> str:
    """Return an address without user, password and query."""
    base_url = re.split("[?#]", base_url, maxsplit=1)[0]
    scheme, _, rest = base_url.partition("://")
    if not rest:
        return base_url.rpartition("@")[2]
    return f"{scheme}://{rest.rpartition('@')[2]}"


# -- web search -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchTerms:
    """A provider's entry in `web_search.toml`, with the fee in nano-USD."""

    title: str
    fee: int
    prompt_tokens: int
    output_tokens: int
    results: int


@cache
def search_terms() -> Mapping[str, SearchTerms]:
    table = tomllib.loads(files("ava_server.models").joinpath("web_search.toml").read_text(encoding="utf-8"))
    table.pop("reviewed")
    fees = {name: nanos(entry.pop("fee") * 1_000_000) for name, entry in table.items()}
    return {name: SearchTerms(fee=fees[name], **entry) for name, entry in table.items()}


@dataclass(frozen=True)
class ProviderSearch:
    """The web search of a model provider, as proposed; `price` is the model's, and the fee for each request."""

    name: str
    choice: Choice
    price: Price

    @property
    def terms(self) -> SearchTerms:
        return search_terms()[self.name]

    @property
    def title(self) -> str:
        return self.terms.title

    @property
    def cost_micros(self) -> int:
        """Return the most that it costs."""
        from ava_server.models.base import Bound  # commands that only look at the configuration need no model

        dearest = dearest_price(self.price, {}, pinned_at(self.choice.base_url))
        return reserve_micros(dearest, Bound(self.terms.prompt_tokens, self.terms.output_tokens))


def engine_at(base_url: str | None) -> str | None:
    """Return the engine whose provider answers at an address itself; None for any other address."""
    names = {host_of(KNOWN_URLS[name]): name for name in search_terms()}
    parts = urlsplit(base_url or "")
    if parts.scheme != "https" or parts.hostname is None:
        return None
    return names.get(parts.hostname)


def provider_search(name: str, provider: str, settings: ModelSettings) -> ProviderSearch | None:
    """Return a provider's web search, with its fast model, as the query is given; None where it is not configured.

    Raises AvaError if its model has no price, or its address cannot be used.
    """
    if provider not in configured(settings):
        return None
    choice = choose(f"{provider}:{default_tiers()[name]['fast']}", "fast", settings)
    return ProviderSearch(name, choice, with_fee(choice.price, search_terms()[name].fee))


def with_fee(price: Price, fee: int) -> Price:
    return replace(price, per_request=price.per_request + fee, free=price.free and not fee)
