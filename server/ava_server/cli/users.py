"""`ava token` and `ava user`: tokens for `ava serve --http`, and each user's spending, runs and limits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
import typer

from ava_audit.units import format_usd, iso_second, micros_from_cents
from ava_server.cli.log_access import checked_root, open_log, record_setting
from ava_server.cli.options import Json, parse_cents
from ava_server.cli.secret_input import ask_pin
from ava_server.cli.terminal import aligned, present, say, write
from ava_server.config import tokens
from ava_server.config.changing import Place, change_settings
from ava_server.config.pin import PinFile
from ava_server.config.settings import load_settings
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.view import View
    from ava_server.config.settings import Settings

_Name = Annotated[str, typer.Argument(metavar="NAME", help="A name for it, e.g. the machine that has it.")]
_User = Annotated[str, typer.Argument(metavar="USER", help="The user, as in `ava token create --user`.")]
_Scopes = Annotated[
    list[str],
    typer.Option(
        "--scope",
        metavar="SCOPES",
        help="What the token may do, separated by commas: spawn (propose, confirm, message, cancel), read (one's own"
        " runs, results and log), audit (read those of all users), approve (ava --url URL approve), admin (read,"
        " cancel and resume those of all users, and limit users).",
    ),
]
_Expires = Annotated[
    str | None, typer.Option(metavar="TIME", help="The token's lifetime: 90d, 12h; default: until revoked.")
]
_Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only the token, for a script.")]
_Daily = Annotated[
    str | None, typer.Option(metavar="DOLLARS", help="What the user's runs may cost in a day, e.g. 3.00.")
]
_Running = Annotated[int | None, typer.Option(min=0, help="How many runs at the same time.")]
_Spawns = Annotated[int | None, typer.Option(min=0, help="Runs in an hour without a person's answer.")]
_Approval = Annotated[str | None, typer.Option(metavar="POLICY", help="ask, auto or human.")]
_Workspaces = Annotated[
    list[str] | None, typer.Option("-w", "--workspace", metavar="FOLDER", help="A folder for HTTP; repeatable.")
]
_Roles = Annotated[list[str] | None, typer.Option(metavar="ROLE", help="A role for HTTP; repeatable.")]


def register(app: typer.Typer) -> None:
    """Add `ava token` and `ava user` to the app."""
    token = typer.Typer(help="The tokens for `ava serve --http`.", no_args_is_help=True)
    token.command("create", short_help="Create a token; it is shown once.")(create_command)
    token.command("list", short_help="List names, users, scopes and expiry, never the tokens.")(list_tokens_command)
    token.command("revoke", short_help="Revoke a token, from its next request on.")(revoke_command)
    app.add_typer(token, name="token")
    users = typer.Typer(help="The users of this data root.", no_args_is_help=True)
    users.command("list", short_help="List users: spent today, running, and limits.")(list_users_command)
    users.command("add", short_help="Add a user: a token, and limits.")(add_command)
    users.command("limit", short_help="Set what a user may do over HTTP, and spend.")(limit_command)
    users.command("remove", short_help="Revoke a user's tokens and remove their limits.")(remove_user_command)
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
    pin = PinFile(root.approval_file)
    if "approve" in scopes and await anyio.to_thread.run_sync(lambda: pin.is_set):
        await ask_pin(pin)
    await anyio.to_thread.run_sync(root.create)
    token, text = await anyio.to_thread.run_sync(tokens.create_token, root.tokens_file, name, user, scopes, ends_us)
    await record_setting(root, f"tokens.{name}", None, token.on_record())
    if not quiet:
        say(f"Token {name} for {user}: {', '.join(scopes)}; {_lifetime(token, token.created_us)}.")
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


def list_users_command(as_json: Json = False) -> None:
    """List everyone who has a token, a table in config.toml, or runs: spent today, running, and every limit.

    The day is UTC's. Limits are set under [users.NAME] in config.toml, and can only be stricter than everybody's.
    """
    settings = load_settings()
    users = anyio.run(_read_users, settings)
    present(settings.paths, as_json, {"users": users}, aligned((user["name"], _describe_user(user)) for user in users))


def add_command(
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
) -> None:
    """Create a token of the user's name, shown once, and set the limits that are given, as `ava user limit` does."""
    name, root = tokens.user_name(user), checked_root("ava user add", show=not quiet)
    known = tokens.read_tokens(root.tokens_file).values()
    if name in load_settings().users or any(token.user == name for token in known):
        raise BadInput(f"There is a user {name} already. `ava user limit {name}` changes the limits, and `ava token"
                       f" create NAME --user {name}` adds a token.")  # fmt: skip
    changes = _limits(daily, running, spawns, approval, workspace, role)
    scopes, ends_us = tokens.scopes_in(scope), tokens.expiry(expires, time.time_ns() // 1000)
    if changes:
        anyio.run(_limit, root, name, changes)
    anyio.run(_create, root, tokens.token_name(name), name, scopes, ends_us, quiet)


def limit_command(
    user: _User,
    daily: _Daily = None,
    running: _Running = None,
    spawns: _Spawns = None,
    approval: _Approval = None,
    workspace: _Workspaces = None,
    role: _Roles = None,
) -> None:
    """Set what a user may do, in [users.USER] of config.toml; what is not given stays.

    A value only restricts: none is above the limits for everybody. It holds for the user's next proposals and
    approvals, also in running servers.
    """
    changes = _limits(daily, running, spawns, approval, workspace, role)
    if not changes:
        raise BadInput("Give at least one limit, such as --daily 3.00; `ava user list` shows what holds now.")
    name, root = tokens.user_name(user), checked_root("ava user limit")
    anyio.run(_limit, root, name, changes)
    shown = next(one for one in anyio.run(_read_users, load_settings()) if one["name"] == name)
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


async def _limit(root: DataRoot, user: str, limits: Mapping[str, Any]) -> None:
    changes: dict[Place, Any] = {("users", user, name): value for name, value in limits.items()}
    before = await anyio.to_thread.run_sync(change_settings, root.config, changes)
    was = {name: value for name, value in zip(limits, before, strict=True) if value is not None}
    await record_setting(root, f"users.{user}", was, dict(limits))


def remove_user_command(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user, as `ava user list` shows it.")],
) -> None:
    """Revoke all tokens of a user, and remove their table from config.toml. Their runs and log stay."""
    name, root = tokens.user_name(user), checked_root("ava user remove")
    mine = [one.name for one in tokens.read_tokens(root.tokens_file).values() if one.user == name]
    limited = name in load_settings().users
    if not mine and not limited:
        raise BadInput(f"{name} has no token and no limits here; `ava user list` shows all users")
    for token in mine:
        anyio.run(_revoke, root, token)
    if limited:
        [before] = change_settings(root.config, {("users", name): None})
        anyio.run(record_setting, root, f"users.{name}", before, None)
        say(f"The limits of {name} are removed from {root.config}.")


async def _read_users(settings: Settings) -> list[dict[str, Any]]:
    """Return each user: cents spent today (with what is reserved for calls in flight), runs, and limits."""
    from ava_server.budget import caps, user_limits
    from ava_server.config.pin import policy_in_force

    now_us = time.time_ns() // 1000
    of_tokens = [
        token.user for token in tokens.read_tokens(settings.paths.tokens_file).values() if not token.expired(now_us)
    ]
    names = {os_user(), *settings.users, *of_tokens}
    policy = "human" if policy_in_force(settings) == "human" else settings.approval

    def query(view: View) -> dict[str, tuple[float, int, int]]:
        from ava_audit.rows import QUEUED, RUNNING, WAITING

        rows = view.runs(states=(RUNNING, QUEUED, WAITING), limit=-1)
        day = caps.utc_day(now_us)
        return {
            name: (
                view.bucket(caps.user_scope(name, day)).committed / micros_from_cents(1),
                sum(row.user_id == name and row.state == RUNNING for row in rows),
                sum(row.user_id == name and row.state != RUNNING for row in rows),
            )
            for name in view.users() | names
        }

    async with open_log(settings.paths) as store:
        figures = dict.fromkeys(names, (0.0, 0, 0)) if store is None else await store.read(query)
    return [
        {
            "name": name,
            "spent_cents": spent_cents,
            "daily_cents": user_limits.day_cents(settings, name),
            "running": running,
            "running_limit": user_limits.running(settings, name),
            "waiting": waiting,
            "tokens": of_tokens.count(name),
            "workspaces": list(map(str, user_limits.user_settings(settings, name).workspaces)),
            "roles": user_limits.user_settings(settings, name).roles,
            "approval": user_limits.stricter_policy(settings, name, policy),
        }
        for name, (spent_cents, running, waiting) in sorted(figures.items())
    ]


def _describe_user(user: Mapping[str, Any]) -> str:
    spent, day = micros_from_cents(user["spent_cents"]), micros_from_cents(user["daily_cents"])
    waiting = f", {user['waiting']} waiting" if user["waiting"] else ""
    parts = [
        f"{format_usd(spent)} of {format_usd(day)} today",
        f"{user['running']} of {user['running_limit']} running{waiting}",
        f"approval {user['approval']}",
        f"{user['tokens']} {'token' if user['tokens'] == 1 else 'tokens'}",
    ]
    if user["roles"] is not None:
        parts.append(f"over HTTP roles {', '.join(user['roles']) or 'none'}")
    if user["workspaces"]:
        parts.append(f"over HTTP workspaces {', '.join(user['workspaces'])}")
    return "; ".join(parts)
