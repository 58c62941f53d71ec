"""The shutdown of a process: it begins once and ends within a time limit whatever hangs; and safe output to stderr."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress

import anyio
import anyio.abc

from ava_server.core.errors import Refused
from ava_server.core.shortage import find_shortage
from ava_server.core.threads import received

EXIT_WITHIN_S = 4.5


class Shutdown:
    """The shutdown of a server: `serving` is cancelled at the first signal, and then there is an exit `code`."""

    def __init__(self) -> None:
        self.serving = anyio.CancelScope()
        self.code: int | None = None

    def begin(self, code: int, *, after_s: float = 0.0) -> None:
        """Set the exit code and the deadline, by which the disk has what was acknowledged. Repeating it is harmless."""
        if self.code is None:
            self.code = code
            # A thread: the event loop itself may hang.
            deadline = threading.Timer(EXIT_WITHIN_S + after_s, os._exit, (code,))
            deadline.daemon = True
            deadline.start()

    async def leave(self, code: int) -> None:
        """Begin the shutdown; a server that lets some calls finish waits here for them."""
        self.begin(code)

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Stop serving at the first signal. Later ones, which some hosts send within 0.1 s, change nothing."""
        with received(*ending_signals()) as signals:
            task_status.started()
            async for number in signals:
                await self.leave(128 + number if number == signal.SIGINT else 0)
                self.serving.cancel()


class GracefulShutdown(Shutdown):
    """A shutdown in steps: the first signal lets calls finish for `drain_s`, the second does not wait.

    For `delay_s` after the first signal (`asked`), the server only says that it stops, so that load balancers send it
    nothing new; then it is `stopping`. `draining` is the scope of the wait for calls in progress.
    """

    def __init__(self, drain_s: float, delay_s: float = 0.0) -> None:
        super().__init__()
        self.asked = anyio.Event()
        self.stopping = False
        self.draining = anyio.CancelScope()
        self._delaying = anyio.CancelScope()
        self._drain_s = drain_s
        self._delay_s = delay_s

    async def wait(self) -> None:
        await self.asked.wait()
        with self._delaying:
            self._delaying.deadline = anyio.current_time() + self._delay_s
            await anyio.sleep_forever()
        self.stopping = True

    def hurry(self) -> None:
        self._delaying.cancel()

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Start the shutdown at the first signal, and finish at once at the next."""
        with received(*ending_signals()) as signals:
            task_status.started()
            async for number in signals:
                if self.asked.is_set():
                    self.hurry()
                    self.draining.cancel()
                    continue
                after_s = self._delay_s + self._drain_s
                self.begin(128 + number if number == signal.SIGINT else 0, after_s=after_s)
                self.asked.set()


def ending_signals() -> tuple[signal.Signals, ...]:
    if sys.platform == "win32":
        return (signal.SIGINT,)
    return (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def ignore_signals() -> None:
    """Ignore further signals: everything is on the disk, and an impatient host must not change the exit code."""
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)


ENDS_SOON = (
    "this server is shutting down, so nothing new is started here; running subagents continue with the next one. Try"
    " again in a moment"
)


class Drain:
    """Whether the shutdown has begun, and the waits and questions that it ends."""

    def __init__(self) -> None:
        self.begun = False
        self._over = False
        self._waits: set[anyio.CancelScope] = set()
        self._questions: set[anyio.CancelScope] = set()

    def begin(self) -> None:
        """Begin the shutdown, and end every wait. Repeating it is harmless."""
        self.begun = True
        for scope in self._waits:
            scope.cancel()

    def finish(self) -> None:
        """End the questions to people that are still open: they had their time. Repeating it is harmless."""
        self.begin()
        self._over = True
        for scope in self._questions:
            scope.cancel()

    def refuse_new(self) -> None:
        """Refuse to start anything new. Raises Refused if the shutdown has begun, or too few files can be opened."""
        if self.begun:
            raise Refused(ENDS_SOON)
        shortage = find_shortage()
        if shortage is not None:
            raise Refused(shortage)

    def wait(self, scope: anyio.CancelScope) -> AbstractContextManager[None]:
        """End a wait when the shutdown begins; `scope` surrounds it."""
        return _among(self._waits, scope, over=self.begun)

    def question(self, scope: anyio.CancelScope) -> AbstractContextManager[None]:
        """End a question when the current calls have had their time; `scope` surrounds it."""
        return _among(self._questions, scope, over=self._over)


@contextmanager
def _among(scopes: set[anyio.CancelScope], scope: anyio.CancelScope, *, over: bool) -> Generator[None]:
    scopes.add(scope)
    if over:
        scope.cancel()
    try:
        yield
    finally:
        scopes.discard(scope)


def prepare_to_run() -> None:
    """Prepare a process that runs subagents: other processes of the same user cannot read it. Called first."""
    from ava_roles.sandbox.linux import NotOnThisSystem, hide_from_others

    with suppress(NotOnThisSystem):  # elsewhere no command runs
        hide_from_others()


class SafeFormatter(logging.Formatter):
    """Formats a line without terminal controls and invisible characters."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def log_to_stderr(form: str, date_form: str | None = None) -> None:
    """Write warnings and errors to stderr from now on, also a crash in C; repeating it is harmless."""
    with suppress(ValueError, OSError):  # stderr is not a file
        faulthandler.enable()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(form, date_form))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def clean_last_resort() -> None:
    """Clean the lines that Python writes without a configured logger, as in commands: warnings and errors."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(SafeFormatter())


def harmless(text: str) -> str:
    from ava_roles.wrap import clean  # most processes write nothing

    return clean(text)[0]
