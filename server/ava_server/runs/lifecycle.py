"""The life cycle of a run: one table of what may happen to it, and the commands that do it.

`situation` says where a run stands, from its row and from who is alive. `TRANSITIONS` has for each situation and cause
what follows: the next state, and the entries that are written. What is not in the table does not happen. Every command
below asks the table first and writes only what it lists; the commands are pure, and the store runs each as one
transaction. A proposal's own transitions (approve, reject, expire, supersede) are carried out by `approval`, which is
below this package; a test compares it with the table.

What must hold: a run ends once and never moves again; taking a run from its owner raises its generation, so that the
old owner can no longer write; and an ending leaves nothing reserved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, cast, get_args

from ava_audit.events import (
    Answered,
    Asked,
    AssistantMessage,
    CancelledBy,
    CancelRequested,
    Channel,
    ClaimReason,
    CostUpdate,
    Event,
    Fact,
    Fence,
    RunClaimed,
    RunEnded,
    RunPaused,
    RunResumed,
    SpawnDecided,
    SubagentComplete,
    SubagentSpawn,
    ToolResult,
    UserMessage,
    Who,
)
from ava_audit.rows import (
    AWAITED,
    HELD_UNTIL_US,
    QUEUED,
    RUNNING,
    UNENDED,
    WAITING,
    PlanCaps,
    RunRow,
    WaitsFor,
)
from ava_audit.sanitize import sanitize_json
from ava_audit.units import HOUR_US, format_usd, iso_utc
from ava_audit.view import Command, Outcome, View, loads
from ava_server.approval.proposals import SpawnLimits, close_proposal, day_refusal, day_unspent, texts_of
from ava_server.approval.shown import approval_line
from ava_server.approval.summary import normalize_typography
from ava_server.budget.caps import in_flight_purpose, settle_unknown
from ava_server.budget.run_config import config_of
from ava_server.budget.user_limits import Slots
from ava_server.core.ids import AGENT, label
from ava_server.runs.changes import KeptChanges
from ava_server.runs.clock import active_us_of, seen_after
from ava_server.runs.result import RunResult, build_result
from ava_server.runs.submit import Hide, hide_shapes

TAKEOVER_WITHIN_US = 30 * 60 * 1_000_000
"""A server takes over an interrupted run by itself within 30 minutes; after that a person has to resume it."""
LOST_SHARE = 0.5
"""The share of a run's cost cap that lost calls may use before a person has to resume the run."""
ABANDONED_US = 24 * HOUR_US
"""A run that no server has owned for so long is ended."""
PLAN_TIME_OVER = "the plan's time is over"
RESULT_BYTES = 1_800_000

# -- the table --------------------------------------------------------------------------------------------------------

Situation = Literal[
    "proposed",
    "expired",
    "queued",
    "waiting",
    "running here",
    "running elsewhere",
    "interrupted",
    "ended",
]
"""Where a run stands.

`expired`: it was not approved in time, and this is not recorded yet. `waiting`: it is in the queue, and nobody may
claim it until what it waits for (`RunRow.waits_for`) comes, or the time for that is over. `running here`: the instance
that asks owns it. `running elsewhere`: another instance owns it, and is alive as far as is known. `interrupted`: its
owner is gone.
"""
Cause = Literal[
    "approve",
    "reject",
    "expire",
    "supersede",
    "cancel",
    "claim",
    "wait",
    "answer",
    "resume",
    "force resume",
    "end",
    "cancel unanswered",
    "give up",
    "plan timeout",
    "abandon",
]
"""What happens to a run.

`wait`: its owner returns it to the queue because its provider takes no calls, or to ask a person for more or something
about its task; or its log is being restored or imported, and it is held. `answer`: what it asked is answered.
`end`: its owner ends it. `cancel unanswered`: its owner has not answered a cancel, and another instance carries it out.
`give up`: the instance that owns it, or was about to claim it, ends it because its loop does not stop or met an
internal error. `plan timeout`, `abandon`: nobody owns it, and its plan's time is over, or nobody came for a day.
"""
RUNNING_SITUATIONS: tuple[Situation, ...] = ("running here", "running elsewhere", "interrupted")
OPTIONAL = (UserMessage, CostUpdate, ToolResult)
"""Entries of a transition that are written only where there is something to say: a person's decision, the settlement of
a call in flight, the answer to the call that handed over the result."""


