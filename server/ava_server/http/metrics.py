"""Metrics in Prometheus' text format, made on request from the log and the state of this process.

Counters come from the log, so they include what other servers and workers did, and survive restarts. What the log
deletes after a time is counted from the start of this process, and the metric's help says so.
"""

from __future__ import annotations

import platform
import shutil
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from prometheus_client import Metric, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from starlette.responses import Response

from ava_audit.errors import AuditError
from ava_audit.rows import UNENDED, Bucket
from ava_audit.store.backend import LiveInstance
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.totals import (
    NO_COUNT,
    Counted,
    CurrentCounts,
    EntryCounts,
    Labels,
    NewCounts,
    RunSums,
    StartWaits,
    UserSums,
    WaitingRuns,
    count_new_entries,
    current_runs,
    run_sums,
    start_waits,
    user_sums,
)
from ava_audit.units import day_of, now_us
from ava_audit.view import View
from ava_roles.mcp_client.server_tools import server_of
from ava_roles.sandbox.sandbox import Unavailable
from ava_server.budget.user_limits import day_cents, installation_scope, user_scope
from ava_server.delivery import EngineState
from ava_server.http.limits import error_response, forbidden
from ava_server.mcp_server.app import OF_REQUEST, App
from ava_server.run_config.config import RUN_TOOLS
from ava_server.runs.record.submit import NAME as SUBMIT
from ava_server.service.engines import WorkerFacts, engine_state, repeats_among, workers_among
from ava_server.telemetry import provider_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.config.tokens import Token
    from ava_server.service.runtime import Runtime

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_ROLES, MOST_MODELS, MOST_PROVIDERS, MOST_USERS = 30, 50, 20, 100
"""The first so many in the log have their own labels; none ever changes its label."""
OTHER = "other"
LabelNames = tuple[str, ...]
_SINCE = " Since this process began, of all processes."
_ROLE, _BOTH = ("role",), ("role", "model")
_RUN_SUMS = (
    ("ava_run_active_seconds", "How long ended claims of runs were active.", _ROLE, "active_us", 1e6),
    ("ava_cost_usd", "What runs have spent, including reservations booked in full.", _BOTH, "cost_micros", 1e6),
    ("ava_cost_uncosted_usd", "The part booked because the true cost is unknown.", _BOTH, "uncosted_micros", 1e6),
    ("ava_turns", "Turns of runs: model calls without their retries.", _BOTH, "turns", 1),
    ("ava_run_tool_calls", "Tool calls of runs.", _ROLE, "tool_calls", 1),
)
"""Counters of runs: name, help, labels, the field of `RunSums`, and how many of its units make one."""
START_BOUNDS_US = (50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000,
                   60_000_000, 300_000_000, 1_800_000_000)  # fmt: skip
"""The upper bounds of the histogram of waits for a first claim."""
_USER_STATE = ("user", "state")
_EVENTS = (
    ("SpawnDecided", "ava_proposals_decided", "Decided proposals, by decision and channel.", ("decision", "channel")),
    ("RunClaimed", "ava_runs_claimed", "Runs that a process started or took over.", ("reason",)),
    ("GuardrailTripped", "ava_guardrails", "Guardrails that acted.", ("guardrail", "action")),
    ("SessionStart", "ava_sessions", "Connections of hosts and commands.", ("transport",)),
)
"""Counters of events: the type, name, help, and labels."""


@dataclass(frozen=True)
class LogState:
    """One state of the log."""

    head: int
    sizes: dict[str, int]
    runs: list[RunSums]
    starts: StartWaits
    users: list[UserSums]
    days: dict[str, int]
    now: CurrentCounts
    news: NewCounts
    day: Bucket
    indexed: int
    mirrored: int


def labels_of_first(values: Iterable[tuple[int, str]], most: int) -> Callable[[str], str]:
    """Return a function from value to label: the first `most` by their time keep their own, later ones are `other`."""
    in_order = dict.fromkeys(value for _when, value in sorted(values))
    first = frozenset(list(in_order)[:most])
    return lambda value: value if value in first else OTHER


