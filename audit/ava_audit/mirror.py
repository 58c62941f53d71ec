"""The JSONL mirror: one file for each UTC day of agent `ava`, and one for each run's subagent, in order of `seq`.

The log stores the full length of each file. A damaged file is repaired: compared line by line with the log, cut at the
first difference, and completed. Damaged means one of these:

- Its length is wrong, after a crash or because it was cut or removed.
- At the start, its last line differs from the log, and it is one of the files written last.
- Its entries were erased; the transaction that erased them has marked it.

A file with entries that the log lacks comes from a log that was removed or restored from an older copy. It is the only
record left, so it is quarantined under another name (`….set-aside-1.jsonl`).

Only background maintenance writes these files. If two processes do so, e.g. because somebody removed the lock file, the
log accepts only a note of progress that continues the last one. The files of the other process are repaired.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.to_thread

from ava_audit.entries import HEADER, Fault, limit_content, line_fault, mirror_line
from ava_audit.projections import Repaired, note_mirrored, note_repaired
from ava_audit.store.connection import file_size
from ava_audit.store.store import Store
from ava_audit.units import DAY_US, EPOCH, US_PER_S, day_of
from ava_audit.view import View

log = logging.getLogger("ava.mirror")

SLICE = 2_000
SLICE_CHARS = 8_000_000
MAX_FAULTS = 20
RECHECK_S = 1.0
LATE_S = 86_400.0
"""How long before the newest file another one was written whose last line is compared at the start."""
QUARANTINE_MARK = "set-aside"
_CHUNK = 65_536
_TS = HEADER.index("ts_us")
_AGENT = HEADER.index("agent_id")
_SUBAGENT = re.compile(r"S-[0-9A-Za-z]{1,64}")
_LINE_END = re.compile(rb'\},"seq":(\d{1,18}),[^{}]*"hash":"([0-9a-f]{64})"\}\s*\Z')


class Mirror:
    """The mirror files of one data root, for the process that maintains them."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self.folder = folder
        self._checked = False
        self._lock = anyio.Lock()

    async def repair_all(self) -> None:
        """Repair each file with a wrong length or last line. A process does this before its first `catch_up`."""
        async with self._lock:
            await anyio.to_thread.run_sync(self._make_folders)
            await self._repair(await self._store.read(self._find_damaged))
            self._checked = True

    async def repair_erased(self, *, create: bool) -> None:
        """Repair every file with content that was erased from the log; without `create`, only files that exist.

        Raises StoreUnavailable: the log cannot be read, or the progress not noted; OSError: a file cannot be written.
        """
        while True:
            sizes = await self._store.read(View.mirrored)
            marked = [file for file, size in sizes.items() if size < 0]
            if not create:
                marked = await anyio.to_thread.run_sync(self._existing, marked)
            if not marked:
                return
            async with self._lock:
                await self._repair(marked)

    async def catch_up(self) -> None:
        """Write the lines of all entries that the mirror lacks now. It does not wait for entries that come meanwhile.

        Raises StoreUnavailable: the log cannot be read, or the progress not noted; OSError: a file cannot be written.
        """
        if not self._checked:
            await self.repair_all()
        while True:
            async with self._lock:
                batch = await self._store.read(_next_batch)
                if not batch.lines:
                    return
                damaged = await anyio.to_thread.run_sync(self._find_wrong_lengths, batch.sizes)
                if damaged:
                    # Then read again: an unfinished note, e.g. of a cancelled call, may be the cause.
                    await self._repair(damaged)
                    continue
                sizes = await anyio.to_thread.run_sync(self._append, batch.lines)
                note = partial(note_mirrored, after=batch.after, upto=batch.upto, before=batch.sizes, sizes=sizes)
                noted = await self._store.maintain(note)
                damaged = await anyio.to_thread.run_sync(self._find_wrong_lengths, sizes)
                if noted:
                    await self._repair(damaged)
                else:
                    await self._repair(sizes)
                if noted and batch.is_last:
                    return

    async def _repair(self, files: Iterable[str]) -> None:
        for file in files:
            noted = False
            await anyio.to_thread.run_sync(self._store.check_location)
            while not noted:  # False if the log or the progress has changed meanwhile
                repaired = await self._store.read(partial(_repaired, folder=self.folder, file=file))
                noted = await self._store.maintain(partial(note_repaired, file=file, repaired=repaired))

    def _existing(self, files: Iterable[str]) -> list[str]:
        return [file for file in files if (self.folder / file).exists()]

    def _make_folders(self) -> None:
        self._store.check_location()
        for folder in (self.folder, self.folder / "ava", self.folder / "subagents"):
            folder.mkdir(mode=0o700, exist_ok=True)

    def _find_wrong_lengths(self, sizes: Mapping[str, int]) -> list[str]:
        return [file for file, size in sizes.items() if file_size(self.folder / file) != size]

    def _find_damaged(self, view: View) -> list[str]:
        """Return the files with a wrong length, and the files written last whose last line is wrong.

        Only those written last are read: a wrong line is left only by a crash just after it was written, and a year's
        log has a hundred thousand files.
        """
        sizes = view.mirrored()
        states = {file: size_and_time(f"{self.folder}/{file}") for file in sizes}
        newest_s = max((written_s for _size, written_s in states.values()), default=0.0)
        damaged: list[str] = []
        for file, (size, written_s) in states.items():
            is_damaged = size != sizes[file]
            if not is_damaged and size > 0 and written_s > newest_s - LATE_S:
                last_line = _last_line(self.folder / file, torn=True)
                is_damaged = not _is_line_of(view, file, last_line)
            if is_damaged:
                damaged.append(file)
        return damaged

    def _append(self, lines: Mapping[str, Sequence[bytes]]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        self._store.check_location()  # another log may have its files here
        for file, new in lines.items():
            with _open(self.folder / file) as out:
                out.seek(0, os.SEEK_END)
                out.write(b"".join(new))
                sizes[file] = out.tell()
        return sizes


def file_of(agent_id: str, ts_us: int) -> str:
    """Return the mirror file, relative to `logs/`, for an event of an agent at a time (microseconds UTC)."""
    if _SUBAGENT.fullmatch(agent_id):
        return f"subagents/{agent_id}.jsonl"
    return f"ava/{day_of(ts_us)}.jsonl"


def repair_file(view: View, *, folder: Path, file: str) -> int:
    """Make a file match the log, and return its length in bytes.

    A file with entries that the log lacks is renamed (`_quarantine`), and a new one is written.
    """
    path = folder / file
    for each in (folder, path.parent):
        each.mkdir(mode=0o700, exist_ok=True)
    upto = view.progress("mirror")
    with _open(path) as out:
        good_bytes = 0
        matches_so_far = True
        for row in _rows_of(view, file, upto):
            line = mirror_line(row)
            if matches_so_far and out.read(len(line)) != line:
                if _has_foreign_entry(view, out, good_bytes):
                    break
                matches_so_far = False
                out.seek(good_bytes)
                out.truncate()
            if not matches_so_far:
                out.write(line)
            good_bytes += len(line)
        else:
            if not _has_foreign_entry(view, out, good_bytes):
                out.truncate(good_bytes)
                return good_bytes
    _quarantine(path)
    return repair_file(view, folder=folder, file=file)


def _quarantine(path: Path) -> None:
    """Rename a file to the first free `NAME.MARK-NUMBER`, and log a warning."""
    number = 1
    target = path.with_name(f"{path.stem}.{QUARANTINE_MARK}-{number}{path.suffix}")
    while target.exists():
        number += 1
        target = path.with_name(f"{path.stem}.{QUARANTINE_MARK}-{number}{path.suffix}")
    path.rename(target)
    log.warning(
        "%s has entries that this log lacks (the log was removed or restored from an older copy): it is kept as %s",
        path.name,
        target.name,
    )


def _repaired(view: View, *, folder: Path, file: str) -> Repaired:
    return Repaired(repair_file(view, folder=folder, file=file), view.progress("mirror"), view.last_erasure())


def _rows_of(view: View, file: str, upto: int) -> Iterator[tuple[Any, ...]]:
    """Yield the entries, up to `upto`, that belong in a file: those of a subagent, or of a day."""
    name = Path(file).stem
    if file.startswith("subagents/"):
        yield from view.rows("agent_id = ? AND seq <= ?", name, upto)
        return
    day_start_us = (date.fromisoformat(name) - EPOCH.date()).days * DAY_US
    day_end_us = day_start_us + DAY_US
    first, last = view.seq_bounds(day_start_us, day_end_us)
    # The plus stops SQLite from reading the day by time and sorting all its contents.
    where = "seq >= ? AND seq <= ? AND +ts_us >= ? AND +ts_us < ?"
    for row in view.rows(where, first, min(last, upto), day_start_us, day_end_us):
        if file_of(row[_AGENT], row[_TS]) == file:
            yield row


@dataclass(frozen=True)
class _Batch:
    """What is written next: the lines of the entries in `(after, upto]` by file, and the files' sizes before."""

    after: int
    upto: int
    lines: Mapping[str, Sequence[bytes]]
    sizes: Mapping[str, int]
    is_last: bool


def _next_batch(view: View) -> _Batch:
    after = upto = view.progress("mirror")
    lines: dict[str, list[bytes]] = {}
    for row in limit_content(view.rows("seq > ?", after, limit=SLICE), SLICE_CHARS):
        lines.setdefault(file_of(row[_AGENT], row[_TS]), []).append(mirror_line(row))
        upto = int(row[0])
    sizes = {file: view.mirrored_size(file) for file in lines}
    return _Batch(after, upto, lines, sizes, is_last=upto == view.head())


def size_and_time(path: str | Path) -> tuple[int, float]:
    """Return a file's length in bytes and when it was last written; zeros if it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a third of the time, for each run of the log
    except OSError:
        return 0, 0.0
    return status.st_size, status.st_mtime


def _open(path: Path) -> IO[bytes]:
    """Open or create a mirror file for this user only; never through a link."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o600), "r+b")


# -- differences from the log -----------------------------------------------------------------------------------------


def mirror_faults(view: View | None, folder: Path | None) -> list[Fault]:
    """Return a fault for each file whose last entry the log has lost: files are written after the log."""
    faults: list[Fault] = []
    for path in _files(folder):
        seq = _foreign_entry(view, _last_line(path))
        if seq is not None:
            text = (
                f"{_name(path)} has entry {seq}, which the log lacks: the log was removed, cut, or restored from a copy"
            )
            faults.append(Fault("mirror", seq, text))
    return faults[:MAX_FAULTS]


def mirror_differences(view: View, folder: Path | None) -> list[Fault]:
    """Return a fault for each file with a line that differs from the log, or that ends too early and stays so."""
    faults: list[Fault] = []
    for path in _files(folder):
        seq = _first_difference(view, path)
        if seq is not None:
            time.sleep(RECHECK_S)  # a server may be repairing it right now
            seq = _first_difference(view, path)
        if seq is not None:
            text = f"{_name(path)} differs from the log at entry {seq}; remove it: the next server to start rewrites it"
            faults.append(Fault("mirror", seq, text))
        if len(faults) == MAX_FAULTS:
            break
    return faults


def _files(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    return [path for path in sorted(folder.glob("*/*.jsonl")) if f".{QUARANTINE_MARK}-" not in path.name]


def _name(path: Path) -> str:
    return "/".join(path.parts[-3:])


def _first_difference(view: View, path: Path) -> int | None:
    file = "/".join(path.parts[-2:])
    seq = 0
    with path.open("rb") as lines:
        if view.mirrored_size(file) < 0:
            return None
        for row in _rows_of(view, file, view.head()):
            seq = int(row[0])
            line = mirror_line(row)
            written = lines.read(len(line))
            if written != line:
                ends_early = len(written) < len(line) and line.startswith(written)
                return None if ends_early and not _counts_as_whole(view, path, seq) else seq
        for line in lines:  # entries that are newer than the rows above, or foreign
            if line.endswith(b"\n") and not _is_line_of(view, file, line, after=seq):
                return seq
    return None


def _counts_as_whole(view: View, path: Path, seq: int) -> bool:
    """Tell whether a file without an entry is taken for whole, so that nobody will write the rest of it."""
    file = "/".join(path.parts[-2:])
    return seq <= view.progress("mirror") and file_size(path) == view.mirrored_size(file)


def _is_line_of(view: View, file: str, line: bytes, *, after: int = 0) -> bool:
    """Tell whether a line matches the log, is in the right file, and is newer than the entry `after`."""
    match = _LINE_END.search(line)
    if match is None:
        return False
    row = next(view.rows("seq = ? AND seq > ?", int(match[1]), after), None)
    if row is None or file_of(row[_AGENT], row[_TS]) != file:
        return False
    return mirror_line(row) == line


def _has_foreign_entry(view: View, file: IO[bytes], start: int) -> bool:
    """Tell whether a file has, from a position on, a whole entry that the log lacks, and that was not erased."""
    file.seek(start)
    return any(_foreign_entry(view, line) is not None for line in file)


def _foreign_entry(view: View | None, line: bytes) -> int | None:
    """Return the `seq` of a line's entry if the log lacks it; None if the log has it, or the line is not an entry."""
    match = _LINE_END.search(line)
    if match is None:
        return None
    seq, digest = int(match[1]), bytes.fromhex(match[2].decode())
    if view is not None:
        stored = next(view.select("SELECT hash FROM events WHERE seq = ?", seq), None)
        if stored is not None and stored[0] == digest:
            return None
    return seq if line_fault(line) is None else None


def _last_line(path: Path, *, torn: bool = False) -> bytes:
    """Return the last whole line of a file; with `torn`, its last line even if it is incomplete."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        length = _CHUNK
        while True:
            file.seek(max(0, size - length))
            lines = file.read().splitlines(keepends=True)
            if size > length:
                lines = lines[1:]  # the beginning of the first one was not read
            for line in reversed(lines):
                if torn or line.endswith(b"\n"):
                    return line
            if length >= size:
                return b""
            length *= 16


def remove_old_quarantined(folder: Path, before_us: int) -> None:
    """Remove quarantined files that were last written before a time (microseconds UTC)."""
    for path in folder.glob(f"*/*.{QUARANTINE_MARK}-*.jsonl"):
        if path.lstat().st_mtime * US_PER_S < before_us:
            path.unlink(missing_ok=True)


def remove_quarantined_runs(folder: Path, runs: Iterable[str]) -> None:
    for run_id in runs:
        for path in (folder / "subagents").glob(f"{run_id}.{QUARANTINE_MARK}-*.jsonl"):
            path.unlink(missing_ok=True)