@dataclass(frozen=True)
class Transition:
    """One row of the table.

    Attributes:
        after: The state that follows; None for any ending, which the cause brings along.
        entries: The types of what is written, in this order, without those of `OPTIONAL` that do not apply. Where
            several types stand in one place, one of them is written.
        cancel_asked: Only where a cancel was requested (True), or was not (False).
        waits_for: Of runs that wait, only those that wait for one of these.
    """

    cause: Cause
    before: tuple[Situation, ...]
    after: str | None
    entries: tuple[type[Fact] | tuple[type[Fact], ...], ...]
    cancel_asked: bool | None = None
    waits_for: tuple[WaitsFor, ...] = get_args(WaitsFor)


_QUEUED: tuple[Situation, ...] = ("queued", "waiting")
_UNOWNED: tuple[Situation, ...] = (*_QUEUED, "interrupted")
_UNHELD: tuple[WaitsFor, ...] = ("provider", "more", "answer")
_CLOSED = (SpawnDecided, RunEnded)
_ENDED = (SubagentComplete, RunEnded)
_WAIT_BEGINS = (RunPaused, Asked)
_TABLE = (
    Transition("approve", ("proposed",), QUEUED, (UserMessage, SpawnDecided, SubagentSpawn)),
    Transition("reject", ("proposed", "expired"), "rejected", _CLOSED),
    Transition("expire", ("expired",), "expired", _CLOSED),
    Transition("supersede", ("proposed", "expired"), "superseded", _CLOSED),
    Transition("cancel", ("proposed", "expired"), "cancelled", (CancelRequested, *_CLOSED)),
    Transition("cancel", _QUEUED, "cancelled", (CancelRequested, *_ENDED)),
    Transition("cancel", RUNNING_SITUATIONS, RUNNING, (CancelRequested,), cancel_asked=False),
    Transition("claim", ("queued", "running here", "interrupted"), RUNNING, (CostUpdate, RunClaimed)),
    Transition("wait", ("running here",), QUEUED, (_WAIT_BEGINS,), cancel_asked=False),
    Transition("wait", _UNOWNED, QUEUED, (RunPaused,), waits_for=_UNHELD),
    Transition("answer", ("waiting",), QUEUED, (UserMessage, Answered), waits_for=("more", "answer")),
    Transition("resume", ("interrupted", "waiting"), QUEUED, (CostUpdate, RunResumed), waits_for=("resume",)),
    Transition(
        "force resume", (*RUNNING_SITUATIONS, "waiting"), QUEUED, (CostUpdate, RunResumed), waits_for=("resume",)
    ),
    Transition("end", ("running here",), None, (CostUpdate, ToolResult, *_ENDED)),
    Transition("cancel unanswered", RUNNING_SITUATIONS, None, (CostUpdate, RunClaimed, *_ENDED)),
    Transition("cancel unanswered", _QUEUED, None, (CostUpdate, RunClaimed, *_ENDED), cancel_asked=True),
    Transition("give up", (*_QUEUED, "running here"), None, (CostUpdate, RunClaimed, *_ENDED)),
    Transition("plan timeout", _UNOWNED, "timeout", (CostUpdate, *_ENDED), waits_for=_UNHELD),
    Transition("abandon", ("queued", "interrupted"), "abandoned", (CostUpdate, *_ENDED)),
)
TRANSITIONS: Mapping[tuple[Situation, Cause], Transition] = {
    (situation, row.cause): row for row in _TABLE for situation in row.before
}


def is_held(run: RunRow) -> bool:
    """Tell whether a run came with a restored backup or an imported log, and no person has resumed it."""
    return run.state == QUEUED and run.waits_for == "resume"


def situation(
    run: RunRow,
    now_us: int,
    *,
    gone: frozenset[str] = frozenset(),
    instance: str | None = None,
    expires_us: int | None = None,
) -> Situation:
    """Return where a run stands.

    `gone`: instances whose locks were found free. Any other counts as alive: it may have made its first claim since.
    `instance`: the instance that asks, where it matters whether it is the owner.
    """
    if run.ended:
        return "ended"
    if run.state == WAITING:
        return "expired" if expires_us is not None and expires_us <= now_us else "proposed"
    if run.state == QUEUED:
        waits = run.waits_until_us is not None and run.waits_until_us > now_us
        return "waiting" if waits else "queued"
    if run.instance == instance:
        return "running here"
    return "interrupted" if run.instance in gone else "running elsewhere"


