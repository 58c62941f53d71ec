"""From a fresh child of the supervisor to the command: what confines it, and then its program."""

from __future__ import annotations

import errno
import os

from ava_roles.sandbox.launcher import calls, kernel, landlock, limits, stage, ways
from ava_roles.sandbox.launcher.bubblewrap import arguments
from ava_roles.sandbox.launcher.order import TEMPORARY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ava_roles.sandbox.launcher.order import Order

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
    limits.hear_signals()
    if order.kind != "none" and os.getuid() == 0 and order.uid == 0:
        raise PermissionError(errno.EPERM, "nothing is confined that runs as root", "setresuid")
    ways.drop_indirect(order)
    if order.kind == "bubblewrap" or (order.kind == "landlock" and order.uid):
        ways.make_ways(order)
    if order.kind == "bubblewrap":
        _wrapped(order, status_at)
    if order.kind == "landlock":
        _locked(order)
    else:
        _translate(order)
        limits.apply(order.limits, os.getuid())
        os.chdir(order.folder)
    _execute(order)


def _wrapped(order: Order, status_at: int) -> NoReturn:
    sources = [source for source, _target, _writable in order.binds]
    if order.uid:
        sources = stage.gathered(order)
        stage.become(order.uid)
    os.chdir("/")
    kernel.no_new_privileges()
    families = (calls.IPV4, calls.IPV6, calls.NETLINK)
    filter_at = _readable(calls.refusing(families if order.network else (calls.UNIX, *families)))
    words = arguments(order, sources, TEMPORARY, filter_at, status_at)
    end = words.index(b"--")
    given = _readable(b"".join(word + b"\0" for word in words[:end]))  # the environment is nobody's to see
    os.set_inheritable(status_at, True)
    os.execve(order.bwrap, [b"bwrap", b"--args", str(given).encode(), *words[end:]], {})


def _locked(order: Order) -> None:
    limits.apply(order.limits, order.uid or os.getuid())
    if order.uid:
        stage.rooted(order, TEMPORARY)
        readable = ["/"]  # of its own, with nothing in it but what it may see
        writable = [target for _source, target, may_write in order.binds if may_write]
        stage.become(order.uid)
        writable.append("/tmp")  # noqa: S108 - in a root of its own
    else:
        readable = [source for source, _target, _writable in order.binds]
        writable = [source for source, _target, may_write in order.binds if may_write]
        _translate(order)
    kernel.no_new_privileges()
    readable += [*landlock.SYSTEM, *landlock.SETTINGS, *(landlock.NETWORK_SETTINGS if order.network else ())]
    families = (calls.IPV4, calls.IPV6, calls.NETLINK) if order.network else ()
    program = calls.refusing(families, attributes=True, by_path=not order.uid)
    landlock.confine(readable, writable, network=order.network, abi=order.abi)
    os.chdir(order.folder)
    kernel.filter_calls(program)


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
