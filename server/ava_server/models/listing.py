"""Which model a tier or a role means here now, what a provider has, and what each costs.

One account for `ava models`, `ava doctor` and `ava://roles`, made by the very choice that a run's model is chosen by.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio

from ava_server.core.errors import AvaError, ModelError, ModelErrorKind
from ava_server.models.errors import Endpoint
from ava_server.models.pricing.prices import Price, Unpriced, price_facts
from ava_server.models.selection import (
    CUSTOM,
    KNOWN_URLS,
    SET_A_MODEL,
    TIERS,
    Choice,
    ModelSettings,
    Provider,
    WireName,
    check_address,
    choose,
    configured,
    meant_by,
    price_over,
    tiers_reviewed,
    wire_of,
)
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.messages import MessagesWire
from ava_server.models.wires.responses import ResponsesWire

if TYPE_CHECKING:
    import httpx2

    from ava_server.config.settings import Settings
    from ava_server.models.clients import ClientPool
    from ava_server.models.wires.base import Wire


NOBODY = "nobody: no key and no endpoint is configured"
"""Who says so where a tier leads to the offline reader."""


@dataclass(frozen=True)
class TierMeaning:
    """What a tier, or a role's `model`, means here now.

    Attributes:
        wanted: The tier, or the model that is named.
        choice: The model; None where it cannot be had.
        said_by: Who says so: a variable, a setting and where it stands, `tiers.toml` of a day, or the name itself.
        error: Why it cannot be had.
    """

    wanted: str
    choice: Choice | None
    said_by: str
    error: AvaError | None = None


@dataclass(frozen=True)
class Offer:
    """A model that a provider has.

    Attributes:
        model_id: The provider's id of it.
        price: What it costs; None where nobody says.
        unpriced: Why it cannot be used, with the lines that would mend it; empty where it has a price.
        tiers: The tiers that mean it here.
    """

    model_id: str
    price: Price | None
    unpriced: str
    tiers: tuple[str, ...]


@dataclass(frozen=True)
class ModelCatalog:
    """A provider whose models can be listed.

    Attributes:
        name: The provider's name.
        base_url: Where it is.
        api_key: Its key, where there is one; never shown.
        wire: The format that it speaks.
        configured: It can be called, as things are.
        in_table: The price table knows what it has; else only it can say.
    """

    name: str
    base_url: str
    api_key: str | None = field(repr=False)
    wire: WireName
    configured: bool
    in_table: bool


def meanings(wanted: Iterable[str], models: ModelSettings, settings: Settings) -> list[TierMeaning]:
    """Return what tiers or roles' models mean here now.

    Reads the price table, whose import takes a while: call it in a thread.
    """
    return [_meaning(one, models, settings) for one in wanted]


def tier_meanings(models: ModelSettings, settings: Settings) -> list[TierMeaning]:
    """Return what each tier means here now; reads the price table as `meanings` does."""
    return meanings(TIERS, models, settings)


def _meaning(wanted: str, models: ModelSettings, settings: Settings) -> TierMeaning:
    said_by = ""
    try:
        said_by = _said_by(wanted, models, settings)
        return TierMeaning(wanted, choose(None, wanted, models), said_by)
    except AvaError as error:
        return TierMeaning(wanted, None, said_by, error)


def _said_by(wanted: str, models: ModelSettings, settings: Settings) -> str:
    if wanted not in TIERS:
        return "its name"
    match meant_by(wanted, models, configured(models))[1]:
        case "AVA_MODEL_BASE_URL":
            return "AVA_MODEL_BASE_URL and AVA_MODEL"
        case "settings":
            return settings.where("models", wanted)
        case "tiers.toml":
            return f"tiers.toml of {tiers_reviewed()}"
        case "nobody":
            return NOBODY
        case variable:
            return variable


def facts(meant: TierMeaning, what_to_do: str = "") -> dict[str, Any]:
    """Return a meaning as plain JSON.

    Args:
        meant: The meaning.
        what_to_do: Where it cannot be had, how that is mended.
    """
    if meant.choice is None:
        return {"model": None, "problem": str(meant.error), "what_to_do": what_to_do, "chosen_by": meant.said_by}
    price = meant.choice.price
    return {
        "model": meant.choice.name,
        "price": price_facts(price),
        "window": price.window,
        "chosen_by": meant.said_by,
        **({"what_to_do": SET_A_MODEL} if meant.said_by == NOBODY else {}),
    }


def sellers(models: ModelSettings) -> dict[str, ModelCatalog]:
    """Return the providers whose models can be listed: those that are configured, and those known by name.

    Raises:
        ConfigError: A provider's name cannot be one.
    """
    usable = configured(models)
    providers = {**{name: Provider() for name in KNOWN_URLS}, **usable}
    return {name: _seller(name, provider, name in usable) for name, provider in providers.items()}


def _seller(name: str, provider: Provider, is_configured: bool) -> ModelCatalog:
    from ava_server.models.pricing.prices import known_ids

    base_url = provider.base_url or KNOWN_URLS[name]
    wire = wire_of(provider, base_url)
    return ModelCatalog(name, base_url, provider.api_key, wire, is_configured, bool(known_ids(name, base_url)))


def named_ids(seller: ModelCatalog, models: ModelSettings, tiers: Iterable[TierMeaning]) -> list[str]:
    """Return the ids of a provider's models that serve tiers, then those that the user has named or priced."""
    chosen = [meant.choice.model_id for meant in tiers if meant.choice and meant.choice.provider == seller.name]
    named = [models.model] if seller.name == CUSTOM and models.base_url else []
    own = [*models.tiers.values(), *models.prices, *([] if models.base_url else [models.model])]
    prefixed = [name.removeprefix(f"{seller.name}:") for name in own if name and name.startswith(f"{seller.name}:")]
    return list(dict.fromkeys(one for one in (*chosen, *named, *prefixed, *_by_id_alone(seller, models)) if one))


