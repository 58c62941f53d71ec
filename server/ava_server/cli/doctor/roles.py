"""The roles: whether their files can be used, and whether each can run here now."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ava_roles.catalog import Catalog
from ava_roles.mcp_client.entry import server_of
from ava_roles.role import Role
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.tools.registry import builtin_tools, specs_of
from ava_server.approval.coding import changes_files
from ava_server.approval.scope import usable_here
from ava_server.budget.run_config import RUN_TOOLS
from ava_server.cli.doctor import confinement as probes
from ava_server.cli.doctor.check import Finding, Setup, from_error, log_path
from ava_server.cli.doctor.models import models_of
from ava_server.cli.doctor.search import search_engine
from ava_server.config.role_folders import places_here
from ava_server.config.search_engines import without_search
from ava_server.models.listing import meanings
from ava_server.models.selection import Choice

NEEDS_MODEL = (
    "cannot run: no language model is set up, and it takes one to change files",
    "Set one up, as is said of providers.",
)
MEND_FILE = "Correct that, or take the file out of the folder, then run `ava doctor` again."


def roles(setup: Setup) -> list[Finding]:
    """Tell which role files cannot be used, and which roles can run."""
    root = setup.root if log_path(setup) is not None else None  # one that can be none is told by its own check
    catalog = places_here(root, setup.settings).load()
    found = [from_error("role file", problem.text, MEND_FILE) for problem in catalog.problems]
    found += [Finding("role file", "note", problem.text) for problem in catalog.notes]
    found += [Finding("role file", "note", untrusted.why, untrusted.step) for untrusted in catalog.untrusted]
    tools, servers = {*_tools(setup), *RUN_TOOLS}, _servers(setup)
    held = {role.name: _held_back(role, tools, servers) for role in catalog.roles}
    chosen = _models(catalog, setup)
    for role in catalog.roles:
        choice = chosen[role.name]
        if held[role.name] is None and choice is not None and choice.wire == "offline" and changes_files(role.needs):
            held[role.name] = NEEDS_MODEL
    if unreachable := [name for name, choice in chosen.items() if choice is None]:
        found.append(Finding("roles", "note", f"cannot run until their model can: {', '.join(unreachable)}"))
    able = [name for name, why in held.items() if why is None and name not in unreachable]
    if able:
        found.insert(0, Finding("roles", "ok", f"can run now: {', '.join(able)}"))
    found += [Finding(f"role {name}", "note", *why) for name, why in held.items() if why is not None]
    return found


def _held_back(role: Role, tools: Collection[str], servers: Mapping[str, bool]) -> tuple[str, str] | None:
    """Return what a role cannot do for want of a tool that it needs, and what to do; None when it can run."""
    missing = [need for need in role.needs if need not in tools and not servers.get(server_of(need) or "")]
    if not missing:
        return None
    if foreign := [server for need in missing if (server := server_of(need)) is not None]:
        if foreign[0] in servers:
            why = f"cannot run: the program of the MCP server {foreign[0]} cannot be confined here"
            return why, "Use another role, or do what is said of confinement."
        what = "Configure it: [mcp_servers.NAME] in config.toml."
        return f"cannot run: no MCP server {foreign[0]} is configured", what
    if missing == ["web_search"] and "read_webpages" in role.tools:
        return "runs only where its task names the pages: there is no web search", "Name the pages (https://…) in task."
    specs = specs_of(missing, {})
    if all(spec.edits for spec in specs):
        why = f"cannot run: {', '.join(missing)} need git, and a sandbox that what was changed is verified in"
        return why, "Use another role, install git, or set sandbox.mode to auto."
    if all(spec.edits or spec.commands for spec in specs):
        why = f"cannot run: {', '.join(missing)} cannot be confined here"
        return why, "Use another role, or do what is said of confinement."
    return f"cannot run: this version has no {', '.join(missing)}", "Use another role."


def _tools(setup: Setup) -> list[str]:
    """Return the built-in tools that are there: a search with an engine, commands where something confines them."""
    known = usable_here(builtin_tools(), _sandbox(setup))
    return list(known if search_engine(setup) else without_search(known))


def _servers(setup: Setup) -> dict[str, bool]:
    """Return the MCP servers that are configured, and whether each may be started, or is reached by its address."""
    configured = setup.settings.mcp_servers if setup.settings is not None else {}
    confined = not isinstance(_sandbox(setup), Unavailable)
    return {name: server.url is not None or confined for name, server in configured.items()}


def _sandbox(setup: Setup) -> Sandbox | Unavailable:
    return probes.sandbox(setup.settings.sandbox.mode if setup.settings is not None else "auto")


def _models(catalog: Catalog, setup: Setup) -> dict[str, Choice | None]:
    """Return the model of each role; None where it cannot be had, which is told of the models themselves."""
    models = models_of(setup)
    if models is None:
        return {role.name: None for role in catalog.roles}
    assert setup.settings is not None
    means = meanings((role.model for role in catalog.roles), models, setup.settings)
    return {role.name: meant.choice for role, meant in zip(catalog.roles, means, strict=True)}
