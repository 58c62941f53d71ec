"""What the server tells a supervisor: all of it at once, on a descriptor, never on a command line that others can read.

`marshal` is quick to import and understood by the same interpreter alone, which both sides are.
"""

from __future__ import annotations

import marshal

MIB = 1024 * 1024
MEMORY, FILE, DISK = 2048 * MIB, 256 * MIB, 1024 * MIB
PROCESSES, OPEN_FILES, CPU_S = 64, 256, 120
TEMPORARY = 64 * MIB
PRLIMIT = "/usr/bin/prlimit"


class Limits:
    """What a command may take.

    Args:
        memory: Bytes of address space for a process, and of resident memory for all of them together.
        disk: Bytes by which what it may write to may grow.
        file: Bytes of one file.
        processes: Processes and threads at once.
        open_files: Open descriptors of a process.
        cpu_s: Processor seconds of a process.
    """

    def __init__(
        self,
        memory: int = MEMORY,
        disk: int = DISK,
        file: int = FILE,
        processes: int = PROCESSES,
        open_files: int = OPEN_FILES,
        cpu_s: int = CPU_S,
    ) -> None:
        self.memory, self.disk, self.file = memory, disk, file
        self.processes, self.open_files, self.cpu_s = processes, open_files, cpu_s

    def fields(self) -> tuple[int, int, int, int, int, int]:
        """Return what it was made of."""
        return self.memory, self.disk, self.file, self.processes, self.open_files, self.cpu_s


class Order:
    """A command, and how it is to be confined.

    Args:
        kind: `bubblewrap`, `landlock` or `none`.
        argv: Program and arguments.
        folder: The working folder as the command sees it.
        binds: Source, target, and whether it may be written to.
        environment: All of it.
        timeout_s: When it is ended.
        network: It may use the host's network.
        uid: Who it runs as where the server is root; 0 keeps the server's own user.
        bwrap: Where bubblewrap is; empty where it is not used.
        abi: Which version of Landlock the kernel has.
        limits: What it may take.
        disk_from: What its writable folders took when its growth began to count; None is what they take at its start.
        direct: Sources of binds that are left out where a link is in their path.
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
        limits: tuple[int, int, int, int, int, int],
        disk_from: int | None = None,
        direct: list[str] | None = None,
    ) -> None:
        self.kind, self.argv, self.folder, self.binds = kind, argv, folder, binds
        self.environment, self.timeout_s, self.network = environment, timeout_s, network
        self.uid, self.bwrap, self.abi, self.limits = uid, bwrap, abi, Limits(*limits)
        self.disk_from, self.direct = disk_from, direct or []

    def packed(self) -> bytes:
        """Return it as bytes."""
        fields = (
            self.kind, self.argv, self.folder, self.binds, self.environment, self.timeout_s, self.network,
            self.uid, self.bwrap, self.abi, self.limits.fields(), self.disk_from, self.direct,
        )  # fmt: skip
        return marshal.dumps(fields)


def unpacked(data: bytes) -> Order:
    """Return the order of some bytes; they come from the process that started this one."""
    return Order(*marshal.loads(data))  # noqa: S302 - see above