def _by_id_alone(seller: ModelCatalog, models: ModelSettings) -> Iterator[str]:
    """Yield what has a price of the user's under its id alone: where the table has it, else where no table knows."""
    from ava_server.models.pricing.prices import known_ids

    names = {*KNOWN_URLS, *configured(models)}
    alone = [key for key in models.prices if key.partition(":")[0] not in names]
    if seller.in_table:
        known = known_ids(seller.name, seller.base_url)
        yield from (model_id for model_id in alone if model_id in known)
    else:
        elsewhere = frozenset[str]().union(*(known_ids(name, url) for name, url in KNOWN_URLS.items()))
        yield from (model_id for model_id in alone if model_id not in elsewhere)


def table_ids(seller: ModelCatalog) -> list[str]:
    """Return the ids that the price table has of a provider, in the order of the alphabet."""
    from ava_server.models.pricing.prices import known_ids

    return sorted(known_ids(seller.name, seller.base_url))


def offers(
    seller: ModelCatalog, ids: Iterable[str], models: ModelSettings, tiers: Iterable[TierMeaning]
) -> list[Offer]:
    """Return models of a provider with their prices, and the tiers that mean them."""
    serve: dict[str, list[str]] = {}
    for meant in tiers:
        if meant.choice is not None:
            serve.setdefault(meant.choice.name, []).append(meant.wanted)
    return [_offer(seller, model_id, models, tuple(serve.get(f"{seller.name}:{model_id}", ()))) for model_id in ids]


def _offer(seller: ModelCatalog, model_id: str, models: ModelSettings, tiers: tuple[str, ...]) -> Offer:
    try:
        price = price_over(seller.wire, seller.name, model_id, seller.base_url, models.prices)
    except Unpriced as error:
        return Offer(model_id, None, str(error), tiers)
    return Offer(model_id, price, "", tiers)


DEADLINE_S = 3.0
"""For the whole of it: a person waits, and the list is only a help."""
MOST_BYTES = 4_000_000
LONGEST_ID = 200


async def ask_endpoint(seller: ModelCatalog, clients: ClientPool) -> list[str]:
    """Return the ids of the models that an endpoint lists, in its own order.

    Raises:
        AvaError: It could not be asked, or what it answered is no list; says which.
    """
    import httpx2

    check_address(seller.name, seller.base_url, seller.api_key)
    wires: dict[str, Wire] = {"messages": MessagesWire(bearer=True), "responses": ResponsesWire()}
    wire = wires.get(seller.wire, ChatWire())
    endpoint = Endpoint(models_url(wire, seller.base_url), "", seller.api_key)
    with anyio.move_on_after(DEADLINE_S):
        try:
            async with clients.client() as client:
                return _ids(await _asked(client, endpoint, wire), endpoint)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
            why = endpoint.clean(str(error)) or type(error).__name__
            raise _failed(f"{endpoint.place} cannot be asked for its models: {why}", "connection") from error
    raise _failed(f"{endpoint.place} gave no whole list of its models within {DEADLINE_S:g} s", "timeout")


def models_url(wire: Wire, base_url: str) -> str:
    """Return where an endpoint's models are listed: beside where its model is asked."""
    asked = wire.url(base_url)
    for path in ("/chat/completions", "/messages", "/responses"):
        asked = asked.removesuffix(path)
    return f"{asked}/models"


async def _asked(client: httpx2.AsyncClient, endpoint: Endpoint, wire: Wire) -> bytes:
    headers = {"accept": "application/json", **wire.headers(endpoint.api_key)}
    content = b""
    async with client.stream("GET", endpoint.url, headers=headers) as response:
        if response.status_code != 200:
            kind: ModelErrorKind = "auth" if response.status_code in (401, 403) else "bad_answer"
            with_key = f" with {endpoint.key}" if kind == "auth" else ""
            raise _failed(f"{endpoint.place} answered {response.status_code}{with_key}, and no list of models", kind)
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > MOST_BYTES:
                raise _failed(f"{endpoint.place} answered more than {MOST_BYTES:,} bytes", "bad_answer")
    return content


def _ids(content: bytes, endpoint: Endpoint) -> list[str]:
    """Return the ids in an answer; one that no model can be asked for by is left out."""
    try:
        answer: Any = json.loads(content)
        entries = cast("list[Any]", answer["data"])
        ids = [entry["id"] for entry in entries]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _failed(f"{endpoint.place} answered what is no list of models", "bad_answer") from None
    usable = [one for one in ids if isinstance(one, str) and one and one.isprintable() and " " not in one]
    return list(dict.fromkeys(one for one in usable if len(one) <= LONGEST_ID))


def _failed(message: str, kind: ModelErrorKind) -> ModelError:
    step = "Check that it runs, and its address and key; a model can be named without being listed."
    return ModelError(f"{message}.", kind=kind, sent=False, answered=False, retryable=False, what_to_do=step)
