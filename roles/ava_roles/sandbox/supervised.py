"""The server's side of a supervised command: start the supervisor, hold its pipe, and read its report."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import cast, get_args

import anyio
from anyio.abc import ByteReceiveStream, Process

from ava_roles.errors import ToolFailed
from ava_roles.sandbox import linux
from ava_roles.sandbox.launcher import supervisor
from ava_roles.sandbox.launcher.spec import LaunchSpec, Limits
from ava_roles.sandbox.sandbox import Bind, Command, Ended, Finished, Kind, Pipes
from ava_roles.sandbox.temporary import temporary_folder
from ava_roles.threads import run_sync

END_S = 15.0
"""Seconds for a supervisor to end its command; after that the supervisor is killed."""
REST_S = 2.0
"""Seconds to read what an ended command has written; no process is left that could write more."""
_PATH, _TEMPORARY = "/usr/bin:/bin", PurePosixPath("/tmp")  # noqa: S108 - as a command sees it
_START = "import sys; sys.path.insert(0, sys.argv[1]); from ava_roles.sandbox.launcher.supervisor import main; main()"
_SOURCES = str(Path(__file__).parents[2])


@dataclass(frozen=True)
class Machine:
    """The facts about this machine that a sandbox depends on.

    Attributes:
        uid: The user that commands run as where the server is root; 0 is the server's own user.
        bwrap: The path of bubblewrap.
        abi: The Landlock version.
    """

    uid: int = 0
    bwrap: str = ""
    abi: int = 0


class SupervisedSandbox:
    """A sandbox of one kind.

    Args:
        kind: What confines the commands.
        machine: The facts about this machine.
        state: A folder for temporary files, where a command has no mounts of its own.
        limits: The resources that a command may use.

    Attributes:
        kind: What confines the commands.
        mounts: A command sees its binds at their targets.
    """

    def __init__(self, kind: Kind, machine: Machine, state: Path, limits: Limits | None = None) -> None:
        self.kind: Kind = kind
        self.mounts = kind == "bubblewrap" or (kind == "landlock" and machine.uid != 0)
        self._machine = machine
        self._state = state
        self._limits = limits or Limits()

    async def run(self, command: Command) -> Finished:
        """Run a command to its end. A cancellation ends all its processes and waits until they are gone.

        Raises:
            ToolFailed: The command could not be started; says why.
        """
        began = time.monotonic()
        output = _Output(command.max_output)
        async with (
            self._supervise(replace(command, stdin=False), errors=subprocess.STDOUT) as (process, report),
            anyio.create_task_group() as tasks,
        ):
            assert process.stdout is not None
            tasks.start_soon(_drain, process.stdout, output)
            await report.wait()
            await self._sweep(process, report)
            tasks.cancel_scope.deadline = anyio.current_time() + REST_S
        how, _, rest = report.text.partition(" ")
        text, dropped = output.text()
        if how in get_args(Ended):
            code = int(rest) if rest else None
            return Finished(code, text, dropped, cast("Ended", how), time.monotonic() - began)
        quoted = f" ({text.strip()[:300]})" if text.strip() else ""
        raise ToolFailed(f"the command could not be run: {rest or 'its supervisor was ended from outside'}{quoted}")

    @asynccontextmanager
    async def start(self, command: Command) -> AsyncGenerator[Pipes]:
        """Run a command with open stdin and stdout. Leaving ends all its processes and waits until they are gone.

        Raises:
            ToolFailed: On entering: the command could not be started; says why.
        """
        errors = _Output(command.max_output)
        async with (
            self._supervise(replace(command, stdin=True), errors=subprocess.PIPE) as (process, _report),
            anyio.create_task_group() as tasks,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            tasks.start_soon(_drain, process.stderr, errors)
            try:
                yield Pipes(process.stdin, process.stdout, lambda: errors.text()[0])
            finally:
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _supervise(self, command: Command, *, errors: int) -> AsyncGenerator[tuple[Process, _Report]]:
        """Hold the supervisor of a command; when this is left, it and all the command's processes have ended."""
        with _adopt_orphans() if self.kind != "bubblewrap" else nullcontext():
            async with self._temporary_folder(command) as given, self._start(given, errors) as running:
                yield running

    @asynccontextmanager
    async def _start(self, command: Command, errors: int) -> AsyncGenerator[tuple[Process, _Report]]:
        spec_at = linux.in_memory(self._spec(command).to_bytes())
        server_read, server_at = os.pipe()
        report_read, report_at = os.pipe()
        report = _Report(report_read)
        try:
            try:
                process = await self._open(command, (spec_at, server_read, report_at), errors)
            finally:
                for descriptor in (spec_at, server_read, report_at):
                    os.close(descriptor)
            try:
                yield process, report
            finally:
                os.close(server_at)  # the supervisor ends the command
                server_at = -1
                await self._wait_for_end(process, report)
        finally:
            os.close(report_read)
            if server_at >= 0:
                os.close(server_at)

    async def _open(self, command: Command, descriptors: tuple[int, int, int], errors: int) -> Process:
        words = [sys.executable, "-I", "-S", "-c", _START, _SOURCES, *map(str, descriptors)]
        opened: list[Process] = []
        try:
            with anyio.CancelScope(shield=True):  # a cancellation would kill the supervisor before it can sweep
                opened.append(
                    await anyio.open_process(
                        words,
                        stdin=subprocess.PIPE if command.stdin else subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        cwd="/",
                        env={},
                        pass_fds=descriptors,
                        start_new_session=True,
                    )
                )
        except OSError as error:
            raise ToolFailed(f"no process could be started for the command: {error.strerror}") from error
        return opened[0]

    async def _wait_for_end(self, process: Process, report: _Report) -> None:
        """Wait for the end of a supervisor whose pipe has been closed."""
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(END_S) as scope:
                await report.wait()
            if scope.cancelled_caught:
                process.kill()
            await self._sweep(process, report)
            with anyio.move_on_after(REST_S):  # asyncio sees the end of a process only when its output has been read
                for stream in (process.stdout, process.stderr):
                    if stream is not None:
                        await _drain(stream, _Output(0))
            await process.wait()
            await process.aclose()

    async def _sweep(self, process: Process, report: _Report) -> None:
        """End the processes that a killed supervisor has left; those in bubblewrap end with it."""
        if not report.text and self.kind != "bubblewrap":
            await run_sync(_end_orphans, self._limits, process.pid, abandon_on_cancel=False)

    def _spec(self, command: Command) -> LaunchSpec:
        words = (*command.argv, str(command.folder), *command.environment, *command.environment.values())
        if not command.argv or any("\0" in word for word in words):
            raise ToolFailed("a command needs a program, and none of its words may contain a NUL character")
        for bind in command.binds:
            if not bind.target.is_absolute() or ".." in bind.target.parts:
                raise ValueError(f"{bind.target}: the target of a bind must be an absolute path")
        environment = {"PATH": _PATH, "HOME": str(command.folder), **command.environment}
        if self.kind == "landlock":
            environment.setdefault("TMPDIR", str(_TEMPORARY))
        limits = Limits(**{**vars(self._limits), "cpu_s": max(self._limits.cpu_s, command.cpu_s)})
        return LaunchSpec(
            kind=self.kind,
            argv=list(command.argv),
            folder=str(command.folder),
            binds=[(str(bind.source), str(bind.target), bind.writable) for bind in command.binds],
            environment=environment,
            timeout_s=command.timeout_s,
            network=command.network,
            uid=self._machine.uid if self.kind != "none" else 0,
            bwrap=self._machine.bwrap,
            abi=self._machine.abi,
            limits=limits,
            disk_from=command.disk_from,
            direct=[str(bind.source) for bind in command.binds if bind.direct],
        )

    @asynccontextmanager
    async def _temporary_folder(self, command: Command) -> AsyncGenerator[Command]:
        """Add a folder for temporary files to a command for which none can be mounted."""
        if self.kind != "landlock" or self.mounts or any(bind.target == _TEMPORARY for bind in command.binds):
            yield command
            return
        holding = temporary_folder("command-", self._state)
        folder = await run_sync(holding.__enter__, abandon_on_cancel=False)
        try:
            yield replace(command, binds=(*command.binds, Bind(folder, _TEMPORARY, writable=True)))
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(holding.__exit__, None, None, None)


