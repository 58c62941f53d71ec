"""What a hostile command would try first: run inside of a sandbox before it is trusted, of the standard library alone.

It is told what there is to be reached outside, and prints as JSON which of it could be. What it did outside is looked
at from outside too.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

_NEW_USER = 0x1000_0000


def main() -> None:
    """Try everything, and print what worked."""
    aims: dict[str, Any] = json.loads(sys.argv[-1])
    here = _is_ours(aims["namespace"])
    tries: dict[str, Callable[[], object]] = {
        "reads a file of the server's user": lambda: _read(aims["secret"]),
        "lists ~/.ssh": lambda: os.listdir(str(aims["keys"])),
        "writes outside": lambda: _write(os.path.join(aims["outside"], "written")),
        "writes where it may only read": lambda: _write(os.path.join(aims["readable"], "written")),
        "removes what it may only read": lambda: os.unlink(os.path.join(aims["readable"], "file")),
        "changes the kernel's settings": lambda: _write("/proc/sys/kernel/core_pattern"),
        "reaches the network": lambda: _connect(socket.AF_INET, tuple(aims["address"])),
        "reaches a socket in a file": lambda: _connect(socket.AF_UNIX, aims["socket"]),
        "reaches a socket without a file": lambda: _connect(socket.AF_UNIX, "\0" + aims["abstract"]),
        "is root": _be_root,
        "makes a user namespace": _unshare,
    }
    if here:
        tries["reads the server's environment"] = lambda: _read(f"/proc/{aims['server']}/environ")
        tries["signals the server"] = lambda: os.kill(aims["server"], 0)
    worked = [name for name, attempt in tries.items() if _works(attempt)]
    _write("written")
    sys.stdout.write(json.dumps(worked))


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except Exception:  # whatever kept it from working
        return False
    return True


def _is_ours(namespace: str) -> bool:
    """Tell whether the server's processes have the numbers here that they have there."""
    try:
        return os.readlink("/proc/self/ns/pid") == namespace
    except OSError:
        return True


def _read(path: str) -> None:
    with open(path, "rb") as file:
        if not file.read(1):
            raise EOFError


def _write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def _connect(family: int, address: Any) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(1)
        one.connect(address)


def _unshare() -> None:
    if ctypes.CDLL(None).unshare(_NEW_USER) != 0:
        raise PermissionError


def _be_root() -> None:
    if 0 not in (*os.getresuid(), *os.getresgid()):
        raise PermissionError


if __name__ == "__main__":
    main()
