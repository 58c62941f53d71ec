"""What the server sends to a supervisor: one value on a pipe, never on a command line that other users can read.

`marshal` is fast to import. Only the same interpreter can read it, and both sides are that interpreter.
"""

from __future__ import annotations

import marshal

MIB = 1024 * 1024
TEMPORARY = 64 * MIB
"""Bytes of each temporary folder in memory."""
PRLIMIT = "/usr/bin/prlimit"
USERS = range(58_100, 58_200)
"""The user ids for commands: outside every range that distributions assign, and within what containers usually map."""

BY_ITSELF = ("exited", "signal")
"""How the report of a command begins that was not ended from outside."""


class Limits:
    """The resources that a command may use.

    Args:
        memory: Bytes of resident memory for all processes together.
        disk: Bytes by which its writable folders may grow.
        file: Bytes of one file.
        processes: Processes and threads at the same time.
        open_files: Open descriptors of a process.
        cpu_s: Processor seconds of a process.
        address_space: Bytes of address space of a process; None is as much as `memory`, and 0 sets no limit.
    """

    def __init__(
        self,
        memory: int = 2048 * MIB,
        disk: int = 1024 * MIB,
        file: int = 256 * MIB,
        processes: int = 64,
        open_files: int = 256,
        cpu_s: int = 120,
        address_space: int | None = None,
    ) -> None:
        self.memory, self.disk, self.file = memory, disk, file
        self.processes, self.open_files, self.cpu_s = processes, open_files, cpu_s
        self.address_space = memory if address_space is None else address_space


class LaunchSpec:
    """A command, and how it is confined.

    Args:
        kind: `bubblewrap`, `landlock` or `none`.
        argv: Program and arguments.
        folder: The working folder as the command sees it.
        binds: Source, target, and whether the command may write to it.
        environment: The whole environment.
        timeout_s: Seconds after which the command is ended.
        network: The command may use the host's network.
        uid: The user that the command runs as where the server is root; 0 keeps the server's own user.
        bwrap: The path of bubblewrap; empty where it is not used.
        abi: The kernel's Landlock version.
        limits: The resources that the command may use.
        disk_from: Bytes in the writable folders from which growth is counted; None counts from its start.
        direct: Sources of binds that are left out when their path leads through a link.
        local: The port, and the socket, of the one server that it reaches without a network; None for no server.
    """

    def __init__(
        self,
        kind: str,
        argv: list[str],
        folder: str,
        binds: list[tuple[str, str, bool]],
        environment: dict[str, str],
        timeout_s: float,
        network: bool,
        uid: int,
        bwrap: str,
        abi: int,
        limits: Limits,
        disk_from: int | None,
        direct: list[str],
        local: tuple[int, str] | None,
    ) -> None:
        self.kind, self.argv, self.folder, self.binds = kind, argv, folder, binds
        self.environment, self.timeout_s, self.network = environment, timeout_s, network
        self.uid, self.bwrap, self.abi, self.limits = uid, bwrap, abi, limits
        self.disk_from, self.direct, self.local = disk_from, direct, local

    def to_bytes(self) -> bytes:
        """Return the spec in the form that `from_bytes` reads."""
        return marshal.dumps({**vars(self), "limits": vars(self.limits)})


def from_bytes(data: bytes) -> LaunchSpec:
    """Return the spec that the server, which started this process, has written."""
    fields = marshal.loads(data)  # noqa: S302 - see above
    fields["limits"] = Limits(**fields["limits"])
    return LaunchSpec(**fields)
