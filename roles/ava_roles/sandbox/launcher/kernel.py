"""The kernel's calls that Python has no name for."""

from __future__ import annotations

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
_SET_DUMPABLE, _SET_SECCOMP, _SUBREAPER, _NO_NEW_PRIVS = 4, 22, 36, 38
_FILTER = 2
NEW_MOUNTS = 0x0002_0000
READ_ONLY, NO_SUID, NO_DEVICES, AGAIN, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 0x1000, 0x4000, 1 << 18


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def adopt_orphans() -> None:
    """Have every descendant whose parent ends become a child of this process."""
    _prctl(_SUBREAPER, 1)


def hide() -> None:
    """Keep this process's memory and environment from others of the same user."""
    _prctl(_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    """Let no program that is executed from now on gain rights."""
    _prctl(_NO_NEW_PRIVS, 1)


def filter_calls(program: bytes) -> None:
    """Let the kernel refuse calls from now on, by a filter in its own form."""
    whole = _Program(len(program) // 8, program)
    _checked(_LIBC.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(whole), 0, 0), "seccomp")


def unshare(flags: int) -> None:
    """Leave namespaces behind."""
    _checked(_LIBC.unshare(flags), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount."""
    texts = (None if text is None else os.fsencode(text) for text in (source, target, kind))
    data = None if options is None else options.encode()
    _checked(_LIBC.mount(*texts, ctypes.c_ulong(flags), data), f"mount {target}")


def landlock(number: int, *arguments: object) -> int:
    """Do one of Landlock's three calls."""
    return _checked(_LIBC.syscall(number, *arguments), "Landlock")


def _prctl(what: int, value: int) -> None:
    _checked(_LIBC.prctl(what, value, 0, 0, 0), "prctl")


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result
