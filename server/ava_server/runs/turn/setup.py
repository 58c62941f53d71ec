"""Run setup: makes what a claimed run works with (model, tools, folders, prompt), and removes it at the end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import anyio.to_thread

from ava_audit.events import RunStarted
from ava_audit.redaction import RunRedactor
from ava_audit.rows import PlanCaps, RunRow
from ava_audit.units import now_us
from ava_extras import has_extra, missing
from ava_roles.errors import FolderReplaced, ToolFailed
from ava_roles.mcp_client.run_servers import RunMcpServers
from ava_roles.role import parse_role
from ava_roles.sandbox.command_workspace import find_agent
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.sandbox.toolchains import HostFolders
from ava_roles.tool import Tool, ToolContext
from ava_roles.tools.shell import RunBash
from ava_server.approval.proposals import brief_of, project_of
from ava_server.approval.reach import reads_memory
from ava_server.approval.scope import (
    confinement_of,
    remove_workbenches,
    strength,
)
from ava_server.budget.recent_calls import RecentCalls, recent_calls
from ava_server.config.agents import AgentSpec, agent_of
from ava_server.config.root_key import root_key
from ava_server.config.search_engine import ApprovedSearch
from ava_server.core.data_root import home_folder
from ava_server.core.errors import AvaError, ConfigError
from ava_server.core.ids import IN_PROCESS
from ava_server.models.base import Model
from ava_server.models.factory import account_of, model_of, parameters
from ava_server.models.model_choice import Choice, choose
from ava_server.models.prices import dearest_price
from ava_server.models.providers import PROVIDERS
from ava_server.models.search_model import search_model
from ava_server.models.surcharges import pinned_at
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import NO_COMMANDS, RUN_TOOLS, RunConfig, config_of
from ava_server.runs.asking.extension import extension_limits
from ava_server.runs.asking.questions import Ask
from ava_server.runs.coder.coding import Worktrees
from ava_server.runs.coder.travel import Travel
from ava_server.runs.record.history import History
from ava_server.runs.turn.context import (
    AgentParts,
    ConfigNotSupported,
    FindCut,
    RunContext,
    SearchModel,
    SecretInjection,
    no_cut,
)
from ava_server.runs.turn.first_call import started, with_cost_figures
from ava_server.runs.turn.folders import OpenFolders, RunFolders
from ava_server.runs.turn.prompt_prefix import PromptPrefixes
from ava_server.runs.turn.resources import RunResources
from ava_server.runs.turn.reuse import folder_state, notes_state, run_mark
from ava_server.runs.turn.run_tools import (
    RESULT_CHARS,
    ReadSkill,
    ReadSubagentResult,
    foreign_tools,
    run_tools,
)

if TYPE_CHECKING:
    from ava_roles.net.fetch import Fetcher
    from ava_server.models.http_model import HttpModel

log = logging.getLogger("ava.setup")

WINDOW = 128_000
"""Tokens of a model's context where its price table does not say."""


WORKTREE_S = 900.0
"""Seconds for which a run waits for the machine that has its worktree; then it ends without its changes."""
T = TypeVar("T")
Marker = Callable[[Brief, Sequence[Mapping[str, str]], Sequence[str]], str | None]
"""Returns the mark of a run by its texts, inputs and earlier runs; None where its folder cannot be compared."""


