"""Random plans that are played to their end without a model: each run reserves, spends, fails or is cancelled."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from ava_server.models.prices import Price
from ava_server.run_config.config import RunConfig, StepConfig, StepInput
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

MOST_WAITING = 5
SLOTS = 4
PRICE = Price(1, 1, 1, 1)


def step_config(least: int) -> RunConfig:
    """Return a configuration whose cheapest call costs so much, in micro-USD."""
    return RunConfig(
        role="researcher", role_source="", role_text="", model="m", provider="p", model_id="m", price=PRICE,
        timeout_s=60, max_cost_micros=10 * least, max_tokens=1, max_iterations=1, max_tool_calls=1, tools=(),
        reach="can read nothing", estimated_minutes=(1, 1), input_bytes=1, least_micros=least,
    )  # fmt: skip


CONFIGS = {least: step_config(least) for least in (3, 10, 30)}


def random_steps(chance: random.Random, most: int) -> tuple[StepConfig, ...]:
    """Return at most so many steps, each of which may need those before it."""
    steps: list[StepConfig] = []
    for number in range(chance.randint(1, most)):
        earlier = [step.id for step in steps]
        needs = tuple(sorted(chance.sample(earlier, min(len(earlier), chance.choice((0, 0, 1, 1, 2, 3))))))
        foreach = StepInput(step=needs[0], field="items") if needs and chance.random() < 0.3 else None
        steps.append(
            StepConfig.model_construct(
                id=f"s{number}",
                config=CONFIGS[chance.choice(list(CONFIGS))],
                needs=needs,
                inputs=(),
                foreach=foreach,
                at_most=chance.randint(1, 12) if foreach else 1,
                if_fails=chance.choice(("skip", "skip", "stop", "continue")),
            )
        )
    return tuple(steps)


@dataclass
class PlanPlay:
    """A plan at work, with its money: what is spent, and what each run holds for a call and its last turn."""

    chance: random.Random
    steps: tuple[StepConfig, ...]
    cap: int
    spent: int = 0
    held: dict[str, int] = field(default_factory=dict[str, int])
    progress: dict[str, StepProgress] = field(default_factory=dict[str, StepProgress])
    runs: dict[str, list[StepRun]] = field(default_factory=dict[str, list[StepRun]])
    cost: Counter[str] = field(default_factory=Counter[str])
    stopped: str = ""
    unaffordable: list[int] = field(default_factory=list[int])
    lists: dict[str, int] = field(default_factory=dict[str, int])

    def reuse(self) -> None:
        """Let some steps have runs of an earlier plan, where all that they need is done already."""
        whole: set[str] = set()
        for step in self.steps:
            if not whole.issuperset(step.needs) or self.chance.random() < 0.3:
                continue
            length = self.chance.randint(1, 15) if step.foreach else 1
            items = range(1, min(length, step.at_most) + 1)
            kept = [item for item in items if self.chance.random() < 0.8]
            if step.foreach:
                self.lists[step.id] = length
            self.runs[step.id] = [
                StepRun(f"{step.id}-{item}", step.id, item if step.foreach else None, "success", ended=True, well=True)
                for item in kept
            ]
            if len(kept) == len(items):
                whole.add(step.id)

    @property
    def left(self) -> int:
        """The money that is neither spent nor held, in micro-USD."""
        return self.cap - self.spent - sum(self.held.values())

    # -- the world ----------------------------------------------------------------------------------------------------

    def items(self, step: StepConfig) -> int | str:
        """Return how many items a step's list has, or why it has none."""
        if step.id in self.lists:
            return self.lists[step.id]
        return "no list" if self.chance.random() < 0.05 else self.chance.randint(0, 15)

    def room(self, step: StepConfig, ahead: int) -> tuple[Room, str]:
        """Return whether one more run of a step fits the plan's cap, and why it does not."""
        least = step.config.least_micros
        if self.cap - self.spent < least:
            self.unaffordable.append(least)
            return "never", "no money is left"
        return ("now" if self.left >= least * (ahead + 1) else "later"), ""

    # -- one turn -----------------------------------------------------------------------------------------------------

    def look(self) -> Finish | None:
        """Carry out what can be done now; return the plan's end."""
        while True:
            moves = next_moves(PlanState(self.steps, self.progress, self.runs, self.stopped), self, MOST_WAITING)
            for move in moves:
                match move:
                    case Finish():
                        return move
                    case StepChange():
                        self.change(move)
                    case Start():
                        self.start(move)
                    case Cancel():
                        self.set_run(move.run_id, cancelling=True)
            if not moves:
                return None

    def change(self, move: StepChange) -> None:
        """Note the progress of a step, which is not over."""
        assert not self.progress.get(move.step, StepProgress()).over, "a step that is over changes no more"
        self.progress[move.step] = move.progress

    def start(self, move: Start) -> None:
        """Start a run of a step, which may start now."""
        step = next(each for each in self.steps if each.id == move.step)
        for name in step.needs:
            assert self.progress[name].over, f"{step.id} starts before {name} is over"
            assert all(run.ended for run in self.runs.get(name, ())), f"{step.id} starts while {name} runs"
        own = self.runs.setdefault(move.step, [])
        assert move.item not in [run.item for run in own], "no item runs twice"
        assert len(own) < step.at_most, "no more runs than were approved"
        own.append(StepRun(f"{move.step}-{move.item}", move.step, move.item, "queued"))
        waiting = sum(run.state == "queued" for runs in self.runs.values() for run in runs)
        assert waiting <= MOST_WAITING

    def set_run(self, run_id: str, **values: object) -> None:
        """Change what is known of a run."""
        step = run_id.partition("-")[0]
        self.runs[step] = [replace(run, **values) if run.id == run_id else run for run in self.runs[step]]  # type: ignore[arg-type]

    def play_runs(self) -> bool:
        """Let each run that has a slot do something; tell whether one did."""
        moved = False
        at_work = sum(run.state == "running" for runs in self.runs.values() for run in runs)
        for run in [run for runs in self.runs.values() for run in runs if not run.ended]:
            if run.state == "queued" and run.cancelling:
                self.end(run, "cancelled", well=False)
                moved = True
            elif run.state == "queued" and at_work < SLOTS:
                at_work += 1
                self.set_run(run.id, state="running")
                moved = True
            elif run.state == "running":
                moved = self.work(run) or moved
        return moved

    def work(self, run: StepRun) -> bool:
        """Reserve a call, send it, and settle it; or end."""
        own = next(step.config for step in self.steps if step.id == run.step)
        holds = self.held.pop(run.id, 0)
        chance = self.chance.random()
        if run.cancelling or chance < 0.3:
            well = not run.cancelling and self.chance.random() < 0.8
            self.end(run, "success" if well else "cancelled" if run.cancelling else "error", well=well)
            return True
        call, last = own.least_micros * 2 // 3, own.least_micros // 3
        if call + last > self.left or self.cost[run.id] + call + last > own.max_cost_micros:
            self.end(run, "cost_exceeded", well=self.chance.random() < 0.5)
            return True
        lost = self.chance.random() < 0.05
        cost = call if lost else self.chance.randint(0, call)
        self.spent += cost
        self.cost[run.id] += cost
        self.held[run.id] = last
        assert self.spent + sum(self.held.values()) <= self.cap, "no call is sent that does not fit"
        assert holds <= own.least_micros
        return True

    def end(self, run: StepRun, state: str, *, well: bool) -> None:
        """End a run and free what it holds."""
        self.held.pop(run.id, None)
        self.set_run(run.id, state=state, ended=True, well=well)


