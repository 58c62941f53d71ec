"""A plan as every surface shows it: its steps with their states, how many of their runs do what, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ava_audit.events import WHOLE
from ava_audit.rows import AWAITED, INTERRUPTED, QUEUED, RUNNING, RunRow, StepRunRow
from ava_audit.units import format_usd
from ava_audit.view import View
from ava_roles.wrap import clean, one_line
from ava_server.approval.plain_text import task_excerpt
from ava_server.core.names import named_all, quote_name, quote_names
from ava_server.render.state_look import LOOKS, StateLook, look_of
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import StepConfig, config_of
from ava_server.runs.owner.blockers import blocker_in
from ava_server.runs.record.plan_moves import StepProgress
from ava_server.runs.record.plan_result import step_caveat
from ava_server.runs.record.plan_state import all_rows, step_progress

StepShown = Literal["waiting", "running", "done", "failed", "skipped"]
RunShown = Literal["running", "interrupted", "queued", "waiting for a person", "done", "not done"]
STEP_LOOKS: Mapping[StepShown, StateLook] = {
    "waiting": LOOKS[QUEUED],
    "running": LOOKS[RUNNING],
    "done": look_of("success"),
    "failed": look_of("error"),
    "skipped": look_of("cancelled"),
}
"""How the state of a step is drawn: as the state of a run that is like it."""
_STANDS_STILL: tuple[RunShown, ...] = ("queued", "waiting for a person", "interrupted")
"""What the state of a step's only run says besides the state of the step."""
MOST_RUNS = 12
"""Most runs of a step that are named."""
MOST_LINES, LINE_CHARS = 20, 160
"""Most lines of a plan in an answer, and characters of one; the plan's resource and page have all of it."""
MOST_NAMED = 6
"""Most steps that the title of a plan names."""
GIVEN = "given before; check_subagent with subagent_id {} has it"
"""What stands in a plan's result for one that was given before."""


@dataclass(frozen=True)
class StepView:
    """A step as it is now.

    Attributes:
        state: `running` from its first run to its last one's end.
        items: How many runs it has or is to have; its `at_most` before that is known.
        left_out: How many items of its list it does not look at.
        runs: How many of its runs do what.
        why: What is missing of it, in Ava's own words.
        blocker: Why a run of it that is queued could not be taken; empty where no server has said so.
        run_ids: Its runs with their states, those first that a person may look for; `more_runs` counts the others.
        asking: Those of them that wait for a person.
        begins_us: When its first run started; None before.
        ends_us: When its last run ended; None while it runs. Of a plan that was ended, when a run wrote last.
    """

    id: str
    role: str
    needs: tuple[str, ...]
    state: StepShown
    items: int
    left_out: int
    runs: Mapping[RunShown, int]
    cost_micros: int
    why: str = ""
    blocker: str = ""
    run_ids: tuple[tuple[str, str], ...] = ()
    more_runs: int = 0
    asking: tuple[str, ...] = ()
    begins_us: int | None = None
    ends_us: int | None = None

    @property
    def look(self) -> StateLook:
        return STEP_LOOKS[self.state]

    def tells_more(self, run_state: str) -> bool:
        """Tell whether the state of one of its runs says more than its own state."""
        if self.items > 1 or self.state not in ("running", "done"):
            return True
        return look_of(run_state).kind != self.look.kind

    @property
    def is_urgent(self) -> bool:
        """Whether a person may have to look at it: it runs, or something is missing of it."""
        if self.state in ("running", "failed", "skipped"):
            return True
        return bool(self.why)

    @property
    def line(self) -> str:
        """`Step "find": done, S-7f3a2b, $0.01`; of several runs `…: running, 3 of 20 done, 1 running, $0.12`."""
        parts: list[str] = [self.state]
        if self.items == 1:
            parts += [state for state in self.runs if state in _STANDS_STILL]
            parts += [run_id for run_id, _state in self.run_ids]
        else:
            if self.items > 1:
                parts.append(f"{self.runs['done']:,} of {self.items:,} done")
            is_over = self.state in ("done", "failed", "skipped")
            for state, number in self.runs.items():
                if number and state not in ("done", "not done"):
                    parts.append(f"{number:,} {state}")
                elif number and state == "not done" and not is_over:  # others may not have begun
                    parts.append(f"{number:,} without a result")
            missing = self.items - self.runs["done"]
            if is_over and missing:
                parts.append(f"{missing:,} not done")
        if self.cost_micros:
            parts.append(format_usd(self.cost_micros))
        if self.state == "waiting" and self.needs:
            parts.append(f"after {named_all('step', self.needs, len(self.needs))}")
        text = f"Step {quote_name(self.id)}: {', '.join(parts)}"
        reasons: list[str] = []
        if self.why:
            reasons.append(self.why)
        if self.blocker:
            reasons.append(f"waits: {self.blocker}")
        if reasons:
            text += f" ({'; '.join(reasons)})"
        return text


