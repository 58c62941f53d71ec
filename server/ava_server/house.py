"""Everything that is open on a data root in one process: the log, its keeper, the run manager, models and tools."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError
from ava_audit.events import RunStarted, Who
from ava_audit.keeper import run_keeper
from ava_audit.locks import Instances
from ava_audit.money import format_usd, micros_from_cents
from ava_audit.retention import Retention
from ava_audit.rows import UNENDED, RunRow
from ava_audit.store import Store
from ava_roles.catalog import Catalog, Folder
from ava_roles.confine.paths import Root
from ava_roles.prompt import system_prompt
from ava_roles.role import parse_role
from ava_roles.tools.base import Place, Tool
from ava_roles.tools.registry import builtin_tools
from ava_server.access import Access
from ava_server.approval import SpawnLimits, minutes, texts_of
from ava_server.budget import DayCaps
from ava_server.claims import Slots
from ava_server.earlier import NAME as READ_RESULT
from ava_server.earlier import ReadSubagentResult, listed
from ava_server.errors import AvaError
from ava_server.hiring import Hiring
from ava_server.history import History
from ava_server.ids import AGENT
from ava_server.lending import Lending
from ava_server.manager import GRACE_S, CannotHonour, Manager
from ava_server.models.choose import Choice, choose, model_of, parameters
from ava_server.models.clients import ClientPool
from ava_server.os_user import os_user
from ava_server.prepared import Prepared
from ava_server.run_config import RunConfig, Texts
from ava_server.run_tools import RUN_TOOL_NAMES, run_tools
from ava_server.settings_record import record_settings
from ava_server.spawning import Surroundings
from ava_server.submit import schema as submit_schema

if TYPE_CHECKING:
    from ava_roles.confine.fetch import Fetcher
    from ava_server.settings import Settings

log = logging.getLogger("ava.house")

WINDOW = 128_000
"""Tokens of context that a model is taken to hold when its price table does not say."""


@dataclass
class House:
    """What one process has open.

    Attributes:
        settings: What is configured, read at start.
        store: The log.
        user: The OS user.
        manager: The run manager.
        clients: The model connections.
        access: Providers and keys.
    """

    settings: Settings
    store: Store
    user: str
    clients: ClientPool
    instances: Instances
    manager: Manager = field(init=False)
    access: Access = field(init=False)

    def __post_init__(self) -> None:
        """Make what there is one of: two threads that want it first would make two."""
        self.access = Access(self.settings)

    @cached_property
    def tools(self) -> Mapping[str, Tool]:
        """The built-in tools, made once for all runs."""
        return builtin_tools()

    @cached_property
    def fetcher(self) -> Fetcher:
        """The guarded fetcher: one for all runs, because it spaces out the requests to a host."""
        from ava_roles.confine.fetch import Fetcher

        return Fetcher()

    @property
    def day_caps(self) -> DayCaps:
        """What may be spent in a day."""
        limits = self.settings.limits
        return DayCaps(micros_from_cents(limits.user_daily_cents), micros_from_cents(limits.installation_daily_cents))

    @property
    def spawn_limits(self) -> SpawnLimits:
        """What limits approvals."""
        settings = self.settings
        return SpawnLimits(
            spawns_per_hour=settings.limits.spawns_per_hour,
            days=self.day_caps,
            day_settings=(settings.user_day_setting, settings.installation_day_setting),
            ttl_us=int(settings.proposal_lifetime_s * 1_000_000),
        )

    async def surroundings(self, client_roots: Sequence[str], role: str) -> Surroundings:
        """Return what a proposal of a role is resolved against; role files are read anew."""
        durations = await self.store.read(lambda view: view.durations(role))
        return await anyio.to_thread.run_sync(self._surroundings, tuple(client_roots), tuple(durations))

    def _surroundings(self, client_roots: tuple[str, ...], durations: tuple[tuple[str, int], ...]) -> Surroundings:
        return Surroundings(
            settings=self.settings,
            models=self.access.models,
            catalog=read_catalog(self.settings),
            tools=self.tools,
            client_roots=client_roots,
            cwd=Path.cwd(),
            home=Path.home(),
            secrets=lambda: self.access.secrets,
            durations=durations,
        )

    async def honour(self, run: RunRow) -> None:
        """Look whether a run can be run here as it was approved; opens nothing.

        Raises:
            CannotHonour: It cannot; says what it waits for.
        """
        config = RunConfig.model_validate_json(run.config)
        await self._choice(config)
        missing = [name for name in config.tools if name not in self.tools and name not in RUN_TOOL_NAMES]
        if missing:
            raise CannotHonour(f"the tool {missing[0]} is not available in this version")
        if await self.store.read(lambda view: texts_of(view, run)) is None:
            raise CannotHonour("its task was erased")
        workspace = config.workspace
        if workspace:
            await anyio.to_thread.run_sync(lambda: _open_workspace(workspace).close())

    async def prepare(self, run: RunRow, history: History) -> Prepared:
        """Make everything that a claimed run works with.

        Raises:
            CannotHonour: It cannot be run here, after all.
        """
        config = RunConfig.model_validate_json(run.config)
        texts = await self.store.read(lambda view: texts_of(view, run))
        if texts is None:
            raise CannotHonour("its task was erased")
        choice = replace(await self._choice(config), price=config.to_price())  # the price that was approved
        scratch = self.settings.data_root / "scratch" / run.id
        results = ReadSubagentResult(self.store, run.user_id, config.context_from)
        tools: dict[str, Tool] = {**self.tools, **run_tools(history, scratch, results)}
        own = {name: tools[name] for name in config.tools}
        files, artifacts = await anyio.to_thread.run_sync(self._open_folders, config, run.id)
        networked = any(tool.spec.network for tool in own.values())

        def close(ended: bool) -> None:
            for root in (files, artifacts):
                if root is not None:
                    root.close()
            if ended:
                self.tidy(run.id)

        started = history.prefix or _started(config, texts, own, parameters(choice))
        return Prepared(
            model=model_of(started.model, started.parameters, choice.api_key, self.clients),
            started=started,
            tools=own,
            place=Place(files=files, fetch=self.fetcher if networked else None, artifacts=artifacts),
            redactor=self.access.redactor,
            lending=Lending(config.role, config.secrets, self.access),
            scratch=scratch,
            caps=self.day_caps,
            window=choice.price.window or WINDOW,
            artifacts=lambda: self.artifacts(run.id),
            close=close,
        )

    async def _choice(self, config: RunConfig) -> Choice:
        """Return the model that was approved, with this process's key.

        Raises:
            CannotHonour: It is not configured here, or leads elsewhere.
        """
        try:
            choice = await anyio.to_thread.run_sync(
                lambda: choose(config.model, config.tier or "balanced", self.access.models)
            )
        except AvaError as error:
            raise CannotHonour(str(error)) from error
        if choice.base_url != config.base_url:
            raise CannotHonour(f"it was approved for {config.base_url}, and {config.provider} is now {choice.base_url}")
        return choice

    def _open_folders(self, config: RunConfig, run_id: str) -> tuple[Root | None, Root | None]:
        files = _open_workspace(config.workspace) if config.workspace else None
        if "save_artifact" not in config.tools:
            return files, None
        folder = self.settings.paths.artifacts / run_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return files, Root.open(folder)

    def artifacts(self, run_id: str) -> list[dict[str, Any]]:
        """Return name, size in bytes and sha256 of each file that a run has handed over. Blocking."""
        found = list_artifacts(self.settings.paths.artifacts / run_id)
        return [{**file, "name": self.access.redactor.redact(file["name"])[0]} for file in found]

    def tidy(self, run_id: str) -> None:
        """Remove what was only an ended run's own: its scratch folder, and a folder of artifacts that stayed empty."""
        shutil.rmtree(self.settings.data_root / "scratch" / run_id, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty, or never made
            (self.settings.paths.artifacts / run_id).rmdir()

    async def sweep(self) -> None:
        """Remove what dead processes left: scratch folders of ended runs, lock files of instances that own nothing."""
        try:
            rows = await self.store.read(lambda view: view.runs(states=UNENDED))
            unended = {row.id for row in rows}
            owners = frozenset(row.instance for row in rows if row.instance)
            await anyio.to_thread.run_sync(self._sweep, unended, owners)
        except (AuditError, OSError) as error:  # the next start sweeps; nothing depends on it
            log.warning("what dead processes left was not all removed: %s", error)

    def _sweep(self, unended: set[str], owners: frozenset[str]) -> None:
        for folder in (self.settings.data_root / "scratch").glob("S-*"):
            if folder.name not in unended:
                self.tidy(folder.name)
        self.instances.sweep(owners)


@asynccontextmanager
async def open_house(
    settings: Settings, *, runs: bool = True, worker: bool = False, serves: Callable[[RunRow], bool] | None = None
) -> AsyncGenerator[House]:
    """Open a data root, and look after its runs until the context ends; runs that go on stay in the log.

    Args:
        settings: What is configured.
        runs: Claim runs; False for commands that only look.
        worker: This is the data root's worker: runs are its own also under `background`, and it waits for nobody.
        serves: Which runs are claimed; None is this user's.

    Raises:
        ConfigError: The data root cannot be used.
        AuditError: The log cannot be opened.
    """
    await anyio.to_thread.run_sync(settings.paths.create)
    async with Store.open(settings.data_root) as store:
        instances = Instances(settings.paths.instances)
        name, lock = await anyio.to_thread.run_sync(instances.join)
        clients = ClientPool()
        limits = settings.limits
        slots = Slots(limits.running_per_user, limits.running)
        user = os_user()
        house = House(settings, store, user, clients, instances)
        if runs:
            try:
                await record_settings(store, settings.for_everybody, Who(name, AGENT, user))
            except AuditError as error:  # the next start finds the same
                log.warning("whether settings have changed is not on the record: %s", error)
        house.manager = manager = Manager(
            store,
            instances,
            name,
            serves or (lambda row: row.user_id == user),
            slots,
            house,
            hire=Hiring(settings.paths) if settings.background and not worker else None,
            grace_s=0.0 if worker else GRACE_S,
        )

        async def own() -> None:
            await manager.run()
            lock.release()  # it owns nothing any more: whoever looks for orphans may see it

        try:
            async with anyio.create_task_group() as keeping:
                keeping.start_soon(lambda: keep(store, settings))
                try:
                    async with anyio.create_task_group() as running:
                        if runs:
                            running.start_soon(own)
                            running.start_soon(house.sweep)
                        yield house
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
    own = (settings.paths.artifacts, settings.data_root / "scratch")  # where a run has a folder of its own
    retention = Retention(settings.retention_days, own)
    await run_keeper(store, settings.data_root, mirror=settings.mirror, retention=retention)


def read_catalog(settings: Settings) -> Catalog:
    """Read the role files: built in, then the data root's. Blocking."""
    return Catalog.load([Folder(settings.paths.roles, "roles of the data root")])


def _open_workspace(workspace: str) -> Root:
    """Open the workspace of a run.

    Raises:
        CannotHonour: It cannot be opened.
    """
    try:
        return Root.open(Path(workspace))
    except OSError as error:
        raise CannotHonour(f"its workspace {workspace} cannot be opened: {error.strerror}") from error


def list_artifacts(folder: Path) -> list[dict[str, Any]]:
    """Return name, size in bytes and sha256 of each file that a run handed over."""
    try:
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:  # a result is not lost, nor a run kept from its end, because its files cannot be listed
        log.warning("the artifacts in %s cannot be listed: %s", folder.name, error)
        return []
    found: list[dict[str, Any]] = []
    for path in paths:
        if path.is_file() and not path.is_symlink():
            try:
                data = path.read_bytes()
            except OSError as error:
                log.warning("%s cannot be listed: %s", path.name, error)
                continue
            found.append({"name": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return found


def _started(config: RunConfig, texts: Texts, tools: Mapping[str, Tool], wire: Mapping[str, Any]) -> RunStarted:
    """Return the run's rendered prefix."""
    role = parse_role(config.role_text, config.role_source, config.role)
    free = bool(config.price.get("free"))
    limits = {
        "time": minutes(config.timeout_s),
        "money": "free" if free else format_usd(config.max_cost_micros, exact=True),
        "tokens": f"{config.max_tokens:,}",
        "turns": str(config.max_iterations),
        "tool calls": str(config.max_tool_calls),
    }
    specs = [tools[name].spec for name in sorted(tools)]
    submit = submit_schema(config.output_schema)
    schemas = (
        *({"name": spec.name, "description": spec.description, "parameters": spec.schema()} for spec in specs),
        {"name": submit.name, "description": submit.description, "parameters": dict(submit.parameters)},
    )
    text = system_prompt(
        role,
        system_prompt=texts.system_prompt,
        context=texts.context,
        results=listed(config.context_from) if READ_RESULT in tools else "",
        tools=specs,
        limits=limits,
        output_schema=config.output_schema,
    )
    return RunStarted(
        system=text,
        tools=schemas,
        model=config.model,
        price=config.price,
        limits=limits,
        parameters=dict(wire),
        max_output=config.max_output,
        nonce=secrets.token_hex(8),
        workspace=config.workspace,
    )


def refuse_recursion() -> str | None:
    """Return why this process must not serve or run subagents, or None: it is itself part of a subagent's run."""
    run = os.environ.get("AVA_RUN_ID")
    if run:
        return f"this process belongs to subagent {run[:20]}, and a subagent starts no subagents (AVA_RUN_ID is set)"
    return None