class _Report:
    """A supervisor's report.

    Attributes:
        text: Its text; empty before the end, and where the supervisor was killed.
    """

    def __init__(self, descriptor: int) -> None:
        self.text = ""
        self._descriptor = descriptor
        self._ended = False

    async def wait(self) -> None:
        """Wait for the report, or for the end of the supervisor."""
        if not self._ended:
            await anyio.wait_readable(self._descriptor)
            self.text = os.read(self._descriptor, 65_536).decode("utf-8", "replace")
            self._ended = True


class _Output:
    """The beginning and the end of a command's output, together at most so many bytes."""

    def __init__(self, limit: int) -> None:
        self._head_limit = max(0, limit) // 2
        self._tail_limit = max(0, limit) - self._head_limit
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0

    def add(self, piece: bytes) -> None:
        fits = self._head_limit - len(self._head)
        self._head += piece[:fits]
        self._tail += piece[fits:]
        if (over := len(self._tail) - self._tail_limit) > 0:
            del self._tail[:over]
            self._dropped += over

    def text(self) -> tuple[str, int]:
        """Return the output, and how many bytes were cut out of its middle."""
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", "replace"), 0
        head, tail = (each.decode("utf-8", "replace") for each in (self._head, self._tail))
        return f"{head}\n… {self._dropped:,} bytes left out …\n{tail}", self._dropped


