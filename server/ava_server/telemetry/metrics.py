"""Metrics in Prometheus' text format, made when they are asked for, from the log and from what this process knows.

What is counted comes from the log, so that it is right whoever did it (another server, a worker) and goes on over
restarts; what the log forgets some day is counted from the start of this process, and its help says so.
"""

from __future__ import annotations

import platform
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from prometheus_client import Metric, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

from ava_audit.rows import UNENDED, Bucket
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.totals import (
    NO_COUNT,
    Counted,
    CurrentRuns,
    Labels,
    NewCounts,
    RunSums,
    Tally,
    WaitingRuns,
    count_new_entries,
    current_runs,
    run_sums,
)
from ava_audit.view import View
from ava_roles.mcp_client.entry import server_of
from ava_roles.sandbox.sandbox import Unavailable
from ava_server.budget.caps import installation_scope, utc_day
from ava_server.budget.run_config import RUN_TOOLS
from ava_server.runs.submit import NAME as SUBMIT

if TYPE_CHECKING:
    from ava_server.service.runtime import Runtime


MOST_ROLES, MOST_MODELS, MOST_PROVIDERS = 30, 50, 20
"""So many have a label of their own: those that the log had first, so that none ever changes its label."""
OTHER = "other"
LabelNames = tuple[str, ...]
_SINCE = " Since this process began, of all processes."


@dataclass(frozen=True)
class LogState:
    """One state of the log."""

    head: int
    runs: list[RunSums]
    now: CurrentRuns
    news: NewCounts
    day: Bucket
    indexed: int
    mirrored: int


@dataclass(frozen=True)
class ProcessState:
    """What this process and its machine know."""

    dead: frozenset[str]
    sandbox: str
    mirror: bool
    day_cap_micros: int
    database_bytes: int
    wal_bytes: int
    free_bytes: int
    out_of_reach: bool
    open_sessions: int | None


def bounded(seen: Iterable[tuple[int, str]], most: int) -> Callable[[str], str]:
    """Return what gives a value its label: the first `most` keep their own, whatever comes later is `other`.

    Args:
        seen: When each was seen, and the value; one may be seen several times.
        most: How many keep their own.
    """
    kept = frozenset(list(dict.fromkeys(value for _when, value in sorted(seen)))[:most])
    return lambda value: value if value in kept else OTHER


