"""Ending runs, as commands of the log: cancels, the endings of runs without an owner, and the entries of each ending.

The commands are pure, and the store runs each as one transaction. Each asks `lifecycle.transition` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ava_audit.events import (
    CancelledBy,
    CancelRequested,
    CostUpdate,
    Event,
    Fence,
    RunEnded,
    SubagentComplete,
    Who,
)
from ava_audit.rows import QUEUED, RUNNING, WAITING, PlanCaps, RunRow, StepRunRow
from ava_audit.sanitize import sanitize_json
from ava_audit.units import HOUR_US
from ava_audit.view import Command, Outcome, View
from ava_server.approval.proposals import close_proposal
from ava_server.budget.caps import RunStopped, in_flight_purpose, settle_unknown
from ava_server.core.ids import AGENT
from ava_server.runs.record.active_time import active_us_of, seen_after
from ava_server.runs.record.changes import KeptChanges
from ava_server.runs.record.claims import claim_event
from ava_server.runs.record.lifecycle import agent_of, idle_since_us, situation, transition
from ava_server.runs.record.plan_time import PLAN_TIME_OVER, plan_busy_us, plan_time
from ava_server.runs.record.result import RunResult, build_result
from ava_server.runs.record.submit import Hide, hide_shapes

ABANDONED_US = 24 * HOUR_US
"""A run that no server has owned for this long is ended."""
ON_REQUEST = "cancelled on request"
RESULT_BYTES = 1_800_000
"""The largest result that an entry can hold."""

Artifact = dict[str, Any]


@dataclass(frozen=True)
class RunFiles:
    """What belongs to a run but is not in its log."""

    artifacts: Sequence[Artifact] = ()
    changes: KeptChanges | None = None
    hide: Hide = field(default=hide_shapes)


@dataclass(frozen=True)
class CancelOutcome:
    """The outcome of a cancel.

    Attributes:
        pending: The run's owner has to end it, which has to be awaited.
        begun: It was paused, and may have left files behind.
    """

    run: RunRow | None
    pending: bool = False
    begun: bool = False


def cancel(
    run_id: str, who: Who, reason: str | None, by: CancelledBy, files: RunFiles = RunFiles(), *, anyones: bool = False
) -> Command[CancelOutcome]:
    """Ask for a run's end. A proposed or queued run ends at once, a running one is ended by its owner.

    With a plan, its runs are asked too (`cancel_steps`): none of them begins after this.

    `files`: what a paused run has handed over and changed.
    """

    def command(view: View, now_us: int) -> Outcome[CancelOutcome]:
        run = view.run(run_id)
        if run is None or not (anyones or run.user_id == who.user_id):
            return Outcome(CancelOutcome(None))
        step = transition(run, "cancel", situation(run, now_us))
        if step is None:  # it has ended, or its owner has been asked already
            return Outcome(CancelOutcome(run, pending=run.state == RUNNING))
        request = Event(who, CancelRequested(subagent_id=run.id, reason=reason, by=by), run_id=run.id)
        if step.after == RUNNING:
            steps: tuple[Event, ...] = ()
            if run.is_plan:
                steps = cancel_steps(view, run, reason or ON_REQUEST, now_us)
            return Outcome(CancelOutcome(run, pending=True), (request, *steps))
        if run.state == WAITING:
            row = view.proposal(run.pending_id)
            assert row is not None, "a run that waits has a proposal"
            closing = close_proposal(row, run, who, "rejected", status="cancelled")
            return Outcome(CancelOutcome(run), (request, *closing))
        has_begun = run.generation > 0
        when = "before it started"
        if has_begun:
            when = "while it was paused"
        ended = RunResult("cancelled", f"cancelled {when}", reason=reason)
        ending = _end_without_owner(view, run, ended, files, now_us=now_us)
        return Outcome(CancelOutcome(run, begun=has_begun), (request, *ending))

    return command


def end_for_owner(
    run_id: str,
    instance: str,
    ended: RunResult,
    cause: Literal["cancel unanswered", "give up"],
    files: RunFiles = RunFiles(),
    *,
    skip_log: bool = False,
    seen_us: int | None = None,
) -> Command[bool]:
    """End a run in its owner's place; False where the table does not allow it.

    The run's generation rises, so that its owner can neither write nor spend.

    `skip_log`: do not read its entries: the fault is in one of them.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        if run is None or transition(run, cause, situation(run, now_us, instance=instance)) is None:
            return Outcome(False)
        seen = seen_after(run, seen_us, now_us)
        claimed = claim_event(run, instance, agent_of(run), "cancel", seen)
        ending = _end_without_owner(view, run, ended, files, claimed, now_us=now_us, skip_log=skip_log, seen_us=seen)
        return Outcome(True, ending)

    return command


