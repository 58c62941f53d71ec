"""Who raised or lowered a cap of a run: the proposal, a hard cap, the approval, a group, a budget of the day."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ava_audit.entries import Entry
from ava_audit.events import SettingsChanged, SpawnDecided, SpawnProposed
from ava_audit.money import format_usd, micros_from_cents
from ava_audit.rows import RunRow
from ava_roles.errors import RolesError
from ava_roles.role import parse_role
from ava_server.approval.run_config import RunConfig
from ava_server.config.settings import Configured, limits_of

_DAYS = ("limits.user_daily_cents", "limits.installation_daily_cents")
_CAPS = {
    "timeout_s": "timeout",
    "max_cost_micros": "max_cost_cents",
    "max_tokens": "max_tokens",
    "max_iterations": "max_iterations",
    "max_tool_calls": "max_tool_calls",
}
"""The caps of a run as its configuration has them, and as a spawn names them."""


@dataclass(frozen=True)
class CapNote:
    """Who raised or lowered a cap, and when (microseconds UTC)."""

    at_us: int
    text: str


def cap_notes(run: RunRow, config: RunConfig, entries: Iterable[Entry], changed: Iterable[Entry]) -> list[CapNote]:
    """Return who raised or lowered a cap of a run, oldest first.

    Args:
        run: The run.
        config: Its configuration, as it was approved.
        entries: Its entries.
        changed: The changes of settings in the whole log.
    """
    notes: list[CapNote] = []
    for entry in entries:
        match entry.fact:
            case SpawnProposed() as proposed:
                notes += _at_the_proposal(entry, RunConfig.model_validate(proposed.config))
            case SpawnDecided(decision="approved") as decided:
                notes += _at_the_approval(entry, decided)
            case _:
                pass
    if not config.price.get("free"):
        notes += _days(run, config, changed)
    return sorted(notes, key=lambda note: note.at_us)


def _at_the_proposal(entry: Entry, config: RunConfig) -> list[CapNote]:
    """Return what the call itself asked for in place of the role's own caps, and what was clamped of it."""
    notes = [CapNote(entry.ts_us, note) for note in config.clamped]
    try:
        role = parse_role(config.role_text, config.role_source, config.role)
    except RolesError:  # a newer program's; nothing tells what the role's own caps were
        return notes
    own: dict[str, float] = {
        "timeout": role.timeout_s,
        "max_cost_cents": role.max_cost_cents,
        "max_tokens": role.max_tokens,
        "max_iterations": role.max_iterations,
        "max_tool_calls": role.max_tool_calls,
    }
    for name, default in own.items():
        asked = config.asked.get(name)
        if asked is None or asked == default:
            continue
        how = "raised" if asked > default else "lowered"
        notes.append(
            CapNote(
                entry.ts_us,
                f"{name} {how} from the role's {_cap(name, default)} to {_cap(name, asked)} by the proposal itself",
            )
        )
    return notes


def _at_the_approval(entry: Entry, fact: SpawnDecided) -> list[CapNote]:
    how = f"at the approval ({fact.channel})"
    notes = [
        CapNote(entry.ts_us, f"{name} lowered to {_cap(name, _asked(field, fact.changes[field]))} {how}")
        for field, name in _CAPS.items()
        if field in fact.changes
    ]
    if fact.group_id is not None and fact.group_max_cost_micros is not None:
        clock = f" and {fact.group_timeout_s:g} s" if fact.group_timeout_s is not None else ""
        money = format_usd(fact.group_max_cost_micros, exact=True)
        notes.append(CapNote(entry.ts_us, f"{fact.group_id} set at most {money}{clock} for all of its runs {how}"))
    return notes


def _days(run: RunRow, config: RunConfig, changed: Iterable[Entry]) -> list[CapNote]:
    """Return the day budgets that were below the run's own cap, and those that were changed while the run ran."""
    began = run.queued_us or run.created_us
    notes: list[CapNote] = []
    built_in = limits_of(Configured())
    days = {setting: int(built_in[setting]) for setting in _DAYS}
    for entry in changed:
        fact = entry.fact
        if not isinstance(fact, SettingsChanged) or fact.setting not in days:
            continue
        if entry.ts_us <= began:
            days[fact.setting] = int(fact.after)
        elif run.ended_us is None or entry.ts_us <= run.ended_us:
            from_to = f"from {_cap('cents', fact.before)} to {_cap('cents', fact.after)}"
            how = "raised" if fact.after > fact.before else "lowered"
            notes.append(CapNote(entry.ts_us, f"{fact.setting} was {how} {from_to} in config.toml while it ran"))
    for setting, cents in days.items():
        if micros_from_cents(cents) < config.max_cost_micros:
            own = format_usd(config.max_cost_micros, exact=True)
            notes.append(
                CapNote(began, f"{setting} in config.toml was {_cap('cents', cents)}, below the run's own cap of {own}")
            )
    return notes


def _asked(field: str, value: float) -> float:
    """Return a cap of a configuration in the unit in which a spawn gives it."""
    return value / 10_000 if field == "max_cost_micros" else value


def _cap(name: str, value: float) -> str:
    if name.endswith("cents"):
        return format_usd(micros_from_cents(value), exact=True)
    return f"{value:g} s" if name == "timeout" else f"{value:,.0f}"
