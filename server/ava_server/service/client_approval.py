"""Approvals through the client: the person answers a form that it shows, or under the policy `human` decides on a page.

`confirm_spawn` asks about what it names, and `spawn_subagent` with `ask` about the proposal that it has just made.
Under `human`, what the client answers is not a decision: a run starts only by what the log has, an approval that took
the PIN (or what else the pages ask for), on the page or in a terminal. The call waits for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import quote, urlencode

import anyio

from ava_audit.events import SpawnDecided, SpawnProposed
from ava_audit.rows import WAITING, ProposalRow
from ava_audit.units import now_us
from ava_audit.view import Outcome, View
from ava_server.approval.decide import ONLY_PERSON, Shown
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
    lowered_words,
    refuse,
)
from ava_server.approval.questions import NOT_AGREED, PageQuestion, apply_reply, question
from ava_server.budget.run_config import CAP_OF_FIELD, COST, RunConfig
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.service.access import LinkNeed, Operations, Progress
from ava_server.service.check import LOOK_EVERY_S, PROGRESS_EVERY_S
from ava_server.service.outcomes import ask_until, outcomes, until_decided
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
REJECTED = "the person rejected it"
STILL_WAITS = "another of these was decided elsewhere, which closed the question; this one still waits"
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
_ELSE = "If the person said no, ask what they want instead."


class ClientApprovals(Operations):
    """Has the person at the client decide on proposals."""

    async def decide(self, asked: Approval, caller: CallContext) -> ConfirmOutcome | None:
        """Approve what the person agrees to; None where this client can ask nobody.

        Raises:
            BadInput: What is in the form cannot be used.
            Refused: Subagents are switched off, or only the approval PIN approves and this client opens no pages.
            AnsweredLater: The client asks the person and calls again.
        """
        self._runtime.settings.refuse_off("nothing was started")
        if await self._access.needs_pin(asked.pending_ids):
            return await self._on_page(asked, caller)
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
            return await self._on_page(asked, caller)
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
            groups = {row.group_id for row in rows}
            return ConfirmOutcome(
                decisions,
                group_id=groups.pop() if len(groups) == 1 else None,
                lowered=(*elsewhere.values(), *_lowered(view, rows)),
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

    async def _on_page(self, asked: Approval, caller: CallContext) -> ConfirmOutcome:
        """Send the person to the page of the proposals, and wait until the log has their decision."""
        ids, who, pages = asked.pending_ids, self._session.who, caller.asking.pages
        only_person = ONLY_PERSON["start"].format(ids=" ".join(ids))
        if pages is None and caller.asking.link is None:
            raise Refused(only_person)
        await caller.record.begin()
        if asked.changes or asked.group_max_micros is not None or asked.group_timeout_s is not None:
            raise BadInput(
                'changes: approval = "human": the person lowers limits on the page; leave changes, group_max_cost_cents'
                " and group_timeout out, or propose it again with lower caps"
            )
        if pages is None:
            return await self._elsewhere(asked, caller)
        address = await pages.address()
        if address is None:
            raise Refused(only_person)
        question = PageQuestion("\n".join((_ASKED, *(asked.approving or ()))), page_of(address, ids))
        limits, at_us = self._runtime.spawn_limits_of(self._session.user), now_us()
        # A person decides there, so the hourly limit on starts without one does not apply.
        checked = await self._store.read(lambda view: check_approval(view, asked, who, "browser", limits, at_us))
        if isinstance(checked, Outcome):
            waits = all(row.state == WAITING for row in await self._proposals(ids))
            if waits or not pages.knows(question, self._session.opened):
                return await self._store.do(refuse(asked, who, "browser", limits))
            return await self._outcome(ids, "silent", question.url)  # decided since the page was opened

        async def decided() -> None:
            await self._decided(ids, caller.progress, f" at {question.url}")

        ended = await pages.open(question, decided, self._session.opened)
        outcome = await self._outcome(ids, ended or "silent", question.url)
        if outcome.not_agreed is None:
            self._session.opened.discard(question.sha())
        return outcome

    async def _elsewhere(self, asked: Approval, caller: CallContext) -> ConfirmOutcome:
        """Wait, as long as the call may last, for a decision that the person makes by a link or in a terminal."""
        ids, who, limits = asked.pending_ids, self._session.who, self._runtime.spawn_limits_of(self._session.user)
        at_us = now_us()
        checked = await self._store.read(lambda view: check_approval(view, asked, who, "browser", limits, at_us))
        if isinstance(checked, Outcome) and any(row.state == WAITING for row in await self._proposals(ids)):
            return await self._store.do(refuse(asked, who, "browser", limits))
        with suppress(AvaError, OSError):  # the way in a terminal is left
            await self.renew_link(ids, caller, "expired")
        if not caller.links:  # a person who has no link that works cannot decide with it
            with anyio.move_on_after(self._session.wait_s) as waiting, self._runtime.closing.wait(waiting):
                await self._decided(ids, caller.progress)
            with suppress(AvaError, OSError):
                await self.renew_link(ids, caller, "used")
        return await self._outcome(ids, "silent", "")

    async def renew_link(self, ids: Sequence[str], caller: CallContext, need: LinkNeed) -> None:
        """Make a new link for the answer, where proposals wait for the person and their last one is of no use.

        Raises AvaError or OSError: the pages cannot be served.
        """
        link, at_us = caller.asking.link, now_us()
        rows = await self._proposals(ids) if ids and link is not None and caller.asking.pages is None else []
        waiting = [row.pending_id for row in rows if row.state == WAITING and row.expires_us > at_us]
        if link is not None and waiting and await self._access.needs_pin(waiting):
            caller.links.extend(filter(None, [await link(waiting, need)]))

    async def _proposals(self, ids: Sequence[str]) -> list[ProposalRow]:
        rows = await self._store.read(lambda view: [view.proposal(pending_id) for pending_id in ids])
        return [row for row in rows if row is not None and row.user_id == self._session.user]

    async def _decided(self, ids: Sequence[str], progress: Progress, where: str = "") -> None:
        """Return when all were decided, or one of them can no longer start; report that it waits meanwhile."""
        while True:
            seen = self._store.head
            rows, at_us = await self._proposals(ids), now_us()
            waiting = [row for row in rows if row.state == WAITING and row.expires_us > at_us]
            if not waiting or any(row.state not in (WAITING, "approved") for row in rows):
                return
            left_s = (min(row.expires_us for row in waiting) - at_us) / 1_000_000
            with anyio.move_on_after(min(left_s, PROGRESS_EVERY_S)) as pause:
                await self._store.wait_for_entry_after(seen)
            if pause.cancelled_caught:
                await progress(f"waiting for a person's decision{where}")
            else:
                await anyio.sleep(LOOK_EVERY_S)

    async def _outcome(self, ids: Sequence[str], ended: NotAgreed, page: str) -> ConfirmOutcome:
        """Return what the log has of these proposals, whatever the client has answered; `page` is where they are."""
        user, at_us = self._session.user, now_us()

        def query(view: View) -> ConfirmOutcome:
            decisions = tuple(_decision(view, pending_id, user, at_us, ended) for pending_id in ids)
            rows = [row for pending_id in ids if (row := view.proposal(pending_id)) is not None]
            groups = {row.group_id for row in rows}
            waits = any(made.status == "refused" and made.refused_because == WHY[ended] for made in decisions)
            return ConfirmOutcome(
                decisions,
                group_id=groups.pop() if len(groups) == 1 else None,
                not_agreed=ended if waits else None,
                lowered=tuple(_lowered(view, [row for row in rows if row.state == "approved"])),
                page=page,
            )

        return await self._store.read(query)


def not_started_next(decided: ConfirmOutcome, again: str = CONFIRM_AGAIN) -> str:
    """Return what a caller does after a decision that started nothing; `again` says how the person is asked again."""
    if decided.page is not None:
        if decided.not_agreed is None:
            rejected = any(made.status == "rejected" for made in decided.decisions)
            return "Nothing was started." + (" Ask the person what they want instead." if rejected else "")
        ids = " ".join(made.pending_id for made in decided.decisions if made.refused_because == WHY[decided.not_agreed])
        if not decided.page:
            return f"Nothing was started. {_ELSEWHERE.format(ids=ids)}"
        later = _LATER.format(page=decided.page, ids=ids, again=again[0].upper() + again[1:])
        return f"Nothing was started. {'' if decided.not_agreed == 'silent' else f'{_ELSE} '}{later}"
    if decided.not_agreed:
        ids = " ".join(made.pending_id for made in decided.decisions)
        waits = "the proposal still waits" if len(decided.decisions) == 1 else "the proposals still wait"
        then = NEXT_STEPS[decided.not_agreed].format(again=again)
        return f"Nothing was started, and {waits}. {then}. {NOT_ASKED.format(ids=ids)}."
    if before := [made.before for made in decided.decisions if made.before]:
        return f"Nothing new was started: {'; '.join(before)}."
    return "Nothing was started."


def page_of(address: str, ids: Sequence[str]) -> str:
    """Return the address of the page on which proposals are decided."""
    if len(ids) == 1:
        return f"{address}/proposals/{quote(ids[0])}"
    return f"{address}/proposals?{urlencode([('id', pending_id) for pending_id in ids])}"


def _decision(view: View, pending_id: str, user: str, now_us: int, ended: NotAgreed) -> ProposalDecision:
    row = view.proposal(pending_id)
    if row is not None and row.user_id == user and row.state == "approved":
        return ProposalDecision(pending_id, row.run_id, "approved")
    if row is not None and row.user_id == user and row.state == "rejected":
        return ProposalDecision(pending_id, row.run_id, "rejected", REJECTED)
    found = check_proposal(view, pending_id, user, now_us)
    return found.refused(WHY[ended]) if isinstance(found, ProposalChange) else found


def _lowered(view: View, rows: Sequence[ProposalRow]) -> Iterator[str]:
    """Yield a sentence for each limit that the person lowered when they approved runs."""
    together, group = 0, None
    for row in rows:
        facts = [entry.fact for entry in view.entries(row.run_id, 0, ("SpawnProposed", "SpawnDecided"))]
        proposed = next((fact for fact in facts if isinstance(fact, SpawnProposed)), None)
        decided = next((fact for fact in facts if isinstance(fact, SpawnDecided)), None)
        if proposed is None or decided is None:
            continue
        before, of = RunConfig.model_validate(proposed.config), f" of {row.pending_id}" if len(rows) > 1 else ""
        for field, value in decided.changes.items():
            cap = CAP_OF_FIELD.get(field)
            if cap is not None and value < cap.of(before):
                yield lowered_words("The person", cap, cap.of(before), value, of=of)
        together += decided.changes.get(COST.field, before.max_cost_micros)
        group = decided.group_max_cost_micros
    if group is not None and 0 < group < together:
        yield lowered_words("The person", COST, together, group, of=" of the group")
