"""Telling a person's own program what happened (`on_event`): something waits for approval, or a subagent has ended.

The program gets JSON on its standard input. It can notify, and never approve: what it prints is read by nobody. Of all
processes on a data root one tells, each event once; twice only where it ends in the middle of telling.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process

from ava_audit.entries import ENTRY_COLUMNS, Entry, entry_of
from ava_audit.errors import AuditError
from ava_audit.projections import note_progress
from ava_audit.rows import WAITING
from ava_audit.store.locks import hold_when_free
from ava_audit.store.store import Store
from ava_audit.units import cents
from ava_audit.view import View
from ava_server.approval.proposals import texts_of
from ava_server.approval.summary import beginning
from ava_server.budget.run_config import config_of
from ava_server.config.keys import key_variables
from ava_server.core.data_root import home_folder

log = logging.getLogger("ava.events")

PROGRAM_S = 10.0
"""How long the program may take; then it is ended."""
ENDED_S = 1.0
"""How long is waited for it to be gone then."""
SETTLE_S = 0.3
"""What is decided at once, by the policy auto, waits for nobody: it is looked at only so much later."""
OLD_US = 10 * 60 * 1_000_000
"""What happened longer ago than this, while nobody was there to tell it, is not told any more."""
TAKE_OVER_S = 1.0
TOLD = ("SpawnProposed", "RunEnded")
_DUTY = "on_event"


async def tell_events(store: Store, root: Path, program: Sequence[str]) -> None:
    """Be the process that tells, whenever no other one is, until cancelled."""
    with await hold_when_free(root / "events.lock", TAKE_OVER_S):
        await _tell(store, program)


async def _tell(store: Store, program: Sequence[str]) -> None:
    seen: int | None = None
    while True:
        try:
            if seen is None:
                seen = await store.read(lambda view: view.progress(_DUTY) or view.head())
            head = await store.wait_for_entry_after(seen)
            await anyio.sleep(SETTLE_S)
            for event in await store.read(_events(seen, head)):
                await _run(program, event)
            seen = head
            await store.maintain(lambda db, head=head: note_progress(db, _DUTY, head))  # type: ignore[misc]
        except AuditError as error:  # looked at again; an event that was told is told twice at worst
            log.warning("looking for events to tell: %s", error)
            await anyio.sleep(TAKE_OVER_S)


def _events(after: int, upto: int) -> Any:
    """Return the query for what is to be told of the entries of a span."""

    def query(view: View) -> list[dict[str, Any]]:
        entries: list[Entry] = []
        for name in TOLD:
            rows = view.select(
                f"SELECT {ENTRY_COLUMNS} FROM events WHERE type = ? AND seq > ? AND seq <= ?",  # noqa: S608
                name,
                after,
                upto,
            )
            entries += map(entry_of, rows)
        old_us = time.time_ns() // 1000 - OLD_US
        found: list[dict[str, Any]] = []
        for entry in sorted(entries, key=lambda each: each.seq):
            try:
                event = _event(view, entry) if entry.ts_us > old_us else None
            except ValueError as error:  # of a version to come: what it says of a run is not to be read here
                log.warning("entry %d cannot be told: %s", entry.seq, type(error).__name__)
                continue
            if event is not None:
                found.append(event)
        return found

    return query


def _event(view: View, entry: Entry) -> dict[str, Any] | None:
    """Return what is told of an entry; None for a proposal that does not wait any more, and for one that never ran."""
    run = view.run(entry.run_id or "")
    proposal = view.proposal(run.pending_id) if run is not None else None
    if run is None or proposal is None:
        return None
    ended = entry.type == "RunEnded"
    if proposal.state != ("approved" if ended else WAITING):
        return None
    texts, config = texts_of(view, run), config_of(run.config)
    return {
        "event": "ended" if ended else "awaiting_approval",
        "pending_id": run.pending_id,
        "subagent_id": run.id,
        "role": run.role,
        "task": beginning(texts.task) if texts is not None else "",
        "estimated_minutes": {"min": config.estimated_minutes[0], "max": config.estimated_minutes[1]},
        "max_cost_cents": cents(config.max_cost_micros),
        "status": run.state,
    }


async def _run(program: Sequence[str], event: dict[str, Any]) -> None:
    """Run the program with an event; whatever goes wrong with it is a line on our standard error, and no more."""
    secret = {*key_variables(os.environ), "AVA_MODEL_API_KEY"}
    env = {name: value for name, value in os.environ.items() if name not in secret}
    line = json.dumps(event, ensure_ascii=False) + "\n"
    try:
        # A session of its own: Ctrl-C for us is none for it, and what it starts can be ended with it.
        process = await anyio.open_process(
            list(program), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env,
            cwd=home_folder(), start_new_session=True,
        )  # fmt: skip
        try:
            with anyio.move_on_after(PROGRAM_S) as scope:
                await _tell_it(process, line.encode())
                if (code := await process.wait()) != 0:
                    log.warning("on_event: %s ended with %d", program[0], code)
        finally:
            if process.returncode is None:  # what it leaves running when it ends by itself is its own
                _end_all(process)
            with anyio.CancelScope(shield=True), anyio.move_on_after(ENDED_S):
                await process.aclose()
        if scope.cancelled_caught:
            log.warning("on_event: %s took longer than %.0f s and was ended", program[0], PROGRAM_S)
    except Exception as error:  # none of it may end the runtime: an argument with a NUL, a pipe that breaks in a group
        log.warning("on_event: %s cannot be run: %s", program[0], error)


async def _tell_it(process: Process, line: bytes) -> None:
    """Write the event; a program that wants to know nothing has run all the same."""
    assert process.stdin is not None
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.send(line)
    with contextlib.suppress(OSError, anyio.BrokenResourceError):
        await process.stdin.aclose()


def _end_all(process: Process) -> None:
    """End the program, where it still runs, and what it has left in its session."""
    if sys.platform == "win32":
        if process.returncode is None:
            process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
