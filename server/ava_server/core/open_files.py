"""The limit on open files: raised at the start as far as possible, and checked before new work begins."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import cast

RUN_RESERVE = 32
"""Files that a run may open at once, for a model call, its log and a command."""
SERVER_RESERVE = 4
"""Further files that a server itself opens after its start, such as connections to its log."""
WANTED = 1_024
"""The limit that a server asks the system for."""
RAISE_LIMIT = f"Raise the limit (`ulimit -n {WANTED}`, or LimitNOFILE in systemd) and restart the server"


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
        if not is_shortage(error):
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


def is_shortage(error: BaseException) -> bool:
    """Tell whether an error means that no more files can be opened, in this process or on this machine."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(map(is_shortage, group.exceptions))
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
