"""A plan that is over starts nothing more: not after a cancel, a step that stops it, or the end of its time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.model_server import Fail, Gate, Say, Step
from support.processes import processes_of_run
from support.runs import plans
from support.runs.tools import WaitingTool, offer_tool
from support.runtime import PRICED, Lab, open_lab, submit, wait_for

from ava_audit.events import (
    CancelRequested,
    CostReserved,
    Event,
    Fence,
    RunClaimed,
    RunEnded,
    RunPaused,
    StepChanged,
    SubagentComplete,
    Who,
)
from ava_audit.rows import RunRow
from ava_roles.tool import ToolArgs, ToolContext, ToolOutput
from ava_server.budget.user_limits import Slots
from ava_server.core.ids import new_id
from ava_server.runs.plan.plan import Advanced, advance
from ava_server.runs.record.claims import claim
from ava_server.runs.record.endings import cancel
from ava_server.runs.record.history import History
from ava_server.runs.record.lifecycle import agent_of
from ava_server.runs.record.plan_time import WRAP_S
from ava_server.runs.turn.context import RunContext
from ava_server.runs.turn.setup import RunSetup

pytestmark = pytest.mark.usefixtures("confined")

CONFIG = f"""{PRICED}
[limits]
running = 3
running_per_user = 3
spawns_per_hour = 100_000
user_daily_cents = 1_000_000
installation_daily_cents = 1_000_000
"""
STEPS = [plans.step(f"s{number}", "Look.", role="code_reviewer", if_fails="stop") for number in range(10)]
"""Three of them have a slot, seven wait."""
Call = tuple[str, dict[str, Any]]
COMMAND: Call = ("run_bash", {"command": "trap '' TERM; sleep 60"})
"""A call that is in a command, which takes no notice of being asked to end."""
TOOL: Call = ("deaf", {})
"""A call that is in a tool, which takes no notice of being cancelled, as a library may."""


class ThreeBegun:
    """A model whose first three runs do not come to an end: one is in a call, the others wait for their answers.

    Attributes:
        stuck: The call of a tool in which the first one is.
        fails: The gate behind which the second one fails.
        waits: The gate behind which the third one waits.
        goes_silent: After the first three calls, nothing is answered any more.
    """

    def __init__(self, stuck: Call, goes_silent: bool) -> None:
        self.stuck = stuck
        self.fails, self.waits = Gate(), Gate()
        self.goes_silent = goes_silent
        self._first_calls = 0

    def __call__(self, request: dict[str, Any]) -> Step:
        """Answer a request by how many runs have begun before."""
        if self.goes_silent and self._first_calls == 3:
            return Say("late", gate=Gate())
        if any(message["role"] == "assistant" for message in request["messages"]):
            return submit("it was stopped")
        self._first_calls += 1
        match self._first_calls:
            case 1:
                return Say(calls=[self.stuck])
            case 2:
                return Fail(400, gate=self.fails)
            case 3:
                return Say("late", gate=self.waits)
            case _:
                return submit("nobody has asked for this")


class DeafTool(WaitingTool):
    """Waits until it is released, whoever cancels it."""

    async def __call__(self, args: ToolArgs, at: ToolContext) -> ToolOutput:
        self.entered.set()
        while not self.release.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.2)
        return ToolOutput("done at last")


@asynccontextmanager
async def begun(
    lab: Lab, stuck: Call, goes_silent: bool = False, **more: Any
) -> AsyncGenerator[tuple[str, ThreeBegun]]:
    """Start the plan, and give its id and its model once three of its runs are at work, one of them in its call."""
    model = lab.server.script = ThreeBegun(stuck, goes_silent)
    tool = DeafTool(TOOL[0])
    offer_tool(lab, tool)
    proposal = await plans.propose(lab, STEPS, **more)
    approved = await lab.approve(proposal)
    assert approved.status == "approved", approved
    plan_id = str(proposal.group_id)
    await wait_for(model.fails.arrived)
    await wait_for(model.waits.arrived)
    with anyio.fail_after(40):
        while not (tool.entered.is_set() or await in_command(lab, plan_id)):  # noqa: ASYNC110 - nothing tells
            await anyio.sleep(0.02)
    try:
        yield plan_id, model
    finally:
        tool.release.set()


async def in_command(lab: Lab, plan_id: str) -> bool:
    """Tell whether a run of a plan has processes."""
    return any(processes_of_run(row.id) for row in await plans.rows(lab, plan_id) if row.state == "running")


async def begun_after(lab: Lab, plan_id: str, seq: int) -> list[tuple[str, str]]:
    """Return which runs of a plan were claimed for work or have reserved a call after an entry of the log."""
    found: list[tuple[str, str]] = []
    for row in await plans.rows(lab, plan_id):
        for entry in await lab.entries(row.id):
            starts = isinstance(entry.fact, RunClaimed) and entry.fact.reason != "cancel"
            if entry.seq > seq and (starts or isinstance(entry.fact, CostReserved)):
                found.append((row.id, entry.type))
    return found


async def cancel_plan(lab: Lab, stuck: Call) -> None:
    """Cancel the plan with three runs begun and seven waiting, and assert that nothing more begins."""
    async with begun(lab, stuck) as (plan_id, _model):
        calls = len(lab.server.requests)
        answered = await lab.call("cancel_subagent", group_id=plan_id, reason="no longer wanted")
        assert answered.status == "cancelled", answered
        for row in await plans.rows(lab, plan_id):
            assert (await lab.ended(row.id)).state == "cancelled"
        [asked] = [entry for entry in await lab.entries(plan_id) if isinstance(entry.fact, CancelRequested)]
        assert await begun_after(lab, plan_id, asked.seq) == []
        assert len(lab.server.requests) == calls, "the model was asked nothing after the cancel"


async def test_a_cancelled_plan_starts_no_waiting_run(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=CONFIG) as lab:
        for stuck in (COMMAND, TOOL):
            await cancel_plan(lab, stuck)


@pytest.mark.slow
async def test_a_cancelled_plan_starts_no_waiting_run_of_two_hundred_under_load(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=CONFIG) as lab:
        with busy_processes(3):
            for number in range(200):
                await cancel_plan(lab, TOOL if number % 4 == 0 else COMMAND)


@contextmanager
def busy_processes(count: int) -> Generator[None]:
    """Keep so many processors busy."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


