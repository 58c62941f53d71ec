"""Approvals under the policy `human` where the client can open a page: the person decides there, and the call waits.

What the client answers is not a decision. A run starts only by what the log has: an approval that took the PIN (or what
else the pages ask for), on the page or in a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote, urlencode

import anyio

from ava_audit.events import SpawnDecided, SpawnProposed
from ava_audit.rows import WAITING, ProposalRow
from ava_audit.units import now_us
from ava_audit.view import Outcome, View
from ava_server.approval.decisions import (
    Approval,
    ConfirmOutcome,
    Decision,
    NotAgreed,
    ProposalChange,
    check_approval,
    check_proposal,
    lowered_words,
    refuse,
)
from ava_server.approval.questions import PageOpener, PageQuestion
from ava_server.budget.run_config import CAPS, RunConfig
from ava_server.core.errors import BadInput, Refused
from ava_server.service.access import Operations, Progress
from ava_server.service.check import LOOK_EVERY_S, PROGRESS_EVERY_S

ONLY_PIN = (
    'approval = "human": only the approval PIN approves: in a terminal with `ava approve {ids}`, or in a browser with'
    " `ava ui`. No tool can; show the person both"
)
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
    "Show the person where they can decide: {page}, or in a terminal with `ava approve {ids}`. It starts then. Call"
    " confirm_spawn again with the same arguments to wait for that."
)
_ELSE = "If the person said no, ask what they want instead."


class PageApprovals(Operations):
    """Sends the person to the page of proposals, and waits until the log has their decision."""

    async def decide(self, asked: Approval, pages: PageOpener, progress: Progress) -> ConfirmOutcome:
        """Return what the person has decided, or that it still waits.

        Raises:
            BadInput: The call would lower limits, which the page does not know of.
            Refused: No page can be served.
            AnsweredLater: The client opens the page and calls again.
        """
        if asked.changes or asked.group_max_micros is not None or asked.group_timeout_s is not None:
            raise BadInput(
                'changes: approval = "human": the person lowers limits on the page; leave changes, group_max_cost_cents'
                " and group_timeout out, or propose it again with lower caps"
            )
        ids, who = asked.pending_ids, self._session.who
        address = await pages.address()
        if address is None:
            raise Refused(ONLY_PIN.format(ids=" ".join(ids)))
        question = PageQuestion("\n".join((_ASKED, *(asked.approving or ()))), page_of(address, ids))
        limits, at_us = self._runtime.spawn_limits_of(self._session.user), now_us()
        # A person decides there, so the hourly limit on starts without one does not apply.
        checked = await self._store.read(lambda view: check_approval(view, asked, who, "browser", limits, at_us))
        if isinstance(checked, Outcome):
            waits = all(row.state == WAITING for row in await self._proposals(ids))
            if waits or not pages.knows(question, self._session.opened):
                return await self._store.do(refuse(asked, who, "browser", limits))
            return await self._outcome(ids, "silent", question)  # decided since the page was opened

        async def decided() -> None:
            await self._decided(ids, progress, question.url)

        ended = await pages.open(question, decided, self._session.opened)
        return await self._outcome(ids, ended or "silent", question)

    async def _proposals(self, ids: Sequence[str]) -> list[ProposalRow]:
        """Return the proposals of these ids that belong to this user."""
        rows = await self._store.read(lambda view: [view.proposal(pending_id) for pending_id in ids])
        return [row for row in rows if row is not None and row.user_id == self._session.user]

    async def _decided(self, ids: Sequence[str], progress: Progress, url: str) -> None:
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
                await progress(f"waiting for a person's decision at {url}")
            else:
                await anyio.sleep(LOOK_EVERY_S)

    async def _outcome(self, ids: Sequence[str], ended: NotAgreed, question: PageQuestion) -> ConfirmOutcome:
        """Return what the log has of these proposals, whatever the client has answered."""
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
                page=question.url,
            )

        outcome = await self._store.read(query)
        if outcome.not_agreed is None:
            self._session.opened.discard(question.sha())
        return outcome


def page_of(address: str, ids: Sequence[str]) -> str:
    """Return the address of the page on which proposals are decided."""
    if len(ids) == 1:
        return f"{address}/proposals/{quote(ids[0])}"
    return f"{address}/proposals?{urlencode([('id', pending_id) for pending_id in ids])}"


def after_page(decided: ConfirmOutcome) -> str:
    """Return what a caller does after its person was sent to a page and nothing was started."""
    if decided.not_agreed is None:
        rejected = any(made.status == "rejected" for made in decided.decisions)
        return "Nothing was started." + (" Ask the person what they want instead." if rejected else "")
    ids = " ".join(made.pending_id for made in decided.decisions if made.refused_because == WHY[decided.not_agreed])
    later = _LATER.format(page=decided.page, ids=ids)
    return (
        f"Nothing was started. {later}" if decided.not_agreed == "silent" else f"Nothing was started. {_ELSE} {later}"
    )


def _decision(view: View, pending_id: str, user: str, now_us: int, ended: NotAgreed) -> Decision:
    """Return what the log has of a proposal."""
    row = view.proposal(pending_id)
    if row is not None and row.user_id == user and row.state == "approved":
        return Decision(pending_id, row.run_id, "approved")
    if row is not None and row.user_id == user and row.state == "rejected":
        return Decision(pending_id, row.run_id, "rejected", REJECTED)
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
            if field in CAPS and value < getattr(before, field):
                yield lowered_words("The person", field, getattr(before, field), value, of=of)
        together += decided.changes.get("max_cost_micros", before.max_cost_micros)
        group = decided.group_max_cost_micros
    if group is not None and 0 < group < together:
        yield lowered_words("The person", "max_cost_micros", together, group, of=" of the group")
