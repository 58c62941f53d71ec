"""`ava agents`: the coding agents that can do a run, what of them is installed, and whether a turn works."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ava_extras import has_extra, install_command, load, missing
from ava_roles.errors import RolesError
from ava_roles.sandbox.command_workspace import find_agent
from ava_roles.sandbox.sandbox import INSTALL_BUBBLEWRAP, Sandbox, Unavailable
from ava_server.approval.scope import sandbox_here
from ava_server.cli.log_access import read_settings
from ava_server.cli.options import Json
from ava_server.cli.terminal import aligned, present, steps_on_terminal
from ava_server.config.agents import AgentSpec, agents_of
from ava_server.config.settings import Settings
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import suggestion
from ava_server.core.threads import run_async
from ava_server.models.json_text import as_object

_LIST, _CHECK = "list", "check"


def agents_command(
    action: Annotated[
        str, typer.Argument(metavar="[list|check]", help="list, or check: have agents take a turn.")
    ] = _LIST,
    name: Annotated[str | None, typer.Argument(metavar="AGENT", help="Only this agent.")] = None,
    as_json: Json = False,
) -> None:
    """Show the coding agents that can do a run (`runner: acp:AGENT`), and whether they are installed here.

    `ava agents check` has each that is installed take a turn in the sandbox, with a model on this machine: it costs
    nothing.
    """
    settings = read_settings()
    known = agents_of(settings)
    if action not in (_LIST, _CHECK):
        raise BadInput(f"ava agents {action}: give list or check.{suggestion(action, (_LIST, _CHECK))}")
    if name is not None and name not in known:
        raise BadInput(f"There is no agent {name!r}.{suggestion(name, known)} Known: {', '.join(known)}.")
    checks = action == _CHECK
    settings.paths.create()  # the sandbox is tried out there
    sandbox = sandbox_here(settings)
    if checks and not has_extra("agents"):
        raise Refused(missing("agents"))
    specs = list(known.values())
    if name is not None:
        specs = [known[name]]
    if checks:
        rows = _check_all(specs, settings, sandbox)
    else:
        rows = [_facts(spec, sandbox) for spec in specs]
    table = [("agent", "version", "formats", "usable")]
    for row in rows:
        table.append((row["agent"], row["version"] or "-", ", ".join(row["wires"]) or "-", _state(row)))
    present(settings.paths, as_json, {"agents": rows}, aligned(table))
    if checks and not all(_is_fine(row, required=name is not None) for row in rows):
        raise typer.Exit(1)


def _is_fine(row: Mapping[str, Any], *, required: bool) -> bool:
    """Tell whether an agent works, or is not usable here and not `required`."""
    if "works" in row:
        return bool(row["works"])
    return not row["usable"] and not required


def _check_all(specs: Sequence[AgentSpec], settings: Settings, sandbox: Sandbox | Unavailable) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with steps_on_terminal(len(specs)) as begin:
        for spec in specs:
            begin(f"{spec.title} takes a turn")
            rows.append(_check(spec, settings, sandbox))
    return rows


def _check(spec: AgentSpec, settings: Settings, sandbox: Sandbox | Unavailable) -> dict[str, Any]:
    """Return the facts about an agent; where it is usable, it takes a turn first."""
    row = _facts(spec, sandbox)
    if row["usable"] and not isinstance(sandbox, Unavailable):
        try:
            row |= run_async(load("agents").check_agent, spec, settings, sandbox)
        except (AvaError, RolesError, TimeoutError) as error:
            row |= {"works": False, "why_not": str(error) or f"{spec.title} took no turn within 90 s"}
    return row


def _facts(spec: AgentSpec, sandbox: Sandbox | Unavailable) -> dict[str, Any]:
    program = version = None
    problem = ""
    try:
        path = find_agent(spec.command[0], None)
    except RolesError as error:
        problem = str(error)
        if spec.npm:
            problem += f" (npm install -g {spec.npm})"
    else:
        program, version = str(path), _version(path)
    if not spec.wires:
        problem = "it asks its model in a format that Ava does not speak yet"
    elif not problem:
        problem = _problem_here(sandbox)
    return {
        "agent": spec.name,
        "title": spec.title,
        "program": program,
        "version": version,
        "wires": list(spec.wires),
        "first_bytes": spec.first_bytes,
        "usable": not problem,
        "why_not": problem,
    }


def _problem_here(sandbox: Sandbox | Unavailable) -> str:
    """Return why no agent can do a run on this machine; empty where one can."""
    if not has_extra("agents"):
        return f"without the extra agents; add it with: {install_command('agents')}"
    if isinstance(sandbox, Unavailable):
        return f"{sandbox.why}; {sandbox.what_to_do}"
    if sandbox.kind != "bubblewrap":
        return f"commands are confined by {sandbox.kind} here, and agents need bubblewrap: {INSTALL_BUBBLEWRAP}"
    return ""


def _version(program: Path) -> str | None:
    """Return the version of an npm package's program, with that of what it bundles."""
    for folder in program.resolve().parents:
        try:
            package = as_object(json.loads((folder / "package.json").read_text("utf-8"))) or {}
        except (OSError, ValueError):
            continue
        if "version" in package:
            text = str(package["version"])
            needs = as_object(package.get("dependencies")) or {}
            for name in _BUNDLED:
                if name in needs:
                    text += f", runs its own {name} {needs[name]}"
            return text
    return None


_BUNDLED = ("@anthropic-ai/claude-agent-sdk", "@openai/codex", "@openai/codex-sdk")
"""What adapters bundle: that is what runs, not the program that a person starts in a terminal."""


def _state(row: dict[str, Any]) -> str:
    if row["why_not"]:
        return f"no: {row['why_not']}"
    if "works" not in row:
        return "yes"
    if not row["works"]:
        return f"no: it ended its turn with {row['stop']} after {row['requests']} requests"
    size, tools = row["first_bytes"], len(row["tools"])
    return f"yes: a turn in {row['seconds']} s, first request {size:,} bytes, {tools} tools"
