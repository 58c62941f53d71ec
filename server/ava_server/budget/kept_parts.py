"""What is still kept of a plan's money for its later steps."""

from __future__ import annotations

from ava_audit.rows import RunRow
from ava_audit.view import View
from ava_server.run_config.config import config_of


def kept_micros(view: View, run: RunRow) -> int:
    """Return what a run must leave of its plan's money to later steps now, in micro-USD.

    What the runs of such a step have spent or hold was kept for them and is so no longer; a step that is over needs
    nothing.
    """
    leaves = config_of(run.config).leaves
    if run.plan_id is None or not leaves:
        return 0
    committed = view.committed_by_step(run.plan_id, leaves)
    return sum(max(leaves[step] - micros, 0) for step, micros in committed.items())
