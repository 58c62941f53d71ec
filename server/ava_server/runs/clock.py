"""The clock of a run: how long it has been active, and time limits that count only that.

The clock stands still while the run waits for money that other runs hold; the time of its plan does not.

Where a run loses its owner, what counts is what certainly ran: up to its last entry, or up to the moment at which its
owner was last seen at work, whichever is later (`seen_after`, `active_us_of`). An owner shows itself every few seconds
(`Instances.seen_us`), so after a kill at most these are missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio

from ava_audit.rows import RunRow
from ava_audit.view import loads


def seen_after(run: RunRow, seen_us: int | None, now_us: int) -> int | None:
    """Return when the owner of a run was last seen at work, in microseconds, if that is after the last entry.

    None where it is not, and for a run without an owner.
    """
    if seen_us is None or run.claimed_us is None or run.last_us is None:
        return None
    certain_us = min(seen_us, now_us)  # the clock of a file system or a database may be ahead
    if certain_us <= run.last_us:
        return None
    return certain_us


def active_us_of(run: RunRow, seen_us: int | None = None) -> int:
    """Return how long a run has worked when it loses its owner; a clock that was set back adds nothing.

    `seen_us`: as `seen_after` gives it.
    """
    if run.claimed_us is None or run.last_us is None:
        return run.active_us
    until_us = max(run.last_us, seen_us or 0)
    if run.money_wait is not None:  # its clock stands still
        until_us = int(loads(run.money_wait)["since_us"])
    return run.active_us + max(0, until_us - run.claimed_us)


class RunClock:
    """The clock of one run under one claim.

    Args:
        active_s: How long the run has been active before, in seconds.
        now: The monotonic clock by which active time is measured.
    """

    def __init__(self, active_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = now() - active_s
        self._limits: dict[anyio.CancelScope, float] = {}  # and the time after which each of them ends in any case
        self._waits = 0
        self._left: dict[anyio.CancelScope, float] = {}
        self._stopped_at = 0.0
        self._stopped_since = 0.0
        self._stopped_before_s = 0.0

    @property
    def active_s(self) -> float:
        """Seconds for which the run has been active, over all its claims."""
        until = self._stopped_at if self._waits else self._now()
        return until - self._began

    @property
    def stopped_s(self) -> float:
        """Seconds for which it has stood still."""
        now_s = time.monotonic() - self._stopped_since if self._waits else 0.0
        return self._stopped_before_s + now_s

    @contextmanager
    def limit(self, seconds: float, plan_s: float = math.inf) -> Generator[anyio.CancelScope]:
        """Cancel the body after `seconds` of active time, or after `plan_s` seconds of any time."""
        latest = anyio.current_time() + plan_s
        with anyio.move_on_after(min(seconds, plan_s)) as scope:
            self._limits[scope] = latest
            try:
                yield scope
            finally:
                del self._limits[scope]

    @contextmanager
    def stopped(self) -> Generator[None]:
        """Stop it while the body runs; several may at once."""
        if self._waits == 0:
            self._stopped_at = self._now()
            self._stopped_since = time.monotonic()
            began = anyio.current_time()
            self._left = {scope: scope.deadline - began for scope in self._limits}
            for scope, latest in self._limits.items():
                scope.deadline = latest
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                self._restart()

    def _restart(self) -> None:
        self._began += self._now() - self._stopped_at
        self._stopped_before_s += time.monotonic() - self._stopped_since
        now = anyio.current_time()
        for scope, latest in self._limits.items():
            if scope in self._left:
                scope.deadline = min(now + self._left[scope], latest)