def transition(run: RunRow, cause: Cause, where: Situation) -> Transition | None:
    """Return what a cause makes of a run that stands so, or None where it may not happen."""
    row = TRANSITIONS.get((where, cause))
    if row is None or row.cancel_asked not in (None, run.cancel_seq is not None):
        return None
    if where == "waiting" and run.waits_for not in row.waits_for:
        return None
    return row


def paused(run: RunRow, now_us: int) -> bool:
    """Tell whether a run waits for its provider, or for a person: nobody may claim it before."""
    return situation(run, now_us) == "waiting"


def awaited(run: RunRow, now_us: int) -> str | None:
    """Return the state that screens and answers show for a run that awaits a person; None for any other."""
    if run.waits_for is None or not paused(run, now_us):
        return None
    return AWAITED.get(run.waits_for)


def pause_words(run: RunRow) -> str:
    return f"the model takes no more calls until {iso_utc(run.waits_until_us or 0)}"


@dataclass(frozen=True)
class Blocker:
    """Why a run was not taken, as the process says that tried last.

    Attributes:
        why: The reason; None where nobody has said one.
        unable: The instance of the worker that cannot run it, e.g. for want of a key; empty if it waits for its turn.
        beside: The name of that worker, if it is one beside the first.
    """

    why: str | None = None
    unable: str = ""
    beside: str = ""


_BLOCKED, _UNABLE, _BESIDE = "blocked", "unable", "beside"


def blocked_note(blocker: Blocker) -> str:
    """Return what `live` keeps of a run that no process can take now: JSON, where an activity is plain text."""
    noted = {_BLOCKED: blocker.why, _UNABLE: blocker.unable, _BESIDE: blocker.beside}
    return json.dumps({name: value for name, value in noted.items() if value or name == _BLOCKED})


def blocker_in(note: str) -> Blocker:
    """Return why a run could not be taken, as its note in `live` says."""
    try:
        noted: object = json.loads(note) if note.startswith("{") else None
    except ValueError:
        noted = None
    if not isinstance(noted, dict):
        return Blocker()
    said = cast("dict[str, object]", noted)
    return Blocker(str(said.get(_BLOCKED, "")), str(said.get(_UNABLE, "")), str(said.get(_BESIDE, "")))


OWNERS_LOST = 3
"""Owners in a row that may end without a step of a run, before a person has to resume it."""


def waits_for_resume(view: View, run: RunRow, now_us: int) -> bool:
    """Tell whether an interrupted run continues only when a person resumes it.

    It was interrupted too long ago, lost calls have used too much of its cost cap, or its owners end at the same step
    again and again. A call is lost when its owner ends; such owners would use up the rest of the cap.
    """
    if run.cancel_seq is not None:  # whoever takes it over only ends it
        return False
    if run.is_plan:
        if all(step.get("run") for step in loads(run.config).get("steps", ())):  # it starts nothing any more
            return False
        steps = view.step_runs(run.id)
        unended = [row for row in steps if not row.ended]
        if unended and all(row.state != RUNNING for row in unended):  # they wait: to look after them costs nothing
            return False
        return max(run.last_us or 0, plan_busy_us(view, run)) <= now_us - TAKEOVER_WITHIN_US
    if (run.last_us or 0) <= now_us - TAKEOVER_WITHIN_US or _owners_lost(view, run) >= OWNERS_LOST:
        return True
    cap = int(loads(run.config).get("max_cost_micros", 0))  # a newer program may have written the rest
    most = LOST_SHARE * cap
    in_flight = sum(int(call["micros"]) for call in run.calls_in_flight)
    may_be = 0 < most <= run.cost_micros + in_flight
    return may_be and lost_micros(view, run) + in_flight >= most


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
            case AssistantMessage() as said:
                lost.pop((said.turn, said.attempt), None)
            case RunResumed():
                lost.clear()
            case _:
                pass
    return sum(lost.values())


# -- taking a run -----------------------------------------------------------------------------------------------------


