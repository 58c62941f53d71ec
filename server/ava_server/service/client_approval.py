"""Approvals through the client: the person answers a form that it shows, or under the policy `human` decides on a page.

`confirm_spawn` asks about what it names, and `spawn_subagent` with `ask` about the proposal that it has just made.
"""

from __future__ import annotations

from collections.abc import Mapping

from ava_audit.units import now_us
from ava_audit.view import Outcome, View
from ava_server.approval.decide import Shown
from ava_server.approval.decisions import (
    Approval,
    CheckedApproval,
    ConfirmOutcome,
    NotAgreed,
    ProposalChange,
    ProposalDecision,
    approve,
    check_approval,
    check_proposal,
    refuse,
)
from ava_server.approval.questions import NOT_AGREED, apply_reply, question
from ava_server.service.access import Access, Operations
from ava_server.service.outcomes import ask_until, lowered_limits, outcomes, until_decided
from ava_server.service.pages import PageDecisions, next_step
from ava_server.service.record import CallContext

NOT_ASKED = (
    "If nobody can be asked here (a host without a screen answers like this by itself), a person approves it in a"
    " terminal, with `ava approve {ids}`; the policy auto (config.toml) starts small ones without a question"
)
NEXT_STEPS: Mapping[NotAgreed, str] = {
    "decline": "If the person said no, ask what they want instead, and call again only if they tell you to",
    "cancel": "When the person is there, {again}, and they are asked again",
    "silent": "When the person is there, {again}, and they are asked again",
}
"""What a caller does after a person was asked and did not agree; `{again}` says how they are asked again."""
CONFIRM_AGAIN = "call confirm_spawn again with the same arguments"
STILL_WAITS = "another of these was decided elsewhere, which closed the question; this one still waits"


class ClientApprovals(Operations):
    """Has the person at the client decide on proposals."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._pages = PageDecisions(access)

    async def decide(self, asked: Approval, caller: CallContext) -> ConfirmOutcome | None:
        """Approve what the person agrees to; None where this client can ask nobody.

        Raises:
            BadInput: What is in the form cannot be used.
            Refused: Subagents are switched off, or only the approval PIN approves and this client opens no pages.
            AnsweredLater: The client asks the person and calls again.
        """
        self._runtime.settings.refuse_off("nothing was started")
        if await self._access.needs_pin(asked.pending_ids):
            return await self._pages.decide(asked, caller)
        if caller.asking.person is None:
            return None
        await caller.record.begin()
        checked = await self._checked(asked)
        if isinstance(checked, ConfirmOutcome):
            return checked
        person, limits = caller.asking.person, self._runtime.spawn_limits_of(self._session.user)
        asks = question(checked)
        shown = [Shown("start", member.row.pending_id, member.row.digest) for member in checked.members]
        reply = await ask_until(
            lambda: until_decided(self._store, shown, limits),
            lambda: person.ask(asks, lambda given: apply_reply(checked, asked, given)),
        )
        elsewhere = await outcomes(self._store, shown, limits)
        if elsewhere:
            return await self._decided_elsewhere(asked, elsewhere)
        if reply is None or reply.action != "accept":
            action: NotAgreed = "cancel"
            if reply is not None and reply.action != "accept":
                action = reply.action
            refused = tuple(member.refused(NOT_AGREED[action]) for member in checked.members)
            return ConfirmOutcome(refused, not_agreed=action)
        if await self._access.needs_pin(asked.pending_ids):  # it was set while the question was open
            return await self._pages.decide(asked, caller)
        agreed = apply_reply(checked, asked, reply)
        return await self._store.do(approve(agreed, self._session.who, "elicitation", limits))

    async def _decided_elsewhere(self, asked: Approval, elsewhere: Mapping[str, str]) -> ConfirmOutcome:
        """Return what the log has of proposals of which some were decided while their question was open.

        `elsewhere`: what became of those, in sentences.
        """
        user, at_us = self._session.user, now_us()

        def decision(view: View, pending_id: str) -> ProposalDecision:
            found = check_proposal(view, pending_id, user, at_us)
            if isinstance(found, ProposalChange):
                return found.refused(STILL_WAITS)
            row = view.proposal(pending_id)
            if row is None or row.state not in ("approved", "rejected"):
                return found
            became = elsewhere.get(pending_id, "").removesuffix(".") or None
            if row.state == "approved":
                return ProposalDecision(pending_id, row.run_id, "approved")
            return ProposalDecision(pending_id, row.run_id, "rejected", became)

        def query(view: View) -> ConfirmOutcome:
            decisions = tuple(decision(view, pending_id) for pending_id in asked.pending_ids)
            rows = [row for row in map(view.proposal, asked.pending_ids) if row is not None and row.state == "approved"]
            plan_ids = {row.plan_id for row in rows}
            return ConfirmOutcome(
                decisions,
                plan_id=plan_ids.pop() if len(plan_ids) == 1 else None,
                lowered=(*elsewhere.values(), *lowered_limits(view, rows)),
                elsewhere=True,
            )

        return await self._store.read(query)

    async def _checked(self, asked: Approval) -> CheckedApproval | ConfirmOutcome:
        """Return an approval that can be given now, or else its refusal."""
        who, limits, at_us = self._session.who, self._runtime.spawn_limits_of(self._session.user), now_us()
        checked = await self._store.look(lambda view: check_approval(view, asked, who, "elicitation", limits, at_us))
        if isinstance(checked, Outcome):
            return await self._store.do(refuse(asked, who, "elicitation", limits))
        return checked


def not_started_next(decided: ConfirmOutcome, again: str = CONFIRM_AGAIN) -> str:
    """Return what a caller does after a decision that started nothing; `again` says how the person is asked again."""
    if decided.page is not None:
        return next_step(decided, again)
    if decided.not_agreed:
        ids = " ".join(made.pending_id for made in decided.decisions)
        waits = "the proposal still waits" if len(decided.decisions) == 1 else "the proposals still wait"
        then = NEXT_STEPS[decided.not_agreed].format(again=again)
        return f"Nothing was started, and {waits}. {then}. {NOT_ASKED.format(ids=ids)}."
    if before := [made.before for made in decided.decisions if made.before]:
        return f"Nothing new was started: {'; '.join(before)}."
    return "Nothing was started."
