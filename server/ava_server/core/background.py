"""The programs of a data root that outlive the process that starts them, on demand and without a terminal.

Each holds a lock while it runs, writes what it has to say to a file, and ends when it is idle. Two of them are servers
for this machine only: of the pages (`ava ui`), and for its hosts over HTTP (`ava connect`). These record their port,
and one of an older Ava is replaced. Another user could listen on a port that no server of Ava uses: only the lock
proves which process listens.

The third is the worker: it runs approved subagents, so that they outlive their host (`background`). It also
isolates servers from their runs: whatever a run does to its process, the host's connection stays.

A worker has the environment of the server that started it. Where it cannot run what another host's environment allows
(another endpoint, or a key that only that one has), that host's server starts a second worker beside it, named by the
digest of what its environment gives (`Credentials.session_digest`). Each takes only the runs that it can run. Where not
even that one takes a run, the server runs it itself, and the claim says why.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import anyio.to_thread

from ava_audit.store.locks import HeldLock, hold_within, is_held, try_hold
from ava_server import MODULE_ARGS
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import ConfigError
from ava_server.core.ids import version_numbers

OUTPUT_BYTES = 256 * 1024
_LAUNCH = """\
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Starts a program outside of this process's descendants and session: a closing host may kill its group or tree."""
_KEEP = """\
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
folder = os.getcwd()
while True:
    began = time.monotonic()
    code = os.spawnv(os.P_WAIT, sys.argv[1], sys.argv[1:])
    if code in (0, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT) or time.monotonic() - began < 10:
        break
    if not os.path.isdir(folder):
        break
"""
"""The same, and starts it again when it crashes, unless that was within ten seconds or its folder is gone: it would
make a new data root there. 130 is the code after Ctrl-C."""
_DETACHED = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""On Windows: a process group of its own, without a console."""


def start_detached(
    command: Sequence[str],
    words: Path,
    folder: Path,
    env: Mapping[str, str],
    *,
    keep: bool = False,
    holds: Sequence[int] = (),
) -> None:
    """Start a program that no host ends, with this environment alone. Raises OSError: it cannot be started.

    `words` is the file for its standard error, private to its owner; one that is too long is emptied. With `keep`, it
    is started again when it crashes, but not on Windows. `holds` are descriptors that stay open while it runs.
    """
    launcher = (sys.executable, "-I", "-S", "-c", _KEEP if keep else _LAUNCH) if os.name == "posix" else ()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(words, flags, 0o600), "ab") as output:
        if output.tell() > OUTPUT_BYTES:
            output.truncate(0)
        started = subprocess.Popen(  # noqa: S603 - this very program
            (*launcher, *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            cwd=folder,
            env=env,
            start_new_session=True,
            creationflags=_DETACHED,
            close_fds=True,
            pass_fds=holds,
        )
    if launcher and (code := started.wait()):
        raise OSError(f"{command[0]} cannot be started (code {code}); see {words}")


def _environment(root: DataRoot) -> dict[str, str]:
    """Return the environment of a program on a data root: this process's own."""
    return {**os.environ, "AVA_DATA_ROOT": str(root.path)}


class _Started:
    """Tells whether a program that was just started still runs: it holds one end of a pipe. Not on Windows."""

    def __init__(self, stack: ExitStack) -> None:
        self._read: int | None = None
        self.holds: tuple[int, ...] = ()
        if os.name == "posix":
            self._read, write = os.pipe()
            stack.callback(os.close, self._read)
            os.set_blocking(self._read, False)
            self.holds = (write,)
            self._own_end = stack.enter_context(os.fdopen(write, "wb"))

    def follow(self) -> None:
        """Let go of this process's own end, once the program has its copy."""
        if self.holds:
            self._own_end.close()

    def has_ended(self) -> bool:
        if self._read is None:
            return False
        try:
            return os.read(self._read, 1) == b""
        except BlockingIOError:  # nobody writes; the end comes once nobody can
            return False


