"""`ava models`: which model each tier means here, what it costs, and what the providers have."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from ava_server.cli.app import heading
from ava_server.cli.root import has_log
from ava_server.cli.terminal import say, say_json
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import AvaError, BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ava_server.models.listing import ModelCatalog, Offer, TierMeaning
    from ava_server.models.selection import ModelSettings


@dataclass(frozen=True)
class Shelf:
    """The models of a provider that were asked for.

    Attributes:
        seller: The provider.
        offers: Its models.
        problem: Why there may be more than these, or none.
        whole: All that it has was asked for, and not only what serves tiers or is named in the settings.
    """

    seller: ModelCatalog
    offers: Sequence[Offer]
    problem: str = ""
    whole: bool = False


def register(app: typer.Typer) -> None:
    """Add `ava models` to the app."""
    app.command("models", short_help="Models with prices, and which tier each serves.")(models_command)


def models_command(
    provider: Annotated[
        str | None,
        typer.Argument(metavar="PROVIDER", help="All that this provider has; without it, those that are used here."),
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", metavar="WORD", help="Only models with this in their id.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show which model each tier means here and what it costs, and the models of the configured providers.

    Prices are in USD per million tokens. Nobody is asked but an endpoint whose models no table knows, and that only
    with PROVIDER or --search.
    """
    from ava_server.cli.models_screen import as_facts, screen
    from ava_server.config.credentials import model_settings
    from ava_server.config.settings import load_settings
    from ava_server.models.listing import tier_meanings

    has_log(find_data_root())
    settings = load_settings()
    models = model_settings(settings)
    tiers = tier_meanings(models, settings)
    shelves = anyio.run(_shelves, models, tiers, provider, search)
    if as_json:
        say_json({"data_root": str(settings.data_root), **as_facts(tiers, shelves, advice)})
        return
    heading(settings.paths)
    say("\n".join(screen(tiers, shelves, advice, search)))


def advice(error: AvaError) -> str:
    """Return what to do where a tier's model cannot be had: give a key, or correct what the text names."""
    from ava_server.hosts.launching import key_advice

    return key_advice(error.needs_key, None) if error.needs_key else ""


async def _shelves(
    models: ModelSettings, tiers: Sequence[TierMeaning], provider: str | None, search: str | None
) -> list[Shelf]:
    """Return the providers that were asked for with their models.

    Raises:
        BadInput: There is no such provider.
        ConfigError: A provider's name cannot be one.
    """
    from ava_server.models.clients import ClientPool
    from ava_server.models.listing import sellers

    known = sellers(models)
    if provider is not None:
        wanted = [_named(provider.strip(), known)]
    else:
        wanted = [seller for seller in known.values() if seller.configured]
        if search is not None:
            wanted = wanted or list(known.values())  # to choose by, before there is a key
    everything = provider is not None or search is not None
    found: dict[str, Shelf] = {}

    async def look(seller: ModelCatalog) -> None:
        found[seller.name] = await _shelf(seller, models, tiers, everything, clients)

    async with ClientPool() as clients, anyio.create_task_group() as tasks:
        for seller in wanted:
            tasks.start_soon(look, seller)
    return [_searched(found[seller.name], search) for seller in wanted]


def _named(provider: str, known: dict[str, ModelCatalog]) -> ModelCatalog:
    if provider in known:
        return known[provider]
    alike = {name.lower().replace("_", "-"): name for name in known}
    near = difflib.get_close_matches(provider.lower().replace("_", "-"), alike, n=1)
    hint = f" Did you mean {alike[near[0]]}?" if near else ""
    raise BadInput(
        f"There is no provider {provider[:60]!r}.{hint} Known: {', '.join(known)}. One of your own needs"
        " [providers.NAME] with its base_url in config.toml."
    )


async def _shelf(
    seller: ModelCatalog, models: ModelSettings, tiers: Sequence[TierMeaning], everything: bool, clients: Any
) -> Shelf:
    from ava_server.models.listing import ask_endpoint, named_ids, offers, table_ids

    ids, problem = named_ids(seller, models, tiers), ""
    if everything and seller.in_table:
        ids += table_ids(seller)
    elif everything:
        try:
            ids += await ask_endpoint(seller, clients)
        except AvaError as error:
            problem = f"{error} {getattr(error, 'what_to_do', '')}".strip()
    return Shelf(seller, offers(seller, dict.fromkeys(ids), models, tiers), problem, everything)


def _searched(shelf: Shelf, search: str | None) -> Shelf:
    word = (search or "").strip().lower()
    kept = [offer for offer in shelf.offers if word in offer.model_id.lower()]
    return Shelf(shelf.seller, kept, shelf.problem, shelf.whole)
