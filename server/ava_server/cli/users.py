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

from ava_audit.units import counted, format_usd, iso_second, micros_from_cents, now_us
from ava_server.budget.held_words import held_words
from ava_server.cli.app import in_event_loop
from ava_server.cli.log_access import checked_root, record_setting
from ava_server.cli.options import Json, TokenFile, Url, absolute_path, parse_cents
from ava_server.cli.remote import chosen_server
from ava_server.cli.terminal import Place, aligned, present, say, write
from ava_server.config import tokens
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import BadInput
from ava_server.core.ids import state_words
from ava_server.core.names import quote_names

if TYPE_CHECKING:
    from ava_server.service.user_accounts import UnendedRun, UserFacts

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
    from ava_server.cli.user_client import prepare_for

    scopes = tokens.scopes_in(scope)
    name, user = tokens.token_name(name), tokens.user_name(user)
    ends_us = tokens.expiry(expires, now_us())
    root = checked_root("ava token create", show=not quiet)
    await prepare_for(root, scopes)
    token, text = tokens.create_token(root.tokens_file, name, user, scopes, ends_us)
    await record_setting(root, f"tokens.{name}", None, token.on_record())
    _show_token(token.name, token.user, token.scopes, token.expires_us, text, quiet=quiet)


@token_command.command("list", short_help="List names, users, scopes and expiry, never the tokens.")
def list_tokens_command(as_json: Json = False) -> None:
    """List the tokens' names, users, scopes and expiry; never the tokens."""
    root = checked_root(show=False)
    known = sorted(tokens.read_tokens(root.tokens_file).values(), key=lambda token: token.name)
    now = now_us()
    entries: list[dict[str, Any]] = []
    rows: list[tuple[str, str]] = []
    for one in known:
        created, expired = iso_second(one.created_us), one.expired(now)
        entries.append({"name": one.name, **one.on_record(), "created": created, "expired": expired})
        rows.append((one.name, f"{one.user}; {', '.join(one.scopes)}; {_lifetime(one, now)}"))
    none = f"No tokens. Create one with `ava token create NAME --user USER --scope {','.join(tokens.SCOPES[:2])}`."
    present(root, as_json, {"tokens": entries}, aligned(rows) or [none])


@token_command.command("revoke", short_help="Revoke a token, from its next request on.")
@in_event_loop
async def revoke_command(name: _Name) -> None:
    """Revoke a token: its next request is refused, also by a running server."""
    root = checked_root("ava token revoke")
    name = tokens.token_name(name)
    token = tokens.revoke_token(root.tokens_file, name)
    if token is None:
        raise BadInput(f"There is no token {name} in {root.tokens_file}. `ava token list` shows the stored ones.")
    await record_setting(root, f"tokens.{name}", token.on_record(), None)
    say(f"Token {name} of {token.user} is revoked: its next request is refused.")


def _show_token(name: str, user: str, scopes: Sequence[str], expires_us: int | None, text: str, *, quiet: bool) -> None:
    if not quiet:
        say(f"Token {name} for {user}: {', '.join(scopes)}; {_until(expires_us)}.")
        say("It is shown only this once, and only its hash is stored. Anyone who has it acts for this user:")
    write(text)


def _lifetime(token: tokens.Token, now: int) -> str:
    if token.expires_us is not None and token.expired(now):
        return f"expired at {iso_second(token.expires_us)}"
    return _until(token.expires_us)


def _until(expires_us: int | None) -> str:
    if expires_us is None:
        return "until it is revoked"
    return f"until {iso_second(expires_us)}"


# -- ava user ---------------------------------------------------------------------------------------------------------


@user_command.command("list", short_help="List users: spent today, running, and limits.")
@in_event_loop
async def list_users_command(
    context: typer.Context, url: Url = None, token_file: TokenFile = None, as_json: Json = False
) -> None:
    """List everyone who has a token, a table in config.toml, or runs: spent today, running, and every limit.

    The day is UTC's. Limits are set under [users.NAME] in config.toml, and can only be stricter than everybody's.
    """
    from ava_server.cli.user_client import open_users
    from ava_server.service.user_requests import USERS

    async with open_users(chosen_server(context, url, token_file), find_data_root) as users:
        facts = (await users.send(USERS)).users
    lines = aligned((user.name, _describe_user(user)) for user in facts)
    present(users.place, as_json, {"users": [user.model_dump() for user in facts]}, lines)