READY_S = 8.0
"""Claude Code waits ten seconds for the command that starts a server."""
PAGES_READY_S = 20.0
"""For the pages a person waits, who sees what happens: a slow machine has more time."""
PAGES_PORT = 8643
"""The first port that the server of `ava ui` tries."""
HTTP_IDLE = "12h"
"""After so long without a request and without an open stream, the HTTP server ends."""
PAGES_IDLE, PAGES_DRAIN = "30m", "1s"
"""After so long without an open page it ends, and then within this time for requests."""
ENDS_WITHIN_S = 6.0
"""Seconds in which a server ends that was told to; see `EXIT_WITHIN_S`."""
_PACKAGE = "ava-subagents"
_LOCKS_RECORD = os.name == "posix"
"""On Windows, a locked file can be neither read nor replaced."""
TRY_FOR_S = 1.0
"""Seconds for which a program tries its lock: a command that looks for one holds it for a moment."""


@dataclass(frozen=True)
class LocalServer:
    """One kind of server of a data root: the file that it locks, and that with its port, its process and its version.

    `output` is the file for its standard error, when another process has started it; `what` is what errors call it.
    """

    root: DataRoot
    lock: Path
    port_file: Path
    output: Path
    what: str

    def port(self) -> int | None:
        """Return the port of the server that runs, or None. Blocking.

        Each server also locks its record: one that has just taken the lock has not replaced an older record yet.
        """
        return self.last_port() if is_held(self.port_file if _LOCKS_RECORD else self.lock) else None

    def last_port(self) -> int | None:
        """Return the port that was recorded last, by a server that may have ended; None if there is none. Blocking."""
        try:
            return int(self._record()[0])
        except (ValueError, IndexError):  # it is just beginning
            return None

    def _record(self) -> list[str]:
        try:
            return self.port_file.read_text("ascii").split()
        except (OSError, ValueError):
            return []

    def end_older(self) -> bool:
        """End the server that runs if its version of Ava is older than this one, and tell whether it did. Blocking."""
        record = self._record()
        if self.port() is None or len(record) < 2 or not record[1].isdigit():
            return False
        if len(record) > 2 and version_numbers(record[2]) >= version_numbers(version(_PACKAGE)):
            return False
        process, end = int(record[1]), time.monotonic() + ENDS_WITHIN_S
        try:
            os.kill(process, signal.SIGTERM)
        except OSError:
            return False
        # It frees its lock before its port, and the next one is to have the same port.
        while time.monotonic() < end and (self.port() is not None or _lives(process)):
            time.sleep(0.05)
        return True

    @contextmanager
    def announced(self, port: int, *, keep: bool = False) -> Generator[bool]:
        """Record that this process serves on this port, and yield whether it is the first one. Blocking.

        With `keep`, the record stays, so that the next server can use the same port.
        """
        held = hold_within(self.lock, TRY_FOR_S)
        if held is None:
            yield False
            return
        with held, self._recorded(f"{port} {os.getpid()} {version(_PACKAGE)}\n"):
            try:
                yield True
            finally:
                if not keep:
                    self.port_file.unlink(missing_ok=True)

    def _recorded(self, text: str) -> AbstractContextManager[object]:
        """Write the record, locked from the moment that it is in its place."""
        if not _LOCKS_RECORD:
            self.port_file.write_text(text, "ascii")
            return nullcontext()
        new = self.port_file.with_name(f"{self.port_file.name}.new")
        new.unlink(missing_ok=True)  # of a server that was killed here
        own = try_hold(new)
        if own is None:
            raise ConfigError(f"{new} is locked by another program")
        new.write_text(text, "ascii")
        new.replace(self.port_file)
        return own

    def start(self, options: Sequence[str], port: int | None = None, within_s: float = READY_S) -> int:
        """Start the server as a process of its own, unless it runs, and return its port. Blocking.

        `options` follow `ava`. Raises ConfigError: it cannot be started, does not serve in time, or runs on another
        port.
        """
        with ExitStack() as stack:
            return self._start(stack, options, port, time.monotonic() + within_s, within_s)

    def _start(self, stack: ExitStack, options: Sequence[str], port: int | None, end: float, within_s: float) -> int:
        started: _Started | None = None
        while True:
            ended = started is not None and started.has_ended()
            serving = self.port()
            if serving is not None and port in (None, serving):
                return serving
            if serving is not None:
                raise ConfigError(
                    f"{self.what} of {self.root.path} uses port {serving}, not {port}; run `ava init` again"
                )
            if started is None:
                env, command = _environment(self.root), (sys.executable, *MODULE_ARGS, *options)
                try:
                    started = _Started(stack)
                    start_detached(command, self.output, self.root.path, env, keep=True, holds=started.holds)
                    started.follow()
                except OSError as error:
                    raise ConfigError(f"{self.what} cannot be started: {error}") from error
            elif ended and not is_held(self.lock):  # else another process has started one just now
                raise ConfigError(f"{self.what} ended as soon as it was started; see {self.output}")
            if time.monotonic() > end:
                raise ConfigError(f"{self.what} did not start within {within_s:.0f} s; see {self.output}")
            time.sleep(0.05)


