"""Commands under their supervisor as the server sees them: a process to start, a pipe to hold, a word to read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

import anyio
from anyio.abc import ByteReceiveStream, Process

from ava_roles.errors import ToolFailed
from ava_roles.sandbox import linux
from ava_roles.sandbox.launcher import supervise
from ava_roles.sandbox.launcher.order import Limits, Order
from ava_roles.sandbox.sandbox import Bind, Command, Ended, Finished, Kind, Pipes
from ava_roles.threads import run_sync


class Output:
    """Keeps at most so many bytes.

    Attributes:
        dropped: How many bytes were left out.
    """

    def __init__(self, most: int) -> None:
        self._room = max(0, most) // 2
        self._last = max(0, most) - self._room
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._in_tail = 0
        self.dropped = 0

    def add(self, piece: bytes) -> None:
        """Take a piece."""
        fits = self._room - len(self._head)
        if fits > 0:
            self._head += piece[:fits]
            piece = piece[fits:]
        if not piece:
            return
        self._tail.append(piece)
        self._in_tail += len(piece)
        while self._in_tail - len(self._tail[0]) >= self._last:
            gone = len(self._tail.popleft())
            self._in_tail -= gone
            self.dropped += gone
            if not self._tail:
                return

    def text(self) -> tuple[str, int]:
        """Return what was kept, and how many bytes were left out of its middle."""
        tail = b"".join(self._tail)
        over = max(0, len(tail) - self._last)
        dropped = self.dropped + over
        head, tail = bytes(self._head), tail[over:]
        if not dropped:
            return (head + tail).decode("utf-8", "replace"), 0
        told = f"\n… {dropped:,} bytes left out …\n"
        return head.decode("utf-8", "replace") + told + tail.decode("utf-8", "replace"), dropped


_GIVE_UP_S = 10.0
_lock = threading.Lock()
_commands = 0


@contextmanager
def adopted() -> Generator[None]:
    """Adopt orphans meanwhile."""
    global _commands
    with _lock:
        _commands += 1
        if _commands == 1:
            linux.adopt_orphans(True)
    try:
        yield
    finally:
        with _lock:
            _commands -= 1
            if _commands == 0:
                linux.adopt_orphans(False)


def end_orphans(limits: Limits, supervisor: int) -> None:
    """End the children of this process that a supervisor started, and wait for them. Blocks.

    They are told apart by a limit that no program of a command can raise again: nothing else that this process starts
    is held to files that are so small.

    Args:
        limits: What the command was held to.
        supervisor: Whose they were; its end has begun, and until it is over they are not ours.
    """
    until = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < until:
        over = not _goes_on(supervisor)
        left = [pid for pid in supervise.children(os.getpid()) if _held(pid, limits.file)]
        if over and not left:
            return
        for number in (linux.STOP, linux.KILL):
            for pid in (*left, *(below for one in left for below in supervise.descendants(one))):
                with suppress(OSError):
                    os.kill(pid, number)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, getattr(os, "WNOHANG", 0))
        time.sleep(0.002)


def _held(pid: int, file_size: int) -> bool:
    """Tell whether a process is held to files of this size or smaller ones."""
    try:
        for line in supervise.read(f"/proc/{pid}/limits").splitlines():
            if line.startswith("Max file size"):
                hard = line.split()[-2]
                return hard.isdecimal() and int(hard) <= file_size
    except OSError:  # it went away
        pass
    return False


def _goes_on(pid: int) -> bool:
    """Tell whether a process has not ended yet; one that has gave its children away, fetched or not."""
    try:
        return supervise.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


_T = TypeVar("_T")
END_S = 15.0
"""A supervisor that has not ended its command by then is ended itself."""
REST_S = 2.0
"""What a command has written can be read when it has ended; nobody is left who would write more."""
PATH, TEMPORARY = "/usr/bin:/bin", PurePosixPath("/tmp")  # noqa: S108 - as a command sees it
_ENDINGS: Mapping[str, Ended] = {
    "exited": "exited",
    "signal": "signal",
    "timeout": "timeout",
    "memory": "memory",
    "disk": "disk",
}
_START = "import sys; sys.path.insert(0, sys.argv[1]); from ava_roles.sandbox.launcher.supervise import main; main()"
_SOURCES = str(Path(__file__).parents[2])


@dataclass(frozen=True)
class Machine:
    """What a sandbox needs to know of this machine.

    Attributes:
        uid: Who commands run as where the server is root; 0 for the server's own user.
        bwrap: Where bubblewrap is.
        abi: The version of Landlock.
    """

    uid: int = 0
    bwrap: str = ""
    abi: int = 0


class SupervisedSandbox:
    """A sandbox of one kind.

    Args:
        kind: What confines the commands.
        how: What that needs to know.
        state: A folder for temporary files, where a command has no mounts of its own.
        limits: What a command may take.
    """

    def __init__(self, kind: Kind, how: Machine, state: Path, limits: Limits | None = None) -> None:
        self._kind: Kind = kind
        self._how = how
        self._state = state
        self._limits = limits or Limits()

    @property
    def kind(self) -> Kind:
        """What confines them."""
        return self._kind

    @property
    def mounts(self) -> bool:
        """Whether a command sees its binds at their targets."""
        return self._kind == "bubblewrap" or (self._kind == "landlock" and self._how.uid != 0)

    async def run(self, command: Command) -> Finished:
        """Run a command to its end; a cancellation ends all of it at once and waits for that.

        Raises:
            ToolFailed: It could not be started; says why.
        """
        began = time.monotonic()
        output = Output(command.max_output)
        async with (
            self._supervisor(replace(command, stdin=False), errors=subprocess.STDOUT) as (process, answer),
            anyio.create_task_group() as tasks,
        ):
            assert process.stdout is not None
            tasks.start_soon(_drain, process.stdout, output)
            await answer.wait()
            await self._sweep(process, answer)
            tasks.cancel_scope.deadline = anyio.current_time() + REST_S
        how, _, rest = answer.said.partition(" ")
        text, dropped = output.text()
        if how in _ENDINGS:
            return Finished(int(rest) if rest else None, text, dropped, _ENDINGS[how], time.monotonic() - began)
        said = f" ({text.strip()[:300]})" if text.strip() else ""
        raise ToolFailed(f"the command could not be run: {rest or 'its supervisor was ended from outside'}{said}")

    @asynccontextmanager
    async def start(self, command: Command) -> AsyncGenerator[Pipes]:
        """Hold a command that is talked to over its stdin and stdout; leaving ends all of it and waits for that.

        Raises:
            ToolFailed: On entering: it could not be started; says why.
        """
        errors = Output(command.max_output)
        async with (
            self._supervisor(replace(command, stdin=True), errors=subprocess.PIPE) as (process, _answer),
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
    async def _supervisor(self, command: Command, *, errors: int) -> AsyncGenerator[tuple[Process, _Answer]]:
        """Hold the supervisor of a command; it has ended, and all of the command, when this is left."""
        with adopted() if self._kind != "bubblewrap" else nullcontext():
            async with self._temporary(command) as given, self._started(given, errors) as running:
                yield running

    @asynccontextmanager
    async def _started(self, command: Command, errors: int) -> AsyncGenerator[tuple[Process, _Answer]]:
        order_at = linux.in_memory(self._order(command).packed())
        theirs, ours = os.pipe()
        answer_at, their_answer = os.pipe()
        answer = _Answer(answer_at)
        try:
            try:
                # Given up in the middle, it would be killed, and sweep nothing.
                process = await _undisturbed(self._open, command, (order_at, theirs, their_answer), errors)
            finally:
                for descriptor in (order_at, theirs, their_answer):
                    os.close(descriptor)
            try:
                yield process, answer
            finally:
                os.close(ours)
                ours = -1
                await self._gone(process, answer)
        finally:
            os.close(answer_at)
            if ours >= 0:
                os.close(ours)

    async def _open(self, command: Command, descriptors: tuple[int, int, int], errors: int) -> Process:
        words = [sys.executable, "-I", "-S", "-c", _START, _SOURCES, *map(str, descriptors)]
        try:
            return await anyio.open_process(
                words,
                stdin=subprocess.PIPE if command.stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd="/",
                env={},
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolFailed(f"no process could be started for the command: {error.strerror}") from error

    async def _gone(self, process: Process, answer: _Answer) -> None:
        """Wait for the end of a supervisor that was told to end."""
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(END_S) as scope:
                await answer.wait()
            if scope.cancelled_caught:
                process.kill()
            await self._sweep(process, answer)
            with anyio.move_on_after(REST_S):  # what nobody has read holds up the end of a process for asyncio
                for stream in (process.stdout, process.stderr):
                    if stream is not None:
                        await _drain(stream, Output(0))
            await process.wait()
            await process.aclose()

    async def _sweep(self, process: Process, answer: _Answer) -> None:
        """End what a supervisor has left that was ended before it could; bubblewrap ends with it."""
        if not answer.said and self._kind != "bubblewrap":
            await run_sync(end_orphans, self._limits, process.pid, abandon_on_cancel=False)

    def _order(self, command: Command) -> Order:
        words = (*command.argv, str(command.folder), *command.environment, *command.environment.values())
        if not command.argv or any("\0" in word for word in words):
            raise ToolFailed("a command needs a program, and none of its words may hold a NUL character")
        for bind in command.binds:
            if not bind.target.is_absolute() or ".." in bind.target.parts:
                raise ValueError(f"{bind.target}: the target of a bind is a whole path")
        environment = {"PATH": PATH, "HOME": str(command.folder), **command.environment}
        if self._kind == "landlock":
            environment.setdefault("TMPDIR", str(TEMPORARY))
        return Order(
            kind=self._kind,
            argv=list(command.argv),
            folder=str(command.folder),
            binds=[(str(bind.source), str(bind.target), bind.writable) for bind in command.binds],
            environment=environment,
            timeout_s=command.timeout_s,
            network=command.network,
            uid=self._how.uid if self._kind != "none" else 0,
            bwrap=self._how.bwrap,
            abi=self._how.abi,
            limits=self._limits_for(command).fields(),
            disk_from=command.disk_from,
            direct=[str(bind.source) for bind in command.binds if bind.direct],
        )

    def _limits_for(self, command: Command) -> Limits:
        """Return what a command may take."""
        limits = Limits(*self._limits.fields())
        limits.cpu_s = max(limits.cpu_s, command.cpu_s)
        return limits

    @asynccontextmanager
    async def _temporary(self, command: Command) -> AsyncGenerator[Command]:
        """Give a command a folder for its temporary files, where none can be mounted for it."""
        if self._kind != "landlock" or self.mounts or any(bind.target == TEMPORARY for bind in command.binds):
            yield command
            return
        folder = await _undisturbed(run_sync, _new_folder, self._state)
        try:
            yield replace(command, binds=(*command.binds, Bind(folder, TEMPORARY, writable=True)))
        finally:
            await _undisturbed(run_sync, _remove, folder)


class _Answer:
    """What a supervisor says in the end.

    Attributes:
        said: The words; empty where it was ended itself.
    """

    def __init__(self, descriptor: int) -> None:
        self.said = ""
        self._descriptor = descriptor
        self._ended = False

    async def wait(self) -> None:
        """Wait for it, or for the end of the supervisor, which alone could say it."""
        if not self._ended:
            await anyio.wait_readable(self._descriptor)
            self.said = os.read(self._descriptor, 65_536).decode("utf-8", "replace")
            self._ended = True


async def _undisturbed(work: Callable[..., Awaitable[_T]], *args: object) -> _T:
    """Do something to its end, also when it is cancelled meanwhile."""
    brought: list[_T] = []
    with anyio.CancelScope(shield=True):
        brought.append(await work(*args))
    return brought[0]


async def _drain(stream: ByteReceiveStream, output: Output) -> None:
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            output.add(await stream.receive(65_536))


def _new_folder(state: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="command-", dir=state))


def _remove(folder: Path) -> None:
    """Remove what a command has left; folders that it nested too deep stay."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
