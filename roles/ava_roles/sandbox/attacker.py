"""The attacks that a sandbox must stop before it is trusted: a script that the probe runs in it.

Its argument names the targets outside, as hex digits of `marshal`. It prints the attacks that worked, one a line, and
then `tried`. The probe also checks from outside what was changed there. Standard library only, and as little of it as
possible: `json`, `socket` and `typing` would take more than half of the script's time.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys
from _socket import AF_INET, AF_UNIX, SOCK_STREAM, socket

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_NEW_USER = 0x1000_0000


def main() -> None:
    """Try every attack, and print those that worked."""
    targets: dict[str, Any] = marshal.loads(bytes.fromhex(sys.argv[-1]))  # noqa: S302 - from the server, as argument
    tries: dict[str, Callable[[], object]] = {
        "reads a file of the server's user": lambda: _read(targets["secret"]),
        "lists ~/.ssh": lambda: os.listdir(str(targets["keys"])),
        "writes outside": lambda: _write(os.path.join(targets["outside"], "written")),
        "writes where it may only read": lambda: _write(os.path.join(targets["readable"], "written")),
        "removes what it may only read": lambda: os.unlink(os.path.join(targets["readable"], "file")),
        "changes the kernel's settings": lambda: _write("/proc/sys/kernel/core_pattern"),
        "reaches the network": lambda: _connect(AF_INET, tuple(targets["address"])),
        "reaches a socket in a file": lambda: _connect(AF_UNIX, targets["socket"]),
        "reaches a socket without a file": lambda: _connect(AF_UNIX, "\0" + targets["abstract"]),
        "is root": _be_root,
        "makes a user namespace": _unshare,
    }
    if _same_namespace(targets["namespace"]):
        tries["reads the server's environment"] = lambda: _read(f"/proc/{targets['server']}/environ")
        tries["signals the server"] = lambda: os.kill(targets["server"], 0)
    worked = [name for name, attempt in tries.items() if _works(attempt)]
    _write("written")
    sys.stdout.write("\n".join((*worked, "tried")))


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except Exception:  # whatever stopped it
        return False
    return True


def _same_namespace(namespace: str) -> bool:
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
    client = socket(family, SOCK_STREAM)
    client.settimeout(1)
    client.connect(address)


def _unshare() -> None:
    if ctypes.CDLL(None).unshare(_NEW_USER) != 0:
        raise PermissionError


def _be_root() -> None:
    if 0 not in (*os.getresuid(), *os.getresgid()):
        raise PermissionError


if __name__ == "__main__":
    main()
