"""The supervisor: it starts a command, watches it, and ends every process that the command leaves behind.

It watches the server through a pipe whose other end only the server holds: when the server closes it or dies, the
command ends. It reports in one line how the command ended. After a command that ended by itself and left nothing, it
takes another: starting an interpreter costs more than everything else here. It never runs two at the same time. A
supervisor can be killed too, by the kernel when memory runs out. Its parent, the guard, then ends everything below: a
process that does nothing else owns all of it, from the first instant. If the guard is killed, the supervisor ends its
command. So no killed process leaves another.
"""

from __future__ import annotations

import os
import select
import sys
import time
from _socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, SHUT_RD, socket, socketpair  # `socket` itself imports much more

from ava_roles.sandbox.launcher import kernel
from ava_roles.sandbox.launcher.child import exec_command
from ava_roles.sandbox.launcher.spec import BY_ITSELF, from_bytes

TYPE_CHECKING = False

if TYPE_CHECKING:
    import signal

    from ava_roles.sandbox.launcher.relay import Relay
    from ava_roles.sandbox.launcher.spec import LaunchSpec
else:
    import _signal as signal  # `signal` makes enums of its numbers; that takes a fifth of a supervisor's start


_PAGE = os.sysconf("SC_PAGE_SIZE")
GIVE_UP_S = 10.0
"""Processes of root cannot be ended by others; only an unconfined command can have any."""


def children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            pids += map(int, read_text(f"/proc/{pid}/task/{task}/children").split())
    except OSError:  # the process has ended
        pass
    return pids


def descendants(pid: int) -> list[int]:
    pids: list[int] = []
    pending = [pid]
    while pending:
        inner = children(pending.pop())
        pids += inner
        pending += inner
    return pids


def read_text(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read_all(descriptor)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> str:
    """Return what can be read until the end, or until a non-blocking descriptor has no more."""
    parts: list[bytes] = []
    try:
        while part := os.read(descriptor, 65_536):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts).decode("utf-8", "replace")


