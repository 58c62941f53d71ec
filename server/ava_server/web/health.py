"""The page of the server's health: what a person needs to know when something does not work, and what to do."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.events import ErrorOccurred, SubagentComplete
from ava_audit.retention import ComingErasure, coming_erasures
from ava_audit.search import LogQuery, search
from ava_audit.units import DAY_US, US_PER_S, format_bytes, format_duration, now_us
from ava_audit.view import View
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_server.render.turns import alike_words
from ava_server.service.checks import WORST_FIRST, CheckFinding, Setup, data, models, run_checks
from ava_server.service.checks.delivery import engine_finding, lost_findings, worker_findings
from ava_server.service.checks.refused_keys import refused_findings, refused_keys, with_refused_keys
from ava_server.service.current import Budget
from ava_server.service.engines import engine_state, lost_workers, repeats_among, workers_among
from ava_server.service.run_records import current_runs
from ava_server.web.context import PageContext, reader_of
from ava_server.web.log_pages import EventRow, rows_of
from ava_server.web.site import Visitor
from ava_server.web.timeline import ALIKE_CHARS

CHECKED_WITHIN_S = 10.0
MOST_ERRORS, LOOKED_AT = 10, 50
MOST_ERASURES = 3
CHECKS = (
    data.data_root, data.space, data.settings, data.programs, data.approval, data.lost_log, data.processes,
    models.keys, models.providers, models.tiers, models.search, models.network,
)  # fmt: skip
"""The checks of `ava doctor` that read a few files and send nothing."""
_PATH = re.compile(r"(?<![\w:/.~-])~?/[^\s,;:)'\"]+")


@dataclass(frozen=True)
class HealthState:
    """What the log says now: its newest entry and size, the entries its copies lack, runs by state, and budgets.

    `erasures` are the next ones of the texts of runs.
    """

    head: int
    bytes: int
    lags: dict[str, int]
    counts: dict[str, int]
    budgets: tuple[Budget, ...]
    erasures: list[ComingErasure]


@dataclass(frozen=True)
class RepeatedError:
    """An error, the newest of those that are alike, how many there were, and in which runs: ids with names."""

    row: EventRow
    times: int
    runs: tuple[tuple[str, str], ...]

    @property
    def count(self) -> str:
        """`7 times in 7 runs`; empty where it came once."""
        if self.times == 1:
            return ""
        times = f"{self.times} times"
        return times if len(self.runs) < 2 else f"{times} in {len(self.runs)} runs"


class HealthPage:
    """The page of the server's health."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._started_us = now_us()

    def routes(self) -> list[Route]:
        return [Route("/health", self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        """Show what concerns other users or this machine only to visitors who may see all."""
        visitor = reader_of(request)
        everybody = visitor.reads_all
        now = await self._context.store.read(lambda view: self._state(view, visitor))
        sandbox = await anyio.to_thread.run_sync(self._context.runtime.sandbox)
        users = () if everybody else (visitor.user,)
        query = LogQuery(users=users, types=("error",), since_us=now_us() - DAY_US, limit=LOOKED_AT)
        found = await search(self._context.store, query)
        rows = await self._context.store.read(lambda view: rows_of(view, found.entries))
        errors = repeated(without_consequences([*_flat(rows)]))
        findings: list[CheckFinding] = []
        if everybody:
            refused = refused_findings(await self._context.store.read(lambda view: refused_keys(view, now_us())))
            if not self._context.site.local:
                refused = [without_paths(each) for each in refused]
            others = sorted(await self._findings(visitor, now, sandbox), key=lambda one: WORST_FIRST.index(one.state))
            findings = with_refused_keys(others, refused)
        values = {
            "facts": list(self._facts(now, sandbox, everybody=everybody)),
            "wrong": [one for one in findings if one.state in ("fault", "warning")],
            "notes": [one for one in findings if one.state == "note"],
            "works": [one for one in findings if one.state == "ok"],
            "started_us": self._started_us,
            "state": now,
            "kept_days": self._context.runtime.settings.retention_days,
            "errors": errors[:MOST_ERRORS],
            "more_errors": len(errors) > MOST_ERRORS or found.next is not None,
            "everybody": everybody,
        }
        return self._context.show(request, "health.html", values)

    def _state(self, view: View, visitor: Visitor) -> HealthState:
        runtime, at_us, everybody = self._context.runtime, now_us(), visitor.reads_all
        user = None if everybody else visitor.user
        counts, _runs = current_runs(view, user, runtime.instances, at_us, served=lambda: True, most=0)
        lags = data.lags_of(view, mirrors=runtime.settings.mirrors)
        budgets = self._context.budgets(view, visitor, at_us, everybody=everybody)
        counts = {name: runs for name, runs in counts.items() if runs}
        erasures = coming_erasures(view, at_us, runtime.settings.retention_days, MOST_ERASURES, user)
        return HealthState(view.head(), sum(view.sizes().values()), lags, counts, budgets, erasures)

    def _facts(self, now: HealthState, sandbox: Sandbox | Unavailable, *, everybody: bool) -> Iterator[tuple[str, str]]:
        """Yield what everybody may know, and what only those may who may see all; paths, only on this machine."""
        yield "Version", version("ava-subagents")
        yield "Running for", format_duration((now_us() - self._started_us) / US_PER_S)
        yield "Sandbox", "none" if isinstance(sandbox, Unavailable) else sandbox.kind
        if everybody:
            folder = self._context.store.path.parent
            yield "Log", f"{now.head:,} entries, {format_bytes(now.bytes)}"
            yield "Free on its disk", format_bytes(shutil.disk_usage(folder).free)
            if self._context.site.local:
                yield "Data root", str(folder)

    async def _findings(self, visitor: Visitor, now: HealthState, sandbox: Sandbox | Unavailable) -> list[CheckFinding]:
        runtime = self._context.runtime
        setup = Setup(os.environ, runtime.settings.paths, runtime.settings, visitor.user)
        day_settings = runtime.spawn_limits_of(visitor.user).day_settings
        found = [data.upkeep(now.lags, keeper=True), data.confinement(sandbox), data.budgets(now.budgets, day_settings)]
        if (why := runtime.manager.out_of_reach) is not None:
            found += [CheckFinding("log", "fault", f"this server cannot use the log: {why}", "See the checks below.")]
        if runtime.manager.leaves_runs and runtime.settings.shares_log:
            found += await self._delivery()
        try:
            with anyio.fail_after(CHECKED_WITHIN_S):
                found += await anyio.to_thread.run_sync(checked, setup, abandon_on_cancel=True)
        except TimeoutError:
            text = f"the checks did not end within {CHECKED_WITHIN_S:.0f} s"
            found += [CheckFinding("checks", "fault", text, "See whether the disk of the data root answers.")]
        return found if self._context.site.local else [without_paths(each) for each in found]

    async def _delivery(self) -> list[CheckFinding]:
        """Return how runs reach workers."""
        runtime = self._context.runtime
        engine = runtime.manager.delivery
        live = await anyio.to_thread.run_sync(runtime.instances.live)
        lost = await anyio.to_thread.run_sync(runtime.instances.lost)
        workers = await self._context.store.read(lambda view: lost_workers(view, lost)) if lost else []
        found: list[CheckFinding] = []
        if engine.carries:
            found.append(engine_finding(engine.name, await engine_state(engine), repeats_among(live)))
        return [*found, *worker_findings(workers_among(live)), *lost_findings(workers)]


def without_consequences(rows: Sequence[EventRow]) -> list[EventRow]:
    """Return errors, newest first, without the ending of a run whose error is the one before it."""
    kept: list[EventRow] = []
    for place, row in enumerate(rows):
        if isinstance(row.entry.fact, SubagentComplete) and _is_told_before(row, rows[place + 1 :]):
            continue
        kept.append(row)
    return kept


def _is_told_before(ending: EventRow, older: Iterable[EventRow]) -> bool:
    """Tell whether the last row of the same run before its ending is an error."""
    for row in older:
        if row.entry.run_id == ending.entry.run_id:
            return isinstance(row.entry.fact, ErrorOccurred)
    return False


def repeated(rows: Iterable[EventRow]) -> list[RepeatedError]:
    """Return errors, newest first; those of one run that begin alike are one, and so are equal ones of several."""
    of_runs: dict[tuple[str, str, str], list[EventRow]] = {}
    for row in _flat(rows):
        of_runs.setdefault((row.run, row.name, row.text[:ALIKE_CHARS]), []).append(row)
    equal: dict[tuple[str, str], list[EventRow]] = {}
    for alike in of_runs.values():
        newest = alike[0]
        equal.setdefault((newest.name, alike_words(newest.text)), []).extend(alike)
    return [RepeatedError(same[0], len(same), _runs_of(same)) for same in equal.values()]


def _runs_of(rows: Iterable[EventRow]) -> tuple[tuple[str, str], ...]:
    """Return the runs of rows, each once."""
    return tuple({row.entry.run_id: row.run for row in rows if row.entry.run_id is not None}.items())


def _flat(rows: Iterable[EventRow]) -> Iterator[EventRow]:
    """Yield rows with those inside them."""
    for row in rows:
        yield row
        if row.result is not None:
            yield row.result
        yield from _flat(row.inside)


def checked(setup: Setup) -> list[CheckFinding]:
    """Blocking."""
    return list(run_checks(((check.__name__, check) for check in CHECKS), setup, in_full=False))


def without_paths(found: CheckFinding) -> CheckFinding:
    return replace(found, text=_PATH.sub("(path)", found.text), what_to_do=_PATH.sub("(path)", found.what_to_do))
