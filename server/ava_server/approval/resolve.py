"""Resolves the arguments of a spawn to a complete configuration: role, tools, model, price, caps, workspace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as member
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ava_extras import has_extra, missing
from ava_roles.catalog import Catalog
from ava_roles.errors import RolesError, ToolFailed, WorkspaceRefused
from ava_roles.mcp_client.run_servers import ToolListing
from ava_roles.mcp_client.tools import ServerEntry
from ava_roles.project_files import ProjectFiles, read_base_files, read_project_files
from ava_roles.role import Role
from ava_roles.sandbox.command_workspace import find_agent
from ava_roles.sandbox.git import NoGitFolder, only
from ava_roles.sandbox.paths import folder_identity
from ava_roles.sandbox.sandbox import INSTALL_BUBBLEWRAP, Sandbox, Unavailable
from ava_roles.sandbox.workspace import Workspace
from ava_roles.skills import installed_skill, is_installed
from ava_roles.tool import Tool, ToolSpec
from ava_roles.tools.registry import specs_of, tool_specs
from ava_roles.tools.run import ASK, READ_SKILL
from ava_roles.tools.run import NAME as RECALL
from ava_roles.wrap import one_line, show_controls
from ava_server.approval.coding import changes_files, refuse_coding, resolve_coding
from ava_server.approval.estimates import with_estimate
from ava_server.approval.output_schema import check_schema
from ava_server.approval.requests import NAME as READ_RESULT
from ava_server.approval.requests import SpawnArgs
from ava_server.approval.scope import (
    confinement_of,
    excluded,
    git_folder_of,
    git_folder_rule,
    no_sandbox,
    resolve_mcp_scope,
    sandbox_for,
    workspace_over_http,
)
from ava_server.approval.summary import RunReach, reach
from ava_server.budget.run_config import (
    CAPS,
    COST,
    PLAN_TURNS,
    RUN_TOOLS,
    TURNS,
    Coding,
    EarlierRun,
    ProjectFileSize,
    ProjectText,
    RunConfig,
    SearchCall,
    SkillUse,
    Texts,
)
from ava_server.config.agents import AgentSpec, agent_of
from ava_server.config.role_folders import workspace_of
from ava_server.config.search_engines import provider_engine, without_search
from ava_server.config.secrets import Secret
from ava_server.core.errors import BadInput, Refused, ToolMissing, key_shapes
from ava_server.models.factory import how_it_thinks
from ava_server.models.prices import FROM_SETTINGS, unknown_price_words
from ava_server.models.selection import (
    Choice,
    ModelSettings,
    ProviderSearch,
    Thinking,
    choose,
    is_configured,
    unknown_prices,
)

if TYPE_CHECKING:
    from ava_audit.rows import PastRun
    from ava_roles.net.search_engines import Engine
    from ava_server.config.settings import Limits, Policy, Settings


OUTPUT = 4_096
"""Most tokens of one answer."""
LONG_OUTPUT = 8_192
"""For coders, and for models that think, which may use half of it for that."""
WRAP_OUTPUT = 1_024
WRAP_OUTPUT_THINKING = 2_048
"""For models that always think, because their thinking counts in it."""


def caps_of(args: SpawnArgs, role: Role, choice: Choice, hard: Limits) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the run's caps, lowered to the hard caps, and a sentence for each that was lowered."""
    caps: dict[str, Any] = {}
    notes: list[str] = []
    for cap in CAPS:
        given: float | None = getattr(args, cap.argument)
        wanted, most = given or cap.default(role), cap.most(hard, choice.tier)
        caps[cap.field] = cap.stored(min(wanted, most))
        if wanted > most and not (cap is COST and choice.price.free):
            above, limit = (COST.text(COST.stored(n)) if cap is COST else f"{n:,.15g}" for n in (wanted, most))
            whose = "was asked as" if given else f"of role {role.name} is"
            notes.append(f"{cap.argument} {whose} {above}, and lowered to the hard cap of {limit}")
    return caps, tuple(notes)


