"""`ava token` and `ava user`: tokens for `ava serve --http`, and each user's spending, runs and limits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import anyio.to_thread
import typer

from ava_audit.units import format_usd, iso_second, micros_from_cents
from ava_server.cli.log_access import checked_root, open_log, record_setting
from ava_server.cli.options import Json, TokenFile, Url, parse_cents
from ava_server.cli.remote import RemoteServer, chosen_server, connected
from ava_server.cli.secret_input import ask_pin
from ava_server.cli.terminal import aligned, present, say, say_json, write
from ava_server.config import tokens
from ava_server.config.passkeys import Passkeys
from ava_server.config.pin import PinFile
from ava_server.core.data_root import DataRoot, find_data_root
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ava_server.service.users import Removed, UserFacts

T = TypeVar("T", bound="BaseModel")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="A name for it, e.g. the machine that has it.")]
_User = Annotated[str, typer.Argument(metavar="USER", help="The user, as in `ava token create --user`.")]
_Scopes = Annotated[
    list[str],
    typer.Option(
        "--scope",
        metavar="SCOPES",
        help="What the token may do, separated by commas: spawn (propose, confirm, message, cancel), read (one's own"
        " runs, results and log), audit (read those of all users), approve (ava --url URL approve), admin (read,"
        " cancel and resume those of all users, and manage users).",
    ),
]
_Expires = Annotated[
    str | None, typer.Option(metavar="TIME", help="The token's lifetime: 90d, 12h; default: until revoked.")
]
_Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only the token, for a script.")]
_Daily = Annotated[
    str | None, typer.Option(metavar="DOLLARS", help="What the user's runs may cost in a day, e.g. 3.00.")
]
_Running = Annotated[int | None, typer.Option(min=0, help="How many runs may work at the same time.")]
_Spawns = Annotated[int | None, typer.Option(min=0, help="How many may start in an hour without a person's answer.")]
_Approval = Annotated[str | None, typer.Option(metavar="POLICY", help="ask, auto or human.")]
_Workspaces = Annotated[
    list[str] | None,
    typer.Option("-w", "--workspace", metavar="FOLDER", help="A folder for runs over HTTP; repeatable."),
]
_Roles = Annotated[list[str] | None, typer.Option(metavar="ROLE", help="A role for runs over HTTP; repeatable.")]


def register(app: typer.Typer) -> None:
    """Add `ava token` and `ava user` to the app."""
    token = typer.Typer(no_args_is_help=True)
    token.command("create", short_help="Create a token; it is shown once.")(create_command)
    token.command("list", short_help="List names, users, scopes and expiry, never the tokens.")(list_tokens_command)
    token.command("revoke", short_help="Revoke a token, from its next request on.")(revoke_command)
    app.add_typer(token, name="token")
    users = typer.Typer(no_args_is_help=True)
    users.command("list", short_help="List users: spent today, running, and limits.")(list_users_command)
    users.command("add", short_help="Add a user, with a token and limits.")(add_command)
    users.command("limit", short_help="Set what a user may do over HTTP, and spend.")(limit_command)
    users.command("remove", short_help="Revoke a user's tokens, and remove passkeys and limits.")(remove_user_command)
    app.add_typer(users, name="user")


# -- ava token --------------------------------------------------------------------------------------------------------


def create_command(
    name: _Name,
    user: Annotated[str, typer.Option("--user", metavar="USER", help="The user that its requests act for.")],
    scope: _Scopes,
    expires: _Expires = None,
    quiet: _Quiet = False,
) -> None:
    """Create a token for `ava serve --http`. It is shown once, and only its hash is stored.

    With a PIN (policy human) a token of the scope approve requires the PIN: it approves as the PIN does.
    """
    scopes = tokens.scopes_in(scope)
    name, user = tokens.token_name(name), tokens.user_name(user)
    ends_us = tokens.expiry(expires, time.time_ns() // 1000)
    anyio.run(_create, checked_root("ava token create", show=not quiet), name, user, scopes, ends_us, quiet)


def list_tokens_command(as_json: Json = False) -> None:
    """List the tokens' names, users, scopes and expiry; never the tokens."""
    root = checked_root(show=False)
    known = sorted(tokens.read_tokens(root.tokens_file).values(), key=lambda token: token.name)
    now_us = time.time_ns() // 1000
    entries = [
        {"name": one.name, **one.on_record(), "created": iso_second(one.created_us), "expired": one.expired(now_us)}
        for one in known
    ]
    lines = aligned((one.name, f"{one.user}; {', '.join(one.scopes)}; {_lifetime(one, now_us)}") for one in known)
    none = f"No tokens. Create one with `ava token create NAME --user USER --scope {','.join(tokens.SCOPES[:2])}`."
    present(root, as_json, {"tokens": entries}, lines or [none])


def revoke_command(name: _Name) -> None:
    """Revoke a token: its next request is refused, also by a running server."""
    anyio.run(_revoke, checked_root("ava token revoke"), tokens.token_name(name))


