"""Everything that is open on a data root in one process: the log, its keeper, the run manager, models and tools."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError
from ava_audit.events import Who
from ava_audit.maintenance import run_maintenance
from ava_audit.retention import Retention
from ava_audit.rows import UNENDED, RunRow
from ava_audit.store.locks import Instances
from ava_audit.store.store import Store
from ava_audit.totals import Tally
from ava_roles.catalog import Catalog
from ava_roles.mcp_client.entry import server_of
from ava_roles.memory import Memory
from ava_roles.tool import Tool
from ava_roles.tools.registry import builtin_tools
from ava_server.approval.proposals import SpawnLimits
from ava_server.approval.resolve import ResolveContext
from ava_server.approval.scope import remove_benches, sandbox_here
from ava_server.budget import user_limits
from ava_server.budget.caps import DayCaps
from ava_server.config import role_folders
from ava_server.config.credentials import Credentials
from ava_server.config.pin import policy_in_force
from ava_server.config.search_engines import without_search
from ava_server.config.settings import record_settings
from ava_server.core.data_root import NOWHERE, home_folder, os_user, working_folder
from ava_server.core.errors import AvaError, Refused
from ava_server.core.ids import AGENT
from ava_server.core.shutdown import Drain, clean_last_resort
from ava_server.core.threads import read_apart
from ava_server.models.clients import ClientPool
from ava_server.runs.manager import GRACE_S, Manager
from ava_server.runs.mcp_servers import McpServers
from ava_server.runs.setup import RunSetup
from ava_server.runs.worker_process import WorkerProcesses
from ava_server.service.event_hook import tell_events
from ava_server.service.render_text import result_words
from ava_server.service.responses import Untrusted

if TYPE_CHECKING:
    from ava_roles.net.fetch import Fetcher
    from ava_roles.sandbox.sandbox import Sandbox, Unavailable
    from ava_server.config.settings import Policy, Settings

log = logging.getLogger("ava.house")


def stored_result_words(result: dict[str, Any]) -> str:
    """Return a stored result (the `result` of a SubagentComplete entry) as text."""
    return result_words(Untrusted.model_validate(result["untrusted_result"]))


@dataclass
class Runtime:
    """What one process has open.

    Attributes:
        settings: What is configured, read at start.
        store: The log.
        user: The OS user.
        manager: The run manager.
        clients: The model connections.
        access: Providers and keys.
        tally: What metrics have counted of the log; whoever counts on holds `counting`.
    """

    settings: Settings
    store: Store
    user: str
    clients: ClientPool
    instances: Instances
    manager: Manager = field(init=False)
    credentials: Credentials = field(init=False)
    closing: Drain = field(default_factory=Drain)
    tally: Tally = field(init=False)
    counting: anyio.Lock = field(default_factory=anyio.Lock)

    def __post_init__(self) -> None:
        """Make what there is one of: two threads that want it first would make two."""
        self.credentials = Credentials(self.settings)
        self.tally = Tally(since=self.store.head)

    @cached_property
    def tools(self) -> Mapping[str, Tool]:
        """The built-in tools, made once for all runs."""
        return builtin_tools()

    @cached_property
    def fetcher(self) -> Fetcher:
        """The guarded fetcher: one for all runs, because it spaces out the requests to a host."""
        from ava_roles.net.fetch import Fetcher

        return Fetcher(proxy=self.settings.fetch.proxy or None)

    def sandbox(self) -> Sandbox | Unavailable:
        """Return what confines commands here, or why nothing does. Found at the first call, which may take a second."""
        return sandbox_here(self.settings)

    @cached_property
    def foreign(self) -> McpServers:
        """The other MCP servers that are configured."""
        return McpServers(self.settings, lambda: self.credentials.secrets, self.sandbox)

    @cached_property
    def outfitting(self) -> RunSetup:
        """What gives runs what they work with."""
        return RunSetup(self)

    def render_result(self, result: dict[str, Any]) -> str:
        """Return a stored result as text, for a run that reads an earlier one's."""
        return stored_result_words(result)

    def day_caps(self, user: str) -> DayCaps:
        """Return what may be spent in a day, by this user and in all."""
        return user_limits.day_caps(self.settings, user)

    @property
    def spawn_limits(self) -> SpawnLimits:
        """What limits approvals of the user of the operating system."""
        return self.spawn_limits_of(self.user)

    def spawn_limits_of(self, user: str) -> SpawnLimits:
        """Return what limits approvals of a user."""
        settings = self.settings
        return SpawnLimits(
            spawns_per_hour=settings.limits.spawns_per_hour,
            days=self.day_caps(user),
            day_settings=(user_limits.day_setting(settings, user), settings.installation_day_setting),
            ttl_us=int(settings.proposal_lifetime_s * 1_000_000),
        )

    def limits_under(self, policy: Policy, user: str) -> SpawnLimits:
        """Return what limits approvals of a user, with the time for which a proposal waits under a policy."""
        return replace(self.spawn_limits_of(user), ttl_us=int(self.settings.lifetime_under(policy) * 1_000_000))

    async def policy(self, user: str | None = None) -> Policy:
        """Return who may approve what a user proposes, at this moment; None is the user of the operating system.

        Raises:
            ConfigError: Whether there is a PIN cannot be told, so nothing can be approved.
        """
        in_force = await anyio.to_thread.run_sync(policy_in_force, self.settings)
        return user_limits.stricter(self.settings, user or self.user, in_force)

    def memory(self, user: str) -> Memory | None:
        """Return the notes of a user; only whom the data root belongs to has any yet."""
        return Memory(self.settings.paths.memory) if user == self.user else None

    async def catalog(
        self, client_roots: Sequence[str], workspace: str | None = None, *, remote: str | None = None
    ) -> Catalog:
        """Return the roles that there are at this moment.

        Args:
            client_roots: Folders that the client named.
            workspace: The folder that a call names, whose role files then count as the project's.
            remote: The user over HTTP whose roles they are.

        Raises:
            Refused: A folder of theirs does not answer.
        """

        def read() -> Catalog:
            if remote is not None:
                return user_limits.roles_over_http(self.settings, remote, owner=remote == self.user)
            return role_folders.places_of(
                self.settings,
                asked=workspace,
                client_roots=client_roots,
                cwd=working_folder() or NOWHERE,
                home=home_folder(),
            ).load()

        try:
            with anyio.fail_after(role_folders.ROLES_S):
                return await read_apart(read)
        except TimeoutError:
            raise Refused(
                f"the role files were not read within {role_folders.ROLES_S:.0f} s: the data root, the workspace or the"
                " server's working folder lies on a disk that does not answer; name another workspace, or mend that"
            ) from None

    async def surroundings(
        self, client_roots: Sequence[str], role: str, user: str, workspace: str | None = None, *, remote: bool = False
    ) -> ResolveContext:
        """Return what a user's proposal of a role is resolved against; role files are read anew, and only here.

        One that comes over HTTP (`remote`) has nothing of what is at hand on this machine.
        """
        durations = await self.store.read(lambda view: view.durations(role))
        catalog = await self.catalog(client_roots, workspace, remote=user if remote else None)
        around = await anyio.to_thread.run_sync(
            self._surroundings, catalog, tuple(client_roots), tuple(durations), self.memory(user)
        )
        if remote:
            around = replace(
                around,
                client_roots=(),
                remote_roots=user_limits.own_settings(self.settings, user).workspaces,
                sandbox=lambda: user_limits.sandbox_over_http(self.sandbox(), self.settings),
            )
        named = next((own for own in catalog.roles if own.name == role), None)
        if named is None or not any(server_of(tool) for tool in named.tools):
            return around
        return replace(around, servers=self.foreign.entries, listings=await self.foreign.listings(named))

    def _surroundings(
        self,
        catalog: Catalog,
        client_roots: tuple[str, ...],
        durations: tuple[tuple[str, int], ...],
        memory: Memory | None,
    ) -> ResolveContext:
        try:
            search = self.credentials.search()
        except AvaError:  # the doctor tells; whoever does not search has nothing to do with it
            search = None
        return ResolveContext(
            settings=self.settings,
            models=self.credentials.models,
            catalog=catalog,
            tools=without_search(self.tools) if search is None else self.tools,
            search=search,
            client_roots=client_roots,
            cwd=working_folder() or NOWHERE,
            home=home_folder(),
            secrets=lambda: self.credentials.secrets,
            sandbox=self.sandbox,
            durations=durations,
            notes=memory is not None and not memory.is_empty(),
        )

    async def sweep(self) -> None:
        """Remove what dead processes left: folders of ended runs, copies of workspaces, locks of nobody."""
        try:
            rows = await self.store.read(lambda view: view.runs(states=UNENDED, limit=-1))
            await anyio.to_thread.run_sync(self._sweep, rows)
            there = await anyio.to_thread.run_sync(self.outfitting.worktrees.there)
            for run in await self.store.read(lambda view: [view.run(run_id) for run_id in there]):
                if run is not None and run.ended:  # looked up after they were listed: one that began since is not ended
                    await anyio.to_thread.run_sync(self.outfitting.tidy, run)
        except (AuditError, OSError, ValueError) as error:  # the next start sweeps; nothing depends on it
            log.warning("what dead processes left was not all removed: %s", error)

    def _sweep(self, rows: Sequence[RunRow]) -> None:
        scratch = self.settings.paths.scratch
        for row in rows:  # what waits to be resumed keeps its outputs, and no copy of a workspace
            if row.instance and not self.instances.alive(row.instance):
                remove_benches(scratch / row.id, row.generation)
        unended = {row.id for row in rows}
        for folder in scratch.glob("S-*"):
            if folder.name not in unended:
                self.outfitting.tidy_scratch(folder.name)
        self.foreign.sweep()
        self.instances.remove_dead(frozenset(row.instance for row in rows if row.instance))


