"""One look at a data root: its runs, today's spending, the log, and what works on it. Nothing is made or locked.

`health` judges it, with the states of `ava doctor`. What goes on is the answer to the same request as with `--url`.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ava_audit.errors import AuditError
from ava_audit.rows import ASKING
from ava_audit.store.sqlite import backend_of
from ava_audit.units import cents, counted, format_bytes, now_us
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_server.budget.user_limits import day_caps
from ava_server.cli.log_look import LogLook, NoLog
from ava_server.cli.record_client import MemoryTransport, Records
from ava_server.config.credentials import model_settings
from ava_server.config.settings import Settings, load_settings
from ava_server.core.data_root import os_user
from ava_server.core.errors import AvaError
from ava_server.models.model_choice import configured
from ava_server.service.checks import CheckFinding, Setup, data
from ava_server.service.checks.refused_keys import refused_findings, with_refused_keys
from ava_server.service.current import Budget, CurrentRuns, LogFacts, todays_budgets
from ava_server.service.record_requests import CURRENT

if TYPE_CHECKING:
    from ava_server.cli.service_client import LookTransport
    from ava_server.render.run_view import RunView
    from ava_server.service.run_records import CurrentViews

T = TypeVar("T")
DELIVERY_EVERY_S = 5.0
"""How often what delivers runs is asked for its state."""
PROBE_ENDS_S = 5.0
"""How long the end waits for the sandbox probe, so that it leaves no folder behind."""


@dataclass(frozen=True)
class Overview:
    """Everything that one look found.

    Attributes:
        now: What goes on, and the log; where the log cannot be read or is not there yet, nothing.
        processes: How many Ava processes work here.
        keeper: One of them keeps index and mirror.
        free_bytes: What is left on the disk; None where that is not known.
        providers: The configured providers, and whether each has a key.
        delivery: What delivers runs to workers, where the log is shared.
        lost_log: Processes whose log in the database lost entries.
        faults: What is wrong with settings and keys.
        trouble: Why the log could not be read.
    """

    now: CurrentViews
    processes: int
    keeper: bool
    free_bytes: int | None
    providers: Mapping[str, bool]
    delivery: tuple[CheckFinding, ...] = ()
    lost_log: tuple[CheckFinding, ...] = ()
    faults: tuple[str, ...] = ()
    trouble: AuditError | AvaError | None = None


class OverviewReader:
    """Looks at a data root, again and again.

    Args:
        settings: What was configured at first; a change counts from the next look on.
        everybody: The runs of all users.
        most: How many runs are read in full, of those that have not ended and of those that have.
        env: The environment; None is this process's.

    Attributes:
        records: What is asked for runs and the log.
        user: Whose runs these are.
        selected: The run whose last actions are read too.
    """

    def __init__(self, settings: Settings, *, everybody: bool, most: int, env: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self.everybody = everybody
        self._env = env
        self.user = os_user()
        self.selected: str | None = None
        root = settings.paths
        self._instances = backend_of(root.path).instances(root.instances)
        self._log = LogLook(root)
        self._delivery: tuple[float, tuple[CheckFinding, ...]] = (-math.inf, ())
        more: dict[str, Any] = {"settings": lambda: self.settings, "most_runs": most}
        self.records = Records(MemoryTransport(root, self._log, self._instances, **more))

    @cached_property
    def decisions(self) -> LookTransport:
        """What is asked for decisions that wait."""
        from ava_server.cli.service_client import LookTransport

        return LookTransport(self._log, lambda: self.settings)

    def close(self) -> None:
        self._instances.close()

    async def look(self) -> Overview:
        """If the log cannot be read, return everything else. Blocking: it waits for nothing but the disk."""
        faults: list[str] = []
        try:
            self.settings = load_settings(self.settings.data_root, self._env)
        except (AvaError, OSError) as error:
            faults.append(str(error))
        providers: Mapping[str, bool] = {}
        try:
            usable = configured(model_settings(self.settings))
            providers = {name: one.has_key for name, one in usable.items()}
        except AvaError as error:
            faults.append(str(error))
        root, trouble = self.settings.paths, None
        try:
            now = await self.records.get(CURRENT, all=self.everybody, selected=self.selected)
        except NoLog:
            now = self._nothing()
        except (AuditError, AvaError) as error:
            now, trouble = self._nothing(), error
        return Overview(
            now=now,
            processes=sum(map(data.seems_held, root.instances.glob("*.lock"))),
            keeper=data.seems_held(root.path / "keeper.lock"),
            free_bytes=data.free_bytes(root.path),
            providers=providers,
            delivery=self._read_delivery(),
            lost_log=tuple(data.lost_log(Setup(os.environ, root, self.settings))),
            faults=tuple(faults),
            trouble=trouble,
        )

    def _read_delivery(self) -> tuple[CheckFinding, ...]:
        """Ask the engine and the workers, at most every few seconds: it is a connection each time."""
        read_s, found = self._delivery
        if self.settings.shares_log and time.monotonic() - read_s > DELIVERY_EVERY_S:
            from ava_server.service.checks.delivery import delivery

            found = tuple(delivery(Setup(os.environ, self.settings.paths, self.settings)))
            self._delivery = time.monotonic(), found
        return found

    def _nothing(self) -> CurrentViews:
        caps, at_us = day_caps(self.settings, self.user), now_us()
        return CurrentRuns(at_us, {}, (), todays_budgets(None, self.user, self.user, caps, at_us, everybody=True))


class SandboxProbe:
    """Finds out, once and in a thread, what confines commands here: trying it takes a moment.

    Args:
        mode: The setting `sandbox.mode`.
    """

    def __init__(self, mode: Literal["auto", "none"]) -> None:
        self._mode: Literal["auto", "none"] = mode
        self._found: Sandbox | Unavailable | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._try, name="ava-sandbox-probe", daemon=True)
            self._thread.start()

    def found(self, within_s: float = 0.0) -> Sandbox | Unavailable | None:
        """Return None where that takes longer."""
        if self._thread is not None:
            self._thread.join(within_s)
        return self._found

    def end(self) -> None:
        """Wait for the end of what was begun, `PROBE_ENDS_S` at most."""
        self.found(PROBE_ENDS_S)

    def _try(self) -> None:
        from ava_roles.sandbox.selection import sandbox_here

        try:
            self._found = sandbox_here(self._mode)
        except OSError as error:  # no room for the folder that it is tried in
            self._found = Unavailable(f"it could not be tried ({error.strerror or error})", "correct that")


# -- health ------------------------------------------------------------------------------------------------------------


def health(
    overview: Overview, settings: Settings, confined: Sandbox | Unavailable | None, trouble: str = ""
) -> list[CheckFinding]:
    """`confined` is None while it is not known; `trouble` says why the log could not be read."""
    found = [CheckFinding("settings", "fault", fault, short="settings wrong") for fault in overview.faults]
    if not settings.enabled:
        found.append(CheckFinding("settings", "warning", data.SWITCHED_OFF, short="switched off"))
    found += overview.delivery
    found += overview.lost_log
    found += [*_processes(overview), *_log(overview.now.log, trouble, keeper=overview.keeper)]
    if overview.free_bytes is not None:
        found.append(_disk(overview.free_bytes))
    found.append(_confinement(confined))
    found.append(_providers(overview.providers))
    log = overview.now.log
    return with_refused_keys(found, refused_findings(log.refused if log is not None else ()))


def _processes(overview: Overview) -> list[CheckFinding]:
    count = overview.processes
    if not count:
        working = (*ASKING, "queued", "running", "interrupted")
        waiting = any(overview.now.counts.get(state) for state in working)
        text = "none is running: nothing runs until one starts"
        return [CheckFinding("servers", "warning" if waiting else "note", text, short="no server")]
    text = f"{counted(count, 'Ava process', 'Ava processes')} running"
    servers = CheckFinding("servers", "ok", text, short=counted(count, "server"))
    if overview.keeper:
        text = "running: it keeps text index and mirror up to date"
        return [servers, CheckFinding("keeper", "ok", text)]
    text = "none: text index and mirror wait for a server"
    return [servers, CheckFinding("keeper", "note", text, short="no keeper")]


def _log(log: LogFacts | None, trouble: str, *, keeper: bool) -> list[CheckFinding]:
    if trouble:
        return [CheckFinding("log", "fault", trouble, short="log unreadable")]
    if log is None:
        return [CheckFinding("log", "note", "none yet; the first start makes it", short="no log yet")]
    size = log.database_bytes + log.wal_bytes
    logged = data.log_size(log.entries, size, partial=log.partial)
    upkeep = data.upkeep(log.lags, keeper=keeper)
    worst = max(log.lags.values())
    behind = f"{worst:,} entries behind" if worst > 0 else "up to date"
    return [replace(logged, short=format_bytes(size)), replace(upkeep, short=behind)]


def _disk(free: int) -> CheckFinding:
    disk = data.disk_space(free)
    short = "" if disk.state == "ok" else f"{format_bytes(free)} free"
    return replace(disk, name="disk", short=short)


def _confinement(confined: Sandbox | Unavailable | None) -> CheckFinding:
    if confined is None:
        return CheckFinding("confinement", "note", "not known yet")
    if isinstance(confined, Unavailable):
        short = "no commands"
    else:
        short = "no sandbox" if confined.kind == "none" else confined.kind
    return replace(data.confinement(confined), short=short)


def _providers(providers: Mapping[str, bool]) -> CheckFinding:
    if not providers:
        text = "none is configured here; a host may have one in its own environment"
        return CheckFinding("providers", "note", text, short="no provider here")
    named = [f"{name} ({'key' if key else 'no key'})" for name, key in providers.items()]
    return CheckFinding("providers", "ok", ", ".join(named), short=", ".join(providers))


def health_json(
    overview: Overview, findings: Iterable[CheckFinding], confined: Sandbox | Unavailable | None
) -> dict[str, Any]:
    kind = None
    if isinstance(confined, Unavailable):
        kind = f"unavailable: {confined.why}"
    elif confined is not None:
        kind = confined.kind
    log = overview.now.log
    return {
        "servers": overview.processes,
        "keeper": overview.keeper,
        "entries": log.entries if log is not None else None,
        "database_bytes": log.database_bytes if log is not None else None,
        "wal_bytes": log.wal_bytes if log is not None else None,
        "index_lag_entries": log.lags[data.INDEX] if log is not None else None,
        "mirror_lag_entries": log.lags.get(data.MIRROR) if log is not None else None,
        "free_bytes": overview.free_bytes,
        "confinement": kind,
        "providers": [{"name": name, "key": key} for name, key in overview.providers.items()],
        "findings": [{"name": one.name, "state": one.state, "text": one.text} for one in findings],
    }


def current_json(now: CurrentViews) -> dict[str, Any]:
    """Money is in US cents."""
    return {
        "runs": [run_json(run) for run in now.runs],
        "runs_of_others": now.others,
        "today": today_json(now.budgets),
    }


def today_json(budgets: Iterable[Budget]) -> list[dict[str, Any]]:
    """Money is in US cents."""
    return [
        {
            "whose": budget.whose,
            "spent_cents": cents(budget.spent),
            "held_cents": cents(budget.held),
            "cap_cents": cents(budget.cap),
        }
        for budget in budgets
    ]


def run_json(run: RunView) -> dict[str, Any]:
    from ava_server.render.run_view import run_answer

    caps: dict[str, Any] = {}
    for cap in run.caps:
        if cap.name == "cost":  # from micro-USD to cents
            most = cap.most / 10_000 if cap.most > 0 else None
            caps["cost_cents"] = {"used": round(cap.used / 10_000, 4), "cap": most, "held": cap.held / 10_000}
        else:
            caps[cap.name] = {"used": round(cap.used, 4), "cap": cap.most if cap.most > 0 else None}
    fields = {
        **run_answer(run).model_dump(mode="json", exclude_none=True),
        "task": run.task,
        "user": run.row.user_id,
        "caps": caps,
    }
    if run.wait is not None and run.wait.cause != "approval":
        waits = run.wait.for_people()
        if waits:
            fields["waits"] = waits
    return fields
