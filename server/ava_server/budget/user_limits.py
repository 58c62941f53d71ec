"""The limits of one user: the general settings, lowered by `[users.NAME]`, and what a user over HTTP may use here.

`[users.NAME]` can only take away. A user over HTTP works on another machine: folders, role files and programs here
belong to the operator.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ava_audit.units import micros_from_cents
from ava_roles import BUILT_IN_SOURCE
from ava_roles.catalog import Catalog
from ava_roles.errors import RolesError
from ava_roles.role import Role
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.sandbox.workspace import Workspace, resolve_workspace
from ava_server.budget.caps import DayCaps, Slots
from ava_server.config.role_folders import RolePlaces
from ava_server.config.settings import Policy, Settings, UserSettings
from ava_server.core.errors import BadInput

STRICTEST_FIRST: tuple[Policy, ...] = ("human", "ask", "auto")
FOREIGN_TOOL = "mcp__"
"""Prefix of the tools of MCP servers, which act with the operator's rights."""


def user_settings(settings: Settings, user: str) -> UserSettings:
    """Return the settings of a user; an unknown user has the defaults."""
    return settings.users.get(user, UserSettings())


def day_cents(settings: Settings, user: str) -> int:
    """Return what a user may spend in a UTC day."""
    own, all_users = user_settings(settings, user).daily_cents, settings.limits.user_daily_cents
    return all_users if own is None else min(own, all_users)


def day_caps(settings: Settings, user: str) -> DayCaps:
    """Return what may be spent in a day: by a user, and by all users."""
    of_all = settings.limits.installation_daily_cents
    return DayCaps(micros_from_cents(day_cents(settings, user)), micros_from_cents(of_all))


def day_setting(settings: Settings, user: str) -> str:
    """Return the name of the setting that limits a user's day."""
    if day_cents(settings, user) < settings.limits.user_daily_cents:
        return f"users.{user}.daily_cents in config.toml"
    return settings.user_day_setting


def running(settings: Settings, user: str) -> int:
    """Return how many runs of a user may be running."""
    own, each = user_settings(settings, user).running, settings.limits.running_per_user
    return each if own is None else min(own, each)


def spawns_per_hour(settings: Settings, user: str) -> int:
    """Return how many paid runs of a user may start in an hour without a person's answer."""
    own, each = user_settings(settings, user).spawns_per_hour, settings.limits.spawns_per_hour
    return each if own is None else min(own, each)


def spawns_setting(settings: Settings, user: str) -> str:
    """Return the setting that limits these starts, with the place in which to change it."""
    if spawns_per_hour(settings, user) < settings.limits.spawns_per_hour:
        return f"users.{user}.spawns_per_hour in {settings.paths.config}"
    return settings.where("limits", "spawns_per_hour", file=str(settings.paths.config))


def slots(settings: Settings) -> Slots:
    """Return how many runs may be running: per user, and in all."""
    own = {user: running(settings, user) for user in settings.users}
    return Slots(settings.limits.running_per_user, settings.limits.running, MappingProxyType(own))


def stricter_policy(settings: Settings, user: str, policy: Policy) -> Policy:
    """Return the policy for a user: the general one, or the user's own where that is stricter."""
    own = user_settings(settings, user).approval
    if own is None or STRICTEST_FIRST.index(policy) <= STRICTEST_FIRST.index(own):
        return policy
    return own


# -- over HTTP --------------------------------------------------------------------------------------------------------


def roles_over_http(settings: Settings, user: str, *, owner: bool) -> Catalog:
    """Return the roles of a user over HTTP: the built-in ones and the data root's. Blocks.

    Roles of projects and Claude Code's agents are only for the person at this machine. A role file that may use
    secrets, MCP servers, or commands with this machine's network acts with the operator's rights: only the operator and
    users whose `roles` name it have it.

    Args:
        settings: What is configured.
        user: The user.
        owner: It is the operating system's user, to whom the data root belongs.
    """
    named = user_settings(settings, user).roles

    def theirs(role: Role) -> bool:
        if named is not None:
            return role.name in named
        return owner or role.source == BUILT_IN_SOURCE or not _acts_for_operator(role)

    found = RolePlaces(settings.paths, None, False, None).load()
    roles = {name: role for name, role in found.by_name.items() if theirs(role)}
    # Problems and paths of files are shown only to the owner, who can fix them.
    return replace(found, by_name=MappingProxyType(roles), problems=found.problems if owner else (), untrusted=())


def _acts_for_operator(role: Role) -> bool:
    return (
        bool(role.secrets) or role.network or any(name.startswith(FOREIGN_TOOL) for name in (*role.tools, *role.needs))
    )


def workspace_roots(settings: Settings, user: str, *, owner: bool) -> tuple[Path, ...] | None:
    """Return the folders that contain every workspace of a user; None if the owner has set no such folders."""
    own = user_settings(settings, user).workspaces
    return (*settings.workspace.roots, *own) or None if owner else own


def named_folders(settings: Settings, user: str) -> tuple[Path, ...]:
    """Return the folders that `config.toml` names as workspaces for a user."""
    return (*settings.named_folders, *user_settings(settings, user).workspaces)


def workspace_over_http(asked: str | None, roots: tuple[Path, ...], data_root: Path, home: Path) -> Workspace:
    """Return the workspace that a call over HTTP names: only beneath the folders of `[users.NAME]`. Blocks.

    No other folder is ever used, and a refusal is the same whatever exists there.

    Raises:
        BadInput: This folder is not allowed.
    """
    beneath = " or ".join(map(str, roots))
    how = f"give a folder beneath {beneath}" if roots else "no folder is set for this user (workspaces in [users.NAME])"
    if asked is None or not asked.strip():
        return Workspace(None, False, f"no workspace was named; {how}")
    try:
        return resolve_workspace(
            asked=asked,
            client_roots=(),
            env=None,
            cwd=Path(data_root.anchor),
            roots=roots,
            data_root=data_root,
            home=home,
            allow=roots,
            only_roots=True,
        )
    except RolesError:
        raise BadInput(f"workspace: this user may not use {asked[:200]!r}; {how}") from None


def sandbox_over_http(found: Sandbox | Unavailable, settings: Settings) -> Sandbox | Unavailable:
    """Return the sandbox for commands of a user over HTTP, who may not run commands without one."""
    if settings.sandbox.mode == "none":
        return Unavailable("nothing confines commands here", "a person on the server sets sandbox.mode to auto")
    return found
