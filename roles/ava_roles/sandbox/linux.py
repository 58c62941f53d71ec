"""Calls that only some systems have. They raise `NotOnThisSystem` on the others, and where a sandbox forbids them.

Nothing else in this package uses ctypes or a signal that some systems lack; a test checks that.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_OPENAT2 = 437
_RESOLVE = 0x08 | 0x04 | 0x02 | 0x01  # BENEATH | NO_SYMLINKS | NO_MAGICLINKS | NO_XDEV
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_LANDLOCK_CREATE_RULESET = 444
_ASK_VERSION = 1
_PROCESSES = Path("/proc/")
_SETTINGS = Path("/proc/sys/")
_CGROUPS = Path("/sys/fs/cgroup")
_TRIES = 64
STOP, KILL = getattr(signal, "SIGSTOP", 0), getattr(signal, "SIGKILL", 0)


class NotOnThisSystem(OSError):
    """Raised when this system, its kernel, or a sandbox around it, lacks a call."""

    def __init__(self, what: str, number: int = errno.ENOSYS) -> None:
        super().__init__(number, "not on this system", what)


def openat2(folder: int, name: str, flags: int) -> int:
    """Open a name beneath a folder in one call, by no link and no mount point. Raises OSError if the kernel refuses."""
    libc, get_errno = _libc("openat2")
    how = struct.pack("QQQ", flags, 0, _RESOLVE)
    for _ in range(_TRIES):
        descriptor = int(libc.syscall(_OPENAT2, folder, os.fsencode(name), how, len(how)))
        if descriptor >= 0:
            return descriptor
        number = get_errno()
        if number in (errno.ENOSYS, errno.EPERM):
            raise NotOnThisSystem("openat2", number)
        if number not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: a rename interfered
            raise OSError(number, os.strerror(number), name)
    raise OSError(errno.EAGAIN, "the folder keeps being renamed", name)


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent, or the thread that started it, ends for any reason (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, int(KILL))


def hide_from_others() -> None:
    """Hide this process's memory and environment from others of the same user (Linux); this also stops core dumps."""
    _prctl(_PR_SET_DUMPABLE, 0)


def boot_id() -> str:
    """Return an id that changes with every boot of the machine (Linux with a visible /proc)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError as error:
        raise NotOnThisSystem("boot_id") from error


def processes_with(variable: str, value: str) -> list[int]:
    """Return the ids of processes that were started with a variable and whose variables this user may read (Linux)."""
    if not _PROCESSES.is_dir():
        raise NotOnThisSystem("/proc")
    wanted = f"{variable}={value}".encode()
    found: list[int] = []
    for process in _PROCESSES.iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def is_root() -> bool:
    ask = getattr(os, "geteuid", None)
    return ask is not None and ask() == 0


def in_memory(data: bytes) -> int:
    """Return a descriptor from which the data can be read; it is on no disk, so the system needs memfd."""
    make = getattr(os, "memfd_create", None)
    if make is None:
        raise NotOnThisSystem("memfd_create")
    descriptor: int = make("ava")
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def end_within(seconds: int) -> None:
    """Make the kernel end this process after a number of seconds (not on Windows, which has no alarm)."""
    if sys.platform == "win32" or not hasattr(signal, "alarm"):
        raise NotOnThisSystem("alarm")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


def limit_memory(most: int) -> None:
    """Limit this process's address space (bytes), and offer it first when memory runs out. Raises NotOnThisSystem."""
    if sys.platform != "linux":
        raise NotOnThisSystem("RLIMIT_AS")
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with suppress(OSError):  # /proc is hidden
        Path("/proc/self/oom_score_adj").write_text("1000")


def yield_processor(niceness: int) -> None:
    """Let other processes have the processor first (not on Windows)."""
    if sys.platform == "win32" or not hasattr(os, "nice"):
        raise NotOnThisSystem("nice")
    os.nice(niceness)


def usable_memory() -> int:
    """Return how many bytes of memory this process may use: the machine's, or less in a container.

    Raises NotOnThisSystem.
    """
    if sys.platform != "linux":
        raise NotOnThisSystem("cgroup")
    usable = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _memory_limits():
        with suppress(OSError, ValueError):  # `max`: none
            usable = min(usable, int(limit.read_text("ascii")))
    return usable


def _memory_limits() -> Iterator[Path]:
    """Yield the files with limits of this process's control group and of those above it (cgroups, v2 and v1)."""
    yield _CGROUPS / "memory" / "memory.limit_in_bytes"
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines():
            if line.startswith("0::"):
                group = _CGROUPS / line.removeprefix("0::").lstrip("/")
                for each in (group, *group.parents):
                    yield each / "memory.max"


def landlock_abi() -> int:
    """Return the kernel's Landlock version, 0 for none. Raises NotOnThisSystem if this is not Linux."""
    libc, _get_errno = _libc("Landlock")
    return max(0, int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _ASK_VERSION)))


def kernel_setting(name: str) -> int | None:
    """Return a number from Linux's settings, such as `user/max_user_namespaces`; None if there is none."""
    if not sys.platform.startswith("linux"):
        raise NotOnThisSystem(name)
    try:
        return int((_SETTINGS / name).read_text("ascii"))
    except (OSError, ValueError):
        return None


def _prctl(option: int, value: int) -> None:
    libc, get_errno = _libc("prctl")
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise NotOnThisSystem("prctl", get_errno())


def _libc(what: str) -> tuple[Any, Any]:
    """Return the C library of Linux, and a function that returns the error number of its last call."""
    if not sys.platform.startswith("linux"):
        raise NotOnThisSystem(what)
    import ctypes

    return ctypes.CDLL(None, use_errno=True), ctypes.get_errno
