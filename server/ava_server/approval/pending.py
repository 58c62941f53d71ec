"""What waits for approval, as a person is shown it, at the server and from elsewhere."""

from __future__ import annotations

from pydantic import BaseModel

from ava_audit.rows import WAITING, RunRow
from ava_audit.view import View
from ava_server.approval.proposals import texts_of
from ava_server.approval.run_config import config_of
from ava_server.approval.summary import approval_line, group_line, proposal_message
from ava_server.core.ids import label


class Pending(BaseModel):
    """A proposal that waits.

    Attributes:
        pending_id: Its id.
        subagent_id: The run that it would be.
        message: What is said of it.
        approval_line: What its approval repeats.
        digest: Of everything that is approved with it.
        max_cost_micros: Its cap, in micro-USD.
        free: It can cost nothing.
        expires_us: Until when it waits, in microseconds since 1970.
    """

    pending_id: str
    subagent_id: str
    message: str
    approval_line: str
    digest: str
    max_cost_micros: int
    free: bool
    expires_us: int


def pending(view: View, run: RunRow) -> Pending | str:
    """Return a proposal that waits, or why it does not any more. An expired one is for whoever asks to tell."""
    proposal, texts = view.proposal(run.pending_id), texts_of(view, run)
    if proposal is None or proposal.state != WAITING or texts is None:
        return f"{run.pending_id} does not wait any more: {label(run)} is {run.state}."
    config = config_of(run.config)
    return Pending(
        pending_id=run.pending_id,
        subagent_id=run.id,
        message=proposal_message(config, texts),
        approval_line=approval_line(config, texts),
        digest=proposal.digest,
        max_cost_micros=config.max_cost_micros,
        free=bool(config.price.get("free")),
        expires_us=proposal.expires_us,
    )


def all_pending(view: View, user: str, now_us: int) -> list[Pending]:
    """Return all of a user that waits and has not expired, the oldest first."""
    found = [pending(view, run) for run in view.runs(user=user, states=(WAITING,), limit=-1)]
    return [one for one in found if isinstance(one, Pending) and one.expires_us > now_us]


def together_line(waiting: list[Pending], cap_micros: int | None, timeout_s: float | None) -> str:
    """Return the line of several together, as an approval has to repeat it; without a cap of their own, their sum."""
    cap = sum(one.max_cost_micros for one in waiting) if cap_micros is None else cap_micros
    return group_line(len(waiting), None if all(one.free for one in waiting) else cap, timeout_s)
