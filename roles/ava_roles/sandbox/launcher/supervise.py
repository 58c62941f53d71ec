"""The supervisor: starts one command, watches it, and leaves nothing of it, whoever ends first.

It hears of the server by a pipe alone, whose other end only the server holds: when that is closed, by whatever ended
the server, the command ends. It says in one word how it went.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from ava_roles.sandbox.launcher import confine, disk
from ava_roles.sandbox.launcher.command import become_command
from ava_roles.sandbox.launcher.order import unpacked

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import FrameType

    from ava_roles.sandbox.launcher.order import Order


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


LOOK_S = 0.1
MEASURE_S = 0.25
SHARE = 10
"""Measuring the disk takes at most one part of so many of the time."""
ROOM = 1 << 30
"""So much is left on a disk, or half of what was: what no measure sees (a file that is mapped, or under way from one
process to another, and has no name) goes with the command, but a full disk stops everybody meanwhile."""
_SIGNALLED = 128


def main() -> None:
    """Do what the order says; its descriptor, the server's and that of the answer are the arguments."""
    order_at, server_at, answer_at = map(int, sys.argv[-3:])
    for descriptor in (order_at, server_at, answer_at):
        os.set_inheritable(descriptor, False)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # only the server decides
    with open(order_at, "rb") as file:
        order = unpacked(file.read())
    confine.adopt_orphans()
    confine.hide()
    os.write(answer_at, _Supervisor(order, server_at).supervise().encode())


class _Supervisor:
    """One command.

    Args:
        order: What to run.
        server_at: The descriptor that ends when the server is gone or wants no more.
    """

    def __init__(self, order: Order, server_at: int) -> None:
        self._order = order
        self._server_at = server_at
        self._writable = [source for source, _target, writable in order.binds if writable]
        self._wake, self._woken = os.pipe()
        self._main = 0
        self._status: int | None = None
        self._before = 0
        self._room = 0
        self._measure_at = 0.0

    def supervise(self) -> str:
        """Run it to its end, and say how that came about."""
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _woken)
        try:
            now = disk.used(self._writable, self._order.uid)
        except disk.TooDeep:
            return "disk"
        except OSError as error:  # a container whose user namespace has no number for the user of commands
            return f"failed its folders cannot be given to the user of commands, or measured: {error.strerror}"
        self._before = now if self._order.disk_from is None else self._order.disk_from
        self._room = min(ROOM, disk.room(self._writable) // 2)
        told, failed_at = os.pipe()
        status, status_at = os.pipe()
        self._main = os.fork()
        if self._main == 0:
            self._child(failed_at, status_at)
        for descriptor in (failed_at, status_at):
            os.close(descriptor)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # the command's, and its alone: the server sees when it closes them
            os.dup2(nowhere, stream)
        why = self._watch()
        swept = end_all(self._main)
        self._status = swept if self._status is None else self._status
        if failure := _all(told):
            return f"failed {failure}"
        return why or self._ended(_all(status))

    def _child(self, failed_at: int, status_at: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            become_command(self._order, status_at)
        except BaseException as error:
            what = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else repr(error)
            os.write(failed_at, what.encode())
        finally:
            os._exit(125)

    def _watch(self) -> str:
        """Wait for the end; returns why it must be ended, or nothing when the command has ended by itself."""
        began = time.monotonic()
        end, look_at = began + self._order.timeout_s, began
        waiting = select.poll()
        waiting.register(self._server_at, select.POLLIN | select.POLLHUP)
        waiting.register(self._wake, select.POLLIN)
        while True:
            now = time.monotonic()
            if now >= end:
                return "timeout"
            if now >= look_at:
                if why := self._too_much():
                    return why
                look_at = time.monotonic() + LOOK_S
            events = waiting.poll(max(0.0, min(end, look_at) - time.monotonic()) * 1000)
            if any(descriptor == self._server_at for descriptor, _event in events):
                return "cancelled"
            if events:
                _drain(self._wake)
                self._status, _left = reap(self._main)
                if self._status is not None:
                    return ""

    def _too_much(self) -> str:
        limits = self._order.limits
        pids = descendants(os.getpid())
        if take_more_than(pids, limits.memory):
            return "memory"
        if disk.room(self._writable) < self._room:
            return "disk"
        began = time.monotonic()
        if began < self._measure_at:
            return ""
        try:
            grown = disk.used(self._writable) - self._before
        except disk.TooDeep:
            return "disk"
        took = time.monotonic() - began
        self._measure_at = began + max(MEASURE_S, took * SHARE)
        return "disk" if grown + disk.unlinked(pids) > limits.disk else ""

    def _ended(self, said: str) -> str:
        """Say how the command ended by itself; bubblewrap's status is of a sandbox that may not have come about."""
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        if self._order.kind == "bubblewrap" and '"exit-code"' not in said:
            return f"failed bubblewrap ended with {code} before the command began"
        if code < 0:
            return f"signal {_SIGNALLED - code}"
        return f"signal {code}" if _SIGNALLED < code <= _SIGNALLED + signal.NSIG else f"exited {code}"


def _woken(_number: int, _frame: FrameType | None) -> None:
    """Be there, so that the pipe is written to."""


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


def _all(descriptor: int) -> str:
    """Return what was written to a pipe whose writers are gone."""
    os.set_blocking(descriptor, False)
    parts: list[bytes] = []
    try:
        while part := os.read(descriptor, 4096):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts).decode("utf-8", "replace")
