"""The runtime: what one process has open on a data root: log, keeper, run manager, models and tools."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError
from ava_audit.events import Who
from ava_audit.maintenance import run_maintenance
from ava_audit.retention import Retention
from ava_audit.rows import RUNNING, UNENDED, PastRun, RunRow
from ava_audit.store.backend import UNANNOUNCED, Announcement, Instances, Membership, OlderSchema
from ava_audit.store.store import Store
from ava_audit.totals import EntryCounts
from ava_audit.units import now_us
from ava_audit.view import T, View
from ava_roles.catalog import Catalog
from ava_roles.errors import WorkspaceRefused
from ava_roles.mcp_client.server_tools import server_of
from ava_roles.sandbox.sandbox import Unavailable
from ava_roles.sandbox.temporary import remove_leftovers, temporary_files_in
from ava_roles.sandbox.workspace import Workspace
from ava_roles.threads import run_sync
from ava_server.approval.estimates import COUNTED, SIMILAR
from ava_server.approval.over_http import roles_over_http, sandbox_over_http
from ava_server.approval.proposals import SpawnLimits, made_under, spawn_limits
from ava_server.approval.resolve_context import ResolveContext
from ava_server.approval.scope import remove_workbenches
from ava_server.budget import user_limits
from ava_server.budget.caps import SHARED_CAPS
from ava_server.budget.recent_calls import RecentCalls, recent_calls
from ava_server.config import role_folders
from ava_server.config.changes import WatchedUsers, with_shared_users
from ava_server.config.pin import PinFile
from ava_server.config.settings import record_settings
from ava_server.core.data_root import NOWHERE, home_folder, os_user, working_folder
from ava_server.core.errors import AvaError, Refused
from ava_server.core.files import WatchedFile
from ava_server.core.ids import AGENT
from ava_server.core.shared_files import keep_fresh
from ava_server.core.shortage import RUN_RESERVE, SERVER_RESERVE, find_shortage, raise_limit
from ava_server.core.shutdown import Drain, clean_last_resort
from ava_server.core.threads import read_apart
from ava_server.models.http_clients import ClientPool
from ava_server.models.model_choice import choose, configured
from ava_server.render.host_text import result_words
from ava_server.render.responses import Untrusted
from ava_server.render.run_view import ProcessesNow
from ava_server.runs.owner.activities import ActivityWatch
from ava_server.runs.owner.manager import Manager
from ava_server.runs.owner.mode import SERVER, Mode
from ava_server.runs.turn.resources import RunResources
from ava_server.runs.turn.setup import RunSetup
from ava_server.service.engines import open_engine
from ava_server.service.event_hook import desktop_program, run_event_hook

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ava_roles.net.search_engines import Engine
    from ava_roles.role import Role
    from ava_server.approval.requests import SpawnArgs
    from ava_server.config.settings import Policy, Settings
    from ava_server.hosts.clients import ConnectedHost


log = logging.getLogger("ava.runtime")
USERS_EVERY_S = 2.0
"""How often changed limits of users are looked for."""
_CHECK_FILES_S = 60.0
"""How long the keeper waits for a look at the files whose texts are kept."""


def stored_result_words(result: dict[str, Any]) -> str:
    """Return a stored result (the `result` of a SubagentComplete entry) as text."""
    return result_words(Untrusted.model_validate(result["untrusted_result"]))


@dataclass
class Runtime(RunResources):
    """What one process has open.

    Attributes:
        calls_model: Set once something was proposed here that calls a model, which the offline reader is not.
        entry_counts: What metrics have counted in the log; counting needs the lock `counting`.
    """

    instances: Instances
    membership: Membership = field(init=False)
    manager: Manager = field(init=False)
    activities: ActivityWatch = field(init=False)
    closing: Drain = field(default_factory=Drain)
    calls_model: anyio.Event = field(default_factory=anyio.Event)
    entry_counts: EntryCounts = field(init=False)
    counting: anyio.Lock = field(default_factory=anyio.Lock)

    def __post_init__(self) -> None:
        """Make the shared objects now: two threads that need one at the same time would make two."""
        super().__post_init__()
        self.activities = ActivityWatch(self.instances)
        self.entry_counts = EntryCounts(since=self.store.head)
        pin = PinFile(self.settings.paths.approval_file)
        self._has_pin = WatchedFile(pin.path, lambda: pin.is_set)

    @cached_property
    def run_setup(self) -> RunSetup:
        return RunSetup(self)

    def render_result(self, result: dict[str, Any]) -> str:
        return stored_result_words(result)

    def spawn_limits_of(self, user: str) -> SpawnLimits:
        return spawn_limits(self.settings, user)

    def limits_under(self, policy: Policy, user: str) -> SpawnLimits:
        """Return the limits on a user's approvals, with a proposal's lifetime under a policy."""
        return replace(self.spawn_limits_of(user), ttl_us=int(self.settings.lifetime_under(policy) * 1_000_000))

    async def follow_users(self) -> None:
        """Take over changes of users' limits; a file that cannot be read changes nothing."""
        watched = WatchedUsers(self.settings.paths)
        while True:
            try:
                users = await anyio.to_thread.run_sync(watched.changed)
                if users is not None and users != self.settings.users:
                    self.settings = self.settings.model_copy(update={"users": users})
                    self.manager.slots = user_limits.slots(self.settings)
            except (AvaError, RuntimeError) as error:  # RuntimeError: no more threads can be started
                log.warning("the limits of users stay as they were: %s", error)
            await anyio.sleep(USERS_EVERY_S)

    async def policy_on(self, ids: Sequence[str], *users: str, through: ConnectedHost | None = None) -> Policy:
        """Return the policy in force for a decision on these proposals or runs; see `policy`."""
        proposed_under = await self.store.look(lambda view: made_under(view, ids))
        return await self.policy(*users, through=through, made_under=proposed_under)

    async def policy(
        self, *users: str, through: ConnectedHost | None = None, made_under: Sequence[Policy] = ()
    ) -> Policy:
        """Return the policy in force for users; without any, for the operating system's user. Raises ConfigError."""
        return await anyio.to_thread.run_sync(lambda: self.policy_now(*users, through=through, made_under=made_under))

    def policy_now(
        self, *users: str, through: ConnectedHost | None = None, made_under: Sequence[Policy] = ()
    ) -> Policy:
        """Do what `policy` does. Blocking."""
        users = users or (self.user,)
        pin = self._has_pin.current()
        policy, _why = user_limits.policy_in_force(
            self.settings, *users, pin=pin, through=through, made_under=made_under
        )
        return policy

    def processes_now(self) -> ProcessesNow:
        return ProcessesNow(self.instances, self.membership.name)

    async def catalog(self, client_roots: Sequence[str], *, remote: str | None = None) -> Catalog:
        """Read the role files and return the roles; those of the user over HTTP with `remote`. Raises Refused."""
        return await _read_in_time(lambda: self._read_catalog(client_roots, None, remote)[0])

    def _read_catalog(
        self, client_roots: Sequence[str], asked: str | None, remote: str | None
    ) -> tuple[Catalog, Workspace | WorkspaceRefused | None]:
        """Read the role files, those in the folder that a call names too; return the roles and that workspace."""
        if remote is not None:
            return roles_over_http(self.settings, remote, owner=remote == self.user), None
        cwd = working_folder() or NOWHERE
        home = home_folder()
        found = role_folders.workspace_of(self.settings, asked=asked, client_roots=client_roots, cwd=cwd, home=home)
        places = role_folders.places_of(self.settings, asked=asked, cwd=cwd, home=home, found=found)
        return places.load(), found

    async def resolve_context(
        self,
        args: SpawnArgs,
        user: str,
        client_roots: Sequence[str] | None,
        begin: Callable[[], Awaitable[None]],
        through: ConnectedHost | None = None,
    ) -> ResolveContext:
        """Return the context in which a spawn is resolved; reads the role files again.

        `args`: the spawn. The role files of the folder that it names count as the project's. `client_roots`: folders
        that the client named; None for a user over HTTP, who has no access to folders here. `begin`: awaited before an
        MCP server is asked for its tools.

        Raises:
            ConfigError: It is not known whether there is a PIN, so nothing can be approved.
            Refused: A folder with role files does not answer.
        """
        setting = await _read_in_time(lambda: self._read_setting(args, user, client_roots, through))
        role = setting.role
        model = setting.model

        def query(view: View) -> tuple[list[PastRun], RecentCalls]:
            if model is None:
                return [], RecentCalls()
            past = view.past_runs(user, args.role, model, COUNTED, SIMILAR, SHARED_CAPS)
            return past, recent_calls(view, model)

        past, recent = await self.store.read(query)
        foreign: dict[str, Any] = {}
        if role is not None and any(server_of(tool) for tool in role.tools):
            await begin()
            foreign = {"servers": self.foreign.entries, "listings": await self.foreign.listings(role)}
        return setting.context(past=past, recent=recent, **foreign)

    def _read_setting(
        self, args: SpawnArgs, user: str, client_roots: Sequence[str] | None, through: ConnectedHost | None
    ) -> _SpawnSetting:
        """Read what `resolve_context` needs of files. Blocking."""
        remote = client_roots is None
        catalog, workspace = self._read_catalog(client_roots or (), args.workspace, user if remote else None)
        models = self.credentials.models
        memory = self.memory(user)
        search: Engine | None = None
        with suppress(AvaError):  # `ava doctor` reports it; most runs do not search
            search = self.credentials.search()
        role = catalog.by_name.get(args.role)
        model: str | None = None
        if role is not None:
            with suppress(AvaError):  # resolving the proposal says why
                model = choose(args.model, role.model, models).name
        sandbox_of_remote = partial(sandbox_over_http, self.sandbox, self.settings)
        context = partial(
            ResolveContext,
            settings=self.settings,
            models=models,
            catalog=catalog,
            tools=self.tools,
            search=search,
            client_roots=client_roots or (),
            cwd=working_folder() or NOWHERE,
            home=home_folder(),
            secrets=lambda: self.credentials.secrets,
            sandbox=sandbox_of_remote if remote else self.sandbox,
            notes=memory is not None and not memory.is_empty(),
            background=self.manager.leaves_runs,
            remote_roots=user_limits.user_settings(self.settings, user).workspaces if remote else None,
            policy=self.policy_now(user, through=through),
            hide=lambda text: self.credentials.redactor.redact(text)[0],
            workspace=workspace,
        )
        return _SpawnSetting(context, role, model)

    async def prepare_first_run(self) -> None:
        """Load what model calls need once a run with some is proposed: while the person reads that, nobody waits."""
        await self.calls_model.wait()
        try:
            await anyio.to_thread.run_sync(self.run_setup.load)
        except Exception as error:  # the run itself meets it and reports it: certificates, a proxy's address
            log.debug("what runs need was not loaded ahead: %s", error)

    async def sweep(self) -> None:
        """Remove what dead processes left of runs: folders of ended runs, and copies of workspaces."""
        try:
            await anyio.to_thread.run_sync(self._sweep, await self._unended())
            run_ids = await anyio.to_thread.run_sync(self.run_setup.worktrees.run_ids)
            for run in await self.store.read(lambda view: [view.run(run_id) for run_id in run_ids]):
                # Read after the folders were listed, so a new run is not taken for an ended one.
                if run is not None and run.ended:
                    await anyio.to_thread.run_sync(self.run_setup.folders.remove, run)
        except (AuditError, OSError, ValueError, RuntimeError) as error:  # the next start tries again
            log.warning("the files of dead processes were not removed completely: %s", error)

    async def sweep_leftovers(self) -> None:
        """Remove temporary folders and lock files of dead processes."""
        try:
            await anyio.to_thread.run_sync(self._sweep_leftovers, await self._unended())
            if self.store.blobs is not None:
                await anyio.to_thread.run_sync(self.store.blobs.sweep, now_us())
            with anyio.move_on_after(_CHECK_FILES_S):  # a share whose server does not answer
                await run_sync(self.texts.check_files)
        except (AuditError, OSError, RuntimeError) as error:  # the next time tries again
            log.warning("the temporary files of dead processes were not removed completely: %s", error)

    async def leave(self) -> None:
        """Give up this instance's membership of the data root.

        If a running run still names this instance, its lock file stays: it shows when the instance last worked.
        """
        name = self.membership.name
        owns_run = True
        with anyio.move_on_after(1):
            try:
                running = await self.store.read(lambda view: view.runs(states=(RUNNING,), limit=-1))
                owns_run = any(row.instance == name for row in running)
            except AuditError as error:  # a later sweep removes the lock if no run names it
                log.debug("the lock of this process stays: %s", error)
        await anyio.to_thread.run_sync(self.membership.release if owns_run else self.membership.remove)

    async def _unended(self) -> Sequence[RunRow]:
        return await self.store.read(lambda view: view.runs(states=UNENDED, expired_before_us=now_us(), limit=-1))

    def _sweep_leftovers(self, rows: Sequence[RunRow]) -> None:
        paths = self.settings.paths
        for place in (paths.temporary, paths.sandbox):
            remove_leftovers(place)
        self.foreign.sweep()
        self.texts.expire(self.settings.retention_days)
        self.instances.remove_dead(frozenset(row.instance for row in rows if row.instance))

    def _sweep(self, rows: Sequence[RunRow]) -> None:
        scratch = self.settings.paths.scratch
        for row in rows:  # a run that waits to be resumed keeps its outputs, but no copy of a workspace
            if row.instance and not self.instances.alive(row.instance):
                remove_workbenches(scratch / row.id, row.generation)
        unended = {row.id for row in rows}
        for folder in scratch.glob("S-*"):
            if folder.name not in unended:
                self.run_setup.folders.remove_scratch(folder.name)


