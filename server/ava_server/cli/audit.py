"""`ava verify` checks the log's hash chain and rebuilds its state; `ava erase S-…` erases a finished run's content."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_audit.errors import BadQuery, StoreUnavailable
from ava_audit.units import counted
from ava_roles.texts.kept import KeptTexts
from ava_server.cli.app import in_event_loop
from ava_server.cli.log_access import find_run, open_log, read_settings, terminal_session
from ava_server.cli.options import EndedRunIdOrNone, Json
from ava_server.cli.terminal import Progress, confirm, heading, place_json, progress_on_terminal, say, say_json, tell
from ava_server.core.data_root import DataRoot, find_data_root, has_log
from ava_server.core.errors import BadInput, Refused
from ava_server.core.ids import label, state_words

if TYPE_CHECKING:
    from ava_audit.entries import ProgressCallback, VerifyReport
    from ava_audit.rows import RunRow
    from ava_audit.store.store import Store
    from ava_audit.view import View

FAULT = 1
STDIN = "-"
_IN_CHAIN = ("changed", "missing", "inserted", "reordered", "damaged")


def verify_command(
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A head noted earlier: the log must still contain it.")
    ] = None,
    since_head: Annotated[
        str | None, typer.Option(metavar="HASH", help="Check only what follows this head, and trust what precedes it.")
    ] = None,
    jsonl: Annotated[
        str | None, typer.Option(metavar="FILE", help="Check a file of logs/ or an export instead; - is stdin.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that no entry of the log was changed, removed, added or moved, and name the first that was.

    Runs, proposals, plans, budgets and spending are rebuilt from the log and compared. The head is the newest entry's
    hash. Note it elsewhere: a log that was cut at its end, or rewritten, shows only against it. Nothing is written.
    Exit code 1 when a fault was found.
    """
    if jsonl is not None and (head is not None or since_head is not None):
        raise BadInput("--jsonl: a file is checked by itself; leave --head and --since-head out.")
    began = time.monotonic()
    if jsonl is None:
        root = find_data_root()
        report = _verify_log(root, head, since_head, as_json)
        place = place_json(root)
    else:
        report = _verify_file(jsonl, as_json)
        place = {"file": jsonl}
    seconds = time.monotonic() - began
    if as_json:
        fields = {"ok": report.ok, **asdict(report), "duration_ms": round(seconds * 1_000)}
        if jsonl is None:
            del fields["gaps"]
        say_json({**place, **fields})
    elif jsonl is None:
        say("\n".join(_log_lines(report, seconds, since_head)))
    else:
        say("\n".join(_file_lines(report, seconds)))
    if not report.ok:
        raise typer.Exit(FAULT)


def _verify_log(root: DataRoot, head: str | None, since: str | None, as_json: bool) -> VerifyReport:
    from ava_audit.entries import GENESIS, VerifyReport, missing_hash
    from ava_audit.mirror import mirror_faults
    from ava_audit.verify import hash_of, verify

    hashes: list[bytes] = []
    for option, text in (("--head", head), ("--since-head", since)):
        if text is None:
            continue
        try:
            hashes.append(hash_of(text))
        except BadQuery as error:
            raise BadInput(f"{option}: {error}") from None
    if not as_json:
        heading(root)
    if has_log(root):
        with progress_on_terminal() as show:
            on_progress = _progress(show, "entries")
            return verify(root.path, head=head, since=since, mirror=root.logs, on_progress=on_progress)
    faults = [missing_hash(digest, 0) for digest in hashes if digest != GENESIS]
    faults += mirror_faults(None, root.logs)
    return VerifyReport(0, 0, GENESIS.hex(), tuple(faults), not faults)


def _verify_file(name: str, as_json: bool) -> VerifyReport:
    from ava_audit.verify import verify_lines

    from_stdin = name == STDIN
    if not as_json:
        say("File: (standard input)" if from_stdin else f"File: {name}")
    source = sys.stdin.buffer if from_stdin else Path(name)
    try:
        with progress_on_terminal() as show:
            return verify_lines(source, _progress(show, "bytes"))
    except OSError as error:
        raise BadInput(f"--jsonl: {name} cannot be read: {error.strerror}; give a file of JSON lines") from None


