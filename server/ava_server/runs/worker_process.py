"""The worker process of a data root: it runs approved subagents, so that they outlive their host (`background`).

It also isolates servers from their runs: whatever a run does to its process, the host's connection stays.
"""

from __future__ import annotations

import logging
import os
import sys
import time

import anyio.to_thread

from ava_audit.store.locks import HeldLock, hold_within, is_held
from ava_server import MODULE_ARGS
from ava_server.core.data_root import DataRoot
from ava_server.core.local_server import start_detached

log = logging.getLogger("ava.worker")

IDLE_S = 60.0
"""Seconds after which an idle worker ends."""
TRY_FOR_S = 1.0
"""Seconds for which the lock is tried: a process that only checks for a worker holds it for a moment."""
READY_S = 10.0
"""Seconds that a started worker has to take the lock, before another one is started."""


def hold_worker_lock(root: DataRoot) -> HeldLock | None:
    """Return the lock of the data root's only worker, or None where there is a worker. Blocks."""
    return hold_within(root.worker_lock, TRY_FOR_S)


class WorkerProcesses:
    """Starts the worker of a data root.

    Args:
        command: The command line of a worker; by default this program, with this process's environment.
    """

    def __init__(self, root: DataRoot, command: tuple[str, ...] = (sys.executable, *MODULE_ARGS, "worker")) -> None:
        self._root = root
        self._command = command
        self._started_s: float | None = None

    async def __call__(self) -> None:
        """Start a worker if there is none; one just started has time to get ready. Raises OSError."""
        await anyio.to_thread.run_sync(self._start)

    def _start(self) -> None:
        if is_held(self._root.worker_lock):  # there is one; when it ends, the next one starts at once
            self._started_s = None
            return
        if self._started_s is not None and time.monotonic() - self._started_s < READY_S:
            return
        self._started_s = time.monotonic()
        env = {**os.environ, "AVA_DATA_ROOT": str(self._root.path)}
        start_detached(self._command, self._root.worker_words, self._root.path, env)
