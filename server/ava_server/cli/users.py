"""`ava token` and `ava user`: who may do what over HTTP.

Tokens for `ava serve --http`, and each user's spending, runs and limits: of this machine's data root, or of another
server.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ava_audit.units import format_usd, iso_second, micros_from_cents, now_us
from ava_server.budget.held import held_words
from ava_server.cli.app import in_event_loop
from ava_server.cli.log_access import checked_root, open_log, read_settings, record_setting
from ava_server.cli.options import Json, TokenFile, Url, absolute_path, parse_cents
from ava_server.cli.remote import chosen_server
from ava_server.cli.secret_input import ask_pin_if_set, require_person
from ava_server.cli.terminal import aligned, counted, present, say, say_json, write
from ava_server.config import tokens
from ava_server.config.sign_in import Passkeys
from ava_server.core.data_root import DataRoot, find_data_root
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_server.service.users import UnendedRun, UserFacts

token_command = typer.Typer(no_args_is_help=True)
user_command = typer.Typer(no_args_is_help=True)

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


# -- ava token --------------------------------------------------------------------------------------------------------


@token_command.command("create", short_help="Create a token; it is shown once.")
@in_event_loop
async def create_command(
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
    ends_us = tokens.expiry(expires, now_us())
    root = checked_root("ava token create", show=not quiet)
    await _prepare_for(root, scopes)
    token, text = tokens.create_token(root.tokens_file, name, user, scopes, ends_us)
    await record_setting(root, f"tokens.{name}", None, token.on_record())
    _show_token(token, text, quiet=quiet)


@token_command.command("list", short_help="List names, users, scopes and expiry, never the tokens.")
def list_tokens_command(as_json: Json = False) -> None:
    """List the tokens' names, users, scopes and expiry; never the tokens."""
    root = checked_root(show=False)
    known = sorted(tokens.read_tokens(root.tokens_file).values(), key=lambda token: token.name)
    now = now_us()
    entries = [
        {"name": one.name, **one.on_record(), "created": iso_second(one.created_us), "expired": one.expired(now)}
        for one in known
    ]
    lines = aligned((one.name, f"{one.user}; {', '.join(one.scopes)}; {_lifetime(one, now)}") for one in known)
    none = f"No tokens. Create one with `ava token create NAME --user USER --scope {','.join(tokens.SCOPES[:2])}`."
    present(root, as_json, {"tokens": entries}, lines or [none])


@token_command.command("revoke", short_help="Revoke a token, from its next request on.")
@in_event_loop
async def revoke_command(name: _Name) -> None:
    """Revoke a token: its next request is refused, also by a running server."""
    root, name = checked_root("ava token revoke"), tokens.token_name(name)
    token = tokens.revoke_token(root.tokens_file, name)
    if token is None:
        raise BadInput(f"There is no token {name} in {root.tokens_file}. `ava token list` shows the stored ones.")
    await record_setting(root, f"tokens.{name}", token.on_record(), None)
    say(f"Token {name} of {token.user} is revoked: its next request is refused.")


async def _prepare_for(root: DataRoot, scopes: Sequence[tokens.Scope]) -> None:
    """Ask for the PIN where a token with these scopes needs it, and make the data root."""
    if "approve" in scopes:
        await ask_pin_if_set(root)
    root.create()


def _show_token(token: tokens.Token, text: str, *, quiet: bool) -> None:
    if not quiet:
        say(f"Token {token.name} for {token.user}: {', '.join(token.scopes)}; {_lifetime(token, token.created_us)}.")
        say("It is shown only this once, and only its hash is stored. Anyone who has it acts for this user:")
    write(text)


def _lifetime(token: tokens.Token, now: int) -> str:
    if token.expires_us is None:
        return "until it is revoked"
    at = iso_second(token.expires_us)
    return f"expired at {at}" if token.expired(now) else f"until {at}"


# -- ava user ---------------------------------------------------------------------------------------------------------


@user_command.command("list", short_help="List users: spent today, running, and limits.")
@in_event_loop
async def list_users_command(
    context: typer.Context, url: Url = None, token_file: TokenFile = None, as_json: Json = False
) -> None:
    """List everyone who has a token, a table in config.toml, or runs: spent today, running, and every limit.

    The day is UTC's. Limits are set under [users.NAME] in config.toml, and can only be stricter than everybody's.
    """
    from ava_server.cli.records import ask_server
    from ava_server.service.users import ListedUsers

    server = chosen_server(context, url, token_file)
    users = await _read_users() if server is None else (await ask_server(server, ListedUsers, "/users")).users
    fields = {"users": [one.model_dump() for one in users]}
    lines = aligned((user.name, _describe_user(user)) for user in users)
    if server is None:
        present(find_data_root(), as_json, fields, lines)
    elif as_json:
        say_json({"url": server.address, **fields})
    else:
        say("\n".join(lines))


def _refuse_there(given: Mapping[str, object]) -> None:
    """Refuse what only a person on the server may set."""
    for option, value in given.items():
        if value:
            raise BadInput(f"{option}: this can be set only in a terminal on the server")


