"""Taking, pausing and resuming runs, as commands of the log.

The commands are pure, and the store runs each as one transaction. Each asks `lifecycle.transition` first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ava_audit.events import (
    Asked,
    AssistantMessage,
    Channel,
    ClaimReason,
    CostUpdate,
    Event,
    Fence,
    MoneyAwaited,
    RunClaimed,
    RunPaused,
    RunResumed,
    Who,
)
from ava_audit.rows import HELD_UNTIL_US, QUEUED, RUNNING, UNENDED, WAITING, RunRow
from ava_audit.units import format_usd
from ava_audit.view import Command, Outcome, View, loads
from ava_server.approval.plain_text import normalize_typography
from ava_server.approval.proposals import SpawnLimits, brief_of, day_refusal, day_unspent
from ava_server.approval.shown import approval_line
from ava_server.budget.caps import find_stop, in_flight_purpose, settle_unknown
from ava_server.budget.user_limits import Slots
from ava_server.core.ids import AGENT, label
from ava_server.run_config.config import config_of
from ava_server.runs.record.active_time import active_us_of, seen_after
from ava_server.runs.record.lifecycle import (
    Cause,
    Situation,
    agent_of,
    pause_words,
    situation,
    transition,
)
from ava_server.runs.record.plan_time import plan_busy_us, plan_time, wrap_time_s

TAKEOVER_WITHIN_US = 30 * 60 * 1_000_000
"""A server takes over an interrupted run by itself within 30 minutes; after that a person has to resume it."""
LOST_SHARE = 0.5
"""The share of a run's cost cap that lost calls may use before a person has to resume the run."""
OWNERS_LOST = 3
"""Owners in a row that may end without a step of a run, before a person has to resume it."""
HELD_WHY = "restored or imported; it continues when a person resumes it"
INTERRUPTED_WHY = "its process is gone; it continues when a person resumes it"


# -- taking a run -----------------------------------------------------------------------------------------------------


def claim(
    run_id: str,
    instance: str,
    who: Who,
    gone: frozenset[str],
    slots: Slots,
    *,
    why_with_host: str = "",
    seen_us: int | None = None,
) -> Command[RunRow | str]:
    """Claim a run for an instance, or return why not; a claim raises the run's generation.

    No run begins whose plan is cancelled, or leaves it only the time for its wrap-up. One that was cancelled itself
    while it was at work is claimed only to be ended.

    A call that the last owner left in flight is settled as unknown in the same transaction. The returned row is the run
    as it was before the claim.

    `who`: the session under which the claim is written; its user is the run's. `gone`: instances whose locks were found
    free. `slots`: how many runs may be running; those of instances that are gone do not count. `why_with_host`: why it
    ends with its host, although it was approved to outlive it; empty where that is not so. `seen_us`: when the last
    owner was last seen at work, in microseconds UTC.
    """

    def command(view: View, now_us: int) -> Outcome[RunRow | str]:
        run = view.run(run_id)
        if run is None:  # nothing has run yet: its proposal waits, or was refused
            return Outcome(_OVER_OR_PROPOSED)
        now_is = situation(run, now_us, gone=gone, instance=instance)
        if transition(run, "claim", now_is) is None:
            return Outcome(_why_not_claimed(run, now_is))
        if run.cancel_seq is None and _is_plan_over(view, run, now_us):
            return Outcome(_PLAN_OVER)
        if not run.is_plan:  # a plan itself takes no slot: each of its runs does
            why_full = slots.full(view.running(gone, but=run_id), run.user_id)
            if why_full:
                return Outcome(why_full)
        agent = Who(who.session_id, run.id, run.user_id, parent_agent_id=AGENT)
        settled = settle_unknown(run, agent, purpose=in_flight_purpose(view, run))
        worked_until_us = seen_after(run, seen_us, now_us)
        claimed = claim_event(run, instance, agent, _claim_reason(run), worked_until_us, why_with_host)
        return Outcome(run, (*settled, claimed))

    return command


_OVER_OR_PROPOSED = "it has ended or waits for approval"
_PLAN_OVER = "its plan was cancelled, or the plan's time is over, or nearly"


def _is_plan_over(view: View, run: RunRow, now_us: int) -> bool:
    """Tell whether a run's plan is cancelled or over its time; for one that has not begun, nearly over is enough.

    In the time that it keeps for its wrap-up it could only pay for handing in nothing.
    """
    if find_stop(view, run, now_us) is not None:
        return True
    caps = view.plan_caps(run.plan_id)
    left_s = plan_time(caps, now_us)
    if caps is None or left_s is None:
        return False
    kept_s = 0.0
    if run.generation == 0:
        own_s = float(loads(run.config).get("timeout_s", 0))  # a newer program may have written the rest
        kept_s = wrap_time_s(own_s, caps.timeout_s)
    return left_s <= kept_s


