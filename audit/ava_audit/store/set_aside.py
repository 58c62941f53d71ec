"""Files of the mirror that have what the log has not: of a log that was removed, or put back from an older copy.

Such a file is the only record that is left of it, so it is set aside under another name before a new one is written.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from ava_audit.entries import line_fault
from ava_audit.faults import Fault
from ava_audit.units import US_PER_S
from ava_audit.view import View

log = logging.getLogger("ava.keeper")

MARK = "set-aside"
MAX_FILES = 20
_CHUNK = 65_536
_NAMED = re.compile(rb'\},"seq":(\d{1,18}),[^{}]*"hash":"([0-9a-f]{64})"\}\s*\Z')


def is_of_another_log(view: View, file: IO[bytes], start: int) -> bool:
    """Tell whether a file has, from a place on, an entry that the log does not have.

    What was cut or changed is no entry, and healed; what was only erased since has the hash that it had.
    """
    file.seek(start)
    return any(_lost_entry(view, line) is not None for line in file)


def not_in_log(view: View | None, folder: Path | None) -> list[Fault]:
    """Return a fault for each file whose last entry the log does not have; without a view there is no log.

    Files are written after the log: what they have and the log has not, the log has lost.
    """
    faults: list[Fault] = []
    for path in [] if folder is None else sorted(folder.glob("*/*.jsonl")):
        if f".{MARK}-" in path.name:
            continue
        seq = _lost_entry(view, _last_line(path))
        if seq is not None:
            name = f"{folder.name if folder else ''}/{path.parent.name}/{path.name}"
            text = f"{name} has entry {seq}, which the log does not have: it was removed, cut or put back from a copy"
            faults.append(Fault("mirror", seq, text))
            if len(faults) == MAX_FILES:
                break
    return faults


def _lost_entry(view: View | None, line: bytes) -> int | None:
    """Return the `seq` of the entry that a line has and the log has not; None where it has it, or it is no entry."""
    found = _NAMED.search(line)
    if found is None:
        return None
    seq, digest = int(found[1]), bytes.fromhex(found[2].decode())
    stored = None if view is None else next(view.select("SELECT hash FROM events WHERE seq = ?", seq), None)
    known = stored is not None and stored[0] == digest
    return None if known or line_fault(line) is not None else seq


def _last_line(path: Path) -> bytes:
    """Return the last whole line of a file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        wanted = _CHUNK
        while True:
            file.seek(max(0, size - wanted))
            lines = file.read().splitlines(keepends=True)
            whole = [line for line in lines[1 if size > wanted else 0 :] if line.endswith(b"\n")]
            if whole or wanted >= size:
                return whole[-1] if whole else b""
            wanted *= 16


def set_aside(path: Path) -> Path:
    """Give a file a name under which nobody writes, and return it."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.{MARK}-{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    log.warning(
        "%s has entries that this log does not have (it was removed, or put back from an older copy): it is kept as %s",
        path.name,
        aside.name,
    )
    return aside


def forget_old(folder: Path, before_us: int) -> None:
    """Remove what was set aside and was last written before a time (microseconds UTC)."""
    for path in folder.glob(f"*/*.{MARK}-*.jsonl"):
        if path.lstat().st_mtime * US_PER_S < before_us:
            path.unlink(missing_ok=True)


def forget_runs(folder: Path, runs: Iterable[str]) -> None:
    """Remove what was set aside of runs that are erased."""
    for run_id in runs:
        for path in (folder / "subagents").glob(f"{run_id}.{MARK}-*.jsonl"):
            path.unlink(missing_ok=True)
