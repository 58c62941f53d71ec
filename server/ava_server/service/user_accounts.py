"""The users of a data root: what each has spent and may do, and adding, limiting and removing one.

`ava user` does this on the server's machine, and `ava --url URL user` with a token of the scope `admin`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from pydantic import BaseModel

from ava_audit.rows import QUEUED, RUNNING, UNENDED, Bucket
from ava_audit.store.store import Store
from ava_audit.units import cents, day_of, now_us
from ava_audit.view import View
from ava_server.budget import user_limits
from ava_server.config import tokens
from ava_server.config.changes import change_users, read_users
from ava_server.config.checks import Place
from ava_server.config.pin import PinFile
from ava_server.config.settings import Settings
from ava_server.config.sign_in import Passkey, Passkeys
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import BadInput
from ava_server.run_config.config import is_free

Change = Callable[[str, Mapping[str, Any] | None, Mapping[str, Any] | None], Awaitable[None]]
"""Records a changed setting in the log: its name, and its value before and after."""


class UserFacts(BaseModel):
    """A user: cents spent today, those held besides for calls and last turns, runs, and limits."""

    name: str
    spent_cents: float
    held_cents: float = 0.0  # an older server adds it to what is spent
    daily_cents: float
    running: int
    running_limit: int
    waiting: int
    tokens: int
    workspaces: list[str]
    roles: list[str] | None
    approval: str


class ListedUsers(BaseModel):
    """The answer to GET /users."""

    users: list[UserFacts]


class LimitedUser(BaseModel):
    """The answer to PATCH /users/NAME: what holds now."""

    user: UserFacts


class AddedUser(BaseModel):
    """The answer to POST /users/NAME: the user's token, shown this once."""

    name: str
    token: str
    scopes: list[str]
    expires: str | None = None


class UnendedRun(BaseModel):
    """A run of a removed user that goes on. `max_cost_cents` is None for a free run."""

    subagent_id: str
    state: str
    cost_cents: float
    max_cost_cents: float | None


class RemovedUser(BaseModel):
    """The answer to DELETE /users/NAME: the revoked tokens, what else the user had, and the runs that go on.

    `limits_stay`: the user had limits (`limited`), and they were left.
    """

    revoked: list[str]
    limited: bool
    limits_stay: bool = True
    passkeys: list[str] = []
    unended: list[UnendedRun] = []


@dataclass(frozen=True)
class Removed:
    """What a removed user had: tokens, limits and passkeys."""

    tokens: list[tokens.Token]
    passkeys: list[Passkey]
    limited: bool


async def list_users(settings: Settings, store: Store | None) -> list[UserFacts]:
    """Return this machine's user and everyone who has a token, limits or runs.

    `store` is None if there is no log yet.

    Raises:
        ConfigError: The tokens or the PIN's file cannot be read.
        StoreUnavailable: The log cannot be read.
    """
    at_us = now_us()
    known = await anyio.to_thread.run_sync(tokens.read_tokens, settings.paths.tokens_file)
    token_users = [token.user for token in known.values() if not token.expired(at_us)]  # one for each token
    names = {os_user(), *settings.users, *token_users}
    pin = PinFile(settings.paths.approval_file)
    has_pin = await anyio.to_thread.run_sync(lambda: pin.is_set)

    def query(view: View) -> dict[str, _Figures]:
        rows = view.runs(states=UNENDED, expired_before_us=at_us, limit=-1)
        running = Counter(row.user_id for row in rows if row.state == RUNNING)
        waiting = Counter(row.user_id for row in rows if row.state != RUNNING)
        day = day_of(at_us)
        figures: dict[str, _Figures] = {}
        for name in view.users() | names:
            bucket = view.bucket(user_limits.user_scope(name, day))
            figures[name] = _Figures(bucket, running[name], waiting[name])
        return figures

    if store is None:
        figures = dict.fromkeys(names, _Figures(Bucket(""), 0, 0))
    else:
        figures = await store.read(query)
    users: list[UserFacts] = []
    for name, of_user in sorted(figures.items()):
        own = user_limits.user_settings(settings, name)
        users.append(
            UserFacts(
                name=name,
                spent_cents=cents(of_user.day.spent_micros),
                held_cents=cents(of_user.day.held_micros),
                daily_cents=user_limits.day_cents(settings, name),
                running=of_user.running,
                running_limit=user_limits.running(settings, name),
                waiting=of_user.waiting,
                tokens=token_users.count(name),
                workspaces=[str(folder) for folder in own.workspaces],
                roles=None if own.roles is None else list(own.roles),
                approval=user_limits.approval_of_user(settings, name, pin=has_pin),
            )
        )
    return users


