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
from ava_server.models.clients import ClientPool
from ava_server.models.listing import ModelCatalog, Offer, ResolvedModel, resolve_models
from ava_server.models.prices import Price, PriceStep, per_call, price_json, price_lines, usd
from ava_server.models.providers import PROVIDERS
from ava_server.models.selection import SET_A_MODEL, ModelSettings

WIDTH = 80
_MARGIN = 10
_HEAD = ("in", "out", "read", "write", "window")


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
    known = listing.model_catalogs(models)
    if provider is not None:
        wanted = [_find_provider(provider.strip(), known)]
    else:
        wanted = [seller for seller in known.values() if seller.configured]
        if search is not None:
            wanted = wanted or list(known.values())  # to choose from before there is a key
    whole = provider is not None or search is not None
    found: dict[str, ProviderModels] = {}

    word = (search or "").strip().lower()

    async def read(seller: ModelCatalog) -> None:
        ids, problem = listing.named_ids(seller, models, tiers), ""
        if whole and seller.in_table:
            ids += listing.table_ids(seller)
        elif whole:
            try:
                ids += await listing.ask_endpoint(seller, clients)
            except AvaError as error:
                problem = with_advice(str(error), getattr(error, "what_to_do", ""))
        every = listing.offers(seller, dict.fromkeys(ids), models, tiers)
        if whole and (windows := await listing.loaded_windows(seller, clients)):
            every = [_loaded(offer, windows) for offer in every]
        shown = [offer for offer in every if word in offer.model_id.lower()]
        found[seller.name] = ProviderModels(seller, shown, problem)

    async with ClientPool() as clients, anyio.create_task_group() as tasks:
        for seller in wanted:
            tasks.start_soon(read, seller)
    return [found[seller.name] for seller in wanted]


def _loaded(offer: Offer, windows: Mapping[str, int]) -> Offer:
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
        shown = f"{ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''}"
        text = (
            f"{name} answers on this machine, at {PROVIDERS[name].base_url}, with {shown}. Nothing uses it. To use it,"
            f" add the line [providers.{name}] to config.toml, and name a model as {name}:{ids[0]}."
        )
        lines += ["", *wrapped_lines(text, WIDTH)]
    return lines


def _find_provider(provider: str, known: dict[str, ModelCatalog]) -> ModelCatalog:
    if provider in known:
        return known[provider]
    if provider in PROVIDERS and PROVIDERS[provider].models:
        own = PROVIDERS[provider].kind == "own_address"
        needs = f"with base_url, such as {PROVIDERS[provider].base_url}" if own else "an empty table is enough"
        raise BadInput(f"{provider} needs [providers.{provider}] in config.toml: {needs}.")
    names = [*known, *(name for name, row in PROVIDERS.items() if row.models and name not in known)]
    meant = suggestion(provider, known) or suggestion(provider, names)
    raise BadInput(
        f"There is no provider {provider[:60]!r}.{meant} Known: {', '.join(names)}. Your own"
        " needs [providers.NAME] with its base_url in config.toml."
    )


def _advice(error: AvaError | None) -> str:
    """Return how to set the key if that is what a tier's model lacks."""
    return key_advice(error.needs_key, None) if error is not None and error.needs_key else ""


def models_json(tiers: Sequence[ResolvedModel], shown: Sequence[ProviderModels]) -> dict[str, Any]:
    return {
        "tiers": [{"tier": meant.wanted, **listing.model_json(meant, _advice(meant.error))} for meant in tiers],
        "providers": [
            {
                "provider": one.seller.name,
                "base_url": one.seller.base_url,
                "configured": one.seller.configured,
                "key": bool(one.seller.has_key),
                "models": [
                    {
                        "id": offer.model_id,
                        "model": f"{one.seller.name}:{offer.model_id}",
                        "tiers": list(offer.tiers),
                        "price": price_json(offer.price) if offer.price else None,
                        "window": offer.price.window if offer.price else None,
                        "problem": offer.unpriced or None,
                    }
                    for offer in one.offers
                ],
                "problem": one.problem or None,
            }
            for one in shown
        ],
    }


# -- the screen, in 80 columns ----------------------------------------------------------------------------------------


def models_screen(
    tiers: Sequence[ResolvedModel], shown: Sequence[ProviderModels], search: str | None, *, whole: bool
) -> list[str]:
    lines = ["", "Tiers, as roles ask for them (USD per million tokens):"]
    same: dict[str, tuple[list[str], ResolvedModel]] = {}
    for meant in tiers:
        key = f"{meant.choice.name if meant.choice else meant.error} {meant.said_by}"
        same.setdefault(key, ([], meant))[0].append(meant.wanted)
    for names, meant in same.values():
        lines += _tier(", ".join(names), meant)
    if any(meant.said_by == listing.NOBODY for meant in tiers):
        lines += ["", *wrapped_lines(SET_A_MODEL, WIDTH), *wrapped_lines("Prices: `ava models openrouter`.", WIDTH)]
    for one in shown:
        lines += ["", *_provider(one, search, whole=whole)]
    return lines


