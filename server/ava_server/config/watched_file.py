"""What is made of a file, made anew when the file is another: a change counts without a new start."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from ava_server.core.errors import AvaError

T = TypeVar("T")


class Followed(Generic[T]):
    """What is made of a file, made anew when the file is another.

    Args:
        path: The file.
        read: Reads it, once, for everybody; raises AvaError where it cannot.
    """

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path = path
        self._make = read
        self._reading = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._made: T | None = None

    @property
    def is_another(self) -> bool:
        """Whether it looks otherwise than when it was read."""
        return look(self._path) != self._seen

    def current(self) -> T:
        """Return what it is now. Blocking.

        Raises:
            AvaError: It cannot be read, or holds what cannot be.
        """
        with self._reading:
            seen = look(self._path)
            if self._made is None or seen != self._seen:
                self._read(seen)
            assert self._made is not None
            return self._made

    def learn(self) -> None:
        """Read it where it has changed; one that cannot be read changes nothing. Blocking."""
        with self._reading:
            seen = look(self._path)
            if seen != self._seen:
                with contextlib.suppress(AvaError):  # told by `current`, to whoever needs what is in it
                    self._read(seen)

    def _read(self, seen: tuple[int, ...]) -> None:
        """Read it; `seen` is how it looked before, so that no change is missed."""
        self._made = None
        try:
            self._made = self._make()
        finally:
            self._seen = seen  # last: whoever finds it so has nothing to wait for


def look(path: Path) -> tuple[int, ...]:
    """Return what tells a file from another one in its place, and from itself under other permissions."""
    try:
        status = path.lstat()
    except OSError as failed:
        return (failed.errno or 0,)
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_uid,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
