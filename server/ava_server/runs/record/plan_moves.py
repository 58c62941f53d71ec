"""What a plan does next: a pure function of its steps, their progress and their runs.

A step begins when all that it needs has ended; it has one run, or one for each item of a list. It is *done* if one of
its runs ended well, *failed* if none did, and *skipped* if it never began. What follows a step that is not done is its
`if_fails`. Nothing here knows the log, money or time: a `World` answers for them, and so does a simulation in tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from ava_audit.events import StepState
from ava_server.core.names import named, named_all
from ava_server.run_config.config import StepConfig

PlanEnding = Literal["success", "partial", "error"]
Room = Literal["now", "later", "never"]
"""Whether the least useful work of one more run fits every cap: now, once runs return what they hold, or never."""


@dataclass(frozen=True)
class StepRun:
    """What a plan needs to know of a run of a step.

    Attributes:
        item: The place of its item in the step's list, from 1; None for a step of one run.
        state: Its state, which people read if it did not end well.
        well: It has ended with a usable result.
        cancelling: Somebody has asked for its end.
        why: Why it ended so, in Ava's own words.
    """

    id: str
    step: str
    item: int | None
    state: str
    ended: bool = False
    well: bool = False
    cancelling: bool = False
    why: str = ""

    @property
    def name(self) -> str:
        return self.step if self.item is None else f"{self.step}[{self.item}]"


@dataclass(frozen=True)
class StepProgress:
    """How far a step is: not begun (None), or the state of its last `StepChanged`, with what that says."""

    state: StepState | None = None
    items: int = 1
    left_out: int = 0
    not_done: int = 0
    why: str = ""

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "skipped")


@dataclass(frozen=True)
class PlanState:
    """A plan at one moment.

    Attributes:
        steps: Its steps, each after all that it needs.
        runs: Their runs by step, in the order in which they were queued.
        stopped: Why nothing more starts, in a few words; empty while it continues.
    """

    steps: tuple[StepConfig, ...]
    progress: Mapping[str, StepProgress] = field(default_factory=dict[str, StepProgress])
    runs: Mapping[str, Sequence[StepRun]] = field(default_factory=dict[str, Sequence[StepRun]])
    stopped: str = ""

    def of(self, step: str) -> StepProgress:
        return self.progress.get(step, StepProgress())

    @property
    def all_runs(self) -> Iterator[StepRun]:
        for runs in self.runs.values():
            yield from runs


class World(Protocol):
    """What a plan's moves depend on besides its steps and runs."""

    def items(self, step: StepConfig) -> int | str:
        """Return the length of the list that a step goes through, or why there is no such list."""
        ...

    def room(self, step: StepConfig, ahead: int) -> tuple[Room, str]:
        """Return whether one more run of a step fits, and why not; `ahead` runs of the plan hold nothing yet."""
        ...


@dataclass(frozen=True)
class StepChange:
    """A step begins, or is over."""

    step: str
    progress: StepProgress


@dataclass(frozen=True)
class Start:
    """A run of a step is queued, for this item of its list."""

    step: str
    item: int | None


@dataclass(frozen=True)
class Cancel:
    """A run is to end, because a step on which the plan depends has failed."""

    run_id: str
    why: str


@dataclass(frozen=True)
class Finish:
    """The plan is over."""

    status: PlanEnding
    why: str


Move = StepChange | Start | Cancel | Finish


def next_moves(plan: PlanState, world: World, most_waiting: int) -> list[Move]:
    """Return what can be done now; nothing while the plan only waits for its runs.

    What follows a step that stops the plan comes with the end of that step: nothing starts between the two.

    `most_waiting`: how many runs of the plan may be in the queue, so that a step of a thousand items does not queue a
    thousand runs at once.
    """
    stopped = plan.stopped or _stopped_by(plan)
    moves: list[Move] = []
    if stopped:
        moves += _cancels(plan, stopped)
    waiting = sum(run.state == "queued" for run in plan.all_runs)
    for step in plan.steps:
        progress = plan.of(step.id)
        if progress.over:
            continue
        if progress.state is None:
            starts: list[Start] = []
            change = _begin(plan, step, world, stopped)
        else:
            starts, change = _continue(plan, step, progress, world, stopped, waiting, most_waiting)
        if change is not None and not stopped and _stops(step, change.progress):
            after = replace(plan, progress={**plan.progress, step.id: change.progress})
            return [change, *next_moves(after, world, most_waiting)]
        waiting += len(starts)
        moves += starts
        if change is not None:
            moves.append(change)
    if not moves and all(plan.of(step.id).over for step in plan.steps):
        moves.append(_finish(plan, stopped))
    return moves


def _stopped_by(plan: PlanState) -> str:
    """Return why a failed step stops the plan; empty where none does."""
    for step in plan.steps:
        if _stops(step, plan.of(step.id)):
            return f"{named('step', step.id)} failed, which stops the plan"
    return ""


def _stops(step: StepConfig, progress: StepProgress) -> bool:
    return step.if_fails == "stop" and progress.state == "failed"


def _cancels(plan: PlanState, stopped: str) -> list[Move]:
    """Return the cancels of the runs that a stopped plan still has; a plan whose time is over lets them wrap up."""
    if plan.stopped:
        return []
    return [Cancel(run.id, stopped) for run in plan.all_runs if not run.ended and not run.cancelling]


