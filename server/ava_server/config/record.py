"""What limits everybody, on the record: a setting that is not what the log last said is one entry, written once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ava_audit.errors import AuditError
from ava_audit.events import Event, SettingsChanged, Who
from ava_audit.store.store import Command, Outcome, Store
from ava_audit.view import View
from ava_server.config.settings import Configured, limits_of

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("ava.settings")


def on_record(view: View) -> dict[str, Any]:
    """Return what limits everybody as the log last said it; what it never spoke of has its built-in value."""
    known = limits_of(Configured())
    for entry in view.of_type("SettingsChanged"):
        if isinstance(entry.fact, SettingsChanged) and entry.fact.setting in known:
            known[entry.fact.setting] = entry.fact.after
    return known


def changes(view: View, now: Mapping[str, Any]) -> tuple[SettingsChanged, ...]:
    """Return what differs between the settings of the data root and the log."""
    before = on_record(view)
    return tuple(
        SettingsChanged(setting=name, before=before[name], after=value)
        for name, value in now.items()
        if before[name] != value
    )


def note_settings(now: Mapping[str, Any], who: Who) -> Command[int]:
    """Put on record what has changed; the second of two processes that start at once finds nothing to write."""

    def command(view: View, _now_us: int) -> Outcome[int]:
        events = tuple(Event(who, fact) for fact in changes(view, now))
        return Outcome(len(events), events)

    return command


async def record_settings(store: Store, now: Mapping[str, Any], who: Who) -> None:
    """Compare the settings of the data root with the log, and write only where they differ.

    A log that is out of reach keeps nobody from starting: the next one to start finds the same.
    """
    try:
        if await store.read(lambda view: changes(view, now)):
            await store.do(note_settings(now, who))
    except AuditError as error:
        log.warning("whether settings have changed is not on the record: %s", error)
