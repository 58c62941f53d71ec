"""What only root can do, and must: a view of the files of its own, and another user before anything is run.

A folder below somebody's closed home cannot be reached by the user that a command runs as; a mount in a namespace of
its own makes it reachable for this one process and what it starts.
"""

from __future__ import annotations

import os
import stat

from ava_roles.confine.launcher import kernel
from ava_roles.confine.launcher.landlock import (
    NETWORK_SETTINGS,
    READ_DEVICES,
    SETTINGS,
    SYSTEM,
    WRITE_DEVICES,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ava_roles.confine.launcher.order import Order

PLACE = "/tmp"  # noqa: S108 - it is everywhere; covered by a mount that nobody else sees
_FOLDERS = 1024 * 1024
_PLAIN = kernel.NO_SUID | kernel.NO_DEVICES


def gathered(order: Order) -> list[str]:
    """Mount each bind where every user can reach it, and return where that is.

    Raises:
        OSError: The mounts are refused, as in a container.
    """
    _leave()
    places = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source, _target, _writable in order.binds]
    _cover()
    return [_bound(place, f"{PLACE}/{number}", writable=True) for number, place in enumerate(places)]


def rooted(order: Order, temporary: int) -> None:
    """Make a root of the system's programs and the binds, each at its target, and enter it.

    Args:
        order: The command.
        temporary: Bytes of its folder for temporary files.

    Raises:
        OSError: The mounts are refused, as in a container.
    """
    _leave()
    shown = [path for path in SYSTEM if not os.path.islink(path)]
    shown += [*SETTINGS, *(NETWORK_SETTINGS if order.network else ()), *READ_DEVICES, *WRITE_DEVICES]
    places = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in shown if os.path.exists(path)}
    links = {path: os.readlink(path) for path in SYSTEM if os.path.islink(path)}
    given = [
        (target, os.open(source, os.O_PATH | os.O_CLOEXEC), writable)
        for source, target, writable in order.binds
        if not within_system(target)
    ]
    _cover()
    for path, place in places.items():
        _bound(place, PLACE + path, writable=path in WRITE_DEVICES)
    for path, leads_to in links.items():
        os.symlink(leads_to, PLACE + path)
    os.mkdir(f"{PLACE}/tmp")  # noqa: S108 - the same
    kernel.mount("tmpfs", f"{PLACE}/tmp", "tmpfs", _PLAIN, f"mode=1777,size={temporary}")  # noqa: S108
    for target, place, writable in given:
        _bound(place, PLACE + target, writable=writable)
    os.chroot(PLACE)
    os.chdir("/")


def become(uid: int) -> None:
    """Be another user, with no way back.

    Raises:
        PermissionError: Something of root would be left.
    """
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if {*os.getresuid(), *os.getresgid(), *os.getgroups()} != {uid}:
        raise PermissionError(1, "this process is still root", "setresuid")


def _leave() -> None:
    """Leave the mounts of everybody else; what is opened from now on can be mounted."""
    kernel.unshare(kernel.NEW_MOUNTS)
    kernel.mount(None, "/", None, kernel.RECURSIVE | kernel.PRIVATE)


def _cover() -> None:
    """Have an empty folder in the place of what is there."""
    kernel.mount("tmpfs", PLACE, "tmpfs", _PLAIN, f"mode=0755,size={_FOLDERS}")


def within_system(path: str) -> bool:
    """Tell whether a path is below the system's own programs, which are there already."""
    return any(path == one or path.startswith(f"{one}/") for one in SYSTEM)


def _bound(place: int, target: str, *, writable: bool) -> str:
    """Mount what a descriptor stands for."""
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if stat.S_ISDIR(os.fstat(place).st_mode):
        os.makedirs(target, mode=0o755, exist_ok=True)
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    kernel.mount(f"/proc/self/fd/{place}", target, None, kernel.BIND | kernel.RECURSIVE)
    if not writable:
        kernel.mount(None, target, None, kernel.BIND | kernel.AGAIN | kernel.READ_ONLY)
    return target
