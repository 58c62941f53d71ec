"""What is still kept of a plan's money for its later steps."""

from __future__ import annotations

from collections.abc import Mapping

from ava_audit.rows import RunRow
from ava_audit.view import View
from ava_server.run_config.config import config_of


def kept_micros(view: View, run: RunRow) -> int:
    """Return what a run must leave of its plan's money to later steps now, in micro-USD."""
    if run.plan_id is None:
        return 0
    return kept_of_plan(view, run.plan_id, config_of(run.config).leaves)


def kept_of_plan(view: View, plan_id: str, leaves: Mapping[str, int]) -> int:
    """Return how much of what is left to each of these steps is still kept, in micro-USD.

    What the runs of such a step have spent or hold was kept for them and is so no longer; a step that is over needs
    nothing.
    """
    if not leaves:
        return 0
    committed = view.committed_by_step(plan_id, leaves)
    return sum(max(leaves[step] - micros, 0) for step, micros in committed.items())
