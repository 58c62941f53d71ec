"""Which tools a run gets, what confines them, and why a tool that its role needs is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ava_roles.role import Role
from ava_roles.sandbox.git_folders import NoGitFolder
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.sandbox.workspace import Workspace
from ava_roles.tool import Tool
from ava_roles.tools.registry import tool_specs
from ava_roles.tools.run import ASK, READ_SKILL
from ava_roles.tools.run import NAME as RECALL
from ava_server.approval.mcp_scope import McpScope, excluded
from ava_server.approval.reach import RunReach
from ava_server.approval.requests import NAME as READ_RESULT
from ava_server.approval.requests import SpawnArgs
from ava_server.approval.resolve_coding import changes_files, refuse_coding, resolve_coding
from ava_server.approval.resolve_context import ResolveContext
from ava_server.approval.scope import confinement_of, git_folder_of, git_folder_rule, sandbox_for
from ava_server.config.agents import AgentSpec
from ava_server.core.errors import BadInput, Refused, ToolMissing
from ava_server.core.names import named_role
from ava_server.run_config.config import RUN_TOOLS
from ava_server.run_config.parts import Coding, EarlierRun

_URL = re.compile(r"https?://[^\s<>\"']+")
_TO_SEARCH = (
    "name the pages (https://…) in task or context, or use role data_extractor or researcher with a workspace. A search"
    " is set up with a key of Brave or Kagi, with a SearXNG ([search] searxng in config.toml), or with a model of"
    " Anthropic, OpenAI or OpenRouter, which search themselves."
)


@dataclass(frozen=True)
class FoundTools:
    """The tools that a run can have, and what decided about them.

    Attributes:
        names: The tools that it can have.
        unavailable: The tools that were wanted and that it cannot have.
        sandbox: What confines its commands, or why nothing does; None if it runs no commands.
        coding: What it may change in a repository; None if it changes none.
        scope: What it may read and reach.
    """

    names: tuple[str, ...]
    unavailable: tuple[str, ...]
    sandbox: Sandbox | Unavailable | None
    coding: Coding | None
    scope: RunReach

    @property
    def commands_note(self) -> str:
        """Why its commands cannot be confined, and what to do. Empty if they can be, or it runs none."""
        if not isinstance(self.sandbox, Unavailable):
            return ""
        return f"{self.sandbox.why}; {self.sandbox.what_to_do}"


class ToolResolution:
    """The tools of one spawn while it is resolved.

    Args:
        role: The role, with the tools of MCP servers by name.
        tools: All tools by name, with those of MCP servers that it gets.
        is_step: It is a step of a plan, whose runs can read the results of `earlier`.
    """

    def __init__(
        self,
        args: SpawnArgs,
        context: ResolveContext,
        role: Role,
        tools: Mapping[str, Tool],
        foreign: McpScope,
        workspace: Workspace,
        agent: AgentSpec | None,
        earlier: Sequence[EarlierRun],
        *,
        is_step: bool,
    ) -> None:
        self._args = args
        self._context = context
        self._role = role
        self._tools = tools
        self._workspace = workspace
        self._agent = agent
        self._earlier = earlier
        self._is_step = is_step
        self._only = foreign.expand(args.tools) if args.tools is not None else None
        self._blocked = foreign.expand(args.blocked_tools or ())
        self.memory = {name for name, spec in tool_specs().items() if spec.memory}

    def find(self) -> FoundTools:
        """Return the tools that the run can have. Blocks. Raises BadInput, Refused."""
        role, context = self._role, self._context
        wanted = self._wanted_tools()
        runs_commands = self._agent is not None or self.have(wanted, "commands")
        reaches_network = self.have(wanted, "network")
        if role.network and runs_commands:
            reaches_network = True
        # A run that could send files away sees only a folder that the call itself names.
        may_see_folder = self._workspace.given or not reaches_network
        files_open = may_see_folder and self._workspace.path is not None
        changes = changes_files(wanted)
        sandbox = sandbox_for(runs_commands or changes, context.sandbox, files_open=files_open)
        coding = None
        if changes:
            coding = resolve_coding(
                self._args,
                role,
                self._workspace,
                sandbox,
                context.home,
                files_open=files_open,
                git_folder=self._git_folder,
            )
        else:
            refuse_coding(self._args, role)
        names = self._usable(wanted, files_open=files_open, commands=not isinstance(sandbox, Unavailable))
        unavailable = tuple(name for name in wanted if name not in names)
        scope = self._scope(names, coding, files_open=files_open)
        return FoundTools(names, unavailable, sandbox, coding, scope)

    def have(self, names: Iterable[str], *flags: str) -> bool:
        """Tell whether one of these tools exists and has one of these flags."""
        specs = [self._tools[name].spec for name in names if name in self._tools]
        return any(getattr(spec, flag) for spec in specs for flag in flags)

    def check_need(self, need: str, found: FoundTools) -> None:
        """Raise ToolMissing if the run lacks a tool that its role needs, Refused if the call excludes the tool."""
        role = self._role
        if need in found.names:
            return
        if need in role.tools:
            is_left_out = self._only is not None and need not in self._only
            if need in self._blocked or is_left_out:
                raise excluded(role, need)
        if need == "web_search" and need not in self._tools:
            if names_pages(self._args) and "read_webpages" in found.names:
                return  # the pages are named: no search is needed
            raise ToolMissing(
                f"{named_role(role.name)} needs web_search, which is not set up here: {_TO_SEARCH}",
                need,
                needs_key="brave",
            )
        why = self._why_missing(need, found.sandbox)
        if why is None:
            raise excluded(role, need)
        raise ToolMissing(f"{named_role(role.name)} needs {why}", need)

    def refuse_idle(self, tools: Sequence[str]) -> None:
        """Raise Refused if the run has no tool to work with."""
        if self._only == [RECALL] and RECALL not in tools:
            raise Refused("memory has no notes to work with; write one with `ava memory add NAME`, or give more tools")
        role_tools = self._to_work_with()
        enough = {*role_tools, READ_RESULT}  # any of these is enough to work with
        if self._only and RECALL in self._only:  # every role has memory, so it counts only if the call asks for it
            enough.add(RECALL)
        expects_tools = bool(role_tools or self._only)
        if expects_tools and enough.isdisjoint(tools):
            raise Refused(
                f"{named_role(self._role.name)} would have nothing to work with: none of the requested"
                f" tools is available. Files: {self._no_files()}"
            )

    def files_note(self, scope: RunReach) -> str:
        """Return why a role that reads files sees none in this run. Empty if it sees some, or reads none."""
        if scope.workspace or not self.have(self._role.tools, "files"):
            return ""
        return self._no_files()

    def _wanted_tools(self) -> tuple[str, ...]:
        """Return the wanted tools: the role's, reduced by the call's allow-list and block-list."""
        role, only, blocked = self._role, self._only, self._blocked
        self._refuse_unknown("tools", only or ())
        self._refuse_unknown("blocked_tools", blocked)
        if only == [] and self._to_work_with():
            raise BadInput(
                f"tools: an empty list leaves {named_role(role.name)} nothing to work with; leave tools"
                " out to use all of the role's tools, or name some"
            )
        left_out = {*blocked, *self._pointless()}
        wanted: list[str] = []
        for name in role.tools:
            is_allowed = only is None or name in only
            if is_allowed and name not in left_out:
                wanted.append(name)
        # A step reads the results of earlier steps, whatever tools its role has.
        if self._is_step and self._earlier and READ_RESULT not in {*wanted, *left_out}:
            wanted.append(READ_RESULT)
        return tuple(wanted)

    def _refuse_unknown(self, field: str, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._role.tools:
                has = ", ".join(self._role.tools)
                raise BadInput(f"{field}: {named_role(self._role.name)} has no tool {name!r}; it has {has}")

    def _pointless(self) -> set[str]:
        """Return the tools that this run has no use for: for earlier results, memory, skills or questions."""
        pointless: set[str] = set()
        if not self._earlier:
            pointless |= {name for name, spec in tool_specs().items() if spec.results}
        if not self._context.notes:
            pointless |= self.memory.difference(self._only or ())
        if not self._role.skills:
            pointless.add(READ_SKILL.name)
        if self._role.questions == 0 or self._context.settings.limits.question_wait_s == 0:
            pointless.add(ASK.name)
        return pointless

    def _usable(self, wanted: Sequence[str], *, files_open: bool, commands: bool) -> tuple[str, ...]:
        """Return the tools that this run can have: file tools if `files_open`, tools that run commands if `commands`.

        Memory needs notes, and a foreign tool must be among the tools of its server.
        """
        usable: list[str] = []
        for name in wanted:
            if name in self.memory and not self._context.notes:
                continue
            if name in RUN_TOOLS:
                usable.append(name)
            elif name in self._tools:
                spec = self._tools[name].spec
                lacks_files = spec.files and not files_open
                lacks_commands = spec.commands and not commands
                if not lacks_files and not lacks_commands:
                    usable.append(name)
        return tuple(usable)

    def _to_work_with(self) -> list[str]:
        """Return the role's tools that do its work: those that read something or run commands."""
        specs = [self._tools[name].spec for name in self._role.tools if name in self._tools]
        return [spec.name for spec in specs if spec.reads or spec.commands]

    def _scope(self, names: Sequence[str], coding: Coding | None, *, files_open: bool) -> RunReach:
        """Return what a run with these tools may read and reach."""
        is_agent = self._agent is not None
        runs_commands = is_agent or coding is not None or self.have(names, "commands")
        uses_files = is_agent or self.have(names, "files", "commands")
        workspace = None
        git_folder = ""
        if files_open and uses_files:
            workspace = str(self._workspace.path)
            if runs_commands:
                git_folder = self._git_folder()
        sandbox = None
        if runs_commands or self.have(names, "program"):
            sandbox = self._context.sandbox()
        return RunReach(
            workspace=workspace,
            git_folder=git_folder,
            earlier=len(self._earlier),
            confinement=confinement_of(sandbox),
            network=self._role.network and runs_commands,
            namespace=() if coding is None else coding.namespace,
            hosts=self._role.hosts or self._context.settings.fetch.hosts,
        )

    def _git_folder(self) -> str:
        """Return the git folder of the workspace's checkout if it lies outside the checkout, else an empty string.

        Raises Refused if it may not or cannot be read.
        """
        folder = self._workspace.path
        if folder is None:
            return ""
        settings = self._context.settings
        remote = self._context.remote_roots
        if remote is None:
            roots = settings.workspace.roots or None
            allow = settings.named_folders
        else:
            roots = remote
            allow = remote
        accept = git_folder_rule(
            roots, data_root=settings.data_root, home=self._context.home, allow=allow, owner=remote is None
        )
        try:
            return git_folder_of(folder, self._context.home, accept)
        except NoGitFolder as error:
            raise Refused(f"workspace: {error}") from error
        except OSError as error:
            raise Refused(f"workspace: the git folder of {folder} cannot be read ({error.strerror})") from error

    def _why_missing(self, need: str, sandbox: Sandbox | Unavailable | None) -> str | None:
        """Return what is missing for a needed tool and what would help; None if the call excluded the tool."""
        is_own = need in self._role.tools
        if need == READ_RESULT and is_own:
            return "results of earlier subagents; name them in context_from"
        if need == RECALL and is_own:
            return "memory, which has no notes yet; add one with `ava memory add NAME`"
        tool = self._tools.get(need)
        if tool is None:
            return f"{need}, which this version of Ava does not have yet; use another role"
        if tool.spec.commands and isinstance(sandbox, Unavailable):
            return f"{need}, and commands cannot be confined here: {sandbox.why}; {sandbox.what_to_do}"
        if tool.spec.files and is_own:
            return f"files, and sees none: {self._no_files()}"
        return None

    def _no_files(self) -> str:
        folder = self._workspace.path
        if folder is None:
            return self._workspace.why
        return f"a role that reaches the web sees a folder only when the call names it (workspace: {folder})"


def names_pages(args: SpawnArgs) -> bool:
    """Tell whether the task or its context has an address of a page."""
    texts = [text for text in (args.task, args.context) if text]
    return any(_URL.search(text) for text in texts)
