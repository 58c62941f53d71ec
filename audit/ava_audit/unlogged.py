"""Model calls that a process has paid for and its log does not have, because the log on the server lost entries.

The process that notices this writes a file of its own into the folder `unlogged` of its data root: why, and then a line
for each such call. It holds a lock beside the file for as long as it lives. The file is no part of the log: it is for
the person who compares the caps with the provider's bill.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ava_audit.model_calls import IN_FLIGHT, ModelCall
from ava_audit.store.locks import HeldLock, is_held, try_hold
from ava_audit.units import now_us

FOLDER = "unlogged"
_LINE_BYTES = 10_000
"""A longer line is none of a call."""


class UnloggedCalls:
    """The file of this process; it is made when there is a reason. Every method blocks for a moment."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER
        self._using = threading.Lock()
        self._file: IO[bytes] | None = None
        self._path = Path()
        self._lock: HeldLock | None = None
        self._has_calls = False

    def begin(self, why: str) -> None:
        """Make the file, and say why. A second call does nothing. Raises OSError."""
        with self._using:
            if self._file is not None:
                return
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._path = self._folder / f"{now_us()}-{os.getpid()}.jsonl"
            self._lock = try_hold(self._path.with_suffix(".lock"))
            self._file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            self._write([{"at_us": now_us(), "host": socket.gethostname(), "pid": os.getpid(), "why": why}])

    def add(self, calls: Iterable[ModelCall]) -> None:
        """Write calls down, so that they survive this process. Raises OSError; nothing happens before `begin`."""
        lines = [call._asdict() for call in calls]
        with self._using:
            if self._file is not None and lines:
                self._has_calls = True
                self._write(lines)

    def close(self) -> None:
        """End this process's part; a file without calls is removed, because it only said that this process refuses."""
        with self._using:
            if self._file is not None:
                self._file.close()
                self._file = None
                if not self._has_calls:
                    self._path.unlink(missing_ok=True)
            if self._lock is not None:
                self._lock.remove()
                self._lock = None

    def _write(self, lines: Iterable[dict[str, Any]]) -> None:
        assert self._file is not None
        self._file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        self._file.flush()
        os.fsync(self._file.fileno())


@dataclass(frozen=True)
class UnloggedFile:
    """What the file of a process says.

    Attributes:
        lives: The process still runs, and refuses everything.
        at_us: When it noticed.
        calls: What is known last of each call.
    """

    path: Path
    lives: bool
    at_us: int
    host: str
    pid: int
    why: str
    calls: tuple[ModelCall, ...]

    @property
    def spent_micros(self) -> int:
        return sum(call.micros for call in self.calls if call.settlement != IN_FLIGHT)

    @property
    def held_micros(self) -> int:
        return sum(call.micros for call in self.calls if call.settlement == IN_FLIGHT)


def unlogged_files(root: Path) -> list[UnloggedFile]:
    """Return the files of all processes of a data root, the oldest first. Blocking; what cannot be read is left out."""
    files: list[UnloggedFile] = []
    for path in sorted((root / FOLDER).glob("*.jsonl")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            with path.open("rb") as lines:
                head = json.loads(lines.readline(_LINE_BYTES))
                calls = {call.key: call for call in _calls_in(lines)}  # the settlement comes after the reservation
            lives = is_held(path.with_suffix(".lock"))
            about = int(head["at_us"]), str(head["host"]), int(head["pid"]), str(head["why"])
            files.append(UnloggedFile(path, lives, *about, tuple(calls.values())))
    return files


def _calls_in(lines: IO[bytes]) -> Iterator[ModelCall]:
    while line := lines.readline(_LINE_BYTES):
        with suppress(ValueError, TypeError):  # a line that was cut when the machine stopped
            yield ModelCall(**json.loads(line))
