"""Locks between processes: who lives, and whose turn it is to write.

An owner is an instance that holds an exclusive lock on its own file for as long as it lives; the operating system
lets go of it when the process dies, whatever killed it. A pid says nothing across containers.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import anyio
import anyio.to_thread
import portalocker

log = logging.getLogger("ava.locks")
_EXCLUSIVE = portalocker.LockFlags.EXCLUSIVE
_TRY = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
_TRY_EVERY_S = 0.005
"""How often Windows is asked: its own waiting asks once a second, and gives up after ten."""


class WriteLock:
    """The queue of writers on one data root. SQLite's own lock is not fair; this one nearly is."""

    def __init__(self, path: Path) -> None:
        self._file: IO[Any] = path.open("ab")

    @contextmanager
    def held(self) -> Generator[None]:
        """Wait for the turn (without limit: a dead holder lets go by dying) and hold it."""
        _wait_for(self._file)
        try:
            yield
        finally:
            portalocker.unlock(self._file)

    def close(self) -> None:
        """Close the lock's file."""
        self._file.close()


class Held:
    """A lock file that this process holds until `release` or its death."""

    def __init__(self, path: Path, file: IO[Any]) -> None:
        self.path = path
        self._file = file

    def release(self) -> None:
        """Let go of the lock; twice is harmless."""
        if not self._file.closed:
            portalocker.unlock(self._file)
            self._file.close()

    def remove(self) -> None:
        """Remove the lock's file and let go of it; nobody takes it in between, except where that cannot be had."""
        if sys.platform == "win32":  # there an open file cannot be removed
            self.release()
        try:
            self.path.unlink(missing_ok=True)
        finally:
            self.release()

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def try_hold(path: Path) -> Held | None:
    """Take the lock at `path` if nobody holds it, creating its file; None when somebody does."""
    file = path.open("ab")
    try:
        portalocker.lock(file, _TRY)
    except portalocker.LockException:
        file.close()
        return None
    if not _still_at(path, file):  # swept away between our open and our lock: this lock guards nothing
        file.close()
        return None
    return Held(path, file)


async def hold_when_free(path: Path, every_s: float) -> Held:
    """Take the lock at `path` as soon as nobody else holds it, looking every so many seconds."""
    while True:
        held: Held | None = None
        try:
            with anyio.CancelScope(shield=True):  # a lock that was taken is given to the caller
                held = await anyio.to_thread.run_sync(try_hold, path)
        except OSError as error:
            log.warning("%s cannot be had: %s", path.name, error)
        if held is not None:
            return held
        await anyio.sleep(every_s)


class Instances:
    """The live processes on a data root: one lock file each, in `instances/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def join(self) -> tuple[str, Held]:
        """Return a new instance id, with its lock held."""
        while True:
            name = secrets.token_hex(6)
            held = try_hold(self.folder / f"{name}.lock")
            if held is not None:
                return name, held

    def alive(self, name: str) -> bool:
        """Tell whether an instance lives: its lock file exists and somebody holds it."""
        path = self.folder / f"{name}.lock"
        try:
            if not path.exists():
                return False
            held = try_hold(path)
        except OSError:  # it cannot be asked (another user's file, too many open): who may live is not robbed
            return True
        if held is None:
            return True
        held.release()
        return False

    def sweep(self, keep: frozenset[str]) -> None:
        """Remove the lock files of dead instances that own nothing any more.

        Args:
            keep: Instances that still stand in a run's claim; their files stay.
        """
        for path in self.folder.glob("*.lock"):
            if path.stem in keep or path.is_symlink() or not path.is_file():  # opening a pipe would wait for ever
                continue
            try:
                held = try_hold(path)
                if held is not None:
                    held.remove()
            except OSError:  # not ours to sweep: another user's, a folder, whatever it is
                continue


def _wait_for(file: IO[Any]) -> None:
    if sys.platform != "win32":
        portalocker.lock(file, _EXCLUSIVE)
        return
    while True:
        try:
            portalocker.lock(file, _TRY)
            return
        except portalocker.AlreadyLocked:
            time.sleep(_TRY_EVERY_S)


def _still_at(path: Path, file: IO[Any]) -> bool:
    """Tell whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
