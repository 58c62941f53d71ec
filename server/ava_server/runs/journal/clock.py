"""The clock of a run: how long it has been active, and time limits that count only that.

The clock stands still while the run waits for money that other runs hold; the time of its plan does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio


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
