"""`ava models`: the model of each tier, what it costs, and the models of the providers."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from ava_server.cli.completion import providers
from ava_server.cli.log_access import checked_root, read_settings
from ava_server.cli.options import Json
from ava_server.cli.terminal import present


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
    only with PROVIDER or --search.
    """
    from ava_server.cli.model_screens import models_json, models_screen, read_providers
    from ava_server.config.credentials import model_settings
    from ava_server.models.listing import resolve_tiers

    root = checked_root(show=False)
    settings = read_settings()
    models = model_settings(settings)
    tiers = resolve_tiers(models, settings.where)
    shown = anyio.run(read_providers, models, tiers, provider, search)
    whole = provider is not None or search is not None
    present(root, as_json, models_json(tiers, shown), models_screen(tiers, shown, search, whole=whole))