def extended_thinking(args: SpawnArgs, role: Role, choice: Choice, how: Thinking) -> tuple[bool, str]:
    """Return whether the model is told to think, and a note where it cannot be. Raises BadInput: the call insists."""
    wanted = role.extended_thinking if args.extended_thinking is None else args.extended_thinking
    if not wanted or how.possible:
        return wanted, ""
    if args.extended_thinking:
        raise BadInput(
            f"extended_thinking: it is not known how to make {choice.name} think; leave it out, or choose another model"
        )
    if choice.wire == "offline":
        return False, ""
    return False, f"role {role.name} asks its model to think first, which {choice.name} cannot be told to"


_URL = re.compile(r"https?://[^\s<>\"']+")


@dataclass(frozen=True)
class ResolveContext:
    """What a proposal is resolved against: everything that is there at this moment.

    Attributes:
        catalog: The role files, read just now.
        search: The search engine, if one is configured; a run may have the provider of its model instead.
        secrets: Reads what secrets are stored; asked only where a role lists some.
        sandbox: Finds what confines commands and MCP servers; asked only where a role has tools of either. Blocks.
        past: The user's last runs of the role, by which the proposal is estimated.
        notes: There are notes in memory: a tool that would find nothing is not offered.
        listings: What those of them offer that the role names.
        remote_roots: Folders of a user over HTTP, who gets no others; None for who is at this machine.
        tokens_per_byte: The ratio that was measured lately with the model; None where none was.
        workspace: The workspace that the call gets, or why that is refused; None: it is not known yet.
        hide: Replaces keys and secrets in a text of the project's files.
    """

    settings: Settings
    models: ModelSettings
    catalog: Catalog
    tools: Mapping[str, Tool]
    search: Engine | ProviderSearch | None
    client_roots: Sequence[str]
    cwd: Path
    home: Path
    secrets: Callable[[], Mapping[str, Secret]] = dict
    sandbox: Callable[[], Sandbox | Unavailable] = no_sandbox
    past: Sequence[PastRun] = ()
    notes: bool = False
    servers: Mapping[str, ServerEntry] = member(default_factory=dict[str, ServerEntry])
    listings: Mapping[str, ToolListing] = member(default_factory=dict[str, ToolListing])
    background: bool = False
    remote_roots: tuple[Path, ...] | None = None
    policy: Policy = "ask"
    tokens_per_byte: float | None = None
    workspace: Workspace | WorkspaceRefused | None = None
    hide: Callable[[str], str] = lambda text: key_shapes().redact(text)[0]


def resolve_run_config(
    args: SpawnArgs,
    context: ResolveContext,
    earlier: tuple[EarlierRun, ...] = (),
    degraded: bool = False,
    *,
    is_step: bool = False,
) -> tuple[RunConfig, Texts]:
    """Return the complete configuration of a spawn. May import price tables: call it in a thread.

    `earlier`: the ended runs that `context_from` names. `degraded`: tools that the role needs may be missing; tools
    that the call blocks may not. `is_step`: of a plan: its runs can read the results of `earlier`, whatever its role.

    Raises:
        BadInput: An argument is invalid.
        Refused: It may not or cannot be run here; the text says what to do.
    """
    context.settings.refuse_off("set it to true to spawn again")
    try:
        role = context.catalog.get(args.role)
    except RolesError as error:
        raise BadInput(f"role: {error}") from error
    return _Resolution(args, context, role, earlier, is_step=is_step).resolve(degraded)


@dataclass(frozen=True)
class _FoundTools:
    """The tools that a run can have, and what decided about them.

    Attributes:
        unavailable: Those that were wanted besides.
        sandbox: What confines its commands, or why nothing does; None where it wants none.
    """

    names: tuple[str, ...]
    unavailable: tuple[str, ...]
    sandbox: Sandbox | Unavailable | None
    coding: Coding | None
    scope: RunReach

    @property
    def commands_note(self) -> str:
        """Why its commands cannot be confined, and what to do; empty where they can, or it wants none."""
        return f"{self.sandbox.why}; {self.sandbox.what_to_do}" if isinstance(self.sandbox, Unavailable) else ""


