"""Approvals through the client: the person answers a form that it shows, or under the policy `human` decides on a page.

`confirm_spawn` asks about what it names, and `spawn_subagent` with `ask` about the proposal that it has just made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ava_audit.view import Outcome
from ava_server.approval.decisions import Approval, ConfirmOutcome, NotAgreed, approve, check_approval, refuse
from ava_server.approval.questions import NOT_AGREED, Person, apply_reply, question
from ava_server.core.errors import Refused
from ava_server.service.access import Access, CallContext, Operations
from ava_server.service.page_approval import ONLY_PIN, PageApprovals, after_page

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


class ClientApprovals(Operations):
    """Has the person at the client decide on proposals."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._pages = PageApprovals(access)

    async def decide(self, asked: Approval, caller: CallContext) -> ConfirmOutcome | None:
        """Approve what the person agrees to; None where this client can ask nobody.

        Raises:
            BadInput: What is in the form cannot be used.
            Refused: Subagents are switched off, or only the approval PIN approves and this client opens no pages.
            AnsweredLater: The client asks the person and calls again.
        """
        if not self._runtime.settings.enabled:
            raise Refused("subagents are switched off here (enabled = false in config.toml); nothing was started")
        if await self._access.needs_pin():
            return await self._on_page(asked, caller)
        if caller.person is None:
            return None
        await caller.record.begin()
        return await self._ask(asked, caller.person, caller)

    async def _on_page(self, asked: Approval, caller: CallContext) -> ConfirmOutcome:
        if caller.pages is None:
            raise Refused(ONLY_PIN.format(ids=" ".join(asked.pending_ids)))
        await caller.record.begin()
        return await self._pages.decide(asked, caller.pages, caller.progress)

    async def _ask(self, asked: Approval, person: Person, caller: CallContext) -> ConfirmOutcome:
        """Ask the person and approve what they agree to; what cannot start is refused without a question."""
        who, limits = self._session.who, self._runtime.spawn_limits_of(self._session.user)
        now_us = time.time_ns() // 1000
        checked = await self._store.look(lambda view: check_approval(view, asked, who, "elicitation", limits, now_us))
        if isinstance(checked, Outcome):
            return await self._store.do(refuse(asked, who, "elicitation", limits))
        reply = await person.ask(question(checked))
        if reply.action != "accept":
            return ConfirmOutcome(
                tuple(member.refused(NOT_AGREED[reply.action]) for member in checked.members), not_agreed=reply.action
            )
        if await self._access.needs_pin():  # it was set while the question was open
            return await self._on_page(asked, caller)
        agreed = apply_reply(checked, asked, reply)
        return await self._store.do(approve(agreed, who, "elicitation", limits))


def not_started_next(decided: ConfirmOutcome, again: str = CONFIRM_AGAIN) -> str:
    """Return what a caller does after a decision that started nothing.

    Args:
        decided: The decision.
        again: How the person is asked again.
    """
    if decided.page is not None:
        return after_page(decided)
    if decided.not_agreed:
        ids = " ".join(made.pending_id for made in decided.decisions)
        waits = "the proposal still waits" if len(decided.decisions) == 1 else "the proposals still wait"
        then = NEXT_STEPS[decided.not_agreed].format(again=again)
        return f"Nothing was started, and {waits}. {then}. {NOT_ASKED.format(ids=ids)}."
    if any(made.running for made in decided.decisions):
        return "Nothing new was started; what was approved before continues."
    return "Nothing was started."
