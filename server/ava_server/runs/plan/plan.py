"""A plan at work: what its log says of its steps, the inputs of their runs, and the command that carries out its moves.

`plan_moves` decides; here its questions are answered from the log, and its answers are written there. All of it is one
command under the plan's claim: no process starts a run twice, and after a crash the plan continues where its log ends.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ava_audit.events import (
    WHOLE,
    Event,
    Fact,
    Fence,
    StepChanged,
    StepRunQueued,
    UserMessage,
    Who,
)
from ava_audit.rows import AWAITED, QUEUED, RunRow, StepRunRow
from ava_audit.units import day_of, format_usd
from ava_audit.view import Command, Outcome, View
from ava_roles.wrap import clean, one_line
from ava_server.approval.kept_money import all_needs, kept_steps, later_steps
from ava_server.approval.proposals import brief_of, project_of, spawn_fact
from ava_server.approval.steps import ITEM, replace_references
from ava_server.budget.kept_parts import kept_of_plan
from ava_server.budget.recent_calls import Named, recent_calls
from ava_server.budget.user_limits import DayCaps, installation_scope, user_scope
from ava_server.core.ids import AGENT
from ava_server.core.names import named, quote_name
from ava_server.models.base import Bound
from ava_server.models.prices import dearest_price, reserve_micros
from ava_server.models.surcharges import pinned_at
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig, StepConfig, StepInput, config_of
from ava_server.run_config.run_cap import CAP_OF_ENDING
from ava_server.runs.record.endings import cancel, end_waiting_steps, is_paused, stop_paused
from ava_server.runs.record.plan_moves import (
    Cancel,
    Finish,
    PlanState,
    Room,
    Start,
    StepChange,
    StepProgress,
    StepRun,
    next_moves,
)
from ava_server.runs.record.plan_state import ended_well, result_of, reused_rows, step_progress
from ava_server.runs.record.plan_time import PLAN_TIME_OVER, plan_time

INPUT_CHARS = 20_000
"""Most characters that one reference adds to a task; `read_subagent_result` reads the rest."""
INPUTS_CHARS = 100_000
"""Most characters that all references of a step add."""
LEAST_SHARE_CHARS = 200
"""The least that is shown of the result of one item among many, in characters."""
CUT_NOTE_CHARS = 100
"""Room for the note where the rest of an item's result is."""
NOT_SHOWN_CHARS = 250
"""Room for the note where the rest of the items are."""
MARK_CHARS = 120
"""Characters of the mark around the result of one item among many."""
ITEM_CHARS = 60
"""Characters of an item by which people and models recognise it."""
RESULT_CHARS = 1_000
"""Characters that one run is likely to hand over, for the money that is kept for what reads it."""
MOST_WAITING = 32
"""Most runs of one plan that are queued and have not begun."""
MOST_STARTED = 8
"""Most runs that one command queues: it also writes their inputs."""
LIKELY_BYTE_TOKENS = 0.5
"""Tokens for each byte of an input, for the cost from which a run can work."""
TURNS_WITH_INPUT = 3
"""Calls of the model in which an input counts for that cost."""
RenderResult = Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class PlanInputs:
    """What is the same for all moves of a plan in one process.

    Attributes:
        render: Returns a stored result as text.
        caps: What the plan's user and the installation may spend today.
        well: Which runs that ended at a cap count, by their ids: an ending never changes.
    """

    render: RenderResult
    caps: Callable[[str], DayCaps]
    well: dict[str, bool] = field(default_factory=dict[str, bool])


@dataclass(frozen=True)
class Advanced:
    """What one command has done for a plan.

    Attributes:
        moved: It wrote something: there may be more to do at once.
        cancels: The runs that have begun and are to end, each with the reason: their work is to be kept.
        doing: What it is doing, in a few words.
        finish: How the plan ends; None while it continues.
    """

    moved: bool
    finish: Finish | None = None
    doing: str = ""
    cancels: tuple[Cancel, ...] = ()


