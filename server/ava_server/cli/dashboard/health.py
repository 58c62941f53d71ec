"""How the data root and what works on it are doing: a line each, in the words of `ava doctor`, which tells more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ava_server.cli.doctor.data import LITTLE_BYTES
from ava_server.cli.doctor.finding import State

if TYPE_CHECKING:
    from ava_server.cli.dashboard.overview import LogFacts, Overview
    from ava_server.config.settings import Settings

WORST_FIRST: tuple[State, ...] = ("fault", "warning", "note", "ok")
LAGS_MUCH = 10_000
"""Entries that the keeper should not be behind for long."""


@dataclass(frozen=True)
class Health:
    """How one thing is.

    Attributes:
        name: What was looked at.
        state: How it is.
        text: What was found.
        short: The same in a word or two; empty where that is not worth one.
    """

    name: str
    state: State
    text: str
    short: str


def health(overview: Overview, settings: Settings, confined: str | None, trouble: str = "") -> list[Health]:
    """Return how everything is.

    Args:
        overview: What was found.
        settings: What is configured.
        confined: The kind of sandbox, or why there is none (`unavailable: …`); None while nobody knows.
        trouble: Why the log could not be read.
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


def size(count: int) -> str:
    """Return a number of bytes for people."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def _processes(overview: Overview) -> list[Health]:
    count = overview.processes
    if not count:
        waiting = any(overview.counts.get(state) for state in ("queued", "running", "interrupted"))
        text = "none is at work here: nothing runs until one starts"
        return [Health("servers", "warning" if waiting else "note", text, "no server")]
    servers = f"{count} server{'' if count == 1 else 's'}"
    text = f"{count} Ava process{'' if count == 1 else 'es'} at work here"
    keeper = Health("keeper", "ok", "alive: it keeps text index and mirror up to date", "keeper")
    if not overview.keeper:
        keeper = Health("keeper", "note", "none: text index and mirror wait for a server", "no keeper")
    return [Health("servers", "ok", text, servers), keeper]


def _log(log: LogFacts | None, trouble: str, *, keeper: bool) -> list[Health]:
    if trouble:
        return [Health("log", "fault", trouble, "log out of reach")]
    if log is None:
        return [Health("log", "note", "there is none yet; it is made at the first start", "no log yet")]
    large = size(log.database_bytes + log.wal_bytes)
    text = f"{log.entries:,} entries, {large}"
    if log.partial:
        text += "; a process died over it, and its last entries are shown after the next start"
    lags = {"text index": log.index_lag, **({} if log.mirror_lag is None else {"mirror": log.mirror_lag})}
    behind = [f"{name} {count:,} behind" for name, count in lags.items() if count > 0]
    upkeep = f"{' and '.join(lags)} up to date" + ("" if log.mirror_lag is not None else "; no mirror is kept")
    if not behind:
        copies = Health("upkeep", "ok", upkeep, "up to date")
    else:
        worst = max(lags.values())
        state: State = "warning" if keeper and worst > LAGS_MUCH else "ok" if keeper else "note"
        copies = Health("upkeep", state, f"{', '.join(behind)} (entries)", f"{worst:,} entries behind")
    return [Health("log", "note" if log.partial else "ok", text, large), copies]


def _disk(free: int | None) -> list[Health]:
    if free is None:
        return []
    little = free < LITTLE_BYTES
    text = f"{size(free)} free for the data root"
    return [Health("disk", "warning" if little else "ok", text, f"{size(free)} free" if little else "")]


def _confinement(confined: str | None) -> Health:
    name = "confinement"
    match confined:
        case None:
            return Health(name, "note", "not known yet", "")
        case "bubblewrap":
            return Health(name, "ok", "commands run in bubblewrap", confined)
        case "landlock":
            return Health(name, "note", "commands run in Landlock, which hides less than bubblewrap", confined)
        case "none":
            return Health(name, "warning", 'commands are not confined (sandbox.mode = "none")', "no confinement")
        case _:
            why = confined.removeprefix("unavailable: ")
            return Health(name, "warning", f"commands are off: {why}", "no commands")


def _providers(overview: Overview) -> Health:
    if not overview.providers:
        text = "none is configured here; a host may have one in its own environment"
        return Health("providers", "note", text, "no provider here")
    named = [f"{name} ({'key' if key else 'no key'})" for name, key in overview.providers.items()]
    return Health("providers", "ok", ", ".join(named), ", ".join(overview.providers))