def _refuse_there(values: Mapping[str, object]) -> None:
    """Refuse what only a person on the server may set."""
    for option, value in values.items():
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
    from ava_server.cli.user_client import open_users
    from ava_server.service.user_requests import ADD, OVER_HTTP

    name = tokens.user_name(user)
    fields = _limits(daily, running, spawns, approval, workspace, role)
    scopes, ends_us = tokens.scopes_in(scope), tokens.expiry(expires, now_us())
    other_scopes = None
    if set(scopes) != set(OVER_HTTP):
        other_scopes = scopes
        fields["scopes"] = scopes
    server = chosen_server(context, url, token_file)
    if server is not None:
        _refuse_there({"--workspace": workspace, "--role": role, "--scope": other_scopes})
    async with open_users(server, partial(checked_root, "ava user add", show=not quiet)) as users:
        token = await users.send(ADD, name=name, expires=expires, **fields)
    _show_token(token.name, name, token.scopes, ends_us, token.token, quiet=quiet)


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
    from ava_server.cli.user_client import open_users
    from ava_server.service.user_requests import LIMIT

    name = tokens.user_name(user)
    server = chosen_server(context, url, token_file)
    if server is not None:
        _refuse_there({"--workspace": workspace, "--role": role})
    async with open_users(server, partial(checked_root, "ava user limit")) as users:
        answer = await users.send(LIMIT, name=name, **changes)
    say(f"{name}: {_describe_user(answer.user)}")


def _whole_cents(option: str, text: str) -> int:
    cents = parse_cents(option, text, zero=True) or 0
    if cents != int(cents):
        raise BadInput(f"{option}: {text[:40]!r} is not an amount in whole cents; write it like 0.50")
    return int(cents)


def _limits(
    daily: str | None,
    running: int | None,
    spawns: int | None,
    approval: str | None,
    workspace: list[str] | None,
    role: list[str] | None,
) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if daily is not None:
        limits["daily_cents"] = _whole_cents("--daily", daily)
    if running is not None:
        limits["running"] = running
    if spawns is not None:
        limits["spawns_per_hour"] = spawns
    if approval is not None:
        limits["approval"] = approval
    if workspace:
        limits["workspaces"] = [str(absolute_path("--workspace", each)) for each in workspace]
    if role:
        limits["roles"] = role
    return limits


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
    from ava_server.cli.user_client import open_users
    from ava_server.service.user_requests import REMOVE

    name = tokens.user_name(user)
    server = chosen_server(context, url, token_file)
    async with open_users(server, partial(checked_root, "ava user remove")) as users:
        removal = await users.send(REMOVE, name=name)
    for token in removal.revoked:
        say(f"Token {token} of {name} is revoked: its next request is refused.")
    for passkey in removal.passkeys:
        say(f"Passkey {passkey} of {name} is removed.")
    if removal.limited and removal.limits_stay:
        say(
            f"The limits of {name} stay, and apply if {name} gets a token again. On the server, `ava user remove"
            f" {name}` removes them."
        )
    elif removal.limited:
        say(f"The limits of {name} are removed.")
    if removal.unended:
        _say_unended(name, removal.unended, users.place)


def _say_unended(name: str, unended: Sequence[UnendedRun], place: Place) -> None:
    """List a removed user's unfinished runs, what they may still spend, and the command that cancels them."""
    say(f"These subagents of {name} continue, and may spend what was approved:")
    for run in unended:
        cap = "free"
        if run.max_cost_cents is not None:
            spent, most = micros_from_cents(run.cost_cents), micros_from_cents(run.max_cost_cents)
            cap = f"{format_usd(spent)} of at most {format_usd(most, exact=True)}"
        say(f"  {run.subagent_id} {state_words(run.state)}, {cap}")
    command = "ava"
    if isinstance(place, str):
        command += f" --url {shlex.quote(place)}"
    say(f"To cancel them: `{command} cancel {' '.join(run.subagent_id for run in unended)}`")


def _describe_user(user: UserFacts) -> str:
    spent, held, day = map(micros_from_cents, (user.spent_cents, user.held_cents, user.daily_cents))
    today = f"{format_usd(spent)} of {format_usd(day)} today"
    if held:
        today += f" ({held_words(held)})"
    running = f"{user.running} of {user.running_limit} running"
    if user.waiting:
        running += f", {user.waiting} waiting"
    parts = [today, running, f"approval {user.approval}", counted(user.tokens, "token")]
    if user.roles is not None:
        parts.append(f"over HTTP roles {quote_names(user.roles, len(user.roles)) or 'none'}")
    if user.workspaces:
        parts.append(f"over HTTP workspaces {', '.join(user.workspaces)}")
    return "; ".join(parts)
