"""`ava key`: store, list and remove the keys of providers. No value is ever shown."""

from __future__ import annotations

import difflib
import json
import os
from typing import Annotated

import typer

from ava_server.cli.app import heading
from ava_server.cli.hidden import NameAlone, read_value
from ava_server.cli.root import has_log
from ava_server.cli.terminal import say
from ava_server.config.keys import (
    SEARCHES,
    WELL_KNOWN,
    find_key,
    list_keys,
    may_be_key,
    provider_name,
    read_keys,
    remove_key,
    set_key,
)
from ava_server.core.data_root import DataRoot, find_data_root
from ava_server.core.errors import BadInput

Provider = Annotated[
    str,
    typer.Argument(
        metavar="PROVIDER",
        help=(
            f"{' or '.join(name for name in WELL_KNOWN if name not in SEARCHES)} for models,"
            f" {' or '.join(name for name in WELL_KNOWN if name in SEARCHES)} for web search, or a NAME that has a"
            " [providers.NAME] in config.toml."
        ),
    ),
]
Stored = Annotated[str, typer.Argument(metavar="PROVIDER", help="A name that `ava key list` shows.")]
_ASKED_FOR = (
    "The key itself is asked for, or piped in; one that was typed into the command stands in the shell's history."
)


class _ProviderAlone(NameAlone):
    whose = "provider"
    asked_for = _ASKED_FOR


def register(app: typer.Typer) -> None:
    """Add `ava key` to the app."""
    keys = typer.Typer(help="Keys of model and search providers.", no_args_is_help=True)
    short = "Store a key: asked for without echo, or read from a pipe."
    keys.command("set", cls=_ProviderAlone, short_help=short)(set_command)
    keys.command("list", short_help="List whose keys there are, never the keys.")(list_command)
    keys.command("remove", cls=_ProviderAlone)(remove_command)
    app.add_typer(keys, name="key")


def set_command(provider: Provider) -> None:
    """Store a key: asked for without echo, or read as one line from a pipe.

    The name is checked first: one that is not known needs its [providers.NAME] in config.toml.
    """
    name = provider_name(provider)
    root = find_data_root()
    has_log(root)
    if name not in WELL_KNOWN and name not in _configured(root):
        if may_be_key(provider):
            raise BadInput(f"What was given is no provider that Ava knows, and may be a key. {_ASKED_FOR}")
        near = difflib.get_close_matches(name, list(WELL_KNOWN), n=1)
        hint = f"Did you mean {near[0]}? If not, give" if near else "Give"
        raise BadInput(
            f"{name} is no provider that Ava knows. {hint} it its address first: base_url under [providers.{name}]"
            f" in {root.config}"
        )
    heading(root)
    value = read_value(f"Key for {name}", "key", f"ava key set {name}")
    root.create()
    set_key(name, value, root.keys)
    say(f"Stored the key for {name} in {root.keys}.")
    key = find_key(name, root.keys)
    if key is not None and key.where != str(root.keys):
        say(f"{key.where} is set in this environment as well, and goes before it.")
    if name in SEARCHES:
        say(_searches_now(root))


def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """List whose keys there are and where each comes from, never the keys."""
    root = find_data_root()
    has_log(root)
    keys = list_keys(root.keys)
    configured = _configured(root) if any(_needs_entry(key.provider) for key in keys) else frozenset[str]()
    unused = {key.provider: _why_unused(key.provider, configured) for key in keys}
    if as_json:
        entries = [{"provider": key.provider, "from": key.where, "used": not unused[key.provider]} for key in keys]
        typer.echo(json.dumps({"data_root": str(root.path), "keys": entries}, ensure_ascii=False))
        return
    heading(root)
    width = max((len(key.provider) for key in keys), default=0)
    for key in keys:
        why = unused[key.provider]
        say(f"{key.provider:<{width}}  {key.where}{f' ({why})' if why else ''}")
    if not keys:
        say("No keys. Store one with `ava key set openrouter`.")


def remove_command(provider: Stored) -> None:
    """Remove a stored key."""
    name = provider_name(provider)
    root = find_data_root()
    if not remove_key(name, root.keys):
        key = find_key(name, root.keys, os.environ)
        where = f" It comes from {key.where}: unset it there." if key else " `ava key list` shows what there is."
        whose = "a provider of this name" if may_be_key(provider) else name
        raise BadInput(f"There is no key for {whose} in {root.keys}.{where}")
    heading(root)
    say(f"Removed the key for {name} from {root.keys}.")


def _searches_now(root: DataRoot) -> str:
    """Say who searches the web from now on, and what that costs."""
    from ava_server.config.search_engines import engine_of, search_cost
    from ava_server.config.settings import load_settings

    engine = engine_of(load_settings(root.path).search, read_keys(root.keys))
    if engine is None:
        return "No web search is set up all the same: search.engine names another one. `ava doctor` says more."
    return f"Subagents of roles with web_search now search by {engine.title}: {search_cost(engine.cost_micros)}."


def _configured(root: DataRoot) -> frozenset[str]:
    """Return the names of the providers that have an entry in the settings, as keys are stored under them."""
    from ava_server.config.settings import load_settings

    return frozenset(provider_name(name) for name in load_settings(root.path).providers)


def _needs_entry(provider: str) -> bool:
    """Tell whether a provider's key is of use only with an entry in the settings."""
    return provider not in WELL_KNOWN


def _why_unused(provider: str, configured: frozenset[str]) -> str:
    """Return why nothing uses a provider's key; empty where something does."""
    if provider in configured or not _needs_entry(provider):
        return ""
    return f"not used: config.toml has no [providers.{provider}]"
