"""The texts of `ava roles`, in 80 columns: the list, one role and what it means here, and a file to trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ava_audit.units import minutes
from ava_roles.catalog import Catalog, UntrustedFile
from ava_roles.mcp_client.server_tools import server_of
from ava_roles.memory import Memory
from ava_roles.role import Role, effect_words, first_sentence, system_prompt
from ava_roles.skills import FILE as SKILL_FILE
from ava_roles.skills import Skill
from ava_roles.tool import ToolArgs, ToolSpec
from ava_roles.tools.registry import specs_of, tool_specs
from ava_roles.tools.run import RUN_SPECS
from ava_roles.wrap import clean, list_names, show_controls
from ava_server.approval.reach import reach, reach_words
from ava_server.approval.requests import SpawnArgs
from ava_server.approval.resolve_coding import lacks_model
from ava_server.approval.run_caps import caps_of
from ava_server.approval.summary import why_unavailable
from ava_server.cli.terminal import one_line, wrapped_lines
from ava_server.config.credentials import model_settings
from ava_server.config.keys import read_keys
from ava_server.config.role_folders import RolePlaces
from ava_server.config.search_engine import any_search
from ava_server.config.settings import Settings
from ava_server.core.ids import model_words
from ava_server.models.listing import ResolvedModel
from ava_server.run_config.run_cap import CAPS, COST, RunCap, limits_for_model
from ava_server.service.checks.roles import tools_on_this_machine

WIDTH = 80
_NO_MODEL = "cannot run: no language model is set up, and this role needs one (`ava doctor` says how)"

Specs = Mapping[str, ToolSpec]


def list_screen(places: RolePlaces, catalog: Catalog, means: Sequence[ResolvedModel], known: Specs) -> list[str]:
    """Return the list, without its first line."""
    models = _models_by_role(catalog, means)
    lines = ["No project: this folder is not in a repository."]
    if places.project:
        lines = [f"Project: {places.project}"]
    for role in catalog.roles:
        model = models.get(role.name)
        lines += ["", f"{role.name}  {_model(role, model)}"]
        lines += _indent(first_sentence(role.description), _limits(role), f"source: {role.source}")
        lines += _tool_lines(role, known)
        lines += _unable(role, model)
    lines += _section("Cannot be used:", [problem.text for problem in catalog.problems])
    lines += _section("Means nothing here:", catalog.notes)
    if catalog.unread:
        lines += _section("Not read:", [f"{catalog.unread}."])
    lines += _section("Not trusted:", [f"{each.name}: {each.why}." for each in catalog.untrusted])
    for command in dict.fromkeys(each.command for each in catalog.untrusted):
        lines += ["  Read them, and trust them if you do:", f"  {command}"]  # its own line, to be copied whole
    return lines


def _models_by_role(catalog: Catalog, means: Sequence[ResolvedModel]) -> dict[str, ResolvedModel]:
    return {role.name: model for role, model in zip(catalog.roles, means, strict=False)}


def _section(head: str, texts: Sequence[str]) -> list[str]:
    if not texts:
        return []
    return ["", head, *_indent(*texts)]


def roles_as_json(places: RolePlaces, catalog: Catalog, means: Sequence[ResolvedModel], known: Specs) -> dict[str, Any]:
    models = _models_by_role(catalog, means)
    return {
        "project": str(places.project) if places.project else None,
        "roles": [_role_as_json(role, models.get(role.name), known) for role in catalog.roles],
        "problems": [
            {"file": each.source, "line": each.line, "key": each.key, "reason": each.reason}
            for each in catalog.problems
        ],
        "notes": list(catalog.notes),
        "unread": catalog.unread,
        "untrusted": [_untrusted_as_json(each) for each in catalog.untrusted],
    }


def _untrusted_as_json(untrusted: UntrustedFile) -> dict[str, Any]:
    return {
        "name": untrusted.name,
        "file": untrusted.file.source,
        "sha256": untrusted.file.sha256,
        "changed": untrusted.changed,
        "problem": untrusted.problem.text if untrusted.problem else None,
        "what_to_do": untrusted.step,
    }


def role_screen(role: Role, model: ResolvedModel | None, settings: Settings, why: str, known: Specs) -> list[str]:
    lines = [f"{role.name}  ({role.source})"]
    if why:
        lines += _indent(why)
    lines += _indent(role.description, f"model: {_model(role, model)}")
    if model is not None and model.error is not None:
        lines += _indent(str(model.error))
    lines += _indent(f"limits: {_limits(role)}", *_clamps(role, model, settings))
    lines += _tool_lines(role, known)
    lines += _indent(f"it {_reach(role)}", *_features(role))
    lines += _unable(role, model)
    if role.ignored_keys:
        lines += _indent(f"means nothing here, and is ignored: {', '.join(role.ignored)}")
    text, invisible = clean(show_controls(role.text))
    file_head = "The file:"
    if invisible:
        file_head = f"The file ({invisible} invisible characters are left out here):"
    prompt = _prompt(role, model, settings, known)
    prompt_head = "The system prompt, if a folder is named and the spawn adds no text:"
    return [*lines, "", file_head, "", text.rstrip(), "", prompt_head, "", prompt]


def trust_lines(untrusted: UntrustedFile, name_source: str | None, known: Specs) -> list[str]:
    """Return what a person has to know before trusting a project's file.

    `name_source` is where a role of the same name comes from, if there is one.
    """
    role = untrusted.role
    state = "changed since it was trusted" if untrusted.changed else "new"
    if role is None:
        problem = untrusted.problem.reason if untrusted.problem else ""
        return [f"{untrusted.file.source}  ({state})", *_indent(f"is not a role file, and is not trusted: {problem}")]
    lines = [f"{role.name}  ({untrusted.file.source}, {state}, sha256 {untrusted.file.sha256[:12]})"]
    lines += _indent(first_sentence(role.description), f"model: {role.model}; limits: {_limits(role)}")
    lines += _tool_lines(role, known)
    lines += _indent(f"it {_reach(role)}", *_features(role))
    if name_source:
        lines += _indent(f"ignored: the name is already used ({name_source})")
    return lines


def skill_lines(skill: Skill) -> list[str]:
    """Return what a person has to know before adding a skill."""
    files = "1 file" if len(skill.files) == 1 else f"{len(skill.files)} files"
    lines = [f"{skill.name}  (skill, {files}, {skill.size / 1_000:,.1f} kB, sha256 {skill.sha256[:12]})"]
    lines += _indent(skill.description)
    if skill.tools:
        lines += _indent(f"asks for these tools, which its roles must have: {', '.join(skill.tools)}")
    else:
        lines += _indent("asks for no tools")
    if skill.unknown_tools:
        lines += _indent(f"left out, because Ava has no such tools: {', '.join(skill.unknown_tools)}")
    others = [name for name in sorted(skill.files) if name != SKILL_FILE]
    if others:
        lines += _indent(f"brings, for commands in the sandbox: {list_names(others, 20)}")
    if skill.left_out:
        lines += _indent(f"left out: {list_names(skill.left_out, 20)}")
    return lines


def tools_here(settings: Settings) -> Specs:
    """Return the tools that are available: web search with an engine, commands with a sandbox. Raises AvaError."""
    stored = read_keys(settings.paths.keys)
    search = any_search(settings.search, stored, model_settings(settings, stored))
    tools = tools_on_this_machine(settings.sandbox.mode, search)
    return {spec.name: spec for spec in (*(tool.spec for tool in tools.values()), *RUN_SPECS)}


def _unable(role: Role, model: ResolvedModel | None) -> list[str]:
    """Return that a role cannot run without a language model, if there is none."""
    if model is None or not lacks_model(role, model.choice):
        return []
    return _indent(_NO_MODEL)


def _reach(role: Role) -> str:
    """Return what a role's tools can do if all of them are available; its MCP servers are not asked."""
    unasked = [ToolSpec(name, "", ToolArgs, foreign={}) for name in role.tools if server_of(name) is not None]
    return reach_words(reach([*specs_of(role.tools, {}), *unasked]))