async def _create(
    root: DataRoot, name: str, user: str, scopes: tuple[tokens.Scope, ...], ends_us: int | None, quiet: bool
) -> None:
    await _ask_for(root, scopes)
    token, text = await anyio.to_thread.run_sync(tokens.create_token, root.tokens_file, name, user, scopes, ends_us)
    await record_setting(root, f"tokens.{name}", None, token.on_record())
    _show_token(token, text, quiet=quiet)


async def _add(
    root: DataRoot,
    user: str,
    limits: Mapping[str, Any],
    scopes: tuple[tokens.Scope, ...],
    ends_us: int | None,
    quiet: bool,
) -> None:
    from ava_server.service.users import add_user

    await _ask_for(root, scopes)
    token, text = await add_user(root, user, limits, scopes, ends_us, partial(record_setting, root))
    _show_token(token, text, quiet=quiet)


async def _ask_for(root: DataRoot, scopes: Sequence[tokens.Scope]) -> None:
    """Ask for the PIN where a token with these scopes needs it, and make the data root."""
    pin = PinFile(root.approval_file)
    if "approve" in scopes and await anyio.to_thread.run_sync(lambda: pin.is_set):
        await ask_pin(pin)
    await anyio.to_thread.run_sync(root.create)


def _show_token(token: tokens.Token, text: str, *, quiet: bool) -> None:
    if not quiet:
        say(f"Token {token.name} for {token.user}: {', '.join(token.scopes)}; {_lifetime(token, token.created_us)}.")
        say("It is shown only this once, and only its hash is stored. Anyone who has it acts for this user:")
    write(text)


async def _revoke(root: DataRoot, name: str) -> None:
    token = await anyio.to_thread.run_sync(tokens.revoke_token, root.tokens_file, name)
    if token is None:
        raise BadInput(f"There is no token {name} in {root.tokens_file}. `ava token list` shows the stored ones.")
    await record_setting(root, f"tokens.{name}", token.on_record(), None)
    say(f"Token {name} of {token.user} is revoked: its next request is refused.")


def _lifetime(token: tokens.Token, now_us: int) -> str:
    if token.expires_us is None:
        return "until it is revoked"
    at = iso_second(token.expires_us)
    return f"expired at {at}" if token.expired(now_us) else f"until {at}"


# -- ava user ---------------------------------------------------------------------------------------------------------


def list_users_command(
    context: typer.Context, url: Url = None, token_file: TokenFile = None, as_json: Json = False
) -> None:
    """List everyone who has a token, a table in config.toml, or runs: spent today, running, and every limit.

    The day is UTC's. Limits are set under [users.NAME] in config.toml, and can only be stricter than everybody's.
    """
    from ava_server.service.users import ListedUsers

    server = chosen_server(context, url, token_file)
    users = anyio.run(_read_users) if server is None else _ask(server, "GET", "/users", ListedUsers).users
    lines = aligned((user.name, _describe_user(user)) for user in users)
    if server is None:
        return present(find_data_root(), as_json, {"users": [one.model_dump() for one in users]}, lines)
    return (
        say_json({"url": server.address, "users": [one.model_dump() for one in users]})
        if as_json
        else say("\n".join(lines))
    )


def _ask(server: RemoteServer, method: str, path: str, form: type[T], body: Mapping[str, Any] | None = None) -> T:
    """Return the answer of the server of `--url`.

    Raises:
        AvaError: It refuses, or does not answer as Ava does.
    """
    from pydantic import ValidationError

    async def ask() -> T:
        async with connected(server) as connection:
            doubt = "" if method == "GET" else "It may still have been carried out: see `ava user list`."
            answer = await connection.request(method, path, body=body, doubt=doubt)
            try:
                return form.model_validate(answer)
            except ValidationError:
                raise connection.not_ava() from None

    return anyio.run(ask)


def _refuse_there(given: Mapping[str, object]) -> None:
    """Refuse what only a person on the server may set."""
    for option, value in given.items():
        if value:
            raise BadInput(f"{option}: this can be set only in a terminal on the server")