def _tier(names: str, meant: ResolvedModel) -> list[str]:
    if meant.choice is None:
        about = with_advice(f"cannot be used: {meant.error}", _advice(meant.error)).split("\n")
    else:
        price = meant.choice.price
        window = [f"window {price.window:,} tokens"] if price.window else []
        source = [] if price.free else [f"price: {price.source}"]
        details = [text for text in ("; ".join((*window, *source)),) if text]
        about = [model_about(meant.choice.name), *price_lines(price), *details, f"chosen by {meant.said_by}"]
    lines = [line for one in about for line in wrapped_lines(one, WIDTH - _MARGIN)]
    first = [f"{names:<{_MARGIN}}{lines.pop(0)}"] if len(names) < _MARGIN else [names]
    return [*first, *(f"{'':{_MARGIN}}{line}" for line in lines)]


def _provider(one: ProviderModels, search: str | None, *, whole: bool) -> list[str]:
    seller = one.seller
    state = "with a key" if seller.has_key else "without a key" if seller.configured else "no key yet"
    lines = wrapped_lines(f"{seller.name}: {seller.base_url}, {state}", WIDTH)
    if not seller.configured:
        lines += wrapped_lines(f"  To use it: `ava key set {seller.name}`.", WIDTH)
    lines += _offers(one.offers) if one.offers else wrapped_lines(f"  {_why_none(search, whole)}", WIDTH)
    lines += wrapped_lines(f"  {one.problem}", WIDTH) if one.problem else []
    if unpriced := [offer.unpriced for offer in one.offers if offer.price is None]:
        head = f"{len(unpriced)} models have no price. The first: " if len(unpriced) > 1 else ""
        lines += [line for part in f"{head}{unpriced[0]}".split("\n") for line in wrapped_lines(f"  {part}", WIDTH)]
    if not whole:
        lines += wrapped_lines(f"  All its models: `ava models {seller.name}`.", WIDTH)
    return lines


def _why_none(search: str | None, whole: bool) -> str:
    if search is not None:
        return f"No known model contains {search.strip()!r}."
    return "No models are known." if whole else "No tier uses its models."


def _offers(offers: Sequence[Offer]) -> list[str]:
    head = f"{''.join(f'{word:>8}' for word in _HEAD)}  model"
    return [head, *(line for offer in offers for line in _offer(offer))]


def _offer(offer: Offer) -> list[str]:
    price = offer.price
    shown = f"{offer.model_id} ({', '.join(offer.tiers)})" if offer.tiers else offer.model_id
    if price is None or price.free:
        return _row(("unpriced" if price is None else "free", "", "", ""), price.window if price else None, shown)
    notes = [
        *(["your price"] if price.source.startswith("settings ") else []),
        *([per_call(price)] if price.per_request else []),
        *([f"above {price.steps[-1].up_to:,} tokens"] if price.steps else []),
    ]
    lines = _row(_prices(price), price.window, ", ".join((shown, *notes)))
    for step in price.steps:
        lines += _row(_prices(step), None, f"  up to {step.up_to:,} tokens")
    return lines


def _prices(price: Price | PriceStep) -> tuple[str, str, str, str]:
    return usd(price.input), usd(price.output), usd(price.cache_read), usd(price.cache_write)


def _row(cells: tuple[str, ...], window: int | None, text: str) -> list[str]:
    """Return a line of the table; a long text continues below itself."""
    numbers = "".join(f"{cell:>8}" for cell in (*cells, _short(window) if window else ""))
    first, *others = wrapped_lines(text, WIDTH - len(numbers) - 2)
    return [f"{numbers}  {first}", *(f"{'':{len(numbers)}}  {line}" for line in others)]


def _short(tokens: int) -> str:
    """`131k`, `1M`."""
    if tokens < 10_000:
        return f"{tokens:,}"
    return f"{tokens / 1_000_000:.2g}M" if tokens >= 1_000_000 else f"{tokens / 1_000:.0f}k"


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
    shown = run_async(read_providers, models, tiers, provider, search)
    whole = provider is not None or search is not None
    here = {} if whole else run_async(read_servers_here, models)
    answer = {**models_json(tiers, shown), "on_this_machine": here}
    present(root, as_json, answer, [*models_screen(tiers, shown, search, whole=whole), *servers_lines(here)])
