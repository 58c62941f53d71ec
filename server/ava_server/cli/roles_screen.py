"""How `ava roles` looks, in 80 columns: the list, one role with what it resolves to; and the list as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ava_audit.units import format_usd, micros_from_cents
from ava_roles.mcp_client.entry import server_of
from ava_roles.role import first_sentence
from ava_roles.tool import ToolArgs, ToolSpec
from ava_roles.wrap import clean
from ava_server.approval.summary import minutes, reach
from ava_server.cli.terminal import wrapped

if TYPE_CHECKING:
    from ava_roles.catalog import Catalog, UntrustedFile
    from ava_roles.role import Role
    from ava_server.config.role_folders import RolePlaces
    from ava_server.config.settings import Settings
    from ava_server.models.listing import TierMeaning

WIDTH = 80

Specs = Mapping[str, ToolSpec]


def screen(places: RolePlaces, catalog: Catalog, means: Sequence[TierMeaning], known: Specs) -> list[str]:
    """Return the whole list but its first line."""
    about = dict(zip((role.name for role in catalog.roles), means, strict=False))
    lines = [f"Project: {places.project}" if places.project else "No project here: this folder is in no repository."]
    for role in catalog.roles:
        lines += ["", f"{role.name}  {_model(role, about.get(role.name))}"]
        lines += _indented(first_sentence(role.description))
        lines += _indented(_limits(role))
        lines += _indented(f"source: {role.source}")
        lines += _tool_lines(role, known)
    for head, said in (
        ("Cannot be used:", [problem.text for problem in catalog.problems]),
        ("Means nothing here:", [note.text for note in catalog.notes]),
        ("Not trusted:", [f"{each.name}: {each.why}." for each in catalog.untrusted]),
    ):
        lines += ["", head, *(line for one in said for line in _indented(one))] if said else []
    for command in dict.fromkeys(each.command for each in catalog.untrusted):
        lines += ["  Read them, and trust them if you do:", f"  {command}"]  # on a line of its own, to be copied whole
    return lines


def as_facts(places: RolePlaces, catalog: Catalog, means: Sequence[TierMeaning], known: Specs) -> dict[str, Any]:
    """Return the same as plain JSON."""
    about = dict(zip((role.name for role in catalog.roles), means, strict=False))
    return {
        "project": str(places.project) if places.project else None,
        "roles": [_facts(role, about.get(role.name), known) for role in catalog.roles],
        "problems": [
            {"file": each.source, "line": each.line, "key": each.key, "reason": each.reason}
            for each in catalog.problems
        ],
        "notes": [note.text for note in catalog.notes],
        "untrusted": [
            {"name": each.name, "file": each.file.source, "sha256": each.file.sha256, "changed": each.changed,
             "problem": each.problem.text if each.problem else None, "what_to_do": each.step}
            for each in catalog.untrusted
        ],
    }  # fmt: skip


def role_screen(role: Role, meant: TierMeaning | None, settings: Settings, why: str, known: Specs) -> list[str]:
    """Return one role: what it resolves to, its file, and the system prompt of a subagent."""
    lines = [f"{role.name}  ({role.source})"]
    lines += _indented(why) if why else []
    lines += _indented(" ".join(role.description.split()))
    lines += _indented(f"model: {_model(role, meant)}")
    if meant is not None and meant.error is not None:
        lines += _indented(f"  {meant.error}")
    lines += _indented(f"limits: {_limits(role)}")
    lines += [line for note in _clamps(role, meant, settings) for line in _indented(f"  {note}")]
    lines += _tool_lines(role, known)
    lines += _reach_line(role)
    lines += [line for said in _further(role) for line in _indented(said)]
    if role.ignored_keys:
        lines += _indented(f"means nothing here, and is passed over: {', '.join(role.ignored_keys)}")
    text, unseen = clean(role.text)
    hidden = f" ({unseen} characters that are not seen are left out here)" if unseen else ""
    prompt = _prompt(role, meant, settings, known)
    head = "The system prompt, where a folder is named and the spawn adds no words:"
    return [*lines, "", f"The file{hidden}:", "", text.rstrip(), "", head, "", prompt]


def trust_lines(untrusted: UntrustedFile, taken: str | None, known: Specs) -> list[str]:
    """Return what a person has to know before a file of a project counts."""
    role = untrusted.role
    state = "changed since it was trusted" if untrusted.changed else "new"
    if role is None:
        problem = untrusted.problem.reason if untrusted.problem else ""
        return [
            f"{untrusted.file.source}  ({state})",
            *_indented(f"is no role file, and is not trusted: {problem}"),
        ]
    lines = [f"{role.name}  ({untrusted.file.source}, {state}, sha256 {untrusted.file.sha256[:12]})"]
    lines += _indented(first_sentence(role.description))
    lines += _indented(f"model: {role.model}; limits: {_limits(role)}")
    lines += _tool_lines(role, known)
    lines += _reach_line(role)
    lines += [line for said in _further(role) for line in _indented(said)]
    if taken:
        lines += _indented(f"it will not count all the same: the name is taken ({taken})")
    return lines


def _reach_line(role: Role) -> list[str]:
    """Return what a role's tools may do if all of them are there; its MCP servers are not asked."""
    from ava_roles.tools.registry import specs_of

    unasked = [ToolSpec(name, "", ToolArgs, foreign={}) for name in role.tools if server_of(name) is not None]
    return _indented(f"it {reach([*specs_of(role.tools, {}), *unasked])}")


