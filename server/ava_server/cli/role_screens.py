"""The texts of `ava roles`, in 80 columns: the list, one role and what it means here, and a file to trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ava_audit.units import minutes
from ava_roles.catalog import Catalog, UntrustedFile
from ava_roles.mcp_client.tools import server_of
from ava_roles.memory import Memory
from ava_roles.role import Role, effect_words, first_sentence, system_prompt
from ava_roles.skills import FILE as SKILL_FILE
from ava_roles.skills import Skill
from ava_roles.tool import ToolArgs, ToolSpec
from ava_roles.tools.registry import specs_of, tool_specs
from ava_roles.tools.run import RUN_SPECS
from ava_roles.wrap import clean, list_names, show_controls
from ava_server.approval.coding import lacks_model
from ava_server.approval.reach import reach
from ava_server.approval.requests import SpawnArgs
from ava_server.approval.run_caps import caps_of
from ava_server.approval.summary import why_unavailable
from ava_server.budget.run_config import CAPS, COST, RunCap, limits_for_model
from ava_server.cli.terminal import one_line, wrapped_lines
from ava_server.config.credentials import model_settings
from ava_server.config.keys import read_keys
from ava_server.config.role_folders import RolePlaces
from ava_server.config.search_engines import any_search
from ava_server.config.settings import Settings
from ava_server.core.ids import model_words
from ava_server.models.listing import ResolvedModel
from ava_server.service.checks.roles import tools_on_this_machine

WIDTH = 80
_NO_MODEL = "cannot run: no language model is set up, and this role needs one (`ava doctor` says how)"

Specs = Mapping[str, ToolSpec]


def list_screen(places: RolePlaces, catalog: Catalog, means: Sequence[ResolvedModel], known: Specs) -> list[str]:
    """Return the list, without its first line."""
    models = dict(zip((role.name for role in catalog.roles), means, strict=False))
    lines = [f"Project: {places.project}" if places.project else "No project: this folder is not in a repository."]
    for role in catalog.roles:
        lines += ["", f"{role.name}  {_model(role, models.get(role.name))}"]
        lines += _indent(first_sentence(role.description), _limits(role), f"source: {role.source}")
        lines += _tool_lines(role, known)
        lines += _unable(role, models.get(role.name))
    for head, texts in (
        ("Cannot be used:", [problem.text for problem in catalog.problems]),
        ("Means nothing here:", list(catalog.notes)),
        ("Not read:", [f"{catalog.unread}."] if catalog.unread else []),
        ("Not trusted:", [f"{each.name}: {each.why}." for each in catalog.untrusted]),
    ):
        lines += ["", head, *_indent(*texts)] if texts else []
    for command in dict.fromkeys(each.command for each in catalog.untrusted):
        lines += ["  Read them, and trust them if you do:", f"  {command}"]  # its own line, to be copied whole
    return lines


def roles_as_json(places: RolePlaces, catalog: Catalog, means: Sequence[ResolvedModel], known: Specs) -> dict[str, Any]:
    models = dict(zip((role.name for role in catalog.roles), means, strict=False))
    return {
        "project": str(places.project) if places.project else None,
        "roles": [_role_as_json(role, models.get(role.name), known) for role in catalog.roles],
        "problems": [
            {"file": each.source, "line": each.line, "key": each.key, "reason": each.reason}
            for each in catalog.problems
        ],
        "notes": list(catalog.notes),
        "unread": catalog.unread,
        "untrusted": [
            {"name": each.name, "file": each.file.source, "sha256": each.file.sha256, "changed": each.changed,
             "problem": each.problem.text if each.problem else None, "what_to_do": each.step}
            for each in catalog.untrusted
        ],
    }  # fmt: skip


def role_screen(role: Role, meant: ResolvedModel | None, settings: Settings, why: str, known: Specs) -> list[str]:
    lines = [f"{role.name}  ({role.source})"]
    lines += _indent(why) if why else []
    lines += _indent(role.description, f"model: {_model(role, meant)}")
    if meant is not None and meant.error is not None:
        lines += _indent(str(meant.error))
    lines += _indent(f"limits: {_limits(role)}", *_clamps(role, meant, settings))
    lines += [*_tool_lines(role, known), *_indent(f"it {_reach(role)}", *_features(role))]
    lines += _unable(role, meant)
    if role.ignored_keys:
        lines += _indent(f"means nothing here, and is ignored: {', '.join(role.ignored)}")
    text, invisible = clean(show_controls(role.text))
    note = f" ({invisible} invisible characters are left out here)" if invisible else ""
    prompt = _prompt(role, meant, settings, known)
    head = "The system prompt, if a folder is named and the spawn adds no text:"
    return [*lines, "", f"The file{note}:", "", text.rstrip(), "", head, "", prompt]


def trust_lines(untrusted: UntrustedFile, taken: str | None, known: Specs) -> list[str]:
    """Return what a person has to know before trusting a project's file."""
    role = untrusted.role
    state = "changed since it was trusted" if untrusted.changed else "new"
    if role is None:
        problem = untrusted.problem.reason if untrusted.problem else ""
        return [f"{untrusted.file.source}  ({state})", *_indent(f"is not a role file, and is not trusted: {problem}")]
    lines = [f"{role.name}  ({untrusted.file.source}, {state}, sha256 {untrusted.file.sha256[:12]})"]
    lines += _indent(first_sentence(role.description), f"model: {role.model}; limits: {_limits(role)}")
    lines += [*_tool_lines(role, known), *_indent(f"it {_reach(role)}", *_features(role))]
    return lines + (_indent(f"ignored: the name is already used ({taken})") if taken else [])


