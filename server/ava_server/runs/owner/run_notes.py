"""What a manager has noted of runs: why it does not take them, when it tries again, and since when they wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import anyio

from ava_audit.rows import RUNNING, RunRow
from ava_audit.store.store import Store
from ava_server.core.awake_clock import AwakeClock
from ava_server.runs.owner.blockers import Blocker, blocked_note

TRY_AGAIN_FIRST_S = 1.0
"""Seconds until a run that cannot be run here is tried again for the first time; each further wait is twice as long."""
TRY_AGAIN_MOST_S = 60.0
"""The longest of these waits, in seconds."""


@dataclass
class RunNote:
    """What a manager has noted of a run.

    Attributes:
        clock: What the waits for other processes are measured by: a stop of this process is none.
        first_seen: When it was first seen in the queue, on that clock.
        not_before: Until when it is not tried again, on anyio's clock.
        wait_s: How long it was left alone the last time.
        faults: How many internal errors it had here.
        left_since: Since when it is left to the worker, on `clock`.
        left_to: The name of the worker beside the first one to which it is left since then; empty for the first one.
        why_with_host: Why this process runs it, and no worker, although it was approved to outlive its host.
        labels: The labels that its machine needs, once they were read.
        no_label_since: Since when no live worker that has these can take it, on `clock`.
        no_worker: What this process has last shown of why no worker takes it; None before it has looked at that.
    """

    clock: AwakeClock
    first_seen: float | None = None
    not_before: float = 0.0
    wait_s: float = TRY_AGAIN_FIRST_S / 2
    faults: int = 0
    left_since: float | None = None
    left_to: str = ""
    why_with_host: str = ""
    cancelled: bool = False
    cancel_reason: str | None = None
    labels: frozenset[str] | None = None
    no_label_since: float | None = None
    no_worker: str | None = None

    @property
    def is_due(self) -> bool:
        """Whether it may be tried again by now."""
        return anyio.current_time() >= self.not_before

    def retry_later(self) -> None:
        """Leave the run alone, each time twice as long."""
        self.wait_s = min(2 * self.wait_s, TRY_AGAIN_MOST_S)
        self.not_before = anyio.current_time() + self.wait_s

    def waited_s(self) -> float:
        """Return how long the run has been seen in the queue, from now on."""
        now_s = self.clock.now_s()
        if self.first_seen is None:
            self.first_seen = now_s
        return now_s - self.first_seen


class RunNotes:
    """The notes of one process on runs.

    Attributes:
        waiting_for: By run, why this process cannot take it.
    """

    def __init__(self, store: Store, place: str, unable: Blocker | None) -> None:
        """`place`: what stands before each reason. `unable`: what others are told where this process cannot run one."""
        self.waiting_for: dict[str, str] = {}
        self._store = store
        self._place = place
        self._unable = unable
        self._clock = AwakeClock()
        self._notes: dict[str, RunNote] = {}

    def __getitem__(self, run_id: str) -> RunNote:
        """Return the note on a run, a new one if there is none."""
        return self._notes.setdefault(run_id, RunNote(self._clock))

    def wait(self, run_id: str, why: str, *, unable: bool = False) -> None:
        """Note what a run waits for, where every process can read it; `unable`: this process cannot run it."""
        why = f"{self._place}{why}"
        if self.waiting_for.get(run_id) == why:
            return
        self.waiting_for[run_id] = why
        blocker = Blocker(why)
        if unable and self._unable is not None:
            blocker = replace(self._unable, why=why)
        self._store.set_live(run_id, blocked_note(blocker))

    def wait_for_turn(self, run_id: str, why: str) -> None:
        """Note what a run waits for that no worker may take yet: the time of a worker begins later."""
        self[run_id].left_since = None
        self.wait(run_id, why)

    def wait_for_worker(self, run_id: str, why: str | None) -> None:
        """Note why no worker takes a run; take it back once that is over: then the workers say what it waits for."""
        note = self[run_id]
        if why is not None:
            self.wait(run_id, why)
        elif note.no_worker or run_id in self.waiting_for:
            self.waiting_for.pop(run_id, None)
            self._store.set_live(run_id, "")
        note.no_worker = why or ""

    def tidy(self, runs: Mapping[str, RunRow], gone: frozenset[str]) -> None:
        """Forget the runs that have ended, and of those that an instance has, for what and since when they waited."""
        for noted in (self.waiting_for, self._notes):
            for run_id in noted.keys() - runs.keys():
                del noted[run_id]
        for run_id, note in self._notes.items():
            row = runs[run_id]
            if row.instance is None or row.instance in gone:
                continue
            note.left_since = None
            if row.state == RUNNING:  # if it waits again, that is news
                self.waiting_for.pop(run_id, None)
