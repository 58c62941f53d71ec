"""The workers to which a manager leaves runs: those of an engine, and the background process of a data root."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio
import anyio.to_thread

from ava_audit.store.backend import Instances
from ava_audit.store.store import Store
from ava_server.config.credentials import Credentials
from ava_server.core.background import WorkerProcesses
from ava_server.runs.owner.blockers import blocker_in
from ava_server.runs.owner.offers import STOPPING, faults_in, missing_in
from ava_server.runs.owner.run_notes import RunNote

log = logging.getLogger("ava.manager")

NO_WORKER = "no worker is running: start one with `ava worker --stay`"
NO_QUEUE = "nobody answers for this queue; its user's account may lack it"
"""What is said of a worker that finds no queue where there is one: it has the run that waits."""
NO_LABEL_S = 40.0
"""Seconds without a worker that has a run's labels and can take it, after which its status says so."""
WORKERS_EVERY_S = 5.0
"""How often a process that leaves all runs to workers looks whether there are any."""
WORKER_TAKES_S = 20.0
"""Seconds that a worker has to take a run; then this process does: it may be unable to start, or hang."""


@dataclass(frozen=True)
class _Worker:
    """A worker that takes runs, by its last beat; `faults`: by queue, why it can take nothing from it."""

    host: str
    labels: frozenset[str]
    faults: Mapping[str, str]


class LiveWorkers:
    """The workers that are alive; looked up at most every `WORKERS_EVERY_S`."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._seen_s = float("-inf")
        self._workers: Sequence[_Worker] = ()

    async def look(self) -> None:
        if anyio.current_time() - self._seen_s <= WORKERS_EVERY_S:
            return
        live = await anyio.to_thread.run_sync(self._instances.live)
        self._seen_s = anyio.current_time()
        workers: list[_Worker] = []
        for instance in live:
            offers = instance.announcement.offers
            if instance.announcement.kind == "worker" and not offers.get(STOPPING):
                labels = frozenset(map(str, offers.get("labels", ())))
                faults = dict.fromkeys(missing_in(offers), NO_QUEUE) | faults_in(offers)
                workers.append(_Worker(instance.host, labels, faults))
        self._workers = workers

    def none_at_all(self) -> str | None:
        """Return that there is no worker; None if there is one."""
        return None if self._workers else NO_WORKER

    def none_for(self, note: RunNote, queue: str) -> str | None:
        """Return that no live worker can take a run from a queue, once that has been so for a while."""
        if not self._workers:
            return NO_WORKER
        labels = note.labels or frozenset()
        fitting = [worker for worker in self._workers if labels <= worker.labels]
        if any(queue not in worker.faults for worker in fitting):
            note.no_label_since = None
            return None
        now_s = note.clock.now_s()
        if note.no_label_since is None:
            note.no_label_since = now_s
        if now_s - note.no_label_since < NO_LABEL_S:
            return None
        who = "no worker"
        if labels:
            who += f" with the label {' and '.join(sorted(labels))}"
        if fitting:
            return f"{who} can take it; the one on {fitting[0].host} says: {fitting[0].faults[queue]}"
        return f"{who} for {NO_LABEL_S:.0f} s: start one with `ava worker --label`"


class BackgroundWorkers:
    """The background process of a data root, and those beside it that have the environment of another process."""

    def __init__(
        self, store: Store, instances: Instances, processes: WorkerProcesses, credentials: Credentials
    ) -> None:
        self._store = store
        self._instances = instances
        self._processes = processes
        self._credentials = credentials

    async def leave(self, run_id: str, note: RunNote) -> str | None:
        """Leave a run to a worker and start it if need be; where no worker takes it, return why.

        Where the one that is running cannot run it or does not take it, one beside it has this process's environment.
        """
        now_s = note.clock.now_s()
        if note.left_since is None:
            note.left_since = now_s
        is_late = now_s - note.left_since >= WORKER_TAKES_S
        live = await self._store.look(lambda view: view.live(run_id))
        blocker = blocker_in(live[0] if live is not None else "")
        is_unable = False
        if blocker.unable:
            is_unable = await anyio.to_thread.run_sync(self._instances.alive, blocker.unable)
        hangs = is_late and not note.left_to and await anyio.to_thread.run_sync(self._processes.is_running)
        if is_unable or hangs:
            beside = await anyio.to_thread.run_sync(self._credentials.session_digest)
            if is_unable and blocker.beside == beside:
                return self._run_here(run_id, f"the background process cannot run it: {blocker.why}")
            if note.left_to != beside:  # it has its own time
                note.left_to = beside
                note.left_since = now_s
                is_late = False
        if is_late:
            return self._run_here(run_id, f"no background process has taken it within {WORKER_TAKES_S:.0f} s")
        await self._processes(note.left_to)
        return None

    def _run_here(self, run_id: str, why: str) -> str:
        log.warning("%s runs in this process and is interrupted when that ends, because %s", run_id, why)
        return why
