"""`ava verify`: is the log what was written, and is the state what follows from it?"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ava_server.cli.app import heading
from ava_server.cli.root import has_log
from ava_server.cli.terminal import Progress, say, say_json
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.faults import ProgressCallback, Report
    from ava_server.core.data_root import DataRoot

FAULT = 1
STDIN = "-"
_EVERY_S = 0.1


def register(app: typer.Typer) -> None:
    """Add `ava verify` to the app."""
    app.command("verify", short_help="Whether the log is what was written, and the state what follows from it.")(
        verify_command
    )


def verify_command(
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HASH", show_default=False, help="A head that was noted elsewhere: the log must still have it."
        ),
    ] = None,
    since_head: Annotated[
        str | None,
        typer.Option(
            metavar="HASH", show_default=False, help="Check only what came after this head, and trust what is before."
        ),
    ] = None,
    jsonl: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", show_default=False, help="Check a file of logs/ or an export in its place; - is stdin."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Check that no entry of the log was changed, removed, added or moved, and name the first that was.

    Runs, proposals, groups and budgets are rebuilt from the log and compared. The head, the newest entry's hash, is
    shown to be noted elsewhere: a log that was cut at its end or written anew shows only against it. Nothing is
    written. Exit code 1 when a fault was found.
    """
    if jsonl is not None:
        if head is not None or since_head is not None:
            raise BadInput("--jsonl: a file is checked by itself; leave --head and --since-head out.")
        report = _of_file(jsonl, as_json)
    else:
        report = _of_log(find_data_root(), head, since_head, as_json)
    raise typer.Exit(0 if report.ok else FAULT)


def _of_log(root: DataRoot, head: str | None, since: str | None, as_json: bool) -> Report:
    from ava_audit.entries import GENESIS
    from ava_audit.errors import BadQuery
    from ava_audit.faults import Report, missing_hash
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
    begun = time.monotonic()
    if has_log(root):
        with _shown("entries") as told:
            report = verify(root.db, head=head, since=since, mirror=root.logs, on_progress=told)
    else:
        missing = [missing_hash(digest, 0) for digest in noted if digest != GENESIS] + mirror_faults(None, root.logs)
        report = Report(0, 0, GENESIS.hex(), tuple(missing), not missing)
    seconds = time.monotonic() - begun
    if as_json:
        say_json({"data_root": str(root.path), **_as_json(report, seconds)})
        return report
    say("\n".join(_screen(report, seconds, since)))
    return report


def _of_file(name: str, as_json: bool) -> Report:
    from ava_audit.units import format_duration
    from ava_audit.verify import verify_lines

    if not as_json:
        say("File: " + ("(what comes in)" if name == STDIN else name))
    begun = time.monotonic()
    try:
        with _shown("bytes") as told:
            report = verify_lines(sys.stdin.buffer if name == STDIN else Path(name), told)
    except OSError as failed:
        raise BadInput(f"--jsonl: {name} cannot be read: {failed.strerror}; give a file of JSON lines") from None
    seconds = time.monotonic() - begun
    if as_json:
        say_json({"file": name, **_as_json(report, seconds), "gaps": report.gaps})
        return report
    lines = _faults(report)
    count = f"{report.entries:,} {'line' if report.entries == 1 else 'lines'}"
    if report.ok:
        lines.append(
            f"{count} checked in {format_duration(seconds)}: each is as it was written, and they are in order."
        )
        if report.gaps:
            lines.append(
                f"At {report.gaps:,} {'place' if report.gaps == 1 else 'places'} entries of the log are not in this "
                "file: others' entries, what was not asked for, or lines that were taken out. `ava verify` on the log "
                "itself tells."
            )
    else:
        lines.append(f"{count} before it {'is as it was' if report.entries == 1 else 'are as they were'} written.")
    if report.entries:
        lines.append(f"Last entry: {report.seq:,}, with the hash {report.head}")
    say("\n".join(lines))
    return report


def _screen(report: Report, seconds: float, since: str | None) -> list[str]:
    from ava_audit.units import format_duration

    lines = _faults(report)
    count = f"{report.entries:,} {'entry' if report.entries == 1 else 'entries'}"
    after = "" if since is None else " after the given head"
    took = f"in {format_duration(seconds)}"
    if any(fault.kind in ("changed", "missing", "inserted", "reordered", "damaged") for fault in report.faults):
        lines.append(f"{count}{after} before that are as they were written ({took}).")
        return lines
    if report.entries or not report.faults:
        lines.append(f"{count}{after} checked {took}: none was changed, removed, added or moved, up to {report.seq:,}.")
    if report.projections and not any(fault.kind == "projection" for fault in report.faults):
        lines.append(f"Runs, proposals, groups and budgets are what follows from the log at entry {report.seq:,}.")
    elif not report.projections and report.ok:
        lines.append("Runs, proposals, groups and budgets were not compared: they follow from the whole log.")
    if report.entries or report.ok:
        lines.append(f"Head: {report.head}")
    if report.ok:
        lines.append("Note it elsewhere: `ava verify --head HASH` then tells if the log was cut or written anew.")
    return lines


def _faults(report: Report) -> list[str]:
    return [f"FAULT: {fault.text}" for fault in report.faults]


def _as_json(report: Report, seconds: float) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "ok": report.ok,
        "entries": report.entries,
        "seq": report.seq,
        "head": report.head,
        "projections": report.projections,
        "duration_ms": round(seconds * 1_000),
        "faults": [asdict(fault) for fault in report.faults],
    }


@contextmanager
def _shown(what: str) -> Generator[ProgressCallback | None]:
    """Show on a terminal how far it is."""
    if not sys.stderr.isatty():
        yield None
        return
    shown = Progress()
    last_s = time.monotonic()

    def told(done: int, of: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= _EVERY_S:
            last_s = time.monotonic()
            shown.show(f"{done:,} of {of:,} {what} checked" if of else f"{done:,} {what} checked")

    try:
        yield told
    finally:
        shown.end()
