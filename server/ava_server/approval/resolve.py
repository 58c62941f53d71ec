"""Resolves the arguments of a spawn to a complete configuration: role, tools, model, price, caps, workspace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ava_extras import has_extra, missing
from ava_roles.errors import RolesError, ToolFailed, WorkspaceRefused
from ava_roles.project_files import ProjectFiles, read_base_files, read_project_files
from ava_roles.role import Role
from ava_roles.sandbox.command_workspace import find_agent
from ava_roles.sandbox.git_folders import only
from ava_roles.sandbox.paths import folder_identity
from ava_roles.sandbox.sandbox import INSTALL_BUBBLEWRAP, Sandbox, Unavailable
from ava_roles.sandbox.workspace import Workspace
from ava_roles.skills import installed_skill, is_installed
from ava_roles.tool import ToolSpec
from ava_roles.tools.registry import specs_of, tool_specs
from ava_roles.tools.run import ASK, READ_SKILL
from ava_roles.wrap import one_line, show_controls
from ava_server.approval.estimates import with_estimate
from ava_server.approval.mcp_scope import resolve_mcp_scope
from ava_server.approval.output_schema import check_schema
from ava_server.approval.over_http import workspace_over_http
from ava_server.approval.reach import reach
from ava_server.approval.requests import NAME as READ_RESULT
from ava_server.approval.requests import SpawnArgs
from ava_server.approval.resolve_context import ResolveContext
from ava_server.approval.resolve_tools import FoundTools, ToolResolution, names_pages
from ava_server.approval.run_caps import (
    LONG_OUTPUT,
    OUTPUT,
    WRAP_OUTPUT,
    WRAP_OUTPUT_THINKING,
    caps_of,
    extended_thinking,
)
from ava_server.config.agents import AgentSpec, agent_of
from ava_server.config.role_folders import workspace_of
from ava_server.config.search_engine import provider_engine, without_search
from ava_server.core.errors import BadInput, Refused, ToolMissing
from ava_server.core.names import named, named_role
from ava_server.models.factory import how_it_thinks
from ava_server.models.model_choice import (
    Choice,
    ProviderSearch,
    choose,
    is_configured,
    unknown_prices,
)
from ava_server.models.prices import FROM_SETTINGS, unknown_price_words
from ava_server.run_config.brief import Brief, ProjectText
from ava_server.run_config.config import OUTLINE_TURNS, RunConfig
from ava_server.run_config.parts import EarlierRun, ProjectFileSize, SearchCall, SkillUse
from ava_server.run_config.run_cap import TURNS


def resolve_run_config(
    args: SpawnArgs,
    context: ResolveContext,
    earlier: tuple[EarlierRun, ...] = (),
    degraded: bool = False,
    *,
    is_step: bool = False,
) -> tuple[RunConfig, Brief]:
    """Return the complete configuration of a spawn. May import price tables: call it in a thread.

    `earlier` are the ended runs that `context_from` names. With `degraded`, a run may lack tools that its role needs
    and this installation does not have; it may not lack those that the call blocks. With `is_step` it is a step of a
    plan, whose runs can read the results of `earlier` whatever their role.

    Raises:
        BadInput: An argument is invalid.
        Refused: It may not or cannot be run here; the text says what to do.
        ToolMissing: A tool that the role needs is missing, and `degraded` is false.
    """
    context.settings.refuse_off("set it to true to spawn again")
    try:
        role = context.catalog.get(args.role)
    except RolesError as error:
        raise BadInput(f"role: {error}") from error
    return _Resolution(args, context, role, earlier, is_step=is_step).resolve(degraded)


class _Resolution:
    """One spawn while it is resolved: its role and tools, with those of MCP servers by name, and its workspace."""

    def __init__(
        self, args: SpawnArgs, context: ResolveContext, role: Role, earlier: tuple[EarlierRun, ...], *, is_step: bool
    ) -> None:
        self._args = args
        self._context = context
        self._earlier = earlier
        self._is_step = is_step
        tools = context.tools
        self._search = context.search
        if self._search is None and any(spec.search for spec in specs_of(role.tools, tools)):
            own = context.settings.search
            self._search = provider_engine(own, context.models, lambda: choose(args.model, role.model, context.models))
        if not self._search:
            tools = without_search(tools)
        self._foreign, self._foreign_needs = resolve_mcp_scope(role, context.servers, context.listings)
        self._role = self._foreign.role
        self._tools = {**tools, **self._foreign.tools()}
        self._agent = agent_of(args.runner or role.runner, context.settings)
        self._workspace = self._find_workspace()
        self._tool_resolution = ToolResolution(
            args,
            context,
            self._role,
            self._tools,
            self._foreign,
            self._workspace,
            self._agent,
            earlier,
            is_step=is_step,
        )

    def resolve(self, degraded: bool) -> tuple[RunConfig, Brief]:
        args, role = self._args, self._role
        found = self._tool_resolution.find()
        lacks = self._check_tools(found, degraded)
        brief = _brief(args, role)
        if args.output_schema is not None:
            fault = check_schema(args.output_schema)
            if fault:
                raise BadInput(f"output_schema: {fault}")
        choice = choose(args.model, role.model, self._context.models)
        key_command = self._checked_key_command(choice)
        if self._agent is not None:
            self._check_agent(self._agent, choice, found)
            found = replace(found, names=self._besides_its_own(found.names))
        is_offline = choice.wire == "offline"
        skills: tuple[SkillUse, ...] = ()
        missing_skills: tuple[str, ...] = ()
        if not is_offline:
            skills, missing_skills = self._skills(found.names)
        if not skills:
            found = _without_tools(found, {READ_SKILL.name})
        project = self._project_files(found, choice)
        project_texts = [ProjectText(path=file.path, text=self._context.hide(file.text)) for file in project.files]
        brief = brief.model_copy(update={"project": tuple(project_texts)})
        if is_offline:  # the offline reader uses no memory
            found = _without_tools(found, self._tool_resolution.memory)
            self._refuse_offline(found)
        return self._assemble(choice, key_command, found, lacks, project, skills, missing_skills), brief

    def _check_tools(self, found: FoundTools, degraded: bool) -> tuple[str, ...]:
        """Check that a run can work with these tools, and return those that its role needs and lacks.

        Raises BadInput, Refused, or ToolMissing if a needed tool is missing and `degraded` is false.
        """
        reads_results = any(spec.results for spec in specs_of(found.names, self._tools))
        if self._earlier and not self._is_step and not reads_results:
            raise BadInput(
                f"context_from: {named_role(self._role.name)} cannot read results without {READ_RESULT};"
                " leave it among its tools"
            )
        lacks = self._check_needs(found, degraded)
        # With other tools the role can still do its work, and the proposal says which servers are missing.
        can_work = self._agent is not None or self._tool_resolution.have(found.names, "reads", "commands")
        if not degraded and not can_work:
            self._foreign.check_servers(found.unavailable)
        self._tool_resolution.refuse_idle(found.names)
        return lacks

    def _check_needs(self, found: FoundTools, degraded: bool) -> tuple[str, ...]:
        """Return the tools that the role needs and lacks. Raises ToolMissing for the first, unless `degraded`."""
        lacks: list[str] = []
        for need in (*self._foreign_needs, *self._role.needs):
            try:
                if need in self._foreign_needs:
                    self._foreign.check_need(need, found.names)
                else:
                    self._tool_resolution.check_need(need, found)
            except ToolMissing as missing:
                if not degraded:
                    raise
                lacks.append(missing.tool)
        return tuple(lacks)

    def _skills(self, tools: Sequence[str]) -> tuple[tuple[SkillUse, ...], tuple[str, ...]]:
        """Return the skills of the role, and the names of those that are not installed. Raises Refused.

        A skill that cannot be read, or asks for tools that the role lacks, refuses the run.
        """
        role = self._role
        folder = self._context.settings.paths.skills
        wanted = role.skills if READ_SKILL.name in tools else ()
        missing = tuple(one_line(name, 80) for name in wanted if not is_installed(folder, name))
        used: list[SkillUse] = []
        for name in wanted:
            if not is_installed(folder, name):
                continue
            try:
                skill = installed_skill(folder, name)
            except RolesError as error:
                raise Refused(f"{named_role(role.name)} names {named('skill', name)}: {error}") from error
            lacking = skill.lacking(role.tools)
            if lacking:
                them = "it" if len(lacking) == 1 else "them"
                raise Refused(
                    f"{named('skill', name)} asks for {', '.join(lacking)}, which {named_role(role.name)} does"
                    f" not have; add {them} to the role's tools, or take the skill out of it"
                )
            use = SkillUse(
                name=name,
                description=self._context.hide(skill.description),
                sha256=skill.sha256,
                files=len(skill.files),
                size=skill.size,
            )
            used.append(use)
        return tuple(used), missing

    def _project_files(self, found: FoundTools, choice: Choice) -> ProjectFiles:
        """Return the project's own instructions, as far as the run gets them."""
        granted = self._role.project_instructions
        requested = self._args.project_instructions
        folder = found.scope.workspace
        if requested and not granted:
            raise BadInput(
                f"project_instructions: only a role file grants them, and {named_role(self._role.name)}"
                " has false; leave it out"
            )
        if not granted or requested is False:
            return ProjectFiles()
        if folder is None or choice.wire == "offline":
            return ProjectFiles()
        if granted == "base":
            return read_base_files(Path(folder), self._context.home, only(found.scope.git_folder))
        if self._agent is not None:  # another agent reads them in its folder itself
            return ProjectFiles()
        try:
            return read_project_files(Path(folder), found.scope.namespace)
        except OSError as error:
            raise Refused(f"workspace: {folder} cannot be read ({error.strerror}); give another folder") from error

    def _checked_key_command(self, choice: Choice) -> tuple[str, ...]:
        """Return the command that prints the key of a model, with the full path of its program. Raises ConfigError."""
        if choice.key_command is None:
            return ()
        return choice.key_command.checked(self._workspace.path, self._context.settings.data_root)

    def _find_workspace(self) -> Workspace:
        requested, context, settings = self._args.workspace, self._context, self._context.settings
        if context.remote_roots is not None:
            return workspace_over_http(requested, context.remote_roots, settings.data_root, context.home)
        workspace = context.workspace or workspace_of(
            settings, asked=requested, client_roots=context.client_roots, cwd=context.cwd, home=context.home
        )
        if isinstance(workspace, WorkspaceRefused):
            raise BadInput(str(workspace)) from workspace
        return workspace

    def _refuse_offline(self, found: FoundTools) -> None:
        """Raise BadInput or Refused if the offline reader, which only quotes passages, cannot do what is asked."""
        args, role, folder = self._args, self._role, self._workspace.path
        if is_configured(self._context.models):
            needs_key = None
            how = "leave `model` out, or name one that is configured"
        else:
            needs_key = "openrouter"
            how = "give a key, or a local endpoint such as Ollama's in AVA_MODEL_BASE_URL with AVA_MODEL"
        needs_model = ""
        if found.coding is not None:
            needs_model = "changes files"
        elif role.needs_model:
            needs_model = "needs a language model"
        if needs_model:
            raise Refused(
                f"{named_role(role.name)} {needs_model}, and no language model is used (the offline reader"
                f" only finds and quotes passages); set a model: {how}",
                needs_key=needs_key,
            )
        if args.output_schema is not None:
            raise BadInput("output_schema: the offline reader only quotes passages; set a model, or leave it out")
        if args.context_from:
            raise BadInput(
                "context_from: the offline reader reads no results of other runs; set a model, or leave it out"
            )
        if not found.scope.workspace and not names_pages(args):
            example = f"for example {folder}" if folder else "an absolute path"
            raise Refused(
                "no language model is used (the offline reader only reads), and there is nothing to read: give"
                f" `workspace` ({example}), name pages (https://…) in task, or set a model.",
                needs_key=needs_key,
            )

    def _check_agent(self, agent: AgentSpec, choice: Choice, found: FoundTools) -> None:
        """Refuse what another agent cannot do, before any money is spent. Raises BadInput, Refused."""
        title, role = agent.title, self._role
        if not has_extra("agents"):
            raise Refused(missing("agents"))
        if not agent.wires:
            raise Refused(f"{title} asks its model in a format that Ava does not speak yet; choose another runner")
        if choice.wire not in agent.wires:
            raise Refused(
                f"{title} asks its model in the format {' or '.join(agent.wires)}, and {choice.name} is asked in"
                f" {choice.wire}; name another model, or another runner"
            )
        self._check_bubblewrap(title, found.sandbox)
        try:
            find_agent(agent.command[0], self._workspace.path)
        except ToolFailed as error:
            hint = ""
            if agent.npm:
                hint = f" (npm install -g {agent.npm})"
            raise Refused(f"{error}{hint}; `ava agents` shows what is there") from error
        withheld = ""
        if role.network:
            withheld = "the network for commands"
        elif self._secrets(found.names):
            withheld = "secrets"
        if withheld:
            raise Refused(f"{named('role', role.name)} uses {withheld}, and {title} gets none; use runner: in-process")
        if self._args.plan:
            raise BadInput(f"plan: {title} plans by itself; leave it out")

    @staticmethod
    def _check_bubblewrap(title: str, sandbox: Sandbox | Unavailable | None) -> None:
        """Raise Refused unless bubblewrap confines the other agent."""
        why = "the sandbox here is another one"
        if isinstance(sandbox, Unavailable):
            why = sandbox.why
        elif sandbox is not None and sandbox.kind == "bubblewrap":
            return
        raise Refused(f"{title} runs only in bubblewrap, so that it reaches nothing else: {why}; {INSTALL_BUBBLEWRAP}")

    def _assemble(
        self,
        choice: Choice,
        key_command: tuple[str, ...],
        found: FoundTools,
        lacks: tuple[str, ...],
        project: ProjectFiles,
        skills: tuple[SkillUse, ...],
        missing_skills: tuple[str, ...],
    ) -> RunConfig:
        args, role, context = self._args, self._role, self._context
        caps, clamped = caps_of(args, role, choice, context.settings.limits)
        config = RunConfig(
            role=role.name,
            role_source=role.source,
            role_text=role.text,
            **_model_fields(choice, key_command),
            **self._thinking_fields(choice, found),
            tools=found.names,
            unavailable_tools=found.unavailable,
            lacks=lacks,
            **self._reach_fields(found),
            secrets=self._secrets(found.names),
            plan=self._wants_outline(choice, caps[TURNS.field]),
            questions=role.questions if ASK.name in found.names else 0,
            context_from=self._earlier,
            foreign=self._foreign.uses(found.names),
            foreign_notes=self._foreign.notes(found.unavailable),
            coding=found.coding,
            skills=skills,
            missing_skills=missing_skills,
            **_project_fields(project),
            labels=role.labels,
            commands_note=found.commands_note,
            files_note=self._tool_resolution.files_note(found.scope),
            background=context.background,
            estimated_minutes=role.estimated_minutes,
            input_bytes=_input_bytes(args, project),
            name=args.name,
            task_id=args.task_id,
            output_schema=args.output_schema,
            clamped=clamped,
            price_note=_price_note(choice, context),
            asked=args.model_dump(
                mode="json", exclude_unset=True, exclude=set(Brief.model_fields) | {"retry_of", "ask"}
            ),
            **caps,
            **self._optional_fields(found),
        )
        return with_estimate(config, context.past)

    def _thinking_fields(self, choice: Choice, found: FoundTools) -> dict[str, Any]:
        """Return whether the model thinks first, and how long its answers may be."""
        how = how_it_thinks(choice)
        thinking, note = extended_thinking(self._args, self._role, choice, how)
        fields = {
            "max_output": LONG_OUTPUT if thinking or found.coding else OUTPUT,
            "wrap_output": WRAP_OUTPUT_THINKING if how.always else WRAP_OUTPUT,
        }
        if self._agent is not None:  # it decides that itself
            return fields
        return {**fields, "extended_thinking": thinking, "thinking_note": note}

    def _reach_fields(self, found: FoundTools) -> dict[str, Any]:
        """Return what the run may read, reach and change."""
        scope = found.scope
        specs = specs_of(found.names, self._tools)
        reads_pages = any(spec.network and not spec.search for spec in specs)
        return {
            "workspace": scope.workspace,
            "workspace_identity": _identity(scope.workspace),
            "workspace_given": self._workspace.given,
            "workspace_named": self._workspace.named,
            "git_folder": scope.git_folder,
            "hosts": tuple(scope.hosts) if reads_pages else (),
            "confinement": scope.confinement,
            "network": scope.network,
            "reach": reach(self._with_its_own(specs), scope),
        }

    def _optional_fields(self, found: FoundTools) -> dict[str, Any]:
        """Return the fields of another agent and of a web search, where the run has one."""
        fields: dict[str, Any] = {}
        if self._agent is not None:
            fields.update(runner=self._agent.runner, agent=self._agent.digest)
        if any(spec.search for spec in specs_of(found.names, self._tools)):
            fields.update(self._search_fields())
        return fields

    def _besides_its_own(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the tools that another agent gets from Ava: it has its own for files and commands, and asks nobody."""
        own = {spec.name for spec in specs_of(names, self._tools) if spec.files or spec.commands or spec.edits}
        return tuple(name for name in names if name not in own and name != ASK.name)

    def _with_its_own(self, specs: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Return the tools that decide what a run reaches, with those that another agent brings along."""
        if self._agent is None:
            return specs
        own = [spec for spec in specs_of(self._role.tools, self._tools) if spec.edits or spec.files]
        return [*specs, *own, tool_specs()["run_bash"]]

    def _wants_outline(self, choice: Choice, turns: int) -> bool:
        if self._agent is not None:  # it plans its own work
            return False
        is_wanted = self._role.plan if self._args.plan is None else self._args.plan
        if is_wanted and choice.wire != "offline" and turns < OUTLINE_TURNS + 2:
            raise BadInput(
                f"max_iterations: planning takes {OUTLINE_TURNS} turns, and {turns} leave none for the work;"
                f" give {OUTLINE_TURNS + 2} or more, or plan: false"
            )
        return is_wanted

    def _secrets(self, tools: Sequence[str]) -> dict[str, tuple[str, ...] | None]:
        if not self._role.secrets or not self._tool_resolution.have(tools, "secrets"):
            return {}
        stored = self._context.secrets()
        hosts: dict[str, tuple[str, ...] | None] = {}
        for name in self._role.secrets:
            hosts[name] = stored[name].hosts if name in stored else None
        return hosts

    def _search_fields(self) -> dict[str, Any]:
        search = self._search
        if search is None:
            return {}
        call = None
        if isinstance(search, ProviderSearch):
            call = SearchCall.of(search, self._checked_key_command(search.choice))
        return {"search": search.name, "search_micros": search.cost_micros, "search_call": call}


def _without_tools(tools: FoundTools, left_out: Collection[str]) -> FoundTools:
    return replace(tools, names=tuple(name for name in tools.names if name not in left_out))


def _model_fields(choice: Choice, key_command: tuple[str, ...]) -> dict[str, Any]:
    return {
        "model": choice.name,
        "provider": choice.provider,
        "model_id": choice.model_id,
        "tier": choice.tier,
        "base_url": choice.base_url,
        "keyed": choice.has_key,
        "key_command": key_command,
        "price": choice.price,
    }


def _project_fields(project: ProjectFiles) -> dict[str, Any]:
    sizes = [ProjectFileSize(path=file.path, size=file.size, is_cut=file.is_cut) for file in project.files]
    return {
        "project_files": tuple(sizes),
        "project_origin": project.origin,
        "project_left_out": project.left_out,
    }


def _input_bytes(args: SpawnArgs, project: ProjectFiles) -> int:
    """Return the size of the task and everything that comes with it, in bytes."""
    texts = [args.task, args.context, args.system_prompt]
    texts += [file.text for file in project.files]
    return sum(len(text.encode()) for text in texts if text)


def _price_note(choice: Choice, context: ResolveContext) -> str:
    """Return a note on the user's prices that fit no known model, since one may be meant for this one; else nothing."""
    if choice.base_url is None or choice.price.source.startswith(FROM_SETTINGS):
        return ""
    models = [choice.name]
    models += [role.model for role in context.catalog.roles]
    strays = unknown_prices(context.models, models)
    return " ".join(unknown_price_words(key, near) for key, near in strays.items())


_TEXTS = ("task", "context", "system_prompt", "rationale")


def _brief(args: SpawnArgs, role: Role) -> Brief:
    if not args.task.strip():
        raise BadInput("task: only white space was given; say what the subagent has to find out or do")
    if role.name == "custom" and not (args.system_prompt or "").strip():
        raise BadInput("system_prompt: role custom has no instructions of its own; say what kind of subagent it is")
    # The subagent reads what the person was shown: an escape sequence hides nothing from one of them.
    shown: dict[str, str] = {}
    for field in _TEXTS:
        text = getattr(args, field)
        if text is not None:
            shown[field] = show_controls(text)
    return Brief.model_validate(shown)


def _identity(workspace: str | None) -> str:
    """Return the identity of a workspace, by which the run's start recognises it."""
    if workspace is None:
        return ""
    try:
        return folder_identity(Path(workspace))
    except OSError as error:
        raise Refused(f"workspace: {workspace} cannot be read ({error.strerror}); give another folder") from error