async def test_a_step_that_stops_the_plan_starts_no_waiting_run(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=CONFIG) as lab, begun(lab, TOOL) as (plan_id, model):
        model.fails.released.set()
        plan = await lab.ended(plan_id)
        assert "which stops the plan" in (plan.stop_reason or "")
        stopped_at = [
            entry.seq
            for entry in await lab.entries(plan_id)
            if isinstance(entry.fact, StepChanged) and entry.fact.state == "failed"
        ]
        assert await begun_after(lab, plan_id, min(stopped_at)) == []


async def test_a_plan_whose_time_is_over_starts_no_waiting_run(tmp_path: Path) -> None:
    async with (
        open_lab(tmp_path, config=CONFIG) as lab,
        begun(lab, TOOL, goes_silent=True, timeout=6) as (plan_id, _model),
    ):
        plan = await lab.ended(plan_id)
        assert "the plan's time is over" in (plan.stop_reason or "")
        caps = await lab.store.read(lambda view: view.plan_caps(plan_id))
        assert caps is not None and caps.started_us is not None
        over_us = caps.started_us + 6_000_000
        rows = await plans.rows(lab, plan_id)
        assert [row.id for row in rows if (row.started_us or 0) > over_us] == []
        assert [row.state for row in rows if row.started_us is None] == ["timeout"] * 7