class Families:
    """The metrics, as the library collects them. Blocks."""

    def __init__(
        self,
        log: LogState,
        runtime: Runtime,
        live: Sequence[LiveInstance],
        engine: EngineState | None,
        now_us: int,
        open_sessions: int | None,
    ) -> None:
        self._log = log
        self._live = live
        self._engine = engine
        self._runtime = runtime
        self._entry_counts = runtime.entry_counts
        self._now_us = now_us
        self._open_sessions = open_sessions
        runs = log.runs
        self._role = labels_of_first(((group.first_us, group.role) for group in runs), MOST_ROLES)
        self._model = labels_of_first(((group.first_us, group.model) for group in runs), MOST_MODELS)
        provider = labels_of_first(((group.first_us, provider_of(group.model)) for group in runs), MOST_PROVIDERS)
        self._provider: Callable[[str | None], str] = lambda model: provider(provider_of(model or ""))

    def collect(self) -> Iterator[Metric]:
        yield from self._installation()
        yield from self._current_runs()
        yield from self._delivery()
        yield from self._run_totals()
        yield from self._calls()
        if self._runtime.settings.metrics.by_user:
            yield from self._by_user()
        for type_name, name, text, labels in _EVENTS:
            yield _counter(name, text, labels, self._count(type_name))
        yield from ProcessCollector(registry=None).collect()

    def _installation(self) -> Iterator[Metric]:
        log, store, settings = self._log, self._runtime.store, self._runtime.settings
        sandbox = self._runtime.sandbox()  # detected once per process
        kind = "unavailable" if isinstance(sandbox, Unavailable) else sandbox.kind
        build = (version("ava-subagents"), platform.python_version(), sqlite3.sqlite_version, str(SCHEMA_VERSION))
        yield _gauge("ava_build_info", "The running program.", ("version", "python", "sqlite", "schema"), {build: 1})
        yield _gauge("ava_sandbox_info", "What confines commands here.", ("kind",), {(kind,): 1})
        sizes = {(file,): size for file, size in log.sizes.items()}
        yield _gauge("ava_log_bytes", "The log's size on the disk, without its mirror.", ("file",), sizes)
        free_bytes = shutil.disk_usage(store.path.parent).free
        yield _gauge("ava_data_root_free_bytes", "Free space on the disk of the data root.", (), free_bytes)
        yield _gauge("ava_log_head", "The number of the log's newest entry.", (), log.head)
        lag = {("index",): log.head - log.indexed}
        if settings.mirrors:
            lag["mirror",] = log.head - log.mirrored
        yield _gauge("ava_log_lag_entries", "Entries not yet in the text index or the mirror.", ("copy",), lag)
        text = "1 while this process cannot use the log to look for work."
        yield _gauge("ava_log_out_of_reach", text, (), int(self._runtime.manager.out_of_reach is not None))
        if self._open_sessions is not None:
            text = "Open HTTP sessions of clients with the handshake protocol."
            yield _gauge("ava_sessions_open", text, (), self._open_sessions)

    def _current_runs(self) -> Iterator[Metric]:
        now, alive = self._log.now, self._runtime.instances.alive
        interrupted = sum(runs for owner, runs in now.running.items() if not alive(owner))
        states = {
            ("awaiting_approval",): now.waiting.runs,
            ("queued",): now.queued.runs,
            ("paused",): now.paused.runs,
            ("running",): sum(now.running.values()) - interrupted,
            ("interrupted",): interrupted,
        }
        text = (
            "Runs that have not ended; interrupted if the owner is gone, paused if the provider accepts no calls or a"
            " person is asked."
        )
        yield _gauge("ava_runs", text, ("state",), states)
        kinds = Counter((one.announcement.kind,) for one in self._live)
        text = "Live processes on the log: servers, workers and commands."
        yield _gauge("ava_instances", text, ("kind",), {("server",): 0, ("worker",): 0, **kinds})
        oldest = {("awaiting_approval",): self._age(now.waiting), ("queued",): self._age(now.queued)}
        yield _gauge("ava_runs_oldest_seconds", "How long the oldest of them has waited.", ("state",), oldest)
        yield _gauge("ava_model_calls_in_flight", "Model calls that are not settled.", (), now.in_flight)
        text = "Reserved in the budgets of runs for calls in flight and the wrap-ups after them."
        yield _gauge("ava_reserved_usd", text, (), now.held_micros / 1e6)
        spent_micros = self._log.day.spent_micros
        yield _gauge("ava_day_spent_usd", "Spent by the installation on this UTC day.", (), spent_micros / 1e6)
        text = "What the installation may spend in a UTC day, as configured for this process."
        yield _gauge("ava_day_cap_usd", text, (), self._runtime.settings.limits.installation_daily_cents / 100)

    def _delivery(self) -> Iterator[Metric]:
        workers = workers_among(self._live)
        slots = sum(worker.free_slots for worker in workers)
        text = "How many runs the live workers take at once, without those that are stopping or can take none."
        yield _gauge("ava_worker_slots", text, (), slots)
        refused = sum(worker.refused for worker in workers)
        text = "Runs that live workers were offered and left to the worker that had them."
        yield _gauge("ava_claims_refused", text, (), refused)
        if self._engine is not None:
            yield from self._engine_state(self._engine, workers)

    def _engine_state(self, engine: EngineState, workers: Sequence[WorkerFacts]) -> Iterator[Metric]:
        """Yield what the engine says of itself, as far as it says it, and what servers and workers say of it."""
        up = {(self._runtime.manager.delivery.name,): int(not engine.fault)}
        yield _gauge("ava_delivery_up", "1 while the engine that delivers runs can be used.", ("engine",), up)
        text = "Deliveries that live servers made again: lost, or silent for four leases."
        yield _gauge("ava_deliveries_repeated", text, (), repeats_among(self._live))
        bad = sum(worker.bad_messages for worker in workers)
        text = "Messages of the engine that live workers could not use: no Ava wrote them, or handling them failed."
        yield _gauge("ava_delivery_bad_messages", text, (), bad)
        counts = {(queue, "waiting"): count for queue, count in engine.waiting.items()}
        counts |= {(queue, "taken"): count for queue, count in engine.taken.items()}
        text = "Deliveries in the engine: waiting for a worker, or taken by one."
        yield _gauge("ava_deliveries", text, ("queue", "state"), counts)
        listening = Counter(queue for worker in workers for queue in worker.queues)
        text = "Live workers that can take runs from a queue of the engine."
        faulty = Counter(queue for worker in workers for queue in worker.faults)
        by_queue = {(queue,): listening[queue] for queue in (*engine.waiting, *listening, *faulty)}
        yield _gauge("ava_delivery_workers", text, ("queue",), by_queue)
        text = "Live workers that can take nothing from a queue of theirs: see ava doctor for the reason."
        yield _gauge("ava_delivery_worker_faults", text, ("queue",), {each: faulty[each[0]] for each in by_queue})
        text = "1 where a queue of the engine takes no more requests for runs, so that workers get none."
        is_full = {(queue,): int(queue in engine.full) for queue in engine.waiting}
        yield _gauge("ava_delivery_full", text, ("queue",), is_full)
        if engine.again is not None:
            text = "Deliveries in the engine that were given to a worker more than once."
            yield _gauge("ava_deliveries_again", text, (), engine.again)

    def _age(self, line: WaitingRuns) -> float:
        if line.since_us is None:
            return 0.0
        return max(self._now_us - line.since_us, 0) / 1e6

    def _run_totals(self) -> Iterator[Metric]:
        endings, tokens = Counter[LabelNames](), Counter[LabelNames]()
        sums = [Counter[LabelNames]() for _ in _RUN_SUMS]
        for group in self._log.runs:
            both = self._role(group.role), self._model(group.model)
            if group.state not in UNENDED:
                endings[both[0], group.state] += group.runs
            if not group.turns:
                continue
            for (_, _, labels, field, _), total in zip(_RUN_SUMS, sums, strict=True):
                total[both[: len(labels)]] += getattr(group, field)
            for kind in ("input", "output", "cache_read", "cache_write"):
                tokens[*both, kind] += getattr(group, f"{kind}_tokens")
        text = "Ended runs, including proposals that were not approved."
        yield _counter("ava_runs_ended", text, ("role", "ending"), endings)
        for (name, text, labels, _, units), total in zip(_RUN_SUMS, sums, strict=True):
            yield _counter(name, text, labels, {each: value / units for each, value in total.items()})
        yield self._start_waits()
        text = "Tokens as providers reported them; input is fresh, neither read from nor written to a cache."
        yield _counter("ava_tokens", text, (*_BOTH, "class"), tokens)

    def _start_waits(self) -> Metric:
        waits = self._log.starts
        bounds = [*(str(bound_us / 1e6) for bound_us in START_BOUNDS_US), "+Inf"]
        text = "How long approved runs waited until a process claimed them for the first time."
        family = HistogramMetricFamily("ava_run_start_wait_seconds", text)
        family.add_metric((), list(zip(bounds, accumulate(waits.runs), strict=True)), waits.total_us / 1e6)
        return family

    def _by_user(self) -> Iterator[Metric]:
        name_of = labels_of_first(((sums.first_us, sums.user) for sums in self._log.users), MOST_USERS)
        runs = Counter[LabelNames]()
        costs, days = defaultdict[LabelNames, float](float), defaultdict[LabelNames, float](float)
        for sums in self._log.users:
            user = name_of(sums.user)
            costs[user,] += sums.cost_micros / 1e6
            if sums.state in UNENDED:
                runs[user, sums.state] += sums.runs
        for user, spent_micros in self._log.days.items():
            days[name_of(user),] += spent_micros / 1e6
        yield _gauge(
            "ava_user_runs", "Runs of a user that have not ended, by their state in the log.", _USER_STATE, runs
        )
        yield _counter("ava_user_cost_usd", "What a user's runs have spent.", ("user",), costs)
        yield _gauge("ava_user_day_spent_usd", "Spent by a user on this UTC day.", ("user",), days)
        settings = self._runtime.settings
        caps = {(user,): day_cents(settings, user) / 100 for user in self._log.days if name_of(user) == user}
        yield _gauge("ava_user_day_cap_usd", "What a user may spend in a UTC day.", ("user",), caps)

    def _calls(self) -> Iterator[Metric]:
        calls, retries = Counter[LabelNames](), Counter[LabelNames]()
        took: dict[LabelNames, Counted] = {}
        for (model, settlement, attempt), counted in self._entry_counts.of("CostUpdate").items():
            provider = self._provider(model)
            calls[provider, self._model(model or ""), str(settlement)] += counted.entries
            is_retry = (attempt or 1) > 1
            retries[provider,] += counted.entries if is_retry else 0
            took[provider,] = took.get((provider,), NO_COUNT).plus(*counted)
        text = "Attempts of model calls, by settlement; unknown ones may have been billed."
        yield _counter("ava_model_calls", text, ("provider", "model", "settlement"), calls)
        yield _counter("ava_model_retries", "Attempts of a turn after its first.", ("provider",), retries)
        yield _summary("ava_model_call_seconds", "How long model calls took.", ("provider",), took)
        errors = Counter[LabelNames]()
        for (model, kind), counted in self._entry_counts.of("ErrorOccurred").items():
            errors[self._provider(model), str(kind or "erased")] += counted.entries
        text = f"Failed model calls, and internal errors of Ava (internal).{_SINCE}"
        yield _counter("ava_model_errors", text, ("provider", "kind"), errors)
        outcomes = Counter[LabelNames]()
        took = {}
        for (_model, tool, success, unusable), counted in self._entry_counts.of("ToolResult").items():
            name = tool or OTHER
            if tool is None:
                outcome = "erased"
            elif success:
                outcome = "success"
            elif unusable:
                outcome = "unusable"
            else:
                outcome = "failed"
            outcomes[name, outcome] += counted.entries
            took[name,] = took.get((name,), NO_COUNT).plus(*counted)
        text = f"Tool calls of runs; an unusable one could not be made as requested.{_SINCE}"
        yield _counter("ava_tool_calls", text, ("tool", "outcome"), outcomes)
        yield _summary("ava_tool_call_seconds", f"How long tool calls of runs took.{_SINCE}", ("tool",), took)

    def _count(self, type_name: str) -> Counter[LabelNames]:
        counts = Counter[LabelNames]()
        for (_model, *labels), counted in self._entry_counts.of(type_name).items():
            names = tuple("none" if label is None else str(label) for label in labels)
            counts[names] += counted.entries
        return counts