def _facts(role: Role, meant: TierMeaning | None, known: Specs) -> dict[str, Any]:
    here, not_here = _tools(role, known)
    return {
        "name": role.name,
        "description": role.description,
        "source": role.source,
        "model": role.model,
        "means": meant.choice.name if meant is not None and meant.choice is not None else None,
        "timeout": role.timeout_s,
        "max_cost_cents": role.max_cost_cents,
        "max_tokens": role.max_tokens,
        "max_iterations": role.max_iterations,
        "max_tool_calls": role.max_tool_calls,
        "tools": list(here),
        "unavailable_tools": list(not_here),
        "ignored": list(role.ignored_keys),
    }


def _model(role: Role, meant: TierMeaning | None) -> str:
    if meant is None:
        return role.model
    name = meant.choice.name if meant.choice is not None else "cannot be had here"
    return role.model if name == role.model else f"{role.model} ({name})"


def _limits(role: Role) -> str:
    cost = format_usd(micros_from_cents(role.max_cost_cents), exact=True)
    return (
        f"{cost}, {minutes(role.timeout_s)}, {role.max_iterations} turns, {role.max_tool_calls} calls,"
        f" {role.max_tokens:,} tokens"
    )


def _tools(role: Role, known: Specs) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the role's tools that are here, and those that are not."""
    return tuple(tool for tool in role.tools if tool in known), tuple(tool for tool in role.tools if tool not in known)


def _tool_lines(role: Role, known: Specs) -> list[str]:
    here, others = _tools(role, known)
    foreign = [tool for tool in others if server_of(tool) is not None]
    not_here = [tool for tool in others if tool not in foreign]
    lines = _indented(f"tools: {', '.join(here) or 'none'}")
    if foreign:
        lines += _indented(f"of other MCP servers, looked for at each proposal: {', '.join(foreign)}")
    return lines + (_indented(f"not here: {', '.join(not_here)}") if not_here else [])


def tools_here(settings: Settings) -> Specs:
    """Return what is said of each tool that is here: a search with an engine, commands where something confines them.

    Raises:
        AvaError: The keys cannot be read.
    """
    from ava_roles.tools.registry import builtin_tools
    from ava_roles.tools.run_tools import RUN_SPECS
    from ava_server.approval.scope import usable_here
    from ava_server.cli.doctor.confinement import sandbox
    from ava_server.config.keys import read_keys
    from ava_server.config.search_engines import engine_of, without_search

    tools = usable_here(builtin_tools(), sandbox(settings.sandbox.mode))
    if engine_of(settings.search, read_keys(settings.paths.keys)) is None:
        tools = without_search(tools)
    return {spec.name: spec for spec in (*(tool.spec for tool in tools.values()), *RUN_SPECS)}


def _further(role: Role) -> list[str]:
    """Return what else a role's file asks for."""
    return [
        said
        for said, asked in (
            (f"needs: {', '.join(role.needs)}", role.needs),
            (f"may use the secrets: {', '.join(role.secrets)}", role.secrets),
            ("its commands may reach the network", role.network),
            (f"runs to prepare: {role.setup}", role.setup),
            (f"runs to verify: {role.verify}", role.verify),
            (f"carries over: {', '.join(role.carry)}", role.carry),
            ("plans before it works", role.plan),
            ("thinks before it answers, where the model can be told to", role.extended_thinking),
        )
        if asked
    ]


def _clamps(role: Role, meant: TierMeaning | None, settings: Settings) -> tuple[str, ...]:
    from ava_server.approval.requests import SpawnArgs
    from ava_server.approval.resolve import caps_of

    if meant is None or meant.choice is None:
        return ()
    return caps_of(SpawnArgs(role=role.name, task="-"), role, meant.choice, settings.limits)[1]


def _prompt(role: Role, meant: TierMeaning | None, settings: Settings, known: Specs) -> str:
    from ava_roles.memory import Memory
    from ava_roles.prompt import system_prompt

    notes = not Memory(settings.paths.memory).is_empty()
    hard = settings.limits
    free = meant is not None and meant.choice is not None and meant.choice.price.free
    most = hard.max_tokens_deep if role.model == "deep" else hard.max_tokens
    cost = min(role.max_cost_cents, hard.max_cost_cents)
    limits = {
        "time": minutes(min(role.timeout_s, hard.max_timeout_s)),
        "money": "free" if free else format_usd(micros_from_cents(cost), exact=True),
        "tokens": f"{min(role.max_tokens, most):,}",
        "turns": str(min(role.max_iterations, hard.max_iterations)),
        "tool calls": str(min(role.max_tool_calls, hard.max_tool_calls)),
    }
    tools = [known[name] for name in role.tools if name in known]
    tools = [spec for spec in tools if not spec.results and (notes or not spec.memory)]
    return system_prompt(role, system_prompt=None, context=None, tools=tools, limits=limits, output_schema=None)


def _indented(text: str) -> list[str]:
    """Return a text under a name: two blanks deep, on one line or where it has to be several."""
    return wrapped(f"  {' '.join(clean(text)[0].split())}", WIDTH).split("\n")
