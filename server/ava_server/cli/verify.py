"""`ava verify`: checks the log's hash chain and rebuilds its state."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ava_audit.errors import BadQuery
from ava_server.cli.options import Json
from ava_server.cli.terminal import counted, heading, place_json, progress_on_terminal, say, say_json
from ava_server.core.data_root import find_data_root, has_log
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.entries import ProgressCallback, Report
    from ava_server.core.data_root import DataRoot

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

    Runs, proposals, groups and budgets are rebuilt from the log and compared. The head is the newest entry's hash.
    Note it elsewhere: a log that was cut at its end, or rewritten, shows only against it. Nothing is written. Exit
    code 1 when a fault was found.
    """
    if jsonl is not None and (head is not None or since_head is not None):
        raise BadInput("--jsonl: a file is checked by itself; leave --head and --since-head out.")
    begun = time.monotonic()
    report = _verify_log(find_data_root(), head, since_head, as_json) if jsonl is None else _verify_file(jsonl, as_json)
    seconds = time.monotonic() - begun
    if as_json:
        fields = {"ok": report.ok, **asdict(report), "duration_ms": round(seconds * 1_000)}
        if jsonl is None:
            del fields["gaps"]
        say_json({**(place_json(find_data_root()) if jsonl is None else {"file": jsonl}), **fields})
    else:
        say("\n".join(_log_lines(report, seconds, since_head) if jsonl is None else _file_lines(report, seconds)))
    raise typer.Exit(0 if report.ok else FAULT)


def _verify_log(root: DataRoot, head: str | None, since: str | None, as_json: bool) -> Report:
    from ava_audit.entries import GENESIS, Report, missing_hash
    from ava_audit.mirror import mirror_faults
    from ava_audit.verify import hash_of, verify

    noted: list[bytes] = []
    for option, given in (("--head", head), ("--since-head", since)):
        try:
            noted += [] if given is None else [hash_of(given)]
        except BadQuery as error:
            raise BadInput(f"{option}: {error}") from None
    if not as_json:
        heading(root)
    if has_log(root):
        with progress_on_terminal() as show:
            told = _progress(show, "entries")
            return verify(root.path, head=head, since=since, mirror=root.logs, on_progress=told)
    missing = [missing_hash(digest, 0) for digest in noted if digest != GENESIS] + mirror_faults(None, root.logs)
    return Report(0, 0, GENESIS.hex(), tuple(missing), not missing)


def _verify_file(name: str, as_json: bool) -> Report:
    from ava_audit.verify import verify_lines

    if not as_json:
        say("File: " + ("(standard input)" if name == STDIN else name))
    try:
        with progress_on_terminal() as show:
            return verify_lines(sys.stdin.buffer if name == STDIN else Path(name), _progress(show, "bytes"))
    except OSError as failed:
        raise BadInput(f"--jsonl: {name} cannot be read: {failed.strerror}; give a file of JSON lines") from None


def _file_lines(report: Report, seconds: float) -> list[str]:
    from ava_audit.units import format_duration

    lines = [f"FAULT: {fault.text}" for fault in report.faults]
    count = counted(report.entries, "line")
    if report.ok:
        lines.append(f"{count} checked in {format_duration(seconds)}: each is unchanged, and they are in order.")
    else:
        lines.append(f"{count} before it {'is' if report.entries == 1 else 'are'} unchanged.")
    if report.ok and report.gaps:
        lines.append(
            f"At {counted(report.gaps, 'place')} entries of the log are not in this"
            " file: other users' entries, entries that were not exported, or removed lines. `ava verify` on the log"
            " itself shows which."
        )
    if report.entries:
        lines.append(f"Last entry: {report.seq:,}, with the hash {report.head}")
    return lines


def _log_lines(report: Report, seconds: float, since: str | None) -> list[str]:
    from ava_audit.units import format_duration

    lines = [f"FAULT: {fault.text}" for fault in report.faults]
    kinds = {fault.kind for fault in report.faults}
    count = counted(report.entries, "entry", "entries")
    after = "" if since is None else " after the given head"
    took = f"in {format_duration(seconds)}"
    if kinds.intersection(_IN_CHAIN):
        return [*lines, f"{count}{after} before that {'is' if report.entries == 1 else 'are'} unchanged ({took})."]
    if report.entries or not report.faults:
        lines.append(f"{count}{after} checked {took}: none was changed, removed, added or moved, up to {report.seq:,}.")
    if report.projections and "projection" not in kinds:
        lines.append(f"Runs, proposals, groups and budgets match the log at entry {report.seq:,}.")
    elif not report.projections and report.ok:
        lines.append("Runs, proposals, groups and budgets were not compared: that takes the whole log.")
    if report.entries or report.ok:
        lines.append(f"Head: {report.head}")
    if report.ok:
        lines.append("Note it elsewhere: `ava verify --head HASH` then shows whether the log was cut or rewritten.")
    return lines


def _progress(show: Callable[[str], None], what: str) -> ProgressCallback:
    return lambda done, of: show(f"{done:,} of {of:,} {what} checked" if of else f"{done:,} {what} checked")
