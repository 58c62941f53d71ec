"""What the runs of one process are doing, in a small file beside its lock, for the other processes on the data root.

The file is private, and is rewritten in place without being synced: on a full disk it can still be rewritten, and no
commit is needed. A checksum tells a reader whether a writer was at work meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from ava_audit.store.backend import SHOWN_S, Activities

log = logging.getLogger("ava.store")

SUFFIX = ".doing"
KNOWN_S = 0.1
"""How long a read is cached: a list of runs asks once for each run."""
_BLOCK = 4096
_MOST_BYTES = 1 << 20
_ATTEMPTS = 3
_CHECKSUM = 8
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class ActivityFile:
    """The file of this process; made when there is something to show."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: int | None = None
        self._size = 0
        self._removed = False

    def write(self, activities: Mapping[str, str]) -> None:
        """Replace the file's content; if it cannot be written, show nothing."""
        body = json.dumps(dict(activities)).encode()
        with self._lock:
            if self._removed or (self._file is None and not activities):
                return
            # It never shrinks: what is shown no longer is overwritten, and blocks that a disk has given are kept.
            self._size = max(self._size, -(-(len(body) + _CHECKSUM) // _BLOCK) * _BLOCK)
            body = body.ljust(self._size - _CHECKSUM)
            try:
                if self._file is None:
                    self._file = os.open(self._path, _CREATE, 0o600)
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, b"%08x" % zlib.crc32(body) + body)
            except OSError as error:  # a part of it does not have its checksum
                log.debug("what runs are doing is not shown: %s", error)

    def remove(self) -> None:
        """Remove the file; nothing is written any more. A second call does nothing."""
        with self._lock:
            self._removed = True
            if self._file is None:
                return
            os.close(self._file)
            self._file = None
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                log.debug("%s stays: %s", self._path.name, error)


def read_activities(folder: Path) -> Activities:
    try:
        return {(path.stem, run): text for path in folder.glob(f"*{SUFFIX}") for run, text in _read(path)}
    except OSError:
        return {}


def _read(path: Path) -> Iterator[tuple[str, str]]:
    for _ in range(_ATTEMPTS):
        if (data := _bytes_of(path)) is None:
            return
        if data[:_CHECKSUM] == b"%08x" % zlib.crc32(data[_CHECKSUM:]):
            yield from activities_in(data[_CHECKSUM:])
            return


def _bytes_of(path: Path) -> bytes | None:
    """Return a file's bytes; None if it cannot be read, is too long, or was not written lately."""
    try:
        file = os.open(path, _READ)
    except OSError:
        return None
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode) or abs(time.time() - state.st_mtime) > SHOWN_S:
            return None
        data = os.read(file, _MOST_BYTES + 1)
        return data if len(data) <= _MOST_BYTES else None
    except OSError:
        return None
    finally:
        os.close(file)


def activities_in(shown: bytes | str) -> Iterator[tuple[str, str]]:
    """Yield the runs that a process shows, each with what it does; nothing of what is not of this form."""
    try:
        found: object = json.loads(shown)
    except (ValueError, RecursionError):
        return
    for run, text in cast("dict[str, object]", found).items() if isinstance(found, dict) else ():
        if isinstance(text, str):
            yield run, text