def add_command(
    context: typer.Context,
    user: Annotated[str, typer.Argument(metavar="USER", help="The new user's name.")],
    daily: _Daily = None,
    running: _Running = None,
    spawns: _Spawns = None,
    approval: _Approval = None,
    workspace: _Workspaces = None,
    role: _Roles = None,
    scope: _Scopes = ["spawn,read"],  # noqa: B006 - typer reads it, and nobody changes it
    expires: _Expires = None,
    quiet: _Quiet = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Add a user: create a token of that name, show it once, and set the given limits.

    With --url, the token has spawn and read; other scopes, folders and roles can be set only on the server.
    """
    name, limits = tokens.user_name(user), _limits(daily, running, spawns, approval, workspace, role)
    scopes, ends_us = tokens.scopes_in(scope), tokens.expiry(expires, time.time_ns() // 1000)
    if (server := chosen_server(context, url, token_file)) is not None:
        _refuse_there({"--workspace": workspace, "--role": role, "--scope": set(scopes) - {"spawn", "read"}})
        from ava_server.service.users import AddedUser

        made = _ask(server, "POST", f"/users/{name}", AddedUser, {**limits, "expires": expires})
        if not quiet:
            say(f"Token {made.name} for {name}: {', '.join(made.scopes)}. It is shown only this once:")
        return write(made.token)
    root = checked_root("ava user add", show=not quiet)
    return anyio.run(_add, root, name, limits, scopes, ends_us, quiet)


def limit_command(
    context: typer.Context,
    user: _User,
    daily: _Daily = None,
    running: _Running = None,
    spawns: _Spawns = None,
    approval: _Approval = None,
    workspace: _Workspaces = None,
    role: _Roles = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Set a user's limits, in [users.USER] of config.toml; the others stay.

    They can only be stricter than the limits for everybody. Running servers apply them to the user's next proposals
    and approvals.
    """
    changes = _limits(daily, running, spawns, approval, workspace, role)
    if not changes:
        raise BadInput("Give at least one limit, such as --daily 3.00; `ava user list` shows what holds now.")
    from ava_server.service.users import LimitedUser, limit_user

    name = tokens.user_name(user)
    if (server := chosen_server(context, url, token_file)) is not None:
        _refuse_there({"--workspace": workspace, "--role": role})
        shown = _ask(server, "PATCH", f"/users/{name}", LimitedUser, changes).user
    else:
        root = checked_root("ava user limit")
        anyio.run(limit_user, root, name, changes, partial(record_setting, root))
        shown = next(one for one in anyio.run(_read_users) if one.name == name)
    say(f"{name}: {_describe_user(shown)}")


def _limits(
    daily: str | None,
    running: int | None,
    spawns: int | None,
    approval: str | None,
    workspace: list[str] | None,
    role: list[str] | None,
) -> dict[str, Any]:
    """Return the limits that were given, by their names in config.toml."""
    given = {
        "daily_cents": None if daily is None else round(parse_cents("--daily", daily, zero=True) or 0),
        "running": running,
        "spawns_per_hour": spawns,
        "approval": approval,
        "workspaces": [str(Path(each).expanduser().absolute()) for each in workspace] if workspace else None,
        "roles": role or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def remove_user_command(
    context: typer.Context,
    user: Annotated[str, typer.Argument(metavar="USER", help="The user, as `ava user list` shows it.")],
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Revoke all tokens of a user, and remove their passkeys and their table from config.toml.

    Their runs and log stay. For a user with passkeys it takes a terminal, and the approval PIN if one is set.
    """
    from ava_server.service.users import RemovedUser

    name = tokens.user_name(user)
    if (server := chosen_server(context, url, token_file)) is not None:
        done = _ask(server, "DELETE", f"/users/{name}", RemovedUser)
        revoked, passkeys, limited = done.revoked, list[str](), done.limited
    else:
        removed = anyio.run(_remove_user, checked_root("ava user remove"), name)
        limited = removed.limited
        revoked, passkeys = [one.name for one in removed.tokens], [one.name for one in removed.passkeys]
    for token in revoked:
        say(f"Token {token} of {name} is revoked: its next request is refused.")
    for passkey in passkeys:
        say(f"Passkey {passkey} of {name} is removed.")
    if limited:
        say(f"The limits of {name} are removed.")


async def _remove_user(root: DataRoot, user: str) -> Removed:
    from ava_server.cli.passkeys import require_person
    from ava_server.service.users import remove_user

    if await anyio.to_thread.run_sync(Passkeys(root.passkeys).of, user):
        await require_person(root, "ava user remove")
    return await remove_user(root, user, partial(record_setting, root))


async def _read_users() -> list[UserFacts]:
    from ava_server.config.settings import load_settings
    from ava_server.config.users import with_shared_users
    from ava_server.service.users import list_users

    settings = await anyio.to_thread.run_sync(lambda: with_shared_users(load_settings()))
    async with open_log(settings.paths) as store:
        return await list_users(settings, store)


def _describe_user(user: UserFacts) -> str:
    spent, day = micros_from_cents(user.spent_cents), micros_from_cents(user.daily_cents)
    waiting = f", {user.waiting} waiting" if user.waiting else ""
    parts = [
        f"{format_usd(spent)} of {format_usd(day)} today",
        f"{user.running} of {user.running_limit} running{waiting}",
        f"approval {user.approval}",
        f"{user.tokens} {'token' if user.tokens == 1 else 'tokens'}",
    ]
    if user.roles is not None:
        parts.append(f"over HTTP roles {', '.join(user.roles) or 'none'}")
    if user.workspaces:
        parts.append(f"over HTTP workspaces {', '.join(user.workspaces)}")
    return "; ".join(parts)
