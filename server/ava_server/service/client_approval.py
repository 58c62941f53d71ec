"""Approvals through the client: the person answers a form that it shows, or under the policy `human` decides on a page.

`confirm_spawn` asks about what it names, and `spawn_subagent` with `ask` about the proposal that it has just made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ava_audit.rows import ProposalRow
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
    reject,
)
from ava_server.approval.start_form import NOT_AGREED, apply_reply, question
from ava_server.service.access import Access, Operations
from ava_server.service.open_questions import ask_until, lowered_limits, outcomes, until_decided
from ava_server.service.page_links import REJECTED, PageDecisions, next_step
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

    async def decide(self, approval: Approval, caller: CallContext) -> ConfirmOutcome | None:
        """Ask the person, and approve what they agree to. Return None if this client can ask nobody.

        Raises:
            BadInput: What is in the form cannot be used.
            Refused: Subagents are switched off, or only the approval PIN approves and this client opens no pages.
            AnsweredLater: The client asks the person and calls again.
        """
        self._runtime.settings.refuse_off("nothing was started")
        if await self._access.needs_pin(approval.pending_ids):
            return await self._pages.decide(approval, caller)
        if caller.asking.person is None:
            return None
        await caller.record.begin()
        checked = await self._check(approval)
        if isinstance(checked, ConfirmOutcome):
            return checked
        person = caller.asking.person
        limits = self._runtime.spawn_limits_of(self._session.user)
        form = question(checked, person.lines)
        shown = [Shown("start", member.row.pending_id, member.row.digest) for member in checked.members]
        reply = await ask_until(
            lambda: until_decided(self._store, shown, limits),
            lambda: person.ask(form, lambda reply: apply_reply(checked, approval, reply)),
        )
        sentences = await outcomes(self._store, shown, limits)
        if sentences:
            return await self._decided_elsewhere(approval, sentences)
        if reply is None:
            return _not_agreed(checked, "cancel")
        if reply.action == "decline":
            return await self._reject(approval)
        if reply.action != "accept":
            return _not_agreed(checked, reply.action)
        if await self._access.needs_pin(approval.pending_ids):  # the PIN was set while the question was open
            return await self._pages.decide(approval, caller)
        agreed = apply_reply(checked, approval, reply)
        if form.screen is not None:
            screen = self._access.screen_for_log(form.screen)
            agreed = replace(agreed, screens=dict.fromkeys(approval.pending_ids, screen))
        return await self._store.do(approve(agreed, self._session.who, "elicitation", limits))

    async def _reject(self, approval: Approval) -> ConfirmOutcome:
        """Reject the proposals, as the person who was asked has done."""
        outcome = await self._store.do(reject(approval.pending_ids, self._session.who, "elicitation"))
        decisions: list[ProposalDecision] = []
        for decision in outcome.decisions:
            if decision.status == "rejected":
                decision = replace(decision, refused_because=REJECTED)
            decisions.append(decision)
        return replace(outcome, decisions=tuple(decisions))

    async def _decided_elsewhere(self, approval: Approval, sentences: Mapping[str, str]) -> ConfirmOutcome:
        """Return the state in the log of proposals of which some were decided while their question was open.

        `sentences` say in a sentence, by pending id, how each of those was decided.
        """
        user = self._session.user
        at_us = now_us()

        def decision(view: View, pending_id: str) -> ProposalDecision:
            change_or_refusal = check_proposal(view, pending_id, user, at_us)
            if isinstance(change_or_refusal, ProposalChange):  # it is still open
                return change_or_refusal.refused(STILL_WAITS)
            row = view.proposal(pending_id)
            if row is None or row.state not in ("approved", "rejected"):
                return change_or_refusal
            # It can no longer be decided, because that has been done: here that is an answer, and no refusal.
            if row.state == "approved":
                return ProposalDecision(pending_id, row.run_id, "approved")
            why = sentences.get(pending_id, "").removesuffix(".") or None
            return ProposalDecision(pending_id, row.run_id, "rejected", why)

        def outcome(view: View) -> ConfirmOutcome:
            approved: list[ProposalRow] = []
            for pending_id in approval.pending_ids:
                row = view.proposal(pending_id)
                if row is not None and row.state == "approved":
                    approved.append(row)
            plan_ids = {row.plan_id for row in approved}
            return ConfirmOutcome(
                tuple(decision(view, pending_id) for pending_id in approval.pending_ids),
                plan_id=plan_ids.pop() if len(plan_ids) == 1 else None,
                lowered=(*sentences.values(), *lowered_limits(view, approved)),
                elsewhere=True,
            )

        return await self._store.read(outcome)

    async def _check(self, approval: Approval) -> CheckedApproval | ConfirmOutcome:
        """Return the approval if it can be given now, or its refusal, which is then in the log."""
        who = self._session.who
        limits = self._runtime.spawn_limits_of(self._session.user)
        at_us = now_us()
        checked = await self._store.look(lambda view: check_approval(view, approval, who, "elicitation", limits, at_us))
        if isinstance(checked, Outcome):
            return await self._store.do(refuse(approval, who, "elicitation", limits))
        return checked


def _not_agreed(checked: CheckedApproval, action: NotAgreed) -> ConfirmOutcome:
    """Return the outcome of a question that the person did not decide; the proposals still wait."""
    decisions = tuple(member.refused(NOT_AGREED[action]) for member in checked.members)
    return ConfirmOutcome(decisions, not_agreed=action)


def not_started_next(outcome: ConfirmOutcome, again: str = CONFIRM_AGAIN) -> str:
    """Return what a caller does after a decision that started nothing; `again` says how the person is asked again."""
    if outcome.not_agreed is None:
        return _closed_next(outcome)
    if outcome.page is not None:
        return next_step(outcome, outcome.not_agreed, again)
    ids = " ".join(decision.pending_id for decision in outcome.decisions)
    waiting = "the proposal still waits"
    if len(outcome.decisions) != 1:
        waiting = "the proposals still wait"
    next_step_text = NEXT_STEPS[outcome.not_agreed].format(again=again)
    return f"Nothing was started, and {waiting}. {next_step_text}. {NOT_ASKED.format(ids=ids)}."


def _closed_next(outcome: ConfirmOutcome) -> str:
    """Return what a caller does after proposals were rejected or refused."""
    if any(decision.status == "rejected" for decision in outcome.decisions):
        return "Nothing was started. Ask the person what they want instead."
    started_before = [decision.before for decision in outcome.decisions if decision.before]
    if started_before:
        return f"Nothing new was started: {'; '.join(started_before)}."
    return "Nothing was started."
