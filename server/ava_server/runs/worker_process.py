"""The worker process of a data root: it runs approved subagents, so that they outlive their host (`background`).

It also isolates servers from their runs: whatever a run does to its process, the host's connection stays.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import anyio.to_thread

from ava_audit.store.locks import HeldLock, try_hold
from ava_server import MODULE_ARGS
from ava_server.core.data_root import DataRoot

log = logging.getLogger("ava.worker")

IDLE_S = 60.0
"""Seconds after which an idle worker ends."""
TRY_FOR_S = 1.0
"""Seconds for which the lock is tried: a process that only checks for a worker holds it for a moment."""
READY_S = 10.0
"""Seconds that a started worker has to take the lock, before another one is started."""
OUTPUT_BYTES = 256 * 1024
_LAUNCH = """\
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Starts a program that is no descendant of this process and has a session of its own.

When a host closes, it may kill the group of its server (Codex), or the whole tree of its descendants (opencode).
"""


def hold_worker_lock(root: DataRoot) -> HeldLock | None:
    """Return the lock of the data root's only worker, or None where there is a worker. Blocks."""
    end = time.monotonic() + TRY_FOR_S
    while (held := try_hold(root.worker_lock)) is None and time.monotonic() < end:
        time.sleep(0.05)
    return held


class WorkerProcesses:
    """Starts the worker of a data root.

    Args:
        root: The data root.
        command: The command line of a worker; by default this program, with this process's environment.
    """

    def __init__(self, root: DataRoot, command: tuple[str, ...] = (sys.executable, *MODULE_ARGS, "worker")) -> None:
        self._root = root
        self._command = command
        self._started_s: float | None = None

    async def __call__(self) -> None:
        """Start a worker if there is none; one that was just started has time to get ready.

        Raises:
            OSError: It cannot be started.
        """
        await anyio.to_thread.run_sync(self._start)

    def _start(self) -> None:
        held = try_hold(self._root.worker_lock)
        if held is None:  # there is one; when it ends, the next one starts at once
            self._started_s = None
            return
        held.release()
        if self._started_s is not None and time.monotonic() - self._started_s < READY_S:
            return
        self._started_s = time.monotonic()
        launcher = (sys.executable, "-I", "-S", "-c", _LAUNCH) if os.name == "posix" else ()
        with _open_output(self._root.worker_words) as words:
            started = subprocess.Popen(  # noqa: S603 - this very program
                (*launcher, *self._command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                cwd=self._root.path,
                env={**os.environ, "AVA_DATA_ROOT": str(self._root.path)},
                start_new_session=True,
                creationflags=_DETACHED,
                close_fds=True,
            )
        if launcher and (code := started.wait()):
            raise OSError(f"the worker cannot be started (code {code}); see {self._root.worker_words}")


_DETACHED = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""On Windows: a process group of its own, without a console."""


def _open_output(path: Path) -> IO[bytes]:
    """Open the file for a worker's output, private to its owner; a file that is too long is emptied."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    file = os.fdopen(os.open(path, flags, 0o600), "ab")
    if file.tell() > OUTPUT_BYTES:
        file.truncate(0)
    return file
