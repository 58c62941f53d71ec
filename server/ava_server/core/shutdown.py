"""The end of a process that others depend on: begun once, by whatever comes first, and over in time whatever hangs."""

from __future__ import annotations

import os
import signal
import sys
import threading

import anyio
import anyio.abc

from ava_server.core.blocking import received

EXIT_WITHIN_S = 4.5


class Ending:
    """The end of a server.

    Attributes:
        serving: Cancelled at the first signal.
        code: The exit code, once the end has begun.
    """

    def __init__(self) -> None:
        self.serving = anyio.CancelScope()
        self.code: int | None = None

    def begin(self, code: int, *, after_s: float = 0.0) -> None:
        """Set the exit code and the last moment; what was acknowledged is on the disk by then. Twice is harmless.

        Args:
            code: The exit code.
            after_s: How much later than else the last moment is.
        """
        if self.code is None:
            self.code = code
            # A thread: the event loop itself may hang.
            last = threading.Timer(EXIT_WITHIN_S + after_s, os._exit, (code,))
            last.daemon = True
            last.start()

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """End the serving at the first signal. Later ones, which some hosts send within 0.1 s, change nothing."""
        with received(*ending_signals()) as signals:
            task_status.started()
            async for number in signals:
                self.begin(128 + number if number == signal.SIGINT else 0)
                self.serving.cancel()


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a server on this system."""
    return (signal.SIGINT,) if sys.platform == "win32" else (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def deaf_to_signals() -> None:
    """Take no more notice of them: all is on the disk, and a host that now gets impatient changes nothing."""
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)
