"""Where child commands run: one seam, and what is chosen behind it.

A sandbox runs a command under a supervisor: a process of its own that ends every descendant when the command ends, when
it takes too long or too much, and when the server is gone, however that came about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from anyio.abc import ByteReceiveStream, ByteSendStream

Kind = Literal["bubblewrap", "landlock", "none"]
Ended = Literal["exited", "timeout", "memory", "disk", "signal"]
STRENGTH: Mapping[Kind, int] = {"none": 0, "landlock": 1, "bubblewrap": 2}


@dataclass(frozen=True)
class Bind:
    """A folder or file of this machine inside of the sandbox.

    Where a sandbox cannot mount (Landlock as an ordinary user, and none), a command sees sources where they are: a
    folder, an argument or a part of a variable that is a target or begins with one is translated, and a bind within
    another one is not there. Where the server is root, what root owns of a writable source is given to the user that
    commands run as, and what others may not read cannot be read.

    Attributes:
        source: Where it is here; its whole path, which no command may have written to: links in it are followed.
        target: Where the command sees it; absolute. A toolchain keeps its own path.
        writable: The command may change what is in it.
        direct: It is left out when a link has come to stand in the source's path: others may write there.
    """

    source: Path
    target: PurePosixPath
    writable: bool = False
    direct: bool = False


@dataclass(frozen=True)
class Command:
    """What to run, and what it may have.

    Attributes:
        argv: Program and arguments.
        folder: The working folder as the command sees it, within one of the binds.
        binds: What it sees beside the system's own programs.
        environment: The whole environment; nothing is inherited.
        timeout_s: After so many seconds it is ended with all that it started.
        max_output: How many bytes of output are kept, its beginning and its end.
        network: It may use the host's network.
        stdin: It reads what its caller writes; see `Sandbox.start`.
        disk_from: Bytes that its writable folders took when their growth began to count, where several commands share
            them; None is what they take at its start.
        cpu_s: So many seconds of a processor each of its processes may use, where that is more than the sandbox gives.
    """

    argv: tuple[str, ...]
    folder: PurePosixPath
    binds: tuple[Bind, ...]
    environment: Mapping[str, str]
    timeout_s: float
    max_output: int = 1_000_000
    network: bool = False
    stdin: bool = False
    disk_from: int | None = None
    cpu_s: int = 0


@dataclass(frozen=True)
class Finished:
    """How a command ended.

    Attributes:
        code: Its exit code, 128 and more for a signal as shells have it; None where it was ended.
        output: What it wrote, stdout and stderr as they came, cut in the middle.
        dropped: How many bytes were left out.
        ended: `exited` by itself, by a `signal`, or ended because of `timeout`, `memory` or `disk`.
        took_s: Seconds from its start until nothing of it was left.
    """

    code: int | None
    output: str
    dropped: int
    ended: Ended
    took_s: float


@dataclass(frozen=True)
class Pipes:
    """The two ends of a command that goes on while somebody talks to it.

    Attributes:
        stdin: What it reads.
        stdout: What it writes; ends with `EndOfStream` when it does, under bubblewrap when the whole command does.
        errors: The end of what it wrote on stderr so far.
    """

    stdin: ByteSendStream
    stdout: ByteReceiveStream
    errors: Callable[[], str]


class Sandbox(Protocol):
    """Runs commands."""

    @property
    def kind(self) -> Kind:
        """What confines them."""
        ...

    @property
    def mounts(self) -> bool:
        """Whether a command sees its binds at their targets; elsewhere names in its words are translated."""
        ...

    async def run(self, command: Command) -> Finished:
        """Run a command to its end; a cancellation ends all of it at once and waits for that.

        Raises:
            ToolFailed: It could not be started; says why.
        """
        ...

    def start(self, command: Command) -> AbstractAsyncContextManager[Pipes]:
        """Hold a command that is talked to over its stdin and stdout; leaving ends all of it and waits for that.

        Raises:
            ToolFailed: On entering: it could not be started; says why.
        """
        ...


@dataclass(frozen=True)
class Unavailable:
    """Why no command can be confined here.

    Attributes:
        why: A sentence.
        what_to_do: What would change it.
    """

    why: str
    what_to_do: str


def find_sandbox(mode: Literal["auto", "none"], state: Path) -> Sandbox | Unavailable:
    """Return the strongest sandbox that holds here; decided by attacking it, once in a process. Blocks up to seconds.

    Args:
        mode: The setting `sandbox.mode`; `none` confines nothing.
        state: A folder of ours, where what a sandbox needs on the disk may stand.
    """
    from ava_roles.sandbox.selection import found

    return found(mode, state)