def _resident(pid: int) -> int:
    try:
        return int(read_text(f"/proc/{pid}/statm").split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    """Return a process's share of memory; a process that hides it is charged with all that it shares."""
    try:
        for line in read_text(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _resident(pid)


def _reap(main: int) -> tuple[int | None, bool]:
    """Reap all children that have ended; return the main child's status if it is one, and whether any child is left."""
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


def _end_all(main: int) -> int | None:
    """End every descendant and wait until none is left; return the main child's status if it is reaped here.

    Processes are stopped before they are killed, so that none forks faster than it is found. Orphans come to this one.
    """
    status = None
    until = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in descendants(os.getpid()):
                try:
                    os.kill(pid, number)
                except OSError:  # it has ended, or we may not end it
                    pass
        reaped_status, has_children = _reap(main)
        if status is None:
            status = reaped_status
        if not has_children:
            break
        time.sleep(0.002)
    return status


_LOOK_S = 0.1
_MEASURE_S = 0.25
_MEASURE_SHARE = 10
"""Measuring the disk takes at most one part in this many of the time."""
_FREE_DISK = 1 << 30
"""Bytes that stay free on a disk, or half of what was free at the start. Mapped files, and files without a name that
are being passed between processes, cannot be measured. They end with the command, but a full disk would stop everything
else first."""
_SIGNALLED = 128
_IDLE_S = 60.0
_COMMANDS = 200
"""A supervisor ends after this many commands, or after `_IDLE_S` without one."""
_DESCRIPTORS = 6


def main() -> None:
    """Become the guard, and start the supervisor. Arguments: the sockets of the server, and of arriving commands."""
    server, control = (socket(fileno=int(number)) for number in sys.argv[-2:])
    for each in (server, control):
        os.set_inheritable(each.fileno(), False)
    os.dup2(0, 2)  # errors of starting went to the first command's output
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # only the server decides when to end
    kernel.hide_process()
    _own_descendants()
    supervisor, guard = socketpair()  # each of the two sees by its end when the other has ended
    pid = os.fork()
    if pid:
        control.close()
        guard.close()
        waiting = select.poll()
        waiting.register(server, select.POLLIN)
        waiting.register(supervisor, select.POLLIN)
        waiting.poll()  # until the supervisor has ended or the server is gone
        _end_all(pid)
    else:
        server.close()
        supervisor.close()
        _own_descendants()  # a child does not inherit this
        _run_commands(control, guard.fileno())
    os._exit(0)  # clearing up an interpreter takes milliseconds, and there are two


def _own_descendants() -> None:
    kernel.adopt_orphans()
    kernel.continue_on_parent_death()  # a stopped process would not see that its parent is gone


def _run_commands(control: socket, guard_at: int) -> None:
    """Run the commands that the server gives, one after another, until one leaves something or there are too many."""
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # without a handler nothing is written to the pipe
    opened = _count_open()
    for number in range(1, _COMMANDS + 1):
        descriptors = _receive(control, guard_at)
        if not descriptors:
            break
        spec_at, server_at, report_at, *streams = descriptors
        with open(spec_at, "rb") as file:
            spec = from_bytes(file.read())
        report = _Supervisor(spec, (server_at, guard_at), streams).supervise()
        os.close(server_at)
        has_no_child = _reap(0) == (None, False)
        has_no_descriptor = _count_open() == opened + 1  # only `report_at` is still open
        is_clean = report.startswith(BY_ITSELF) and has_no_child and has_no_descriptor
        goes_on = is_clean and number < _COMMANDS
        if not goes_on:
            control.close()  # before the report: the server must not give another command
        os.write(report_at, report.encode())
        os.close(report_at)
        if not goes_on:
            break


def _receive(control: socket, guard_at: int) -> list[int]:
    """Wait for a command, and return its descriptors; none when the server or the guard is gone, or after a while."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    waiting.register(guard_at, select.POLLIN)
    ready = waiting.poll(_IDLE_S * 1000)
    if any(descriptor == guard_at for descriptor, _event in ready):
        return []
    if not ready:
        control.shutdown(SHUT_RD)  # from now on the server cannot give one, but it may have done so just before
    _data, ancillary, _flags, _address = control.recvmsg(1, CMSG_SPACE(4 * _DESCRIPTORS), MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for _level, _kind, data in ancillary:
        descriptors += memoryview(data).cast("i")
    return descriptors


def _count_open() -> int:
    return len(os.listdir("/proc/self/fd"))


class _Supervisor:
    """Supervises one command, with its stdin, stdout and stderr in `streams`, until one of `ends_at` is readable."""

    def __init__(self, spec: LaunchSpec, ends_at: tuple[int, ...], streams: list[int]) -> None:
        self._spec = spec
        self._ends_at = ends_at
        self._streams = streams
        self._writable = [source for source, _target, writable in spec.binds if writable]
        self._child_ended, self._wakeup = os.pipe()
        self._main = 0
        self._status: int | None = None
        self._before = 0
        self._least_free = 0
        self._measure_at = 0.0
        self._relay: Relay | None = None

    def supervise(self) -> str:
        os.set_blocking(self._wakeup, False)
        os.set_blocking(self._child_ended, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        try:
            return self._measure_disk() or self._supervise_child()
        finally:
            signal.set_wakeup_fd(-1)
            for descriptor in (self._wakeup, self._child_ended, *self._streams):
                os.close(descriptor)

    def _measure_disk(self) -> str:
        """Measure what the command's folders hold before it begins; return why it cannot be run, or nothing."""
        try:
            used = kernel.measure(self._writable, self._spec.uid)
        except kernel.TooDeep:
            return "disk"
        except OSError as error:  # in a container whose user namespace does not map the user of commands
            return f"failed its folders cannot be given to the user of commands, or measured: {error.strerror}"
        self._before = used if self._spec.disk_from is None else self._spec.disk_from
        self._least_free = min(_FREE_DISK, kernel.free(self._writable) // 2)
        return ""

    def _supervise_child(self) -> str:
        failure_read, failure_at = os.pipe()
        status_read, status_at = os.pipe()
        if self._spec.local is not None:
            from ava_roles.sandbox.launcher.relay import Relay  # few commands have one

            self._relay = Relay(self._spec.local, self._spec.uid)
        self._main = os.fork()
        if self._main == 0:
            self._run_child(failure_at, status_at)
        while self._streams:  # only the command holds its streams, so that the server sees when it closes them
            os.close(self._streams.pop())
        os.close(failure_at)
        os.close(status_at)
        if self._relay:
            self._relay.begin()
        why = self._watch()
        status = _end_all(self._main)
        fault = self._relay.end() if self._relay else ""
        if self._status is None:
            self._status = status
        for descriptor in (failure_read, status_read):  # processes that could not be ended may still hold the other end
            os.set_blocking(descriptor, False)
        failure, bubblewrap_status = _read_all(failure_read), _read_all(status_read)
        os.close(failure_read)
        os.close(status_read)
        if why == "failed":
            failure = failure or fault
        if failure:
            return f"failed {failure}"
        return why or self._report_exit(bubblewrap_status)

    def _run_child(self, failure_at: int, status_at: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            for number, stream in enumerate(self._streams):
                os.dup2(stream, number)
            relay_options = self._relay.options if self._relay else ()
            exec_command(self._spec, status_at, relay_options)
        except BaseException as error:
            failure = repr(error)
            if isinstance(error, OSError):
                failure = f"{error.filename}: {error.strerror}"
            os.write(failure_at, failure.encode())
        finally:
            os._exit(125)

    def _watch(self) -> str:
        """Wait until the command ends; return an empty text if it ended by itself, else why it must be ended.

        The reasons: "timeout", "cancelled", "failed" (the relay has a fault), or what `_exceeded_limit` returns.
        """
        next_check = time.monotonic()
        deadline = next_check + self._spec.timeout_s
        poll = select.poll()
        for descriptor in self._ends_at:
            poll.register(descriptor, select.POLLIN)
        poll.register(self._child_ended, select.POLLIN)
        if self._relay:
            poll.register(self._relay.faults, select.POLLIN)
        while True:
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= next_check:
                why = self._exceeded_limit()
                if why:
                    return why
                next_check = time.monotonic() + _LOOK_S
            timeout_s = max(0.0, min(deadline, next_check) - time.monotonic())
            events = poll.poll(timeout_s * 1000)
            if any(descriptor in self._ends_at for descriptor, _event in events):
                return "cancelled"
            if self._relay and any(descriptor == self._relay.faults for descriptor, _event in events):
                return "failed"
            if events:
                _read_all(self._child_ended)
                self._status, _left = _reap(self._main)
                if self._status is not None:
                    return ""

    def _exceeded_limit(self) -> str:
        limits = self._spec.limits
        pids = descendants(os.getpid())
        # The second sum counts shared pages once, and takes longer.
        if sum(map(_resident, pids)) > limits.memory and sum(map(_proportional, pids)) > limits.memory:
            return "memory"
        if kernel.free(self._writable) < self._least_free:
            return "disk"
        began = time.monotonic()
        if began < self._measure_at:
            return ""
        try:
            grown = kernel.measure(self._writable) - self._before
        except kernel.TooDeep:
            return "disk"
        took = time.monotonic() - began
        self._measure_at = began + max(_MEASURE_S, took * _MEASURE_SHARE)
        return "disk" if grown + kernel.measure_unlinked(pids) > limits.disk else ""

    def _report_exit(self, bubblewrap_status: str) -> str:
        """Report how the command ended by itself. Bubblewrap's own exit code may be about a sandbox that failed."""
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        if self._spec.kind == "bubblewrap" and '"exit-code"' not in bubblewrap_status:
            return f"failed bubblewrap ended with {code} before the command began"
        if code < 0:
            code = _SIGNALLED - code
        was_signalled = _SIGNALLED < code <= _SIGNALLED + signal.NSIG
        if was_signalled:
            return f"signal {code}"
        return f"exited {code}"