class Families:
    """The metrics, as the library collects them."""

    def __init__(self, looked: LogState, here: ProcessState, tally: Tally, now_us: int) -> None:
        self._looked = looked
        self._here = here
        self._tally = tally
        self._now_us = now_us
        runs = looked.runs
        self._role = bounded(((group.first_us, group.role) for group in runs), MOST_ROLES)
        self._model = bounded(((group.first_us, group.model) for group in runs), MOST_MODELS)
        provider = bounded(((group.first_us, provider_of(group.model)) for group in runs), MOST_PROVIDERS)
        self._provider: Callable[[str | None], str] = lambda model: provider(provider_of(model or ""))

    def collect(self) -> Iterator[Metric]:
        """Yield all of them."""
        yield from self._what_is_here()
        yield from self._what_goes_on()
        yield from self._what_runs_took()
        yield from self._what_was_called()
        yield from self._what_was_decided()
        yield from ProcessCollector(registry=None).collect()

    def _what_is_here(self) -> Iterator[Metric]:
        here, looked = self._here, self._looked
        yield _gauge(
            "ava_build_info", "The program that answers.", ("version", "python", "sqlite", "schema"),
            {(version("ava-subagents"), platform.python_version(), sqlite3.sqlite_version, str(SCHEMA_VERSION)): 1},
        )  # fmt: skip
        yield _gauge("ava_sandbox_info", "What confines commands here.", ("kind",), {(here.sandbox,): 1})
        sizes: dict[LabelNames, float] = {("database",): here.database_bytes, ("write_ahead_log",): here.wal_bytes}
        yield _gauge("ava_log_bytes", "How large the log is on the disk, without its mirror.", ("file",), sizes)
        yield _one("ava_data_root_free_bytes", "What is left on the disk of the data root.", here.free_bytes)
        yield _one("ava_log_head", "The number of the newest entry of the log.", looked.head)
        lag: dict[LabelNames, float] = {("index",): looked.head - looked.indexed}
        if here.mirror:
            lag["mirror",] = looked.head - looked.mirrored
        yield _gauge("ava_log_lag_entries", "Entries that are not in the text index or the mirror yet.", ("copy",), lag)
        text = "1 while this process cannot use the log to look for work."
        yield _one("ava_log_out_of_reach", text, int(here.out_of_reach))
        if here.open_sessions is not None:
            yield _one(
                "ava_sessions_open",
                "Sessions over HTTP that clients of the handshake era have open.",
                here.open_sessions,
            )

    def _what_goes_on(self) -> Iterator[Metric]:
        now, here = self._looked.now, self._here
        interrupted = sum(runs for owner, runs in now.running.items() if owner in here.dead)
        states: dict[LabelNames, float] = {
            ("awaiting_approval",): now.waiting.runs,
            ("queued",): now.queued.runs,
            ("paused",): now.paused.runs,
            ("running",): sum(now.running.values()) - interrupted,
            ("interrupted",): interrupted,
        }
        text = "Runs that have not ended; one whose owner is gone is interrupted, one whose provider is limited paused."
        yield _gauge("ava_runs", text, ("state",), states)
        oldest: dict[LabelNames, float] = {
            ("awaiting_approval",): self._age(now.waiting),
            ("queued",): self._age(now.queued),
        }
        yield _gauge("ava_runs_oldest_seconds", "How long the first of them has waited.", ("state",), oldest)
        yield _one("ava_model_calls_in_flight", "Calls of models that have not been settled.", now.in_flight)
        text = "What is held in the budgets of runs for calls in flight and the wrap-ups after them."
        yield _one("ava_reserved_usd", text, _usd(now.held_micros))
        day = self._looked.day
        yield _one("ava_day_spent_usd", "What the installation has spent on this UTC day.", _usd(day.spent_micros))
        text = "What the installation may spend in a UTC day, as this process has it."
        yield _one("ava_day_cap_usd", text, _usd(here.day_cap_micros))

    def _age(self, line: WaitingRuns) -> float:
        return 0.0 if line.since_us is None else max(self._now_us - line.since_us, 0) / 1e6

    def _what_runs_took(self) -> Iterator[Metric]:
        endings, seconds = Counter[LabelNames](), Counter[LabelNames]()
        spent, uncosted, tokens = Counter[LabelNames](), Counter[LabelNames](), Counter[LabelNames]()
        turns, calls = Counter[LabelNames](), Counter[LabelNames]()
        for group in self._looked.runs:
            role, model = self._role(group.role), self._model(group.model)
            if group.state not in UNENDED:
                endings[role, group.state] += group.runs
            if not group.turns:
                continue
            seconds[role,] += group.active_us
            spent[role, model] += group.cost_micros
            uncosted[role, model] += group.uncosted_micros
            turns[role, model] += group.turns
            calls[role,] += group.tool_calls
            tokens[role, model, "input"] += group.input_tokens
            tokens[role, model, "output"] += group.output_tokens
            tokens[role, model, "cache_read"] += group.cache_read_tokens
            tokens[role, model, "cache_write"] += group.cache_write_tokens
        of, both = ("role",), ("role", "model")
        yield _counter("ava_runs_ended", "Runs that have ended, a proposal that was not approved too.",
                       ("role", "ending"), endings)  # fmt: skip
        yield _counter("ava_run_active_seconds", "How long ended claims of runs were active.", of, _seconds(seconds))
        yield _counter("ava_cost_usd", "What runs have spent, a reservation booked in full included.", both,
                       {labels: _usd(micros) for labels, micros in spent.items()})  # fmt: skip
        yield _counter("ava_cost_uncosted_usd", "The part of it that was booked because the true cost is not known.",
                       both, {labels: _usd(micros) for labels, micros in uncosted.items()})  # fmt: skip
        text = "Tokens as providers reported them; input is fresh, neither read from nor written to a cache."
        yield _counter("ava_tokens", text, (*both, "class"), tokens)
        yield _counter("ava_turns", "Turns of runs: calls of models, without their repetitions.", both, turns)
        yield _counter("ava_run_tool_calls", "Tool calls of runs.", of, calls)

    def _what_was_called(self) -> Iterator[Metric]:
        calls, again = Counter[LabelNames](), Counter[LabelNames]()
        took: dict[LabelNames, Counted] = {}
        for (model, settlement, attempt), counted in self._tally.of("CostUpdate").items():
            provider = self._provider(model)
            calls[provider, self._model(model or ""), str(settlement)] += counted.entries
            again[provider,] += counted.entries if (attempt or 1) > 1 else 0
            took[provider,] = took.get((provider,), NO_COUNT).plus(*counted)
        text = "Calls of models, each attempt, by how they were settled: unknown are those that may have been billed."
        yield _counter("ava_model_calls", text, ("provider", "model", "settlement"), calls)
        yield _counter("ava_model_retries", "Attempts of a turn after its first.", ("provider",), again)
        yield _summary("ava_model_call_seconds", "How long calls of models took.", ("provider",), took)
        errors = Counter[LabelNames]()
        for (model, kind), counted in self._tally.of("ErrorOccurred").items():
            errors[self._provider(model), str(kind or "erased")] += counted.entries
        text = f"Calls of models that failed, and faults of Ava itself (internal).{_SINCE}"
        yield _counter("ava_model_errors", text, ("provider", "kind"), errors)
        brought = Counter[LabelNames]()
        took = {}
        for (_model, tool, success, unusable), counted in self._tally.of("ToolResult").items():
            name = tool or OTHER
            outcome = "erased" if tool is None else "success" if success else "unusable" if unusable else "failed"
            brought[name, outcome] += counted.entries
            took[name,] = took.get((name,), NO_COUNT).plus(*counted)
        text = f"Tool calls of runs; unusable are those that could not be made as they were asked for.{_SINCE}"
        yield _counter("ava_tool_calls", text, ("tool", "outcome"), brought)
        yield _summary("ava_tool_call_seconds", f"How long tool calls of runs took.{_SINCE}", ("tool",), took)

    def _what_was_decided(self) -> Iterator[Metric]:
        decided = self._summed("SpawnDecided")
        yield _counter("ava_proposals_decided", "Proposals that were decided, by how and over which channel.",
                       ("decision", "channel"), decided)  # fmt: skip
        text = "Runs that a process took: to start them, or over from an owner that was gone."
        yield _counter("ava_runs_claimed", text, ("reason",), self._summed("RunClaimed"))
        text = "Guardrails that spoke, refused a call, or ended a run."
        yield _counter("ava_guardrails", text, ("guardrail", "action"), self._summed("GuardrailTripped"))
        text = "Connections of hosts and commands."
        yield _counter("ava_sessions", text, ("transport",), self._summed("SessionStart"))

    def _summed(self, type_name: str) -> Counter[LabelNames]:
        """Return what was counted of a type, whatever the model."""
        found = Counter[LabelNames]()
        for (_model, *labels), counted in self._tally.of(type_name).items():
            found[tuple("none" if label is None else str(label) for label in labels)] += counted.entries
        return found