def _role_as_json(role: Role, model: ResolvedModel | None, known: Specs) -> dict[str, Any]:
    means = None
    if model is not None and model.choice is not None:
        means = model.choice.name
    return {
        "name": role.name,
        "description": role.description,
        "source": role.source,
        "model": role.model,
        "means": means,
        **{cap.argument: cap.default(role) for cap in CAPS},
        "tools": [tool for tool in role.tools if tool in known],
        "unavailable_tools": [tool for tool in role.tools if tool not in known],
        "ignored": list(role.ignored_keys),
    }


def _model(role: Role, model: ResolvedModel | None) -> str:
    if model is None:
        return role.model
    name = "not available here"
    if model.choice is not None:
        name = model.choice.name
    if name == role.model:
        return role.model
    return f"{role.model} ({model_words(name)})"


def _limits(role: Role) -> str:
    cost, time = COST.text(COST.stored(role.max_cost_cents)), minutes(role.timeout_s)
    return f"{cost}, {time}, {role.max_iterations} turns, {role.max_tool_calls} calls, {role.max_tokens:,} tokens"


def _tool_lines(role: Role, known: Specs) -> list[str]:
    here: list[str] = []
    foreign: list[str] = []
    missing: list[str] = []
    specs = tool_specs()
    commands = any(spec.commands for spec in known.values())
    for tool in role.tools:
        if tool in known:
            here.append(tool)
        elif server_of(tool) is not None:
            foreign.append(tool)
        elif tool in specs and (why := why_unavailable(specs[tool], commands=commands)):
            missing.append(f"{tool} ({why})")
        else:
            missing.append(tool)
    lines = [f"tools: {', '.join(here) or 'none'}"]
    if foreign:
        lines.append(f"of other MCP servers, checked at each proposal: {', '.join(foreign)}")
    if missing:
        lines.append(f"not here: {', '.join(missing)}")
    return _indent(*lines)


