"""`ava models`: the model of each tier, what it costs, and the models of the providers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import anyio
import typer

from ava_server.cli.log_access import checked_root, read_settings
from ava_server.cli.options import Json, providers
from ava_server.cli.terminal import present, wrapped_lines
from ava_server.core.errors import AvaError, BadInput, with_advice
from ava_server.core.ids import model_about, suggestion
from ava_server.core.threads import run_async
from ava_server.hosts.launching import key_advice
from ava_server.models import listing
from ava_server.models.http_clients import ClientPool
from ava_server.models.listing import ModelCatalog, Offer, ResolvedModel, resolve_models
from ava_server.models.model_choice import SET_A_MODEL, ModelSettings
from ava_server.models.prices import Price, PriceStep, account_lines, per_call, price_json, price_lines, usd
from ava_server.models.providers import PROVIDERS

WIDTH = 80
_MARGIN = 10
_HEAD = ("in", "out", "read", "write", "window")


def models_command(
    provider: Annotated[
        str | None,
        typer.Argument(
            metavar="PROVIDER",
            help="Show all models of this provider; without it, those in use.",
            autocompletion=providers,
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", metavar="WORD", help="Only models with this in their id.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the model of each tier and what it costs, and the models of the configured providers.

    Prices are in USD per million tokens. Only an endpoint whose models are in no table is asked over the network, and
    only with PROVIDER or --search. Without them, Ollama, LM Studio and llama.cpp are looked for at their usual ports on
    this machine, and offered.
    """
    from ava_server.config.credentials import model_settings

    root = checked_root(show=False)
    settings = read_settings()
    models = model_settings(settings)
    tiers = resolve_models(models, settings.where)
    provider_models = run_async(read_providers, models, tiers, provider, search)
    all_models = provider is not None or search is not None
    servers: dict[str, list[str]] = {}
    if not all_models:
        servers = run_async(read_servers_here, models)
    answer = {**models_json(tiers, provider_models), "on_this_machine": servers}
    lines = models_screen(tiers, provider_models, search, all_models=all_models)
    lines += servers_lines(servers)
    present(root, as_json, answer, lines)


@dataclass(frozen=True)
class ProviderModels:
    """The models of a provider that the screen shows.

    Attributes:
        seller: The provider.
        offers: Its models.
        problem: Why the list may be incomplete.
    """

    seller: ModelCatalog
    offers: Sequence[Offer]
    problem: str = ""


async def read_providers(
    models: ModelSettings, tiers: Sequence[ResolvedModel], provider: str | None, search: str | None
) -> list[ProviderModels]:
    """Raises BadInput if there is no such provider; ConfigError if a configured provider has an invalid name."""
    sellers = _choose_sellers(listing.model_catalogs(models), provider, search)
    all_models = provider is not None or search is not None
    word = (search or "").strip().lower()
    read: dict[str, ProviderModels] = {}

    async def read_provider(seller: ModelCatalog) -> None:
        ids = listing.named_ids(seller, models, tiers)
        problem = ""
        if all_models and seller.in_table:
            ids += listing.table_ids(seller)
        elif all_models:
            try:
                ids += await listing.ask_endpoint(seller, clients)
            except AvaError as error:
                problem = with_advice(str(error), getattr(error, "what_to_do", ""))
        offers = listing.offers(seller, dict.fromkeys(ids), models, tiers)
        if all_models:
            windows = await listing.loaded_windows(seller, clients)
            offers = [_with_window(offer, windows) for offer in offers]
        matching = [offer for offer in offers if word in offer.model_id.lower()]
        read[seller.name] = ProviderModels(seller, matching, problem)

    async with ClientPool() as clients, anyio.create_task_group() as tasks:
        for seller in sellers:
            tasks.start_soon(read_provider, seller)
    return [read[seller.name] for seller in sellers]


def _choose_sellers(known: dict[str, ModelCatalog], provider: str | None, search: str | None) -> Sequence[ModelCatalog]:
    if provider is not None:
        return [_find_provider(provider.strip(), known)]
    configured = [seller for seller in known.values() if seller.configured]
    if search is not None and not configured:
        return list(known.values())  # to choose from before there is a key
    return configured


