"""What one user may do: what holds for everybody, lowered by `[users.NAME]`, and what HTTP leaves of this machine.

Whatever stands in `[users.NAME]` can only take away. A user over HTTP sits at another machine: the folders, role files
and programs that are at hand here are the operator's, and are not theirs because the server runs among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from ava_audit.units import micros_from_cents
from ava_roles.catalog import BUILT_IN_SOURCE, Catalog
from ava_roles.errors import RolesError
from ava_roles.role import Role
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.sandbox.workspace import Workspace, resolve_workspace
from ava_server.budget.caps import DayCaps
from ava_server.config.role_folders import RolePlaces
from ava_server.config.settings import Policy, Settings, UserSettings
from ava_server.core.errors import BadInput

STRICTEST_FIRST: tuple[Policy, ...] = ("human", "ask", "auto")
FOREIGN_TOOL = "mcp__"
"""With this begin the names of tools of other MCP servers, which act with the operator's rights."""


@dataclass(frozen=True)
class Slots:
    """How many runs may be running: of each user, in all, and of users who have fewer of their own."""

    per_user: int
    total: int
    own: Mapping[str, int] = field(default_factory=dict[str, int])

    def full(self, running: Mapping[str, int], user: str) -> str | None:
        """Return why one more run of a user cannot run beside these (how many, by user), or None."""
        if sum(running.values()) >= self.total:
            return f"all {self.total} slots are taken"
        each = self.own.get(user, self.per_user)
        if running.get(user, 0) >= each:
            return f"all {each} slots of {user} are taken"
        return None


def user_settings(settings: Settings, user: str) -> UserSettings:
    """Return what the settings say of a user; one whom they do not know has the defaults."""
    return settings.users.get(user, UserSettings())


def day_cents(settings: Settings, user: str) -> int:
    """Return what a user may spend in a UTC day."""
    own, all_users = user_settings(settings, user).daily_cents, settings.limits.user_daily_cents
    return all_users if own is None else min(own, all_users)


def day_caps(settings: Settings, user: str) -> DayCaps:
    """Return what may be spent in a day: by a user, and in all."""
    of_all = settings.limits.installation_daily_cents
    return DayCaps(micros_from_cents(day_cents(settings, user)), micros_from_cents(of_all))


def day_setting(settings: Settings, user: str) -> str:
    """Return what holds a user's day, and where it stands."""
    if day_cents(settings, user) < settings.limits.user_daily_cents:
        return f"users.{user}.daily_cents in config.toml"
    return settings.user_day_setting


def running(settings: Settings, user: str) -> int:
    """Return how many runs of a user may be running."""
    own, each = user_settings(settings, user).running, settings.limits.running_per_user
    return each if own is None else min(own, each)


def slots(settings: Settings) -> Slots:
    """Return how many runs may be running: of each user, and in all."""
    own = {user: running(settings, user) for user in settings.users}
    return Slots(settings.limits.running_per_user, settings.limits.running, MappingProxyType(own))


def stricter_policy(settings: Settings, user: str, policy: Policy) -> Policy:
    """Return the policy for a user: what holds for everybody, or the user's own where that is stricter."""
    own = user_settings(settings, user).approval
    if own is None or STRICTEST_FIRST.index(policy) <= STRICTEST_FIRST.index(own):
        return policy
    return own


# -- over HTTP --------------------------------------------------------------------------------------------------------


def roles_over_http(settings: Settings, user: str, *, owner: bool) -> Catalog:
    """Return the roles of a user over HTTP: the built-in ones and the data root's. Blocking.

    Those of a project and Claude Code's agents belong to who works at this machine. A role file that may use secrets,
    tools of other MCP servers, or commands on this machine's network acts with what is the operator's: it is there for
    the operator, and for a user whose `roles` name it.

    Args:
        settings: What is configured.
        user: Whose roles.
        owner: It is the user of the operating system, whom all that belongs to.
    """
    named = user_settings(settings, user).roles

    def theirs(role: Role) -> bool:
        if named is not None:
            return role.name in named
        return owner or role.source == BUILT_IN_SOURCE or not _acts_for_operator(role)

    found = RolePlaces(settings.paths, None, False, None).load()
    roles = {name: role for name, role in found.by_name.items() if theirs(role)}
    # What is wrong with a file, and where it lies, is for who can mend it.
    return replace(found, by_name=MappingProxyType(roles), problems=found.problems if owner else (), untrusted=())


def _acts_for_operator(role: Role) -> bool:
    return (
        bool(role.secrets) or role.network or any(name.startswith(FOREIGN_TOOL) for name in (*role.tools, *role.needs))
    )


def workspace_over_http(asked: str | None, roots: tuple[Path, ...], data_root: Path, home: Path) -> Workspace:
    """Return the workspace that a call over HTTP names: beneath what `[users.NAME]` gives, and nothing else.

    No other folder is ever found for it, and a refusal is the same whatever lies there. Blocking.

    Raises:
        BadInput: It may not be given.
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
            only_roots=True,
        )
    except RolesError:
        raise BadInput(f"workspace: {asked[:200]!r} is no folder that this user may give; {how}") from None


def sandbox_over_http(found: Sandbox | Unavailable, settings: Settings) -> Sandbox | Unavailable:
    """Return what confines commands of a user over HTTP: without confinement there are none."""
    if settings.sandbox.mode == "none":
        return Unavailable("nothing confines commands here", "a person on the server sets sandbox.mode to auto")
    return found
