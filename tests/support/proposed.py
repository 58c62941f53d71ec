"""Proposals of a lab: those that wait, and what an approval of some of them is."""

from __future__ import annotations

from typing import Any

from ava_audit.units import now_us
from ava_server.approval.decisions import Approval, CheckedApproval, check_approval
from ava_server.approval.proposals import Pending, pending_proposals
from support.runtime import Lab


async def waiting_of(lab: Lab) -> list[Pending]:
    user = lab.runtime.user
    limits, at_us = lab.runtime.spawn_limits_of(user), now_us()
    return await lab.store.read(lambda view: pending_proposals(view, user, limits, at_us))


async def checked(lab: Lab, *made: Any) -> CheckedApproval:
    asked = Approval(tuple(each.pending_id for each in made), tuple(each.approval_line for each in made))
    who, limits, at_us = lab.session.who, lab.runtime.spawn_limits_of(lab.runtime.user), now_us()
    if len(made) > 1:
        lines = (await lab.approve(*made)).approval_lines
        asked = Approval(asked.pending_ids, tuple(lines))
    found = await lab.store.read(lambda view: check_approval(view, asked, who, "elicitation", limits, at_us))
    assert isinstance(found, CheckedApproval), found
    return found