@dataclass(frozen=True)
class _SpawnSetting:
    """What a spawn is resolved against, as far as files say it.

    Attributes:
        context: Makes the context, once what the log and MCP servers say is known too.
        role: None if there is none of this name.
        model: The name of the model that would be chosen; None if there is none.
    """

    context: Callable[..., ResolveContext]
    role: Role | None
    model: str | None


async def _read_in_time(read: Callable[[], T]) -> T:
    """Read files that may be on a disk that does not answer. Raises Refused if it does not."""
    try:
        with anyio.fail_after(role_folders.ROLES_S):
            return await read_apart(read)
    except TimeoutError:
        raise Refused(
            f"the role files were not read within {role_folders.ROLES_S:.0f} s: the data root, the workspace or the"
            " server's working folder is on a disk that does not answer; name another workspace, or fix the disk"
        ) from None


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    mode: Mode = SERVER,
    *,
    everybody: bool = False,
    older: OlderSchema | None = None,
    announce: Callable[[Runtime], Announcement] | None = None,
) -> AsyncGenerator[Runtime]:
    """Open a data root, and serve its runs until the context ends; unfinished runs stay in the log.

    `mode`: which kind of process this is. `everybody`: it serves all users of the log, not only the system's. `older`:
    what to do with a log of an older version; by default, a process that keeps the data root migrates it. `announce`:
    what this process tells others on the same log about itself.

    Raises:
        ConfigError: The data root cannot be used.
        AuditError: The log cannot be opened.
    """
    clean_last_resort()
    raise_limit()
    await anyio.to_thread.run_sync(settings.paths.create)
    await anyio.to_thread.run_sync(settings.paths.close_to_others)
    with temporary_files_in(settings.paths.temporary):
        if older is None:
            older = OlderSchema.COPY_AND_MIGRATE if mode.keeps_root else OlderSchema.REFUSE
        async with _open(settings, mode, everybody, older, announce) as runtime:
            yield runtime