async def test_one_transaction_takes_what_waits_out_of_the_queue_and_no_claim_takes_the_rest(tmp_path: Path) -> None:
    """A run that has begun and is paused keeps its work: it stays in the queue for a moment, and nobody claims it."""
    async with open_lab(tmp_path, config=CONFIG, runs=False, check=False) as lab:
        tasks = ("at work", "paused", "waiting")
        proposals = [await lab.propose(task=task) for task in tasks]
        approved = await lab.approve(*proposals, last="3 subagents together, at most $1.50")
        assert approved.group_id, approved
        at_work, paused, waiting = [str(proposal.subagent_id) for proposal in proposals]
        for run_id in (approved.group_id, at_work, paused):
            assert isinstance(await claimed(lab, run_id), RunRow)
        fact = RunPaused(not_before_us=1, why="the provider's limit", active_us=1)
        await lab.write(Event(agent_of(await lab.run(paused)), fact, fence=Fence(paused, 1)))

        asked = await lab.store.do(cancel(approved.group_id, Who("sess-1", "ava", lab.runtime.user), None, "person"))
        assert asked.pending, "the owner of the plan ends it"
        assert [(await lab.run(run_id)).state for run_id in (at_work, paused, waiting)] == [
            "running", "queued", "cancelled",
        ]  # fmt: skip
        assert len(await lab.facts(at_work, CancelRequested)) == 1
        assert await claimed(lab, paused) == "its plan was cancelled, or the plan's time is over, or nearly"


async def test_a_step_that_stops_the_plan_lets_no_claim_take_a_paused_run(tmp_path: Path) -> None:
    steps = [plans.step("bad", "Look.", if_fails="stop"), plans.step("slow", "Look.")]
    async with open_lab(tmp_path, config=CONFIG, runs=False, check=False) as lab:
        proposal = await plans.propose(lab, steps)
        await lab.approve(proposal)
        plan_id = str(proposal.group_id)
        runs = await begun_steps(lab, plan_id)
        for run_id in runs.values():
            assert isinstance(await claimed(lab, run_id), RunRow)
        slow = await lab.run(runs["slow"])
        pause = RunPaused(not_before_us=1, why="the provider's limit", active_us=1)
        await lab.write(Event(agent_of(slow), pause, fence=Fence(slow.id, 1)))
        bad = await lab.run(runs["bad"])
        complete = SubagentComplete(
            status="error", summary="", tokens=0, cost_cents=0, duration=1, subagent_id=bad.id, result={}
        )
        for fact in (complete, RunEnded(status="error", stop_reason="it failed", active_us=1)):
            await lab.write(Event(agent_of(bad), fact, fence=Fence(bad.id, 1)))

        answer = await advanced(lab, plan_id)
        assert [each.run_id for each in answer.cancels] == [slow.id], "whoever drives the plan keeps its work"
        [asked] = await lab.facts(slow.id, CancelRequested)
        assert asked.by == "system" and "failed, which stops the plan" in (asked.reason or "")
        assert (await lab.run(slow.id)).state == "queued"
        assert isinstance(await claimed(lab, slow.id), str), "no claim takes it"


@pytest.mark.parametrize(("timeout", "kept_s"), [(300, WRAP_S), (20, 4.0)])
async def test_a_run_begins_only_while_its_plan_leaves_it_more_time_than_its_wrap_up_takes(
    tmp_path: Path, timeout: int, kept_s: float
) -> None:
    """It could only pay for handing in nothing. One that has begun hands in what it has."""
    steps = [plans.step("first", "Look."), plans.step("second", "Look.")]
    async with open_lab(tmp_path, config=CONFIG, runs=False, check=False) as lab:
        proposal = await plans.propose(lab, steps, timeout=timeout)
        await lab.approve(proposal)
        plan_id = str(proposal.group_id)
        runs = await begun_steps(lab, plan_id)
        assert isinstance(await claimed(lab, runs["first"]), RunRow)
        pause = RunPaused(not_before_us=1, why="the provider's limit", active_us=1)
        first = await lab.run(runs["first"])
        await lab.write(Event(agent_of(first), pause, fence=Fence(first.id, 1)))
        caps = await lab.store.read(lambda view: view.plan_caps(plan_id))
        assert caps is not None and caps.started_us is not None
        for run, left_s, begins in (
            ("second", kept_s + 0.1, True), ("second", kept_s - 0.1, False), ("first", 1, True), ("first", 0, False),
        ):  # fmt: skip
            at_us = caps.started_us + round((timeout - left_s) * 1e6)
            command = claim(runs[run], "test", Who("sess-1", "ava", lab.runtime.user), frozenset(), Slots(10, 10))
            outcome = await lab.store.read(lambda view, command=command, at_us=at_us: command(view, at_us))  # type: ignore[misc]
            assert isinstance(outcome.value, RunRow) is begins, (run, left_s, outcome.value)