def skill_lines(skill: Skill) -> list[str]:
    """Return what a person has to know before adding a skill."""
    files = "1 file" if len(skill.files) == 1 else f"{len(skill.files)} files"
    lines = [f"{skill.name}  (skill, {files}, {skill.size / 1_000:,.1f} kB, sha256 {skill.sha256[:12]})"]
    lines += _indent(skill.description)
    asked = ", ".join(skill.tools)
    lines += _indent(f"asks for these tools, which its roles must have: {asked}" if asked else "asks for no tools")
    if skill.unknown_tools:
        lines += _indent(f"left out, because Ava has no such tools: {', '.join(skill.unknown_tools)}")
    others = [name for name in sorted(skill.files) if name != SKILL_FILE]
    if others:
        lines += _indent(f"brings, for commands in the sandbox: {list_names(others, 20)}")
    if skill.left_out:
        lines += _indent(f"left out: {list_names(skill.left_out, 20)}")
    return lines


def _unable(role: Role, meant: ResolvedModel | None) -> list[str]:
    """Return that a role cannot run without a language model, if there is none."""
    return _indent(_NO_MODEL) if meant is not None and lacks_model(role, meant.choice) else []


def _reach(role: Role) -> str:
    """Return what a role's tools can do if all of them are available; its MCP servers are not asked."""
    unasked = [ToolSpec(name, "", ToolArgs, foreign={}) for name in role.tools if server_of(name) is not None]
    return reach([*specs_of(role.tools, {}), *unasked])


def tools_here(settings: Settings) -> Specs:
    """Return the tools that are available: web search with an engine, commands with a sandbox. Raises AvaError."""
    stored = read_keys(settings.paths.keys)
    search = any_search(settings.search, stored, model_settings(settings, stored))
    tools = tools_on_this_machine(settings.sandbox.mode, search)
    return {spec.name: spec for spec in (*(tool.spec for tool in tools.values()), *RUN_SPECS)}


def _role_as_json(role: Role, meant: ResolvedModel | None, known: Specs) -> dict[str, Any]:
    return {
        "name": role.name,
        "description": role.description,
        "source": role.source,
        "model": role.model,
        "means": meant.choice.name if meant is not None and meant.choice is not None else None,
        **{cap.argument: cap.default(role) for cap in CAPS},
        "tools": [tool for tool in role.tools if tool in known],
        "unavailable_tools": [tool for tool in role.tools if tool not in known],
        "ignored": list(role.ignored_keys),
    }


