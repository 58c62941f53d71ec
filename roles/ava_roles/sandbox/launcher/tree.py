"""The processes below this one: who they are, what they take, and their end."""

from __future__ import annotations

import os
import signal
import time

_PAGE = os.sysconf("SC_PAGE_SIZE")
GIVE_UP_S = 10.0
"""A process that root owns cannot be ended by others; only an unconfined command can have one."""


def children(pid: int) -> list[int]:
    """Return the children of a process, of all its threads."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, read(f"/proc/{pid}/task/{task}/children").split())
    except OSError:  # it went away
        pass
    return found


def descendants(pid: int) -> list[int]:
    """Return the processes below a process."""
    found: list[int] = []
    open_ends = [pid]
    while open_ends:
        below = children(open_ends.pop())
        found += below
        open_ends += below
    return found


def read(path: str) -> str:
    """Return a small file of the kernel's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while part := os.read(descriptor, 65_536):
            parts.append(part)
        return b"".join(parts).decode("ascii", "replace")
    finally:
        os.close(descriptor)


def take_more_than(pids: list[int], most: int) -> bool:
    """Tell whether processes have more resident memory than so many bytes; shared pages count once."""
    if sum(map(_resident, pids)) <= most:
        return False
    return sum(map(_proportional, pids)) > most


def _resident(pid: int) -> int:
    try:
        return int(read(f"/proc/{pid}/statm").split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    """Return a process's share of memory; one that hides itself is charged with all that it shares."""
    try:
        for line in read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _resident(pid)


def reap(main: int) -> tuple[int | None, bool]:
    """Fetch all children that have ended; returns the main one's status if it is among them, and if any is left."""
    status = None
    try:
        while True:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return status, True
            if pid == main:
                status = ended
    except ChildProcessError:
        return status, False


def end_all(main: int = 0) -> int | None:
    """End every descendant and wait until none is left; returns the status of the main one if it is fetched here.

    They are stopped before they are killed, so that none forks faster than it is found; orphans become our children.
    """
    status = None
    until = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in descendants(os.getpid()):
                try:
                    os.kill(pid, number)
                except OSError:  # it went away, or it is not ours to end
                    pass
        found, left = reap(main)
        status = found if status is None else status
        if not left:
            break
        time.sleep(0.002)
    return status
