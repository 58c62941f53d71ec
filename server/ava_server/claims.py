"""Who owns a run: claiming it, asking for its end, ending it in its owner's place. Pure commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ava_audit.events import CancelledBy, CancelRequested, ClaimReason, CostUpdate, Event, RunClaimed, Who
from ava_audit.rows import QUEUED, RUNNING, WAITING, RunRow
from ava_audit.store import Command, Outcome
from ava_audit.view import View
from ava_server.approval import close_proposal
from ava_server.budget import unsettled
from ava_server.history import History
from ava_server.ids import AGENT
from ava_server.result import Ended, build_result
from ava_server.run_log import ending_events


@dataclass(frozen=True)
class Slots:
    """How many runs may be running: of one user, and in all."""

    per_user: int
    total: int

    def full(self, running: Sequence[RunRow], user: str) -> str | None:
        """Return why one more run of a user cannot run beside these, or None."""
        if len(running) >= self.total:
            return f"all {self.total} slots are taken"
        if sum(row.user_id == user for row in running) >= self.per_user:
            return f"all {self.per_user} slots of {user} are taken"
        return None


Artifact = dict[str, Any]


@dataclass(frozen=True)
class NotClaimed:
    """Why a claim was not granted."""

    why: str


def claim(run_id: str, instance: str, who: Who, gone: frozenset[str], slots: Slots) -> Command[RunRow | NotClaimed]:
    """Claim a queued run, or a running one whose owner is gone or is this very instance; raises its generation.

    What the old generation left in flight is settled as unknown in the same transaction.

    Args:
        run_id: The run.
        instance: Who claims it.
        who: The session that the claim is written under; the run's user.
        gone: Instances whose locks were found free. One that is not among them lives, as far as this command
            knows: it may have made its first claim since anybody looked.
        slots: Counted over owners that are not gone.
    """

    def command(view: View, now_us: int) -> Outcome[RunRow | NotClaimed]:
        run = view.run(run_id)
        if run is None or run.state not in (QUEUED, RUNNING):
            return Outcome(NotClaimed("it has ended or waits for approval"))
        if run.state == RUNNING and run.instance not in gone and run.instance != instance:
            return Outcome(NotClaimed(f"instance {run.instance} has it"))
        owned = [row for row in view.runs(states=(RUNNING,)) if row.instance not in gone and row.id != run_id]
        if full := slots.full(owned, run.user_id):
            return Outcome(NotClaimed(full))
        agent = Who(who.session_id, run.id, run.user_id, parent_agent_id=AGENT)
        reason: ClaimReason = "start" if run.generation == 0 else "takeover"
        events = (*unsettled(run, agent), _claimed(run, instance, agent, reason))
        return Outcome(run, events)

    return command


def _claimed(run: RunRow, instance: str, who: Who, reason: ClaimReason) -> Event:
    fact = RunClaimed(instance=instance, generation=run.generation + 1, reason=reason)
    return Event(who, fact, run_id=run.id)


@dataclass(frozen=True)
class CancelOutcome:
    """What a cancel found: the run's state before it, and whether it has to be awaited."""

    run: RunRow | None
    pending: bool = False


def cancel(run_id: str, who: Who, reason: str | None, by: CancelledBy) -> Command[CancelOutcome]:
    """Ask for a run's end. A waiting or queued one ends here and now; a running one by its owner."""

    def command(view: View, now_us: int) -> Outcome[CancelOutcome]:
        run = view.run(run_id)
        if run is None or run.user_id != who.user_id:
            return Outcome(CancelOutcome(None))
        if run.ended:
            return Outcome(CancelOutcome(run))
        fact = CancelRequested(subagent_id=run.id, reason=reason, by=by)
        asked = Event(who, fact, run_id=run.id)
        if run.state == RUNNING:
            again = run.cancel_seq is not None
            return Outcome(CancelOutcome(run, pending=True), () if again else (asked,))
        if run.state == WAITING:
            row = view.proposal(run.pending_id)
            assert row is not None
            return Outcome(CancelOutcome(run), (asked, *close_proposal(row, run, who, "rejected", status="cancelled")))
        ended = Ended("cancelled", "cancelled before it started", reason=reason)
        return Outcome(CancelOutcome(run), (asked, *_ended_without_owner(view, run, ended)))

    return command


def end_unanswered(
    run_id: str,
    instance: str,
    ended: Ended,
    artifacts: Sequence[Artifact] = (),
    *,
    only_own: bool = False,
    unread: bool = False,
) -> Command[bool]:
    """End a run whose owner has not answered: raises the generation, so that the owner can neither write nor spend.

    Args:
        run_id: The run.
        instance: Who ends it.
        ended: How.
        artifacts: The files that it has handed over, looked up before.
        only_own: Only if it is this instance's, or nobody's yet.
        unread: Leave its entries unread: they are what the fault is in.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        states = (QUEUED, RUNNING) if only_own else (RUNNING,)
        if run is None or run.state not in states or (only_own and run.instance not in (None, instance)):
            return Outcome(False)
        agent = Who(run.session_id, run.id, run.user_id, parent_agent_id=AGENT)
        claimed = _claimed(run, instance, agent, "cancel")
        settled = unsettled(run, agent)
        ending = _ended_without_owner(view, run, ended, settled, artifacts, unread=unread)
        return Outcome(True, (*settled, claimed, *ending))

    return command


def _ended_without_owner(
    view: View,
    run: RunRow,
    ended: Ended,
    settled: tuple[Event, ...] = (),
    artifacts: Sequence[Artifact] = (),
    *,
    unread: bool = False,
) -> tuple[Event, ...]:
    """Return the ending of a run that nobody owns, with whatever its log has of a result.

    Args:
        view: The state.
        run: The run.
        ended: How it ends.
        settled: Settlements that are written just before the ending: they are part of what it cost.
        artifacts: The files that it has handed over.
        unread: Leave its entries unread.
    """
    history = History(run.id)
    if not unread:
        history.add_all(view.entries(run.id))
    for event in settled:
        history.add(view.head(), event.fact)
        cost = event.cost_micros or 0
        tokens = event.fact.tokens if isinstance(event.fact, CostUpdate) else 0
        run = replace(
            run,
            cost_micros=run.cost_micros + cost,
            uncosted_micros=run.uncosted_micros + cost,
            tokens=run.tokens + tokens,
        )
    # What the owner was active ends with its last entry, as a takeover counts it.
    last_us = max(0, (run.last_us or run.claimed_us) - run.claimed_us) if run.claimed_us is not None else 0
    active_us = run.active_us + last_us
    result = build_result(run, history, ended, list(artifacts), active_us / 1e6, near=False)
    agent = Who(run.session_id, run.id, run.user_id, parent_agent_id=AGENT)
    return ending_events(run, result, ended, agent, None, active_us)
