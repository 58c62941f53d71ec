"""`ava key`: store, list and remove the keys of providers. No value is ever shown."""

from __future__ import annotations

import difflib
import json
import os
import sys
from typing import Annotated

import typer

from ava_server.cli.app import heading
from ava_server.data_root import find_data_root
from ava_server.errors import BadInput
from ava_server.keys import WELL_KNOWN, find_key, list_keys, provider_name, remove_key, set_key

LONGEST_LINE = 16_384

Provider = Annotated[
    str, typer.Argument(metavar="PROVIDER", help=f"{', '.join(WELL_KNOWN)}, or one of your [providers.NAME].")
]


def register(app: typer.Typer) -> None:
    """Add `ava key` to the app."""
    keys = typer.Typer(help="Keys of model and search providers.", no_args_is_help=True)
    keys.command("set")(set_command)
    keys.command("list")(list_command)
    keys.command("remove")(remove_command)
    app.add_typer(keys, name="key")


def set_command(provider: Provider) -> None:
    """Store a key: asked for without echo, or read as one line from a pipe."""
    name = provider_name(provider)
    root = find_data_root()
    heading(root)
    value = _ask(name) if sys.stdin.isatty() else sys.stdin.readline(LONGEST_LINE)
    root.create()
    set_key(name, value, root.keys)
    typer.echo(f"Stored the key for {name} in {root.keys}.")
    key = find_key(name, root.keys)
    if key is not None and key.where != str(root.keys):
        typer.echo(f"{key.where} is set in this environment as well, and goes before it.")
    if name not in WELL_KNOWN:
        near = difflib.get_close_matches(name, WELL_KNOWN, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        typer.echo(f"No provider is known by that name; it is for [providers.{name}] in {root.config}.{hint}")


def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """List whose keys there are and where each comes from, never the keys."""
    root = find_data_root()
    keys = list_keys(root.keys)
    if as_json:
        entries = [{"provider": key.provider, "from": key.where} for key in keys]
        typer.echo(json.dumps({"data_root": str(root.path), "keys": entries}, ensure_ascii=False))
        return
    heading(root)
    width = max((len(key.provider) for key in keys), default=0)
    for key in keys:
        typer.echo(f"{key.provider:<{width}}  {key.where}")
    if not keys:
        typer.echo("No keys. Store one with `ava key set openrouter`.")


def remove_command(provider: Provider) -> None:
    """Remove a stored key."""
    name = provider_name(provider)
    root = find_data_root()
    if not remove_key(name, root.keys):
        key = find_key(name, root.keys, os.environ)
        where = f" It comes from {key.where}: unset it there." if key else " `ava key list` shows what there is."
        raise BadInput(f"There is no key for {name} in {root.keys}.{where}")
    heading(root)
    typer.echo(f"Removed the key for {name} from {root.keys}.")


def _ask(name: str) -> str:
    """Ask for a key on the terminal, and not at all where it would be shown."""
    import getpass
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass(f"Key for {name} (not shown): ")
    except EOFError:
        raise BadInput("No key was given; nothing is stored.") from None
    except getpass.GetPassWarning:
        raise BadInput(f"This terminal would show the key. Pipe it in instead: ava key set {name} < FILE") from None
