"""Who may run, and who owns a run: slots, and the claim. Pure commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ava_audit.events import (
    CancelledBy,
    CancelRequested,
    Channel,
    ClaimReason,
    CostUpdate,
    Event,
    RunClaimed,
    RunResumed,
    Who,
)
from ava_audit.rows import QUEUED, RUNNING, WAITING, GroupRow, RunRow
from ava_audit.store.store import Command, Outcome
from ava_audit.units import HOUR_US, format_usd, iso_utc
from ava_audit.view import View, loads
from ava_server.approval.proposals import SpawnLimits, close_proposal, exhausted, texts_of
from ava_server.approval.summary import approval_line
from ava_server.budget.caps import in_flight_purpose, unsettled
from ava_server.budget.run_config import RunConfig, config_of
from ava_server.budget.user_limits import Slots
from ava_server.core.ids import AGENT, label
from ava_server.runs.changes import KeptChanges
from ava_server.runs.history import History
from ava_server.runs.log import ending_events
from ava_server.runs.result import RunResult, build_result

TAKEOVER_WITHIN_US = 30 * 60 * 1_000_000
"""A server takes over by itself what was interrupted within the last 30 minutes; older runs wait to be resumed."""


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


_BLOCKED = "blocked"


def blocked_note(why: str) -> str:
    """Return what `live` keeps of a run that no process can take now: JSON, where an activity is plain text."""
    return json.dumps({_BLOCKED: why})


def blocker_in(note: str) -> str | None:
    """Return why a run could not be taken, if that is what its note in `live` says."""
    try:
        noted: object = json.loads(note) if note.startswith("{") else None
    except ValueError:
        return None
    return str(cast("dict[str, object]", noted).get(_BLOCKED, "")) if isinstance(noted, dict) else None


ABANDONED_US = 24 * HOUR_US
"""A run that nobody owned for so long is ended."""

Artifact = dict[str, Any]


@dataclass(frozen=True)
class CancelOutcome:
    """What a cancel found: the run before it, whether its end has to be awaited, and whether it left things behind."""

    run: RunRow | None
    pending: bool = False
    begun: bool = False


def cancel(
    run_id: str,
    who: Who,
    reason: str | None,
    by: CancelledBy,
    artifacts: Sequence[Artifact] = (),
    kept: KeptChanges | None = None,
) -> Command[CancelOutcome]:
    """Ask for a run's end. A waiting or queued one ends here and now; a running one by its owner.

    Args:
        run_id: The run.
        who: Who asks.
        reason: Why, in the asker's words.
        by: A person, a model, or Ava itself.
        artifacts: The files that a paused run has handed over.
        kept: What became of its changes.
    """

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
        when = "while it was paused" if run.generation > 0 else "before it started"
        ended = RunResult("cancelled", f"cancelled {when}", reason=reason)
        ending = _ended_without_owner(view, run, ended, artifacts=artifacts, kept=kept)
        return Outcome(CancelOutcome(run, begun=run.generation > 0), (asked, *ending))

    return command


def end_unanswered(
    run_id: str,
    instance: str,
    ended: RunResult,
    artifacts: Sequence[Artifact] = (),
    *,
    kept: KeptChanges | None = None,
    only_own: bool = False,
    unread: bool = False,
) -> Command[bool]:
    """End a run whose owner has not answered: raises the generation, so that the owner can neither write nor spend.

    Args:
        run_id: The run.
        instance: Who ends it.
        ended: How.
        artifacts: The files that it has handed over, looked up before.
        kept: What became of its changes.
        only_own: Only if it is this instance's, or nobody's yet.
        unread: Leave its entries unread: they are what the fault is in.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        if run is None or run.state not in (QUEUED, RUNNING) or (only_own and run.instance not in (None, instance)):
            return Outcome(False)
        if run.state == QUEUED and not only_own and run.cancel_seq is None:
            return Outcome(False)  # it has been given back, and nobody has asked for its end
        agent = Who(run.session_id, run.id, run.user_id, parent_agent_id=AGENT)
        taken = claimed(run, instance, agent, "cancel")
        settled = unsettled(run, agent, purpose=None if unread else in_flight_purpose(view, run))
        ending = _ended_without_owner(view, run, ended, settled, artifacts, kept, unread=unread)
        return Outcome(True, (*settled, taken, *ending))

    return command