def http_server(root: DataRoot) -> LocalServer:
    return LocalServer(root, root.http_lock, root.http_port, root.http_words, "the HTTP server")


def start_http(root: DataRoot, port: int) -> None:
    """Blocking. Raises ConfigError: impossible, or it runs on another port."""
    http_server(root).start(("serve", "--http", "--port", str(port), "--idle", HTTP_IDLE), port)


def pages_server(root: DataRoot) -> LocalServer:
    return LocalServer(root, root.pages_lock, root.pages_port, root.pages_words, "the server of `ava ui`")


def pages_port(root: DataRoot) -> int:
    """Return the port that the server of `ava ui` tries first: the last one's, so that open pages find it again."""
    return pages_server(root).last_port() or PAGES_PORT


def start_pages(root: DataRoot) -> str:
    """Start the server of `ava ui`, or replace one of an older Ava; return its address. Blocking."""
    root.create()
    server = pages_server(root)
    server.end_older()
    options = ("serve", "--http", "--pages", "--idle", PAGES_IDLE, "--drain", PAGES_DRAIN)
    return f"http://localhost:{server.start(options, within_s=PAGES_READY_S)}"


def _lives(process: int) -> bool:
    """Tell whether a process lives; on Windows only its lock tells."""
    if os.name != "posix":
        return False
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


# -- the worker -------------------------------------------------------------------------------------------------------

WORKER_IDLE_S = 60.0
"""Seconds after which an idle worker ends."""
WORKER_READY_S = 10.0
"""Seconds that a started worker has to take the lock, before another one is started."""


def hold_worker_lock(root: DataRoot, beside: str = "") -> HeldLock | None:
    """Return the lock of the data root's worker, or of one beside it; None where there is that worker. Blocks."""
    return hold_within(root.worker_lock_of(beside), TRY_FOR_S)


class WorkerProcesses:
    """Starts the worker of a data root, and one beside it.

    Args:
        command: The command line of a worker; by default this program, with this process's environment.
    """

    def __init__(self, root: DataRoot, command: tuple[str, ...] = (sys.executable, *MODULE_ARGS, "worker")) -> None:
        self._root = root
        self._command = command
        self._started_s: dict[str, float] = {}

    async def __call__(self, beside: str = "") -> None:
        """Start the worker of this name if there is none; one just started has time to get ready. Raises OSError."""
        await anyio.to_thread.run_sync(self._start, beside)

    def is_running(self) -> bool:
        """Tell whether there is a worker, beside which another one may be started. Blocks."""
        return is_held(self._root.worker_lock)

    def _start(self, beside: str) -> None:
        if is_held(self._root.worker_lock_of(beside)):  # there is one; when it ends, the next one starts at once
            self._started_s.pop(beside, None)
            return
        started_s = self._started_s.get(beside)
        if started_s is not None and time.monotonic() - started_s < WORKER_READY_S:
            return
        self._started_s[beside] = time.monotonic()
        command = (*self._command, "--beside", beside) if beside else self._command
        start_detached(command, self._root.worker_words, self._root.path, _environment(self._root))
