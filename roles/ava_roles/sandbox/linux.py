"""What only some systems have, each call behind one function that says "not on this system" on the others.

Nothing else in this package uses ctypes or a signal that not every system has; a test holds that.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

_OPENAT2 = 437
_RESOLVE = 0x08 | 0x04 | 0x02 | 0x01  # BENEATH | NO_SYMLINKS | NO_MAGICLINKS | NO_XDEV
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_LANDLOCK_CREATE_RULESET = 444
_ASK_VERSION = 1
_SETTINGS = Path("/proc/sys/")
_TRIES = 64
STOP, KILL = getattr(signal, "SIGSTOP", 0), getattr(signal, "SIGKILL", 0)


class NotOnThisSystem(OSError):
    """Raised by a call that this system, its kernel, or the sandbox around it, does not have."""

    def __init__(self, what: str, number: int = errno.ENOSYS) -> None:
        super().__init__(number, "not on this system", what)


def openat2(folder: int, name: str, flags: int, mode: int = 0) -> int:
    """Open a name beneath a folder in one step of the kernel, through no link and no mount point.

    Raises:
        NotOnThisSystem: The kernel has no openat2, or a sandbox forbids it.
        OSError: What the kernel says.
    """
    libc, get_errno = _libc("openat2")
    how = struct.pack("QQQ", flags, mode, _RESOLVE)
    for _ in range(_TRIES):
        descriptor = int(libc.syscall(_OPENAT2, folder, os.fsencode(name), how, len(how)))
        if descriptor >= 0:
            return descriptor
        number = get_errno()
        if number in (errno.ENOSYS, errno.EPERM):
            raise NotOnThisSystem("openat2", number)
        if number not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: a rename raced with it
            raise OSError(number, os.strerror(number), name)
    raise OSError(errno.EAGAIN, "the folder is being renamed all the time", name)


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends, however that ends.

    Raises:
        NotOnThisSystem: This is not Linux, or a sandbox forbids it.
    """
    libc, get_errno = _libc("prctl")
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise NotOnThisSystem("prctl", get_errno())


def hide_from_others() -> None:
    """Keep this process's memory and environment from other processes of the same user; it leaves no core dump.

    Raises:
        NotOnThisSystem: This is not Linux, or a sandbox forbids it.
    """
    libc, get_errno = _libc("prctl")
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise NotOnThisSystem("prctl", get_errno())


def is_root() -> bool:
    """Tell whether this process may do everything."""
    ask = getattr(os, "geteuid", None)
    return ask is not None and ask() == 0


def adopt_orphans(adopt: bool) -> None:
    """Have descendants whose parent ends become children of this process, or not any more.

    Raises:
        NotOnThisSystem: This is not Linux, or a sandbox forbids it.
    """
    libc, get_errno = _libc("prctl")
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        raise NotOnThisSystem("prctl", get_errno())


def in_memory(data: bytes) -> int:
    """Return a descriptor from which some bytes can be read; they are on no disk.

    Raises:
        NotOnThisSystem: There is nothing of the kind.
    """
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
    """Have the kernel end this process after so many seconds, whatever it is doing then.

    Raises:
        NotOnThisSystem: There is no alarm (Windows).
    """
    if sys.platform == "win32" or not hasattr(signal, "alarm"):
        raise NotOnThisSystem("alarm")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


def landlock_abi() -> int:
    """Return which version of Landlock the kernel has, 0 for none; asking makes no ruleset.

    Raises:
        NotOnThisSystem: This is not Linux.
    """
    libc, _get_errno = _libc("Landlock")
    return max(0, int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _ASK_VERSION)))


def kernel_setting(name: str) -> int | None:
    """Return a number of the kernel's settings, such as `user/max_user_namespaces`; None where it has none.

    Raises:
        NotOnThisSystem: This is not Linux.
    """
    if not sys.platform.startswith("linux"):
        raise NotOnThisSystem(name)
    try:
        return int((_SETTINGS / name).read_text("ascii"))
    except (OSError, ValueError):
        return None


def _libc(what: str) -> tuple[Any, Any]:
    """Return the C library, and what tells the error of its last call.

    Raises:
        NotOnThisSystem: This is not Linux.
    """
    if not sys.platform.startswith("linux"):
        raise NotOnThisSystem(what)
    import ctypes

    return ctypes.CDLL(None, use_errno=True), ctypes.get_errno