def _why_not_claimed(run: RunRow, now_is: Situation) -> str:
    if now_is == "waiting":
        return pause_words(run) if run.waits_for == "provider" else "it waits for a person"
    if now_is == "running elsewhere":
        return f"instance {run.instance} has it"
    return _OVER_OR_PROPOSED


def _claim_reason(run: RunRow) -> ClaimReason:
    if run.generation == 0:
        return "start"
    return "resume" if run.state == QUEUED else "takeover"


def claim_event(
    run: RunRow, instance: str, who: Who, reason: ClaimReason, seen_us: int | None, why_with_host: str = ""
) -> Event:
    """Return the entry that makes an instance the owner of a run."""
    generation = run.generation + 1
    fact = RunClaimed(instance=instance, generation=generation, reason=reason, with_host=why_with_host, seen_us=seen_us)
    return Event(who, fact, run_id=run.id)


def waits_for_resume(view: View, run: RunRow, now_us: int) -> bool:
    """Tell whether an interrupted run continues only when a person resumes it.

    That is on record (`interrupt_runs`), or it was interrupted too long ago, lost calls have used too much of its cost
    cap, or its owners end at the same step again and again. A call is lost when its owner ends; such owners would use
    up the rest of the cap.
    """
    if run.waits_for == "owner":
        return True
    if run.cancel_seq is not None:  # whoever takes it over only ends it
        return False
    if run.is_plan:
        return _plan_waits_for_resume(view, run, now_us)
    if (run.last_us or 0) <= now_us - TAKEOVER_WITHIN_US:
        return True
    if _owners_lost(view, run) >= OWNERS_LOST:
        return True
    cap = int(loads(run.config).get("max_cost_micros", 0))  # a newer program may have written the rest
    most = LOST_SHARE * cap
    in_flight = sum(int(call["micros"]) for call in run.calls_in_flight)
    if not 0 < most <= run.cost_micros + in_flight:
        return False
    return lost_micros(view, run) + in_flight >= most


def _plan_waits_for_resume(view: View, plan: RunRow, now_us: int) -> bool:
    if plan_waits_for_resume(view, plan):
        return True
    steps = loads(plan.config).get("steps", ())
    if all(step.get("run") for step in steps):  # it starts nothing any more
        return False
    states = {row.state for row in view.step_runs(plan.id) if not row.ended}
    if states and RUNNING not in states:  # its runs wait: to look after them costs nothing
        return False
    last_us = max(plan.last_us or 0, plan_busy_us(view, plan))
    return last_us <= now_us - TAKEOVER_WITHIN_US


def plan_waits_for_resume(view: View, plan: RunRow) -> bool:
    """Tell whether all that a plan has left waits for a person, of which a run was interrupted and is to be resumed."""
    caps = view.plan_caps(plan.id)
    if caps is None or caps.stopped_since_us is None:
        return False
    return any(row.waits_for == "owner" for row in view.step_runs(plan.id))


def _owners_lost(view: View, run: RunRow) -> int:
    """Return how many owners have ended without a step of the run, since its last one or since a person resumed it."""
    own = "(generation IS NOT NULL OR type = 'RunResumed')"
    ((last,),) = view.select(f"SELECT coalesce(max(seq), 0) FROM events WHERE run_id = ? AND {own}", run.id)  # noqa: S608
    return len(view.entries(run.id, int(last), ("RunClaimed",)))


def lost_micros(view: View, run: RunRow) -> int:
    """Return what is booked for a run's lost calls since a person last resumed it, in micro-USD."""
    lost: dict[tuple[int | None, int | None], int] = {}
    for entry in view.entries(run.id, 0, ("CostUpdate", "AssistantMessage", "RunResumed")):
        match entry.fact:
            case CostUpdate(settlement="unknown") as settled:
                lost[settled.turn, settled.attempt] = entry.cost_micros or 0
            case CostUpdate() | AssistantMessage() as answer:
                lost.pop((answer.turn, answer.attempt), None)
            case RunResumed():
                lost.clear()
            case _:
                pass
    return sum(lost.values())


