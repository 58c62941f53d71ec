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


class ResourceLimits:
    """The resources that a command may use, in bytes and processor seconds.

    `memory` is the resident memory of all processes together; `address_space` is that of each process: None for as much
    as `memory`, and 0 for no limit. `disk`: by how much its writable folders may grow. `file`: the size of one file.
    `processes` counts threads too, at the same time. `open_files` and `cpu_s` are for each process.
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
    """A command, and how it is confined: by `bubblewrap`, `landlock` or `none`.

    `folder` is the working folder as the command sees it. `binds`: source, target, and whether the command may write to
    it. `environment` is all of it. `timeout_s` is when the command is ended. With `network`, it may use the host's.
    `uid`: the user that it runs as where the server is root; 0 keeps the server's own. `bwrap` is the path of
    bubblewrap, empty where it is not used; `abi` the kernel's Landlock version. `disk_from`: bytes in the writable
    folders from which growth is counted; None counts from its start. `direct`: sources of binds that are left out when
    their path leads through a link. `local`: the port, and the socket, of the one server that it reaches without a
    network; None for no server.
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
        limits: ResourceLimits,
        disk_from: int | None,
        direct: list[str],
        local: tuple[int, str] | None,
    ) -> None:
        self.kind, self.argv, self.folder, self.binds = kind, argv, folder, binds
        self.environment, self.timeout_s, self.network = environment, timeout_s, network
        self.uid, self.bwrap, self.abi, self.limits = uid, bwrap, abi, limits
        self.disk_from, self.direct, self.local = disk_from, direct, local

    def to_bytes(self) -> bytes:
        return marshal.dumps({**vars(self), "limits": vars(self.limits)})


def from_bytes(data: bytes) -> LaunchSpec:
    """Return the spec that the server, which started this process, has written."""
    fields = marshal.loads(data)  # noqa: S302 - see above
    fields["limits"] = ResourceLimits(**fields["limits"])
    return LaunchSpec(**fields)