@asynccontextmanager
async def _open(
    settings: Settings,
    mode: Mode,
    everybody: bool,
    older: OlderSchema,
    announce: Callable[[Runtime], Announcement] | None,
) -> AsyncGenerator[Runtime]:
    async with Store.open(settings.data_root, older=older) as store:
        settings = await anyio.to_thread.run_sync(with_shared_users, settings)
        delivers = mode.leaves or mode.outlives_host
        engine = await anyio.to_thread.run_sync(open_engine, settings) if delivers else None
        instances = store.instances(settings.paths.instances, settings.lease_s)
        runtime = Runtime(settings, store, os_user(), ClientPool(), instances)
        announcement = announce(runtime) if announce is not None else UNANNOUNCED
        own = await anyio.to_thread.run_sync(instances.join, announcement)
        runtime.membership = own
        runtime.manager = Manager(
            mode, runtime, instances, own, runtime.run_setup, delivery=engine, everybody=everybody
        )
        if mode.keeps_root:
            shortage = find_shortage(RUN_RESERVE + SERVER_RESERVE)
            if shortage is not None:
                log.warning("%s", shortage)
        try:
            if mode.keeps_root:
                await record_settings(store, settings.for_everybody, Who(own.name, AGENT, runtime.user))
            async with anyio.create_task_group() as keepers:
                await _start_keepers(keepers, runtime, mode)
                try:
                    async with anyio.create_task_group() as workers:
                        _start_workers(workers, runtime, mode)
                        yield runtime
                        workers.cancel_scope.cancel()
                finally:
                    keepers.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(2):
                await runtime.clients.aclose()
                await anyio.to_thread.run_sync(runtime.texts.close)
                await runtime.leave()
                await anyio.to_thread.run_sync(instances.close)