class _Resolution:
    """One spawn while it is resolved: its role and tools, with those of MCP servers by name, and its workspace."""

    def __init__(
        self, args: SpawnArgs, context: ResolveContext, role: Role, earlier: tuple[EarlierRun, ...], *, is_step: bool
    ) -> None:
        self._args, self._context, self._earlier = args, context, earlier
        self._is_step = is_step
        tools, self._search = context.tools, context.search
        if self._search is None and any(spec.search for spec in specs_of(role.tools, tools)):
            own = context.settings.search
            self._search = provider_engine(own, context.models, lambda: choose(args.model, role.model, context.models))
        if not self._search:
            tools = without_search(tools)
        self._foreign, self._foreign_needs = resolve_mcp_scope(role, context.servers, context.listings)
        self._role, self._tools = self._foreign.role, {**tools, **self._foreign.tools()}
        self._agent = agent_of(args.runner or role.runner, context.settings)
        self._workspace = self._find_workspace()
        self._only = self._foreign.expanded(args.tools) if args.tools is not None else None
        self._blocked = self._foreign.expanded(args.blocked_tools or ())
        self._memory = {name for name, spec in tool_specs().items() if spec.memory}

    def resolve(self, degraded: bool) -> tuple[RunConfig, Texts]:
        args, role = self._args, self._role
        found = self._find_tools()
        if self._earlier and not self._is_step and not any(spec.results for spec in specs_of(found.names, self._tools)):
            raise BadInput(
                f"context_from: {role.name} cannot read results without {READ_RESULT}; leave it among its tools"
            )
        lacks: list[str] = []
        for need in (*self._foreign_needs, *role.needs):
            try:
                if need in self._foreign_needs:
                    self._foreign.check_need(need, found.names)
                else:
                    self._check_need(need, found)
            except ToolMissing as missing:
                if not degraded:
                    raise
                lacks.append(missing.tool)
        # With other tools to work with, the role is not without its purpose: the proposal says what is missing.
        if not degraded and self._agent is None and not self._has(found.names, "reads", "commands"):
            self._foreign.check_servers(found.unavailable)
        self._refuse_idle(found.names)
        texts = _texts(args, role)
        if args.output_schema is not None and (fault := check_schema(args.output_schema)):
            raise BadInput(f"output_schema: {fault}")
        choice = choose(args.model, role.model, self._context.models)
        key_command = self._checked_key_command(choice)
        if self._agent is not None:
            self._check_agent(self._agent, choice, found)
            found = replace(found, names=self._besides_its_own(found.names))
        skills, not_installed = self._skills(found.names) if choice.wire != "offline" else ((), ())
        if not skills:
            found = replace(found, names=tuple(name for name in found.names if name != READ_SKILL.name))
        project = self._project_files(found, choice)
        told = [ProjectText(path=file.path, text=self._context.hide(file.text)) for file in project.files]
        texts = texts.model_copy(update={"project": tuple(told)})
        if choice.wire == "offline":  # it uses no memory
            found = replace(found, names=tuple(name for name in found.names if name not in self._memory))
            self._refuse_offline(found)
        return self._assemble(choice, key_command, found, tuple(lacks), project, skills, not_installed), texts

    def _skills(self, tools: Sequence[str]) -> tuple[tuple[SkillUse, ...], tuple[str, ...]]:
        """Return the skills of the role, and the names of those that are not installed. Raises Refused.

        A skill that cannot be read, or asks for tools that the role lacks, refuses the run.
        """
        role, folder = self._role, self._context.settings.paths.skills
        wanted = role.skills if READ_SKILL.name in tools else ()
        missing = tuple(one_line(name, 80) for name in wanted if not is_installed(folder, name))
        used: list[SkillUse] = []
        for name in wanted:
            if not is_installed(folder, name):
                continue
            try:
                skill = installed_skill(folder, name)
            except RolesError as error:
                raise Refused(f"{role.name} names the skill {name}: {error}") from error
            if lacking := skill.lacking(role.tools):
                raise Refused(
                    f"the skill {name} asks for {', '.join(lacking)}, which {role.name} does not have; add"
                    f" {'it' if len(lacking) == 1 else 'them'} to the role's tools, or take the skill out of it"
                )
            description = self._context.hide(skill.description)
            size = skill.size
            used.append(
                SkillUse(name=name, description=description, sha256=skill.sha256, files=len(skill.files), size=size)
            )
        return tuple(used), missing

    def _project_files(self, found: _FoundTools, choice: Choice) -> ProjectFiles:
        """Return what files of the project say about working in it, as far as the run is given that."""
        wanted, given, folder = self._role.project_instructions, self._args.project_instructions, found.scope.workspace
        if given and not wanted:
            raise BadInput(
                f"project_instructions: only a role file grants them, and {self._role.name} has false; leave it out"
            )
        if not wanted or given is False or folder is None or choice.wire == "offline":
            return ProjectFiles()
        if wanted == "base":
            return read_base_files(Path(folder), self._context.home, only(found.scope.git_folder))
        if self._agent is not None:  # it reads them in its folder itself
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
        given, context, settings = self._args.workspace, self._context, self._context.settings
        if context.remote_roots is not None:
            return workspace_over_http(given, context.remote_roots, settings.data_root, context.home)
        found = context.workspace or workspace_of(
            settings, asked=given, client_roots=context.client_roots, cwd=context.cwd, home=context.home
        )
        if isinstance(found, WorkspaceRefused):
            raise BadInput(str(found)) from found
        return found

    def _has(self, names: Iterable[str], *flags: str) -> bool:
        """Tell whether one of these tools is there and has one of these flags."""
        specs = [self._tools[name].spec for name in names if name in self._tools]
        return any(getattr(spec, flag) for spec in specs for flag in flags)

    def _find_tools(self) -> _FoundTools:
        role, context, folder = self._role, self._context, self._workspace.path
        wanted = self._wanted()
        # With network access, only where the call itself gave the folder.
        commands = self._agent is not None or self._has(wanted, "commands")
        networked = self._has(wanted, "network") or (role.network and commands)
        files_open = folder is not None and (self._workspace.given or not networked)
        changes = changes_files(wanted)
        sandbox = sandbox_for(commands or changes, context.sandbox, files_open=files_open)
        coding = None
        if changes:
            where = self._workspace, sandbox, context.home
            coding = resolve_coding(self._args, role, *where, files_open=files_open, git_folder=self._git_folder)
        else:
            refuse_coding(self._args, role)
        names = self._usable(wanted, files_open=files_open, commands=not isinstance(sandbox, Unavailable))
        unavailable = tuple(name for name in wanted if name not in names)
        return _FoundTools(names, unavailable, sandbox, coding, self._scope(names, coding, files_open=files_open))

    def _scope(self, names: Sequence[str], coding: Coding | None, *, files_open: bool) -> RunReach:
        reads = files_open and (self._agent is not None or self._has(names, "files", "commands"))
        commands = self._agent is not None or coding is not None or self._has(names, "commands")
        runs = commands or self._has(names, "program")
        return RunReach(
            workspace=str(self._workspace.path) if reads else None,
            git_folder=self._git_folder() if commands and reads else "",
            earlier=len(self._earlier),
            confinement=confinement_of(self._context.sandbox() if runs else None),
            network=self._role.network and commands,
            namespace=coding.namespace if coding is not None else (),
            hosts=self._role.hosts or self._context.settings.fetch.hosts,
        )

    def _wanted(self) -> tuple[str, ...]:
        """Return the wanted tools: the role's, reduced by the call's allow-list and block-list."""
        role, only, blocked = self._role, self._only, self._blocked
        for field, names in (("tools", only or ()), ("blocked_tools", blocked)):
            unknown = [name for name in names if name not in role.tools]
            if unknown:
                raise BadInput(f"{field}: {role.name} has no tool {unknown[0]!r}; it has {', '.join(role.tools)}")
        if only == [] and self._to_work_with():
            raise BadInput(
                f"tools: an empty list leaves {role.name} nothing to work with; leave tools out to use all of the"
                " role's tools, or name some"
            )
        left_out = {*blocked, *self._pointless()}
        names = [name for name in role.tools if name not in left_out and (only is None or name in only)]
        if self._is_step and self._earlier and READ_RESULT not in names and READ_RESULT not in left_out:
            names.append(READ_RESULT)
        return tuple(names)

    def _pointless(self) -> set[str]:
        """Return the tools that this run has no use for: for earlier results, memory or questions."""
        found: set[str] = set()
        if not self._earlier:
            found |= {name for name, spec in tool_specs().items() if spec.results}
        if not self._context.notes:
            found |= self._memory.difference(self._only or ())
        if not self._role.skills:
            found.add(READ_SKILL.name)
        if self._role.questions == 0 or self._context.settings.limits.question_wait_s == 0:
            found.add(ASK.name)
        return found

    def _usable(self, wanted: Sequence[str], *, files_open: bool, commands: bool) -> tuple[str, ...]:
        """Return the tools that this run can have: file tools only where it may read files, commands in a sandbox."""

        def usable(name: str) -> bool:
            if name in RUN_TOOLS:
                return True
            spec = self._tools[name].spec if name in self._tools else None
            return spec is not None and (files_open or not spec.files) and (commands or not spec.commands)

        notes = self._context.notes
        return tuple(name for name in wanted if usable(name) and (notes or name not in self._memory))

    def _to_work_with(self) -> list[str]:
        specs = [self._tools[name].spec for name in self._role.tools if name in self._tools]
        return [spec.name for spec in specs if spec.reads or spec.commands]

    def _git_folder(self) -> str:
        """Return the git folder of the workspace's checkout, if it lies outside of that; else empty. Raises Refused."""
        settings, remote, folder = self._context.settings, self._context.remote_roots, self._workspace.path
        accept = git_folder_rule(
            settings.workspace.roots or None if remote is None else remote,
            data_root=settings.data_root,
            home=self._context.home,
            allow=settings.named_folders if remote is None else remote,
            owner=remote is None,
        )
        try:
            return git_folder_of(folder, self._context.home, accept) if folder is not None else ""
        except NoGitFolder as error:
            raise Refused(f"workspace: {error}") from error
        except OSError as error:
            raise Refused(f"workspace: the git folder of {folder} cannot be read ({error.strerror})") from error

    def _check_need(self, need: str, found: _FoundTools) -> None:
        role, known = self._role, self._tools
        if need in found.names:
            return
        if need in role.tools and (need in self._blocked or (self._only is not None and need not in self._only)):
            raise excluded(role, need)
        if need == "web_search" and need not in known:
            if _names_pages(self._args) and "read_webpages" in found.names:
                return  # the pages are named: no search is needed
            raise ToolMissing(
                f"{role.name} needs web_search, which is not set up here: {_TO_SEARCH}", need, needs_key="brave"
            )
        why = self._why_missing(need, found.sandbox)
        raise excluded(role, need) if why is None else ToolMissing(f"{role.name} needs {why}", need)

    def _why_missing(self, need: str, sandbox: Sandbox | Unavailable | None) -> str | None:
        """Return which tool, or what for it, is missing and what would help; None where the call has excluded it."""
        own, tool = need in self._role.tools, self._tools.get(need)
        if need == READ_RESULT and own:
            return "results of earlier subagents; name them in context_from"
        if need == RECALL and own:
            return "memory, which has no notes yet; add one with `ava memory add NAME`"
        if tool is None:
            return f"{need}, which this version of Ava does not have yet; use another role"
        if tool.spec.commands and isinstance(sandbox, Unavailable):
            return f"{need}, and commands cannot be confined here: {sandbox.why}; {sandbox.what_to_do}"
        return f"files, and sees none: {self._no_files()}" if tool.spec.files and own else None

    def _files_note(self, scope: RunReach) -> str:
        """Return why a role that reads files sees none here; empty for any other."""
        return "" if scope.workspace or not self._has(self._role.tools, "files") else self._no_files()

    def _no_files(self) -> str:
        if (folder := self._workspace.path) is not None:
            return f"a role that reaches the web sees a folder only when the call names it (workspace: {folder})"
        return self._workspace.why

    def _refuse_idle(self, tools: Sequence[str]) -> None:
        if self._only == [RECALL] and RECALL not in tools:
            raise Refused("memory has no notes to work with; write one with `ava memory add NAME`, or give more tools")
        works = self._to_work_with()
        # Every role has memory, so it counts only where the call asks for it.
        enough = {*works, READ_RESULT, *({RECALL} & set(self._only or ()))}
        if enough.isdisjoint(tools) and (works or self._only):
            raise Refused(
                f"{self._role.name} would have nothing to work with: none of the requested tools is available."
                f" Files: {self._no_files()}"
            )

    def _refuse_offline(self, found: _FoundTools) -> None:
        args, role, folder = self._args, self._role, self._workspace.path
        needs_key = None if is_configured(self._context.models) else "openrouter"
        if found.coding is not None or role.needs_model:
            does = "changes files" if found.coding is not None else "needs a language model"
            local = "give a key, or a local endpoint such as Ollama's in AVA_MODEL_BASE_URL with AVA_MODEL"
            how = local if needs_key else "leave `model` out, or name one that is configured"
            raise Refused(
                f"{role.name} {does}, and no language model is used (the offline reader only finds and quotes"
                f" passages); set a model: {how}",
                needs_key=needs_key,
            )
        if args.output_schema is not None:
            raise BadInput("output_schema: the offline reader only quotes passages; set a model, or leave it out")
        if args.context_from:
            raise BadInput(
                "context_from: the offline reader reads no results of other runs; set a model, or leave it out"
            )
        if not found.scope.workspace and not _names_pages(args):
            raise Refused(
                "no language model is used (the offline reader only reads), and there is nothing to read: give"
                f" `workspace` {f'(for example {folder})' if folder else '(an absolute path)'}, name pages (https://…)"
                " in task, or set a model.",
                needs_key=needs_key,
            )

    def _check_agent(self, agent: AgentSpec, choice: Choice, found: _FoundTools) -> None:
        """Refuse what another agent cannot do, before anything is spent. Raises BadInput, Refused."""
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
        if found.sandbox is None or isinstance(found.sandbox, Unavailable) or found.sandbox.kind != "bubblewrap":
            why = found.sandbox.why if isinstance(found.sandbox, Unavailable) else "the sandbox here is another one"
            raise Refused(
                f"{title} runs only in bubblewrap, so that it reaches nothing else: {why}; {INSTALL_BUBBLEWRAP}"
            )
        try:
            find_agent(agent.command[0], self._workspace.path)
        except ToolFailed as error:
            hint = f" (npm install -g {agent.npm})" if agent.npm else ""
            raise Refused(f"{error}{hint}; `ava agents` shows what is there") from error
        if role.network or self._secrets(found.names):
            what = "the network for commands" if role.network else "secrets"
            raise Refused(f"role {role.name} uses {what}, and {title} gets none; use runner: in-process")
        if self._args.plan:
            raise BadInput(f"plan: {title} plans by itself; leave it out")

    def _assemble(
        self,
        choice: Choice,
        key_command: tuple[str, ...],
        found: _FoundTools,
        lacks: tuple[str, ...],
        project: ProjectFiles,
        skills: tuple[SkillUse, ...],
        missing_skills: tuple[str, ...],
    ) -> RunConfig:
        args, role, context = self._args, self._role, self._context
        caps, clamped = caps_of(args, role, choice, context.settings.limits)
        how = how_it_thinks(choice)
        thinking, thinking_note = extended_thinking(args, role, choice, how)
        specs, scope = specs_of(found.names, self._tools), found.scope
        config = RunConfig(
            role=role.name,
            role_source=role.source,
            role_text=role.text,
            model=choice.name,
            provider=choice.provider,
            model_id=choice.model_id,
            tier=choice.tier,
            base_url=choice.base_url,
            keyed=choice.has_key,
            key_command=key_command,
            price=choice.price,
            max_output=LONG_OUTPUT if thinking or found.coding else OUTPUT,
            wrap_output=WRAP_OUTPUT_THINKING if how.always else WRAP_OUTPUT,
            tools=found.names,
            unavailable_tools=found.unavailable,
            lacks=lacks,
            workspace=scope.workspace,
            workspace_identity=_identity(scope.workspace),
            git_folder=scope.git_folder,
            hosts=tuple(scope.hosts) if any(spec.network and not spec.search for spec in specs) else (),
            secrets=self._secrets(found.names),
            plan=self._plans(choice, caps[TURNS.field]),
            questions=role.questions if ASK.name in found.names else 0,
            extended_thinking=thinking and self._agent is None,
            thinking_note=thinking_note if self._agent is None else "",
            context_from=self._earlier,
            foreign=self._foreign.uses(found.names),
            foreign_notes=self._foreign.notes(found.unavailable),
            coding=found.coding,
            skills=skills,
            missing_skills=missing_skills,
            project_files=tuple(
                ProjectFileSize(path=one.path, size=one.size, is_cut=one.is_cut) for one in project.files
            ),
            project_origin=project.origin,
            project_left_out=project.left_out,
            reach=reach(self._with_its_own(specs), scope),
            workspace_given=self._workspace.given,
            workspace_named=self._workspace.named,
            confinement=scope.confinement,
            labels=role.labels,
            network=scope.network,
            commands_note=found.commands_note,
            files_note=self._files_note(scope),
            background=context.background,
            estimated_minutes=role.estimated_minutes,
            input_bytes=sum(
                len(text.encode())
                for text in (args.task, args.context, args.system_prompt, *(one.text for one in project.files))
                if text
            ),
            name=args.name,
            task_id=args.task_id,
            output_schema=args.output_schema,
            clamped=clamped,
            price_note=_price_note(choice, context),
            asked=args.model_dump(
                mode="json", exclude_unset=True, exclude=set(Texts.model_fields) | {"retry_of", "ask"}
            ),
            **caps,
            **({"runner": self._agent.runner, "agent": self._agent.digest} if self._agent is not None else {}),
            **(self._search_fields() if any(spec.search for spec in specs) else {}),
        )
        return with_estimate(config, context.past)

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

    def _plans(self, choice: Choice, turns: int) -> bool:
        if self._agent is not None:  # it plans by itself
            return False
        plan = self._role.plan if self._args.plan is None else self._args.plan
        if plan and choice.wire != "offline" and turns < PLAN_TURNS + 2:
            raise BadInput(
                f"max_iterations: planning takes {PLAN_TURNS} turns, and {turns} leave none for the work;"
                f" give {PLAN_TURNS + 2} or more, or plan: false"
            )
        return plan

    def _secrets(self, tools: Sequence[str]) -> dict[str, tuple[str, ...] | None]:
        if not self._role.secrets or not self._has(tools, "secrets"):
            return {}
        stored = self._context.secrets()
        return {name: stored[name].hosts if name in stored else None for name in self._role.secrets}

    def _search_fields(self) -> dict[str, Any]:
        if (search := self._search) is None:
            return {}
        call = None
        if isinstance(search, ProviderSearch):
            call = SearchCall.of(search, self._checked_key_command(search.choice))
        return {"search": search.name, "search_micros": search.cost_micros, "search_call": call}


