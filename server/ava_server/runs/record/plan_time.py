"""The time of a plan, which its runs share, and what it leaves them."""

from __future__ import annotations

from ava_audit.rows import PlanCaps, RunRow
from ava_audit.view import View

PLAN_TIME_OVER = "the plan's time is over"
WRAP_S = 30.0
"""Seconds of a run's time that are kept for its wrap-up; at most a fifth of it, or of its plan's."""
PLAN_RESERVE_S = 60
"""Seconds of its plan's time that a run keeps for its last turn while it waits for a person."""


def plan_time(caps: PlanCaps | None, now_us: int) -> float | None:
    """Return the seconds left of a plan's time; None where it has no limit, or has not started.

    It stands still while all of its runs that are left wait for a person.
    """
    return None if caps is None else caps.left_s(now_us)


def wrap_time_s(timeout_s: float, plan_timeout_s: float | None) -> float:
    """Return how many seconds of a run's time are kept for its wrap-up.

    `timeout_s`: its own; `plan_timeout_s`: that of its plan, None without one.
    """
    if plan_timeout_s is not None:
        timeout_s = min(timeout_s, plan_timeout_s)
    return min(WRAP_S, timeout_s / 5)


def plan_busy_us(view: View, run: RunRow) -> int:
    """Return when a run of a plan was last at work: the plan writes little itself. 0 for any other run."""
    if not run.is_plan:
        return 0
    return max((row.last_us or 0 for row in view.step_runs(run.id)), default=0)


def wait_for_person(view: View, run: RunRow | None, wait_s: float, now_us: int) -> float:
    """Return how many seconds a run may wait for a person: at most `wait_s`, and what the time of its plan leaves."""
    plan_id = run.plan_id if run is not None else None
    left_s = plan_time(view.plan_caps(plan_id), now_us)
    if left_s is None:
        return wait_s
    return min(wait_s, left_s - PLAN_RESERVE_S)