@user_command.command("add", short_help="Add a user, with a token and limits.")
@in_event_loop
async def add_command(
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
    from ava_server.cli.records import ask_server
    from ava_server.service.users import AddedUser, add_user

    name, limits = tokens.user_name(user), _limits(daily, running, spawns, approval, workspace, role)
    scopes, ends_us = tokens.scopes_in(scope), tokens.expiry(expires, now_us())
    if (server := chosen_server(context, url, token_file)) is not None:
        _refuse_there({"--workspace": workspace, "--role": role, "--scope": set(scopes) - {"spawn", "read"}})
        made = await ask_server(server, AddedUser, f"/users/{name}", "POST", {**limits, "expires": expires})
        if not quiet:
            say(f"Token {made.name} for {name}: {', '.join(made.scopes)}. It is shown only this once:")
        return write(made.token)
    root = checked_root("ava user add", show=not quiet)
    await _prepare_for(root, scopes)
    token, text = await add_user(root, name, limits, scopes, ends_us, partial(record_setting, root))
    return _show_token(token, text, quiet=quiet)


@user_command.command("limit", short_help="Set what a user may do over HTTP, and spend.")
@in_event_loop
async def limit_command(
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
    from ava_server.cli.records import ask_server
    from ava_server.service.users import LimitedUser, limit_user

    name = tokens.user_name(user)
    if (server := chosen_server(context, url, token_file)) is not None:
        _refuse_there({"--workspace": workspace, "--role": role})
        shown = (await ask_server(server, LimitedUser, f"/users/{name}", "PATCH", changes)).user
    else:
        root = checked_root("ava user limit")
        await limit_user(root, name, changes, partial(record_setting, root))
        shown = next(one for one in await _read_users() if one.name == name)
    say(f"{name}: {_describe_user(shown)}")


def _whole_cents(option: str, given: str) -> int:
    found = parse_cents(option, given, zero=True) or 0
    if found != int(found):
        raise BadInput(f"{option}: {given[:40]!r} is not an amount in whole cents; write it like 0.50")
    return int(found)


def _limits(
    daily: str | None,
    running: int | None,
    spawns: int | None,
    approval: str | None,
    workspace: list[str] | None,
    role: list[str] | None,
) -> dict[str, Any]:
    given = {
        "daily_cents": None if daily is None else _whole_cents("--daily", daily),
        "running": running,
        "spawns_per_hour": spawns,
        "approval": approval,
        "workspaces": [str(absolute_path("--workspace", each)) for each in workspace or ()] or None,
        "roles": role or None,
    }
    return {name: value for name, value in given.items() if value is not None}


@user_command.command("remove", short_help="Revoke a user's tokens, and remove passkeys and limits.")
@in_event_loop
async def remove_user_command(
    context: typer.Context,
    user: Annotated[str, typer.Argument(metavar="USER", help="The user, as `ava user list` shows it.")],
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Revoke all tokens of a user, and remove their passkeys and their table from config.toml.

    Their runs and log stay; Ava lists the runs that continue spending. For a user with passkeys it takes a terminal,
    and the approval PIN if one is set. With --url, their limits stay; only a person on the server can remove them.
    """
    from ava_server.cli.records import ask_server
    from ava_server.service.users import RemovedUser, remove_user, unended_runs

    name = tokens.user_name(user)
    if (server := chosen_server(context, url, token_file)) is not None:
        done = await ask_server(server, RemovedUser, f"/users/{name}", "DELETE")
        revoked, passkeys, limited, unended = done.revoked, list[str](), done.limited, done.unended
    else:
        root = checked_root("ava user remove")
        if Passkeys(root.passkeys).of(name):
            await require_person(root, "ava user remove")
        removed = await remove_user(root, name, partial(record_setting, root))
        limited = removed.limited
        revoked, passkeys = [one.name for one in removed.tokens], [one.name for one in removed.passkeys]
        async with open_log(root) as store:
            unended = [] if store is None else await store.read(lambda view: unended_runs(view, name))
    for token in revoked:
        say(f"Token {token} of {name} is revoked: its next request is refused.")
    for passkey in passkeys:
        say(f"Passkey {passkey} of {name} is removed.")
    if limited:
        stay = f"stay, and apply if {name} gets a token again. On the server, `ava user remove {name}` removes them."
        say(f"The limits of {name} {'are removed.' if server is None else stay}")
    if unended:
        _say_unended(name, unended, "" if server is None else f"--url {shlex.quote(server.address)} ")


def _say_unended(name: str, unended: Sequence[UnendedRun], there: str) -> None:
    """List a removed user's unfinished runs, what they may still spend, and the command that cancels them."""
    say(f"These subagents of {name} continue, and may spend what was approved:")
    for run in unended:
        spent, most = format_usd(micros_from_cents(run.cost_cents)), run.max_cost_cents
        cap = "free" if most is None else f"{spent} of at most {format_usd(micros_from_cents(most), exact=True)}"
        say(f"  {run.subagent_id} {run.state}, {cap}")
    say(f"To cancel them: `ava {there}cancel {' '.join(run.subagent_id for run in unended)}`")


async def _read_users() -> list[UserFacts]:
    from ava_server.config.changes import with_shared_users
    from ava_server.service.users import list_users

    settings = with_shared_users(read_settings())
    async with open_log(settings.paths) as store:
        return await list_users(settings, store)


def _describe_user(user: UserFacts) -> str:
    spent, held, day = map(micros_from_cents, (user.spent_cents, user.held_cents, user.daily_cents))
    besides = f" ({held_words(held)})" if held else ""
    waiting = f", {user.waiting} waiting" if user.waiting else ""
    parts = [
        f"{format_usd(spent)} of {format_usd(day)} today{besides}",
        f"{user.running} of {user.running_limit} running{waiting}",
        f"approval {user.approval}",
        counted(user.tokens, "token"),
    ]
    if user.roles is not None:
        parts.append(f"over HTTP roles {', '.join(user.roles) or 'none'}")
    if user.workspaces:
        parts.append(f"over HTTP workspaces {', '.join(user.workspaces)}")
    return "; ".join(parts)