def settle(run_id: str, gone: frozenset[str]) -> Command[bool]:
    """Book the calls of an interrupted run as unknown, and return what it holds for its last turn.

    Whoever waits for that money may do so: it needs neither the run's key nor its folder. The run does not move: it
    stays interrupted, for a process that can continue it. An owner that wakes up after all reserves anew. False: it
    holds nothing, or is not interrupted.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        if run is None or situation(run, now_us, gone=gone) != "interrupted":
            return Outcome(False)
        events = _settlement(view, run)
        return Outcome(bool(events), events)

    return command


def _settlement(view: View, run: RunRow) -> tuple[Event, ...]:
    """Return the entries that settle what a run without an owner holds: its calls in flight, and its last turn.

    Raises ValueError: a newer Ava wrote what was approved.
    """
    agent = agent_of(run)
    events = settle_unknown(run, agent, purpose=in_flight_purpose(view, run))
    if run.wrap_micros:
        events = (*events, Event(agent, MoneyAwaited(over=True, returned=run.wrap_micros), run_id=run.id))
    return events


def _readable_settlement(view: View, run: RunRow) -> tuple[Event, ...]:
    """Return what `_settlement` returns; nothing where a newer Ava proposed the run: that one settles it."""
    try:
        return _settlement(view, run)
    except ValueError:
        return ()


# -- pausing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paused:
    """The run is to wait without a slot, and its clock is to stop: for its provider, or for a person's answer.

    Attributes:
        fact: What is recorded, without the active time.
    """

    fact: RunPaused | Asked


def pause(fence: Fence, who: Who, fact: RunPaused | Asked) -> Command[bool]:
    """Return the run to the queue for a while, under its owner's claim; False where somebody has asked for its end."""

    def command(view: View, _now_us: int) -> Outcome[bool]:
        run = view.run(fence.run_id)
        # The fence checks that the run's owner writes this.
        if run is None or transition(run, "wait", "running here") is None:
            return Outcome(False)
        return Outcome(True, (Event(who, fact, fence=fence),))

    return command


def hold(run_id: str, gone: frozenset[str]) -> Command[bool]:
    """Hold an unfinished run of a restored data root until a person resumes it; False where nothing is to be held.

    What it holds of the caps is settled first, as `settle` does.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        if run is None or transition(run, "wait", situation(run, now_us, gone=gone)) is None:
            return Outcome(False)
        fact = RunPaused(not_before_us=HELD_UNTIL_US, why=HELD_WHY, active_us=active_us_of(run))
        return Outcome(True, (*_readable_settlement(view, run), Event(agent_of(run), fact, run_id=run.id)))

    return command


def interrupt_runs(plan_id: str, gone: frozenset[str], seen_us: Mapping[str, int]) -> Command[bool]:
    """Record which runs of a plan continue only when a person resumes them; False where there is none.

    A single run stands still by itself while nobody has it. The runs of a plan share its clock, which stands still only
    by what the log says, from the moment at which the last of them worked. What such a run holds is settled first, as
    `settle` does: it may wait for days, and others wait for that money.

    `gone`: instances whose locks were found free. `seen_us`: when an instance was last seen at work, as far as known.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        rows = view.plan_runs(plan_id)
        worked_us: list[int] = []
        interrupted: list[tuple[RunRow, int | None]] = []
        for row in rows:
            seen = None
            if row.state == RUNNING:
                seen = seen_after(row, seen_us.get(row.instance or ""), now_us)
            worked_us.append(max(row.last_us or 0, row.ended_us or 0, seen or 0))
            if situation(row, now_us, gone=gone) != "interrupted" or not waits_for_resume(view, row, now_us):
                continue
            if transition(row, "wait", "interrupted") is not None:
                interrupted.append((row, seen))
        events: list[Event] = []
        for row, seen in interrupted:
            fact = RunPaused(
                not_before_us=HELD_UNTIL_US,
                why=INTERRUPTED_WHY,
                active_us=active_us_of(row, seen),
                stands_us=max(worked_us),
            )
            events += _readable_settlement(view, row)
            events.append(Event(agent_of(row), fact, run_id=row.id))
        return Outcome(bool(events), tuple(events))

    return command


def hold_all(view: View, now_us: int) -> Outcome[list[RunRow]]:
    """Hold every unfinished run of a log that was restored or imported, and return these runs.

    None of the instances that the log names is alive here: they worked elsewhere.
    """
    rows = [row for row in view.runs(states=UNENDED, limit=-1) if row.state != WAITING]
    gone = frozenset(row.instance for row in rows if row.instance is not None)
    held: list[RunRow] = []
    events: list[Event] = []
    for row in rows:
        outcome = hold(row.id, gone)(view, now_us)
        events += outcome.events
        if outcome.value:
            held.append(row)
    return Outcome(held, tuple(events))


def waiting_runs(view: View) -> list[RunRow]:
    return view.runs(states=(WAITING,), limit=-1)


# -- resuming ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotResumed:
    """Why a run was not resumed; `line` is the right approval line where another one was given."""

    why: str
    line: str | None = None


