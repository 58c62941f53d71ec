"""The modes of a process: what its run manager may do with the runs of a log, and what it leaves to other processes.

| process | mode | claims the runs of | and drives them |
|---|---|---|---|
| a command that looks, or decides | `LOOKING` | nobody | |
| `ava doctor --online` | `ASKING` | its own session | itself |
| `ava run --yes`, and what else nobody is asked about | `ALONE` | its own session | itself |
| a server in its host's process | `DRIVING` | its user | itself |
| `ava mcp`, `ava run`, `ava resume`, with `background` | `serving` | its user | the worker, or itself if that cannot |
| the same, with `runs_on = "workers"` | `serving` | its user | any worker, on any machine |
| `ava serve` | `serving` | everybody | as the two above |
| `ava worker`, with or without `--stay` | `WORKING` | everybody | itself |
| the same, with the log in Postgres | `SHARING` | everybody | itself, beside other workers |

Each process that drives runs takes over those of its users whose owner is gone; only a worker that stays hands its own
over when it is stopped (`Manager.hand_over`).

The worker process of a data root runs approved subagents, so that they outlive their host (`background`). It also
isolates servers from their runs: whatever a run does to its process, the host's connection stays.

A worker has the environment of the server that started it. Where it cannot run what another host's environment allows
(another endpoint, or a key that only that one has), that host's server starts a second worker beside it, named by the
digest of what its environment gives (`Credentials.session_digest`). Each takes only the runs that it can run. Where not
even that one takes a run, the server runs it itself, and the claim says why.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import anyio.to_thread

from ava_audit.store.locks import HeldLock, hold_within, is_held
from ava_server import MODULE_ARGS
from ava_server.core.data_root import DataRoot
from ava_server.core.local_server import start_detached

if TYPE_CHECKING:
    from ava_server.config.settings import Settings

GRACE_S = 1.0
"""Seconds for which only the instance that approved a run claims it."""
SPREAD = 8
"""Of so many of the oldest runs, workers that share a log take any one first, so that they rarely try the same run."""


@dataclass(frozen=True)
class Mode:
    """Which kind of process this is.

    Attributes:
        claims: Whose runs it claims.
        leaves_to: Who drives them: this data root's worker, or workers that may be on other machines; None: itself.
        grace_s: How long another process has to claim what it approved.
        spread: Of so many of the oldest runs, any one is taken first.
        only_worker: No worker on another machine drives these runs, so it says which of them it cannot run.
        beside: The name of a worker beside the data root's first one; else empty.
        one_of_many: Other machines drive runs of this log too, so what it says about one names its machine.
        keeps_root: It also does what the data root of its users needs: events, settings on the record, cleaning up.
    """

    claims: Literal["nobody", "its session", "its user", "everybody"]
    leaves_to: Literal["the worker", "workers"] | None = None
    grace_s: float = GRACE_S
    spread: int = 1
    only_worker: bool = False
    beside: str = ""
    one_of_many: bool = False
    keeps_root: bool = True

    @property
    def is_worker(self) -> bool:
        """Whether its runs outlive the host that asked for them."""
        return self.only_worker or self.one_of_many


LOOKING = Mode("nobody", keeps_root=False)
ASKING = Mode("its session", keeps_root=False)
ALONE = Mode("its session")
"""It ends with its own runs: one of another process, taken over, would be left again in the middle of a paid call."""
DRIVING = Mode("its user")
WORKING = Mode("everybody", grace_s=0.0, only_worker=True)
"""Users over HTTP have no worker of their own."""
SHARING = Mode("everybody", grace_s=0.0, spread=SPREAD, one_of_many=True)


def serving(settings: Settings, *, everybody: bool = False) -> Mode:
    """Return the mode of a server, or of a command whose runs a person approves: by the settings, they outlive it."""
    mode = replace(DRIVING, claims="everybody") if everybody else DRIVING
    if settings.runs_on == "workers":
        return replace(mode, leaves_to="workers")
    return replace(mode, leaves_to="the worker") if settings.background else mode


def working(settings: Settings, beside: str = "") -> Mode:
    return replace(SHARING if settings.database_url else WORKING, beside=beside)


log = logging.getLogger("ava.worker")

# -- the worker process -----------------------------------------------------------------------------------------------


IDLE_S = 60.0
"""Seconds after which an idle worker ends."""
TRY_FOR_S = 1.0
"""Seconds for which the lock is tried: a process that only checks for a worker holds it for a moment."""
READY_S = 10.0
"""Seconds that a started worker has to take the lock, before another one is started."""


def hold_worker_lock(root: DataRoot, beside: str = "") -> HeldLock | None:
    """Return the lock of the data root's worker, or of one beside it; None where there is that worker. Blocks."""
    return hold_within(root.worker_lock_of(beside), TRY_FOR_S)


class WorkerProcesses:
    """Starts the worker of a data root, and one beside it.

    Args:
        command: The command line of a worker; by default this program, with this process's environment.
    """

    def __init__(self, root: DataRoot, command: tuple[str, ...] = (sys.executable, *MODULE_ARGS, "worker")) -> None:
        self._root = root
        self._command = command
        self._started_s: dict[str, float] = {}

    async def __call__(self, beside: str = "") -> None:
        """Start the worker of this name if there is none; one just started has time to get ready. Raises OSError."""
        await anyio.to_thread.run_sync(self._start, beside)

    def is_running(self) -> bool:
        """Tell whether there is a worker, beside which another one may be started. Blocks."""
        return is_held(self._root.worker_lock)

    def _start(self, beside: str) -> None:
        if is_held(self._root.worker_lock_of(beside)):  # there is one; when it ends, the next one starts at once
            self._started_s.pop(beside, None)
            return
        started_s = self._started_s.get(beside)
        if started_s is not None and time.monotonic() - started_s < READY_S:
            return
        self._started_s[beside] = time.monotonic()
        command = (*self._command, "--beside", beside) if beside else self._command
        env = {**os.environ, "AVA_DATA_ROOT": str(self._root.path)}
        start_detached(command, self._root.worker_words, self._root.path, env)