def _file_lines(report: VerifyReport, seconds: float) -> list[str]:
    from ava_audit.units import format_duration

    lines = [f"FAULT: {fault.text}" for fault in report.faults]
    count = counted(report.entries, "line")
    if report.ok:
        lines.append(f"{count} checked in {format_duration(seconds)}: each is unchanged, and they are in order.")
    else:
        lines.append(f"{count} before it {_are(report.entries)} unchanged.")
    if report.ok and report.gaps:
        lines.append(
            f"At {counted(report.gaps, 'place')} entries of the log are not in this"
            " file: other users' entries, entries that were not exported, or removed lines. `ava verify` on the log"
            " itself shows which."
        )
    if report.entries:
        lines.append(f"Last entry: {report.seq:,}, with the hash {report.head}")
    return lines


def _log_lines(report: VerifyReport, seconds: float, since: str | None) -> list[str]:
    from ava_audit.units import format_duration

    lines = [f"FAULT: {fault.text}" for fault in report.faults]
    kinds = {fault.kind for fault in report.faults}
    count = counted(report.entries, "entry", "entries")
    if since is not None:
        count += " after the given head"
    time_text = f"in {format_duration(seconds)}"
    if kinds.intersection(_IN_CHAIN):
        lines.append(f"{count} before that {_are(report.entries)} unchanged ({time_text}).")
        return lines
    if report.entries or not report.faults:
        lines.append(
            f"{count} checked {time_text}: none was changed, removed, added or moved, up to entry {report.seq:,}."
        )
    if report.projections and "projection" not in kinds:
        lines.append(f"Runs, proposals, plans, budgets and spending match the log at entry {report.seq:,}.")
    elif not report.projections and report.ok:
        lines.append("Runs, proposals, plans, budgets and spending were not compared: that takes the whole log.")
    if report.entries or report.ok:
        lines.append(f"Head: {report.head}")
    if report.ok:
        lines.append("Note it elsewhere: `ava verify --head HASH` then shows whether the log was cut or rewritten.")
    return lines


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _progress(show: Callable[[str], None], what: str) -> ProgressCallback:
    def on_progress(done: int, of: int) -> None:
        count = f"{done:,} of {of:,}" if of else f"{done:,}"
        show(f"{count} {what} checked")

    return on_progress


# -- ava erase ---------------------------------------------------------------------------------------------------------

DONE_S = 300.0
"""How long to wait for the files: rewriting the text index takes seconds per gigabyte."""
LOOK_S = 0.1

_ERASED = (
    "Erased for ever: its task, context, messages, tool calls and outputs, result, artifacts and scratch files; the"
    " orchestrator's calls and answers that contain them, even an answer that also contains other runs; in the log, the"
    " files under logs/ and the text index; on this machine also the texts of files that only it read."
)
_KEPT = (
    "Kept: that it ran, when, who approved it, its role, name, task_id, folders and limits, its turns, tokens and cost,"
    " and the hash of every entry, so that the log still verifies."
)
_OUT_OF_REACH = (
    "Not reached: a later subagent that was given this one's content (erase that one too), search queries, your host's"
    " own transcript, the model provider, texts of files on other machines (erase it there too), exports, backups and"
    " snapshots of the data root, and day files in logs/ava that were set aside (set-aside in their name) because they"
    " belong to another log."
)


@in_event_loop
async def erase_command(
    subagent: EndedRunIdOrNone = None,
    cache: Annotated[bool, typer.Option("--cache", help="Erase the texts that are kept of files.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Erase it without asking.")] = False,
) -> None:
    """Erase a finished run's content from log, files and index, after a question. It cannot be undone."""
    from ava_server.service.runtime import maintain_data_root

    root = find_data_root()
    heading(root)
    settings = read_settings()
    if (subagent is None) == (not cache):
        raise BadInput("Give either a subagent (S-…) whose content to erase, or --cache.")
    texts = KeptTexts(root.texts, settings.files.keep_mb * 1_000_000)
    if subagent is None:
        await _erase_cache(texts, yes)
        return
    async with open_log(root) as store:
        run = await find_run(store, subagent)
        assert store is not None
        content = await store.read(lambda view: _content(view, run))
        if content is None:
            raise BadInput(_why_needed(run))
        erased_us, with_content = content
        if with_content:
            tell("\n".join(_summary(run, erased_us, with_content)))
            if not yes:
                await confirm(f"Erase the content of {label(run)} for ever?", "erased")
        entries = 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(maintain_data_root, store, settings)  # in case no server does it
            entries = await _erase_all(store, run, with_content)
            tasks.cancel_scope.cancel()
        text_count = await _erase_texts(lambda: texts.erase_run(run.id))
        texts_text = f"{counted(text_count, 'text')} of files that only it read"
        if with_content:
            also = f", and {texts_text}" if text_count else ""
            say(f"Erased: the content of {entries:,} entries of {label(run)}, and its files{also}.")
        else:
            tell(_without_content(run, erased_us, nothing=not text_count))
            if text_count:  # it was erased on another machine, which has texts of its own
                say(f"Erased: {texts_text}.")
        for copy in root.log_copies:
            say(f"{copy} is the log from before a migration and may still have it: remove that file too.")


