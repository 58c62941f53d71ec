"""The end of a process that others depend on: begun once, by whatever comes first, and over in time whatever hangs."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import anyio
import anyio.abc

from ava_server.core.errors import Refused
from ava_server.core.threads import received

EXIT_WITHIN_S = 4.5


class Shutdown:
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


ENDS_SOON = (
    "this server is being stopped, so nothing new is started here; what runs goes on with the next one. Try again in a"
    " moment"
)


class Drain:
    """Whether the end has begun, and who waits meanwhile."""

    def __init__(self) -> None:
        self.begun = False
        self._over = False
        self._waits: set[anyio.CancelScope] = set()
        self._questions: set[anyio.CancelScope] = set()

    def begin(self) -> None:
        """Begin: every wait is over. Twice is harmless."""
        self.begun = True
        for scope in self._waits:
            scope.cancel()

    def finish(self) -> None:
        """End the questions to persons that are open still: they were given their time. Twice is harmless."""
        self.begin()
        self._over = True
        for scope in self._questions:
            scope.cancel()

    def refuse_new(self) -> None:
        """Refuse what would start something.

        Raises:
            Refused: The end has begun.
        """
        if self.begun:
            raise Refused(ENDS_SOON)

    @contextmanager
    def wait(self, scope: anyio.CancelScope) -> Generator[None]:
        """Have a wait end when the end begins; `scope` surrounds it."""
        with _among(self._waits, scope, over=self.begun):
            yield

    @contextmanager
    def question(self, scope: anyio.CancelScope) -> Generator[None]:
        """Have a question end when calls in hand have had their time; `scope` surrounds it."""
        with _among(self._questions, scope, over=self._over):
            yield


@contextmanager
def _among(scopes: set[anyio.CancelScope], scope: anyio.CancelScope, *, over: bool) -> Generator[None]:
    scopes.add(scope)
    if over:
        scope.cancel()
    try:
        yield
    finally:
        scopes.discard(scope)


def hide() -> None:
    """Keep other processes of the same user from reading them; called first thing, also where no command will run."""
    from ava_roles.sandbox.linux import NotOnThisSystem, hide_from_others

    with suppress(NotOnThisSystem):  # elsewhere no command runs
        hide_from_others()


class SafeFormatter(logging.Formatter):
    """Formats a line without anything that a terminal takes for a command, or that nobody sees."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, its traceback included."""
        return harmless(super().format(record))


def log_to_stderr(form: str, date_form: str | None = None) -> None:
    """Write warnings and worse to stderr from now on; twice is harmless."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(form, date_form))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def clean_last_resort() -> None:
    """Clean what is written where nothing was set up, as in commands: only warnings and worse are."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(SafeFormatter())


def harmless(text: str) -> str:
    """Return a text that may be written to a terminal."""
    from ava_roles.wrap import clean  # most processes have nothing to say

    return clean(text)[0]