async def _start_keepers(group: TaskGroup, runtime: Runtime, mode: Mode) -> None:
    """Start what goes on until the last run of this process has stopped."""
    settings = runtime.settings
    store = runtime.store
    await group.start(keep_fresh, settings.data_root)
    group.start_soon(runtime.instances.keep, runtime.membership)
    group.start_soon(runtime.activities.follow)
    group.start_soon(maintain_data_root, store, settings, runtime.sweep_leftovers)
    desktop = desktop_program() if settings.desktop_notifications else None
    if (settings.on_event or desktop) and mode.keeps_root:
        group.start_soon(run_event_hook, store, settings.data_root, settings.on_event, desktop)


def _start_workers(group: TaskGroup, runtime: Runtime, mode: Mode) -> None:
    """Start what runs subagents, and what only a process that serves does."""
    if mode.claims != "nobody":
        group.start_soon(_run_manager, runtime)
    if mode.keeps_root:
        group.start_soon(runtime.sweep)
        group.start_soon(runtime.sweep_leftovers)
        group.start_soon(runtime.follow_users)
        if not runtime.manager.leaves_runs:
            group.start_soon(runtime.prepare_first_run)


async def _run_manager(runtime: Runtime) -> None:
    manager = runtime.manager
    async with manager.delivery.connected():
        await manager.run()
    await anyio.to_thread.run_sync(runtime.membership.release)  # it owns nothing now: other processes may see that