@dataclass(frozen=True)
class _Figures:
    """A user's budget of the day, and how many runs of theirs are running and waiting."""

    day: Bucket
    running: int
    waiting: int


def unended_runs(view: View, user: str) -> list[UnendedRun]:
    """Return the approved runs of a user that have not ended: they spend what was approved, even without the user."""
    unended: list[UnendedRun] = []
    for run in view.runs(user=user, states=(RUNNING, QUEUED), limit=-1):
        max_cost_cents: float | None = None
        if not is_free(run):
            max_cost_cents = cents(json.loads(run.config).get("max_cost_micros", 0))
        unended.append(
            UnendedRun(
                subagent_id=run.id,
                state=run.state,
                cost_cents=cents(run.cost_micros),
                max_cost_cents=max_cost_cents,
            )
        )
    return unended


async def add_user(
    root: DataRoot,
    user: str,
    limits: Mapping[str, Any],
    scopes: Sequence[tokens.Scope],
    ends_us: int | None,
    changed: Change,
) -> tuple[tokens.Token, str]:
    """Create a token of the user's name and set the given limits. Return the token, and its text, shown only now.

    Raises BadInput if the name is taken, or something is invalid; ConfigError if a file cannot be read or written.
    """
    name = tokens.token_name(user)
    known = await anyio.to_thread.run_sync(tokens.read_tokens, root.tokens_file)
    users_with_limits = await anyio.to_thread.run_sync(read_users, root)
    passkeys = await anyio.to_thread.run_sync(Passkeys(root.passkeys).of, user)
    users_with_token = {token.user for token in known.values()}
    # What is left of an earlier user of this name would count for the new one.
    is_taken = name in known or user in users_with_token or user in users_with_limits or bool(passkeys)
    if is_taken:
        raise BadInput(
            f"There is a user {user} already. `ava user limit {user}` changes the limits, and `ava token create NAME"
            f" --user {user}` adds a token. If it is another person, first run `ava user remove {user}`."
        )
    if limits:
        await limit_user(root, user, limits, changed)
    token, text = await anyio.to_thread.run_sync(tokens.create_token, root.tokens_file, name, user, scopes, ends_us)
    await changed(f"tokens.{name}", None, token.on_record())
    return token, text


async def limit_user(root: DataRoot, user: str, limits: Mapping[str, Any], changed: Change) -> None:
    """Set the given limits of a user and keep the others. Running servers follow within seconds.

    Raises:
        BadInput: A limit does not exist.
        ConfigError: A limit is invalid, or the file cannot be read or written; nothing is changed.
    """
    changes: dict[Place, Any] = {("users", user, name): value for name, value in limits.items()}
    before = await anyio.to_thread.run_sync(lambda: change_users(root, changes))
    was = {name: value for name, value in zip(limits, before, strict=True) if value is not None}
    await changed(f"users.{user}", was, dict(limits))


async def remove_user(root: DataRoot, user: str, changed: Change, *, keep_limits: bool = False) -> Removed:
    """Revoke a user's tokens and remove their passkeys and limits, so that a new user of that name inherits nothing.

    `keep_limits` leaves the limits, for callers who must not lift them by removing the user and adding them again.

    Raises:
        BadInput: The user has nothing to remove.
        ConfigError: A file cannot be read or written.
    """
    known = await anyio.to_thread.run_sync(tokens.read_tokens, root.tokens_file)
    limited = user in await anyio.to_thread.run_sync(read_users, root)
    removes_limits = limited and not keep_limits
    revoked: list[tokens.Token] = []
    for name in [token.name for token in known.values() if token.user == user]:
        token = await anyio.to_thread.run_sync(tokens.revoke_token, root.tokens_file, name)
        if token is not None:
            revoked.append(token)
            await changed(f"tokens.{name}", token.on_record(), None)
    passkeys = Passkeys(root.passkeys)
    removed: list[Passkey] = []
    for passkey in await anyio.to_thread.run_sync(passkeys.of, user):
        removed_passkey = await anyio.to_thread.run_sync(passkeys.remove, user, passkey.name)
        if removed_passkey is not None:
            removed.append(removed_passkey)
            await changed(f"passkeys.{removed_passkey.name}", removed_passkey.on_record(), None)
    if removes_limits:
        places: dict[Place, Any] = {("users", user): None}
        [before] = await anyio.to_thread.run_sync(lambda: change_users(root, places))
        await changed(f"users.{user}", before, None)
    if revoked or removed or removes_limits:
        return Removed(revoked, removed, limited)
    why = "no token, no passkey and no limits"
    if limited:
        why = "only limits, which a person on the server removes"
    raise BadInput(f"{user} has {why} here; `ava user list` shows all users")
