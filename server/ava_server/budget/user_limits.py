"""What a user and all users may spend in a day and run at once: the settings, lowered by `[users.NAME]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ava_audit.units import micros_from_cents
from ava_server.config.checks import setting_name
from ava_server.config.settings import BY_HOST, ApprovalSetting, Policy, Settings, UserSettings

if TYPE_CHECKING:
    from ava_server.hosts.clients import ConnectedHost

STRICTEST_FIRST: tuple[Policy, ...] = ("human", "ask", "auto")


@dataclass(frozen=True)
class DayCaps:
    """What may be spent in a UTC day, in micro-USD; 0 allows nothing."""

    user_micros: int
    installation_micros: int


@dataclass(frozen=True)
class Slots:
    """How many runs may be running: per user, in all, and of users with a limit of their own."""

    per_user: int
    total: int
    own: Mapping[str, int] = field(default_factory=dict[str, int])

    def full(self, running: Mapping[str, int], user: str) -> str | None:
        """Return why one more run of a user cannot run, given how many run by user; or None."""
        if sum(running.values()) >= self.total:
            return f"all {self.total} slots are taken"
        each = self.own.get(user, self.per_user)
        if running.get(user, 0) >= each:
            return f"all {each} slots of {user} are taken"
        return None


def user_scope(user: str, day: str) -> str:
    return f"user:{user}:{day}"


def installation_scope(day: str) -> str:
    return f"all:{day}"


def user_settings(settings: Settings, user: str) -> UserSettings:
    return settings.users.get(user, UserSettings())


def day_cents(settings: Settings, user: str) -> int:
    return _stricter(user_settings(settings, user).daily_cents, settings.limits.user_daily_cents)


def day_caps(settings: Settings, user: str) -> DayCaps:
    of_all = settings.limits.installation_daily_cents
    return DayCaps(micros_from_cents(day_cents(settings, user)), micros_from_cents(of_all))


def day_setting(settings: Settings, user: str) -> str:
    if day_cents(settings, user) < settings.limits.user_daily_cents:
        return f"users.{user}.daily_cents in config.toml"
    return settings.user_day_setting


def running(settings: Settings, user: str) -> int:
    return _stricter(user_settings(settings, user).running, settings.limits.running_per_user)


def spawns_per_hour(settings: Settings, user: str) -> int:
    return _stricter(user_settings(settings, user).spawns_per_hour, settings.limits.spawns_per_hour)


def _stricter(own: int | None, each: int) -> int:
    return each if own is None else min(own, each)


def spawns_setting(settings: Settings, user: str) -> str:
    """Return the setting that limits these starts, with the place in which to change it."""
    if spawns_per_hour(settings, user) < settings.limits.spawns_per_hour:
        return f"users.{user}.spawns_per_hour in {settings.paths.config}"
    return settings.where("limits", "spawns_per_hour", file=str(settings.paths.config))


def slots(settings: Settings) -> Slots:
    own = {user: running(settings, user) for user in settings.users}
    return Slots(settings.limits.running_per_user, settings.limits.running, MappingProxyType(own))


def policy_in_force(
    settings: Settings,
    *users: str,
    pin: bool | None = None,
    through: ConnectedHost | None = None,
    made_under: Iterable[Policy] = (),
) -> tuple[Policy, str]:
    """Return who may approve, and what says so, such as `approval = "human"`. Blocking.

    That is the strictest of the general policy and these users' own, and `human` while there is a PIN. The general
    policy is that of the host, `[hosts.NAME]`, where there is one; under `by_host` it follows what the client is known
    to show. Nothing else says who may approve. A decision about another user's run names both users.

    `pin`: whether there is one, where the caller knows that and the users' limits; None looks both up. `through` is the
    client's connection through which the approval would come; None is a person's own terminal or browser. `made_under`
    are the policies under which the runs were proposed: none of them is ever loosened by where the approval comes from.
    Raises ConfigError if the PIN's file or the limits of users cannot be read.
    """
    if pin is None:
        from ava_server.config.changes import with_shared_users
        from ava_server.config.pin import PinFile

        settings, pin = with_shared_users(settings), PinFile(settings.paths.approval_file).is_set
    if pin:
        return "human", "there is an approval PIN"
    policies = [_general_policy(settings, through)]
    for proposed_under in made_under:
        policies.append((proposed_under, f'it was proposed under approval = "{proposed_under}"'))
    for user in users:
        own = user_settings(settings, user).approval
        if own is not None:
            policies.append((own, f'[{setting_name(("users", user))}] approval = "{own}"'))
    return min(policies, key=lambda each: STRICTEST_FIRST.index(each[0]))


def approval_of_user(settings: Settings, user: str, *, pin: bool) -> ApprovalSetting:
    """Return who may approve for a user as their setting has it: `by_host` where that depends on the host."""
    policy, why = policy_in_force(settings, user, pin=pin)
    return "by_host" if why == BY_HOST else policy


def strictest(policies: Iterable[Policy]) -> Policy:
    return min(policies, key=STRICTEST_FIRST.index)


def _general_policy(settings: Settings, through: ConnectedHost | None) -> tuple[Policy, str]:
    general = settings.approval
    by_variable = ("approval",) in settings.from_environment
    for name in through.settings_names if through is not None else ():
        if name not in settings.hosts:
            continue
        own = settings.hosts[name].approval
        if own is not None and (own == "human" or not by_variable):  # a variable of the process only tightens
            return own, f'[{setting_name(("hosts", name))}] approval = "{own}"'
    if general != "by_host":
        return general, f'approval = "{general}"'
    if through is None:
        return "ask", BY_HOST
    return through.policy()


def workspace_roots(settings: Settings, user: str, *, owner: bool) -> tuple[Path, ...] | None:
    """Return the folders that contain every workspace of a user; None if the owner has set no such folders."""
    own = user_settings(settings, user).workspaces
    if not owner:
        return own
    return (*settings.workspace.roots, *own) or None


def named_folders(settings: Settings, user: str) -> tuple[Path, ...]:
    """Return the folders that `config.toml` names as workspaces for a user."""
    return (*settings.named_folders, *user_settings(settings, user).workspaces)
