"""Bubblewrap's arguments: namespaces of its own, and of the machine's files those that are named."""

from __future__ import annotations

import os

from ava_roles.sandbox.launcher.landlock import NETWORK_SETTINGS, SETTINGS, SYSTEM
from ava_roles.sandbox.launcher.limits import as_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ava_roles.sandbox.launcher.order import Order

_APART = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the sandbox's own


def arguments(order: Order, sources: list[str], temporary: int, filter_at: int, status_at: int) -> list[bytes]:
    """Return what is to stand after the name of the program; the command itself included.

    Args:
        order: The command.
        sources: Where its binds are now.
        temporary: Bytes of a folder in memory.
        filter_at: The descriptor that the seccomp filter is read from.
        status_at: The descriptor that bubblewrap tells on how it went.
    """
    words = [*_APART, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += [] if order.network else ["--unshare-net"]
    for path in SYSTEM:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    for path in (*SETTINGS, *(NETWORK_SETTINGS if order.network else ())):
        words += ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--tmpfs", "/proc/sys", "--remount-ro", "/proc/sys", "--dev", "/dev"]
    for path in (_SHARED_MEMORY, "/tmp"):  # noqa: S108
        words += ["--size", str(temporary), "--tmpfs", path]
    for (_source, target, writable), source in zip(order.binds, sources, strict=True):
        words += ["--bind" if writable else "--ro-bind", source, target]
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", order.folder]
    for name, value in order.environment.items():
        words += ["--setenv", name, value]
    words += ["--seccomp", str(filter_at), "--json-status-fd", str(status_at)]
    return [os.fsencode(word) for word in (*words, "--", *as_words(order.limits), *order.argv)]