class RunSetup:
    """Makes what runs work with, from what a process has open.

    A replay has a subclass (`evals.tape_setup.TapeSetup`): it prepares in the same way, with parts of its recording.
    """

    def __init__(self, resources: RunResources) -> None:
        self.travel = Travel(resources.settings, resources.store.blobs, Path.home())
        self.worktrees = Worktrees(resources.settings.paths.worktrees, Path.home(), self.travel)
        self._resources = resources
        self._prompt_prefixes = PromptPrefixes()
        self.folders = RunFolders(resources, self.travel, self.worktrees)

    def load(self) -> None:
        """Load what the first run would wait for: the modules of model calls and pages, the certificates. Blocks."""
        import_module("ava_roles.net.fetch")
        import_module("ava_server.models.http_model")
        self._resources.clients.load()

    async def check_config(self, run: RunRow) -> None:
        """Check that a run can be run here as it was approved; opens nothing. Raises ConfigNotSupported: it cannot."""
        config = config_of(run.config)
        if config.steps:  # its runs are checked, each when it is its turn
            return

        def look() -> None:
            why = self.travel.missing(config)
            if why is not None:
                raise ConfigNotSupported(why)
            self.choice(config)
            agent = self._known_agent(config)
            if agent is not None:
                try:
                    find_agent(agent.command[0], None)
                except ToolFailed as error:
                    raise ConfigNotSupported(str(error)) from error

        await anyio.to_thread.run_sync(look)
        for label in config.labels:
            if label not in self._resources.settings.labels:
                raise ConfigNotSupported(f"its role needs a machine with the label {label} (`labels` in config.toml)")
        known_tools = {*self._resources.tools, *RUN_TOOLS}
        for use in config.foreign.values():
            known_tools.update(use.tools)
        for name in config.tools:
            if name not in known_tools:
                raise ConfigNotSupported(f"the tool {name} is not available in this version")
        await self.search_engine(config)
        await self._search_model(config)
        why = self._resources.foreign.cannot(config)
        if why is not None:
            raise ConfigNotSupported(why)
        await self.sandbox(config.confinement)
        await self._check_model(run)
        await self._check_worktree(run, config)
        if config.workspace or config.coding is not None:
            with contextlib.suppress(FolderReplaced):  # `prepare` finds it once the run is claimed, and ends the run
                await self.folders.in_time(lambda: self.folders.check(config, run.user_id))

    async def _check_worktree(self, run: RunRow, config: RunConfig) -> None:
        """Leave a run whose worktree is elsewhere to that machine for a while."""
        if config.coding is None or not await anyio.to_thread.run_sync(self.worktrees.is_elsewhere, run):
            return
        ready = await self._resources.store.look(lambda view: view.last_entry(run.id, "WorktreeReady"))
        if ready is None:
            return
        last_step_us = max(run.last_us or 0, run.queued_us or 0)
        if now_us() - last_step_us < WORKTREE_S * 1e6:
            raise ConfigNotSupported(
                f"the machine that has its worktree does not run it; without that it ends {WORKTREE_S / 60:.0f} minutes"
                " after its last step"
            )

    async def prepare(self, run: RunRow, history: History) -> RunContext:
        """Make everything that a claimed run works with.

        Raises:
            ConfigNotSupported: It cannot be run here after all.
            FolderReplaced: Its workspace or repository is not the one that was approved.
        """
        config = config_of(run.config)
        brief, recent, caps = await self._read_log(run, config)
        scratch = self._resources.settings.paths.scratch / run.id

        choice = await self.folders.in_time(lambda: self._begin(config, scratch))
        account = account_of(choice)
        sandbox = await self.sandbox(config.confinement)
        servers = self.servers(run, config, scratch, sandbox)
        ask = self._ask(config, history)
        tools = self.tools(run.user_id, config, history, scratch, servers, ask)
        search_engine = await self.search_engine(config)
        search = await self._search_model(config)
        prefix = history.prefix or self.prefix(config, brief, tools, choice, sandbox)
        prefix = await self._marked(prefix, run, config, brief, history)
        model = model_of(prefix.model, prefix.parameters, choice.api_key, self._resources.clients, choice.key_command)
        # The last step that may fail: where the run cannot be run here, nothing stays open.
        place = await self.open_place(run, config, tools, scratch, sandbox)
        tool_context = replace(
            self._tool_context(place, sandbox),
            fetch=self._fetcher(config, tools),
            search=search_engine,
            memory=self._resources.memory(run.user_id),
            user=run.user_id,
        )
        return RunContext(
            model=model,
            started=prefix,
            tools=tools,
            place=tool_context,
            redactor=RunRedactor(self._resources.credentials.redactor),
            secret_injection=SecretInjection(config.role, config.secrets, self._resources.credentials),
            scratch=scratch,
            servers=servers,
            caps=self._resources.day_caps(run.user_id),
            extensions=extension_limits(self._resources.settings, run.user_id),
            window=await self._window(choice),
            worktrees=self.worktrees,
            tokens_per_byte=recent.tokens_per_byte,
            account=account,
            named=recent.named_by(account),
            search=search,
            worktree=place.worktree,
            effects=parse_role(config.role_text, config.role_source, config.role).effects,
            ask=ask if config.runner == IN_PROCESS else None,
            agent=self._agent(config, model, str(prefix.parameters.get("wire")), sandbox, scratch),
            artifacts=lambda: self.folders.artifacts(run.id),
            close=partial(self.folders.close, run, place),
            plan_timeout_s=caps.timeout_s if caps is not None else None,
            prompt_prefix=self._prompt_prefixes.of_run(run, prefix),
            find_cut=self._find_cut(choice),
        )

    async def _window(self, choice: Choice) -> int:
        """Return the tokens that prompt and answer may have together: the length that is loaded, on this machine."""
        loaded: int | None = None
        if _is_on_this_machine(choice):
            from ava_server.models import listing

            loaded = await listing.loaded_window(listing.catalog_of(choice), choice.model_id, self._resources.clients)
        return loaded or choice.price.window or WINDOW

    def _find_cut(self, choice: Choice) -> FindCut:
        if not _is_on_this_machine(choice):
            return no_cut
        from ava_server.models import listing

        return partial(listing.find_cut, listing.catalog_of(choice), choice.model_id, self._resources.clients)

    async def _read_log(self, run: RunRow, config: RunConfig) -> tuple[Brief, RecentCalls, PlanCaps | None]:
        """Return the texts of a run, what the last calls of its model have shown, and the caps of its plan."""
        brief, recent, caps = await self._resources.store.read(
            lambda view: (brief_of(view, run), recent_calls(view, config.model), view.plan_caps(run.plan_id)),
            short=True,
        )
        if brief is None:
            raise ConfigNotSupported("its task was erased")
        return brief, recent, caps

    def _begin(self, config: RunConfig, scratch: Path) -> Choice:
        """Remove what an earlier process left behind, and return the model, at the price that was approved. Blocks."""
        remove_workbenches(scratch)
        return replace(self.choice(config), price=config.price)

    async def _marked(
        self, prefix: RunStarted, run: RunRow, config: RunConfig, brief: Brief, history: History
    ) -> RunStarted:
        """Return what the run starts with; for a step of a plan, with the mark by which a later plan recognises it."""
        if run.step is None or prefix.mark is not None or history.task is None:
            return prefix
        mark = await self._mark(run.user_id, config, prefix, brief, history.task.inputs or ())
        return prefix.model_copy(update={"mark": mark})

    def _tool_context(self, place: OpenFolders, sandbox: Sandbox | None) -> ToolContext:
        """Return what tools have of a run's folders, and the sandbox of those that run commands there."""
        has_programs = place.bench is not None or place.worktree is not None
        return ToolContext(
            files=place.files,
            texts=self._resources.texts,
            artifacts=place.artifacts,
            sandbox=sandbox if has_programs else None,
            bench=place.bench,
        )

    async def _mark(
        self, user: str, config: RunConfig, prefix: RunStarted, brief: Brief, inputs: Sequence[Mapping[str, str]]
    ) -> str | None:
        """Return the mark by which a later plan recognises the work of a run; None where it can have none."""
        try:
            marker = await self.folders.in_time(lambda: self._marker(user, config, prefix))
        except (AvaError, ConfigNotSupported) as error:  # it runs without a mark, and is not recognised later
            log.warning("the work of a step is not marked: %s", error)
            return None
        return marker(brief, inputs, [run.id for run in config.context_from])

    def _marker(self, user: str, config: RunConfig, prefix: RunStarted) -> Marker:
        """Return what makes the marks of a step's runs, with what they can read now. Blocks. Raises ConfigError."""
        key = root_key(self._resources.settings.paths.question_key)
        state = None if self.travel.is_elsewhere(config) else folder_state(config.workspace, config.steps_files)
        notes: str | None = ""
        if reads_memory(config):
            notes = notes_state(self._resources.memory(user))

        def mark(brief: Brief, inputs: Sequence[Mapping[str, str]], earlier: Sequence[str]) -> str | None:
            words = brief.model_dump(include={"task", "context", "system_prompt"})
            if brief.project:
                words["project"] = list(project_of(brief) or ())
            if state is None or notes is None:
                return None
            return run_mark(key, config, prefix, words, inputs, earlier, state, notes)

        return mark

    def marker(self, user: str, config: RunConfig, brief: Brief) -> Marker:
        """Return what makes the marks that the runs of a proposed step would have now. Blocks.

        Raises ConfigError, ConfigNotSupported: nothing can be known again.
        """
        ask = self._ask(config, History(""))
        tools = self.tools(user, config, History(""), Path(), RunMcpServers(), ask)
        return self._marker(user, config, self.prefix(config, brief, tools, self.choice(config), None))

    # -- what a replay takes from its recording instead ---------------------------------------------------------------

    def choice(self, config: RunConfig) -> Choice:
        """Return the approved model, with this process's key. Blocks. Raises ConfigNotSupported if it is not here."""
        choice = self.choice_at(config.model, config.tier or "balanced", config.base_url)
        if config.keyed and not choice.has_key:
            raise ConfigNotSupported(f"it was approved with a key for {choice.provider}, and there is none here")
        self._check_key_command(choice, config.key_command, config.workspace)
        return choice

    def _check_key_command(self, choice: Choice, approved: tuple[str, ...], workspace: str | None) -> None:
        """Raise ConfigNotSupported unless the key comes from the command that was approved, and it may be run."""
        command: tuple[str, ...] = ()
        if choice.key_command is not None:
            project = None if workspace is None else Path(workspace)
            try:
                command = choice.key_command.checked(project, self._resources.settings.data_root)
            except AvaError as error:
                raise ConfigNotSupported(str(error)) from error
        if command != approved:
            words = " ".join(approved)
            was = f"the command `{words}`" if words else "no command"
            raise ConfigNotSupported(f"the key of {choice.provider} was to come from {was}; propose it again")

    def choice_at(self, model: str, tier: str, base_url: str | None) -> Choice:
        """Return a model that was approved at this address. Blocks. Raises ConfigNotSupported if it is not here."""
        try:
            choice = choose(model, tier, self._resources.credentials.models)
        except AvaError as error:
            raise ConfigNotSupported(str(error)) from error
        if choice.base_url != base_url:
            raise ConfigNotSupported(f"it was approved for {base_url}, and {choice.provider} is now {choice.base_url}")
        return choice

    async def sandbox(self, approved: str) -> Sandbox | None:
        """Return the sandbox for a run's programs, at least as strong as approved; None for a run without programs.

        Raises ConfigNotSupported if there is none here.
        """
        if approved == NO_COMMANDS:
            return None
        sandbox = await anyio.to_thread.run_sync(self._resources.sandbox, limiter=self.folders.threads)
        if isinstance(sandbox, Unavailable):
            raise ConfigNotSupported(f"its programs cannot be confined here: {sandbox.why}")
        if strength(sandbox.kind) < strength(approved):
            raise ConfigNotSupported(
                f"its programs were approved to run in {approved}, and here the sandbox is {sandbox.kind}"
            )
        return sandbox

    async def search_engine(self, config: RunConfig) -> ApprovedSearch | None:
        """Return the approved search engine; None for a run that has none. Raises ConfigNotSupported."""
        if not config.search or config.search_call is not None:
            return None
        try:
            engine = await anyio.to_thread.run_sync(self._resources.credentials.search, config.search)
        except AvaError as error:
            raise ConfigNotSupported(str(error)) from error
        if engine is None:
            raise ConfigNotSupported(f"its web search ({config.search}) is not set up here")
        return ApprovedSearch(config.search, self._resources.credentials.search, self._resources.clients)

    def servers(self, run: RunRow, config: RunConfig, scratch: Path, sandbox: Sandbox | None) -> RunMcpServers:
        """Return the MCP servers of a run, not started yet."""
        return self._resources.foreign.of_run(config, run.id, scratch, sandbox)

    def tools(
        self, user: str, config: RunConfig, history: History, scratch: Path, servers: RunMcpServers, ask: Ask
    ) -> dict[str, Tool]:
        """Return the tools of a run by their names."""
        resources = self._resources
        step_of_plan = history.task is not None and bool(history.task.inputs)
        most_chars = None if step_of_plan else RESULT_CHARS
        results = ReadSubagentResult(resources.store, user, config.context_from, resources.render_result, most_chars)
        skills = ReadSkill(history, config.skills, resources.settings.paths.skills)
        tools: dict[str, Tool] = {
            **resources.tools,
            **run_tools(history, scratch, ask, results, skills),
            **foreign_tools(config, servers),
        }
        if config.coding is not None:
            tools["run_bash"] = RunBash(in_worktree=True)
        return {name: tools[name] for name in config.tools}

    def prefix(
        self, config: RunConfig, brief: Brief, tools: Mapping[str, Tool], choice: Choice, sandbox: Sandbox | None
    ) -> RunStarted:
        """Return with what a new run starts: its prompt, and what shapes its requests."""
        return started(config, brief, tools, parameters(choice), confinement_of(sandbox))

    async def open_place(
        self, run: RunRow, config: RunConfig, tools: Mapping[str, Tool], scratch: Path, sandbox: Sandbox | None
    ) -> OpenFolders:
        """Open the folders of a run. Raises ConfigNotSupported, FolderReplaced: see `prepare`."""
        return await self.folders.open(run, config, tools, scratch, sandbox)

    # -- what stays on this machine -----------------------------------------------------------------------------------

    def _fetcher(self, config: RunConfig, tools: Mapping[str, Tool]) -> Fetcher | None:
        if any(tool.spec.network and tool.spec.foreign is None for tool in tools.values()):
            return self._resources.fetcher.limit_to(config.hosts)
        return None

    def _agent(
        self, config: RunConfig, model: Model, wire: str, sandbox: Sandbox | None, scratch: Path
    ) -> AgentParts | None:
        """Return what another agent needs that does a run's work; None where Ava does. Raises ConfigNotSupported."""
        spec = self._known_agent(config)
        if spec is None:
            return None
        if sandbox is None or config.base_url is None:
            raise ConfigNotSupported(f"{spec.title} needs a sandbox and a language model here")
        settings = self._resources.settings
        host = HostFolders(home_folder(), settings.sandbox.read_only, (settings.data_root,))
        project = Path(config.workspace) if config.workspace is not None else None
        return AgentParts(spec, cast("HttpModel", model), wire, sandbox, host, scratch / "agent", project)

    def _known_agent(self, config: RunConfig) -> AgentSpec | None:
        """Return the agent that does a run's work; None where Ava does.

        Raises ConfigNotSupported if it is not here, or not as it was approved.
        """
        if config.runner == IN_PROCESS:
            return None
        if not has_extra("agents"):
            raise ConfigNotSupported(missing("agents"))
        try:
            spec = agent_of(config.runner, self._resources.settings)
        except AvaError as error:
            raise ConfigNotSupported(str(error)) from error
        if spec is not None and config.agent != spec.digest:
            raise ConfigNotSupported(f"the configuration of the agent {spec.name} has changed since this was approved")
        return spec

    def _ask(self, config: RunConfig, history: History) -> Ask:
        resources = self._resources
        return Ask(resources.store, history, config.questions, resources.settings.limits.question_wait_s)

    def with_cost_figures(self, config: RunConfig, brief: Brief, user: str, recent: RecentCalls) -> RunConfig:
        """Return the configuration of a proposal with the least cost cap, and with what its calls cost at most. Blocks.

        `recent`: what the last calls of its model have shown.

        Raises:
            Refused: Its caps buy no work.
            ConfigNotSupported: Its model is not configured here any more.
        """
        choice = self.choice(config)
        history = History("")
        tools = self.tools(user, config, history, Path(), RunMcpServers(), self._ask(config, history))
        model = model_of(config.model, parameters(choice), None, self._resources.clients)
        agent = agent_of(config.runner, self._resources.settings)
        pinned = pinned_at(choice.base_url)
        price = dearest_price(config.price, recent.named_by(account_of(choice)), pinned)
        first_bytes = agent.first_bytes if agent is not None else 0
        return with_cost_figures(config, brief, tools, model, price, recent.tokens_per_byte, first_bytes)

    async def _check_model(self, run: RunRow) -> None:
        """Check that this version can call the model with the parameters with which the run started."""
        if run.generation == 0:  # it has never been claimed
            return
        entry = await self._resources.store.look(lambda view: view.last_entry(run.id, "RunStarted"))
        if entry is None or not isinstance(entry.fact, RunStarted):
            return
        try:
            model_of(entry.fact.model, entry.fact.parameters, None, self._resources.clients)
        except ConfigError as error:
            raise ConfigNotSupported(str(error)) from error
        await self.sandbox(entry.fact.confinement)

    async def _search_model(self, config: RunConfig) -> SearchModel | None:
        """Return the approved web search by a model provider; None for a run that has none."""
        call = config.search_call
        if call is None:
            return None
        if self._resources.settings.search.engine not in ("auto", config.search):
            raise ConfigNotSupported(f"its web search ({config.search}) is switched off here")
        choice = await anyio.to_thread.run_sync(self.choice_at, call.model, "fast", call.base_url)
        await anyio.to_thread.run_sync(self._check_key_command, choice, call.key_command, config.workspace)
        model = search_model(config.search, choice, call.results, self._resources.clients)
        account = account_of(replace(choice, price=call.price))
        recent = await self._resources.store.read(lambda view: recent_calls(view, call.model), short=True)
        return SearchModel(config.search, call, model, account, recent.named_by(account))

    def hide(self, value: Any) -> Any:
        """Return a JSON-like value with the secrets in its texts replaced."""
        return self._resources.credentials.redactor.redact_json(value)


def _is_on_this_machine(choice: Choice) -> bool:
    """Tell whether a model runs on a server that the settings name as one of those on this machine."""
    known = PROVIDERS.get(choice.provider)
    return known is not None and known.kind == "this_machine" and choice.base_url is not None
