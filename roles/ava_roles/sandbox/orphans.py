"""What is left of a command whose supervisor was killed: it comes to this process, which ends it.

A supervisor ends all that it started. When it is killed itself, the kernel gives its children to the next process above
that adopts orphans. That is this one while commands run that no namespace of their own ends.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from ava_roles.sandbox import linux
from ava_roles.sandbox.launcher import tree
from ava_roles.sandbox.launcher.order import Limits

_GIVE_UP_S = 10.0
_lock = threading.Lock()
_commands = 0


@contextmanager
def adopted() -> Generator[None]:
    """Adopt orphans meanwhile."""
    global _commands
    with _lock:
        _commands += 1
        if _commands == 1:
            linux.adopt_orphans(True)
    try:
        yield
    finally:
        with _lock:
            _commands -= 1
            if _commands == 0:
                linux.adopt_orphans(False)


def end_orphans(limits: Limits, supervisor: int) -> None:
    """End the children of this process that a supervisor started, and wait for them. Blocks.

    They are told apart by a limit that no program of a command can raise again: nothing else that this process starts
    is held to files that are so small.

    Args:
        limits: What the command was held to.
        supervisor: Whose they were; its end has begun, and until it is over they are not ours.
    """
    until = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < until:
        over = not _goes_on(supervisor)
        left = [pid for pid in tree.children(os.getpid()) if _held(pid, limits.file)]
        if over and not left:
            return
        for number in (linux.STOP, linux.KILL):
            for pid in (*left, *(below for one in left for below in tree.descendants(one))):
                with suppress(OSError):
                    os.kill(pid, number)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, getattr(os, "WNOHANG", 0))
        time.sleep(0.002)


def _held(pid: int, file_size: int) -> bool:
    """Tell whether a process is held to files of this size or smaller ones."""
    try:
        for line in tree.read(f"/proc/{pid}/limits").splitlines():
            if line.startswith("Max file size"):
                hard = line.split()[-2]
                return hard.isdecimal() and int(hard) <= file_size
    except OSError:  # it went away
        pass
    return False


def _goes_on(pid: int) -> bool:
    """Tell whether a process has not ended yet; one that has gave its children away, fetched or not."""
    try:
        return tree.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False
