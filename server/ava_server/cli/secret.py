"""`ava secret`: store, list and remove secrets for tool calls. No value is ever shown."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated

import typer

from ava_server.cli.app import heading
from ava_server.cli.hidden import NameAlone, read_value
from ava_server.cli.root import has_log
from ava_server.cli.terminal import say
from ava_server.config.secrets import Secret, hosts_of, read_secrets, remove_secret, secret_name, set_secret
from ava_server.core.data_root import DataRoot, find_data_root
from ava_server.core.errors import AvaError, BadInput

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="As role files and {{secret:NAME}} write it, e.g. TICKETS_TOKEN.")
]
For = Annotated[
    list[str] | None,
    typer.Option(
        "--for",
        metavar="HOST",
        help="A host that it may be sent to, e.g. api.example.com; more than once for several. No other gets it.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add `ava secret` to the app."""
    secrets = typer.Typer(help="Secrets that tool calls of roles may send.", no_args_is_help=True)
    short = "Store a secret: asked for without echo, or read from a pipe."
    secrets.command("set", cls=NameAlone, short_help=short)(set_command)
    secrets.command("list", short_help="List names, hosts and the roles that use them, never values.")(list_command)
    secrets.command("remove", cls=NameAlone)(remove_command)
    app.add_typer(secrets, name="secret")


def set_command(name: Name, hosts: For = None) -> None:
    """Store a secret: asked for without echo, or read as one line from a pipe.

    A role whose file lists the name under `secrets` may write {{secret:NAME}} in a header, or in the query, of
    http_get; it is replaced on the way to one of the hosts, and nowhere else. Setting it again without --for keeps
    its hosts.
    """
    name = secret_name(name)
    bound = hosts_of(hosts) if hosts else None  # a mistake is told before the value is asked for
    root = find_data_root()
    has_log(root)
    read_secrets(root.secrets_file)
    heading(root)
    value = read_value(f"Value of {name}", "value", f"ava secret set {name}")
    root.create()
    secret = set_secret(name, value, bound, root.secrets_file)
    say(f"Stored {name} in {root.secrets_file}.")
    if secret.hosts:
        say(f"It is sent to {', '.join(secret.hosts)} alone, over https.")
    else:
        say(f"It is hidden wherever it turns up, and sent nowhere: ava secret set {name} --for HOST names a host.")
    users = _users(root).get(name, [])
    if secret.hosts and not users:
        say(f"No role may use it yet. In a role file of yours in {root.roles}: secrets: [{name}]")


def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """List names, since when, for which hosts, and which roles list them; never the values."""
    root = find_data_root()
    has_log(root)
    secrets = read_secrets(root.secrets_file)
    users = _users(root)
    names = sorted({*secrets, *users})
    if as_json:
        entries = [_entry(name, secrets.get(name), users.get(name, [])) for name in names]
        typer.echo(json.dumps({"data_root": str(root.path), "secrets": entries}, ensure_ascii=False))
        return
    heading(root)
    width = max((len(name) for name in names), default=0)
    for name in names:
        say(f"{name:<{width}}  {_line(secrets.get(name), users.get(name, []))}")
    if not names:
        say("No secrets. Store one with `ava secret set NAME --for HOST`.")


def remove_command(name: Name) -> None:
    """Remove a stored secret."""
    name = secret_name(name)
    root = find_data_root()
    has_log(root)
    if not remove_secret(name, root.secrets_file):
        raise BadInput(f"There is no secret {name} in {root.secrets_file}. `ava secret list` shows what there is.")
    heading(root)
    say(f"Removed {name} from {root.secrets_file}. A server that runs goes on hiding its value until it ends.")


def _users(root: DataRoot) -> dict[str, list[str]]:
    """Return the roles that list each secret."""
    from ava_server.config.role_folders import places_here
    from ava_server.config.settings import load_settings

    users: dict[str, list[str]] = {}
    settings = None
    with contextlib.suppress(AvaError):  # a secret can be stored whatever else is wrong
        settings = load_settings(root.path)
    for role in places_here(root, settings).load().roles:
        for name in role.secrets:
            users.setdefault(name, []).append(role.name)
    return users


def _entry(name: str, secret: Secret | None, roles: list[str]) -> dict[str, object]:
    stored = {"set": secret.set_at, "for": list(secret.hosts)} if secret is not None else {}
    return {"name": name, "stored": secret is not None, **stored, "roles": roles}


def _line(secret: Secret | None, roles: list[str]) -> str:
    used = f"roles: {', '.join(roles)}" if roles else "no role lists it"
    if secret is None:
        return f"not stored; {used}"
    hosts = f"for {', '.join(secret.hosts)}" if secret.hosts else "for no host"
    return f"set {secret.set_at or 'some time'}; {hosts}; {used}"
