"""The limits that the kernel holds each process to."""

from __future__ import annotations

import os
import resource
import signal

from ava_roles.sandbox.launcher.order import PRLIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ava_roles.sandbox.launcher.order import Limits


def as_words(limits: Limits) -> list[str]:
    """Return the command that sets them and then becomes another; a user namespace counts its own processes."""
    return [
        PRLIMIT,
        f"--as={limits.memory}",
        f"--fsize={limits.file}",
        f"--nproc={limits.processes}",
        f"--nofile={limits.open_files}",
        f"--cpu={limits.cpu_s}",
        "--core=0",
        "--",
    ]


def apply(limits: Limits, uid: int) -> None:
    """Hold this process to them, and what it starts.

    Args:
        limits: What to hold to.
        uid: Whose processes the kernel will count: what there is of them already comes on top.
    """
    present = _tasks_of(uid)
    for what, most in (
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_NPROC, limits.processes + present),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))


def hear_signals() -> None:
    """Undo what this process and its interpreter ignore, which a program that is executed would ignore too."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _tasks_of(uid: int) -> int:
    """Return how many processes and threads a user has."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it went away
                continue
    return count