@asynccontextmanager
async def open_house(
    settings: Settings, *, runs: bool = True, worker: bool = False, serves: Callable[[RunRow], bool] | None = None
) -> AsyncGenerator[Runtime]:
    """Open a data root, and look after its runs until the context ends; runs that go on stay in the log.

    Args:
        settings: What is configured.
        runs: Claim runs; False for commands that look, or say something to runs of others.
        worker: This is the data root's worker: runs are its own also under `background`, and it waits for nobody.
        serves: Which runs are claimed; None is this user's.

    Raises:
        ConfigError: The data root cannot be used.
        AuditError: The log cannot be opened.
    """
    clean_last_resort()
    await anyio.to_thread.run_sync(settings.paths.create)
    async with Store.open(settings.data_root) as store:
        instances = Instances(settings.paths.instances)
        name, lock = await anyio.to_thread.run_sync(instances.join)
        clients = ClientPool()
        user = os_user()
        runtime = Runtime(settings, store, user, clients, instances)
        runtime.manager = manager = Manager(
            store,
            instances,
            name,
            serves or (lambda row: row.user_id == user),
            user_limits.slots(settings),
            runtime.outfitting,
            hire=WorkerProcesses(settings.paths) if settings.background and not worker else None,
            grace_s=0.0 if worker else GRACE_S,
        )

        async def own() -> None:
            await manager.run()
            lock.release()  # it owns nothing any more: whoever looks for orphans may see it

        try:
            if runs:
                await record_settings(store, settings.for_everybody, Who(name, AGENT, user))
            async with anyio.create_task_group() as keeping:
                keeping.start_soon(lambda: keep(store, settings))
                if settings.on_event and runs:
                    keeping.start_soon(tell_events, store, settings.data_root, settings.on_event)
                try:
                    async with anyio.create_task_group() as running:
                        if runs:
                            running.start_soon(own)
                            running.start_soon(runtime.sweep)
                        yield runtime
                        running.cancel_scope.cancel()
                finally:
                    keeping.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(2):
                await clients.aclose()
            lock.release()
            lock.path.unlink(missing_ok=True)


async def keep(store: Store, settings: Settings) -> None:
    """Be the keeper of the data root whenever no other process is, until cancelled."""
    own = (settings.paths.artifacts, settings.paths.scratch)  # where a run has a folder of its own
    retention = Retention(settings.retention_days, own)
    await run_maintenance(store, settings.data_root, mirror=settings.mirror, retention=retention)


def refuse_recursion() -> str | None:
    """Return why this process must not serve or run subagents, or None: it is itself part of a subagent's run."""
    run = os.environ.get("AVA_RUN_ID")
    if run:
        return f"this process belongs to subagent {run[:20]}, and a subagent starts no subagents (AVA_RUN_ID is set)"
    return None
