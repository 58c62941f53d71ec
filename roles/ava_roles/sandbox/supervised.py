"""The server's side of a supervised command: give it to a supervisor, hold its pipe, and read its report.

A supervisor is a process that gets one command after another; the server starts one, below a guard, when none is idle.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar, cast, get_args

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

from ava_roles.errors import ToolFailed
from ava_roles.sandbox import linux
from ava_roles.sandbox.launcher.spec import BY_ITSELF, LaunchSpec, ResourceLimits
from ava_roles.sandbox.sandbox import INSTALL_BUBBLEWRAP, Bind, Command, Ended, Finished, Kind, Pipes, ReachableServer
from ava_roles.sandbox.temporary import temporary_folder
from ava_roles.threads import run_sync

END_S = 15.0
"""Seconds for a supervisor to end its command; then its guard does so, in the same time at most."""
REST_S = 2.0
"""Seconds to read what an ended command has written; no process is left that could write more."""
_PATH = "/usr/bin:/bin"
_TEMPORARY = PurePosixPath("/tmp")  # noqa: S108 - as a command sees it


@dataclass(frozen=True)
class Machine:
    """What a sandbox needs: Bubblewrap's path, Landlock's version, a user for commands where root serves (else 0)."""

    uid: int = 0
    bwrap: str = ""
    abi: int = 0


class SupervisedSandbox:
    """A sandbox of one kind."""

    def __init__(self, kind: Kind, machine: Machine, state: Path, limits: ResourceLimits | None = None) -> None:
        self.kind: Kind = kind
        self.mounts = kind == "bubblewrap" or (kind == "landlock" and machine.uid != 0)
        self._machine = machine
        self._state = state
        self._limits = limits or ResourceLimits()
        self._supervisors = Supervisors()

    async def run(self, command: Command) -> Finished:
        began = time.monotonic()
        output = Output(command.max_output)
        async with self._supervise(replace(command, stdin=False)) as running, anyio.create_task_group() as tasks:
            tasks.start_soon(output.drain, running.stdout, command.heard)
            await running.report.wait()
            tasks.cancel_scope.deadline = anyio.current_time() + REST_S
        ending, _, detail = running.report.text.partition(" ")
        text, dropped = output.text()
        if ending in get_args(Ended):
            code = None
            if detail:
                code = int(detail)
            return Finished(code, text, dropped, cast("Ended", ending), time.monotonic() - began)
        why = detail or "its supervisor was ended from outside"
        beginning = text.strip()[:300]
        if beginning:
            why += f" ({beginning})"
        raise ToolFailed(f"the command could not be run: {why}")

    @asynccontextmanager
    async def start(self, command: Command) -> AsyncGenerator[Pipes]:
        errors = Output(command.max_output)
        async with self._supervise(replace(command, stdin=True)) as running, anyio.create_task_group() as tasks:
            tasks.start_soon(errors.drain, running.stderr)
            try:
                yield Pipes(running.stdin, running.stdout, lambda: errors.text()[0])
            finally:
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _supervise(self, command: Command) -> AsyncGenerator[_Running]:
        """Hold the supervisor of a command; when this is left, all the command's processes have ended."""
        async with self._temporary_folder(command) as completed, self._start(completed) as running:
            yield running

    @asynccontextmanager
    async def _start(self, command: Command) -> AsyncGenerator[_Running]:
        spec = self._spec(command).to_bytes()
        with ExitStack() as ours:
            with ExitStack() as theirs:
                spec_at = linux.in_memory(spec)
                theirs.callback(os.close, spec_at)
                server, server_at = _pipe(PipeWriter, ours, theirs)
                reader, report_at = _pipe(PipeReader, ours, theirs)
                stdin, stdin_at = _pipe(PipeWriter, ours, theirs)
                stdout, stdout_at = _pipe(PipeReader, ours, theirs)
                stderr, stderr_at = _pipe(PipeReader, ours, theirs)
                if not command.stdin:  # programs such as rg would read a pipe
                    stdin_at = os.open(os.devnull, os.O_RDONLY)
                    stderr_at = stdout_at
                    theirs.callback(os.close, stdin_at)
                descriptors = (spec_at, server_at, report_at, stdin_at, stdout_at, stderr_at)
                try:
                    supervisor = self._supervisors.give(descriptors, errors=stderr_at)
                except OSError as error:
                    raise ToolFailed(f"no process could be started for the command: {error.strerror}") from error
            running = _Running(supervisor, _Report(reader), stdin, stdout, stderr)
            try:
                yield running
            finally:
                server.close()  # the supervisor ends the command
                await self._wait_for_end(running)

    async def _wait_for_end(self, running: _Running) -> None:
        supervisor, report = running.supervisor, running.report
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(END_S):
                await report.wait()
            if not self._supervisors.take_back(supervisor, report.text):
                await run_sync(supervisor.end, abandon_on_cancel=False)

    def _spec(self, command: Command) -> LaunchSpec:
        """Return what the supervisor needs to start a command. Raises ToolFailed or ValueError if it is invalid."""
        words = (*command.argv, str(command.folder), *command.environment, *command.environment.values())
        if not command.argv or any("\0" in word for word in words):
            raise ToolFailed("a command needs a program, and none of its words may contain a NUL character")
        for bind in command.binds:
            if not bind.target.is_absolute() or ".." in bind.target.parts:
                raise ValueError(f"{bind.target}: the target of a bind must be an absolute path")
        if command.local is not None:
            self._check_local(command.local, network=command.network)
        environment = {"PATH": _PATH, "HOME": str(command.folder), **command.environment}
        if self.kind == "landlock":
            environment.setdefault("TMPDIR", str(_TEMPORARY))
        limits = command.limits or self._limits
        limits = ResourceLimits(**{**vars(limits), "cpu_s": max(limits.cpu_s, command.cpu_s)})
        uid = 0
        if self.kind != "none":
            uid = self._machine.uid
        local: tuple[int, str] | None = None
        if command.local is not None:
            local = command.local.port, str(command.local.socket)
        return LaunchSpec(
            kind=self.kind,
            argv=list(command.argv),
            folder=str(command.folder),
            binds=[(str(bind.source), str(bind.target), bind.writable) for bind in command.binds],
            environment=environment,
            timeout_s=command.timeout_s,
            network=command.network,
            uid=uid,
            bwrap=self._machine.bwrap,
            abi=self._machine.abi,
            limits=limits,
            disk_from=command.disk_from,
            direct=[str(bind.source) for bind in command.binds if bind.direct],
            local=local,
        )

    def _check_local(self, local: ReachableServer, *, network: bool) -> None:
        if network or not 0 < local.port < 65_536 or not local.socket.is_absolute():
            raise ValueError(f"{local} cannot be the only server that a command reaches")
        if self.kind != "bubblewrap":
            raise ToolFailed(
                f"a command that may reach one local server and nothing else needs bubblewrap, and this sandbox is"
                f" {self.kind}: {INSTALL_BUBBLEWRAP}"
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
    """A supervisor's report; empty before the end, and where the supervisor was killed."""

    def __init__(self, reader: PipeReader) -> None:
        self.text = ""
        self._reader = reader
        self._ended = False

    async def wait(self) -> None:
        if not self._ended:
            with suppress(anyio.EndOfStream):
                self.text = (await self._reader.receive(65_536)).decode("utf-8", "replace")
            self._ended = True


@dataclass(frozen=True)
class _Running:
    supervisor: Supervisor
    report: _Report
    stdin: PipeWriter
    stdout: PipeReader
    stderr: PipeReader


_Pipe = TypeVar("_Pipe", bound="PipeReader | PipeWriter")


def _pipe(end: type[_Pipe], ours: ExitStack, theirs: ExitStack) -> tuple[_Pipe, int]:
    """Return the server's end of a pipe, which it reads from or writes to, and the other end; each with its stack."""
    read_at, write_at = os.pipe()
    here, there = (write_at, read_at) if issubclass(end, PipeWriter) else (read_at, write_at)
    theirs.callback(os.close, there)
    pipe = end(here)
    ours.callback(pipe.close)
    return pipe, there


class _End:
    """One end of a pipe; closing it twice does nothing."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    @property
    def _open(self) -> int:
        if self._descriptor < 0:
            raise anyio.ClosedResourceError
        return self._descriptor

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            anyio.notify_closing(descriptor)
            os.close(descriptor)


class PipeReader(_End, ByteReceiveStream):
    """Reads from a pipe, which it owns."""

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                piece = os.read(self._open, max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._open)
                continue
            if not piece:
                raise anyio.EndOfStream
            return piece


class PipeWriter(_End, ByteSendStream):
    """Writes to a pipe, which it owns."""

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()
        rest = memoryview(item)
        while rest:
            try:
                rest = rest[os.write(self._open, rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._open)
            except BrokenPipeError as error:
                raise anyio.BrokenResourceError from error


_LONGEST_SEQUENCE = 64
_SEQUENCE_BEGINNING = re.compile(rb"\x1b(?:\[[0-?]*+[ -/]*+)?\Z")
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*+[ -/]*+)?[@-~]?+")
"""A control sequence of ECMA-48, such as a colour."""


class Output:
    """The beginning and the end of a command's output, together at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._head_limit = max(0, limit) // 2
        self._tail_limit = max(0, limit) - self._head_limit
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0
        self._before_tail = b""

    def add(self, piece: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            self._before_tail = (self._before_tail + self._tail[:excess])[-_LONGEST_SEQUENCE:]
            del self._tail[:excess]
            self._dropped += excess

    def text(self) -> tuple[str, int]:
        """Return the output, and how many bytes were cut out of its middle."""
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", "replace"), 0
        tail = bytes(self._tail)
        beginning = _SEQUENCE_BEGINNING.search(self._before_tail)
        if beginning:  # the rest of the sequence would be shown as text
            tail = _SEQUENCE.sub(b"", beginning[0] + tail, count=1)
        first = self._head.decode("utf-8", "replace")
        last = tail.decode("utf-8", "replace")
        return f"{first}\n… {self._dropped:,} bytes left out …\n{last}", self._dropped

    async def drain(self, stream: ByteReceiveStream, heard: Callable[[bytes], None] | None = None) -> None:
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                piece = await stream.receive(65_536)
                self.add(piece)
                if heard is not None:
                    heard(piece)
                await anyio.lowlevel.checkpoint()


_IDLE = 2
"""Supervisors that wait for the next command; each takes some megabytes, and ends by itself after a minute."""
_START = "import sys; sys.path.insert(0, sys.argv[1]); from ava_roles.sandbox.launcher.supervisor import main; main()"
_SOURCES = str(Path(__file__).parents[2])


class Supervisor:
    """A supervisor process, which writes errors of starting to `errors`, and its guard (`pid`). Raises OSError."""

    def __init__(self, errors: int) -> None:
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lifeline, lifeline = socket.socketpair()
        with control, lifeline:
            sockets = (lifeline.fileno(), control.fileno())
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                    [sys.executable, "-I", "-S", "-c", _START, _SOURCES, *map(str, sockets)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd="/",
                    env={},
                    pass_fds=sockets,
                    start_new_session=True,
                )
            except BaseException:
                self.dismiss()
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

    def dismiss(self) -> None:
        """Let the guard end it, and what its command has left."""
        self._control.close()
        self._lifeline.close()

    def end(self) -> None:
        """Blocks."""
        self.dismiss()
        self._reaper.join(END_S)
        if self._reaper.is_alive():  # the guard is stopped, and the supervisor lives
            self._process.kill()
            self._reaper.join()


class Supervisors:
    """The idle supervisors of a sandbox. They end with this object."""

    def __init__(self) -> None:
        self._idle: deque[Supervisor] = deque()
        weakref.finalize(self, _dismiss_all, self._idle)

    def give(self, descriptors: Sequence[int], errors: int) -> Supervisor:
        """Give a command to an idle supervisor or a new one; arguments and errors as those of `Supervisor`."""
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