async def _drain(stream: ByteReceiveStream, output: _Output) -> None:
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            output.add(await stream.receive(65_536))


# -- orphans ----------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_running = 0


@contextmanager
def _adopt_orphans() -> Generator[None]:
    """Make descendants whose parent ends children of this process, as long as any command runs."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            linux.adopt_orphans(True)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                linux.adopt_orphans(False)


def _end_orphans(limits: Limits, pid: int) -> None:
    """End the children of this process that a supervisor left, and wait for them. Blocks.

    A limit tells them apart that a command cannot raise: this process starts nothing else with so small a limit on the
    size of files.

    Args:
        limits: The limits of the command.
        pid: The supervisor. It is ending; until it has ended, its children are not ours.
    """
    until = time.monotonic() + supervisor.GIVE_UP_S
    while time.monotonic() < until:
        ended = _has_ended(pid)
        left = [child for child in supervisor.children(os.getpid()) if _is_limited(child, limits.file)]
        if ended and not left:
            return
        for number in (linux.STOP, linux.KILL):
            for each in (*left, *(below for child in left for below in supervisor.descendants(child))):
                with suppress(OSError):
                    os.kill(each, number)
        for child in left:
            with suppress(ChildProcessError):
                os.waitpid(child, getattr(os, "WNOHANG", 0))
        time.sleep(0.002)


def _is_limited(pid: int, file_size: int) -> bool:
    """Tell whether a process may write only files of this size or smaller ones."""
    try:
        for line in supervisor.read_text(f"/proc/{pid}/limits").splitlines():
            if line.startswith("Max file size"):
                hard = line.split()[-2]
                return hard.isdecimal() and int(hard) <= file_size
    except OSError:  # the process has ended
        pass
    return False


def _has_ended(pid: int) -> bool:
    """Tell whether a process has ended, reaped or not: then its children have another parent."""
    try:
        return supervisor.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] in ("Z", "X")
    except (OSError, IndexError):
        return True
