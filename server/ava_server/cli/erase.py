"""`ava erase S-…`: erases one finished run's content; its metadata and cost stay."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_audit.errors import StoreUnavailable
from ava_server.cli.app import in_event_loop
from ava_server.cli.log_access import find_run, open_log, read_settings, terminal_session
from ava_server.cli.options import EndedRunId
from ava_server.cli.terminal import Progress, confirm, heading, say, tell
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.store.store import Store
    from ava_audit.view import View

DONE_S = 300.0
"""How long to wait for the files: rewriting the text index takes seconds per gigabyte."""
LOOK_S = 0.1

_ERASED = (
    "Erased for ever: its task, context, messages, tool calls and outputs, result, artifacts and scratch files; the"
    " orchestrator's calls and answers that contain them, even an answer that also contains other runs; in the log, the"
    " files under logs/ and the text index."
)
_KEPT = (
    "Kept: that it ran, when, who approved it, its role, name, task_id, folders and limits, its turns, tokens and cost,"
    " and the hash of every entry, so that the log still verifies."
)
_OUT_OF_REACH = (
    "Not reached: a later subagent that was given this one's content (erase that one too), search queries, your host's"
    " own transcript, the model provider, exports, backups and snapshots of the data root, and day files in logs/ava"
    " that were set aside (set-aside in their name) because they belong to another log."
)


@in_event_loop
async def erase_command(
    subagent: EndedRunId, yes: Annotated[bool, typer.Option("-y", "--yes", help="Erase it without asking.")] = False
) -> None:
    """Erase a finished run's content from log, files and index, after a question. It cannot be undone."""
    from ava_server.core.ids import label
    from ava_server.service.runtime import maintain_data_root

    root = find_data_root()
    heading(root)
    settings, entries = read_settings(), 0
    async with open_log(root) as store:
        run = await find_run(store, subagent)
        assert store is not None
        before = await store.read(lambda view: _content(view, run))
        if before is None:
            raise BadInput(
                f"{label(run)} has not ended ({run.state.replace('_', ' ')}), and still needs its content."
                f" Wait for its end, or end it with `ava cancel {run.id}`, then erase it."
            )
        erased_us, with_content = before
        tell("\n".join(_summary(run, erased_us, with_content)))
        if with_content and not yes:
            await confirm(f"Erase the content of {label(run)} for ever?", "erased")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(maintain_data_root, store, settings)  # in case no server does it
            entries = await _erase_all(store, run, with_content)
            tasks.cancel_scope.cancel()
        if with_content:
            say(f"Erased: the content of {entries:,} entries of {label(run)}, and its files.")


def _content(view: View, run: RunRow) -> tuple[int | None, int] | None:
    """Return when a run was erased (microseconds UTC) and how many entries have content; None before its end."""
    from ava_audit.events import TRANSCRIPT_TYPES
    from ava_audit.retention import is_over
    from ava_server.service.erase import quoting_entries

    if not is_over(view, run, time.time_ns() // 1000):
        return None
    last = view.last_entry(run.id, "LogErased")
    own = sum(entry.content is not None for entry in view.entries(run.id, types=sorted(TRANSCRIPT_TYPES)))
    return (last.ts_us if last is not None else None), own + len(quoting_entries(view, run))


def _summary(run: RunRow, erased_us: int | None, with_content: int) -> list[str]:
    from ava_audit.units import format_ts
    from ava_server.core.ids import label

    if erased_us is not None:
        erased = f"{label(run)} was already erased, {format_ts(erased_us)}"
        if not with_content:
            return [f"{erased}; nothing is left to erase."]
        return [f"{erased}; {with_content:,} entries about it have content again.", _ERASED, _KEPT, _OUT_OF_REACH]
    if not with_content:
        return [f"{label(run)} has no content: there is nothing to erase."]
    ended = f", ended {format_ts(run.ended_us)}" if run.ended_us is not None else ""
    state = f"{label(run)}: {run.state.replace('_', ' ')}{ended}; {with_content:,} entries have content."
    return [state, _ERASED, _KEPT, _OUT_OF_REACH]


async def _erase_all(store: Store, run: RunRow, with_content: int) -> int:
    """Return the number of erased entries, once no file contains any of them."""
    from ava_audit.retention import erase_run
    from ava_server.service.erase import quoting_entries

    total = 0
    while with_content:  # repeated, for an answer that was written meanwhile
        also = await store.read(lambda view: quoting_entries(view, run))
        done = await erase_run(store, run.id, also, terminal_session().who, "erased by a person (ava erase)")
        total += done
        await _wait_for_files(store)
        if not done:
            break
    await _wait_for_files(store)
    return total


async def _wait_for_files(store: Store) -> None:
    """Wait for the keeper, here or in a server. Raises StoreUnavailable: it has not cleared the files in time."""
    from ava_audit.retention import erasure_pending

    progress = Progress()
    try:
        with anyio.move_on_after(DONE_S):
            while await store.read(erasure_pending):  # no event says so: the keeper may be another process
                progress.show("The log no longer has its content; clearing files and free pages …")
                await anyio.sleep(LOOK_S)
            return
    finally:
        progress.end()
    raise StoreUnavailable(
        "The content is erased from the log, but files may still have it: they were not cleared within"
        f" {DONE_S / 60:.0f} min. Check that no other program holds ava.db and no older server runs; try again."
    )
