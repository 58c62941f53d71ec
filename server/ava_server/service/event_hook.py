"""The event hook (`on_event`): runs a person's own program when something waits for the person or a subagent has ended.

The program gets JSON on its standard input. It can notify and never approve: its output is discarded. One process of a
data root runs it, once for each event; twice only where that process dies in between. In hosts that are not known to
show that a subagent waits, a desktop notification tells the person.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import anyio
import anyio.to_thread

from ava_audit.entries import Entry, entry_of
from ava_audit.errors import AuditError
from ava_audit.events import Asked
from ava_audit.projections import note_progress
from ava_audit.rows import WAITING, RunRow
from ava_audit.store.backend import VARIABLE as DATABASE_VARIABLE
from ava_audit.store.locks import hold_when_free
from ava_audit.store.store import Store
from ava_audit.units import cents, iso_utc, micros_from_cents, now_us
from ava_audit.view import Query, View
from ava_server.approval.plain_text import task_excerpt
from ava_server.approval.proposals import brief_of, made_under
from ava_server.config.keys import key_variables
from ava_server.core.names import named_role
from ava_server.core.own_program import checked_command, run_program
from ava_server.run_config.config import config_of
from ava_server.run_config.run_cap import caps_text
from ava_server.runs.asking.pending_questions import pending_question
from ava_server.runs.asking.question_kinds import PendingQuestion
from ava_server.runs.record.lifecycle import awaited

log = logging.getLogger("ava.events")

PROGRAM_S = 10.0
"""Seconds that the program may take; then it is killed."""
SETTLE_S = 0.3
"""Seconds by which events are read later: what the policy auto approves at once never waits for a person."""
OLD_US = 10 * 60 * 1_000_000
"""Older events, from a time without a server, are skipped."""
TAKE_OVER_S = 1.0
_DUTY = "on_event"


async def run_event_hook(
    store: Store, root: Path, program: Sequence[str], desktop: Sequence[str] | None = None
) -> None:
    """Run the hook while no other process does, until cancelled.

    `program`: the person's own program; empty for none. `desktop`: the program that shows a notification; see
    `desktop_program`.
    """
    began = store.head
    with await hold_when_free(root / "events.lock", TAKE_OVER_S):
        await _run_hook(store, program, desktop, began)


async def _run_hook(store: Store, program: Sequence[str], desktop: Sequence[str] | None, began: int) -> None:
    """Run the programs for what comes after what was told last, or after the entry `began` if nothing ever was."""
    seen: int | None = None
    while True:
        try:
            if seen is None:
                seen = await store.read(lambda view: view.progress(_DUTY) or began)
            head = await store.wait_for_entry_after(seen)
            await anyio.sleep(SETTLE_S)
            for event, in_ava in await store.read(_events(seen, head)):
                if program:
                    await _run(program, event)
                notice = notice_of(event) if desktop is not None and in_ava else None
                if desktop is not None and notice is not None:
                    await _run((*desktop, *notice), event)
            seen = head
            await store.maintain(lambda db, head=head: note_progress(db, _DUTY, head))  # type: ignore[misc]
        except AuditError as error:  # tried again; at worst an event comes twice
            log.warning("reading events for on_event: %s", error)
            await anyio.sleep(TAKE_OVER_S)


def _events(after: int, upto: int) -> Query[list[tuple[dict[str, Any], bool]]]:
    """Return a query for the events of these entries, each with whether its run is approved in Ava, not in a host."""

    def query(view: View) -> list[tuple[dict[str, Any], bool]]:
        old_us = now_us() - OLD_US
        events: list[tuple[dict[str, Any], bool]] = []
        where = "type IN ('SpawnProposed', 'Asked', 'RunEnded') AND seq > ? AND seq <= ?"
        for row in view.rows(where, after, upto):
            entry = entry_of(row[:-1])
            if entry.ts_us <= old_us:
                continue
            try:
                event = _event(view, entry)
            except ValueError as error:  # of a newer version, which this one cannot read
                log.warning("on_event: entry %d cannot be read: %s", entry.seq, type(error).__name__)
                continue
            if event is not None:
                in_ava = "human" in made_under(view, [event["subagent_id"]])
                events.append((event, in_ava))
        return events

    return query


def _event(view: View, entry: Entry) -> dict[str, Any] | None:
    """Return the event of an entry.

    None for a question or a proposal that no longer waits, and for the end of a run of a plan or of a proposal that
    never ran.
    """
    run = view.run(entry.run_id or "")
    proposal = view.proposal(run.pending_id) if run is not None else None
    if run is None or proposal is None:
        return None
    if isinstance(entry.fact, Asked):
        state = awaited(run, now_us())
        question = pending_question(view, run, now_us())
        if state is None:
            return None
        if question is not None and not question.first:  # another run asked the same before, and has this event
            return None
        return {**_fields(view, run, state), "status": state, **_question_fields(question)}
    if entry.type == "RunEnded":
        is_of_plan = run.step is not None  # the end of the plan is the event, not that of each run
        if proposal.state == "approved" and not is_of_plan:
            return _fields(view, run, "ended")
        return None
    if proposal.state == WAITING:
        return _fields(view, run, "awaiting_approval")
    return None


def _fields(view: View, run: RunRow, event: str) -> dict[str, Any]:
    brief = brief_of(view, run)
    config = config_of(run.config)
    return {
        "event": event,
        "pending_id": run.pending_id,
        "subagent_id": run.id,
        "user": run.user_id,
        "role": run.role,
        "task": task_excerpt(brief.task) if brief is not None else "",
        "estimated_minutes": {"min": config.estimated_minutes[0], "max": config.estimated_minutes[1]},
        "max_cost_cents": 0.0 if config.free else cents(config.max_cost_micros),
        "status": run.state,
    }


def _question_fields(question: PendingQuestion | None) -> dict[str, Any]:
    if question is None:
        return {}
    return {**question.kind.event(question), "expires_at": iso_utc(question.asked.expires_us)}


async def _run(program: Sequence[str], event: dict[str, Any]) -> None:
    secrets = {*key_variables(os.environ), "AVA_MODEL_API_KEY", DATABASE_VARIABLE}
    env = {name: value for name, value in os.environ.items() if name not in secrets}
    line = json.dumps(event, ensure_ascii=False) + "\n"
    try:
        command = await anyio.to_thread.run_sync(checked_command, program)
        end = await run_program(command.argv, {**env, "PATH": command.path}, PROGRAM_S, given=line.encode())
    except Exception as error:  # nothing may end the runtime: an argument with a NUL, a broken pipe in a group
        log.warning("on_event: %s cannot be run: %s", program[0], error)
        return
    if end.code is None:
        log.warning("on_event: %s took longer than %.0f s and was ended", program[0], PROGRAM_S)
    elif end.code != 0:
        log.warning("on_event: %s ended with %d", program[0], end.code)


# -- notifications on the desktop -------------------------------------------------------------------------------------

_LINUX = "/usr/bin:/bin:/usr/local/bin"
"""Where programs of the system are; the PATH may begin with a project's."""
_DESKTOPS = ("DISPLAY", "WAYLAND_DISPLAY")
_APPLE_SCRIPT = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
_POWERSHELL = """\
$null = [Windows.UI.Notifications.ToastNotificationManager, Windows.UI.Notifications, ContentType = WindowsRuntime]
$toast = [Windows.UI.Notifications.ToastNotificationManager]::GetTemplateContent('ToastText02')
$texts = $toast.GetElementsByTagName('text')
$null = $texts.Item(0).AppendChild($toast.CreateTextNode($args[0]))
$null = $texts.Item(1).AppendChild($toast.CreateTextNode($args[1]))
$app = '{1AC14E77-02E7-4E5D-B744-2EB1AE5198B7}\\WindowsPowerShell\\v1.0\\powershell.exe'
$shown = [Windows.UI.Notifications.ToastNotification]::new($toast)
[Windows.UI.Notifications.ToastNotificationManager]::CreateToastNotifier($app).Show($shown)
"""


