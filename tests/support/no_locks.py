"""A process for which no file can be locked, as on a file system without locks: run it, or call `deny_locks` in one.

    python tests/support/no_locks.py COMMAND...

The kernel answers ENOLCK for this process and its children, whatever the file system can do.
"""

import errno
import os
import platform
import struct
import sys

import pytest

from ava_roles.sandbox.launcher.kernel import install_filter, no_new_privileges

_CALLS = {"x86_64": (73, 72), "aarch64": (32, 25)}
"""The numbers of the system calls flock and fcntl."""
_SET_LOCK = 6
_NUMBER, _SECOND_ARGUMENT = 0, 24
_LOAD, _IS_EQUAL, _ANSWER = 0x20, 0x15, 0x06
_ERROR, _ALLOW = 0x50000, 0x7FFF0000

needs_filter = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in _CALLS, reason="a filter for this machine is not known"
)


def deny_locks() -> None:
    flock, fcntl = _CALLS[platform.machine()]
    program = (
        (_LOAD, 0, 0, _NUMBER),
        (_IS_EQUAL, 3, 0, flock),
        (_IS_EQUAL, 0, 3, fcntl),
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        (_IS_EQUAL, 0, 1, _SET_LOCK),
        (_ANSWER, 0, 0, _ERROR | errno.ENOLCK),
        (_ANSWER, 0, 0, _ALLOW),
    )
    no_new_privileges()
    install_filter(b"".join(struct.pack("HBBI", *line) for line in program))


if __name__ == "__main__":
    deny_locks()
    os.execv(sys.argv[1], sys.argv[1:])