class PlanLog:
    """A plan as one state of the log has it; the world of its moves.

    Attributes:
        rows: The runs of each step, those included that are reused from an earlier plan.
    """

    def __init__(
        self,
        view: View,
        plan: RunRow,
        inputs: PlanInputs,
        now_us: int,
        new_id: Callable[[], str],
        proposed: RunConfig | None = None,
    ) -> None:
        """`proposed`: the configuration of a plan that would continue this one; then only its reused runs count."""
        self.view = view
        self.plan = plan
        self.config = config_of(plan.config) if proposed is None else proposed
        self.steps = {step.id: step for step in self.config.steps}
        self.rows = defaultdict[str, list[StepRunRow]](list)
        for step in self.config.steps:
            self.rows[step.id] = reused_rows(view, step)
        if proposed is None:
            for row in view.step_runs(plan.id):
                self.rows[row.step].append(row)
        self._inputs = inputs
        self._now_us = now_us
        self._new_id = new_id
        self._taken: set[str] = set()
        self._brief: Brief | None = None  # read when a run starts
        self._lists: dict[str, list[Any] | str] = {}
        self._results: dict[str, dict[str, Any] | None] = {}
        self._progress = step_progress(view, plan.id)
        self._reused = {run.id for step in self.config.steps for run in step.reused}
        self._leaves: dict[str, dict[str, int]] = {}
        self._named: dict[str, Sequence[Named]] = {}  # what recent answers of each model have named, by account

    # -- the state ----------------------------------------------------------------------------------------------------

    def state(self, stopped: str) -> PlanState:
        runs = {name: [self._run(row) for row in rows] for name, rows in self.rows.items()}
        return PlanState(self.config.steps, self._progress, runs, stopped)

    @property
    def doing(self) -> str:
        """What the plan is doing, in a few words."""
        counts: Counter[str] = Counter()
        for rows in self.rows.values():
            for row in rows:
                if row.ended:
                    counts["ended"] += 1
                elif row.state == QUEUED and row.waits_for in AWAITED:
                    counts["waiting"] += 1
                else:
                    counts[row.state] += 1
        words = f"{counts['running']} of its runs at work, {counts['queued']} queued, {counts['ended']} ended"
        if counts["waiting"]:
            words += f", {counts['waiting']} waiting for a person"
        return words

    def _run(self, row: StepRunRow) -> StepRun:
        return StepRun(
            row.id,
            row.step,
            row.item,
            row.state,
            row.ended,
            self._is_well(row),
            cancelling=row.cancel_seq is not None,
            why=row.stop_reason or "",
        )

    def _is_well(self, row: StepRunRow) -> bool:
        if row.state in WHOLE:
            return True
        if row.state not in CAP_OF_ENDING:
            return False
        known = self._inputs.well.get(row.id)
        if known is None:
            known = ended_well(row, self.steps[row.step].config, self._result(row))
            self._inputs.well[row.id] = known
        return known

    def _result(self, row: StepRunRow) -> dict[str, Any] | None:
        if row.id not in self._results:
            self._results[row.id] = result_of(self.view, row)
        return self._results[row.id]

    # -- the world ----------------------------------------------------------------------------------------------------

    def items(self, step: StepConfig) -> int | str:
        items = self._list(step)
        return items if isinstance(items, str) else len(items)

    def _list(self, step: StepConfig) -> list[Any] | str:
        """Return the items that a step goes through, or why there are none."""
        if step.id not in self._lists:
            self._lists[step.id] = self._read_list(step)
        return self._lists[step.id]

    def _read_list(self, step: StepConfig) -> list[Any] | str:
        source = step.foreach
        assert source is not None, "only a step with foreach has items"
        if self.steps[source.step].foreach is not None:
            return [self._value(row, source) for row in self._well(source.step)]
        rows = self._well(source.step)
        if not rows:
            return f"foreach: {named('step', source.step)} has no usable result"
        value = self._value(rows[0], source)
        if not isinstance(value, list):
            return f"foreach: {quote_name(source.text)} of {rows[0].id} is not a list"
        return cast("list[Any]", value)

    def room(self, step: StepConfig, ahead: int) -> tuple[Room, str]:
        config = step.config
        if config.free:
            return "now", ""
        least = max(config.least_micros, 1)
        needed = least * (ahead + 1)
        room: Room = "now"
        for name, scope, cap in self._money_caps(step):
            bucket = self.view.bucket(scope)
            left = cap - bucket.committed
            if left + bucket.held_micros < least:
                most = max(left + bucket.held_micros, 0)
                return "never", too_little(most, name, least)
            if left < needed:
                room = "later"
        return room, ""

    def _money_caps(self, step: StepConfig) -> Iterator[tuple[str, str, int]]:
        user, day = self.plan.user_id, day_of(self._now_us)
        caps = self._inputs.caps(user)
        name = f"the plan's {format_usd(self.config.max_cost_micros)}"
        kept = kept_of_plan(self.view, self.plan.id, self._leaves_of(step))
        if kept:
            name = f"{name} without {format_usd(kept)} that is kept for later steps"
        yield name, self.plan.id, self.config.max_cost_micros - kept
        yield "the user's budget of the day", user_scope(user, day), caps.user_micros
        yield "the installation's budget of the day", installation_scope(day), caps.installation_micros

    def _leaves_of(self, step: StepConfig) -> dict[str, int]:
        """Return what the runs of a step over a list leave of the plan's money to each step that comes after it.

        That is the least cost of these with their likely inputs. Of what was left when the step began, it is kept for
        as many of them as fit beside a run of the step.
        """
        if step.id not in self._leaves:
            self._leaves[step.id] = self._find_leaves(step)
        return self._leaves[step.id]

    def _find_leaves(self, step: StepConfig) -> dict[str, int]:
        if step.foreach is None or step.config.free:
            return {}
        before = all_needs(self.config.steps)[step.id]
        spent = sum(row.cost_micros for name in before for row in self.rows[name] if row.id not in self._reused)
        room = self.config.max_cost_micros - spent - step.config.least_micros
        kept = kept_steps(later_steps(self.config.steps, step, begun=self._progress), room)
        leaves: dict[str, int] = {}
        for other in kept:
            inputs = self.cost_of_inputs(other.config, self._likely_input_chars(other))
            leaves[other.id] = min(other.config.least_micros + inputs, room)
            room -= leaves[other.id]
        return leaves

    def _likely_input_chars(self, step: StepConfig) -> int:
        """Return how many characters the runs before a step are likely to hand over to it."""
        chars = 0
        for source in step.inputs:
            results = 1
            if source.step != ITEM and self.steps[source.step].foreach is not None:
                results = self._progress.get(source.step, StepProgress(items=self.steps[source.step].at_most)).items
            chars += min(results * RESULT_CHARS, _input_room(step))
        return chars

    def cost_of_inputs(self, config: RunConfig, size: int) -> int:
        """Return what inputs of this size in bytes add to the cost from which a run can work, in micro-USD.

        At the dearest price that an account with calls of this model may have; that of the run is not looked at here.
        """
        tokens = int(size * LIKELY_BYTE_TOKENS)
        if tokens == 0:
            return 0
        price = config.price
        if any(surcharge.account for surcharge in price.surcharges):
            if config.model not in self._named:
                self._named[config.model] = tuple(recent_calls(self.view, config.model).named.values()) or ({},)
            pinned = pinned_at(config.base_url)
            prices = [dearest_price(config.price, known, pinned) for known in self._named[config.model]]
            price = max(prices, key=lambda each: each.input)
        return TURNS_WITH_INPUT * reserve_micros(price, Bound(tokens, 0))

    # -- values -------------------------------------------------------------------------------------------------------

    def _well(self, step: str) -> list[StepRunRow]:
        """Return the runs of a step that ended well, in the order of its items."""
        rows = [row for row in self.rows[step] if self._is_well(row)]
        return sorted(rows, key=lambda row: row.item or 0)

    def _value(self, row: StepRunRow, source: StepInput) -> Any:
        """Return what a run handed over: a field of its output, or its result as text, or that it was erased."""
        result = self._result(row)
        if result is None:
            return f"[the result of {row.id} was erased]"
        if source.field is None:
            return self._inputs.render(result)
        return _field_of(result.get("untrusted_result", {}).get("output"), source.field, named("step", source.step))

    # -- starting -----------------------------------------------------------------------------------------------------

    def start(self, move: Start) -> tuple[Event, ...]:
        """Return the entries that queue a run: its configuration, and its task with what other runs handed over."""
        step = self.steps[move.step]
        brief = self._brief_of(step)
        inputs = self.inputs_of(step, move.item)
        task = task_with_names(step, brief)
        run_id = self._unused_id()
        agent = Who(self.plan.session_id, run_id, self.plan.user_id, parent_agent_id=AGENT)
        ava = Who(self.plan.session_id, AGENT, self.plan.user_id)
        earlier = [{"id": row.id, "role": row.role, "ending": row.state} for row in inputs.runs]
        name = step.id if move.item is None else f"{step.id}[{move.item}]"
        queued = StepRunQueued(
            group_id=self.plan.id,
            subagent_id=run_id,
            step=step.id,
            item=move.item,
            name=name,
            earlier=tuple(earlier),
            least_micros=step.config.least_micros + self.cost_of_inputs(step.config, _size_of(inputs.texts)),
            leaves=self._leaves_of(step),
        )
        said = UserMessage(
            text=task,
            kind="task",
            context=brief.context,
            system_prompt=brief.system_prompt,
            inputs=tuple(inputs.texts) or None,
            project=project_of(brief),
        )
        spawn = spawn_fact(step.config, task, run_id, self.plan.pending_id, name=name, plan_id=self.plan.id)
        return (
            Event(ava, queued, run_id=run_id, model=step.config.model),
            Event(agent, said, run_id=run_id),
            Event(ava, spawn, run_id=run_id, model=step.config.model),
        )

    def _unused_id(self) -> str:
        while True:
            run_id = self._new_id()
            if run_id not in self._taken and self.view.run(run_id) is None:
                self._taken.add(run_id)
                return run_id

    def _brief_of(self, step: StepConfig) -> Brief:
        if self._brief is None:
            self._brief = brief_of(self.view, self.plan)
        assert self._brief is not None, "the texts of a plan are kept until it has ended"
        return self._brief.of_step(step.id)

    def inputs_of(self, step: StepConfig, item: int | None) -> StepInputs:
        """Return what a run of a step gets from other runs."""
        inputs = StepInputs()
        for number, source in enumerate(step.inputs, 1):
            room = _input_room(step)
            if source.step == ITEM:
                self._add_item(inputs, step, source, item or 1, number, room)
            else:
                self._add_step(inputs, source, number, room)
        return inputs

    def _add_item(
        self, inputs: StepInputs, step: StepConfig, source: StepInput, item: int, number: int, room: int
    ) -> None:
        items = self._list(step)
        value: Any = f"[item {item} of the list was erased]"
        if not isinstance(items, str) and item <= len(items):
            value = items[item - 1]
        assert step.foreach is not None
        about = f"item {item} of the list {quote_name(step.foreach.text)}"
        if source.field is not None:
            value = _field_of(value, source.field, about)
        rows = self._well(step.foreach.step)
        if self.steps[step.foreach.step].foreach is not None:
            rows = rows[item - 1 : item]
        run_id = rows[0].id if rows else ""
        inputs.add(number, about, _cut(_as_text(value), room, run_id), rows[:1])

    def _add_step(self, inputs: StepInputs, source: StepInput, number: int, room: int) -> None:
        other = self.steps[source.step]
        rows = sorted(self.rows[source.step], key=lambda row: row.item or 0)
        about = self._about(source)
        progress = self._progress.get(source.step, StepProgress())
        if progress.state == "done" and progress.items == 0:
            text = f"[nothing: the list that {named('step', source.step)} goes through was empty]"
            inputs.add(number, about, text, [])
            return
        if not any(self._is_well(row) for row in rows):
            inputs.add(number, about, f"[no result: {named('step', source.step)} {progress.state}: {progress.why}]", [])
            return
        if other.foreach is None:
            inputs.add(number, about, _cut(_as_text(self._value(rows[0], source)), room, rows[0].id), rows)
            return
        self._add_results_of_items(inputs, source, rows, number, room)

    def _about(self, source: StepInput) -> str:
        """Return what an input is: `what the step "find" handed over`."""
        step = named("step", source.step)
        if source.field is None:
            return f"what {step} handed over"
        return f"the field {quote_name(source.field)} of what {step} handed over"

    def _add_results_of_items(
        self, inputs: StepInputs, source: StepInput, rows: Sequence[StepRunRow], number: int, room: int
    ) -> None:
        """Add what the runs of a step with `foreach` handed over, each with an equal share of `room` characters.

        Each is a part with a mark of its own, because a result could contain what looks like another one. Those that do
        not fit are named by their ids, in the order in which the run's prompt lists them.
        """
        step = self.steps[source.step]
        heads = [f"item {row.item}{self._item_words(step, row)}" for row in rows]
        notes: list[str] = []
        why = self._progress.get(source.step, StepProgress()).why
        if why:
            notes.append(f"[missing: {why}]")
        left = room - sum(map(len, notes)) - NOT_SHOWN_CHARS
        share = max((left - sum(len(head) + CUT_NOTE_CHARS + MARK_CHARS for head in heads)) // len(rows), 0)
        parts: list[tuple[int, str]] = []
        for place, (head, row) in enumerate(zip(heads, rows, strict=True)):
            part = f"{head}: no result ({row.state})"
            if self._is_well(row):
                value = _as_text(self._value(row, source))
                part = f"{head}:\n{_cut(value, max(share, LEAST_SHARE_CHARS), row.id)}"
            left -= len(part) + MARK_CHARS
            if left < 0:
                notes.append(self._not_shown(rows[place:]))
                break
            parts.append((row.item or 0, part))
        about = f"{self._about(source)}, a part with its own mark for each item"
        overview = "\n".join([f"[parts that follow: {len(parts):,}]", *notes])
        inputs.add(number, about, _cut(overview, room, ""), self._well(source.step))
        for item, part in parts:
            inputs.add_part(number, item, part)

    def _not_shown(self, rows: Sequence[StepRunRow]) -> str:
        """Say which runs do not fit into an input, and how to read what they handed over."""
        words = f"not shown: items {rows[0].item} to {rows[-1].item}"
        well = [row.id for row in rows if self._is_well(row)]
        if not well:
            return f"[{words}, of which none has a result]"
        return (
            f"[{words}; read_subagent_result has their results, by the ids from {well[0]} to {well[-1]} in the list of"
            " earlier subagents, which has them in this order]"
        )

    def _item_words(self, step: StepConfig, row: StepRunRow) -> str:
        items = self._list(step)
        if isinstance(items, str) or row.item is None or row.item > len(items):
            return ""
        return f" ({quote_name(one_line(_as_text(items[row.item - 1]), ITEM_CHARS))})"


def too_little(left_micros: int, cap: str, least_micros: int) -> str:
    """Say that too little of a cap is left for a run; unrounded where both amounts would look the same."""
    exact = format_usd(left_micros) == format_usd(least_micros)
    left, least = format_usd(left_micros, exact=exact), format_usd(least_micros, exact=exact)
    return f"{left} is left of {cap}, and a run takes {least} or more"


class StepInputs:
    """What a run of a step gets from other runs: its inputs, and the runs whose results it may read."""

    def __init__(self) -> None:
        self.texts: list[dict[str, str]] = []
        self.runs: list[StepRunRow] = []

    def add(self, number: int, about: str, text: str, rows: Sequence[StepRunRow]) -> None:
        self.texts.append({"name": f"input {number}", "about": about, "text": text})
        self.runs += [row for row in rows if row not in self.runs]

    def add_part(self, number: int, item: int, text: str) -> None:
        """Add the result of one item of the input that was added last."""
        self.texts.append({"name": f"input {number}[{item}]", "about": "", "text": text})


def task_with_names(step: StepConfig, brief: Brief) -> str:
    """Return a step's task with each reference replaced by the name of what it brings: `input 1`."""
    return replace_references(brief.task, {source: f"input {number}" for number, source in enumerate(step.inputs, 1)})


def _field_of(output: Any, field: str, whose: str) -> Any:
    """Return a field of an object that a run handed over; where there is none, a text that says so."""
    if not isinstance(output, dict):
        return f"[{whose} has no field {quote_name(field)}: it is not an object]"
    return cast("dict[str, Any]", output).get(field, f"[{whose} has no field {quote_name(field)}]")


def _as_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return clean(text)[0]


def _cut(text: str, room: int, run_id: str) -> str:
    if len(text) <= room:
        return text
    more = f"; read_subagent_result {run_id} has all of it" if run_id else ""
    return f"{text[:room]}\n[cut: {room:,} of {len(text):,} characters{more}]"


def _input_room(step: StepConfig) -> int:
    """Return the most characters that one reference of a step brings."""
    return min(INPUT_CHARS, INPUTS_CHARS // len(step.inputs))


def _size_of(texts: Sequence[Mapping[str, str]]) -> int:
    return sum(len(each["text"].encode()) for each in texts)


def advance(fence: Fence, who: Who, inputs: PlanInputs, new_id: Callable[[], str]) -> Command[Advanced]:
    """Do what a plan can do now, at most `MOST_STARTED` starts. Raises StaleOwner: it has another owner, or has ended.

    What ends the plan's work takes its waiting runs out of the queue here, in the same transaction, and no claim takes
    those that are paused. A plan that was
    cancelled does nothing more: its owner ends it.
    """

    def command(view: View, now_us: int) -> Outcome[Advanced]:
        plan = view.owned_run(fence)
        if plan.cancel_seq is not None:
            return Outcome(Advanced(moved=False, doing="Ending its runs"))
        log = PlanLog(view, plan, inputs, now_us, new_id)
        events: list[Event] = []
        stopped = ""
        if plan_time(view.plan_caps(plan.id), now_us) == 0:
            stopped = PLAN_TIME_OVER
            events += end_waiting_steps(view, plan, now_us)
        moves = next_moves(log.state(stopped), log, MOST_WAITING)
        cancels: list[Cancel] = []
        started = 0
        for move in moves:
            match move:
                case Finish():
                    return Outcome(Advanced(moved=True, finish=move), tuple(events))
                case StepChange():
                    events.append(Event(who, _step_changed(move), fence=fence))
                case Start():
                    started += 1
                    if started <= MOST_STARTED:
                        events += log.start(move)
                case Cancel():
                    run = view.run(move.run_id)
                    assert run is not None, "a run of a plan is in the log"
                    if run.generation > 0:
                        cancels.append(move)
                    if is_paused(run):
                        events += stop_paused(run.id, who, move.why)(view, now_us).events
                    else:
                        events += cancel(run.id, who, move.why, "system")(view, now_us).events
        moved = bool(events or cancels)
        return Outcome(Advanced(moved=moved, doing=log.doing, cancels=tuple(cancels)), tuple(events))

    return command


def _step_changed(move: StepChange) -> Fact:
    progress = move.progress
    assert progress.state is not None, "a change has a state"
    return StepChanged(
        step=move.step,
        state=progress.state,
        items=progress.items,
        left_out=progress.left_out,
        not_done=progress.not_done,
        why=progress.why,
    )
