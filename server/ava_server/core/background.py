"""The background process of a data root (`ava worker`), which outlives whatever started it.

It drives approved subagents, so that they outlive their host (`background`), and so that nothing a run does to its
process can break a host's connection. It also listens on this machine, where asked to: for the pages (`ava ui`) and for
local hosts (`ava connect`), each on its own port, with its own secret and idle time. It ends after a minute without
work.

Whoever needs the process starts it (`start_background`); it holds `worker.lock` while it runs. To have it listen, one
writes a file that it looks for (`LocalServer.want`). Each server holds a lock of its own and records its port: another
user could listen on a port that Ava has left, so only the lock proves whose port it is.

A newer version takes over from an older one (`take_over`). The older process stops listening, frees the lock, and
leaves each run to the newer one before the run's next model call. Until the newer one has the lock, no older one takes
it.

The process has the environment of the server that started it. If it cannot run what another host's environment allows
(another endpoint, or a key that only that host has), that host's server starts a second worker beside it, named by the
digest of that environment (`Credentials.session_digest`). Each takes only the runs that it can run. Nobody takes over
from a worker beside the first one, whatever its version: it serves the hosts of its environment, ends after a minute
without work, and the next one has the version of the host that starts it. If not even that worker takes a run, the
server runs it itself, and the claim says why.
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
from ava_server.core.files import replace_file
from ava_server.core.ids import version_numbers

OUTPUT_BYTES = 256 * 1024
_KEEP = """\
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
folder = os.getcwd()
pause = 0
started_well = False
while True:
    began = time.monotonic()
    code = os.spawnv(os.P_WAIT, sys.argv[1], sys.argv[1:])
    if code in (0, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT):
        break
    if time.monotonic() - began >= 10:
        started_well = True
        pause = 0
    elif code < 0 or started_well:
        pause = min(2 * pause, 600) or 1
    else:
        break
    time.sleep(pause)
    if not os.path.isdir(folder):
        break
"""
"""Starts a program outside of this process's descendants and session: a closing host may kill its group or tree.

It starts the program again when it crashes: at once, or after one that has lasted less than ten seconds, after 1, 2, 4
and at most 600 seconds. One that ends with an error before any has lasted for ten seconds cannot start, and is left
alone, as is one whose folder is gone: it would make a new data root there. 130 is the code after Ctrl-C.
"""
_DETACHED = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""On Windows: a process group of its own, without a console."""


