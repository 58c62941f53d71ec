"""How long a run has been active, as the log says it.

Where a run loses its owner, what counts is what certainly ran: up to its last entry, or up to the moment at which its
owner was last seen at work, whichever is later (`seen_after`, `active_us_of`). An owner shows itself every few seconds
(`Instances.seen_us`), so after a kill at most these are missing.
"""

from __future__ import annotations

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
