"""What became of a question that no longer waits, in the one wording that every surface draws: who decided, and when.

`closed_proposal` is about proposals, `closed_resumption` about interrupted runs. `runs/asking/extension.py` and
`runs/asking/questions.py` word the requests and questions of runs with the same `decided_where`.
"""

from __future__ import annotations

from ava_audit.entries import Entry
from ava_audit.events import Channel, RunClaimed, RunResumed
from ava_audit.rows import RunRow
from ava_audit.units import local_second
from ava_audit.view import View
from ava_server.approval.channels import WAYS
from ava_server.approval.lookup import approval_of
from ava_server.core.ids import label


def decided_where(entry: Entry, channel: Channel | None) -> str:
    """Return where and when something was decided: `in a terminal at Sat 14:05:33 CET`."""
    at = f"at {local_second(entry.ts_us)}"
    return at if channel is None else f"{WAYS[channel].where} {at}"


def run_now(run: RunRow) -> str:
    """Return what a run does now, in words: `researcher S-… is running`, or that it has ended, and how."""
    if run.ended:
        return f"{label(run)} has ended ({run.state})"
    return f"{label(run)} is {run.state}"


def closed_proposal(view: View, run: RunRow) -> str:
    """Return what became of a proposal that no longer waits, in a sentence without its full stop."""
    approval = approval_of(view, run)
    entry, decided = approval.decided, approval.decision
    if entry is None or decided is None:
        return f"{run.pending_id} no longer waits: {run_now(run)}"
    where = decided_where(entry, decided.channel)
    if decided.decision == "approved":
        return f"{run.pending_id} was approved already, {where}, and {run_now(run)}"
    if decided.decision == "expired":
        return f"{run.pending_id} has expired; it did not start"
    if decided.decision == "superseded":
        return f"{run.pending_id} was replaced by a newer proposal {where}; it did not start"
    verb = "withdrawn" if run.state == "cancelled" else "rejected"
    return f"{run.pending_id} was {verb} already, {where}; it did not start"


def closed_resumption(view: View, run: RunRow) -> str:
    """Return where an interrupted or held run was resumed, or what it does now, in a sentence without its full stop."""
    resumed = view.last_entry(run.id, "RunResumed")
    claimed = view.last_entry(run.id, "RunClaimed")
    if resumed is None or not isinstance(resumed.fact, RunResumed):
        return run_now(run)
    if claimed is not None and isinstance(claimed.fact, RunClaimed):
        by_itself = claimed.seq > resumed.seq and claimed.fact.reason != "resume"
        if by_itself:  # a server took it over since it was last resumed
            return run_now(run)
    return f"{run.id} was resumed already, {decided_where(resumed, resumed.fact.channel)}, and {run_now(run)}"