def provider_of(model: str) -> str:
    """Return the provider of a model as the log names it: `provider:id`, or `offline/extractive`."""
    return model.partition(":")[0].partition("/")[0]


def tool_label(tool: str, known: frozenset[str], servers: frozenset[str]) -> str:
    """Return the label of a tool: its own name if it is one of ours, a configured MCP server's, or `other`.

    A model can call what there is not, by any name.
    """
    if tool in known:
        return tool
    server = server_of(tool)
    return f"mcp__{server}" if server in servers else OTHER


def _usd(micros: int) -> float:
    return micros / 1_000_000


def _seconds(took_us: Mapping[LabelNames, int]) -> dict[LabelNames, float]:
    return {labels: us / 1e6 for labels, us in took_us.items()}


def _one(name: str, text: str, value: float) -> GaugeMetricFamily:
    return _gauge(name, text, (), {(): value})


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[LabelNames, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for each, value in values.items():
        family.add_metric(each, value)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[LabelNames, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for each, value in values.items():
        family.add_metric(each, value)
    return family


def _summary(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[LabelNames, Counted]
) -> SummaryMetricFamily:
    family = SummaryMetricFamily(name, text, labels=labels)
    for each, counted in values.items():
        family.add_metric(each, counted.entries, counted.took_ms / 1000)
    return family


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def render(runtime: Runtime, *, open_sessions: int | None = None) -> bytes:
    """Return the metrics of a data root, as `CONTENT_TYPE` says.

    Args:
        runtime: The open data root.
        open_sessions: How many sessions are open, where the transport has them.

    Raises:
        StoreUnavailable: The log cannot be read.
    """
    async with runtime.counting:  # one at a time: threads read what is counted
        now_us = time.time_ns() // 1000
        looked = await runtime.store.read(partial(_look, now_us=now_us, tally=runtime.tally))
        runtime.tally.add(_labelled(looked.news, runtime))
        here = await anyio.to_thread.run_sync(_here, runtime, tuple(looked.now.running), open_sessions)
        families = Families(looked, here, runtime.tally, now_us)
        return await anyio.to_thread.run_sync(generate_latest, families)


def _look(view: View, now_us: int, tally: Tally) -> LogState:
    return LogState(
        head=view.head(),
        runs=run_sums(view),
        now=current_runs(view, now_us),
        news=count_new_entries(view, tally),
        day=view.bucket(installation_scope(utc_day(now_us))),
        indexed=view.progress("words"),
        mirrored=view.progress("mirror"),
    )


def _here(runtime: Runtime, owners: tuple[str, ...], open_sessions: int | None) -> ProcessState:
    settings, store = runtime.settings, runtime.store
    sandbox = runtime.sandbox()  # looked for once in a process
    return ProcessState(
        dead=frozenset(owner for owner in owners if not runtime.instances.alive(owner)),
        sandbox="unavailable" if isinstance(sandbox, Unavailable) else sandbox.kind,
        mirror=settings.mirror,
        day_cap_micros=round(settings.limits.installation_daily_cents * 10_000),
        database_bytes=_size(store.path),
        wal_bytes=_size(store.wal),
        free_bytes=shutil.disk_usage(store.path.parent).free,
        out_of_reach=runtime.manager.out_of_reach is not None,
        open_sessions=open_sessions,
    )


def _labelled(news: NewCounts, runtime: Runtime) -> NewCounts:
    """Return news in which tools have their labels: what models called that there is not would be kept for ever."""
    known = frozenset([*runtime.tools, *RUN_TOOLS, SUBMIT])
    servers = frozenset(runtime.settings.mcp_servers)

    def labelled(type_name: str, labels: Labels) -> Labels:
        if type_name != "ToolResult" or labels[1] is None:
            return labels
        model, tool, *rest = labels
        return (model, tool_label(tool, known, servers), *rest)

    counts = ((name, labelled(name, labels), entries, took_ms) for name, labels, entries, took_ms in news.counts)
    return replace(news, counts=tuple(counts))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
