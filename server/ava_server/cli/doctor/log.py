"""The log, who is at work on it, and what is left of today's money. Looking creates nothing and takes no lock."""

from __future__ import annotations

import itertools
import sqlite3
import time
from pathlib import Path

from ava_audit.mirror import mirror_faults
from ava_audit.store.schema import SCHEMA_VERSION, schema_changes, schema_faults
from ava_audit.units import format_usd, micros_from_cents
from ava_server.budget.caps import installation_scope, user_scope, utc_day
from ava_server.cli.doctor.check import Finding, Setup, log_path
from ava_server.cli.peeking import Opened, is_held, opened
from ava_server.core.data_root import os_user

_BROKEN = (
    "See that no other program holds ava.db. If it is damaged, bring back a copy, or move it and logs/ to another"
    " place: Ava then begins a new one."
)


_LOST = (
    "Bring back a copy of ava.db, or start Ava without one: it begins a new log then, and keeps the old one's files"
    " beside the new ones."
)


def log(setup: Setup) -> list[Finding]:
    """Tell how large the log is, whether this version can read it, and whether index and mirror lag behind."""
    path = log_path(setup)
    if path is None:
        return []
    try:
        if lost := [] if path.exists() and path.stat().st_size > 0 else mirror_faults(None, path.parent / "logs"):
            return [Finding("log", "fault", fault.text, _LOST) for fault in lost[:1]]
        if not path.exists():
            return [Finding("log", "note", "there is none yet; it is made at the first start")]
        with opened(path) as log_file:
            return _log(setup, path, log_file)
    except (sqlite3.Error, OSError) as error:
        return [Finding("log", "fault", f"{path} cannot be read: {error}", _BROKEN)]


def _log(setup: Setup, path: Path, log_file: Opened) -> list[Finding]:
    size = sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*") if part.is_file())
    if log_file.schema > SCHEMA_VERSION:
        text = f"{path} has schema {log_file.schema}, and this version knows {SCHEMA_VERSION}: a newer Ava wrote it"
        return [Finding("log", "fault", text, "Install the newer Ava, or set AVA_DATA_ROOT to another folder.")]
    if log_file.schema == 0 and size > 0:
        return [Finding("log", "fault", f"{path} is no log: its beginning is gone", _BROKEN)]
    if log_file.schema < SCHEMA_VERSION:
        text = f"{path} has schema {log_file.schema} of {SCHEMA_VERSION}; the next start brings it up to date"
        return [Finding("log", "note", text)]
    if faults := schema_faults(schema_changes(log_file.db)):
        return [Finding("log", "fault", fault.text, _BROKEN) for fault in faults]
    head = log_file.view.head()
    text = f"{head:,} entries, {size / 1e6:.1f} MB, schema {log_file.schema}"
    if log_file.partial:
        text += "; a process died over it, and its last entries are shown after the next start"
    found = [Finding("log", "note" if log_file.partial else "ok", text)]
    mirror = setup.settings is None or setup.settings.mirror
    lags = {
        name: head - log_file.view.progress(duty)
        for name, duty in (("text index", "words"), ("JSONL mirror", "mirror"))
        if duty != "mirror" or mirror
    }
    behind = [f"the {name} lags {count:,} entries behind" for name, count in lags.items() if count > 0]
    if behind:
        later = "a live server brings it up to date within seconds, else the next one that starts does"
        found.append(Finding("upkeep", "note", f"{' and '.join(behind)}; {later}"))
    else:
        found.append(Finding("upkeep", "ok", f"{' and '.join(lags)} are up to date" if mirror else "index up to date"))
    return found


def processes(setup: Setup) -> list[Finding]:
    """Tell how many Ava processes are at work on the data root."""
    path = log_path(setup)
    if setup.root is None or path is None or not path.exists():
        return []
    try:
        count = sum(is_held(lock) for lock in setup.root.instances.glob("*.lock"))
        keeper = is_held(setup.root.path / "keeper.lock")
    except OSError as error:
        text = f"it cannot be told who is at work here: {error.strerror}"
        return [Finding("processes", "warning", text, f"Make {setup.root.path} and what is in it this user's own.")]
    if not count and not keeper:
        return [Finding("processes", "ok", "no Ava server is at work here at this moment")]
    who = f"{count} Ava process{'' if count == 1 else 'es'} at work here"
    return [Finding("processes", "ok", f"{who}; {'one of them' if keeper else 'none of them'} keeps index and mirror")]


def budgets(setup: Setup) -> list[Finding]:
    """Tell what is left of today's money."""
    path = log_path(setup)
    if setup.settings is None or path is None:
        return []
    limits, day = setup.settings.limits, utc_day(time.time_ns() // 1000)
    caps = (
        ("you", user_scope(os_user(), day), limits.user_daily_cents),
        ("everybody", installation_scope(day), limits.installation_daily_cents),
    )
    committed = {scope: 0 for _who, scope, _cents in caps}
    if path.exists():
        try:
            with opened(path) as log_file:
                if log_file.schema != SCHEMA_VERSION:
                    return []
                committed = {scope: log_file.view.bucket(scope).committed for scope in committed}
        except (sqlite3.Error, OSError):  # the log's own check says so
            return []
    shown = [
        f"{who} {format_usd(committed[scope])} of {format_usd(micros_from_cents(cents))}" for who, scope, cents in caps
    ]
    text = f"spent today (UTC): {', '.join(shown)}"
    used_up = [committed[scope] >= micros_from_cents(cents) for _who, scope, cents in caps]
    if not any(used_up):
        return [Finding("budget", "ok", text)]
    settings = (setup.settings.user_day_setting, setup.settings.installation_day_setting)
    mend = f"raise {', and '.join(itertools.compress(settings, used_up))}"
    if all(cents for _who, _scope, cents in itertools.compress(caps, used_up)):  # a new day brings no more to 0
        mend = f"wait until 00:00 UTC, or {mend}"
    return [Finding("budget", "warning", f"{text}; only what is free can run", f"{mend[0].upper()}{mend[1:]}.")]