def _features(role: Role) -> list[str]:
    """Return what sets a role apart, a text for each feature that it has."""
    features = (
        (role.needs, f"needs: {', '.join(role.needs)}"),
        (role.hosts, f"reads from the web only: {', '.join(role.hosts)}"),
        (role.secrets, f"may use the secrets: {', '.join(role.secrets)}"),
        (role.effects, effect_words(role.effects)),
        (role.network, "its commands may reach the network"),
        (role.setup, f"runs to prepare: {role.setup}"),
        (role.verify, f"runs to verify: {role.verify}"),
        (role.skills, f"may read the skills: {', '.join(role.skills)}"),
        (role.carry, f"carries over: {', '.join(role.carry)}"),
        (role.needs_model, "needs a language model: the offline reader cannot replace it"),
        (role.project_instructions is True, "is told what AGENTS.md and CLAUDE.md of its folder say"),
        (
            role.project_instructions == "base",
            "is told what AGENTS.md and CLAUDE.md say in the default branch, not in what it reviews",
        ),
        (role.plan, "plans before it works"),
        (role.extended_thinking, "thinks before it answers, if the model can"),
    )
    return [text for has_it, text in features if has_it]


def _clamps(role: Role, model: ResolvedModel | None, settings: Settings) -> tuple[str, ...]:
    if model is None or model.choice is None:
        return ()
    _caps, clamps = caps_of(SpawnArgs(role=role.name, task="-"), role, model.choice, settings.limits)
    return clamps


def _prompt(role: Role, model: ResolvedModel | None, settings: Settings, known: Specs) -> str:
    has_notes = not Memory(settings.paths.memory).is_empty()
    tools: list[ToolSpec] = []
    for name in role.tools:
        spec = known.get(name)
        if spec is None or spec.results:
            continue
        if has_notes or not spec.memory:
            tools.append(spec)
    limits = _prompt_limits(role, model, settings)
    return system_prompt(role, system_prompt=None, context=None, tools=tools, limits=limits, output_schema=None)


def _prompt_limits(role: Role, model: ResolvedModel | None, settings: Settings) -> dict[str, str]:
    """Return the limits that the prompt names: the role's own, as far as the hard caps allow them."""
    free = model is not None and model.choice is not None and model.choice.price.free
    hard = settings.limits

    def limit(cap: RunCap) -> float:
        return cap.stored(min(cap.default(role), cap.most(hard, role.model)))

    return limits_for_model(limit, free=free)


def _indent(*texts: str) -> list[str]:
    """Return each text in lines of 80 columns, two blanks deep."""
    lines: list[str] = []
    for text in texts:
        lines += wrapped_lines(f"  {one_line(text)}", WIDTH)
    return lines