_TO_SEARCH = (
    "name the pages (https://…) in task or context, or use role data_extractor or researcher with a workspace. A search"
    " is set up with a key of Brave or Kagi, with a SearXNG ([search] searxng in config.toml), or with a model of"
    " Anthropic, OpenAI or OpenRouter, which search themselves."
)


def _price_note(choice: Choice, context: ResolveContext) -> str:
    """Return the user's prices that belong to no known model: one may be meant for this model."""
    if choice.base_url is None or choice.price.source.startswith(FROM_SETTINGS):
        return ""
    strays = unknown_prices(context.models, [choice.name, *(role.model for role in context.catalog.roles)])
    return " ".join(unknown_price_words(key, near) for key, near in strays.items())


_TEXTS = ("task", "context", "system_prompt", "rationale")


def _texts(args: SpawnArgs, role: Role) -> Texts:
    if not args.task.strip():
        raise BadInput("task: only white space was given; say what the subagent has to find out or do")
    if role.name == "custom" and not (args.system_prompt or "").strip():
        raise BadInput("system_prompt: role custom has no instructions of its own; say what kind of subagent it is")
    # The subagent reads what the person was shown: an escape sequence hides nothing from one of them.
    shown = {field: show_controls(text) for field in _TEXTS if (text := getattr(args, field)) is not None}
    return Texts.model_validate(shown)


def _identity(workspace: str | None) -> str:
    """Return the identity of a workspace, by which the run's start recognises it."""
    if workspace is None:
        return ""
    try:
        return folder_identity(Path(workspace))
    except OSError as error:
        raise Refused(f"workspace: {workspace} cannot be read ({error.strerror}); give another folder") from error


def _names_pages(args: SpawnArgs) -> bool:
    return _URL.search(" ".join(part for part in (args.task, args.context) if part)) is not None