def _begin(plan: PlanState, step: StepConfig, world: World, stopped: str) -> StepChange | None:
    """Return how a step begins, or that it is skipped; None while it waits for others."""
    if step.run:  # it was proposed by itself, and queued when the plan was approved
        return StepChange(step.id, StepProgress("begun"))
    skipped = StepProgress("skipped", items=step.at_most, not_done=step.at_most)
    has_runs = bool(plan.runs.get(step.id))  # an earlier plan has done a part of it, and that stays done
    if stopped and not has_runs:
        return StepChange(step.id, replace(skipped, why=f"not started: {stopped}"))
    by_id = {each.id: each for each in plan.steps}
    for name in step.needs:
        needed = plan.of(name)
        if not needed.over:
            return None
        if needed.state != "done" and by_id[name].if_fails != "continue":
            became = "was skipped"
            if needed.state == "failed":
                became = "failed"
            return StepChange(step.id, replace(skipped, why=f"not started: {named('step', name)} {became}"))
    if step.foreach is None:
        return StepChange(step.id, StepProgress("begun"))
    length = world.items(step)
    if isinstance(length, str):
        return StepChange(step.id, StepProgress("failed", items=0, not_done=1, why=length))
    items = min(length, step.at_most)
    state: StepState = "done"
    if items:
        state = "begun"
    why = ""
    if length > items:
        why = f"the list has {length:,} items, and at_most is {step.at_most:,}"
    return StepChange(step.id, StepProgress(state, items=items, left_out=length - items, why=why))


def _continue(
    plan: PlanState,
    step: StepConfig,
    progress: StepProgress,
    world: World,
    stopped: str,
    waiting: int,
    most_waiting: int,
) -> tuple[list[Start], StepChange | None]:
    """Return the runs that a step starts now, and its end once nothing more of it can come."""
    runs = plan.runs.get(step.id, ())
    started = {run.item for run in runs}
    items: list[int | None] = [None]
    if step.foreach is not None:
        items = list(range(1, progress.items + 1))
    not_started = [item for item in items if item not in started]
    starts: list[Start] = []
    why_no_more = ""
    for item in not_started:
        if stopped:
            why_no_more = stopped
            break
        if waiting + len(starts) >= most_waiting:
            return starts, None
        room, why = world.room(step, waiting + len(starts))
        if room == "never":
            why_no_more = why
            break
        if room == "later":
            return starts, None
        starts.append(Start(step.id, item))
    if starts or any(not run.ended for run in runs):
        return starts, None
    return [], StepChange(step.id, _ending(step, progress, runs, len(not_started), why_no_more))


def _ending(
    step: StepConfig, progress: StepProgress, runs: Sequence[StepRun], unstarted: int, why_unstarted: str
) -> StepProgress:
    failed = [run for run in runs if not run.well]
    whys: list[str] = []
    if failed:
        whys.append(f"without a usable result: {_names_by_state(step, failed)}")
    if unstarted:
        items = range(progress.items - unstarted + 1, progress.items + 1)
        whys.append(f"not started: {_item_names(step, items)}, because {why_unstarted}")
    if progress.left_out:
        whys.append(progress.why)
    state: StepState = "done" if len(failed) < len(runs) else "failed"
    return StepProgress(state, progress.items, progress.left_out, len(failed) + unstarted, "; ".join(whys))


MOST_NAMED = 10
"""Steps that the ending of a plan names; the rest are counted."""


def _names_by_state(step: StepConfig, runs: Sequence[StepRun]) -> str:
    """Return all of these runs with their endings, rows of items in short: `item 3, items 7 to 9 (timeout)`.

    An error is said with its reason: `(error: the model failed 3 times)`. So is every ending of a coder, which says
    whether its verify command failed or did not run.
    """
    by_state: dict[str, list[int]] = {}
    for run in runs:
        state = run.state
        if run.why and (state == "error" or step.config.coding is not None):
            state = f"{state}: {run.why}"
        by_state.setdefault(state, []).append(run.item or 0)
    parts = [f"{_item_names(step, sorted(items))} ({state})" for state, items in by_state.items()]
    return ", ".join(parts)


def _item_names(step: StepConfig, items: Sequence[int]) -> str:
    """Return the names of a step's runs by their items, in ascending order."""
    if step.foreach is None:
        return named("step", step.id)
    names: list[str] = []
    first = last = items[0]
    for item in [*items[1:], 0]:
        if item == last + 1:
            last = item
            continue
        if first == last:
            names.append(f"item {first}")
        else:
            names.append(f"items {first} to {last}")
        first = last = item
    return ", ".join(names)


def _finish(plan: PlanState, stopped: str) -> Finish:
    done = 0
    incomplete: list[str] = []
    for step in plan.steps:
        progress = plan.of(step.id)
        if progress.state == "done":
            done += 1
        if progress.state != "done" or progress.not_done or progress.left_out:
            incomplete.append(step.id)
    if not incomplete:
        return Finish("success", "every step is done")
    parts = [stopped] if stopped else []
    are = "is" if done == 1 else "are"
    parts.append(f"{done} of {len(plan.steps)} steps {are} done")
    parts.append(f"incomplete: {named_all('step', incomplete, MOST_NAMED)}")
    return Finish("partial" if done else "error", "; ".join(parts))