def _with_window(offer: Offer, windows: Mapping[str, int]) -> Offer:
    """Return an offer with the context length with which its model is loaded, where the server tells that."""
    window = windows.get(offer.model_id, windows.get(""))
    if offer.price is None or window is None:
        return offer
    return replace(offer, price=replace(offer.price, window=window))


async def read_servers_here(models: ModelSettings) -> dict[str, list[str]]:
    async with ClientPool() as clients:
        return await listing.servers_here(models, clients)


def servers_lines(servers: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what is offered of servers that answer on this machine and that the settings do not name."""
    lines: list[str] = []
    for name, ids in servers.items():
        models = ids[0]
        if len(ids) > 1:
            models += f" and {len(ids) - 1} more"
        text = (
            f"{name} answers on this machine, at {PROVIDERS[name].base_url}, with {models}. Nothing uses it. To use"
            f" it, add the line [providers.{name}] to config.toml, and name a model as {name}:{ids[0]}."
        )
        lines.append("")
        lines += wrapped_lines(text, WIDTH)
    return lines


def _find_provider(provider: str, known: dict[str, ModelCatalog]) -> ModelCatalog:
    if provider in known:
        return known[provider]
    with_models = {name: row for name, row in PROVIDERS.items() if row.models}
    row = with_models.get(provider)
    if row is not None:
        needs = "an empty table is enough"
        if row.kind == "own_address":
            needs = f"with base_url, such as {row.base_url}"
        raise BadInput(f"{provider} needs [providers.{provider}] in config.toml: {needs}.")
    names = [*known]
    names += [name for name in with_models if name not in known]
    similar = suggestion(provider, known) or suggestion(provider, names)
    raise BadInput(
        f"There is no provider {provider[:60]!r}.{similar} Known: {', '.join(names)}. Your own"
        " needs [providers.NAME] with its base_url in config.toml."
    )


def _advice(error: AvaError | None) -> str:
    """Return how to set the key if that is what a tier's model lacks."""
    if error is None or not error.needs_key:
        return ""
    return key_advice(error.needs_key, None)


def models_json(tiers: Sequence[ResolvedModel], provider_models: Sequence[ProviderModels]) -> dict[str, Any]:
    return {
        "tiers": [{"tier": tier.wanted, **listing.model_json(tier, _advice(tier.error))} for tier in tiers],
        "providers": [_provider_json(one) for one in provider_models],
    }


def _provider_json(one: ProviderModels) -> dict[str, Any]:
    return {
        "provider": one.seller.name,
        "base_url": one.seller.base_url,
        "configured": one.seller.configured,
        "key": bool(one.seller.has_key),
        "models": [_offer_json(one.seller.name, offer) for offer in one.offers],
        "problem": one.problem or None,
    }


def _offer_json(provider: str, offer: Offer) -> dict[str, Any]:
    price, window = None, None
    if offer.price is not None:
        price, window = price_json(offer.price), offer.price.window
    return {
        "id": offer.model_id,
        "model": f"{provider}:{offer.model_id}",
        "tiers": list(offer.tiers),
        "price": price,
        "window": window,
        "problem": offer.unpriced or None,
    }


# -- the screen, in 80 columns ----------------------------------------------------------------------------------------


def models_screen(
    tiers: Sequence[ResolvedModel], provider_models: Sequence[ProviderModels], search: str | None, *, all_models: bool
) -> list[str]:
    lines = ["", "Tiers, as roles ask for them (USD per million tokens):"]
    same: dict[str, tuple[list[str], ResolvedModel]] = {}
    for tier in tiers:
        model = tier.error if tier.choice is None else tier.choice.name
        names, _first = same.setdefault(f"{model} {tier.said_by}", ([], tier))
        names.append(tier.wanted)
    for names, tier in same.values():
        lines += _tier_lines(", ".join(names), tier)
    if any(tier.said_by == listing.NOBODY for tier in tiers):
        lines.append("")
        lines += wrapped_lines(SET_A_MODEL, WIDTH)
        lines += wrapped_lines("Prices: `ava models openrouter`.", WIDTH)
    for one in provider_models:
        lines.append("")
        lines += _provider_lines(one, search, all_models=all_models)
    return lines


def _tier_lines(names: str, tier: ResolvedModel) -> list[str]:
    """Return lines that say what a tier means: its names in the margin, or above it where they are too long."""
    lines: list[str] = []
    for text in _tier_texts(tier):
        lines += wrapped_lines(text, WIDTH - _MARGIN)
    in_margin = len(names) < _MARGIN
    if in_margin:
        head = f"{names:<{_MARGIN}}{lines.pop(0)}"
    else:
        head = names
    return [head, *(" " * _MARGIN + line for line in lines)]


def _tier_texts(tier: ResolvedModel) -> list[str]:
    if tier.choice is None:
        return with_advice(f"cannot be used: {tier.error}", _advice(tier.error)).split("\n")
    price = tier.choice.price
    details: list[str] = []
    if price.window:
        details.append(f"window {price.window:,} tokens")
    if not price.free:
        details.append(f"price: {price.source}")
    texts = [model_about(tier.choice.name), *price_lines(price), *account_lines(price, tier.choice.base_url)]
    if details:
        texts.append("; ".join(details))
    texts.append(f"chosen by {tier.said_by}")
    return texts


def _provider_lines(one: ProviderModels, search: str | None, *, all_models: bool) -> list[str]:
    seller = one.seller
    lines = wrapped_lines(f"{seller.name}: {seller.base_url}, {_key_state(seller)}", WIDTH)
    if not seller.configured:
        lines += wrapped_lines(f"  To use it: `ava key set {seller.name}`.", WIDTH)
    if one.offers:
        lines += _offer_table(one.offers)
    else:
        lines += wrapped_lines(f"  {_why_none(search, all_models)}", WIDTH)
    if one.problem:
        lines += wrapped_lines(f"  {one.problem}", WIDTH)
    unpriced = [offer.unpriced for offer in one.offers if offer.price is None]
    if unpriced:
        text = unpriced[0]
        if len(unpriced) > 1:
            text = f"{len(unpriced)} models have no price. The first: {text}"
        for part in text.split("\n"):
            lines += wrapped_lines(f"  {part}", WIDTH)
    if not all_models:
        lines += wrapped_lines(f"  All its models: `ava models {seller.name}`.", WIDTH)
    return lines


def _key_state(seller: ModelCatalog) -> str:
    if seller.has_key:
        return "with a key"
    if seller.configured:
        return "without a key"
    return "no key yet"


def _why_none(search: str | None, all_models: bool) -> str:
    if search is not None:
        return f"No known model contains {search.strip()!r}."
    if all_models:
        return "No models are known."
    return "No tier uses its models."


def _offer_table(offers: Sequence[Offer]) -> list[str]:
    head = "".join(f"{word:>8}" for word in _HEAD)
    lines = [f"{head}  model"]
    for offer in offers:
        lines += _offer_lines(offer)
    return lines


def _offer_lines(offer: Offer) -> list[str]:
    price = offer.price
    name = offer.model_id
    if offer.tiers:
        name += f" ({', '.join(offer.tiers)})"
    if price is None:
        return _row(("unpriced", "", "", ""), None, name)
    if price.free:
        return _row(("free", "", "", ""), price.window, name)
    notes = [name]
    if price.source.startswith("settings "):
        notes.append("your price")
    if price.per_request:
        notes.append(per_call(price))
    if price.steps:
        notes.append(f"above {price.steps[-1].up_to:,} tokens")
    lines = _row(_prices(price), price.window, ", ".join(notes))
    for step in price.steps:
        lines += _row(_prices(step), None, f"  up to {step.up_to:,} tokens")
    return lines


def _prices(price: Price | PriceStep) -> tuple[str, str, str, str]:
    return usd(price.input), usd(price.output), usd(price.cache_read), usd(price.cache_write)


def _row(cells: tuple[str, ...], window: int | None, text: str) -> list[str]:
    """Return a line of the table; a long text continues below itself."""
    window_cell = _short(window) if window else ""
    numbers = "".join(f"{cell:>8}" for cell in (*cells, window_cell))
    first, *others = wrapped_lines(text, WIDTH - len(numbers) - 2)
    below = " " * len(numbers)
    return [f"{numbers}  {first}", *(f"{below}  {line}" for line in others)]


def _short(tokens: int) -> str:
    """`131k`, `1M`."""
    if tokens < 10_000:
        return f"{tokens:,}"
    if tokens < 1_000_000:
        return f"{tokens / 1_000:.0f}k"
    return f"{tokens / 1_000_000:.2g}M"
