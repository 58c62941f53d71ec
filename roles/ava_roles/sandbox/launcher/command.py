"""From a fresh child of the supervisor to the command: what confines it, and then its program."""

from __future__ import annotations

import errno
import os
import stat

from ava_roles.sandbox.launcher import confine
from ava_roles.sandbox.launcher.confine import (
    NETWORK_SETTINGS,
    READ_DEVICES,
    SETTINGS,
    SYSTEM,
    WRITE_DEVICES,
    arguments,
)
from ava_roles.sandbox.launcher.order import TEMPORARY

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn

    from ava_roles.sandbox.launcher.order import Order


WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_THE_WAY = (errno.ENOTDIR, errno.ELOOP, errno.ENOENT)


def drop_indirect(order: Order) -> None:
    """Leave out what is shown of a folder that others may write to, when a link has come to stand in its path."""
    gone = {source for source in order.direct if os.path.realpath(source) != source}
    order.binds = [bind for bind in order.binds if bind[0] not in gone]


def make_ways(order: Order) -> None:
    """Make the folders that binds within other binds need, through no link.

    A bind is left out where a command has put something else in its way, within what it may write to: it has moved away
    what was shown there. No command may be at work in these folders meanwhile.

    Raises:
        OSError: There is something else in the way elsewhere: what is to be covered would be seen.
    """
    kept: list[tuple[str, str, bool]] = []
    for source, target, writable in order.binds:
        around = _around(kept, target)
        if around is not None:
            above, beneath, theirs = around
            try:
                _make_way(above, beneath, os.stat(source), order.uid if theirs else None)
            except OSError as error:
                if theirs and error.errno in _IN_THE_WAY:
                    continue
                raise
        kept.append((source, target, writable))
    order.binds = kept


def _around(binds: list[tuple[str, str, bool]], target: str) -> tuple[str, list[str], bool] | None:
    """Return what is mounted around a target: its source, the names from there on, and whether commands write to it."""
    around = [bind for bind in binds if target.startswith(f"{bind[1]}/")]
    if not around:
        return None
    source, above, writable = max(reversed(around), key=lambda bind: len(bind[1]))
    return source, [name for name in target[len(above) :].split("/") if name], writable


def _make_way(above: str, names: list[str], what: os.stat_result, owner: int | None) -> None:
    """Walk beneath a folder to a place for a mount; what is missing is made where it has an owner.

    Raises:
        OSError: Something of another kind is in the way, or cannot be made.
    """
    here = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, name in enumerate(names, 1):
            folder = number < len(names) or stat.S_ISDIR(what.st_mode)
            if owner is not None and make(here, name, folder=folder) and owner:
                os.chown(name, owner, owner, dir_fd=here, follow_symlinks=False)
            below = opened(here, name, folder=folder)
            os.close(here)
            here = below
        there = os.fstat(here).st_mode  # a pipe or a socket is covered by a file too
        if not stat.S_ISDIR(what.st_mode) and (stat.S_ISDIR(there) or stat.S_ISLNK(there)):
            raise OSError(errno.ENOTDIR, "something else is in the way", names[-1])
    finally:
        os.close(here)


def make(above: int, name: str, *, folder: bool) -> bool:
    """Make a folder or an empty file; tells whether it was not there before."""
    try:
        if folder:
            os.mkdir(name, 0o755, dir_fd=above)
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=above))
    except FileExistsError:
        return False
    return True


def opened(above: int, name: str, *, folder: bool) -> int:
    """Return a descriptor that stands for a folder, or for whatever else has the name; no link is followed."""
    return os.open(name, WAY if folder else os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)


PLACE = "/tmp"  # noqa: S108 - it is everywhere; covered by a mount that nobody else sees
_FOLDERS = 1024 * 1024
_PLAIN = confine.NO_SUID | confine.NO_DEVICES


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
    confine.mount("tmpfs", f"{PLACE}/tmp", "tmpfs", _PLAIN, f"mode=1777,size={temporary}")  # noqa: S108
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
    confine.unshare(confine.NEW_MOUNTS)
    confine.mount(None, "/", None, confine.RECURSIVE | confine.PRIVATE)


