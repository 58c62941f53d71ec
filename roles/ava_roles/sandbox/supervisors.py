"""Supervisor processes: the server gives each one command after another, and starts one when none is idle."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from ava_roles.sandbox.launcher.spec import BY_ITSELF

_IDLE = 2
"""Supervisors that wait for the next command; each takes some megabytes, and ends by itself after a minute."""
_START = "import sys; sys.path.insert(0, sys.argv[1]); from ava_roles.sandbox.launcher.supervisor import main; main()"
_SOURCES = str(Path(__file__).parents[2])


class Supervisor:
    """A supervisor process.

    Args:
        errors: The descriptor that it writes errors of starting to.

    Attributes:
        pid: Its process id.

    Raises:
        OSError: No process could be started.
    """

    def __init__(self, errors: int) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                    [sys.executable, "-I", "-S", "-c", _START, _SOURCES, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd="/",
                    env={},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                self._control.close()
                raise
        self.pid = self._process.pid
        self._reaper = threading.Thread(target=self._process.wait, name="ava-sandbox-reaper", daemon=True)
        self._reaper.start()

    def give(self, descriptors: Sequence[int]) -> bool:
        """Give it the next command: descriptors of spec, server's pipe, report and streams; False if it has ended."""
        try:
            socket.send_fds(self._control, [b"\0"], descriptors)
        except (BrokenPipeError, ConnectionError):
            return False
        return True

    def kill(self) -> None:
        """Kill it. What it supervises goes on, except in bubblewrap."""
        self._process.kill()

    def dismiss(self) -> None:
        """Let it end after its command, or at once when it has none."""
        self._control.close()

    def wait(self) -> None:
        """Wait for its end. Blocks."""
        self._reaper.join()


class Supervisors:
    """The idle supervisors of a sandbox. They end with this object."""

    def __init__(self) -> None:
        self._idle: deque[Supervisor] = deque()
        weakref.finalize(self, _dismiss_all, self._idle)

    def give(self, descriptors: Sequence[int], errors: int) -> Supervisor:
        """Give a command to an idle supervisor or a new one; see `Supervisor`.

        Raises:
            OSError: No process could be started.
        """
        while True:
            try:
                supervisor, is_new = self._idle.pop(), False
            except IndexError:
                supervisor, is_new = Supervisor(errors), True
            if supervisor.give(descriptors) or is_new:  # one that ends while it starts, ends without a report
                return supervisor
            supervisor.dismiss()

    def take_back(self, supervisor: Supervisor, report: str) -> bool:
        """Keep a supervisor for the next command; False if it must end, or enough are idle."""
        if len(self._idle) >= _IDLE or not report.startswith(BY_ITSELF):
            return False
        self._idle.append(supervisor)
        return True


def _dismiss_all(idle: deque[Supervisor]) -> None:
    while idle:
        idle.pop().dismiss()
