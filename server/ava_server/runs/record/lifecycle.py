"""The life cycle of a run: one table of everything that may happen to it.

`situation` says where a run stands, from its row and from who is alive. `TRANSITIONS` has for each situation and cause
what follows: the next state, and the entries that are written. What is not in the table does not happen. Every command
that moves a run asks the table first and writes only what it lists: `claims.py` has those that take, pause and resume a
run, `endings.py` those that end it, and `asking/pending_questions.py` those that answer its questions. A proposal's own
transitions (approve, reject, expire, supersede) are carried out by `approval`, which is below `runs`; a test compares
it with the table.

What must hold: a run ends once and never moves again; taking a run from its owner raises its generation, so that the
old owner can no longer write; and an ending leaves nothing reserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ava_audit.events import (
    Answered,
    Asked,
    CancelRequested,
    CostUpdate,
    Fact,
    MoneyAwaited,
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
from ava_audit.rows import AWAITED, QUEUED, RUNNING, WAITING, RunRow, WaitsFor
from ava_audit.units import iso_utc
from ava_server.core.ids import AGENT

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
    "stop",
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

`stop`: it is paused, its plan is stopped, and its work is to be kept before it ends: until then no claim takes it.
`wait`: its owner returns it to the queue because its provider takes no calls, or to ask a person for more or something
about its task; or its log is being restored or imported, and it is held; or it is of a plan, its owner is gone,
and only a person may resume it. `answer`: what it asked is answered.
`end`: its owner ends it. `cancel unanswered`: its owner has not answered a cancel, and another instance carries it out.
`give up`: the instance that owns it, or was about to claim it, ends it because its loop does not stop or met an
internal error. `plan timeout`, `abandon`: nobody owns it, and its plan's time is over, or nobody came for a day.
"""
RUNNING_SITUATIONS: tuple[Situation, ...] = ("running here", "running elsewhere", "interrupted")
OPTIONAL = (UserMessage, CostUpdate, MoneyAwaited, ToolResult)
"""Entries of a transition that are written only where there is something to say: a person's decision, the settlement of
a call in flight, the return of what was held for the last turn, the answer to the call that handed over the result."""


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
_RESUMED: tuple[WaitsFor, ...] = ("resume", "owner")
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
    Transition("stop", _QUEUED, QUEUED, (CancelRequested,), cancel_asked=False),
    Transition("claim", ("queued",), RUNNING, (CostUpdate, RunClaimed), cancel_asked=False),
    Transition("claim", ("running here", "interrupted"), RUNNING, (CostUpdate, RunClaimed)),
    Transition("wait", ("running here",), QUEUED, (_WAIT_BEGINS,), cancel_asked=False),
    Transition("wait", _UNOWNED, QUEUED, (CostUpdate, MoneyAwaited, RunPaused), waits_for=_UNHELD),
    Transition("answer", ("waiting",), QUEUED, (UserMessage, Answered), waits_for=("more", "answer")),
    Transition("resume", ("interrupted", "waiting"), QUEUED, (CostUpdate, RunResumed), waits_for=_RESUMED),
    Transition("force resume", (*RUNNING_SITUATIONS, "waiting"), QUEUED, (CostUpdate, RunResumed), waits_for=_RESUMED),
    Transition("end", ("running here",), None, (CostUpdate, ToolResult, *_ENDED)),
    Transition("cancel unanswered", RUNNING_SITUATIONS, None, (CostUpdate, RunClaimed, *_ENDED)),
    Transition("cancel unanswered", _QUEUED, None, (CostUpdate, RunClaimed, *_ENDED), cancel_asked=True),
    Transition("give up", (*_QUEUED, "running here"), None, (CostUpdate, RunClaimed, *_ENDED)),
    Transition("plan timeout", _UNOWNED, "timeout", (CostUpdate, *_ENDED), waits_for=(*_UNHELD, "owner")),
    Transition("abandon", _UNOWNED, "abandoned", (CostUpdate, *_ENDED), waits_for=("owner",)),
)
TRANSITIONS: Mapping[tuple[Situation, Cause], Transition] = {
    (situation, row.cause): row for row in _TABLE for situation in row.before
}


def is_held(run: RunRow) -> bool:
    """Tell whether a run came with a restored backup or an imported log, and no person has resumed it."""
    return run.state == QUEUED and run.waits_for == "resume"


def needs_resume(run: RunRow) -> bool:
    """Tell whether the log says of a run in the queue that it continues only when a person resumes it."""
    return run.state == QUEUED and run.waits_for in _RESUMED


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
        if expires_us is not None and expires_us <= now_us:
            return "expired"
        return "proposed"
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


def idle_since_us(run: RunRow) -> int:
    """Return since when nothing has happened to a run: its approval, its last entry, or the end of its last wait."""
    waits_until_us = run.waits_until_us or 0
    if run.waits_for == "owner":  # that has no end of its own
        waits_until_us = 0
    return max(run.queued_us or 0, run.last_us or 0, waits_until_us)


def pause_words(run: RunRow) -> str:
    return f"the model takes no more calls until {iso_utc(run.waits_until_us or 0)}"


def agent_of(run: RunRow) -> Who:
    return Who(run.session_id, run.id, run.user_id, parent_agent_id=AGENT)
