"""A clock that stands still while this process is stopped: by `docker pause`, Ctrl-Z, a debugger, or a paused machine.

Other clocks go on then. A process that measures with them how long it has been idle, or how long it has waited for
another process, takes the whole stop for such a time when it wakes up.
"""

from __future__ import annotations

import time

LONGEST_S = 2.0
"""The most that one reading counts, in seconds: twice the pause between two readings, for a busy machine."""


class AwakeClock:
    """Counts the seconds in which this process could work, for one who reads it at least once a second."""

    def __init__(self) -> None:
        self._read_s = time.monotonic()
        self._awake_s = 0.0

    def now_s(self) -> float:
        before_s, self._read_s = self._read_s, time.monotonic()
        self._awake_s += min(self._read_s - before_s, LONGEST_S)
        return self._awake_s
