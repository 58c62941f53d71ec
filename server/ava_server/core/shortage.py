"""What the system may run out of: open files, whose limit is raised at the start and checked first, and threads."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import cast

from ava_audit.errors import is_thread_shortage

RUN_RESERVE = 32
"""Files that a run may open at once, for a model call, its log and a command."""
SERVER_RESERVE = 4
"""Further files that a server itself opens after its start, such as connections to its log."""
WANTED = 1_024
RAISE_LIMIT = f"Raise the limit (`ulimit -n {WANTED}`, or LimitNOFILE in systemd) and restart the server"

MORE_THREADS = "Raise the limit (`ulimit -u`, TasksMax in systemd, --pids-limit of a container) and restart the server"


def raise_limit(wanted: int = WANTED) -> int | None:
    """Raise this process's limit on open files to `wanted` if possible; return the limit, or None without one."""
    try:
        import resource
    except ImportError:  # this system has no such limits
        return None
    if sys.platform == "win32":
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):  # some systems refuse what the hard limit allows
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def find_shortage(wanted: int = RUN_RESERVE) -> str | None:
    """Return why `wanted` more files cannot be opened, and what to do; None if they can."""
    opened: list[int] = []
    try:
        for _ in range(wanted):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if not shortage_in(error):
            raise
        limit = raise_limit()
        most = "no more files" if limit is None else f"only {limit} files"
        return (
            f"this server may open {most}, too few for another subagent: nothing new starts, and what runs"
            f" continues. {RAISE_LIMIT}"
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return None


def shortage_in(error: BaseException) -> str:
    """Return what the system has run out of for now, and what to do, if an error says so; else an empty text."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        shortages = (shortage_in(each) for each in group.exceptions)
        return next(filter(None, shortages), "")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"no more files can be opened at the moment: try again. {RAISE_LIMIT}"
    if is_thread_shortage(error):
        return f"no more threads can be started at the moment: try again. {MORE_THREADS}"
    return ""