def tool_label(tool: str, known: frozenset[str], servers: frozenset[str]) -> str:
    """Return a tool's label: one of Ava's own, another's configured server, or `other`, as a model may invent names."""
    if tool in known:
        return tool
    server = server_of(tool)
    if server not in servers:
        return OTHER
    return f"mcp__{server}"


def _gauge(name: str, text: str, labels: LabelNames, values: Mapping[Any, float] | float) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    if not isinstance(values, Mapping):
        values = {(): values}
    for each, value in values.items():
        family.add_metric(each, value)
    return family


def _counter(name: str, text: str, labels: LabelNames, values: Mapping[LabelNames, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for each, value in values.items():
        family.add_metric(each, value)
    return family


def _summary(name: str, text: str, labels: LabelNames, values: Mapping[LabelNames, Counted]) -> Metric:
    family = SummaryMetricFamily(name, text, labels=labels)
    for each, counted in values.items():
        family.add_metric(each, counted.entries, counted.took_ms / 1000)
    return family


async def render(runtime: Runtime, *, open_sessions: int | None = None) -> bytes:
    """Return a data root's metrics (`open_sessions` None: it has none). Raises StoreUnavailable: no log to read."""
    async with runtime.counting:  # one at a time, because threads read the counts
        at_us = now_us()
        by_user = runtime.settings.metrics.by_user
        log = await runtime.store.read(
            partial(_read_log, now_us=at_us, entry_counts=runtime.entry_counts, by_user=by_user)
        )
        runtime.entry_counts.add(_with_tool_labels(log.news, runtime))
        live = await anyio.to_thread.run_sync(runtime.instances.live)
        delivery = runtime.manager.delivery
        engine = None
        if delivery.carries:
            engine = await engine_state(delivery)
        families = Families(log, runtime, live, engine, at_us, open_sessions)
        return await anyio.to_thread.run_sync(generate_latest, families)


def _read_log(view: View, now_us: int, entry_counts: EntryCounts, *, by_user: bool) -> LogState:
    users: list[UserSums] = []
    if by_user:
        users = user_sums(view)
    day = day_of(now_us)
    days = {user: view.bucket(user_scope(user, day)).spent_micros for user in {sums.user for sums in users}}
    return LogState(
        head=view.head(),
        sizes=view.sizes(),
        runs=run_sums(view),
        starts=start_waits(view, START_BOUNDS_US),
        users=users,
        days=days,
        now=current_runs(view, now_us),
        news=count_new_entries(view, entry_counts),
        day=view.bucket(installation_scope(day)),
        indexed=view.progress("words"),
        mirrored=view.progress("mirror"),
    )


def _with_tool_labels(news: NewCounts, runtime: Runtime) -> NewCounts:
    """Return the counts with labels for tool names: otherwise every invented name would be kept forever."""
    known = frozenset([*runtime.tools, *RUN_TOOLS, SUBMIT])
    servers = frozenset(runtime.settings.mcp_servers)

    def labelled(type_name: str, labels: Labels) -> Labels:
        if type_name != "ToolResult" or labels[1] is None:
            return labels
        model, tool, *rest = labels
        return (model, tool_label(tool, known, servers), *rest)

    counts = ((name, labelled(name, labels), entries, took_ms) for name, labels, entries, took_ms in news.counts)
    return replace(news, counts=tuple(counts))


async def answer_metrics(app: App, scope: Scope, receive: Receive, send: Send, open_sessions: int) -> None:
    """The open sessions are those of MCP up to 2025-11-25."""
    token: Token = scope[OF_REQUEST]
    if not token.reads_all:
        response = forbidden(token, "audit")
    elif scope["method"] not in ("GET", "HEAD"):
        response = Response(status_code=405, headers={"Allow": "GET, HEAD"})
    else:
        try:
            body = await render(app.runtime, open_sessions=open_sessions)
            response = Response(body, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})
        except AuditError as error:
            response = error_response(503, str(error), error="not ready")
    await response(scope, receive, send)