async def test_runs_together_for_a_short_time_have_all_but_a_fifth_of_it_for_their_work(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit("done")] * 2, config=CONFIG) as lab:
        made = [await lab.propose(task=task, role="researcher") for task in ("Look.", "Look again.")]
        approved = await lab.approve(*made, last="2 subagents together, at most $1.00 and 20 s", group_timeout=20)
        assert approved.status == "approved", approved
        for proposal in made:
            run = await lab.ended(proposal.subagent_id)
            assert run.state == "success", run.stop_reason
            [call] = await lab.facts(run.id, CostReserved)
            assert call.last is None, "its first call is for its work, not for handing in what there is"


async def begun_steps(lab: Lab, plan_id: str) -> dict[str, str]:
    """Claim a plan for an instance that does nothing with it, let it start its steps, and return their runs."""
    assert isinstance(await claimed(lab, plan_id), RunRow)
    for _ in range(3):
        await advanced(lab, plan_id)
    return {str(row.step): row.id for row in await plans.rows(lab, plan_id)}


async def advanced(lab: Lab, plan_id: str) -> Advanced:
    """Do what a plan can do now, as the instance that has claimed it."""
    plan = await lab.run(plan_id)
    inputs = lab.runtime.manager._plan_inputs
    return await lab.store.do(
        advance(Fence(plan_id, plan.generation), agent_of(plan), inputs, lambda: new_id("subagent_id"))
    )


async def claimed(lab: Lab, run_id: str) -> RunRow | str:
    """Claim a run for an instance that does nothing with it; return why not, or the run."""
    who = Who("sess-1", "ava", lab.runtime.user)
    return await lab.store.do(claim(run_id, "test", who, frozenset(), Slots(10, 10)))


@pytest.mark.parametrize("of", ["the plan", "the run"])
async def test_a_run_that_was_claimed_before_a_cancel_reserves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """The cancel comes between the claim and the first call, and this process has not heard of it yet."""
    ready, go_on = anyio.Event(), anyio.Event()
    prepare = RunSetup.prepare

    async def slow(self: RunSetup, run: RunRow, history: History) -> RunContext:
        ready.set()
        await go_on.wait()
        return await prepare(self, run, history)

    monkeypatch.setattr(RunSetup, "prepare", slow)
    async with open_lab(tmp_path, [submit()], config=CONFIG) as lab:
        proposal = await plans.propose(lab, STEPS[:1])
        await lab.approve(proposal)
        with anyio.fail_after(40):
            await ready.wait()
        [row] = await plans.rows(lab, proposal.group_id)
        cancelled_id = proposal.group_id if of == "the plan" else row.id
        await lab.store.do(cancel(cancelled_id, Who("sess-1", "ava", lab.runtime.user), "enough", "person"))
        go_on.set()
        ended = await lab.ended(row.id)
        await lab.ended(proposal.group_id)
        assert (ended.state, ended.cost_micros) == ("cancelled", 0)
        assert await lab.facts(row.id, CostReserved) == [] and lab.server.requests == []
