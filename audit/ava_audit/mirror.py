"""The JSONL mirror: a file a UTC day for agent `ava`, a file a run for its subagent, in order of `seq`.

The log knows how long each file is when it is whole. A file of another length (a crash between writing and
noting, a torn line, a file that was cut or removed) is healed: compared with what the log says line by line,
cut at the first difference, and completed. So is a file that has lines whose content was erased: the log has marked
it in the transaction that erased. A file with entries that the log does not have is set aside. Only the keeper writes
here.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.to_thread

from ava_audit.entries import HEADER, line_fault, mirror_line
from ava_audit.faults import Fault
from ava_audit.projections import note_healed, note_mirrored
from ava_audit.store.store import Store
from ava_audit.units import EPOCH, US_PER_S, day_of
from ava_audit.view import View

log = logging.getLogger("ava.keeper")

MARK = "set-aside"
MAX_FILES = 20
_CHUNK = 65_536
_NAMED = re.compile(rb'\},"seq":(\d{1,18}),[^{}]*"hash":"([0-9a-f]{64})"\}\s*\Z')


def has_foreign_entry(view: View, file: IO[bytes], start: int) -> bool:
    """Tell whether a file has, from a place on, an entry that the log does not have.

    What was cut or changed is no entry, and healed; what was only erased since has the hash that it had.
    """
    file.seek(start)
    return any(_lost_entry(view, line) is not None for line in file)


def mirror_faults(view: View | None, folder: Path | None) -> list[Fault]:
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


def quarantine(path: Path) -> Path:
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


def remove_old_quarantined(folder: Path, before_us: int) -> None:
    """Remove what was set aside and was last written before a time (microseconds UTC)."""
    for path in folder.glob(f"*/*.{MARK}-*.jsonl"):
        if path.lstat().st_mtime * US_PER_S < before_us:
            path.unlink(missing_ok=True)


def remove_quarantined_runs(folder: Path, runs: Iterable[str]) -> None:
    """Remove what was set aside of runs that are erased."""
    for run_id in runs:
        for path in (folder / "subagents").glob(f"{run_id}.{MARK}-*.jsonl"):
            path.unlink(missing_ok=True)


SLICE = 500
SLICE_CHARS = 8_000_000
_TS, _AGENT, _CONTENT = HEADER.index("ts_us"), HEADER.index("agent_id"), len(HEADER)
_SUBAGENT = re.compile(r"S-[0-9A-Za-z]{1,64}")
_DAY_US = 86_400 * US_PER_S


class Mirror:
    """The files below one `logs/` folder, as the process that keeps them sees them.

    Args:
        store: The log that they mirror.
        folder: `$AVA_DATA_ROOT/logs`.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self.folder = folder
        self._sizes: dict[str, int] = {}
        self._taken = False
        self._turn = anyio.Lock()

    async def take_over(self) -> None:
        """Heal every file that is not as long as the log says; the first thing that a new keeper does."""
        async with self._turn:
            await anyio.to_thread.run_sync(self._make_folders)
            self._sizes = await self._store.read(View.mirrored)
            wrong = await anyio.to_thread.run_sync(self._wrong, list(self._sizes))
            await self._heal(wrong)
            self._taken = True

    async def forget(self, *, make: bool) -> None:
        """Heal every file that still has what was erased from the log.

        Args:
            make: Write those that are missing too; False where the mirror is off, and only old files are left.

        Raises:
            StoreUnavailable: The log cannot be read or its progress not noted.
            OSError: A file cannot be written.
        """
        while True:
            sizes = await self._store.read(View.mirrored)
            marked = [file for file, size in sizes.items() if size < 0]
            if not make:
                marked = await anyio.to_thread.run_sync(self._existing, marked)
            if not marked:
                return
            async with self._turn:
                await self._heal(marked)

    async def catch_up(self) -> None:
        """Write the lines of all entries that the mirror does not have yet, having taken it over.

        Raises:
            StoreUnavailable: The log cannot be read or its progress not noted.
            OSError: A file cannot be written.
        """
        if not self._taken:
            await self.take_over()
        while True:
            async with self._turn:
                rows = await self._store.read(_next_slice)
                if not rows:
                    return
                lines = _by_file(rows)
                wrong = await anyio.to_thread.run_sync(self._wrong, list(lines))
                if wrong:
                    # Read again: what made it wrong may be a note that was on its way, as when this was cancelled.
                    await self._heal(wrong)
                    continue
                sizes = await anyio.to_thread.run_sync(self._append, lines)
                await self._store.keep_house(partial(note_mirrored, upto=int(rows[-1][0]), sizes=sizes))
                self._sizes.update(sizes)

    async def _heal(self, files: Iterable[str]) -> None:
        for file in files:
            size, erasure = await self._store.read(partial(_healed, folder=self.folder, file=file))
            # Refused, the file stays marked or as it was noted: the next to look at it heals it once more.
            await self._store.keep_house(partial(note_healed, file=file, size=size, erasure=erasure))
            self._sizes[file] = size

    def _existing(self, files: Iterable[str]) -> list[str]:
        return [file for file in files if (self.folder / file).exists()]

    def _make_folders(self) -> None:
        for folder in (self.folder, self.folder / "ava", self.folder / "subagents"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _wrong(self, files: Iterable[str]) -> list[str]:
        return [file for file in files if _size(self.folder / file) != self._sizes.get(file, 0)]

    def _append(self, lines: Mapping[str, Sequence[bytes]]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for file, new in lines.items():
            with _open(self.folder / file) as out:
                out.seek(0, os.SEEK_END)
                out.write(b"".join(new))
                sizes[file] = out.tell()
        return sizes


def file_of(agent_id: str, ts_us: int) -> str:
    """Return the mirror file, relative to `logs/`, of an event of an agent at a time (microseconds UTC)."""
    if _SUBAGENT.fullmatch(agent_id):
        return f"subagents/{agent_id}.jsonl"
    return f"ava/{day_of(ts_us)}.jsonl"


def _healed(view: View, *, folder: Path, file: str) -> tuple[int, int]:
    return heal(view, folder=folder, file=file), view.last_erasure()


def heal(view: View, *, folder: Path, file: str) -> int:
    """Make a file what the log says that it is, and return its length; what is right at its beginning stays.

    A file that has, after that, entries that the log does not have is set aside, and made anew.
    """
    path = folder / file
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    upto = view.progress("mirror")
    with _open(path) as out:
        good = 0
        same = True
        for row in _rows_of(view, file, upto):
            line = mirror_line(row)
            if same and out.read(len(line)) != line:
                if has_foreign_entry(view, out, good):
                    break
                same = False
                out.seek(good)
                out.truncate()
            if not same:
                out.write(line)
            good += len(line)
        else:
            if not has_foreign_entry(view, out, good):
                out.truncate(good)
                return good
    quarantine(path)
    return heal(view, folder=folder, file=file)


def _rows_of(view: View, file: str, upto: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a file up to a `seq`."""
    name = Path(file).stem
    if file.startswith("subagents/"):
        yield from view.rows("agent_id = ? AND seq <= ?", name, upto)
        return
    day = (date.fromisoformat(name) - EPOCH.date()).days * _DAY_US
    first, last = view.seq_bounds(day, day + _DAY_US)
    # The plus keeps SQLite from reading the day by time and sorting all its contents.
    for row in view.rows(
        "seq >= ? AND seq <= ? AND +ts_us >= ? AND +ts_us < ?", first, min(last, upto), day, day + _DAY_US
    ):
        if file_of(row[_AGENT], row[_TS]) == file:
            yield row


def _next_slice(view: View) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in view.rows("seq > ?", view.progress("mirror"), limit=SLICE):
        rows.append(row)
        size += len(row[_CONTENT] or "")
        if size > SLICE_CHARS:  # five hundred of the largest entries would be a gigabyte
            break
    return rows


def _by_file(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[bytes]]:
    lines: dict[str, list[bytes]] = {}
    for row in rows:
        lines.setdefault(file_of(row[_AGENT], row[_TS]), []).append(mirror_line(row))
    return lines


def _size(path: Path) -> int:
    """Return a file's length, 0 when there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _open(path: Path) -> IO[bytes]:
    """Open a file of the mirror for reading and writing, created for this user only; never through a link."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o600), "r+b")