def claim(
    run_id: str,
    instance: str,
    who: Who,
    gone: frozenset[str],
    slots: Slots,
    *,
    with_host: str = "",
    seen_us: int | None = None,
) -> Command[RunRow | str]:
    """Claim a run for an instance, or return why not; a claim raises the run's generation.

    A call that the last owner left in flight is settled as unknown in the same transaction.

    `who`: the session under which the claim is written; its user is the run's. `gone`: instances whose locks were found
    free. `slots`: how many runs may be running; those of instances that are gone do not count. `with_host`: why it does
    not continue without its host, although that was approved. `seen_us`: when the last owner was last seen at work.
    """

    def command(view: View, now_us: int) -> Outcome[RunRow | str]:
        run = view.run(run_id)
        where = situation(run, now_us, gone=gone, instance=instance) if run is not None else "ended"
        if run is None or transition(run, "claim", where) is None:
            if run is not None and where == "waiting":
                return Outcome(pause_words(run) if run.waits_for == "provider" else "it waits for a person")
            if run is not None and where == "running elsewhere":
                return Outcome(f"instance {run.instance} has it")
            return Outcome("it has ended or waits for approval")
        if not run.is_plan and (full := slots.full(view.running(gone, but=run_id), run.user_id)):
            return Outcome(full)
        agent = Who(who.session_id, run.id, run.user_id, parent_agent_id=AGENT)
        reason: ClaimReason = "start" if run.generation == 0 else "resume" if run.state == QUEUED else "takeover"
        purpose = in_flight_purpose(view, run)
        claimed = _claimed(run, instance, agent, reason, seen_after(run, seen_us, now_us), with_host)
        return Outcome(run, (*settle_unknown(run, agent, purpose=purpose), claimed))

    return command


def _claimed(
    run: RunRow, instance: str, who: Who, reason: ClaimReason, seen_us: int | None, with_host: str = ""
) -> Event:
    fact = RunClaimed(
        instance=instance, generation=run.generation + 1, reason=reason, with_host=with_host, seen_us=seen_us
    )
    return Event(who, fact, run_id=run.id)


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
        may = run is not None and transition(run, "wait", "running here") is not None  # the fence sees to the owner
        return Outcome(may, (Event(who, fact, fence=fence),) if may else ())

    return command


def hold(run_id: str, gone: frozenset[str]) -> Command[bool]:
    """Hold an unfinished run of a restored data root until a person resumes it; False where nothing is to be held."""

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        if run is None or transition(run, "wait", situation(run, now_us, gone=gone)) is None:
            return Outcome(False)
        fact = RunPaused(not_before_us=HELD_UNTIL_US, why=HELD_WHY, active_us=active_us_of(run))
        return Outcome(True, (Event(agent_of(run), fact, run_id=run.id),))

    return command


HELD_WHY = "restored or imported; it continues when a person resumes it"