def resume_line(view: View, run: RunRow) -> str | None:
    """Return the line that approves an interrupted run's resumption; None where what was approved cannot be read."""
    brief = brief_of(view, run)
    try:
        config = config_of(run.config)
    except ValueError:  # a newer Ava wrote it
        return None
    if brief is None:
        return None
    line = f"{approval_line(config, brief)}, resumed"
    if config.free:
        return line
    in_flight = sum(int(call["micros"]) for call in run.calls_in_flight)  # they count with their worst case
    left = config.max_cost_micros - run.cost_micros - in_flight
    return f"{line} with {format_usd(max(left, 0))} left"


def resume(
    run_id: str,
    who: Who,
    channel: Channel,
    gone: frozenset[str],
    limits: SpawnLimits,
    *,
    line: str | None = None,
    force: bool = False,
    anyones: bool = False,
    seen_us: int | None = None,
) -> Command[RunRow | NotResumed]:
    """Queue an interrupted or held run again; the next server that can run it claims it.

    The run's generation rises, so that its old owner can no longer write. A call in flight is settled as unknown in the
    same transaction.

    A plan whose runs wait for that is resumed by them alone where its own process is alive.

    `gone`: instances whose locks were found free. `limits`: the limits on approvals: a used-up day refuses a resume
    too. `line`: the argument `approving`; None where a person resumes it in a terminal, with the line on the screen.
    `force`: take it also from a live owner that is stopped or hangs. `seen_us`: when the owner
    was last seen at work.
    """

    def command(view: View, now_us: int) -> Outcome[RunRow | NotResumed]:
        run = view.run(run_id)
        if run is None or not (anyones or run.user_id == who.user_id):
            return Outcome(NotResumed(f"no subagent {run_id} of yours is known"))
        where = situation(run, now_us, gone=gone)
        cause: Cause = "force resume" if force else "resume"
        moves_itself = transition(run, cause, where) is not None
        if not moves_itself and not (run.is_plan and plan_waits_for_resume(view, run)):
            return Outcome(NotResumed(_why_not_resumed(run, where)))
        expected = resume_line(view, run)
        if expected is None:
            if brief_of(view, run) is None:
                return Outcome(NotResumed(f"the task of {label(run)} was erased, so it cannot be resumed"))
            return Outcome(NotResumed(f"a newer Ava has proposed {label(run)}, so it cannot be resumed with this one"))
        if line is not None and normalize_typography(line) != normalize_typography(expected):
            return Outcome(NotResumed("`approving` is not, letter for letter, the line of this resume", expected))
        if not config_of(run.config).free:
            why = day_refusal(day_unspent(view, run.user_id, limits, now_us))
            if why:
                return Outcome(NotResumed(why))
        events: list[Event] = []
        if moves_itself:
            is_forced = run.state == RUNNING and run.instance not in gone
            fact = RunResumed(channel=channel, force=is_forced, seen_us=seen_after(run, seen_us, now_us))
            events += _resume_events(view, run, who, fact)
        if run.is_plan:
            events += _resume_steps(view, run, who, channel, gone, now_us)
        return Outcome(run, tuple(events))

    return command


def _resume_events(view: View, run: RunRow, who: Who, fact: RunResumed) -> Iterator[Event]:
    """Yield the entries that resume a run; a call in flight is settled as unknown first."""
    yield from settle_unknown(run, agent_of(run), purpose=in_flight_purpose(view, run))
    yield Event(who, fact, run_id=run.id)


def _resume_steps(
    view: View, plan: RunRow, who: Who, channel: Channel, gone: frozenset[str], now_us: int
) -> Iterator[Event]:
    """Yield the entries that resume the runs of a plan that nobody works on: its approval covers all of them."""
    for row in view.plan_runs(plan.id):
        if transition(row, "resume", situation(row, now_us, gone=gone)) is not None:
            yield from _resume_events(view, row, who, RunResumed(channel=channel))


def _why_not_resumed(run: RunRow, where: Situation) -> str:
    match where:
        case "ended":
            return f"{label(run)} has ended ({run.state}); propose it again"
        case "proposed" | "expired":
            return f"{label(run)} has not started: {run.pending_id} waits for approval"
        case "waiting" if run.waits_for == "more":
            return f"{label(run)} waits for a person's answer: `ava approve {run.id}`"
        case "waiting" if run.waits_for == "answer":
            return f"{label(run)} waits for an answer to its question; `ava show {run.id}` has both, to answer it"
        case "queued" | "waiting":
            return f"{label(run)} is queued and starts by itself as soon as it can"
        case _:
            return f"{label(run)} is running: instance {run.instance} owns it and is alive"
