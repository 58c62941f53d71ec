"""The requests about the users of a data root, in one table: `ava user` asks in its own process, or over HTTP.

The parameters of a request are those of the method that answers it, and its answer is a model of
`service.user_accounts`. Who may ask for what differs: the owner at a terminal sets everything, and an administrator's
token less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread

from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_server.config.settings import Policy, Settings
from ava_server.config.tokens import Scope, expiry, user_name
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import BadInput
from ava_server.service.record_requests import RecordRequest
from ava_server.service.user_accounts import (
    AddedUser,
    Change,
    LimitedUser,
    ListedUsers,
    RemovedUser,
    UserFacts,
    add_user,
    limit_user,
    list_users,
    remove_user,
    unended_runs,
)

P = ParamSpec("P")
T = TypeVar("T")
OVER_HTTP: tuple[Scope, ...] = ("spawn", "read")
"""The scopes of a new user's token, unless others are given."""


class UsersHandler:
    """Answers each request about users. A surface says in `check_added`, `check_limited` and `check_removed` who may.

    Args:
        root: The data root.
        settings: Returns its settings, with the limits of users as they are stored now. Blocking.
        log: Opens the log; None where there is none yet.
        changed: Records a change.
    """

    keeps_limits = False
    """A removed user's limits stay. Who may remove limits could also add the user again without them."""

    def __init__(
        self,
        root: DataRoot,
        settings: Callable[[], Settings],
        log: Callable[[], AbstractAsyncContextManager[Store | None]],
        changed: Change,
    ) -> None:
        self.root = root
        self.log = log
        self._settings = settings
        self._changed = changed

    async def check_added(self, user: str, scopes: Sequence[Scope]) -> None:
        """Raises AvaError if this user may not be added here, with these scopes."""

    async def check_limited(self, user: str, limits: dict[str, Any]) -> None:
        """Raises AvaError: these limits of a user may not be set here."""

    async def check_removed(self, user: str) -> None:
        """Raises AvaError if this user may not be removed here."""

    async def listed(self) -> ListedUsers:
        return ListedUsers(users=await self._users())

    async def added(
        self,
        name: str,
        daily_cents: int | None = None,
        running: int | None = None,
        spawns_per_hour: int | None = None,
        approval: Policy | None = None,
        workspaces: list[str] | None = None,
        roles: list[str] | None = None,
        scopes: Sequence[Scope] = OVER_HTTP,
        expires: str | None = None,
    ) -> AddedUser:
        """Create a user's token and set the limits that are given. Raises AvaError: nothing was changed."""
        user = user_name(name)
        ends_us = expiry(expires, now_us())
        await self.check_added(user, scopes)
        limits = _limits_set(daily_cents, running, spawns_per_hour, approval, workspaces, roles)
        token, text = await add_user(self.root, user, limits, scopes, ends_us, self._changed)
        return AddedUser(name=token.name, token=text, scopes=list(token.scopes), expires=expires)

    async def limited(
        self,
        name: str,
        daily_cents: int | None = None,
        running: int | None = None,
        spawns_per_hour: int | None = None,
        approval: Policy | None = None,
        workspaces: list[str] | None = None,
        roles: list[str] | None = None,
    ) -> LimitedUser:
        """Set the limits that are given; the others stay. Raises AvaError: nothing was changed."""
        user = user_name(name)
        limits = _limits_set(daily_cents, running, spawns_per_hour, approval, workspaces, roles)
        if not limits:
            raise BadInput("give at least one limit: daily_cents, running, spawns_per_hour or approval")
        await self.check_limited(user, limits)
        await limit_user(self.root, user, limits, self._changed)
        [facts] = [one for one in await self._users() if one.name == user]
        return LimitedUser(user=facts)

    async def removed(self, name: str) -> RemovedUser:
        """Remove a user; their runs and log stay. Raises AvaError: nothing was changed."""
        user = user_name(name)
        await self.check_removed(user)
        had = await remove_user(self.root, user, self._changed, keep_limits=self.keeps_limits)
        async with self.log() as store:
            unended = [] if store is None else await store.read(lambda view: unended_runs(view, user))
        return RemovedUser(
            revoked=[token.name for token in had.tokens],
            passkeys=[passkey.name for passkey in had.passkeys],
            limited=had.limited,
            limits_stay=self.keeps_limits,
            unended=unended,
        )

    async def _users(self) -> list[UserFacts]:
        settings = await anyio.to_thread.run_sync(self._settings)
        async with self.log() as store:
            return await list_users(settings, store)


def _limits_set(
    daily_cents: int | None,
    running: int | None,
    spawns_per_hour: int | None,
    approval: Policy | None,
    workspaces: list[str] | None,
    roles: list[str] | None,
) -> dict[str, Any]:
    limits = {
        "daily_cents": daily_cents,
        "running": running,
        "spawns_per_hour": spawns_per_hour,
        "approval": approval,
        "workspaces": workspaces,
        "roles": roles,
    }
    return {name: value for name, value in limits.items() if value is not None}


_USERS = "ava_server.service.user_accounts"
_LOST = "It may still have been carried out: see `ava user list`."
USERS = RecordRequest("/users", UsersHandler.listed, f"{_USERS}:ListedUsers")
ADD = RecordRequest("/users/{name}", UsersHandler.added, f"{_USERS}:AddedUser", method="POST", lost=_LOST)
LIMIT = RecordRequest("/users/{name}", UsersHandler.limited, f"{_USERS}:LimitedUser", method="PATCH", lost=_LOST)
REMOVE = RecordRequest("/users/{name}", UsersHandler.removed, f"{_USERS}:RemovedUser", method="DELETE", lost=_LOST)