@dataclass(frozen=True)
class PlanView:
    """A plan as it is now. Money in micro-USD."""

    steps: tuple[StepView, ...]
    cost_micros: int
    held_micros: int
    tokens: int

    @property
    def step_caveats(self) -> set[str]:
        """The caveats of its result that its steps say themselves."""
        return {step_caveat(step.id, step.why) for step in self.steps if step.why}

    @property
    def steps_by_state(self) -> dict[str, int]:
        return dict(Counter(step.state for step in self.steps))

    @property
    def runs_by_state(self) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for step in self.steps:
            counted.update(step.runs)
        return {what: number for what, number in counted.items() if number}

    @property
    def lines(self) -> list[str]:
        """A line for each step, in their order; of many steps, those that run or are not done, and a count."""
        chosen = list(self.steps)
        if len(chosen) > MOST_LINES:
            chosen.sort(key=lambda step: not step.is_urgent)  # the sort is stable: each part keeps its order
            del chosen[MOST_LINES - 1 :]
        lines = [one_line(step.line, LINE_CHARS) for step in chosen]
        left_out = len(self.steps) - len(chosen)
        if left_out:
            lines.append(f"and {left_out} more steps")
        return lines

    @property
    def as_json(self) -> dict[str, Any]:
        return {"steps": self.steps_by_state, "runs": self.runs_by_state, "lines": self.lines}

    @property
    def as_table(self) -> dict[str, Any]:
        """All of it: each step with what is missing, and its runs."""
        steps = [
            {
                "step": step.id,
                "state": step.state,
                "line": step.line,
                "runs": dict(step.run_ids),
                "more": step.more_runs,
            }
            for step in self.steps
        ]
        return {**self.as_json, "all_steps": steps}

    @property
    def words(self) -> str:
        """`14 of 17 steps done, 2 running`."""
        states = self.steps_by_state
        parts = [f"{states.get('done', 0)} of {len(self.steps)} steps done"]
        parts += [f"{number} {state}" for state, number in states.items() if state not in ("done", "waiting")]
        return ", ".join(parts)


def plan_title(name: str, step_ids: Sequence[str]) -> str:
    """Return what a plan is: `Plan "Contracts", 3 steps: "find", "read"`; an unnamed one begins with its steps."""
    number = len(step_ids)
    steps = "1 step" if number == 1 else f"{number:,} steps"
    ids = quote_names(step_ids, MOST_NAMED)
    if name:
        return f"Plan {quote_name(name)}, {steps}: {ids}"
    return f"Plan of {steps}: {ids}"


def task_words(run: RunRow, brief: Brief) -> str:
    """Return what a run is to do, on one line: the beginning of its task, or what a plan is, without dropped steps."""
    if not run.is_plan:
        return task_excerpt(brief.task)
    try:
        steps = config_of(run.config).steps
    except ValueError:  # a newer Ava wrote it
        return plan_title(run.name or "", [part.step or "" for part in brief.steps])
    if any(step.run for step in steps):  # of runs that were proposed by themselves and approved together
        return task_excerpt(brief.task)
    return plan_title(run.name or "", [step.id for step in steps])


def view_plan(view: View, plan: RunRow, alive: Callable[[str], bool]) -> PlanView:
    """Return a plan as it is now. Raises ValueError: a newer Ava wrote its configuration.

    `alive` tells whether an instance that has runs is still there.
    """

    def shown(row: StepRunRow) -> RunShown:
        if row.waits_for == "owner" or (row.state == RUNNING and not alive(row.instance or "")):
            return "interrupted"
        return _shown(row)

    config = config_of(plan.config)
    progress = step_progress(view, plan.id)
    rows = all_rows(view, plan.id, config.steps)
    bucket = view.bucket(plan.id)
    return PlanView(
        steps=tuple(
            _view_step(
                view, step, progress.get(step.id, StepProgress()), rows.get(step.id, []), shown, ended=plan.ended
            )
            for step in config.steps
        ),
        cost_micros=bucket.spent_micros,
        held_micros=bucket.held_micros,
        tokens=plan.tokens,
    )


def whole_plans(view: View, run_ids: Sequence[str]) -> list[str]:
    """Return the plans that have ended and whose runs are all among `run_ids`.

    Whoever was given these runs' results was given such a plan's result too.
    """
    whole: list[str] = []
    for plan_id in _plans_of(view, run_ids):
        plan = view.run(plan_id)
        if plan is None or not plan.ended:
            continue
        own = {row.id for row in view.step_runs(plan_id)}
        if own.issubset(run_ids):
            whole.append(plan_id)
    return whole


def _plans_of(view: View, run_ids: Sequence[str]) -> list[str]:
    """Return the plans of which these runs are steps, each once."""
    plan_ids: list[str] = []
    for run_id in run_ids:
        run = view.run(run_id)
        if run is None or run.step is None or run.plan_id is None:
            continue
        if run.plan_id not in plan_ids:
            plan_ids.append(run.plan_id)
    return plan_ids


