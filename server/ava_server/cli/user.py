"""`ava user`: who uses this data root, what they spend and run now, and what they may."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_audit.units import format_usd, micros_from_cents
from ava_server.cli.app import heading
from ava_server.cli.terminal import say
from ava_server.config.settings import load_settings

if TYPE_CHECKING:
    from ava_audit.view import View
    from ava_server.config.settings import Settings


@dataclass(frozen=True)
class User:
    """A user: what was spent today (in cents, what is held for calls in flight included), and what there may be."""

    name: str
    spent_cents: float
    daily_cents: int
    running: int
    running_limit: int
    waiting: int
    tokens: int
    workspaces: tuple[str, ...]
    roles: tuple[str, ...] | None
    approval: str


def register(app: typer.Typer) -> None:
    """Add `ava user` to the app."""
    user_limits = typer.Typer(help="The users of this data root.", no_args_is_help=True)
    user_limits.command("list", short_help="List users with what they spend today, what runs, and their limits.")(
        list_command
    )
    app.add_typer(user_limits, name="user")


def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """List everybody who has a token, a table in config.toml, or runs: spent today, running, and every limit.

    The day is UTC's. Limits are set under [users.NAME] in config.toml, and can only be stricter than everybody's.
    """
    settings = load_settings()
    found = anyio.run(_users, settings)
    if as_json:
        entries = [asdict(user) for user in found]
        typer.echo(json.dumps({"data_root": str(settings.data_root), "users": entries}, ensure_ascii=False))
        return
    heading(settings.paths)
    width = max(len(user.name) for user in found)
    for user in found:
        say(f"{user.name:<{width}}  {_line(user)}")


async def _users(settings: Settings) -> list[User]:
    from ava_server.cli.reading import open_log
    from ava_server.config.pin import policy_in_force
    from ava_server.config.tokens import read_tokens
    from ava_server.core.data_root import os_user

    tokens = read_tokens(settings.paths.tokens_file)
    now_us = time.time_ns() // 1000
    of_tokens = [token.user for token in tokens.values() if not token.expired(now_us)]
    policy = policy_in_force(settings)

    def query(view: View) -> tuple[set[str], dict[str, tuple[float, int, int]]]:
        from ava_audit.rows import QUEUED, RUNNING, WAITING
        from ava_server.budget.caps import user_scope, utc_day

        rows = view.runs(states=(RUNNING, QUEUED, WAITING), limit=-1)
        names = view.users() | {os_user(), *settings.users, *of_tokens}
        day = utc_day(now_us)
        return names, {
            name: (
                view.bucket(user_scope(name, day)).committed / micros_from_cents(1),
                sum(row.user_id == name and row.state == RUNNING for row in rows),
                sum(row.user_id == name and row.state != RUNNING for row in rows),
            )
            for name in names
        }

    async with open_log(settings.paths) as store:
        if store is None:
            names = {os_user(), *settings.users, *of_tokens}
            figures: dict[str, tuple[float, int, int]] = {}
        else:
            names, figures = await store.read(query)
    return [
        _user(settings, name, figures.get(name, (0.0, 0, 0)), of_tokens.count(name), policy) for name in sorted(names)
    ]


def _user(settings: Settings, name: str, figures: tuple[float, int, int], tokens: int, policy: str) -> User:
    from ava_server.budget import user_limits
    from ava_server.config.settings import Policy

    own = user_limits.own_settings(settings, name)
    in_force: Policy = "human" if policy == "human" else settings.approval
    return User(
        name=name,
        spent_cents=figures[0],
        daily_cents=user_limits.day_cents(settings, name),
        running=figures[1],
        running_limit=user_limits.running(settings, name),
        waiting=figures[2],
        tokens=tokens,
        workspaces=tuple(map(str, own.workspaces)),
        roles=own.roles,
        approval=user_limits.stricter(settings, name, in_force),
    )


def _line(user: User) -> str:
    spent, day = micros_from_cents(user.spent_cents), micros_from_cents(user.daily_cents)
    parts = [
        f"{format_usd(spent)} of {format_usd(day)} today",
        f"{user.running} of {user.running_limit} running" + (f", {user.waiting} waiting" if user.waiting else ""),
        f"approval {user.approval}",
        f"{user.tokens} {'token' if user.tokens == 1 else 'tokens'}",
    ]
    if user.roles is not None:
        parts.append(f"over HTTP roles {', '.join(user.roles) or 'none'}")
    if user.workspaces:
        parts.append(f"over HTTP workspaces {', '.join(user.workspaces)}")
    return "; ".join(parts)