def play_plan(seed: int) -> tuple[PlanPlay, Finish]:
    """Play one plan to its end."""
    chance = random.Random(seed)
    steps = random_steps(chance, chance.choice((3, 10, 60)))
    at = PlanPlay(chance, steps, cap=chance.choice((20, 100, 1_000, 100_000)))
    if chance.random() < 0.5:
        at.reuse()
    cancel_at = chance.choice((None, None, None, chance.randint(0, 30)))
    for turn in range(20_000):
        ended = at.look()
        if ended is not None:
            return at, ended
        if turn == cancel_at:
            at.stopped = "the plan's time is over"
        moved = at.play_runs()
        assert moved, "a plan that is not over waits for a run that does something"
    raise AssertionError("it does not end")


def check_plan(at: PlanPlay, ended: Finish) -> None:
    """Assert that a plan that has ended accounts for each step and item, and has kept its cap."""
    by_id = {step.id: step for step in at.steps}
    assert all(run.ended for runs in at.runs.values() for run in runs), "nothing is left behind"
    assert set(at.progress) == set(by_id), "each step is accounted for"
    assert at.spent <= at.cap
    for name, progress in at.progress.items():
        runs = at.runs.get(name, [])
        well = sum(run.well for run in runs)
        assert progress.over
        assert (progress.state == "done") == (well > 0 or (progress.items == 0 and progress.state != "failed"))
        if progress.state == "done":
            assert progress.not_done == progress.items - well, "each item that was not done is counted"
        if progress.state == "skipped":
            assert all(run.well for run in runs), "only an earlier plan's runs are there"
    complete = all(each.state == "done" and not each.not_done and not each.left_out for each in at.progress.values())
    assert (ended.status == "success") == complete
    if at.unaffordable and not at.stopped:  # what is left buys none of what was not started
        assert at.cap - at.spent < max(at.unaffordable)
