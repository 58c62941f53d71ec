"""`ava key`, `ava secret` and `ava pin`: store, list and remove keys, secrets and the PIN. No value is ever shown."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated

import typer

from ava_server.budget.user_limits import policy_in_force
from ava_server.cli.app import in_event_loop
from ava_server.cli.log_access import checked_root, read_settings, record_setting
from ava_server.cli.options import Json, providers
from ava_server.cli.secret_input import NameOnlyCommand, ask_hidden, ask_twice, choose_pin, read_secret
from ava_server.cli.terminal import aligned, heading, present, say
from ava_server.config import keys
from ava_server.config.keys import DELIVERS, SEARCHES, TAKES_KEYS, WELL_KNOWN, provider_name, set_variables, why_unused
from ava_server.config.pin import SET_ALREADY, PinFile
from ava_server.config.secrets import Secret, hosts_of, read_secrets, remove_secret, secret_name, set_secret
from ava_server.core.data_root import DataRoot, find_data_root, os_user
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import nearest
from ava_server.core.names import quote_names
from ava_server.models.providers import PROVIDERS

_ASKED = "asked for without echo, or read from a pipe."
_MODEL_PROVIDERS = " or ".join(name for name in PROVIDERS if name in TAKES_KEYS - SEARCHES)
_SEARCH_PROVIDERS = " or ".join(name for name in WELL_KNOWN if name in SEARCHES)
_ENGINES = " or ".join(sorted(DELIVERS))
_Provider = Annotated[
    str,
    typer.Argument(
        metavar="PROVIDER",
        help=f"{_MODEL_PROVIDERS} for models, {_SEARCH_PROVIDERS} for web search, {_ENGINES} for the engine"
        " that delivers runs, or a NAME that has a [providers.NAME] in config.toml.",
        autocompletion=providers,
    ),
]
_StoredProvider = Annotated[
    str, typer.Argument(metavar="PROVIDER", help="A name that `ava key list` shows.", autocompletion=providers)
]
_SecretName = Annotated[
    str, typer.Argument(metavar="NAME", help="As role files and {{secret:NAME}} write it, e.g. TICKETS_TOKEN.")
]


key_command = typer.Typer(no_args_is_help=True)
secret_command = typer.Typer(no_args_is_help=True)
pin_command = typer.Typer(no_args_is_help=True)


class _ProviderOnlyCommand(NameOnlyCommand):
    whose = "provider"
    advice = "The key is asked for, or piped in; a key typed into the command would stay in the shell's history."


# -- ava key ----------------------------------------------------------------------------------------------------------


@key_command.command("set", cls=_ProviderOnlyCommand, short_help=f"Store a key: {_ASKED}")
def set_key_command(provider: _Provider) -> None:
    """Store a key: asked for without echo, or read as one line from a pipe.

    The name is checked first: an unknown one needs its [providers.NAME] in config.toml.
    """
    name = provider_name(provider)
    root = checked_root(show=False)
    if name not in TAKES_KEYS | DELIVERS and name not in _configured_providers(root):
        if keys.may_be_key(provider):
            raise BadInput(f"This is not a provider that Ava knows, and may be a key. {_ProviderOnlyCommand.advice}")
        raise BadInput(_unknown_provider(name, root))
    heading(root)
    value = read_secret(f"Key for {name}", "key", f"ava key set {name}")
    root.create()
    keys.set_key(name, value, root.keys)
    say(f"Stored the key for {name} in {root.keys}.")
    key = keys.find_key(name, root.keys)
    if key is not None and key.where != str(root.keys):
        say(f"{key.where} is also set in this environment, and takes precedence.")
    if name in SEARCHES:
        say(_search_in_use(root))


def _unknown_provider(name: str, root: DataRoot) -> str:
    near = nearest(name, TAKES_KEYS)
    give = f"Did you mean {near}? If not, give" if near else "Give"
    return (
        f"Ava does not know the provider {name}. {give} its address first: base_url under [providers.{name}]"
        f" in {root.config}"
    )


@key_command.command("list", short_help="List which keys are stored, never the keys.")
def list_keys_command(as_json: Json = False) -> None:
    """List which providers have a key and where it comes from, never the keys."""
    root = checked_root(show=False)
    addresses = _addresses(root)
    known = keys.list_keys(root.keys, addresses=addresses)
    unused = {key.provider for key in known} - {*WELL_KNOWN}
    if unused:
        unused -= _configured_providers(root)
    entries: list[dict[str, object]] = []
    rows: list[tuple[str, str]] = []
    for key in known:
        used = key.provider not in unused
        entries.append({"provider": key.provider, "from": key.where, "used": used})
        note = "" if used else _unused_note(key.provider)
        rows.append((key.provider, key.where + note))
    for name in WELL_KNOWN:
        why = why_unused(name, os.environ, addresses.get(name))
        if why:
            entries.append({"provider": name, "from": set_variables(name, os.environ)[0], "used": False})
            rows.append((name, why))
    lines = aligned(rows) or ["No keys. Store one with `ava key set openrouter`."]
    present(root, as_json, {"keys": entries}, lines)


def _unused_note(name: str) -> str:
    if name in DELIVERS:
        return f' (not used: config.toml has no engine = "{name}" under [delivery])'
    return f" (not used: config.toml has no [providers.{name}])"


@key_command.command("remove", cls=_ProviderOnlyCommand)
def remove_key_command(provider: _StoredProvider) -> None:
    """Remove a stored key."""
    name = provider_name(provider)
    root = find_data_root()
    if not keys.remove_key(name, root.keys):
        hint = "`ava key list` shows the stored ones."
        key = keys.find_key(name, root.keys, os.environ)
        if key is not None:
            hint = f"It comes from {key.where}: unset it there."
        shown_name = name
        if keys.may_be_key(provider):
            shown_name = "a provider of this name"
        raise BadInput(f"There is no key for {shown_name} in {root.keys}. {hint}")
    heading(root)
    say(f"Removed the key for {name} from {root.keys}.")


def _search_in_use(root: DataRoot) -> str:
    from ava_server.config.search_engine import engine_of, search_cost

    engine = engine_of(read_settings(root).search, keys.read_keys(root.keys))
    if engine is None:
        return "Web search does not use it: search.engine names another engine, or none. `ava doctor` says more."
    return f"Subagents of roles with web_search now search by {engine.title}: {search_cost(engine.cost_micros)}."


def _addresses(root: DataRoot) -> dict[str, str]:
    """Return the addresses of providers in config.toml, as far as it can be read."""
    from ava_server.config.credentials import provider_addresses

    with contextlib.suppress(AvaError):
        return provider_addresses(read_settings(root))
    return {}


def _configured_providers(root: DataRoot) -> frozenset[str]:
    """Return providers, and the engine that delivers runs, by the names under which keys are stored."""
    settings = read_settings(root)
    return frozenset({settings.delivery.engine, *map(provider_name, settings.providers)})


# -- ava secret -------------------------------------------------------------------------------------------------------


@secret_command.command("set", cls=NameOnlyCommand, short_help=f"Store a secret: {_ASKED}")
def set_secret_command(
    name: _SecretName,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="HOST", help="A host that it may be sent to, e.g. api.example.com; repeatable."),
    ] = None,
) -> None:
    """Store a secret: asked for without echo, or read as one line from a pipe.

    A role whose file lists the name under `secrets` may write {{secret:NAME}} in a header, or in the query, of
    http_get; the value replaces it on the way to one of the hosts, and nowhere else. Setting it again without --for
    keeps its hosts.
    """
    name = secret_name(name)
    bound = None
    if hosts:
        bound = hosts_of(hosts)  # an error comes before the question
    root = checked_root(show=False)
    read_secrets(root.secrets_file)
    heading(root)
    value = read_secret(f"Value of {name}", "value", f"ava secret set {name}")
    root.create()
    secret = set_secret(name, value, bound, root.secrets_file)
    say(f"Stored {name} in {root.secrets_file}.")
    if not secret.hosts:
        say(f"It is hidden in all output and sent nowhere: ava secret set {name} --for HOST names a host.")
        return
    say(f"It is sent only to {', '.join(secret.hosts)}, over https.")
    if not _roles_with_secrets(root).get(name):
        say(f"No role may use it yet. In a role file of yours in {root.roles}: secrets: [{name}]")


@secret_command.command("list", short_help="List names, hosts and roles, never values.")
def list_secrets_command(as_json: Json = False) -> None:
    """List names, when each was set, for which hosts, and which roles list it; never the values."""
    root = checked_root(show=False)
    secrets = read_secrets(root.secrets_file)
    roles = _roles_with_secrets(root)
    entries: list[dict[str, object]] = []
    rows: list[tuple[str, str]] = []
    for name in sorted({*secrets, *roles}):
        secret, its_roles = secrets.get(name), roles.get(name, [])
        stored: dict[str, object] = {}
        if secret is not None:
            stored = {"set": secret.set_at, "for": list(secret.hosts)}
        entries.append({"name": name, "stored": secret is not None, **stored, "roles": its_roles})
        rows.append((name, _describe_secret(secret, its_roles)))
    lines = aligned(rows) or ["No secrets. Store one with `ava secret set NAME --for HOST`."]
    present(root, as_json, {"secrets": entries}, lines)


@secret_command.command("remove", cls=NameOnlyCommand)
def remove_secret_command(name: _SecretName) -> None:
    """Remove a stored secret."""
    name = secret_name(name)
    root = checked_root(show=False)
    if not remove_secret(name, root.secrets_file):
        raise BadInput(f"There is no secret {name} in {root.secrets_file}. `ava secret list` shows the stored ones.")
    heading(root)
    say(f"Removed {name} from {root.secrets_file}. A running server hides its value until it ends.")


def _roles_with_secrets(root: DataRoot) -> dict[str, list[str]]:
    from ava_server.config.role_folders import places_here

    roles: dict[str, list[str]] = {}
    settings = None
    with contextlib.suppress(AvaError):  # wrong settings do not keep a secret from being stored
        settings = read_settings(root)
    for role in places_here(root, settings).load().roles:
        for name in role.secrets:
            roles.setdefault(name, []).append(role.name)
    return roles


def _describe_secret(secret: Secret | None, roles: list[str]) -> str:
    used_by = f"roles: {quote_names(roles, len(roles))}" if roles else "no role lists it"
    if secret is None:
        return f"not stored; {used_by}"
    hosts = ", ".join(secret.hosts) or "no host"
    return f"set {secret.set_at or 'some time'}; for {hosts}; {used_by}"


# -- ava pin ----------------------------------------------------------------------------------------------------------


@pin_command.command("set", short_help="Set a PIN: from then on nothing starts without it.")
@in_event_loop
async def set_pin_command() -> None:
    """Set the approval PIN, asked for twice at the terminal.

    From then on the policy is `human`: only a person who knows the PIN starts anything, with `ava approve` or `ava
    run`, whatever config.toml or the environment say.
    """
    root = checked_root("ava pin")
    file = PinFile(root.approval_file)
    if file.is_set:  # an error comes before any question
        raise Refused(SET_ALREADY)
    await choose_pin(file)


@pin_command.command("change", short_help="Replace the PIN.")
@in_event_loop
async def change_pin_command() -> None:
    """Replace the approval PIN: the old one is asked for, then the new one twice."""
    root, file = _existing_pin()
    old = await ask_hidden("Current approval PIN")
    file.change(old, await ask_twice())
    await record_setting(root, "approval_pin", "set", "changed")
    say("The PIN is changed.")


@pin_command.command("remove", short_help="Remove the PIN: config.toml decides again who approves.")
@in_event_loop
async def remove_pin_command() -> None:
    """Remove the approval PIN, which is asked for: from then on config.toml decides who approves."""
    root, file = _existing_pin()
    settings = read_settings(root)  # a wrong setting is an error before anything is removed
    file.remove(await ask_hidden("Approval PIN"))
    await record_setting(root, "approval_pin", "set", None)
    policy, why = policy_in_force(settings, os_user())
    if policy == "human":
        why += ", so the next approval asks you to choose a new PIN"
    say(f"The PIN is removed. config.toml decides again who approves: {why}.")


def _existing_pin() -> tuple[DataRoot, PinFile]:
    """Raises Refused, before any question: there is no PIN."""
    root = checked_root("ava pin")
    file = PinFile(root.approval_file)
    if not file.is_set:
        raise Refused("There is no approval PIN. Set one with `ava pin set`.")
    return root, file