async def _erase_cache(texts: KeptTexts, yes: bool) -> None:
    if not yes:
        await confirm("Erase all texts that are kept of files? Runs make them anew from the files.", "erased")
    count = await _erase_texts(texts.erase_all)
    say(f"Erased: {counted(count, 'text')} of files.")


def _why_needed(run: RunRow) -> str:
    """Return why a run's content cannot be erased yet, and what to do."""
    if run.ended:
        return (
            f"{label(run)} is of the plan {run.plan_id}, which has not ended and still needs its result. Wait"
            f" for its end, or end it with `ava cancel {run.plan_id}`, then erase it."
        )
    return (
        f"{label(run)} has not ended ({state_words(run.state)}), and still needs its content."
        f" Wait for its end, or end it with `ava cancel {run.id}`, then erase it."
    )


async def _erase_texts(erase: Callable[[], int]) -> int:
    """Return how many texts of files were erased. Raises Refused if they are still there."""
    try:
        return await anyio.to_thread.run_sync(erase)
    except (OSError, sqlite3.Error) as error:
        raise Refused(f"The texts of files were not erased ({error}). Stop Ava's servers, then erase again.") from None


def _content(view: View, run: RunRow) -> tuple[int | None, int] | None:
    """Return when a run was erased (microseconds UTC) and how many entries have content; None before its end."""
    from ava_audit.events import TRANSCRIPT_TYPES
    from ava_audit.retention import is_over
    from ava_server.service.erase import quoting_entries

    if not is_over(view, run, time.time_ns() // 1000):
        return None
    erased_us = None
    last = view.last_entry(run.id, "LogErased")
    if last is not None:
        erased_us = last.ts_us
    count = 0
    for one in _with_steps(view, run):
        transcript = view.entries(one.id, types=sorted(TRANSCRIPT_TYPES))
        count += sum(entry.content is not None for entry in transcript)
        count += len(quoting_entries(view, one))
    return erased_us, count


def _with_steps(view: View, run: RunRow) -> list[RunRow]:
    """Return a run; of a plan, also the runs of its steps, which have all that it was about."""
    runs = [run]
    if run.is_plan:
        for row in view.step_runs(run.id):
            step = view.run(row.id)
            if step is not None:
                runs.append(step)
    return runs


def _without_content(run: RunRow, erased_us: int | None, *, nothing: bool) -> str:
    if erased_us is None:
        text, addition = f"{label(run)} has no content", ": there is nothing to erase"
    else:
        text, addition = _already_erased(run, erased_us), "; nothing is left to erase"
    if nothing:
        text += addition
    return f"{text}."


def _already_erased(run: RunRow, erased_us: int) -> str:
    from ava_audit.units import format_ts

    return f"{label(run)} was already erased, {format_ts(erased_us)}"


def _summary(run: RunRow, erased_us: int | None, with_content: int) -> list[str]:
    from ava_audit.units import format_ts

    if erased_us is not None:
        again = f"{_already_erased(run, erased_us)}; {with_content:,} entries about it have content again."
        return [again, _ERASED, _KEPT, _OUT_OF_REACH]
    state = f"{label(run)}: {state_words(run.state)}"
    if run.ended_us is not None:
        state += f", ended {format_ts(run.ended_us)}"
    return [f"{state}; {with_content:,} entries have content.", _ERASED, _KEPT, _OUT_OF_REACH]


async def _erase_all(store: Store, run: RunRow, with_content: int) -> int:
    """Return the number of erased entries, once no file contains any of them."""
    from ava_audit.retention import erase_run
    from ava_server.service.erase import quoting_entries

    total = 0
    while with_content:  # repeated, for an answer that was written meanwhile
        count = 0
        for one in await store.read(lambda view: _with_steps(view, run)):
            also = await store.read(lambda view, of=one: quoting_entries(view, of))  # type: ignore[misc]
            count += await erase_run(store, one.id, also, terminal_session().who, "erased by a person (ava erase)")
        total += count
        await _wait_for_files(store)
        if not count:
            break
    await _wait_for_files(store)
    return total


async def _wait_for_files(store: Store) -> None:
    """Wait for the keeper, here or in a server. Raises StoreUnavailable if it has not cleared the files in time."""
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