def overdue(
    run: RunRow, caps: PlanCaps | None, gone: frozenset[str], now_us: int, busy_us: int = 0
) -> RunResult | None:
    """Return how a run that nobody owns ends because a time is over, or None.

    `busy_us`: when a run of this plan was last at work; 0 for any other run.
    """
    where = situation(run, now_us, gone=gone)
    if plan_time(caps, now_us) == 0 and transition(run, "plan timeout", where) is not None:
        return RunResult("timeout", PLAN_TIME_OVER)
    since_us = max(idle_since_us(run), busy_us)
    if now_us - since_us >= ABANDONED_US and transition(run, "abandon", where) is not None:
        return RunResult("abandoned", "no Ava process that could run it was there for 24 hours")
    return None


def end_overdue(
    run_id: str,
    gone: frozenset[str],
    files: RunFiles = RunFiles(),
    *,
    skip_log: bool = False,
    seen_us: int | None = None,
) -> Command[bool]:
    """End a run that nobody owns and whose time is over; False where that is not so, or no longer.

    `skip_log`: do not read its entries: the fault is in one of them.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        if run is None:
            return Outcome(False)
        ended = overdue(run, view.plan_caps(run.plan_id), gone, now_us, plan_busy_us(view, run))
        if ended is None:
            return Outcome(False)
        seen = seen_after(run, seen_us, now_us)
        ending = _end_without_owner(view, run, ended, files, now_us=now_us, skip_log=skip_log, seen_us=seen)
        return Outcome(True, ending)

    return command


def _end_without_owner(
    view: View,
    run: RunRow,
    ended: RunResult,
    files: RunFiles,
    claimed: Event | None = None,
    *,
    now_us: int,
    skip_log: bool = False,
    seen_us: int | None = None,
) -> tuple[Event, ...]:
    """Return the ending of a run that its owner does not end itself, with the result that its log has.

    A call in flight is settled first, and counts in the result. `claimed` is the claim that takes the run from its
    owner, if it has one.
    """
    agent = agent_of(run)
    if run.is_plan:
        before = () if claimed is None else (claimed,)
        return end_plan(view, run, ended, agent, active_us_of(run, seen_us), now_us, before)
    settled = settle_unknown(run, agent, purpose=None if skip_log else in_flight_purpose(view, run))
    from ava_server.runs.record.history import History  # with all that a run works with

    history = History(run.id)
    if not skip_log:
        history.add_all(view.entries(run.id))
    for event in settled:
        history.add(view.head(), event.fact)
        run = _with_settlement(run, event)
    active_us = active_us_of(run, seen_us)
    result = build_result(
        run, history, ended, list(files.artifacts), active_us / 1e6, near=False, kept=files.changes, hide=files.hide
    )
    events = list(settled)
    if claimed is not None:
        events.append(claimed)
    events += ending_events(run, result, ended, agent, None, active_us)
    return tuple(events)


def _with_settlement(run: RunRow, settlement: Event) -> RunRow:
    """Return a run's row as it is once a settlement is written.

    The settlement charges the worst case of a call whose real cost is unknown, so it counts as uncosted too.
    """
    cost = settlement.cost_micros or 0
    tokens = 0
    if isinstance(settlement.fact, CostUpdate):
        tokens = settlement.fact.tokens
    return replace(
        run,
        cost_micros=run.cost_micros + cost,
        uncosted_micros=run.uncosted_micros + cost,
        tokens=run.tokens + tokens,
    )


def cancel_steps(view: View, plan: RunRow, reason: str, now_us: int, *, with_paused: bool = False) -> tuple[Event, ...]:
    """Return the entries that take a plan's runs out of the queue, and ask for the end of those at work.

    Runs that are paused have work to keep, which takes longer than a command may: without `with_paused`, whoever
    drives the plan ends them. Until then no claim takes them.
    """
    cancels: list[Event] = []
    for row in view.step_runs(plan.id):
        if row.ended or (is_paused(row) and not with_paused):
            continue
        cancels += cancel(row.id, agent_of(plan), reason, "system")(view, now_us).events
    return tuple(cancels)


def stop_paused(run_id: str, who: Who, reason: str) -> Command[None]:
    """Ask for the end of a run that is paused: no claim takes it any more, and it ends once its work is kept."""

    def command(view: View, now_us: int) -> Outcome[None]:
        run = view.run(run_id)
        if run is None or transition(run, "stop", situation(run, now_us)) is None:
            return Outcome(None)
        fact = CancelRequested(subagent_id=run.id, reason=reason, by="system")
        return Outcome(None, (Event(who, fact, run_id=run.id),))

    return command


def is_paused(run: RunRow | StepRunRow) -> bool:
    """Tell whether a run has begun and was returned to the queue: it may have handed over or changed something."""
    return run.state == QUEUED and run.generation > 0


def end_waiting_steps(view: View, plan: RunRow, now_us: int) -> tuple[Event, ...]:
    """Return the entries that take the runs of a plan out of the queue that have not begun when its time is over."""
    endings: list[Event] = []
    for row in view.step_runs(plan.id):
        if row.state == QUEUED and not is_paused(row):
            endings += end_overdue(row.id, frozenset())(view, now_us).events
    return tuple(endings)


def end_plan(
    view: View, plan: RunRow, ended: RunResult, who: Who, active_us: int, now_us: int, events: tuple[Event, ...] = ()
) -> tuple[Event, ...]:
    """Return the entries that end a plan: the cancels of the runs that it still has, then its result.

    `events` come between: the claim that takes it from its owner, if it has one.
    """
    from ava_server.runs.record.plan_result import (
        plan_result,  # with the check of results, which most commands do without
    )

    cancels = cancel_steps(view, plan, ended.reason or ended.stop_reason, now_us, with_paused=True)
    result = plan_result(view, plan, ended, active_us / 1e6)
    return (*cancels, *events, *ending_events(plan, result, ended, who, fence=None, active_us=active_us))


def ending_events(
    run: RunRow, result: dict[str, Any], ended: RunResult, who: Who, fence: Fence | None, active_us: int
) -> tuple[Event, Event]:
    """Return the two entries of every ending: its content, which can be erased, and its metadata, which stays.

    The owner writes them under its claim (`fence`). A result that is larger than an entry may be loses the ends of its
    longest texts, and says so.
    """
    result, cut = sanitize_json(result, RESULT_BYTES)
    if cut:
        result["untrusted_result"]["caveats"].append(f"Cut to what the log can hold: {', '.join(cut)[:300]}")
    complete = SubagentComplete(
        status=ended.status,
        summary=str(result["untrusted_result"]["summary"]),
        tokens=run.tokens,
        cost_cents=run.cost_micros / 10_000,
        duration=round(active_us / 1e6, 1),
        subagent_id=run.id,
        result=result,
    )
    done = RunEnded(
        status=ended.status, stop_reason=ended.stop_reason, error_kind=ended.error_kind, active_us=active_us
    )
    ava = Who(who.session_id, AGENT, who.user_id)
    return (
        Event(ava, complete, run_id=run.id, fence=fence, model=run.model),
        Event(who, done, run_id=run.id, fence=fence),
    )


def stopped_result(view: View, run: RunRow, stopped: RunStopped) -> RunResult:
    """Return how a run ends whose next call was refused because it is to pay for nothing more."""
    if stopped.status == "timeout":
        return RunResult("timeout", PLAN_TIME_OVER)
    return RunResult("cancelled", ON_REQUEST, reason=cancel_reason(view, run.id))


def cancel_reason(view: View, run_id: str) -> str | None:
    """Return the reason of the last request to end a run; None where there is none, or it gives no reason."""
    entry = view.last_entry(run_id, "CancelRequested")
    if entry is None or not isinstance(entry.fact, CancelRequested):
        return None
    return entry.fact.reason