async def maintain_data_root(
    store: Store, settings: Settings, sweep: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Be the keeper of the data root while no other process is, until cancelled."""
    run_folders = (settings.paths.artifacts, settings.paths.scratch)
    retention = Retention(settings.retention_days, run_folders)
    await run_maintenance(store, settings.data_root, mirror=settings.mirrors, retention=retention, sweep=sweep)


def refuse_recursion() -> str | None:
    """Return why this process must not run subagents, if it belongs to a subagent's run itself, or None."""
    run = os.environ.get("AVA_RUN_ID")
    if run:
        return f"this process belongs to subagent {run[:20]}, and a subagent starts no subagents (AVA_RUN_ID is set)"
    return None


def announce_worker(runtime: Runtime) -> Announcement:
    """Return what a worker offers: providers, labels, tools, sandbox, version, and how many runs it takes. Blocking.

    It names providers and never keys: everybody who reads the database can see it.
    """
    limits = runtime.settings.limits
    sandbox = runtime.sandbox()
    offers: dict[str, Any] = {
        "providers": sorted(_providers(runtime)),
        "labels": sorted(runtime.settings.labels),
        "tools": sorted(runtime.tools),
        "sandbox": "none" if isinstance(sandbox, Unavailable) else sandbox.kind,
        "runs": runtime.settings.delivery.slots or limits.running,
        "version": version("ava-subagents"),
    }
    return Announcement("worker", offers=offers)


def _providers(runtime: Runtime) -> list[str]:
    try:
        providers = configured(runtime.credentials.models)
    except AvaError:  # `ava doctor` reports it
        return []
    return [name for name, provider in providers.items() if provider.has_key]