def _cover() -> None:
    """Have an empty folder in the place of what is there."""
    confine.mount("tmpfs", PLACE, "tmpfs", _PLAIN, f"mode=0755,size={_FOLDERS}")


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
    confine.mount(f"/proc/self/fd/{place}", f"/proc/self/fd/{at}", None, confine.BIND | confine.RECURSIVE)
    os.close(at)
    if not writable:
        at = os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)  # what is mounted, not what is below
        confine.mount(None, f"/proc/self/fd/{at}", None, confine.BIND | confine.AGAIN | confine.READ_ONLY)
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


NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells have it


def become_command(order: Order, status_at: int) -> NoReturn:
    """Become the command.

    Args:
        order: The command.
        status_at: The descriptor that bubblewrap tells on how it went.

    Raises:
        OSError: It cannot be confined.
    """
    os.setsid()
    confine.hear_signals()
    if order.kind != "none" and os.getuid() == 0 and order.uid == 0:
        raise PermissionError(errno.EPERM, "nothing is confined that runs as root", "setresuid")
    drop_indirect(order)
    if order.kind == "bubblewrap" or (order.kind == "landlock" and order.uid):
        make_ways(order)
    if order.kind == "bubblewrap":
        _wrapped(order, status_at)
    if order.kind == "landlock":
        _locked(order)
    else:
        _translate(order)
        confine.apply(order.limits, os.getuid())
        os.chdir(order.folder)
    _execute(order)


def _wrapped(order: Order, status_at: int) -> NoReturn:
    sources = [source for source, _target, _writable in order.binds]
    if order.uid:
        sources = gathered(order)
        become(order.uid)
    os.chdir("/")
    confine.no_new_privileges()
    families = (confine.IPV4, confine.IPV6, confine.NETLINK)
    filter_at = _readable(confine.refusing(families if order.network else (confine.UNIX, *families)))
    words = arguments(order, sources, TEMPORARY, filter_at, status_at)
    end = words.index(b"--")
    given = _readable(b"".join(word + b"\0" for word in words[:end]))  # the environment is nobody's to see
    os.set_inheritable(status_at, True)
    os.execve(order.bwrap, [b"bwrap", b"--args", str(given).encode(), *words[end:]], {})


def _locked(order: Order) -> None:
    confine.apply(order.limits, order.uid or os.getuid())
    if order.uid:
        rooted(order, TEMPORARY)
        readable = ["/"]  # of its own, with nothing in it but what it may see
        writable = [target for _source, target, may_write in order.binds if may_write]
        become(order.uid)
        writable.append("/tmp")  # noqa: S108 - in a root of its own
    else:
        readable = [source for source, _target, _writable in order.binds]
        writable = [source for source, _target, may_write in order.binds if may_write]
        _translate(order)
    confine.no_new_privileges()
    readable += [*confine.SYSTEM, *confine.SETTINGS, *(confine.NETWORK_SETTINGS if order.network else ())]
    families = (confine.IPV4, confine.IPV6, confine.NETLINK) if order.network else ()
    program = confine.refusing(families, attributes=True, by_path=not order.uid)
    confine.confine(readable, writable, network=order.network, abi=order.abi)
    os.chdir(order.folder)
    confine.filter_calls(program)


def _execute(order: Order) -> NoReturn:
    """Look for the program as `execvp` does; Python's own would import a module, from where nothing can be read now."""
    name = order.argv[0]
    folders = [""] if "/" in name else order.environment.get("PATH", "").split(":")
    failure: OSError = FileNotFoundError(errno.ENOENT, "No such file or directory")
    for folder in folders:
        try:
            os.execve(os.path.join(folder, name), order.argv, order.environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    os.write(2, f"{name}: {failure.strerror}\n".encode())
    os._exit(NOT_FOUND if isinstance(failure, FileNotFoundError) else NOT_EXECUTABLE)


def _translate(order: Order) -> None:
    """Name things by where they are: without mounts nothing is where the command would see it."""
    names = sorted(((target, source) for source, target, _writable in order.binds), key=lambda each: -len(each[0]))

    def here(text: str) -> str:
        for target, source in names:
            if text == target or text.startswith(f"{target}/"):
                return source + text[len(target) :]
        return text

    order.folder = here(order.folder)
    order.argv = [here(word) for word in order.argv]
    order.environment = {name: ":".join(map(here, value.split(":"))) for name, value in order.environment.items()}


def _readable(data: bytes) -> int:
    """Return a descriptor that some bytes can be read from, and that a program is executed with."""
    descriptor = os.memfd_create("ava", 0)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