def without_given(view: View, plan: RunRow, result: dict[str, Any], session_id: str) -> dict[str, Any]:
    """Return a plan's result with a reference in place of each result that a session was given before the plan's.

    What it was given after the plan's result stays as it was shown: a long output is read page by page.
    """
    untrusted: dict[str, Any] = result.get("untrusted_result") or {}
    if not isinstance(untrusted.get("output"), dict):
        return result
    output: dict[str, Any] = untrusted["output"]
    plan_given_at = _given_at(view, plan.id, plan.result_seq, session_id)
    run_of_step: dict[str, str] = {}  # steps of one run, whose result the session has
    item_runs: set[str] = set()  # the same of steps with a run for each item
    for run in view.step_runs(plan.id):
        given_at = _given_at(view, run.id, run.result_seq, session_id)
        if given_at is None:
            continue
        if plan_given_at is not None and given_at > plan_given_at:
            continue
        if run.item is None:
            run_of_step[run.step] = run.id
        else:
            item_runs.add(run.id)
    if not run_of_step and not item_runs:
        return result
    list_steps = {step.id for step in config_of(plan.config).steps if step.foreach is not None}
    shortened: dict[str, Any] = {}
    for step, value in output.items():
        if value is None:
            shortened[step] = None
        elif step in run_of_step:
            shortened[step] = GIVEN.format(run_of_step[step])
        elif step in list_steps:
            shortened[step] = [_item_without(item, item_runs) for item in value]
        else:
            shortened[step] = value
    return {**result, "untrusted_result": {**untrusted, "output": shortened}}


def _item_without(one: Mapping[str, Any], given: Collection[str]) -> Mapping[str, Any]:
    run_id = str(one["subagent_id"])
    return {**one, "output": GIVEN.format(run_id)} if run_id in given else one


def _given_at(view: View, run_id: str, result_seq: int | None, session_id: str) -> int | None:
    """Return the `seq` at which an answer of a session first carried a run's result, or None."""
    if result_seq is None:
        return None
    carried = view.entries(run_id, result_seq, ("ToolResult",))
    return next((entry.seq for entry in carried if entry.session_id == session_id), None)


def _view_step(
    view: View,
    step: StepConfig,
    progress: StepProgress,
    rows: list[StepRunRow],
    shown: Callable[[StepRunRow], RunShown],
    *,
    ended: bool,
) -> StepView:
    """Return a step as it is shown. `ended`: the plan has ended, so a step that has not is failed or skipped."""
    has_begun = progress.state is not None
    state: StepShown
    if ended and not progress.over:  # the plan was cancelled or given up
        state = "failed" if rows else "skipped"
    elif progress.state is None:
        state = "waiting"
    elif progress.state == "begun":
        state = "running"
    else:
        state = progress.state
    listed = sorted(rows, key=lambda row: (row.state in WHOLE, row.item or 0))[:MOST_RUNS]
    asking = [row.id for row in listed if shown(row) == "waiting for a person"]
    return StepView(
        id=step.id,
        role=step.config.role,
        needs=step.needs,
        state=state,
        items=progress.items if has_begun else step.at_most,
        left_out=progress.left_out,
        runs=Counter(shown(row) for row in rows),
        cost_micros=_cost(step, rows),
        why=progress.why,
        blocker=_blocker(view, rows),
        run_ids=tuple((row.id, INTERRUPTED if shown(row) == "interrupted" else row.state) for row in listed),
        more_runs=len(rows) - len(listed),
        asking=tuple(asking),
        begins_us=_began_us(rows),
        ends_us=None if state == "running" else _ended_us(rows),
    )


def _cost(step: StepConfig, rows: Sequence[StepRunRow]) -> int:
    """Return what the runs of a step have cost in this plan: those of an earlier one cost nothing again."""
    reused = {run.id for run in step.reused}
    return sum(row.cost_micros for row in rows if row.id not in reused)


def _began_us(rows: Sequence[StepRunRow]) -> int | None:
    started = [row.started_us for row in rows if row.started_us is not None]
    return min(started, default=None)


def _ended_us(rows: Sequence[StepRunRow]) -> int | None:
    """Return when the last of these runs ended, or wrote its last entry."""
    ended: list[int] = []
    for row in rows:
        moment = row.ended_us or row.last_us
        if moment is not None:
            ended.append(moment)
    return max(ended, default=None)


def _blocker(view: View, rows: Sequence[StepRunRow]) -> str:
    """Return why the first of the queued runs could not be taken, as the server noted that tried."""
    queued = next((row for row in rows if _shown(row) == "queued"), None)
    if queued is None:
        return ""
    noted = view.live(queued.id)
    if noted is None:
        return ""
    return clean(blocker_in(noted[0]).why or "")[0]


def _shown(row: StepRunRow) -> RunShown:
    if row.state == QUEUED:
        return "waiting for a person" if row.waits_for in AWAITED else "queued"
    if row.state == RUNNING:
        return "running"
    if row.state in WHOLE:
        return "done"
    return "not done"