def desktop_program(env: Mapping[str, str] | None = None, system: str = sys.platform) -> tuple[str, ...] | None:
    """Return the program that shows a title and a text, which follow its arguments; None without a desktop.

    Those for macOS and Windows have not been run.
    """
    env = os.environ if env is None else env
    if system == "darwin":
        return ("/usr/bin/osascript", "-e", _APPLE_SCRIPT)
    if system == "win32":
        shell = PureWindowsPath(env.get("SystemRoot", "C:/Windows"), "System32/WindowsPowerShell/v1.0/powershell.exe")
        return (str(shell), "-NoProfile", "-NonInteractive", "-Command", f"& {{{_POWERSHELL}}}")
    if not any(env.get(name) for name in _DESKTOPS):
        return None
    program = shutil.which("notify-send", path=_LINUX)
    return None if program is None else (program, "--app-name=Ava", "--")


def notice_of(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return title and text for an event of the event hook, of a run that a person approves in Ava; None at its end.

    Neither has anything of the task, and no code: others may see the screen.
    """
    if event["event"] == "ended":
        return None
    cost = event["max_cost_cents"]
    price = caps_text(micros_from_cents(cost) if cost else None)
    text = (
        f"{named_role(event['role'])}, {price}. Open the link in your host, or run: ava approve {event['pending_id']}"
    )
    if event["event"] != "awaiting_approval":
        text = f"{named_role(event['role'])} asks you something. Run: ava status {event['subagent_id']}"
    return "Ava: a subagent waits for you", text
