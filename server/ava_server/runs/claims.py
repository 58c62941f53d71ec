"""Who may run, and who owns a run: slots, and the claim. Pure commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ava_audit.events import ClaimReason, Event, RunClaimed, Who
from ava_audit.rows import QUEUED, RUNNING, RunRow
from ava_audit.store.store import Command, Outcome
from ava_audit.times import iso_utc
from ava_audit.view import View
from ava_server.budget.caps import in_flight_purpose, unsettled
from ava_server.core.ids import AGENT

TAKEOVER_WITHIN_US = 30 * 60 * 1_000_000
"""A server takes over by itself what was interrupted within the last 30 minutes; older runs wait to be resumed."""


@dataclass(frozen=True)
class Slots:
    """How many runs may be running: of each user, in all, and of users who have fewer of their own."""

    per_user: int
    total: int
    own: Mapping[str, int] = field(default_factory=dict[str, int])

    def full(self, running: Mapping[str, int], user: str) -> str | None:
        """Return why one more run of a user cannot run beside these (how many, by user), or None."""
        if sum(running.values()) >= self.total:
            return f"all {self.total} slots are taken"
        each = self.own.get(user, self.per_user)
        if running.get(user, 0) >= each:
            return f"all {each} slots of {user} are taken"
        return None


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
        if paused(run, now_us):
            return Outcome(NotClaimed(pause_words(run)))
        if full := slots.full(view.running(gone, but=run_id), run.user_id):
            return Outcome(NotClaimed(full))
        agent = Who(who.session_id, run.id, run.user_id, parent_agent_id=AGENT)
        reason: ClaimReason = "start"
        if run.generation > 0:
            reason = "resume" if run.state == QUEUED else "takeover"
        purpose = in_flight_purpose(view, run)
        events = (*unsettled(run, agent, purpose=purpose), claimed(run, instance, agent, reason))
        return Outcome(run, events)

    return command


def claimed(run: RunRow, instance: str, who: Who, reason: ClaimReason) -> Event:
    """Return the event by which an instance takes a run: it raises the generation."""
    fact = RunClaimed(instance=instance, generation=run.generation + 1, reason=reason)
    return Event(who, fact, run_id=run.id)


def left_to_be_resumed(run: RunRow, now_us: int) -> bool:
    """Tell whether an interrupted run is too old to be taken over by itself: its user shall say that it goes on."""
    return (run.last_us or 0) <= now_us - TAKEOVER_WITHIN_US


def paused(run: RunRow, now_us: int) -> bool:
    """Tell whether a run waits for a provider's limit to be over, so that nobody may claim it yet."""
    return run.state == QUEUED and run.not_before_us is not None and run.not_before_us > now_us


def pause_words(run: RunRow) -> str:
    """Return until when a paused run waits."""
    return f"the model takes no more calls until {iso_utc(run.not_before_us or 0)}"