def start_detached(
    command: Sequence[str],
    words: Path,
    folder: Path,
    env: Mapping[str, str],
    *,
    holds: Sequence[int] = (),
) -> None:
    """Start a program that no host ends, with this environment alone. Raises OSError if it cannot be started.

    `words` is the file for its standard error, private to its owner; one that is too long is emptied. It is
    started again when it crashes, but not on Windows. `holds` are descriptors that stay open while it runs.
    """
    launcher = (sys.executable, "-I", "-S", "-c", _KEEP) if os.name == "posix" else ()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(words, flags, 0o600), "ab") as output:
        if output.tell() > OUTPUT_BYTES:
            output.truncate(0)
        process = subprocess.Popen(  # noqa: S603 - this very program
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
    if launcher:
        code = process.wait()
        if code:
            raise OSError(f"{command[0]} cannot be started (code {code}); see {words}")


class _StartedProgram:
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


READY_S = 20.0
"""Seconds that a server has to listen: one on a busy machine of two cores took more than eight."""
HOST_WAITS_S = 8.0
"""Seconds that the command of a host waits for that: Claude Code ends the command after ten, loading included."""
PAGES_PORT = 8643
"""The first port that the pages try."""
HTTP_IDLE_S = 12 * 3_600.0
"""The HTTP server ends after this long without a request and without an open stream."""
HTTP_DRAIN_S = 5.0
"""How long its requests then have to finish."""
PAGES_IDLE_S = 30 * 60.0
"""The pages end after this long without an open page."""
PAGES_DRAIN_S = 1.0
"""How long their requests then have to finish."""
LOOK_EVERY_S = 0.2
"""How often the background process looks for what is wanted of it."""
WORKER_IDLE_S = 60.0
"""Seconds without work after which it ends."""
WORKER_READY_S = 10.0
"""Seconds that a started one has to take the lock, before another one is started."""
LEAVES_WITHIN_S = 10.0
"""Seconds in which it frees its lock for a newer version; then it is ended."""
_PACKAGE = "ava-subagents"
_LOCKS_RECORD = os.name == "posix"
"""On Windows, a locked file can be neither read nor replaced."""
TRY_FOR_S = 1.0
"""Seconds for which a process tries its lock: a command that looks for one holds it for a moment."""


@dataclass(frozen=True)
class LocalServer:
    """One kind of server of a data root: the file that it locks, and that with its port, its process and its version.

    Attributes:
        wanted: The file that asks the background process to be this server.
        what: What errors call it.
        serves_pages: It serves pages to people, who have a session; else hosts, each with a token.
        idle_s: In the background process, it ends after so many seconds without a request or an open stream.
        drain_s: How many seconds requests then have to finish.
    """

    root: DataRoot
    lock: Path
    port_file: Path
    wanted: Path
    what: str
    serves_pages: bool
    idle_s: float
    drain_s: float

    def port(self) -> int | None:
        """Return the port of the server that runs, or None. Blocking.

        Each server also locks its record: one that has just taken the lock has not replaced an older record yet.
        """
        lock = self.port_file if _LOCKS_RECORD else self.lock
        return self.last_port() if is_held(lock) else None

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

    def want(self, port: int) -> None:
        """Ask the background process to listen on a port; 0: on any. Blocking."""
        with suppress(FileNotFoundError):
            if self.wanted.read_text("ascii") == str(port):
                return
        replace_file(self.wanted, str(port).encode())

    def wanted_port(self) -> int | None:
        """Return the port on which it is to listen; None without such a request. Blocking."""
        try:
            return int(self.wanted.read_text("ascii"))
        except (OSError, ValueError):
            return None

    def start(self, port: int | None = None, within_s: float = READY_S) -> int:
        """Have the background process listen, unless a server does, and return its port. Blocking.

        Raises ConfigError if it cannot be started, does not serve in time, or listens on another port.
        """
        take_over(self.root)
        if self.port() is None:
            self.want(port or 0)
        with ExitStack() as stack:
            return self._start(stack, port, time.monotonic() + within_s, within_s)

    def _start(self, stack: ExitStack, port: int | None, end: float, within_s: float) -> int:
        started: _StartedProgram | None = None
        words = self.root.worker_words
        while True:
            has_ended = started is not None and started.has_ended()
            is_wanted = self.wanted.exists()
            current_port = self.port()
            if current_port is not None:
                if port in (None, current_port):
                    return current_port
                raise ConfigError(
                    f"{self.what} of {self.root.path} uses port {current_port}, not {port}; run `ava init` again"
                )
            if not is_wanted:
                raise ConfigError(f"{self.what} cannot listen; see {words}")
            if is_held(self.root.worker_lock):
                pass  # that process listens soon
            elif newer_is_coming(self.root):
                started = None  # where this one has started an older process, that has left its place
            elif has_ended:
                self.wanted.unlink(missing_ok=True)
                raise ConfigError(f"{self.what} ended as soon as it was started; see {words}")
            elif started is None:
                started = self._start_process(stack)
            if time.monotonic() > end:
                raise ConfigError(
                    f"{self.what} did not start within {within_s:.0f} s, and may yet: try again, or see {words}"
                )
            time.sleep(0.05)

    def _start_process(self, stack: ExitStack) -> _StartedProgram:
        started = _StartedProgram(stack)
        try:
            start_background(self.root, ("--listen",), holds=started.holds)
        except OSError as error:
            self.wanted.unlink(missing_ok=True)
            raise ConfigError(f"{self.what} cannot be started: {error}") from error
        started.follow()
        return started


def http_server(root: DataRoot) -> LocalServer:
    return LocalServer(
        root, root.http_lock, root.http_port, root.http_wanted, "the HTTP server",
        serves_pages=False, idle_s=HTTP_IDLE_S, drain_s=HTTP_DRAIN_S,
    )  # fmt: skip


def start_http(root: DataRoot, port: int) -> None:
    """Have the server listen for the host that waits for this command. Blocking.

    Raises ConfigError if it cannot be started, does not listen in time, or listens on another port.
    """
    http_server(root).start(port, HOST_WAITS_S)


def pages_server(root: DataRoot) -> LocalServer:
    return LocalServer(
        root, root.pages_lock, root.pages_port, root.pages_wanted, "the server of `ava ui`",
        serves_pages=True, idle_s=PAGES_IDLE_S, drain_s=PAGES_DRAIN_S,
    )  # fmt: skip


def pages_port(root: DataRoot) -> int:
    """Return the port that the pages try first: the last one's, so that open pages find it again."""
    return pages_server(root).last_port() or PAGES_PORT


def start_pages(root: DataRoot) -> str:
    """Have the pages served, by this version or a newer one; return their address. Blocking."""
    root.create()
    return f"http://localhost:{pages_server(root).start()}"


# -- the process ------------------------------------------------------------------------------------------------------


def start_background(
    root: DataRoot,
    options: Sequence[str] = (),
    *,
    command: Sequence[str] | None = None,
    holds: Sequence[int] = (),
) -> None:
    """Start the background process, with this process's environment. Blocking. Raises OSError.

    It is started again when it crashes, so that pages and clients find it again. `command` is by default this program;
    `holds`: as for `start_detached`.
    """
    env = {**os.environ, "AVA_DATA_ROOT": str(root.path)}
    command = command or (sys.executable, *MODULE_ARGS, "worker")
    start_detached((*command, *options), root.worker_words, root.path, env, holds=holds)


@dataclass(frozen=True)
class ProcessRecord:
    """What the background process has recorded of itself.

    Attributes:
        only_listens: It serves pages and hosts, and leaves subagents to the servers that approved them.
    """

    process: int
    version: str
    only_listens: bool = False

    @classmethod
    def read(cls, path: Path) -> ProcessRecord | None:
        """Return the record in a file, of a process that may have ended; None if there is none. Blocking."""
        try:
            process, its_version, *more = path.read_text("ascii").split()
            return cls(int(process), its_version, "listens" in more)
        except (OSError, ValueError):
            return None

    def write(self, path: Path) -> None:
        words = [str(self.process), self.version]
        if self.only_listens:
            words.append("listens")
        replace_file(path, f"{' '.join(words)}\n".encode())


def hold_worker_lock(root: DataRoot, beside: str = "", *, only_listens: bool = False) -> HeldLock | None:
    """Return the lock of the background process, or of a worker beside it. Blocks.

    None: another process holds it, or a newer version is about to take over.
    """
    if not beside and newer_is_coming(root):
        return None
    held = hold_within(root.worker_lock_of(beside), TRY_FOR_S)
    if held is not None and not beside:
        root.worker_leave.unlink(missing_ok=True)
        ProcessRecord(os.getpid(), version(_PACKAGE), only_listens).write(root.worker_process)
    return held


def take_over(root: DataRoot) -> None:
    """Have a background process of an older Ava leave its work to the next one. Blocking, for some seconds."""
    record = ProcessRecord.read(root.worker_process)
    if record is None or not _is_newer(version(_PACKAGE), record.version) or not is_held(root.worker_lock):
        return
    replace_file(root.worker_leave, version(_PACKAGE).encode())
    end = time.monotonic() + LEAVES_WITHIN_S
    while is_held(root.worker_lock):
        if time.monotonic() > end:
            with suppress(OSError):
                os.kill(record.process, signal.SIGTERM)
            return
        time.sleep(0.05)


def newer_is_coming(root: DataRoot) -> bool:
    """Tell whether a newer version has just asked for this place: an older one would have to leave it again. Blocking.

    If no newer process has come within `WORKER_READY_S` after the older one left, the request no longer counts.
    """
    try:
        version_of_request = root.worker_leave.read_text("ascii")
        age_s = time.time() - root.worker_leave.stat().st_mtime
    except (OSError, ValueError):
        return False
    return _is_newer(version_of_request, version(_PACKAGE)) and age_s < LEAVES_WITHIN_S + WORKER_READY_S


def _is_newer(candidate: str, other: str) -> bool:
    return version_numbers(candidate) > version_numbers(other)


class WorkerProcesses:
    """Starts the background process of a data root, and a worker beside it.

    Args:
        command: The command line of a worker; by default this program, with this process's environment.
    """

    def __init__(self, root: DataRoot, command: tuple[str, ...] | None = None) -> None:
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
        if not beside:
            take_over(self._root)
        if is_held(self._root.worker_lock_of(beside)):  # there is one; when it ends, the next one starts at once
            self._started_s.pop(beside, None)
            return
        started_s = self._started_s.get(beside)
        if started_s is not None and time.monotonic() - started_s < WORKER_READY_S:
            return
        self._started_s[beside] = time.monotonic()
        start_background(self._root, ("--beside", beside) if beside else (), command=self._command)
