"""The seam for running commands: what a command is, how it ended, and the protocol of a sandbox that runs it.

A sandbox runs a command under a supervisor: a process of its own that ends every descendant when the command ends,
takes too long or uses too much, and when the server is gone, for whatever reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from anyio.abc import ByteReceiveStream, ByteSendStream

from ava_roles.sandbox.launcher.spec import ResourceLimits

Kind = Literal["bubblewrap", "landlock", "none"]
Ended = Literal["exited", "timeout", "memory", "disk", "signal"]
STRENGTH: Mapping[Kind, int] = {"none": 0, "landlock": 1, "bubblewrap": 2}


@dataclass(frozen=True)
class Bind:
    """A folder or file of this machine that a command sees.

    A sandbox that cannot mount (Landlock as an ordinary user, and none) shows sources at their own paths. It translates
    the working folder, arguments and variables that are a target or begin with one, and ignores binds within other
    binds. Where the server is root, files of root in a writable source are given to the user that commands run as, and
    files that only root may read stay unreadable.

    Both paths are absolute. Links in `source` are followed, so no command may have written to it. A toolchain's
    `target` is its own path. With `direct`, it is left out when the source's path leads through a link, because others
    may write there.
    """

    source: Path
    target: PurePosixPath
    writable: bool = False
    direct: bool = False


INSTALL_BUBBLEWRAP = "install bubblewrap (Debian and Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"


@dataclass(frozen=True)
class ReachableServer:
    """The one server that a command without the network reaches, at a `port` of its own 127.0.0.1.

    `socket` is the absolute path of the unix socket here that connections are passed on to; the command does not see
    it. Nobody has to listen yet: until then connections are reset.
    """

    port: int
    socket: Path


@dataclass(frozen=True)
class Command:
    """What to run, and what it may use.

    It sees the system's own programs and its binds, one of which contains `folder`, the working folder as it sees it.
    `environment` is all of it: nothing is inherited. After `timeout_s`, it is ended with all its descendants. Of the
    output, the beginning and the end are kept, `max_output` bytes. With `network`, it may use the host's; with `local`,
    only this one server, which bubblewrap alone can do; with `stdin`, it reads what its caller writes (see
    `Sandbox.start`). `disk_from`: bytes in its writable folders from which their growth is counted, where several
    commands share them; None counts from its own start. `cpu_s`: processor seconds for each of its processes, where
    that is more than the sandbox's own limit. `limits` replace the sandbox's own. `heard` gets each piece of the output
    as it comes, where the command is run.
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
    limits: ResourceLimits | None = None
    local: ReachableServer | None = None
    heard: Callable[[bytes], None] | None = None


@dataclass(frozen=True)
class Finished:
    """How a command ended.

    `code` is None where it was ended from outside, and 128 plus the number for a signal as in shells. `output` is its
    stdout and stderr in the order of writing, without `dropped` bytes from the middle. It `exited`, died by a `signal`,
    or was `ended` because of `timeout`, `memory` or `disk`. `took_s` counts until all its processes were gone.
    """

    code: int | None
    output: str
    dropped: int
    ended: Ended
    took_s: float


@dataclass(frozen=True)
class Pipes:
    """A running command's streams; `errors` returns the end of stderr. At its end `stdout` raises `EndOfStream`."""

    stdin: ByteSendStream
    stdout: ByteReceiveStream
    errors: Callable[[], str]


class Sandbox(Protocol):
    """Runs commands."""

    @property
    def kind(self) -> Kind: ...

    @property
    def mounts(self) -> bool:
        """Whether a command sees its binds at their targets; otherwise its words are translated."""
        ...

    async def run(self, command: Command) -> Finished:
        """Run a command to its end. A cancellation waits until its processes are gone. Raises ToolFailed."""
        ...

    def start(self, command: Command) -> AbstractAsyncContextManager[Pipes]:
        """Run a command with open pipes; leaving waits until its processes are gone. Raises ToolFailed on entering."""
        ...


@dataclass(frozen=True)
class Unavailable:
    """No sandbox can confine commands on this machine."""

    why: str
    what_to_do: str


RUN_ID = "AVA_RUN_ID"
"""`ava serve` and `ava run` refuse to start when this is set: a subagent starts no subagents."""
_REQUIRED = ("SYSTEMROOT",)
"""Programs on Windows do not find the system's libraries without it; other systems do not have it."""


def child_environment(run_id: str, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the whole environment of a child process: what the system requires, `variables`, and the run's id.

    `variables` cannot override the id; without one it is `unnamed`.
    """
    required = {name: os.environ[name] for name in _REQUIRED if name in os.environ}
    return {**required, **(variables or {}), RUN_ID: run_id or "unnamed"}


def path_outside(path: str, project: Path | None) -> str:
    """Return the absolute folders of a PATH outside a project, whose author's programs npx and direnv put first."""
    kept: list[str] = []
    for folder in path.split(os.pathsep):
        if Path(folder).is_absolute():
            with suppress(OSError, RuntimeError):  # a loop of links
                if project is None or not Path(folder).resolve().is_relative_to(project.resolve()):
                    kept.append(folder)
    return os.pathsep.join(kept)
