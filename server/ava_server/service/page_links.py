"""Ava's pages, where only a person decides: the links to them in answers, and the wait for the decision.

Under the policy `human`, what a client answers is not a decision: a run starts only by an approval in the log that took
the PIN (or what else the pages ask for), on the page or in a terminal. A client opens the page for its person
(`PageOpener`), or its model shows them a link (`ProposalLinks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import anyio

from ava_audit.errors import AuditError
from ava_audit.rows import WAITING, ProposalRow
from ava_audit.units import now_us
from ava_audit.view import Outcome, View
from ava_server.approval.decide import ONLY_PERSON
from ava_server.approval.decisions import (
    Approval,
    ConfirmOutcome,
    NotAgreed,
    ProposalChange,
    ProposalDecision,
    check_approval,
    check_proposal,
    refuse,
)
from ava_server.approval.start_form import LinkNeed, PageQuestion
from ava_server.core.errors import AvaError, BadInput, Refused, with_advice
from ava_server.render.responses import Answer, CheckAnswer, ConfirmAnswer, SpawnAnswer
from ava_server.service.access import Operations, Progress
from ava_server.service.check import LOOK_EVERY_S, PROGRESS_EVERY_S
from ava_server.service.open_questions import lowered_limits

if TYPE_CHECKING:
    from ava_server.service.record import CallContext

REJECTED = "the person rejected it"
WHY: Mapping[NotAgreed, str] = {
    "decline": "the person, or a host without a person, declined to open the page; the proposal still waits",
    "cancel": "the person closed the question, or nobody saw it; the proposal still waits",
    "silent": "it still waits for the person",
}
"""Why nothing has started, by how the wait ended."""
_ASKED = (
    "Ava asks for your decision. Check it on the page, and approve it there with your approval PIN, or reject it; then"
    " continue here."
)
_LATER = (
    "Show the person where they can decide: {page}, or in a terminal with `ava approve {ids}`. It starts then."
    " {again} to wait for that."
)
_ELSEWHERE = (
    "It starts as soon as the person approves it, with the link of the proposal or `ava approve {ids}` in a terminal."
    " Do not wait in a loop: end your turn, and call check_subagent when they say that they have decided."
)
_IF_NO = "If the person said no, ask what they want instead."
_LINK = ", or this link, which works once, within 10 minutes: {link}"
_LATER_LINK = (
    '. Ava\'s pages are still starting: check_subagent with subagent_id "{subagent_id}" gives a link once they have'
    " started"
)
_NO_LINK = "There is no link, because Ava's pages cannot be served: {}"
_NEW_LINK = "Show the person this new link to the proposal, which works once, within 10 minutes: {}"


class PageDecisions(Operations):
    """Has the person behind a call decide on pages."""

    async def decide(self, approval: Approval, caller: CallContext) -> ConfirmOutcome:
        """Send the person to the page of the proposals, and wait until the log has their decision.

        Raises:
            BadInput: The call would lower limits, which only the person does.
            Refused: This client opens no pages and shows no links.
            AnsweredLater: The client opens the page and calls again.
        """
        ids = approval.pending_ids
        who = self._session.who
        pages = caller.asking.pages
        only_person = ONLY_PERSON["start"].format(ids=" ".join(ids))
        if pages is None and caller.asking.links is None:
            raise Refused(only_person)
        await caller.record.begin()
        if approval.changes or approval.plan_max_micros is not None or approval.plan_timeout_s is not None:
            raise BadInput(
                'changes: approval = "human": the person lowers limits on the page; leave changes, group_max_cost_cents'
                " and group_timeout out, or propose it again with lower caps"
            )
        if pages is None:
            return await self._decide_elsewhere(approval, caller)
        address = await pages.address()
        if address is None:
            raise Refused(only_person)
        question = PageQuestion("\n".join((_ASKED, *(approval.approving or ()))), page_of(address, ids))
        limits = self._runtime.spawn_limits_of(self._session.user)
        at_us = now_us()
        # A person decides there, so the hourly limit on starts without one does not apply.
        checked = await self._store.read(lambda view: check_approval(view, approval, who, "browser", limits, at_us))
        if isinstance(checked, Outcome):
            all_wait = all(row.state == WAITING for row in await self._proposals(ids))
            was_opened = pages.knows(question, self._session.opened)
            if was_opened and not all_wait:  # the person has decided since the page was opened
                return await self._outcome(ids, "silent", question.url)
            return await self._store.do(refuse(approval, who, "browser", limits))

        async def until_decided() -> None:
            await self._until_decided(ids, caller.progress, f" at {question.url}")

        ended = await pages.open(question, until_decided, self._session.opened)
        outcome = await self._outcome(ids, ended or "silent", question.url)
        if outcome.not_agreed is None:
            self._session.opened.discard(question.sha())
        return outcome

    async def _decide_elsewhere(self, approval: Approval, caller: CallContext) -> ConfirmOutcome:
        """Wait, as long as the call may last, for a decision that the person makes by a link or in a terminal."""
        ids = approval.pending_ids
        who = self._session.who
        limits = self._runtime.spawn_limits_of(self._session.user)
        at_us = now_us()
        checked = await self._store.read(lambda view: check_approval(view, approval, who, "browser", limits, at_us))
        if isinstance(checked, Outcome) and any(row.state == WAITING for row in await self._proposals(ids)):
            return await self._store.do(refuse(approval, who, "browser", limits))
        with suppress(AvaError, OSError):  # the person can still decide in a terminal
            await self._renew(ids, caller, "expired")
        if caller.asking.links is None or not caller.asking.links.renewed:
            # With a new link, the call ends at once: the person gets the link only with its answer.
            with anyio.move_on_after(self._session.wait_s) as waiting, self._runtime.closing.wait(waiting):
                await self._until_decided(ids, caller.progress)
            with suppress(AvaError, OSError):
                await self._renew(ids, caller, "used")
        return await self._outcome(ids, "silent", "")

    # -- links in answers ---------------------------------------------------------------------------------------------

    async def show_first(self, answer: SpawnAnswer, caller: CallContext) -> None:
        """Add the link with which a person decides to an answer that is in the log: its code must not be there."""
        links = caller.asking.links
        if links is None or answer.status != WAITING:
            return
        try:
            link = await links.link([str(answer.pending_id)], "first")
        except (AvaError, OSError) as error:  # the person can still decide in a terminal
            answer.next = f"{answer.next}. {_NO_LINK.format(error)}"
            return
        if link is not None:
            answer.next = f"{answer.next}{_LINK.format(link=link)}"
        elif links.possible:
            answer.next = f"{answer.next}{_LATER_LINK.format(subagent_id=answer.subagent_id)}"

    async def show_new(self, answer: Answer, caller: CallContext) -> None:
        """Add new links to an answer, for proposals whose last link was used or has expired.

        The answer is in the log already, since the codes of links must not be there.
        """
        links = caller.asking.links
        if links is None:
            return
        if isinstance(answer, CheckAnswer) and answer.status != "list":
            ids = [run.pending_id for run in answer.runs if run.pending_id]
            with suppress(AuditError):  # the person can still decide in a terminal
                try:
                    await self._renew(ids, caller, "used")
                except (AvaError, OSError) as error:
                    approve = self._access.adapt_text(f"`ava approve {' '.join(ids)}`")
                    no_link = f"{_NO_LINK.format(error)}. To start it: {approve} in a terminal"
                    answer.message = with_advice(answer.message or "", no_link)
        for link in links.renewed:
            sentence = _NEW_LINK.format(link)
            if isinstance(answer, ConfirmAnswer):
                answer.next = with_advice(answer.next or "", sentence)
            elif isinstance(answer, CheckAnswer):
                answer.message = with_advice(answer.message or "", sentence)

    async def _renew(self, ids: Sequence[str], caller: CallContext, need: LinkNeed) -> None:
        """Make a new link for the answer if proposals wait for the person and their last link was used or has expired.

        Raises AvaError or OSError if the pages cannot be served.
        """
        links = caller.asking.links
        at_us = now_us()
        if links is None or caller.asking.pages is not None or not ids:
            return
        rows = await self._proposals(ids)
        waiting = [row.pending_id for row in rows if row.state == WAITING and row.expires_us > at_us]
        if waiting and await self._access.needs_pin(waiting):
            link = await links.link(waiting, need)
            if link:
                links.renewed.append(link)

    # -- what the log has ---------------------------------------------------------------------------------------------

    async def _proposals(self, ids: Sequence[str]) -> list[ProposalRow]:
        rows = await self._store.read(lambda view: [view.proposal(pending_id) for pending_id in ids])
        return [row for row in rows if row is not None and row.user_id == self._session.user]

    async def _until_decided(self, ids: Sequence[str], progress: Progress, where: str = "") -> None:
        """Wait until all proposals are decided, or one of them can no longer start. Report progress meanwhile."""
        while True:
            head = self._store.head
            rows = await self._proposals(ids)
            at_us = now_us()
            waiting = [row for row in rows if row.state == WAITING and row.expires_us > at_us]
            if not waiting or any(row.state not in (WAITING, "approved") for row in rows):
                return
            left_s = (min(row.expires_us for row in waiting) - at_us) / 1_000_000
            with anyio.move_on_after(min(left_s, PROGRESS_EVERY_S)) as pause:
                await self._store.wait_for_entry_after(head)
            if pause.cancelled_caught:
                await progress(f"waiting for a person's decision{where}")
            else:
                await anyio.sleep(LOOK_EVERY_S)

    async def _outcome(self, ids: Sequence[str], ended: NotAgreed, page: str) -> ConfirmOutcome:
        """Return the decisions that the log has of these proposals, whatever the client says of the page.

        `ended` says how the wait for the person ended; `page` is the address of the proposals, empty for none.
        """
        user = self._session.user
        at_us = now_us()

        def query(view: View) -> ConfirmOutcome:
            decisions = [_decision(view, pending_id, user, at_us, ended) for pending_id in ids]
            plan_ids: set[str | None] = set()
            approved: list[ProposalRow] = []
            for pending_id in ids:
                row = view.proposal(pending_id)
                if row is not None:
                    plan_ids.add(row.plan_id)
                    if row.state == "approved":
                        approved.append(row)
            still_waits = any(one.status == "refused" and one.refused_because == WHY[ended] for one in decisions)
            return ConfirmOutcome(
                tuple(decisions),
                plan_id=plan_ids.pop() if len(plan_ids) == 1 else None,
                not_agreed=ended if still_waits else None,
                lowered=tuple(lowered_limits(view, approved)),
                page=page,
            )

        return await self._store.read(query)


def next_step(outcome: ConfirmOutcome, not_agreed: NotAgreed, again: str) -> str:
    """Return what a caller does after a wait for a page that decided nothing; `again` says how to wait again."""
    why = WHY[not_agreed]
    ids = " ".join(decision.pending_id for decision in outcome.decisions if decision.refused_because == why)
    if not outcome.page:
        return f"Nothing was started. {_ELSEWHERE.format(ids=ids)}"
    later = _LATER.format(page=outcome.page, ids=ids, again=again[0].upper() + again[1:])
    if not_agreed == "silent":
        return f"Nothing was started. {later}"
    return f"Nothing was started. {_IF_NO} {later}"


def page_of(address: str, ids: Sequence[str]) -> str:
    """Return the address of the page on which proposals are decided."""
    if len(ids) == 1:
        return f"{address}/proposals/{quote(ids[0])}"
    return f"{address}/proposals?{urlencode([('id', pending_id) for pending_id in ids])}"


def _decision(view: View, pending_id: str, user: str, now_us: int, ended: NotAgreed) -> ProposalDecision:
    row = view.proposal(pending_id)
    if row is not None and row.user_id == user:
        if row.state == "approved":
            return ProposalDecision(pending_id, row.run_id, "approved")
        if row.state == "rejected":
            return ProposalDecision(pending_id, row.run_id, "rejected", REJECTED)
    checked = check_proposal(view, pending_id, user, now_us)
    if isinstance(checked, ProposalChange):
        return checked.refused(WHY[ended])
    return checked
