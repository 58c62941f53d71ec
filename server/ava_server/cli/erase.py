"""`ava erase S-…`: the words of one ended run go, now; that it ran, and what it cost, stays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_server.cli.app import heading
from ava_server.cli.terminal import Progress, agrees, say, someone_there, tell
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import BadInput, Refused

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.store.store import Store
    from ava_audit.view import View
    from ava_server.config.settings import Settings
    from ava_server.core.data_root import DataRoot

DONE_S = 300.0
"""How long is waited for the files: the text index is rewritten, which takes seconds a gigabyte."""
LOOK_S = 0.1

_GOES = (
    "Goes for good: its task, context, messages, tool calls and outputs, result, artifacts and scratch files; the"
    " orchestrator's calls and answers that carried them, also where one answer carried other runs besides; in the log,"
    " the files under logs/ and the text index."
)
_STAYS = (
    "Stays: that it ran, when, who approved it, its role, name, task_id, folders and limits, its turns, tokens and"
    " cost, and the hash of every entry, so that the log still verifies."
)
_OUT_OF_REACH = (
    "Out of reach: a later subagent that was given this one's words (erase that one too), searches that somebody typed,"
    " your host's own transcript, the model provider, exports, backups and snapshots of the data root, and day files in"
    " logs/ava that were set aside (set-aside in their name) because they are another log's."
)


def register(app: typer.Typer) -> None:
    """Add `ava erase` to the app."""
    app.command("erase", short_help="Erase the words of an ended run; that it ran and what it cost stays.")(
        erase_command
    )


def erase_command(
    subagent: Annotated[str, typer.Argument(metavar="S-ID", help="The subagent, or its proposal (P-…).")],
    yes: Annotated[bool, typer.Option("--yes", help="Erase it without asking.")] = False,
) -> None:
    """Erase the words of an ended run from log, files and index, after a question; there is no way back."""
    from ava_server.config.settings import load_settings

    root = find_data_root()
    heading(root)
    anyio.run(_erase, root, load_settings(), subagent, yes)


async def _erase(root: DataRoot, settings: Settings, given: str, yes: bool) -> None:
    from ava_server.cli.reading import find_run, open_log
    from ava_server.core.ids import label
    from ava_server.service.runtime import keep

    entries = 0
    async with open_log(root) as store:
        run = await find_run(store, given)
        assert store is not None
        before = await store.read(lambda view: _look(view, run))
        if before is None:
            raise BadInput(
                f"{label(run)} has not ended ({run.state.replace('_', ' ')}), and what it still needs is not erased."
                f" Wait for its end, or end it with `ava cancel {run.id}`, then erase it."
            )
        erased_us, words = before
        tell("\n".join(_question(run, erased_us, words)))
        if words and not await _agreed(run, yes):
            raise Refused("Nothing was erased.")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep, store, settings)  # for when no server does it
            entries = await _all_of(store, run, words)
            tasks.cancel_scope.cancel()
        if words:
            say(f"Erased: the words of {entries:,} entries of {label(run)}, and the files that it left.")


def _look(view: View, run: RunRow) -> tuple[int | None, int] | None:
    """Return when a run was erased (microseconds UTC), and how many entries have words; None while it goes on."""
    from ava_audit.events import TRANSCRIPT_TYPES
    from ava_audit.retention import is_over
    from ava_server.service.erase import quoting

    if not is_over(view, run, time.time_ns() // 1000):
        return None
    last = view.last_entry(run.id, "LogErased")
    own = sum(entry.content is not None for entry in view.entries(run.id, types=sorted(TRANSCRIPT_TYPES)))
    return (last.ts_us if last is not None else None), own + len(quoting(view, run))


def _question(run: RunRow, erased_us: int | None, words: int) -> list[str]:
    from ava_audit.units import format_ts
    from ava_server.core.ids import label

    when = f"{label(run)} was erased already, {format_ts(erased_us)}" if erased_us is not None else ""
    if not words:
        return [f"{when}; nothing is left to erase." if when else f"{label(run)} left no words: nothing is to erase."]
    lines = [f"{when}; {words:,} entries about it have words again or still."] if when else []
    if not when:
        ended = f", ended {format_ts(run.ended_us)}" if run.ended_us is not None else ""
        lines.append(f"{label(run)}: {run.state.replace('_', ' ')}{ended}; {words:,} entries have words.")
    return [*lines, _GOES, _STAYS, _OUT_OF_REACH]


async def _agreed(run: RunRow, yes: bool) -> bool:
    from ava_server.core.ids import label

    if yes:
        return True
    if not someone_there():
        raise BadInput("There is no terminal to ask on, so nothing was erased. Run it in a terminal, or add --yes.")
    return await agrees(f"Erase the words of {label(run)} for good?")


async def _all_of(store: Store, run: RunRow, words: int) -> int:
    """Erase a run, wait until nothing of it is left in any file, and return how many entries that were."""
    from ava_audit.retention import erase_run
    from ava_server.cli.reading import terminal_session
    from ava_server.service.erase import quoting

    total = 0
    while words:  # again, for an answer that was on its way when it was erased
        also = await store.read(lambda view: quoting(view, run))
        done = await erase_run(store, run.id, also, terminal_session().who, "erased by a person (ava erase)")
        total += done
        await _files(store)
        if not done:
            break
    await _files(store)
    return total


async def _files(store: Store) -> None:
    """Wait until the keeper, here or in a server, has finished.

    Raises:
        StoreUnavailable: It has not in time.
    """
    from ava_audit.errors import StoreUnavailable
    from ava_audit.retention import erasure_pending

    progress = Progress()
    try:
        with anyio.move_on_after(DONE_S):
            while await store.read(erasure_pending):  # no event tells: the keeper may be another process
                progress.show("The log has no words of it any more; clearing files and free pages …")
                await anyio.sleep(LOOK_S)
            return
    finally:
        progress.end()
    raise StoreUnavailable(
        f"The words are out of the log, but files may still have them: what keeps this data root has not cleared them"
        f" within {DONE_S / 60:.0f} min. See that no other program holds ava.db and no older server runs; try again."
    )
