"""The roles, folders and sandbox of users over HTTP.

They work on another machine: folders, role files and programs here belong to the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ava_roles import BUILT_IN_SOURCE
from ava_roles.catalog import Catalog
from ava_roles.errors import RolesError
from ava_roles.mcp_client.server_tools import PREFIX
from ava_roles.role import Role
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.sandbox.workspace import Workspace, resolve_workspace
from ava_server.budget.user_limits import user_settings
from ava_server.config.role_folders import RolePlaces
from ava_server.config.settings import Settings
from ava_server.core.errors import BadInput


def roles_over_http(settings: Settings, user: str, *, owner: bool) -> Catalog:
    """Return the roles of a user over HTTP: the built-in ones and the data root's. Blocks.

    Roles of projects and Claude Code's agents are only for the person at this machine. A role file that may use
    secrets, MCP servers, or commands with this machine's network acts with the operator's rights: only the operator and
    users whose `roles` name it have it.

    `owner`: it is the operating system's user, to whom the data root belongs.
    """
    own_roles = user_settings(settings, user).roles
    catalog = RolePlaces(settings.paths, None, False, None).load()
    roles = {name: role for name, role in catalog.by_name.items() if _may_use(role, own_roles, owner=owner)}
    # Problems and paths of files are shown only to the owner, who can fix them.
    problems = catalog.problems if owner else ()
    return replace(catalog, by_name=MappingProxyType(roles), problems=problems, untrusted=())


def _may_use(role: Role, own_roles: tuple[str, ...] | None, *, owner: bool) -> bool:
    if own_roles is not None:
        return role.name in own_roles
    if owner or role.source == BUILT_IN_SOURCE:
        return True
    # The tools of MCP servers act with the operator's rights.
    uses_servers = any(name.startswith(PREFIX) for name in (*role.tools, *role.needs))
    return not (role.secrets or role.network or uses_servers)


def workspace_over_http(requested: str | None, roots: tuple[Path, ...], data_root: Path, home: Path) -> Workspace:
    """Return the workspace that a call over HTTP names: only beneath the folders of `[users.NAME]`. Blocks.

    No other folder is ever used, and a refusal is the same whatever exists there.

    Raises:
        BadInput: This folder is not allowed.
    """
    if roots:
        how = f"give a folder beneath {' or '.join(map(str, roots))}"
    else:
        how = "no folder is set for this user (workspaces in [users.NAME])"
    if requested is None or not requested.strip():
        return Workspace(None, False, f"no workspace was named; {how}")
    try:
        return resolve_workspace(
            asked=requested,
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
        raise BadInput(f"workspace: this user may not use {requested[:200]!r}; {how}") from None


def sandbox_over_http(find: Callable[[], Sandbox | Unavailable], settings: Settings) -> Sandbox | Unavailable:
    """Return the sandbox for commands of a user over HTTP, who may not run commands without one. Blocks."""
    if settings.sandbox.mode == "none":
        return Unavailable("nothing confines commands here", "a person on the server sets sandbox.mode to auto")
    return find()