def _model(role: Role, meant: ResolvedModel | None) -> str:
    if meant is None:
        return role.model
    name = meant.choice.name if meant.choice is not None else "not available here"
    return role.model if name == role.model else f"{role.model} ({model_words(name)})"


def _limits(role: Role) -> str:
    cost, time = COST.text(COST.stored(role.max_cost_cents)), minutes(role.timeout_s)
    return f"{cost}, {time}, {role.max_iterations} turns, {role.max_tool_calls} calls, {role.max_tokens:,} tokens"


def _tool_lines(role: Role, known: Specs) -> list[str]:
    here, foreign, missing = list[str](), list[str](), list[str]()
    specs, commands = tool_specs(), any(spec.commands for spec in known.values())
    for tool in role.tools:
        if tool in known:
            here.append(tool)
        elif server_of(tool) is not None:
            foreign.append(tool)
        else:
            why = why_unavailable(specs[tool], commands=commands) if tool in specs else ""
            missing.append(f"{tool} ({why})" if why else tool)
    lines = [f"tools: {', '.join(here) or 'none'}"]
    lines += [f"of other MCP servers, checked at each proposal: {', '.join(foreign)}"] if foreign else []
    lines += [f"not here: {', '.join(missing)}"] if missing else []
    return _indent(*lines)


def _features(role: Role) -> list[str]:
    return [
        text
        for text, asked in (
            (f"needs: {', '.join(role.needs)}", role.needs),
            (f"reads from the web only: {', '.join(role.hosts)}", role.hosts),
            (f"may use the secrets: {', '.join(role.secrets)}", role.secrets),
            (effect_words(role.effects), role.effects),
            ("its commands may reach the network", role.network),
            (f"runs to prepare: {role.setup}", role.setup),
            (f"runs to verify: {role.verify}", role.verify),
            (f"may read the skills: {', '.join(role.skills)}", role.skills),
            (f"carries over: {', '.join(role.carry)}", role.carry),
            ("needs a language model: the offline reader cannot replace it", role.needs_model),
            ("is told what AGENTS.md and CLAUDE.md of its folder say", role.project_instructions is True),
            (
                "is told what AGENTS.md and CLAUDE.md say in the default branch, not in what it reviews",
                role.project_instructions == "base",
            ),
            ("plans before it works", role.plan),
            ("thinks before it answers, if the model can", role.extended_thinking),
        )
        if asked
    ]


def _clamps(role: Role, meant: ResolvedModel | None, settings: Settings) -> tuple[str, ...]:
    if meant is None or meant.choice is None:
        return ()
    return caps_of(SpawnArgs(role=role.name, task="-"), role, meant.choice, settings.limits)[1]


def _prompt(role: Role, meant: ResolvedModel | None, settings: Settings, known: Specs) -> str:
    notes = not Memory(settings.paths.memory).is_empty()
    tools: list[ToolSpec] = []
    for name in role.tools:
        spec = known.get(name)
        if spec is not None and not spec.results and (notes or not spec.memory):
            tools.append(spec)
    limits = _prompt_limits(role, meant, settings)
    return system_prompt(role, system_prompt=None, context=None, tools=tools, limits=limits, output_schema=None)


def _prompt_limits(role: Role, meant: ResolvedModel | None, settings: Settings) -> dict[str, str]:
    """Return the limits that the prompt names: the role's own, as far as the hard caps allow them."""
    free = meant is not None and meant.choice is not None and meant.choice.price.free
    hard = settings.limits

    def limit(cap: RunCap) -> float:
        return cap.stored(min(cap.default(role), cap.most(hard, role.model)))

    return limits_for_model(limit, free=free)


def _indent(*texts: str) -> list[str]:
    """Return each text in lines of 80 columns, two blanks deep."""
    lines = [wrapped_lines(f"  {one_line(text)}", WIDTH) for text in texts]
    return [line for several in lines for line in several]
