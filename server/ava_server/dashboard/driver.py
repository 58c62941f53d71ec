"""textual's driver for POSIX terminals, for a terminal that vanishes or stops reading.

textual's own writes through a bounded queue: a terminal that does not read blocks the event loop, and with it signals
and the exit. It also suspends and resumes in signal handlers, at any point of the program, and resumes what was never
suspended. This driver's queue has no bound, its exit does, and the event loop does what signals ask for.
"""

from __future__ import annotations

import os
import signal
import termios
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

FLUSH_S, DROP_S = 0.7, 0.3
"""How long an exit waits for the terminal to read, and then for the system to drop what it has not read."""
_CHUNK = 1_024
_CANCEL = b"\x18"
"""Ends an escape sequence of which the terminal has seen only the beginning."""


class TerminalDriver(LinuxDriver):
    """Reads keys from a terminal and draws on it; it neither waits for the terminal nor outlives it."""

    _output: _Output | None = None
    _suspended = _unreadable = False

    @property
    def lost(self) -> bool:
        return self._unreadable or not os.isatty(self.fileno) or (self._output is not None and self._output.failed)

    @property
    def behind(self) -> bool:
        """Whether the terminal has not read yet what it was sent: it needs nothing newer."""
        return self._output is not None and not self._output.queue.empty()

    def write(self, data: str) -> None:
        """Do not wait for the terminal."""
        if self._output is None:
            assert self._file is not None
            self._output = _Output(self._file.fileno())
        self._output.write(data.encode())

    def stop_application_mode(self) -> None:
        if self._output is not None:
            self._output.restores = True
        super().stop_application_mode()

    def close(self) -> None:
        """Wait for the terminal to read; what it does not read in time is dropped."""
        super().close()
        if self._output is not None:
            self._output.close()

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError:
            self._unreadable = True

    def _sigtstp_application(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._suspend)

    def _sigcont_application(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._resume)

    def _suspend(self) -> None:
        if not self._suspended:
            self.suspend_application_mode()
            self._suspended = self._must_signal_resume = True
        os.kill(os.getpid(), signal.SIGSTOP)

    def _resume(self) -> None:
        if self._suspended:
            closed, self._output = self._output, None
            self.resume_application_mode()
            self._suspended = self._must_signal_resume
            if self._suspended:  # only `bg` continued it
                self._output = closed


class _Output:
    """Writes the `queue` to a terminal in a daemon thread; with `restores`, what comes now restores the terminal."""

    def __init__(self, descriptor: int) -> None:
        self.queue = SimpleQueue[bytes | None]()
        self.failed = self.restores = False
        self._descriptor = descriptor
        self._restoring = _CANCEL
        self._dropping = False
        self._thread = threading.Thread(target=self._work, name="ava-terminal", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        if self.restores:
            self._restoring += data
        self.queue.put(data)

    def close(self) -> None:
        self.queue.put(None)
        self._thread.join(FLUSH_S)
        if not self._thread.is_alive():
            return
        self._dropping = True
        with suppress(termios.error, OSError):
            for _ in range(10):
                self._drop()
                self._thread.join(DROP_S / 10)
                if not self._thread.is_alive():
                    self._drop()
                    os.write(self._descriptor, self._restoring)
                    return

    def _drop(self) -> None:
        """Drop what the terminal has not read, and wake the thread that waits for room."""
        termios.tcflush(self._descriptor, termios.TCOFLUSH)
        for action in (termios.TCOOFF, termios.TCOON):
            termios.tcflow(self._descriptor, action)

    def _work(self) -> None:
        try:
            while (data := self.queue.get()) is not None:
                while data and not self._dropping:
                    data = data[os.write(self._descriptor, data[:_CHUNK]) :]
        except OSError:
            self.failed = True