def hold_all(view: View, now_us: int) -> Outcome[list[RunRow]]:
    """Hold every unfinished run of a log that was restored or imported, and return these runs.

    No instance of its own is there: those that the log names worked elsewhere.
    """
    rows = [row for row in view.runs(states=UNENDED, limit=-1) if row.state != WAITING]
    gone = frozenset(row.instance for row in rows if row.instance is not None)
    held = [(row, hold(row.id, gone)(view, now_us)) for row in rows]
    return Outcome([row for row, done in held if done.value], tuple(chain(*(done.events for _row, done in held))))


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
    texts = texts_of(view, run)
    try:
        config = config_of(run.config)
    except ValueError:  # a newer Ava wrote it
        return None
    if texts is None:
        return None
    held = sum(int(call["micros"]) for call in run.calls_in_flight)  # they count with their worst case
    left = config.max_cost_micros - run.cost_micros - held
    line = f"{approval_line(config, texts)}, resumed"
    return line if config.free else f"{line} with {format_usd(max(left, 0))} left"


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

    `gone`: instances whose locks were found free. `limits`: the limits on approvals: a used-up day refuses a resume
    too. `line`: what was given as `approving`; None where a person resumes it in a terminal, with the line on the
    screen. `force`: take it also from an owner that lives, because that is stopped or hangs. `seen_us`: when the owner
    was last seen at work.
    """

    def command(view: View, now_us: int) -> Outcome[RunRow | NotResumed]:
        run = view.run(run_id)
        if run is None or not (anyones or run.user_id == who.user_id):
            return Outcome(NotResumed(f"no subagent {run_id} of yours is known"))
        where = situation(run, now_us, gone=gone)
        if transition(run, "force resume" if force else "resume", where) is None:
            return Outcome(NotResumed(_not_resumed(run, where)))
        right = resume_line(view, run)
        if right is None:
            if texts_of(view, run) is None:
                return Outcome(NotResumed(f"the task of {label(run)} was erased, so it cannot be resumed"))
            return Outcome(NotResumed(f"a newer Ava has proposed {label(run)}, so it cannot be resumed with this one"))
        if line is not None and normalize_typography(line) != normalize_typography(right):
            return Outcome(NotResumed("`approving` is not, letter for letter, the line of this resume", right))
        if not config_of(run.config).free and (why := day_refusal(day_unspent(view, run.user_id, limits, now_us))):
            return Outcome(NotResumed(why))
        forced = not is_held(run) and run.instance not in gone
        seen = seen_after(run, seen_us, now_us)
        resumed = _resumed(view, run, who, RunResumed(channel=channel, force=forced, seen_us=seen))
        return Outcome(run, (*resumed, *_resume_steps(view, run, who, channel, gone, now_us)))

    return command


def _resumed(view: View, run: RunRow, who: Who, fact: RunResumed) -> Iterator[Event]:
    """Yield the entries that resume a run; a call in flight is settled as unknown first."""
    yield from settle_unknown(run, agent_of(run), purpose=in_flight_purpose(view, run))
    yield Event(who, fact, run_id=run.id)


def _resume_steps(
    view: View, plan: RunRow, who: Who, channel: Channel, gone: frozenset[str], now_us: int
) -> Iterator[Event]:
    """Yield the entries that resume what a plan has begun and nobody works on: its approval covers all of it."""
    for row in view.plan_runs(plan.id) if plan.is_plan else ():
        if transition(row, "resume", situation(row, now_us, gone=gone)) is not None:
            yield from _resumed(view, row, who, RunResumed(channel=channel))


def _not_resumed(run: RunRow, where: Situation) -> str:
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


# -- ending a run -----------------------------------------------------------------------------------------------------

Artifact = dict[str, Any]


@dataclass(frozen=True)
class RunFiles:
    """What belongs to a run but is not in its log."""

    artifacts: Sequence[Artifact] = ()
    changes: KeptChanges | None = None
    hide: Hide = field(default=hide_shapes)


@dataclass(frozen=True)
class CancelOutcome:
    """What a cancel found.

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

    `files`: what a paused run has handed over and changed.
    """

    def command(view: View, now_us: int) -> Outcome[CancelOutcome]:
        run = view.run(run_id)
        if run is None or not (anyones or run.user_id == who.user_id):
            return Outcome(CancelOutcome(None))
        step = transition(run, "cancel", situation(run, now_us))
        if step is None:  # it has ended, or its owner has been asked already
            return Outcome(CancelOutcome(run, pending=run.state == RUNNING))
        asked = Event(who, CancelRequested(subagent_id=run.id, reason=reason, by=by), run_id=run.id)
        if step.after == RUNNING:
            return Outcome(CancelOutcome(run, pending=True), (asked,))
        if run.state == WAITING:
            row = view.proposal(run.pending_id)
            assert row is not None, "a run that waits has a proposal"
            return Outcome(CancelOutcome(run), (asked, *close_proposal(row, run, who, "rejected", status="cancelled")))
        when = "while it was paused" if run.generation > 0 else "before it started"
        ended = RunResult("cancelled", f"cancelled {when}", reason=reason)
        ending = _end_without_owner(view, run, ended, files, now_us=now_us)
        return Outcome(CancelOutcome(run, begun=run.generation > 0), (asked, *ending))

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

    `skip_log`: do not read its entries: one of them is what the fault is in.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        if run is None or transition(run, cause, situation(run, now_us, instance=instance)) is None:
            return Outcome(False)
        seen = seen_after(run, seen_us, now_us)
        claimed = _claimed(run, instance, agent_of(run), "cancel", seen)
        ending = _end_without_owner(view, run, ended, files, claimed, now_us=now_us, skip_log=skip_log, seen_us=seen)
        return Outcome(True, ending)

    return command


def plan_time(caps: PlanCaps | None, now_us: int) -> float | None:
    """Return the seconds left of a plan's time; None where it has no limit, or has not started.

    It stands still while all of its runs that are left wait for a person.
    """
    if caps is None or caps.timeout_s is None or caps.started_us is None:
        return None
    return max(0.0, caps.timeout_s - caps.passed_us(now_us) / 1e6)


def plan_busy_us(view: View, run: RunRow) -> int:
    """Return when a run of a plan was last at work: the plan writes little itself. 0 for any other run."""
    if not run.is_plan:
        return 0
    return max((row.last_us or 0 for row in view.step_runs(run.id)), default=0)


PLAN_RESERVE_S = 60
"""Seconds of its plan's time that a run keeps for its last turn while it waits for a person."""


