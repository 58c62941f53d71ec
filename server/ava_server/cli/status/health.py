"""Findings on the data root and its servers, with the states of `ava doctor`; and all that a look found as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ava_audit.rows import AWAITING_ANSWER, AWAITING_EXTENSION
from ava_audit.units import cents, format_bytes
from ava_server.cli.terminal import counted
from ava_server.service.checks import State
from ava_server.service.checks.data import LITTLE_BYTES

if TYPE_CHECKING:
    from ava_server.cli.status.overview import LogFacts, Overview
    from ava_server.config.settings import Settings
    from ava_server.render.run_view import RunView
    from ava_server.service.current import Budget

LAGS_MUCH = 10_000
"""Entries that the keeper should not be behind for long."""


@dataclass(frozen=True)
class Health:
    """A finding: what was looked at, its state, what was found, and the same in a word or two (empty to leave out)."""

    name: str
    state: State
    text: str
    short: str


def health(overview: Overview, settings: Settings, confined: str | None, trouble: str = "") -> list[Health]:
    """`confined` is the kind of sandbox, or why there is none (`unavailable: …`), None while that is not known.

    `trouble` says why the log could not be read.
    """
    found = [Health("settings", "fault", fault, "settings wrong") for fault in overview.faults]
    if not settings.enabled:
        off = "enabled = false: subagents are switched off"
        found.append(Health("settings", "warning", off, "switched off"))
    return [
        *found,
        *_processes(overview),
        *_log(overview.log, trouble, keeper=overview.keeper),
        *_disk(overview.free_bytes),
        _confinement(confined),
        _providers(overview),
    ]


def _processes(overview: Overview) -> list[Health]:
    count = overview.processes
    if not count:
        working = (AWAITING_EXTENSION, AWAITING_ANSWER, "queued", "running", "interrupted")
        waiting = any(overview.counts.get(state) for state in working)
        text = "none is running: nothing runs until one starts"
        return [Health("servers", "warning" if waiting else "note", text, "no server")]
    text = f"{counted(count, 'Ava process', 'Ava processes')} running"
    keeper = Health("keeper", "ok", "running: it keeps text index and mirror up to date", "keeper")
    if not overview.keeper:
        keeper = Health("keeper", "note", "none: text index and mirror wait for a server", "no keeper")
    return [Health("servers", "ok", text, counted(count, "server")), keeper]


def _log(log: LogFacts | None, trouble: str, *, keeper: bool) -> list[Health]:
    if trouble:
        return [Health("log", "fault", trouble, "log unreadable")]
    if log is None:
        return [Health("log", "note", "none yet; the first start makes it", "no log yet")]
    large = format_bytes(log.database_bytes + log.wal_bytes)
    text = f"{log.entries:,} entries, {large}"
    if log.partial:
        text += "; a process died while writing, and the next start recovers its last entries"
    lags = {"text index": log.index_lag, **({} if log.mirror_lag is None else {"mirror": log.mirror_lag})}
    upkeep = f"{' and '.join(lags)} up to date" + ("" if log.mirror_lag is not None else "; no mirror is kept")
    copies = Health("upkeep", "ok", upkeep, "up to date")
    worst = max(lags.values())
    if worst > 0:
        behind = [f"{name} {count:,} behind" for name, count in lags.items() if count > 0]
        state: State = "warning" if keeper and worst > LAGS_MUCH else "ok" if keeper else "note"
        copies = Health("upkeep", state, f"{', '.join(behind)} (entries)", f"{worst:,} entries behind")
    return [Health("log", "note" if log.partial else "ok", text, large), copies]


def _disk(free: int | None) -> list[Health]:
    if free is None:
        return []
    little = free < LITTLE_BYTES
    text = f"{format_bytes(free)} free for the data root"
    return [Health("disk", "warning" if little else "ok", text, f"{format_bytes(free)} free" if little else "")]


_CONFINEMENT: dict[str | None, tuple[State, str, str]] = {
    None: ("note", "not known yet", ""),
    "bubblewrap": ("ok", "commands run in bubblewrap", "bubblewrap"),
    "landlock": ("note", "commands run in Landlock, which hides less than bubblewrap", "landlock"),
    "none": ("warning", 'commands are not confined (sandbox.mode = "none")', "no confinement"),
}


def _confinement(confined: str | None) -> Health:
    if confined in _CONFINEMENT:
        return Health("confinement", *_CONFINEMENT[confined])
    why = (confined or "").removeprefix("unavailable: ")
    return Health("confinement", "warning", f"commands are off: {why}", "no commands")


def _providers(overview: Overview) -> Health:
    if not overview.providers:
        text = "none is configured here; a host may have one in its own environment"
        return Health("providers", "note", text, "no provider here")
    named = [f"{name} ({'key' if key else 'no key'})" for name, key in overview.providers.items()]
    return Health("providers", "ok", ", ".join(named), ", ".join(overview.providers))


def overview_json(
    settings: Settings, overview: Overview, findings: Iterable[Health], confined: str | None
) -> dict[str, Any]:
    """Money is in US cents."""
    log = overview.log
    return {
        "data_root": str(settings.data_root),
        "runs": [run_json(run) for run in overview.runs],
        "runs_of_others": overview.others,
        "today": today_json(overview.budgets),
        "health": {
            "servers": overview.processes,
            "keeper": overview.keeper,
            "entries": log.entries if log is not None else None,
            "database_bytes": log.database_bytes if log is not None else None,
            "wal_bytes": log.wal_bytes if log is not None else None,
            "index_lag_entries": log.index_lag if log is not None else None,
            "mirror_lag_entries": log.mirror_lag if log is not None else None,
            "free_bytes": overview.free_bytes,
            "confinement": confined,
            "providers": [{"name": name, "key": key} for name, key in overview.providers.items()],
            "findings": [{"name": one.name, "state": one.state, "text": one.text} for one in findings],
        },
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
        money = cap.name == "cost"
        used, most, held = (value / 10_000 if money else value for value in (cap.used, cap.most, cap.held))
        caps["cost_cents" if money else cap.name] = {
            "used": round(used, 4),
            "cap": most if cap.most > 0 else None,
            **({"held": held} if money else {}),
        }
    waits = run.wait.for_people() if run.wait is not None and run.wait.cause != "approval" else ""
    return {
        **run_answer(run).model_dump(mode="json", exclude_none=True),
        "task": run.task,
        "user": run.row.user_id,
        "caps": caps,
        **({"waits": waits} if waits else {}),
    }
