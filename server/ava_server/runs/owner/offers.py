"""What a worker was given by an engine: each offer is claimed as any other run, and answered by what the log says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import anyio

from ava_audit.rows import RUNNING, RunRow
from ava_audit.store.backend import Membership
from ava_roles.wrap import one_line
from ava_server.runs.record.lifecycle import paused


def may_forget(run: RunRow | None, instance: str, now_us: int) -> bool | None:
    """Return whether the message for a run may be forgotten; None while this instance has the run.

    It may when the run has ended, or waits and will be delivered again. It may not while another instance has the run:
    that one may die, and this message may be the one that brings the run to the next.
    """
    if run is None or run.ended or paused(run, now_us):
        return True
    if run.state == RUNNING and run.instance == instance:
        return None
    return False


REFUSED = "refused"
"""What a worker tells others: how many offers it has refused because another one has the run."""


STOPPING = "stopping"
"""What a worker tells others that takes nothing more."""


FAULTS = "faults"
"""What a worker tells others: by queue of its engine, why it can take nothing from it."""
MISSING = "missing"
"""What a worker tells others: queues for which nobody answers it; a queue is made with its first run."""
LONGEST_FAULT = 300
"""Characters of such a reason that are told."""


BAD_MESSAGES = "bad_messages"
"""What a worker tells others: how many messages of its engine it could not use."""


def faults_in(facts: Mapping[str, object]) -> dict[str, str]:
    """Return by queue why a worker can take nothing from it, of what that worker tells others."""
    told = facts.get(FAULTS)
    if not isinstance(told, Mapping):
        return {}
    reasons = cast("Mapping[object, object]", told)
    return {str(queue): one_line(str(why), LONGEST_FAULT) for queue, why in reasons.items()}


def missing_in(facts: Mapping[str, object]) -> frozenset[str]:
    """Return the queues for which nobody answers a worker, of what that worker tells others."""
    told = facts.get(MISSING)
    if not isinstance(told, list):
        return frozenset()
    return frozenset(str(queue) for queue in cast("list[object]", told))


@dataclass
class _Offer:
    """A run that an engine has given; once `answered`, `may_forget` says whether its message is done with."""

    answered: anyio.Event = field(default_factory=anyio.Event)
    may_forget: bool = False


class Offers:
    """The runs that an engine has given to this process: the `Body` of its delivery.

    Attributes:
        settled_s: Until when nothing new is looked at, on anyio's clock.
        leaving: This process is being stopped, and takes nothing more.
        refused: How many offers were refused because another instance has the run.
        faults: By queue, why nothing can be taken from it.
        missing: Queues for which nobody answers.
        bad_messages: How many messages of the engine could not be used.
    """

    def __init__(self, wake: Callable[[], None], membership: Membership) -> None:
        self.settled_s = float("-inf")
        self.leaving = False
        self.refused = 0
        self.faults: dict[str, str] = {}
        self.missing: set[str] = set()
        self.bad_messages = 0
        self.wake = wake
        self._membership = membership
        self._offers: dict[str, _Offer] = {}

    def is_alive(self) -> bool:
        return self._membership.holds()

    def takes_runs(self) -> bool:
        return not self.leaving and self.is_alive()

    def show_fault(self, queue: str, why: str) -> None:
        why = why[:LONGEST_FAULT]
        if self.faults.get(queue, "") == why:
            return
        self.faults[queue] = why
        if not why:
            del self.faults[queue]
        self._membership.tell({FAULTS: dict(self.faults)})

    def show_missing(self, queue: str, *, missing: bool) -> None:
        if missing == (queue in self.missing):
            return
        if missing:
            self.missing.add(queue)
        else:
            self.missing.remove(queue)
        self._membership.tell({MISSING: sorted(self.missing)})

    def count_bad_message(self) -> None:
        self.bad_messages += 1
        self._membership.tell({BAD_MESSAGES: self.bad_messages})

    async def __call__(self, run_id: str) -> bool:
        """Offer a run to the manager's next look at the log, and return whether its message may be forgotten.

        Two calls for the same run share one offer. While this process is being stopped, a message is never forgotten.
        """
        if self.leaving:
            return False
        offer = self._offers.setdefault(run_id, _Offer())
        self.wake()
        await offer.answered.wait()
        return offer.may_forget

    def stop_taking(self) -> None:
        """Take nothing more, and tell so; the next look answers what is open, and runs that go on keep their offers."""
        self.leaving = True
        self._membership.tell({STOPPING: True})

    def leave(self) -> None:
        """Take nothing more, and give back what is open: no look will answer it."""
        self.stop_taking()
        for offer in self._offers.values():
            offer.answered.set()
        self._offers.clear()

    def open(self) -> frozenset[str]:
        """Return the runs that were offered and not answered."""
        return frozenset(self._offers)

    def answer(self, run: RunRow | None, run_id: str, now_us: int) -> None:
        """Answer an offer that this process does not drive, unless it will drive it again."""
        forget = may_forget(run, self._membership.name, now_us)
        if forget is None and not self.leaving:
            return
        if run is not None and run.state == RUNNING and run.instance != self._membership.name:
            self.refused += 1
            self._membership.tell({REFUSED: self.refused})
        offer = self._offers.pop(run_id)
        offer.may_forget = bool(forget)
        offer.answered.set()
