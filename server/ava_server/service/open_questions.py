"""Whether an open question still waits for its person, and what became of it where it does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import anyio

from ava_audit.errors import AuditError
from ava_audit.rows import ProposalRow, RunRow
from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.approval.decide import Shown
from ava_server.approval.decisions import lowered_words
from ava_server.approval.lookup import approval_of
from ava_server.approval.outcomes import closed_resumption, run_now
from ava_server.approval.proposals import SpawnLimits, waiting_proposal
from ava_server.core.errors import AvaError
from ava_server.core.ids import label
from ava_server.core.threads import work_until
from ava_server.run_config.config import RunConfig
from ava_server.run_config.run_cap import CAP_OF_FIELD, COST
from ava_server.runs.asking.pending_questions import closed_question, pending_question
from ava_server.runs.record.claims import resume_line

T = TypeVar("T")

DECIDED_EVERY_S = 1.0
"""How often to look whether a question still waits where no entry comes: it may also expire."""


def outcome_of(view: View, shown: Shown, limits: SpawnLimits, at_us: int) -> str | None:
    """Return what became of what a person was asked about, in a sentence; None while it still waits for them."""
    if shown.kind == "start":
        return _outcome_of_proposal(view, shown, limits, at_us)
    run = view.run(shown.id)
    if run is None:
        return f"{shown.id} is not known any more."
    if shown.kind in ("extend", "answer"):
        question = pending_question(view, run, at_us)
        if question is not None and question.shown.digest == shown.digest:
            return None
        return f"{closed_question(view, run, shown.digest, at_us)}."
    if shown.kind == "resume":
        return _outcome_of_resumption(view, run, shown)
    return f"{run_now(run)}." if run.ended else None


def resumption_shown(run: RunRow, line: str | None) -> Shown:
    """Return what a person sees who may resume a run. The digest is its generation, which any resumption raises."""
    return Shown("resume", run.id, str(run.generation), line or "")


def _outcome_of_resumption(view: View, run: RunRow, shown: Shown) -> str | None:
    if run.cancel_seq is not None and not run.ended:
        return None  # it ends next: whoever has claimed it since has not resumed it
    if str(run.generation) != shown.digest:
        return f"{closed_resumption(view, run)}."
    if run.ended:
        return f"{run_now(run)}."
    if resume_line(view, run) != shown.line:
        return f"{label(run)} has less left than was shown; look at it again."
    return None


def _outcome_of_proposal(view: View, shown: Shown, limits: SpawnLimits, at_us: int) -> str | None:
    row = view.proposal(shown.id)
    run = view.run(row.run_id) if row is not None else None
    if run is None:
        return f"{shown.id} is not known any more."
    proposal = waiting_proposal(view, run, limits, at_us)
    return proposal if isinstance(proposal, str) else None


async def outcomes(store: Store, shown: Sequence[Shown], limits: SpawnLimits) -> dict[str, str]:
    """Return what became of those that no longer wait: a sentence for each, by their ids."""
    at_us = now_us()

    def query(view: View) -> dict[str, str]:
        sentences: dict[str, str] = {}
        for one in shown:
            sentence = outcome_of(view, one, limits, at_us)
            if sentence is not None:
                sentences[one.id] = sentence
        return sentences

    return await store.read(query)


async def until_decided(store: Store, shown: Sequence[Shown], limits: SpawnLimits) -> None:
    """Return when one of these no longer waits."""
    while True:
        seen = store.head
        if await outcomes(store, shown, limits):
            return
        with anyio.move_on_after(DECIDED_EVERY_S):
            await store.wait_for_entry_after(seen)


async def ask_until(decided: Callable[[], Awaitable[object]], ask: Callable[[], Awaitable[T]]) -> T | None:
    """Return what a question gives; None where `decided` returned first, which withdraws the question."""

    async def over() -> None:
        while True:
            try:
                await decided()
            except (AuditError, AvaError):  # without news, the question stays open
                await anyio.sleep(DECIDED_EVERY_S)
            else:
                return

    return await work_until(over, ask, None)


def lowered_limits(view: View, rows: Sequence[ProposalRow]) -> Iterator[str]:
    """Yield a sentence for each limit that the person lowered when they approved these proposals."""
    members_micros = 0
    plan_id: str | None = None
    for row in rows:
        run = view.run(row.run_id)
        if run is None:
            continue
        approval = approval_of(view, run)
        proposed, decided = approval.proposal, approval.decision
        if proposed is None or decided is None:
            continue
        before = RunConfig.model_validate(proposed.config)
        of = ""
        if len(rows) > 1:
            of = f" of {row.pending_id}"
        for field, value in decided.changes.items():
            cap = CAP_OF_FIELD.get(field)
            if cap is not None and value < cap.of(before):
                yield lowered_words("The person", cap, cap.of(before), value, of=of)
        members_micros += decided.changes.get(COST.field, before.max_cost_micros)
        plan_id = decided.group_id
    # Several proposals became one plan, whose cap was the sum of theirs unless the person lowered it.
    plan = view.plan_caps(plan_id)
    if plan is not None and 0 < plan.cap_micros < members_micros:
        yield lowered_words("The person", COST, members_micros, plan.cap_micros, of=" of the plan")
