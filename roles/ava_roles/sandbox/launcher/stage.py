"""What only root can do, and must: a view of the files of its own, and another user before anything is run.

A folder below somebody's closed home cannot be reached by the user that a command runs as; a mount in a namespace of
its own makes it reachable for this one process and what it starts.
"""

from __future__ import annotations

import errno
import os
import stat

from ava_roles.sandbox.launcher import kernel
from ava_roles.sandbox.launcher.landlock import NETWORK_SETTINGS, READ_DEVICES, SETTINGS, SYSTEM, WRITE_DEVICES
from ava_roles.sandbox.launcher.ways import WAY, make, opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ava_roles.sandbox.launcher.order import Order

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
    """Mount what a descriptor stands for; through no link, for what is mounted already may be a command's own work.

    Raises:
        OSError: There is one in the way, or something else.
    """
    here = os.open(PLACE, WAY)
    *folders, last = target.removeprefix(f"{PLACE}/").split("/")
    for name in folders:
        below = _made(here, name, folder=True)
        os.close(here)
        here = below
    at = _made(here, last, folder=stat.S_ISDIR(os.fstat(place).st_mode))
    kernel.mount(f"/proc/self/fd/{place}", f"/proc/self/fd/{at}", None, kernel.BIND | kernel.RECURSIVE)
    os.close(at)
    if not writable:
        at = os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)  # what is mounted, not what is below
        kernel.mount(None, f"/proc/self/fd/{at}", None, kernel.BIND | kernel.AGAIN | kernel.READ_ONLY)
        os.close(at)
    os.close(here)
    return target


def _made(above: int, name: str, *, folder: bool) -> int:
    """Return a descriptor of a folder or file, which is made where there is none."""
    make(above, name, folder=folder)
    descriptor = opened(above, name, folder=folder)
    if stat.S_ISLNK(os.fstat(descriptor).st_mode):
        raise OSError(errno.ELOOP, "a link is in the way", name)
    return descriptor