def wait_for_person(view: View, run: RunRow | None, wait_s: float, now_us: int) -> float:
    """Return how many seconds a run may wait for a person: at most `wait_s`, and what its plan's time leaves."""
    left_s = plan_time(view.plan_caps(run.plan_id if run is not None else None), now_us)
    return wait_s if left_s is None else min(wait_s, left_s - PLAN_RESERVE_S)


def overdue(
    run: RunRow, caps: PlanCaps | None, gone: frozenset[str], now_us: int, busy_us: int = 0
) -> RunResult | None:
    """Return how a run that nobody owns ends because a time is over, or None.

    `busy_us`: when a run of this plan was last at work; 0 for any other run.
    """
    where = situation(run, now_us, gone=gone)
    if plan_time(caps, now_us) == 0 and transition(run, "plan timeout", where) is not None:
        return RunResult("timeout", PLAN_TIME_OVER)
    since_us = max(run.queued_us or 0, run.last_us or 0, run.waits_until_us or 0, busy_us)
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

    `skip_log`: do not read its entries: one of them is what the fault is in.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        caps = view.plan_caps(run.plan_id if run is not None else None)
        ended = overdue(run, caps, gone, now_us, plan_busy_us(view, run)) if run is not None else None
        if run is None or ended is None:
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
    """Return the ending of a run that another than its owner ends, with what its log has of a result.

    A call in flight is settled first, and counts in the result. `claimed` is the claim that takes the run from its
    owner, if it has one.
    """
    agent = agent_of(run)
    if run.is_plan:
        taken = () if claimed is None else (claimed,)
        return end_plan(view, run, ended, agent, active_us_of(run, seen_us), now_us, taken)
    settled = settle_unknown(run, agent, purpose=None if skip_log else in_flight_purpose(view, run))
    from ava_server.runs.history import History  # with all that a run works with

    history = History(run.id)
    if not skip_log:
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
    active_us = active_us_of(run, seen_us)
    result = build_result(
        run, history, ended, list(files.artifacts), active_us / 1e6, near=False, kept=files.changes, hide=files.hide
    )
    ending = ending_events(run, result, ended, agent, None, active_us)
    return (*settled, *(() if claimed is None else (claimed,)), *ending)


def cancel_steps(view: View, plan: RunRow, who: Who, reason: str, now_us: int) -> tuple[Event, ...]:
    """Return the entries that ask for the end of each run that a plan still has."""
    cancels: list[Event] = []
    for row in view.step_runs(plan.id):
        if not row.ended:
            cancels += cancel(row.id, who, reason, "system")(view, now_us).events
    return tuple(cancels)


def end_plan(
    view: View, plan: RunRow, ended: RunResult, who: Who, active_us: int, now_us: int, events: tuple[Event, ...] = ()
) -> tuple[Event, ...]:
    """Return the entries that end a plan: the cancels of the runs that it still has, then its result.

    `events` come between: the claim that takes it from its owner, if it has one.
    """
    from ava_server.runs.plan_result import plan_result  # with the check of results, which most commands do without

    cancels = cancel_steps(view, plan, who, ended.reason or ended.stop_reason, now_us)
    result = plan_result(view, plan, ended, active_us / 1e6)
    return (*cancels, *events, *ending_events(plan, result, ended, who, None, active_us))


def agent_of(run: RunRow) -> Who:
    return Who(run.session_id, run.id, run.user_id, parent_agent_id=AGENT)


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


def cancel_reason(view: View, run_id: str) -> str | None:
    entry = view.last_entry(run_id, "CancelRequested")
    return entry.fact.reason if entry is not None and isinstance(entry.fact, CancelRequested) else None