def _ended_without_owner(
    view: View,
    run: RunRow,
    ended: RunResult,
    settled: tuple[Event, ...] = (),
    artifacts: Sequence[Artifact] = (),
    kept: KeptChanges | None = None,
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
        kept: What became of its changes.
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
    result = build_result(run, history, ended, list(artifacts), active_us / 1e6, near=False, kept=kept)
    agent = Who(run.session_id, run.id, run.user_id, parent_agent_id=AGENT)
    return ending_events(run, result, ended, agent, None, active_us)


# -- nobody came ------------------------------------------------------------------------------------------------------


def group_time(group: GroupRow | None, now_us: int) -> float | None:
    """Return the seconds that a group's clock leaves, None where it has none, or it has not begun."""
    if group is None or group.timeout_s is None or group.started_us is None:
        return None
    gone_s = max(0.0, (now_us - group.started_us) / 1e6)  # a clock that was set back gives no time
    return max(0.0, group.timeout_s - gone_s)


def overdue(run: RunRow, group: GroupRow | None, gone: frozenset[str], now_us: int) -> RunResult | None:
    """Return how a run without an owner ends by itself, or None: its group's clock is over, or nobody came for a day.

    Args:
        run: The run.
        group: Its group.
        gone: Instances whose locks were found free.
        now_us: Now.
    """
    if run.state not in (QUEUED, RUNNING) or (run.state == RUNNING and run.instance not in gone):
        return None
    left_s = group_time(group, now_us)
    if left_s is not None and left_s <= 0:
        return RunResult("timeout", "the group's timeout")
    since_us = max(run.queued_us or 0, run.last_us or 0, run.not_before_us or 0)
    if now_us - since_us >= ABANDONED_US:
        return RunResult("abandoned", "no Ava process that could run it was there for 24 hours")
    return None


def end_overdue(
    run_id: str,
    gone: frozenset[str],
    artifacts: Sequence[Artifact] = (),
    *,
    kept: KeptChanges | None = None,
    unread: bool = False,
) -> Command[bool]:
    """End a run that has no owner and whose time is over; False when that is not so (any more).

    Args:
        run_id: The run.
        gone: Instances that own nothing any more.
        artifacts: The files that it has handed over.
        kept: What became of its changes.
        unread: Leave its entries unread: they are what the fault is in.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        group = view.group(run.group_id) if run is not None and run.group_id else None
        ended = overdue(run, group, gone, now_us) if run is not None else None
        if run is None or ended is None:
            return Outcome(False)
        agent = Who(run.session_id, run.id, run.user_id, parent_agent_id=AGENT)
        settled = unsettled(run, agent, purpose=None if unread else in_flight_purpose(view, run))
        ending = _ended_without_owner(view, run, ended, settled, artifacts, kept, unread=unread)
        return Outcome(True, (*settled, *ending))

    return command


# -- having it go on --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotResumed:
    """Why a run was not resumed; `line` is the right one where another was given."""

    why: str
    line: str | None = None


def resume_line(view: View, run: RunRow) -> str | None:
    """Return the line by which an interrupted run is approved to go on; None where its task was erased."""
    texts = texts_of(view, run)
    if texts is None:
        return None
    config = config_of(run.config)
    line = f"{approval_line(config, texts)}, resumed"
    return line if config.price.get("free") else f"{line} with {format_usd(max(left_micros(run, config), 0))} left"


def left_micros(run: RunRow, config: RunConfig) -> int:
    """Return what is left of an interrupted run's own cap, in micro-USD: a call in flight is booked at its worst."""
    held = loads(run.in_flight)
    return config.max_cost_micros - run.cost_micros - (int(held["micros"]) if held is not None else 0)


def resume(
    run_id: str,
    who: Who,
    channel: Channel,
    gone: frozenset[str],
    limits: SpawnLimits,
    *,
    line: str | None = None,
    force: bool = False,
) -> Command[RunRow | NotResumed]:
    """Have a run go on whose owner is gone: it is queued, and the next who can honour it claims it.

    What was left in flight is settled as unknown in the same transaction, and the old owner is fenced out.

    Args:
        run_id: The run.
        who: The session and the user that resume it.
        channel: Over which channel.
        gone: Instances whose locks were found free.
        limits: An exhausted day is refused here already.
        line: What was given as `approving`; None where a person resumes it in a terminal, with it on the screen.
        force: Also from an owner that lives: one that is stopped, or hangs.
    """

    def command(view: View, now_us: int) -> Outcome[RunRow | NotResumed]:
        run = view.run(run_id)
        if run is None or run.user_id != who.user_id:
            return Outcome(NotResumed(f"no subagent {run_id} of yours is known"))
        if run.ended:
            return Outcome(NotResumed(f"{label(run)} has ended ({run.state}); propose it anew"))
        if run.state == WAITING:
            return Outcome(NotResumed(f"{label(run)} has not begun: {run.pending_id} waits for approval"))
        if run.state == QUEUED:
            return Outcome(NotResumed(f"{label(run)} is queued: it goes on by itself as soon as it can"))
        if run.instance not in gone and not force:
            return Outcome(NotResumed(f"{label(run)} is running: instance {run.instance} has it and lives"))
        right = resume_line(view, run)
        if right is None:
            return Outcome(NotResumed(f"the task of {label(run)} was erased, so that it cannot go on"))
        if line is not None and line != right:
            return Outcome(NotResumed("`approving` is not, letter for letter, the line of this resume", right))
        config = config_of(run.config)
        if not config.price.get("free") and (why := exhausted(view, run.user_id, limits, now_us)):
            return Outcome(NotResumed(why))
        agent = Who(run.session_id, run.id, run.user_id, parent_agent_id=AGENT)
        settled = unsettled(run, agent, purpose=in_flight_purpose(view, run))
        resumed = Event(who, RunResumed(channel=channel, force=run.instance not in gone), run_id=run.id)
        return Outcome(run, (*settled, resumed))

    return command
