"""Checks of roles and what they need: role files, prices, secrets, and other MCP servers."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ava_roles.catalog import Catalog
from ava_roles.mcp_client.server_tools import server_of
from ava_roles.net.search_engines import Engine
from ava_roles.placeholders import secret_names
from ava_roles.role import Role
from ava_roles.sandbox.sandbox import Unavailable
from ava_roles.sandbox.selection import sandbox_here
from ava_roles.tool import Tool
from ava_roles.tools.registry import builtin_tools, specs_of
from ava_roles.wrap import list_names
from ava_server.approval.resolve_coding import lacks_model
from ava_server.approval.scope import usable_here
from ava_server.config.checks import setting_name
from ava_server.config.role_folders import places_here
from ava_server.config.search_engine import without_search
from ava_server.config.secrets import read_secrets
from ava_server.core.errors import AvaError, ConfigError
from ava_server.core.names import named, named_role
from ava_server.core.threads import run_async
from ava_server.models.listing import resolve_models
from ava_server.models.model_choice import Choice, ProviderSearch, unknown_prices
from ava_server.models.prices import unknown_price_words
from ava_server.run_config.config import RUN_TOOLS
from ava_server.service.checks import CheckFinding, Setup, from_error
from ava_server.service.checks.models import models_of, search_engine

if TYPE_CHECKING:
    from ava_roles.mcp_client.run_servers import ToolListing
    from ava_roles.mcp_client.server_tools import ServerEntry

MOST_NAMED = 20
"""The most tools of one server that are named."""
_FIX_FILE = "Correct that, or remove the file from the folder, then run `ava doctor` again."
_FIX_SERVER = (
    "Correct [mcp_servers.{name}] in config.toml, start its program by hand to see its output, then try again."
)
_NEEDS_MODEL = ("cannot run: no language model is set up, and this role needs one", "Set one up: see providers above.")
_UNCONFINED = "Use another role, or follow the advice on the sandbox."


def roles(setup: Setup) -> Iterator[CheckFinding]:
    """Report which role files cannot be used, and which roles can run."""
    catalog = places_here(setup.usable_root, setup.settings).load()
    models = _models_of(catalog, setup)
    obstacles = _obstacles(catalog, models, setup)
    without_model = [name for name, choice in models.items() if choice is None]
    able = [role.name for role in catalog.roles if role.name not in (*obstacles, *without_model)]
    if able:
        yield CheckFinding("roles", "ok", f"can run now: {', '.join(map(named_role, able))}")
    for problem in catalog.problems:
        yield from_error("role file", problem.text, _FIX_FILE)
    for note in catalog.notes:
        yield CheckFinding("role file", "note", note)
    if catalog.unread:
        yield CheckFinding("role file", "note", catalog.unread)
    for untrusted in catalog.untrusted:
        yield CheckFinding("role file", "note", untrusted.why, untrusted.step)
    if without_model:
        yield CheckFinding(
            "roles", "note", f"cannot run until their model can: {', '.join(map(named_role, without_model))}"
        )
    for name, (why_not, step) in obstacles.items():
        yield CheckFinding(f"role {name}", "note", why_not, step)


def _obstacles(catalog: Catalog, models: Mapping[str, Choice | None], setup: Setup) -> dict[str, tuple[str, str]]:
    """Return, by role, why it cannot run even if its model can, and the next step."""
    engine = None
    with suppress(AvaError):  # the check of keys reports this
        engine = search_engine(setup)
    tools = {*tools_on_this_machine(_sandbox_mode(setup), engine), *RUN_TOOLS}
    servers = _confinable_servers(setup)
    obstacles: dict[str, tuple[str, str]] = {}
    for role in catalog.roles:
        obstacle = _missing_tools(role, tools, servers)
        if obstacle is None and lacks_model(role, models[role.name]):
            obstacle = _NEEDS_MODEL
        if obstacle is not None:
            obstacles[role.name] = obstacle
    return obstacles


def _missing_tools(role: Role, tools: Collection[str], servers: Mapping[str, bool]) -> tuple[str, str] | None:
    """Return why a role lacks a tool that it needs, and the next step; None if it can run."""
    missing = [need for need in role.needs if need not in tools and not servers.get(server_of(need) or "")]
    if not missing:
        return None
    for need in missing:
        server = server_of(need)
        if server is None:
            continue
        if server in servers:
            return f'cannot run: the program of the MCP server "{server}" cannot be confined here', _UNCONFINED
        step = "Configure it: [mcp_servers.NAME] in config.toml."
        return f'cannot run: no MCP server "{server}" is configured', step
    if missing == ["web_search"] and "read_webpages" in role.tools:
        return "can only run if its task names pages: there is no web search", "Name the pages (https://…) in task."
    return _missing_builtins(missing)


def _missing_builtins(missing: Sequence[str]) -> tuple[str, str]:
    specs = specs_of(missing, {})
    if all(spec.edits for spec in specs):
        why = f"cannot run: {', '.join(missing)} need git, and a sandbox to verify the changes in"
        return why, "Use another role, install git, or set sandbox.mode to auto."
    if all(spec.edits or spec.commands for spec in specs):
        return f"cannot run: {', '.join(missing)} cannot be confined here", _UNCONFINED
    return f"cannot run: this version has no {', '.join(missing)}", "Use another role."


def tools_on_this_machine(mode: Literal["auto", "none"], engine: Engine | ProviderSearch | None) -> dict[str, Tool]:
    """Return the available built-in tools: web search with an engine, commands with a sandbox."""
    tools = usable_here(builtin_tools(), sandbox_here(mode))
    return tools if engine is not None else without_search(tools)


def _confinable_servers(setup: Setup) -> dict[str, bool]:
    """Return the configured MCP servers, and whether each is remote or its program can be confined."""
    configured = setup.settings.mcp_servers if setup.settings is not None else {}
    confined = not isinstance(sandbox_here(_sandbox_mode(setup)), Unavailable)
    return {name: server.url is not None or confined for name, server in configured.items()}


def _sandbox_mode(setup: Setup) -> Literal["auto", "none"]:
    return setup.settings.sandbox.mode if setup.settings is not None else "auto"


def _models_of(catalog: Catalog, setup: Setup) -> dict[str, Choice | None]:
    """Return the model of each role; None without one, which the check of models reports."""
    names = [role.name for role in catalog.roles]
    models = models_of(setup)
    if models is None or setup.settings is None:
        return dict.fromkeys(names)
    resolved = resolve_models(models, setup.settings.where, [role.model for role in catalog.roles])
    choices = [model.choice for model in resolved]
    return dict(zip(names, choices, strict=True))


def prices(setup: Setup) -> Iterator[CheckFinding]:
    """Report prices in the settings that belong to no known model."""
    models = models_of(setup)
    if models is None or not models.prices:
        return
    named = (role.model for role in places_here(setup.usable_root, setup.settings).load().roles)
    try:
        unknown = unknown_prices(models, named)
    except AvaError:  # the check of providers reports this
        return
    for key, near in unknown.items():
        step = (
            f"Correct its name, or remove it: ava config unset {shlex.quote(setting_name(('prices', key)))}."
            " A model that only calls name (`--model`) can have its price here."
        )
        yield CheckFinding("prices", "warning", unknown_price_words(key, near).removesuffix("."), step)


# -- secrets ----------------------------------------------------------------------------------------------------------


def secrets(setup: Setup) -> Iterator[CheckFinding]:
    """Report which secrets are stored and for which hosts, and which ones cannot be used; never a value."""
    name = "secrets"
    root = setup.usable_root
    if root is None:
        return
    try:
        stored = read_secrets(root.secrets_file)
    except ConfigError as error:
        step = f"Correct {root.secrets_file}, then see `ava secret list`; until then no secret is sent anywhere."
        yield from_error(name, str(error), step)
        return
    with_hosts = [f"{key} for {' and '.join(secret.hosts)}" for key, secret in stored.items() if secret.hosts]
    if with_hosts:
        yield CheckFinding(name, "ok", f"stored: {', '.join(with_hosts)}")
    texts: list[str] = []
    for server in setup.settings.mcp_servers.values() if setup.settings is not None else ():
        texts.extend((*server.env.values(), *server.headers.values()))
    used_by_servers = secret_names(texts)
    for key, secret in stored.items():
        if not secret.hosts and key not in used_by_servers:
            text = f"{key} is stored for no host, so no tool can send it"
            yield CheckFinding(name, "warning", text, f"Name its host: ava secret set {key} --for HOST")
    for role in places_here(root, setup.settings).load().roles:
        for key in role.secrets:
            if key not in stored:
                text = f"{named('role', role.name)} lists {key}, which is not stored: its calls lack it"
                yield CheckFinding(name, "note", text, f"Store it: ava secret set {key} --for HOST")


# -- other MCP servers ------------------------------------------------------------------------------------------------


def remote_servers_not_asked(setup: Setup) -> Iterator[CheckFinding]:
    """Report the remote MCP servers, which only `--online` asks."""
    for name, server in (setup.settings.mcp_servers if setup.settings is not None else {}).items():
        if server.url is not None:
            yield CheckFinding(f"MCP server {name}", "note", "not asked; see `ava doctor --online`")


def servers(setup: Setup, *, remote: bool = False) -> Iterator[CheckFinding]:
    """Report the tools of MCP servers: of programs, started for a moment, in parallel and for at most 10 s.

    With `remote`, of those that run elsewhere.
    """
    root = setup.usable_root
    settings = setup.settings
    if settings is None or not settings.mcp_servers or root is None:
        return
    from ava_server.approval.scope import sandbox_here
    from ava_server.runs.turn.run_tools import McpServers

    foreign = McpServers(settings, lambda: read_secrets(root.secrets_file), lambda: sandbox_here(settings))
    names = [name for name, entry in foreign.entries.items() if (entry.url is not None) == remote]
    listings: Mapping[str, ToolListing] = run_async(foreign.look, names) if names else {}
    unconfined = settings.sandbox.mode == "none"
    for name in names:
        yield _check_server(foreign.entries[name], listings[name], unconfined)


def _check_server(entry: ServerEntry, listing: ToolListing, unconfined: bool) -> CheckFinding:
    name = f"MCP server {entry.name}"
    access = _access(entry, unconfined)
    if listing.fault:
        step = _FIX_SERVER.format(name=entry.name)
        return CheckFinding(name, "fault", f"{entry.where}: it {listing.fault}; {access}", step)
    reading = [tool.name for tool in listing.tools if not tool.fault and not tool.changes]
    changing = [tool.name for tool in listing.tools if not tool.fault and tool.changes]
    faulty = [tool for tool in listing.tools if tool.fault]
    parts = [f"{entry.where}, {access}"]
    if reading:
        parts.append(f"declare that they only read: {list_names(reading, MOST_NAMED)}")
    if changing:
        names = list_names(changing, MOST_NAMED)
        parts.append(f"can change things, and are only used by their exact name: {names}")
    for tool in faulty[:MOST_NAMED]:
        parts.append(f"never offered, because {tool.fault}: {list_names([tool.name], MOST_NAMED)}")
    if not listing.tools:
        parts.append("it has no tools")
    return CheckFinding(name, "ok", "; ".join(parts))


def _access(entry: ServerEntry, unconfined: bool) -> str:
    if entry.url is not None:
        return "which runs elsewhere"
    if unconfined:
        return 'which is not confined (sandbox.mode = "none")'
    network = "with this machine's network" if entry.network else "without a network"
    if not entry.read_write:
        return f"{network}, sees none of your folders"
    return f"{network}, may write to {', '.join(map(str, entry.read_write))}"
